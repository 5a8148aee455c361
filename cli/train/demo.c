/* demo.c - `thinwire demo`: what sparsification buys and what it costs, in a minute
 *
 * Trains the small network on the embedded images with 4 workers under six schemes, one after the
 * other, from the same start and with the same batches; prints the comparison and writes the page.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "options.h"
#include "train/train.h"

static const char *const demo_schemes[] = {"dense", "topka",  "gaussiank",
                                           "gtopk", "oktopk", "randomk"};
enum {
    DEMO_SCHEMES = COUNT_OF(demo_schemes),
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

static int parse(demo *d, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_REAL("density", "D", &d->density, 1e-6, 1,
                    "k/n of the sparse schemes (default 0.01)"),
        OPTION_INTEGER("epochs", "N", &d->epochs, 1, 1000, "over the training images (default 8)"),
        OPTION_INTEGER("ranks", "P", &d->ranks, 1, 64, "workers as threads (default 4)"),
        OPTION_TEXT("logs", "DIR", &d->directory, "where run logs go (default demo-runs)"),
        OPTION_TEXT("out", "FILE", &d->page, "the page (default report.html)"),
    };
    return OPTIONS_PARSE(
        options, argc, argv, .command = "demo",
        .summary = "Train a small network on the embedded images with 4 workers under six schemes: "
                   "dense, topka, gaussiank, gtopk, oktopk and randomk. Prints accuracy, traffic "
                   "and where the time goes, and writes a page with the curves. Takes under a "
                   "minute on 2 cores.",
        .examples = "  thinwire demo\n"
                    "  thinwire demo --density 0.001 --epochs 4\n");
}

static const table_column columns[] = {
    {"scheme", "", -10},   {"accuracy", "%", 9}, {"loss", "", 8},       {"sent", "kB/step", 9},
    {"saved", "x", 8},     {"forward", "ms", 8}, {"backward", "ms", 9}, {"select", "ms", 8},
    {"exchange", "ms", 9}, {"apply", "ms", 7},   {"visible", "ms", 8},  {"time", "s", 7},
};

/* saved is how many times fewer bytes than dense. */
static void print_row(table *out, const char *scheme, const train_outcome *o, double dense) {
    table_row(out, "%s|%.2f|%.3f|%.1f|%.1f|%.2f|%.2f|%.2f|%.2f|%.2f|%.2f|%.1f", scheme,
              100.0 * o->end.accuracy, o->end.loss, o->bytes_per_step * 1e-3,
              o->bytes_per_step > 0.0 ? dense / o->bytes_per_step : 1.0, 1e3 * o->times.forward,
              1e3 * o->times.backward, 1e3 * o->times.select, 1e3 * o->times.exchange,
              1e3 * o->times.apply, 1e3 * o->times.exposed, o->end.seconds);
}

static int run_scheme(const demo *d, const job_handle *job, const char *scheme, const char *log,
                      train_outcome *outcome) {
    train_settings settings = TRAIN_SETTINGS_INIT;
    settings.name = scheme;
    settings.scheme = names_find_scheme(scheme);
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
            return error_report(
                "the name of the directory is too long; give another one with --logs");
    if (mkdir(d->directory, 0777) == 0 ||
        (stat(d->directory, &known) == 0 && S_ISDIR(known.st_mode)))
        return STATUS_OK;
    return error_report("cannot make the directory '%s'; give another one with --logs",
                        d->directory);
}

static int run_all(const demo *d, const job_handle *job, char logs[][PATH_MAX]) {
    table out;
    double dense = 0.0;
    int status = job_worst(job, job_prints(job) ? prepare_logs(d, logs) : STATUS_OK);
    TW_TRY(status);
    printf("thinwire demo: cnn on the embedded Fashion-MNIST, %d workers, density %g, %" PRId64
           " epochs\n\n",
           job->nranks, d->density, d->epochs);
    table_begin(&out, stdout, columns, COUNT_OF(columns), 2);
    for (int i = 0; i < DEMO_SCHEMES && status == STATUS_OK; i++) {
        train_outcome outcome;
        status = run_scheme(d, job, demo_schemes[i], logs[i], &outcome);
        if (status == STATUS_OK) {
            dense = i == 0 ? outcome.bytes_per_step : dense;
            print_row(&out, demo_schemes[i], &outcome, dense);
        }
    }
    return status;
}

/* As `thinwire report` does. */
static int write_page(const demo *d, char logs[][PATH_MAX]) {
    char name[] = "report", option[] = "--out";
    char *page = strdup(d->page);
    if (page == NULL)
        return error_report("out of memory");
    char *arguments[DEMO_SCHEMES + 4] = {name, option, page};
    for (int i = 0; i < DEMO_SCHEMES; i++)
        arguments[3 + i] = logs[i];
    int status = command_report(DEMO_SCHEMES + 3, arguments);
    free(page);
    return status;
}

static int run_job(const job_handle *job, void *context) {
    const demo *d = context;
    char logs[DEMO_SCHEMES][PATH_MAX] = {""}; /* of rank 0, which alone writes */
    TW_TRY(run_all(d, job, logs));
    if (job_prints(job))
        TW_TRY(write_page(d, logs));
    printf("\nsent: payload and control of rank 0, mean over all steps. select, exchange and\n"
           "apply run in the background; visible is what the backward pass does not hide.\n"
           "All replicas ended bitwise equal. Curves: %s\n",
           d->page);
    return STATUS_OK;
}

int command_demo(int argc, char **argv) {
    demo d = {.density = 0.01, .epochs = 8, .directory = "demo-runs", .page = "report.html"};
    job_silence_others(argc, argv);
    int status = parse(&d, argc, argv);
    const job_tcp threads = JOB_TCP_INIT;
    return job_execute(status, d.ranks, DEMO_WORKERS, &threads, run_job, &d);
}
