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

#define LINE_SIZE 1024

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
    {TW_ERR_TRANSPORT, "see what the network's own messages say"},
    {TW_ERR_TIMEOUT, "see what became of the missing ranks, or give a longer --timeout"},
    {TW_ERR_MISMATCH, "start all ranks with the same build and the same options"},
    {TW_ERR_DEVICE, "`thinwire info` lists the GPUs that can be used"},
};

static const char *hint_for(int error) {
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (hints[i].error == error)
            return hints[i].text;
    return "this looks like a bug in thinwire: please report the command line";
}

static bool is_hushed;

void errors_hush(bool hushed) {
    is_hushed = hushed;
}

static void print_line(const char *format, va_list arguments) {
    if (is_hushed)
        return;
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

void library_failure_text(char *text, size_t size, const char *doing, int error) {
    const char *cause = tw_last_error();
    if (cause[0] == '\0')
        cause = tw_error_text(error);
    snprintf(text, size, "%s: %s (hint: %s)", doing, cause, hint_for(error));
}

int library_failure(const char *doing, int error) {
    char text[LINE_SIZE];
    library_failure_text(text, sizeof text, doing, error);
    return failure("%s", text);
}
