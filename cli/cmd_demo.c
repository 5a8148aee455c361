/* cmd_demo.c - `thinwire demo`: what sparsification buys and what it costs, in a minute
 *
 * Trains the small network on the embedded images with 4 workers under six schemes, one after the
 * other, from the same start and with the same batches; prints the comparison and writes the page.
 */
#include "command.h"
#include "errors.h"

#ifdef TW_HAVE_TRAINER

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "names.h"
#include "options.h"
#include "table.h"
#include "train_settings.h"

static const char *const demo_schemes[] = {"dense", "topka",  "gaussiank",
                                           "gtopk", "oktopk", "randomk"};
enum {
    DEMO_SCHEMES = sizeof demo_schemes / sizeof demo_schemes[0],
    DEMO_WORKERS = 4,
    DEMO_EPOCH = 78, /* steps of 4 workers with batches of 32 */
};

typedef struct demo {
    double density;
    int64_t epochs;
    int64_t ranks;         /* 0: DEMO_WORKERS, or as many as mpirun started */
    const char *directory; /* of the logs */
    const char *page;
} demo;

static const char help_summary[] =
    "Train a small network on the embedded images with 4 workers under six schemes: dense, topka, "
    "gaussiank, gtopk, oktopk and randomk. Prints accuracy, traffic and where the time goes, and "
    "writes a page with the curves. Takes under a minute on 2 cores.";

static const char help_examples[] = "  thinwire demo\n"
                                    "  thinwire demo --density 0.001 --epochs 4\n";

