/* bench_overlap.c - `thinwire bench overlap`: many tensors, one by one and in the background
 *
 * A backward pass of a given length makes the gradients of all tensors, one after the other. In the
 * mode "one by one" each is exchanged before the pass goes on; in the mode "background" it is only
 * started, and waited for at the end. The pass is played by waiting, as if it ran on a device:
 * what is measured is how much of the exchange hides under it. Both modes do the same steps on the
 * same gradients and must give bitwise the same results.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/patterns.h"
#include "cli.h"
#include "job.h"
#include "json.h"
#include "options.h"
#include "vector.h"

#define WARM_STEPS 2

enum { ONE_BY_ONE, BACKGROUND, MODES };
static const char *const mode_names[MODES] = {"one by one", "background"};

typedef struct overlap_bench {
    int scheme; /* position */
    int64_t ranks;
    job_tcp tcp;
    int64_t tensors;
    int64_t largest; /* elements of the largest tensor */
    double density;
    double compute; /* ms of the backward pass */
    int64_t bucket;
    int64_t steps;
    int64_t seed;
    double timeout;
    const char *json_path;

    int nranks;
    int64_t *sizes; /* [tensors] in the order of the pass */
    int64_t total;

    double ms[MODES]; /* results, written by rank 0: of a step, of the slowest rank */
    int64_t wrong;
} overlap_bench;

/* One rank's part. */
typedef struct overlap_rank {
    overlap_bench *bench;
    job_rank *job;
    gather_group gather;
    tw_group *group;
    float *base;      /* [largest + steps]: a step's gradients begin at its number */
    float *out;       /* [total] */
    uint64_t *hashes; /* [WARM_STEPS + steps][tensors] of the first mode */
    double *samples;  /* [steps] ms */
    int64_t wrong;
} overlap_rank;

static const char help_summary[] =
    "Steps of many tensors whose gradients come in one after the other, as in a backward pass: "
    "each exchanged as it comes (one by one), or started and waited for at the end (background). "
    "The pass is played by waiting. Results of both must be bitwise the same.";

static const char help_notes[] = "Sizes of the tensors are spread evenly over the orders of "
                                 "magnitude from 1 to --largest. hidden is the part of the "
                                 "exchange that the background mode takes off the step. Memory: "
                                 "about 20 bytes per element and rank.";

static const char help_examples[] =
    "  thinwire bench overlap --ranks 4\n"
    "  thinwire bench overlap --tensors 100 --largest 10M --compute 500\n";

