/* error.c - error lines and hints
 *
 * Clears a progress bar first, so that the line stands alone on a terminal. Never exits: the
 * status travels back to main, and everything is freed on the way.
 */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int error;
    const char *text;
} hints[] = {
    {TW_ERR_SIZE, "choose --n between 1 and 2147483647"},
    {TW_ERR_K, "choose --k between 1 and n"},
    {TW_ERR_DENSITY, "choose --density above 0 and at most 1"},
    {TW_ERR_NAME, "`thinwire info` lists methods and kernels; check THINWIRE_KERNELS too"},
    {TW_ERR_PARAM, NULL}, /* the cause says what is accepted */
    {TW_ERR_NUMBER, "try --type f32, a --drift nearer to 1, or other data"},
    {TW_ERR_MEMORY, "try a smaller --n or a smaller --density"},
    {TW_ERR_TRANSPORT, "see what the network's own messages say"},
    {TW_ERR_TIMEOUT, "see what became of the missing ranks, or give a longer --timeout"},
    {TW_ERR_MISMATCH, "start all ranks with the same build and the same options"},
    {TW_ERR_DEVICE, "`thinwire info` lists the GPUs that can be used"},
};

static bool is_silent;
static _Thread_local error_capture *captured;

void error_silence(bool silent) {
    is_silent = silent;
}

void error_capture_in(error_capture *capture) {
    captured = capture;
}

int error_line(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (captured != NULL) {
        if (captured->text[0] == '\0')
            vsnprintf(captured->text, sizeof captured->text, format, arguments);
    } else if (!is_silent) {
        progress_clear();
        fputs("thinwire: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
    }
    va_end(arguments);
    return status;
}

/* Collective calls give these to all ranks at once, with the group whole or not yet made. After any
 * other error it is not known what the other ranks do. */
static bool is_shared(int error) {
    return error == TW_ERR_NUMBER || error == TW_ERR_MISMATCH || error == TW_ERR_MEMORY ||
           error == TW_ERR_DEVICE;
}

int error_check(const char *doing, int error) {
    if (error == TW_OK)
        return STATUS_OK;
    if (captured != NULL && !is_shared(error))
        captured->broken = true;
    const char *cause = tw_last_error();
    const char *hint = "this looks like a bug in thinwire: please report the command line";
    for (int i = 0; i < COUNT_OF(hints); i++)
        hint = hints[i].error == error ? hints[i].text : hint;
    cause = cause[0] != '\0' ? cause : tw_error_text(error);
    return hint == NULL ? error_report("%s: %s", doing, cause)
                        : error_report("%s: %s (hint: %s)", doing, cause, hint);
}
