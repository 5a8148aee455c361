/* errors.h - how the command says no: one line on stderr and the exit status that goes with it
 *
 * Every function prints "thinwire: ..." and returns the status, so that callers can write
 * `return failure("...")`. Texts name what was given and what is accepted.
 */
#ifndef CLI_ERRORS_H
#define CLI_ERRORS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    STATUS_OK = 0,
    STATUS_FAILED = 1, /* the work was understood but could not be done */
    STATUS_USAGE = 2,  /* the command line was not understood */
};

/* The command line is wrong. Returns STATUS_USAGE. */
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The work failed. Returns STATUS_FAILED. */
int failure(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A call of the library returned error while `doing` ("selecting", ...): prints tw_last_error()
 * and a hint on what to do. Returns STATUS_FAILED. */
int library_failure(const char *doing, int error);

/* The same as text[size], for a thread that leaves the printing to another. */
void library_failure_text(char *text, size_t size, const char *doing, int error);

/* Print nothing from here on, or print again: for the processes of a job that would only repeat
 * what the first one says. */
void errors_hush(bool hushed);

#endif