static int parse(overlap_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICE("scheme", "NAME", &bench->scheme, names_scheme, "(default oktopk)."),
        OPTION_INTEGER("ranks", "P", &bench->ranks, 1, JOB_RANKS_MAX,
                       "ranks as threads (default 4); mpirun decides where it started this"),
        JOB_TCP_OPTIONS(&bench->tcp),
        OPTION_INTEGER("tensors", "N", &bench->tensors, 1, 1e5, "number of tensors (default 100)"),
        OPTION_INTEGER("largest", "N", &bench->largest, 1, INT32_MAX,
                       "elements of the largest (default 1M)"),
        OPTION_REAL("density", "D", &bench->density, 1e-10, 1, "k/n (default 0.01)"),
        OPTION_REAL("compute", "MS", &bench->compute, 0, 1e6,
                    "length of the backward pass in milliseconds (default 100)"),
        OPTION_INTEGER("bucket", "N", &bench->bucket, 0, INT32_MAX,
                       "merge tensors up to so many elements (default 0: the library's)"),
        OPTION_INTEGER("steps", "N", &bench->steps, 1, 1e6,
                       "timed steps, after 2 that are not (default 10)"),
        OPTION_SEED(&bench->seed, "of sizes and gradients (default 1)"),
        OPTION_REAL("timeout", "SECONDS", &bench->timeout, 0.001, 1e6,
                    "to wait for other ranks (default 300)"),
        OPTION_JSON(&bench->json_path),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "bench overlap", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

/* From 1 to the largest, evenly over the orders of magnitude, in mixed order. */
static int make_sizes(overlap_bench *bench) {
    bench->sizes = calloc((size_t)bench->tensors, sizeof *bench->sizes);
    if (bench->sizes == NULL)
        return error_report("not enough memory for %" PRId64 " tensors", bench->tensors);
    for (int64_t t = 0; t < bench->tensors; t++) {
        double share = bench->tensors > 1 ? (double)t / (double)(bench->tensors - 1) : 1.0;
        bench->sizes[t] = llround(pow((double)bench->largest, share));
        bench->total += bench->sizes[t];
    }
    for (int64_t t = bench->tensors - 1; t > 0; t--) {
        uint64_t random = pattern_random((uint64_t)bench->seed, (uint64_t)t);
        int64_t other = (int64_t)(random % (uint64_t)(t + 1));
        int64_t size = bench->sizes[t];
        bench->sizes[t] = bench->sizes[other];
        bench->sizes[other] = size;
    }
    return STATUS_OK;
}

static int allocate(overlap_rank *self) {
    const overlap_bench *bench = self->bench;
    int64_t steps = WARM_STEPS + bench->steps;
    self->base = vector_alloc(bench->largest + steps, sizeof(float));
    self->out = vector_alloc(bench->total, sizeof(float));
    self->hashes = calloc((size_t)(steps * bench->tensors), sizeof *self->hashes);
    self->samples = calloc((size_t)bench->steps, sizeof *self->samples);
    if (self->base == NULL || self->out == NULL || self->hashes == NULL || self->samples == NULL) {
        return error_report("not enough memory for %" PRId64
                            " elements; try a smaller --largest or fewer --ranks",
                            bench->total);
    }
    int64_t n = bench->largest + steps;
    pattern_spec made = {.kind = 0, .n = n, .k = n / 100 + 1, .seed = (uint64_t)bench->seed};
    pattern_fill(&made, self->job->rank, 0, 0, n, self->base);
    return STATUS_OK;
}

static int open_group(overlap_rank *self) {
    const overlap_bench *bench = self->bench;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = names_scheme(bench->scheme);
    params.select.density = bench->density;
    params.select.threads = 1;
    params.bucket = bench->bucket;
    params.timeout = bench->timeout;
    int error = tw_group_create(&self->group, self->job->transport, &params);
    for (int64_t t = 0; t < bench->tensors && error == TW_OK; t++)
        error = tw_group_add(self->group, bench->sizes[t], NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(self->group);
    return error_check("opening the group", error);
}

/* The pass makes the next gradient, with this many elements: waits until it would be done. */
static void compute_until(const overlap_bench *bench, int64_t *clock, int64_t elements) {
    double ms = bench->compute * (double)elements / (double)bench->total;
    *clock += (int64_t)(ms * 1e6);
    struct timespec until = {*clock / TW__SECOND, *clock % TW__SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
}

/* One tensor after the other; returns the first error of the library. */
static int run_step(overlap_rank *self, int mode, int64_t step) {
    const overlap_bench *bench = self->bench;
    const float *grad = self->base + step;
    float *out = self->out;
    int64_t clock = tw__clock();
    int error = TW_OK;
    for (int64_t t = 0; t < bench->tensors && error == TW_OK; t++) {
        compute_until(bench, &clock, bench->sizes[t]);
        if (mode == ONE_BY_ONE) {
            error = tw_allreduce(self->group, (int)t, grad, out);
            clock = tw__clock(); /* the pass stood still */
        } else {
            error = tw_allreduce_start(self->group, (int)t, grad, out);
        }
        out += bench->sizes[t];
    }
    if (mode == BACKGROUND && error == TW_OK)
        error = tw_allreduce_wait(self->group, TW_ALL);
    return error;
}

/* The first mode leaves its results' hashes, the second is compared with them. */
static void check_results(overlap_rank *self, int mode, int64_t step) {
    const float *out = self->out;
    for (int64_t t = 0; t < self->bench->tensors; t++) {
        uint64_t *kept = &self->hashes[step * self->bench->tensors + t];
        uint64_t hash = vector_hash(out, self->bench->sizes[t], 0);
        out += self->bench->sizes[t];
        if (mode == ONE_BY_ONE)
            *kept = hash;
        else
            self->wrong += hash != *kept;
    }
}

static int timed_step(overlap_rank *self, int mode, int64_t step) {
    TW_TRY(gather_barrier(&self->gather));
    int64_t begin = tw__clock();
    int error = run_step(self, mode, step);
    int64_t ns = tw__clock() - begin;
    TW_TRY(error_check("exchanging", error));
    check_results(self, mode, step);
    TW_TRY(gather_values(&self->gather, &ns, 1));
    if (step >= WARM_STEPS)
        self->samples[step - WARM_STEPS] = (double)gather_max(&self->gather, 0) * 1e-6;
    return STATUS_OK;
}

static int run_mode(overlap_rank *self, int mode) {
    int64_t steps = WARM_STEPS + self->bench->steps;
    int status = open_group(self);
    for (int64_t step = 0; step < steps && status == STATUS_OK; step++) {
        status = timed_step(self, mode, step);
        if (self->job->rank == 0)
            progress_to(mode * steps + step + 1);
    }
    tw_group_free(self->group);
    self->group = NULL;
    if (self->job->rank == 0)
        self->bench->ms[mode] = vector_median(self->samples, self->bench->steps);
    return status;
}

static int run_modes(overlap_rank *self) {
    TW_TRY(gather_agree(&self->gather, allocate(self)));
    for (int mode = 0; mode < MODES; mode++)
        TW_TRY(run_mode(self, mode));
    TW_TRY(gather_values(&self->gather, &self->wrong, 1));
    if (self->job->rank == 0)
        self->bench->wrong = gather_total(&self->gather, 0);
    return STATUS_OK;
}

static int run_rank(job_rank *job, void *context) {
    overlap_rank self = {.bench = context, .job = job};
    if (job->rank == 0)
        progress_begin("bench overlap", MODES * (WARM_STEPS + self.bench->steps));
    int status = gather_open(&self.gather, job, 0, self.bench->timeout);
    if (status == STATUS_OK)
        status = run_modes(&self);
    if (job->rank == 0)
        progress_end();
    gather_close(&self.gather);
    free(self.base);
    free(self.out);
    free(self.hashes);
    free(self.samples);
    return status;
}

static const table_column columns[] = {
    {"mode", "", -12},    {"step", "ms", 10}, {"pass", "ms", 10},
    {"beyond", "ms", 10}, {"hidden", "%", 8}, {"#wrong", "", 8},
};

/* What a step takes beyond the pass, and how much of it the background saves. */
static void report(const overlap_bench *bench, jsonl *json) {
    table out;
    FILE *stream = jsonl_table_stream(json);
    fprintf(stream,
            "# %s, %d ranks, %" PRId64 " tensors of 1 to %" PRId64 " elements, %" PRId64
            " in all, density %g\n",
            names_scheme(bench->scheme), bench->nranks, bench->tensors, bench->largest,
            bench->total, bench->density);
    table_begin(&out, stream, columns, COUNT_OF(columns), 2);
    double alone = bench->ms[ONE_BY_ONE] - bench->compute;
    for (int mode = 0; mode < MODES; mode++) {
        double beyond = bench->ms[mode] - bench->compute;
        double hidden = alone > 0.0 ? 100.0 * (1.0 - beyond / alone) : 0.0;
        table_row(&out, "%s|%.1f|%.1f|%.1f|%.1f|%" PRId64, mode_names[mode], bench->ms[mode],
                  bench->compute, beyond, hidden, bench->wrong);
        jsonl_set(json, J_TEXT("mode", mode_names[mode]),
                  J_TEXT("scheme", names_scheme(bench->scheme)), J_INT("nranks", bench->nranks),
                  J_INT("tensors", bench->tensors), J_INT("elements", bench->total),
                  J_REAL("density", bench->density), J_REAL("step_ms", bench->ms[mode]),
                  J_REAL("pass_ms", bench->compute), J_REAL("hidden", hidden / 100.0),
                  J_INT("wrong", bench->wrong));
        jsonl_write(json);
    }
}

static int run_job(const job_handle *job, void *context) {
    overlap_bench *bench = context;
    jsonl *json = NULL;
    bench->nranks = job->nranks;
    int status = make_sizes(bench);
    if (status == STATUS_OK && job_prints(job))
        status = jsonl_open(&json, bench->json_path, false);
    status = job_worst(job, status);
    if (status == STATUS_OK)
        status = job_run(job, run_rank, bench);
    if (status == STATUS_OK && job_prints(job))
        report(bench, json);
    int closed = jsonl_close(json, status);
    free(bench->sizes);
    if (status == STATUS_OK && bench->wrong > 0) {
        return error_report("%" PRId64 " results differ between the modes: please report it",
                            bench->wrong);
    }
    return closed;
}

int command_bench_overlap(int argc, char **argv) {
    overlap_bench bench = {.scheme = names_find_scheme("oktopk"),
                           .tcp = JOB_TCP_INIT,
                           .tensors = 100,
                           .largest = 1000000,
                           .density = 0.01,
                           .compute = 100,
                           .steps = 10,
                           .seed = 1,
                           .timeout = 300};
    job_silence_others(argc, argv);
    int status = parse(&bench, argc, argv);
    bench.tcp.timeout = bench.timeout;
    return job_execute(status, bench.ranks, 4, &bench.tcp, run_job, &bench);
}