static int parse(demo *d, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "density",
         TAKES_REAL("D", &d->density, 1e-6, 1),
         .help = "k/n of the sparse schemes (default 0.01)"},
        {.name = "epochs",
         TAKES_INTEGER("N", &d->epochs, 1, 1000),
         .help = "over the training images (default 8)"},
        {.name = "ranks",
         TAKES_INTEGER("P", &d->ranks, 1, 64),
         .help = "workers as threads (default 4)"},
        {.name = "logs",
         TAKES_TEXT("DIR", &d->directory),
         .help = "where run logs go (default demo-runs)"},
        {.name = "out", TAKES_TEXT("FILE", &d->page), .help = "the page (default report.html)"},
    };
    const option_set set = {
        .command = "demo",
        .summary = help_summary,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

static const table_column columns[] = {
    {"scheme", "", -10},   {"accuracy", "%", 9}, {"loss", "", 8},       {"sent", "kB/step", 9},
    {"saved", "x", 8},     {"forward", "ms", 8}, {"backward", "ms", 9}, {"select", "ms", 8},
    {"exchange", "ms", 9}, {"apply", "ms", 7},   {"visible", "ms", 8},  {"time", "s", 7},
};

/* saved is how many times fewer bytes than dense. */
static void print_row(table *out, const char *scheme, const train_outcome *o, double dense) {
    table_text(out, scheme);
    table_real(out, 100.0 * o->end.accuracy, 2);
    table_real(out, o->end.loss, 3);
    table_real(out, o->bytes_per_step * 1e-3, 1);
    table_real(out, o->bytes_per_step > 0.0 ? dense / o->bytes_per_step : 1.0, 1);
    table_real(out, 1e3 * o->times.forward, 2);
    table_real(out, 1e3 * o->times.backward, 2);
    table_real(out, 1e3 * o->times.select, 2);
    table_real(out, 1e3 * o->times.exchange, 2);
    table_real(out, 1e3 * o->times.apply, 2);
    table_real(out, 1e3 * o->times.exposed, 2);
    table_real(out, o->end.seconds, 1);
}

static int run_scheme(const demo *d, const rank_job *job, const char *scheme, const char *log,
                      train_outcome *outcome) {
    train_settings settings = TRAIN_SETTINGS_INIT;
    settings.name = scheme;
    settings.scheme = scheme_named(scheme);
    settings.density = d->density;
    settings.epochs = d->epochs;
    settings.density_warmup = DEMO_EPOCH; /* density falls from 0.25 in the first epoch */
    settings.snapshot_every = 100;
    settings.evaluate_every = DEMO_EPOCH;
    settings.schedule = 2; /* cosine */
    settings.log_path = log;
    settings.quiet = true;
    return train_execute(&settings, job, outcome);
}

/* Where the logs go; an existing directory is fine. */
static int prepare_logs(const demo *d, char logs[][PATH_MAX]) {
    struct stat known;
    for (int i = 0; i < DEMO_SCHEMES; i++)
        if (snprintf(logs[i], PATH_MAX, "%s/%s.jsonl", d->directory, demo_schemes[i]) >= PATH_MAX)
            return failure("the name of the directory is too long; give another one with --logs");
    if (mkdir(d->directory, 0777) == 0 ||
        (stat(d->directory, &known) == 0 && S_ISDIR(known.st_mode)))
        return STATUS_OK;
    return failure("cannot make the directory '%s'; give another one with --logs", d->directory);
}

static int run_all(const demo *d, const rank_job *job, char logs[][PATH_MAX]) {
    table out;
    double dense = 0.0;
    int status = ranks_speaks(job) ? prepare_logs(d, logs) : STATUS_OK;
    status = ranks_worst(job, status);
    if (status != STATUS_OK)
        return status;
    printf("thinwire demo: cnn on the embedded Fashion-MNIST, %d workers, density %g, %" PRId64
           " epochs\n\n",
           job->nranks, d->density, d->epochs);
    table_begin(&out, stdout, columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < DEMO_SCHEMES && status == STATUS_OK; i++) {
        train_outcome outcome;
        status = run_scheme(d, job, demo_schemes[i], logs[i], &outcome);
        if (status == STATUS_OK) {
            dense = i == 0 ? outcome.bytes_per_step : dense;
            print_row(&out, demo_schemes[i], &outcome, dense);
            fflush(stdout);
        }
    }
    return status;
}

/* As `thinwire report` does. */
static int write_page(const demo *d, char logs[][PATH_MAX]) {
    char name[] = "report", option[] = "--out";
    char *page = strdup(d->page);
    char *arguments[DEMO_SCHEMES + 4] = {name};
    for (int i = 0; i < DEMO_SCHEMES; i++)
        arguments[1 + i] = logs[i];
    arguments[1 + DEMO_SCHEMES] = option;
    arguments[2 + DEMO_SCHEMES] = page;
    int status = page == NULL ? failure("out of memory") : cmd_report(DEMO_SCHEMES + 3, arguments);
    free(page);
    return status;
}

int cmd_demo(int argc, char **argv) {
    demo d = {.density = 0.01, .epochs = 8, .directory = "demo-runs", .page = "report.html"};
    char logs[DEMO_SCHEMES][PATH_MAX] = {""}; /* of rank 0, which alone writes */
    rank_job job;
    ranks_hush();
    int status = parse(&d, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return ranks_status_alone(status);
    status = ranks_begin(&job, d.ranks, DEMO_WORKERS);
    if (status != STATUS_OK)
        return ranks_status_alone(status);
    status = run_all(&d, &job, logs);
    if (status == STATUS_OK && ranks_speaks(&job))
        status = write_page(&d, logs);
    if (status == STATUS_OK) {
        printf("\nsent: payload and control of rank 0, mean over all steps. select, exchange and\n"
               "apply run in the background; visible is what the backward pass does not hide.\n"
               "All replicas ended bitwise equal. Curves: %s\n",
               d.page);
    }
    ranks_end(&job);
    return status;
}

#else

int cmd_demo(int argc, char **argv) {
    (void)argc, (void)argv;
    return failure("this build has no trainer: it lacks a CBLAS or zlib; 'make deps' installs "
                   "both, then build again");
}

#endif
