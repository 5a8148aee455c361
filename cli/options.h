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

typedef struct choice_list {
    int count;
    int at[OPTION_LIST_MAX]; /* positions */
} choice_list;

typedef struct real_list {
    int count;
    double at[OPTION_LIST_MAX];
} real_list;

typedef enum option_kind {
    KIND_FLAG,    /* no value; sets *to.flag */
    KIND_INTEGER, /* whole number, suffixes K, M and G for powers of 1000 */
    KIND_REAL,
    KIND_TEXT,    /* kept by pointer into argv */
    KIND_CHOICE,  /* one name; the result is its position */
    KIND_CHOICES, /* names separated by commas, or "all" */
    KIND_REALS,   /* numbers separated by commas */
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
    const char *bare; /* the value of the option without one; NULL: it needs one */
} cli_option;

/* Rows: the option's name, the placeholder of its value, where that goes, its limits or choices,
 * and the help. */
#define OPTION_ROW(label, value, words, type, target, ...)                                         \
    {                                                                                              \
        .name = (label), .placeholder = (value), .help = (words), .kind = (type), .to = {target},  \
        __VA_ARGS__                                                                                \
    }
#define OPTION_FLAG(name, target, help)                                                            \
    OPTION_ROW(name, NULL, help, KIND_FLAG, .flag = (target), .min = 0)
#define OPTION_INTEGER(name, value, target, low, high, help)                                       \
    OPTION_ROW(name, value, help, KIND_INTEGER, .integer = (target), .min = (low), .max = (high))
#define OPTION_REAL(name, value, target, low, high, help)                                          \
    OPTION_ROW(name, value, help, KIND_REAL, .real = (target), .min = (low), .max = (high))
#define OPTION_REALS(name, value, target, low, high, help)                                         \
    OPTION_ROW(name, value, help, KIND_REALS, .reals = (target), .min = (low), .max = (high))
#define OPTION_TEXT(name, value, target, help)                                                     \
    OPTION_ROW(name, value, help, KIND_TEXT, .text = (target), .min = 0)
#define OPTION_CHOICE(name, value, target, names, help)                                            \
    OPTION_ROW(name, value, help, KIND_CHOICE, .choice = (target), .choice_at = (names))
#define OPTION_CHOICES(name, value, target, names, help)                                           \
    OPTION_ROW(name, value, help, KIND_CHOICES, .choices = (target), .choice_at = (names))

/* Rows that several commands have. */
#define OPTION_SEED(target, help) OPTION_INTEGER("seed", "N", target, 0, 0x1p53, help)
#define OPTION_JSON(target)                                                                        \
    OPTION_ROW("json", "[FILE]",                                                                   \
               "write JSON lines to FILE, or to stdout without FILE (the table goes to stderr)",   \
               KIND_TEXT, .text = (target), .bare = "-")

typedef struct option_set {
    const char *command;       /* after `thinwire`: "bench select" */
    const char *summary;       /* what the command does, any length: it is wrapped */
    const char *notes;         /* further paragraph after the options, or NULL */
    const char *examples;      /* indented lines, each ending in \n */
    const cli_option *options; /* [noptions] */
    int noptions;
    const char *operands; /* for the help: "RUN..."; NULL: none are accepted */
    char **paths;         /* [*npaths] gets the operands, as many as argc at most */
    int *npaths;
} option_set;

/* Parse argv[1 ..]. Returns STATUS_OK, STATUS_HELP after --help, STATUS_USAGE after an error
 * line. */
int options_parse(const option_set *set, int argc, char **argv);

/* The same for an array of rows; what follows are further fields of the set. */
#define OPTIONS_PARSE(rows, argc, argv, ...)                                                       \
    options_parse(&(const option_set){.options = (rows),                                           \
                                      .noptions = (int)(sizeof(rows) / sizeof(rows)[0]),           \
                                      __VA_ARGS__},                                                \
                  argc, argv)

/* --k against --n and --density, which is `given` or not. Returns a status. */
int options_check_k(const char *command, int64_t k, int64_t n, bool given);

/* The same for a list: k alone becomes the density k/n; neither of them, the defaults. */
int options_settle_k(const char *command, int64_t k, int64_t n, real_list *densities,
                     const real_list *defaults);

/* Every choice that choice_at knows: what "all" means, and the default of most lists. */
void options_take_all(const char *(*choice_at)(int position), choice_list *list);

#endif
