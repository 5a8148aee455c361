/* errors.c - error lines and hints
 *
 * Clears a progress bar first, so that the line stands alone on a terminal. Never exits: the
 * status travels back to main, and everything is freed on the way.
 */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>

#include "progress.h"
#include "thinwire.h"

typedef struct error_hint {
    int error;
    const char *text;
} error_hint;

static const error_hint hints[] = {
    {TW_ERR_SIZE, "choose --n between 1 and 2147483647"},
    {TW_ERR_K, "choose --k between 1 and n"},
    {TW_ERR_DENSITY, "choose --density above 0 and at most 1"},
    {TW_ERR_NAME, "`thinwire info` lists methods and kernels; check THINWIRE_KERNELS too"},
    {TW_ERR_PARAM, "`thinwire info` says what this build accepts"},
    {TW_ERR_NUMBER, "try --type f32, a --drift nearer to 1, or other data"},
    {TW_ERR_MEMORY, "try a smaller --n or a smaller --density"},
};

static const char *hint_for(int error) {
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        if (hints[i].error == error) {
            return hints[i].text;
        }
    }
    return "this looks like a bug in thinwire: please report the command line";
}

static void print_line(const char *format, va_list arguments) {
    progress_clear();
    fputs("thinwire: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

int usage_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
    return STATUS_USAGE;
}

int failure(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
    return STATUS_FAILED;
}

int library_failure(const char *doing, int error) {
    const char *cause = tw_last_error();
    if (cause[0] == '\0') {
        cause = tw_error_text(error);
    }
    return failure("%s: %s (hint: %s)", doing, cause, hint_for(error));
}
