/* cli.h - what all parts of the command share: subcommands, errors, names, tables, progress */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* ---- subcommands, at both levels: `thinwire SUB` and `thinwire bench SUB`
 *
 * Help, the list in an error message and the dispatch come from the tables in main.c. A new
 * subcommand is its file, its declaration here and one row there. argv[0] is the command's name;
 * each returns a STATUS. */

int command_info(int argc, char **argv);
int command_simulate(int argc, char **argv);
int command_bounds(int argc, char **argv);
int command_report(int argc, char **argv);
int command_train(int argc, char **argv);
int command_demo(int argc, char **argv);

/* The subcommands of `thinwire bench`. */
int command_bench_select(int argc, char **argv);
int command_bench_allreduce(int argc, char **argv);
int command_bench_overlap(int argc, char **argv);
int command_bench_wire(int argc, char **argv);

/* ---- error.c: one line, and the exit status that goes with it
 *
 * Every function prints "thinwire: ..." to stderr and returns the status, so that callers can write
 * `return error_report("...")`. Texts name what was given and what is accepted. TW_TRY passes a
 * status on. All ranks of a job have the same error, and one line is enough: a thread that plays a
 * rank captures its first error, and the job prints one of them. */

enum {
    STATUS_OK = TW_OK,
    STATUS_FAILED = 1, /* the work was understood but could not be done */
    STATUS_USAGE = 2,  /* the command line was not understood */
    STATUS_HELP = 3,   /* --help was shown and nothing is left to do; the command exits with 0 */
};

/* Of the command's functions, those that thinwire-mpi.so calls. */
#define CLI_FOR_MPI __attribute__((visibility("default")))

/* The command line is wrong; the work failed. */
#define error_usage(...) error_line(STATUS_USAGE, __VA_ARGS__)
#define error_report(...) error_line(STATUS_FAILED, __VA_ARGS__)
CLI_FOR_MPI int error_line(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What a call of the library returned while `doing` ("selecting", ...). STATUS_OK for TW_OK; else
 * reports tw_last_error() with a hint on what to do and returns STATUS_FAILED. */
CLI_FOR_MPI int error_check(const char *doing, int error);

/* The first error of a rank. */
typedef struct error_capture {
    bool broken;     /* other ranks may not know of the error: no collective call any more */
    char text[1024]; /* "" if there is none */
} error_capture;

/* Keep the calling thread's errors in capture from now on; NULL: print them again. */
CLI_FOR_MPI void error_capture_in(error_capture *capture);

/* Print nothing from now on, or print again: for processes of a job that would repeat what the
 * first one says. */
void error_silence(bool silent);

/* ---- names of the rows of the library's tables: by position from 0; NULL outside of the table */

#define COUNT_OF(rows) ((int)(sizeof(rows) / sizeof(rows)[0]))

const char *names_method(int position);
const char *names_exchange(int position);
const char *names_scheme(int position);
const char *names_wire(int position);
const char *names_checksum(int position); /* in the order of tw_checksum */

/* The position of a scheme that is known to exist. */
int names_find_scheme(const char *name);

/* ---- table.c: a header row, a units row, then the rows
 *
 * Rows appear as they are finished, so widths are given beforehand rather than fitted; a cell that
 * is too long pushes its row to the right rather than being cut. */

typedef struct table_column {
    const char *name;
    const char *unit; /* "" if it has none */
    int width;        /* characters; negative: left-aligned */
} table_column;

typedef struct table {
    FILE *stream;
    const table_column *columns; /* [ncolumns] */
    int ncolumns;
    int gap; /* blanks between columns */
} table;

/* Print header and units. columns must outlive the table. gap: blanks between columns, usually
 * 2. */
void table_begin(table *out, FILE *stream, const table_column *columns, int ncolumns, int gap);

/* Print a row: its cells as printf makes them, separated by '|'. */
void table_row(const table *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append to text[size], as printf does; what does not fit is cut off. */
void text_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- progress.c: how far long work has come, on stderr
 *
 * On a terminal a bar that redraws itself; elsewhere a plain line every ten seconds, so that short
 * work stays silent and logs stay short. One bar at a time, as there is one stderr. */

/* Start: label is kept by pointer until progress_end. */
void progress_begin(const char *label, int64_t total);

/* done of total is finished. Cheap: draws a few times a second at most. */
void progress_to(int64_t done);

/* Wipe the bar off the line, before something else is printed. The next progress_to redraws it. */
void progress_clear(void);

/* Finish and leave no trace on the terminal. */
void progress_end(void);

#endif
