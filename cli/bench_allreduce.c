/* bench_allreduce.c - `thinwire bench allreduce`: the sweep over patterns and schemes
 *
 * Every rank goes through all rows by itself (sweep); rank 0 prints them. bench_allreduce.h lists
 * the other parts.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "allreduce_measure.h"
#include "bench_allreduce.h"
#include "buffer.h"
#include "command.h"
#include "errors.h"
#include "patterns.h"
#include "progress.h"

/* What depends on the job. */
static int settle_ranks(allreduce_bench *bench, const rank_job *job) {
    bench->nranks = job->nranks;
    bench->transport = ranks_transport(job);
    if (bench->threads < 0)
        bench->threads = job->mpi ? 0 : 1;
    int64_t steps = ALLREDUCE_WARM_STEPS + bench->steps;
    if (bench->verify && steps * job->nranks > PATTERN_EXACT_STEPS) {
        return usage_error("bench allreduce: --verify takes at most %d steps with %d ranks: beyond "
                           "that float32 cannot hold all sums exactly",
                           PATTERN_EXACT_STEPS / job->nranks - ALLREDUCE_WARM_STEPS, job->nranks);
    }
    return STATUS_OK;
}

/* ---- The sweep, on each rank ---------------------------------------------------------------- */

typedef struct allreduce_job {
    const allreduce_bench *bench;
    allreduce_report *report; /* used by rank 0 alone */
} allreduce_job;

static int one_row(allreduce_rank *self, allreduce_report *report, const allreduce_row *row) {
    allreduce_result result;
    int status = allreduce_measure(self, row, &result);
    if (status == STATUS_OK && self->seat->rank == 0) {
        progress_clear();
        allreduce_report_row(report, row, &result);
    }
    return status;
}

static int64_t k_of(const allreduce_bench *bench, double density) {
    int64_t k = bench->k > 0 ? bench->k : llround(density * (double)bench->n);
    return k > 0 ? k : 1;
}

/* Dense is the same whatever the density. */
static bool is_repeated(const allreduce_bench *bench, int which, int density) {
    return bench->cases[which].dense && density > 0;
}

/* All rows of one pattern: dense once, then the others for each density. */
static int one_pattern(allreduce_rank *self, allreduce_report *report, int pattern) {
    const allreduce_bench *bench = self->bench;
    int status = STATUS_OK;
    if (self->seat->rank == 0) {
        progress_clear();
        allreduce_report_pattern(report, pattern);
    }
    for (int i = 0; i < bench->ncases * bench->densities.count && status == STATUS_OK; i++) {
        int which = i % bench->ncases, density = i / bench->ncases;
        allreduce_row row = {
            .what = &bench->cases[which],
            .pattern = pattern,
            .k = k_of(bench, bench->densities.at[density]),
        };
        if (!is_repeated(bench, which, density))
            status = one_row(self, report, &row);
    }
    return status;
}

static int64_t steps_in_all(const allreduce_bench *bench) {
    int64_t rows = 0;
    for (int i = 0; i < bench->ncases * bench->densities.count; i++)
        rows += !is_repeated(bench, i % bench->ncases, i / bench->ncases);
    return bench->patterns.count * rows * (ALLREDUCE_WARM_STEPS + bench->steps);
}

static int sweep(rank_seat *seat, void *context) {
    const allreduce_job *job = context;
    const allreduce_bench *bench = job->bench;
    allreduce_rank self;
    int status = allreduce_rank_create(&self, bench, seat);
    if (seat->rank == 0) {
        job->report->where = &self.where;
        progress_begin("bench allreduce", steps_in_all(bench));
    }
    for (int i = 0; i < bench->patterns.count && status == STATUS_OK; i++)
        status = one_pattern(&self, job->report, bench->patterns.at[i]);
    if (seat->rank == 0)
        progress_end();
    allreduce_rank_free(&self);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------- */

/* Whether the library would take a selector of this size at all, asked before ranks are started. */
static int check_library(const allreduce_bench *bench) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1;
    params.threads = (int)bench->threads;
    params.device = bench->device;
    tw_memory memory;
    int error = tw_selector_memory(bench->n, &params, &memory);
    return error == TW_OK ? STATUS_OK : library_failure("preparing", error);
}

/* Refuse vectors that the kernel would promise and then kill us for, all ranks together; what a
 * group takes is asked for when there is one, but for a GPU's dense sums: they are on the host. */
static int check_memory(const allreduce_bench *bench, const rank_job *job) {
    int vectors = (bench->verify ? 4 : 2) + (bench->device != TW_CPU ? 2 : 0);
    double bytes = (double)bench->n * 4 * vectors * (job->mpi ? 1 : job->nranks);
    if (bytes > (double)buffer_available()) {
        return failure("the vectors of %d ranks take %.0f MB, more than is free; try a smaller --n "
                       "or fewer --ranks",
                       job->nranks, bytes * 1e-6);
    }
    return STATUS_OK;
}

static int run_ranks(const allreduce_bench *bench, const rank_job *job, jsonl *json) {
    allreduce_report report;
    allreduce_report_begin(&report, bench, json);
    int status = ranks_run(job, sweep, &(allreduce_job){bench, &report});
    int found = allreduce_report_end(&report);
    return status != STATUS_OK ? status : found;
}

static int run_job(allreduce_bench *bench, const rank_job *job) {
    jsonl *json = NULL;
    int status = settle_ranks(bench, job);
    if (status == STATUS_OK)
        status = check_library(bench);
    if (status == STATUS_OK)
        status = check_memory(bench, job);
    if (status == STATUS_OK && ranks_speaks(job))
        status = jsonl_open(&json, bench->json_path);
    status = ranks_worst(job, status);
    if (status == STATUS_OK)
        status = run_ranks(bench, job, json);
    int closed = jsonl_close(json);
    return status != STATUS_OK ? status : closed;
}

int bench_allreduce(int argc, char **argv) {
    allreduce_bench bench;
    rank_job job;
    ranks_hush();
    int status = allreduce_options(&bench, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return ranks_status_alone(status);
    status = ranks_begin(&job, bench.ranks, 8);
    if (status != STATUS_OK)
        return ranks_status_alone(status);
    status = run_job(&bench, &job);
    ranks_end(&job);
    return status;
}
