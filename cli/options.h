/* options.h - declarative command-line options
 *
 * A subcommand describes its options as rows; parsing, --help and the error lines come from the
 * rows. Long names only, as `--name value` or `--name=value`; the last one given wins. A value that
 * is not understood is refused with one line that names the option, the value and what is accepted.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define OPTION_LIST_MAX 32
#define OPTIONS_CONTINUE (-1) /* from options_parse: nothing to say, do the work */

typedef struct choice_list {
    int count;
    int at[OPTION_LIST_MAX]; /* positions */
} choice_list;

typedef struct real_list {
    int count;
    double at[OPTION_LIST_MAX];
} real_list;

typedef enum option_kind {
    OPTION_FLAG,    /* no value; sets *to.flag */
    OPTION_INTEGER, /* whole number, suffixes K, M and G for powers of 1000 */
    OPTION_REAL,
    OPTION_TEXT,    /* kept by pointer into argv */
    OPTION_CHOICE,  /* one name; the result is its position */
    OPTION_CHOICES, /* names separated by commas, or "all" */
    OPTION_REALS,   /* numbers separated by commas */
} option_kind;

typedef struct cli_option {
    const char *name;        /* without the dashes */
    const char *placeholder; /* of the value in --help; NULL for a flag */
    const char *help;        /* says the default; choices are appended by themselves */
    option_kind kind;
    union { /* where the value goes; untouched if the option is not given */
        bool *flag;
        int64_t *integer;
        double *real;
        const char **text;
        int *choice;
        choice_list *choices;
        real_list *reals;
    } to;
    double min, max;                        /* of numbers, inclusive; whole ones up to 2^53 */
    const char *(*choice_at)(int position); /* names by position from 0, NULL past the last */
} cli_option;

/* What an option takes, as part of its row: the value's placeholder, where it goes, its limits. */
#define TAKES_NOTHING(target) .kind = OPTION_FLAG, .to.flag = (target)
#define TAKES_INTEGER(value, target, low, high)                                                    \
    .placeholder = (value), .kind = OPTION_INTEGER, .to.integer = (target), .min = (low),          \
    .max = (high)
#define TAKES_REAL(value, target, low, high)                                                       \
    .placeholder = (value), .kind = OPTION_REAL, .to.real = (target), .min = (low), .max = (high)
#define TAKES_REALS(value, target, low, high)                                                      \
    .placeholder = (value), .kind = OPTION_REALS, .to.reals = (target), .min = (low), .max = (high)
#define TAKES_TEXT(value, target) .placeholder = (value), .kind = OPTION_TEXT, .to.text = (target)
#define TAKES_CHOICE(value, target, names)                                                         \
    .placeholder = (value), .kind = OPTION_CHOICE, .to.choice = (target), .choice_at = (names)
#define TAKES_CHOICES(value, target, names)                                                        \
    .placeholder = (value), .kind = OPTION_CHOICES, .to.choices = (target), .choice_at = (names)

/* Rows that several commands have. */
#define OPTION_ROW_SEED(target, words)                                                             \
    { .name = "seed", TAKES_INTEGER("N", target, 0, 0x1p53), .help = (words) }
#define OPTION_ROW_JSON(target)                                                                    \
    {                                                                                              \
        .name = "json", TAKES_TEXT("FILE", target),                                                \
        .help = "write JSON lines to FILE, or to stdout with - (the table goes to stderr)"         \
    }

typedef struct option_set {
    const char *command;       /* after `thinwire`: "bench select" */
    const char *summary;       /* what the command does, any length: it is wrapped */
    const char *notes;         /* further paragraph after the options, or NULL */
    const char *examples;      /* indented lines, each ending in \n */
    const cli_option *options; /* [noptions] */
    int noptions;
} option_set;

/* Parse argv[1 ..]. Returns OPTIONS_CONTINUE, or the exit status: 0 after --help, 2 after an error
 * line. */
int options_parse(const option_set *set, int argc, char **argv);

/* Every choice that choice_at knows: what "all" means, and the default of most lists. */
void options_take_all(const char *(*choice_at)(int position), choice_list *list);

/* Print the help of the command to stdout: what --help does. */
void options_print_help(const option_set *set);

#endif
