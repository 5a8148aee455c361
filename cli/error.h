/* error.h - how the command reports an error: one line, and the exit status that goes with it
 *
 * Every function prints "thinwire: ..." to stderr and returns the status, so that callers can write
 * `return error_report("...")`. Texts name what was given and what is accepted. TW_TRY of
 * base/error.h passes a status on.
 *
 * All ranks of a job have the same error, and one line is enough: a thread that plays a rank
 * captures its first error, and the job prints one of them.
 */
#ifndef CLI_ERROR_H
#define CLI_ERROR_H

#include <stdbool.h>

#include "base/error.h"

enum {
    STATUS_OK = TW_OK,
    STATUS_FAILED = 1, /* the work was understood but could not be done */
    STATUS_USAGE = 2,  /* the command line was not understood */
    STATUS_HELP = 3,   /* --help was shown and nothing is left to do; the command exits with 0 */
};

/* The command line is wrong; the work failed. */
#define error_usage(...) error_line(STATUS_USAGE, __VA_ARGS__)
#define error_report(...) error_line(STATUS_FAILED, __VA_ARGS__)
int error_line(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a call of the library returned while `doing` ("selecting", ...). STATUS_OK for TW_OK; else
 * reports tw_last_error() with a hint on what to do and returns STATUS_FAILED. */
int error_check(const char *doing, int error);

/* The first error of a rank. */
typedef struct error_capture {
    bool broken;     /* other ranks may not know of the error: no collective call any more */
    char text[1024]; /* "" if there is none */
} error_capture;

/* Keep the calling thread's errors in capture from now on; NULL: print them again. */
void error_capture_in(error_capture *capture);

/* Print nothing from now on, or print again: for processes of a job that would repeat what the
 * first one says. */
void error_silence(bool silent);

#endif
