/* bench_allreduce.c - `thinwire bench allreduce`: options, what is measured, the sweep
 *
 * Every rank goes through all rows by itself (sweep); rank 0 prints them. bench_allreduce.h lists
 * the other parts.
 *
 * Cases: the schemes asked for, with --select or --exchange in place of their own; both of these
 * without --scheme are a pair of their own. A pair that comes twice is measured once. Dense comes
 * first, even if not asked for, unless --no-dense: all others are compared with it.
 */
#include "bench/bench_allreduce.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "vector.h"

#define DEFAULT_N 1000000
#define DEFAULT_STEPS 20
#define DEFAULT_TIMEOUT 300

/* In the order of tw_global. */
static const char *global_name(int position) {
    static const char *const names[] = {"exact", "reuse"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

static const char help_summary[] =
    "Time one step of allreduce (error feedback, selection, exchange, apply) for each scheme, "
    "against dense in the same run. Ranks are threads of this process; under mpirun every process "
    "is a rank and the MPI transport is used. Times are medians over steps of the slowest rank.";

static const char help_notes[] =
    "wire is the payload that the busiest rank sent in its worst step, bound the most that the "
    "papers give for its exchange: only for oktopk is it a promise. The others assume k entries "
    "from each rank, of which selections by threshold may take more, and for dsa and dense shares "
    "of equal size. auto is timed once it has chosen, and says below the table what. With --verify "
    "every step is checked element by element: result and residuals must add up to gradients and "
    "earlier residuals exactly, and be the same on all ranks; with --wire q8, q4 and q2 up to the "
    "rounding of remainders. JSON: one object per row; bytes are the worst over ranks and all "
    "steps, times as in the table, hash covers all results. Memory: about 20 n bytes per rank, 30 "
    "n with --verify. On a GPU: all ranks share the first one; gradients are copied there and "
    "results fetched outside of the times; butterfly, twolevel, fulltopk and auto go through the "
    "host. In JSON device is the GPU's name and threads 0. Memory: about 17 n bytes per rank "
    "there, 16 n on the host, 26 n with --verify.";

static const char help_examples[] =
    "  thinwire bench allreduce --ranks 8 --verify\n"
    "  thinwire bench allreduce --scheme oktopk,gtopk --n 14728266 --density 0.001,0.01\n"
    "  thinwire bench allreduce --select gaussian --exchange oktopk --pattern all --json -\n"
    "  thinwire bench allreduce --device cuda --ranks 4 --n 14728266\n"
    "  mpirun -n 4 thinwire bench allreduce --scheme oktopk\n";

static const char *joined_name(int position) {
    static const char *const names[] = {"threads", "sockets"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

static int parse(allreduce_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICES("scheme", "LIST", &bench->schemes, names_scheme,
                       "schemes separated by commas, or all (default all but auto)."),
        OPTION_CHOICE("select", "NAME", &bench->select, names_method,
                      "selection in place of the schemes' own."),
        OPTION_CHOICE("exchange", "NAME", &bench->exchange, names_exchange,
                      "exchange in place of the schemes' own; with --select and no --scheme, this "
                      "pair alone."),
        OPTION_CHOICE("wire", "NAME", &bench->wire, names_wire,
                      "how entries are written (default raw; auto chooses)."),
        OPTION_INTEGER("ranks", "P", &bench->ranks, 1, JOB_RANKS_MAX,
                       "ranks as threads (default 8); mpirun decides where it started this"),
        JOB_TCP_OPTIONS(&bench->tcp),
        OPTION_INTEGER("n", "N", &bench->n, 1, INT32_MAX, "elements (default 1M)"),
        OPTION_REALS("density", "LIST", &bench->densities, 1e-10, 1,
                     "k/n, one or more separated by commas (default 0.01)"),
        OPTION_INTEGER("k", "K", &bench->k, 1, INT32_MAX,
                       "entries per rank and step, instead of --density"),
        OPTION_CHOICES("pattern", "LIST", &bench->patterns, pattern_name,
                       "where the ranks' large values are, or all (default random)."),
        OPTION_INTEGER("steps", "N", &bench->steps, 1, 1e6,
                       "timed steps, after 3 that are not (default 20)"),
        OPTION_FLAG(
            "no-dense", &bench->no_dense,
            "measure nothing beside what --scheme asks for: dense takes long on slow networks"),
        OPTION_FLAG("verify", &bench->verify, "check every step; status 1 if anything is wrong"),
        OPTION_CHOICE("global", "HOW", &bench->global, global_name,
                      "oktopk's global selection (default exact)."),
        OPTION_CHOICE("device", "DEVICE", &bench->device, bench_device_name,
                      "where gradients and results lie and selection runs (default cpu)."),
        OPTION_INTEGER("threads", "N", &bench->threads, 0, 256,
                       "of each rank's selection on a CPU; 0: THINWIRE_THREADS or all cores "
                       "(default 1, under mpirun 0)"),
        OPTION_REAL("timeout", "SECONDS", &bench->timeout, 0.01, 1e6,
                    "that a rank waits for others (default 300)"),
        OPTION_CHOICES(
            "checksum", "LIST", &bench->checksums, names_checksum,
            "of messages between processes: on, off, or on,off to compare (default on)."),
        OPTION_CHOICE("transport", "NAME", &bench->joined, joined_name,
                      "between ranks that are threads (default threads); sockets have checksums."),
        OPTION_SEED(&bench->seed, "of the gradients and of selection random (default 1)"),
        OPTION_JSON(&bench->json_path),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "bench allreduce", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

/* The name at a position that the options gave, or the scheme's own when they gave none. */
static const char *name_or(const char *(*name_at)(int position), int position, const char *own) {
    const char *name = name_at(position);
    return name != NULL ? name : own;
}

/* Add a pair unless it is there already; what has exchange dense is dense, whatever is selected. */
static void add_case(allreduce_bench *bench, const char *scheme, const char *select,
                     const char *exchange) {
    allreduce_case added = {.scheme = scheme, .select = select, .exchange = exchange};
    if (strcmp(exchange, "dense") == 0) {
        added.scheme = "dense";
        added.select = "";
        added.dense = true;
    }
    added.automatic = strcmp(exchange, "auto") == 0;
    for (int i = 0; i < bench->ncases; i++)
        if (strcmp(bench->cases[i].select, added.select) == 0 &&
            strcmp(bench->cases[i].exchange, exchange) == 0)
            return;
    if (added.scheme != NULL)
        snprintf(added.name, sizeof added.name, "%s", added.scheme);
    else
        snprintf(added.name, sizeof added.name, "%s+%s", select, exchange);
    bench->cases[bench->ncases++] = added;
}

/* A scheme with what the options put in place of its parts; it keeps its name only if that changes
 * nothing. Dense has no parts to replace. */
static void add_scheme(allreduce_bench *bench, int position) {
    const char *scheme = "", *own_select = "", *own_exchange = "";
    tw_scheme(position, &scheme, &own_select, &own_exchange, NULL);
    if (strcmp(own_exchange, "dense") == 0) {
        add_case(bench, scheme, "", own_exchange);
        return;
    }
    const char *select = name_or(names_method, bench->select, own_select);
    const char *exchange = name_or(names_exchange, bench->exchange, own_exchange);
    bool own = strcmp(select, own_select) == 0 && strcmp(exchange, own_exchange) == 0;
    add_case(bench, own ? scheme : NULL, select, exchange);
}

static void make_cases(allreduce_bench *bench) {
    bool asked = bench->schemes.count > 0;
    if (!bench->no_dense)
        add_case(bench, "dense", "", "dense");
    if (!asked && bench->select >= 0 && bench->exchange >= 0) {
        add_case(bench, NULL, names_method(bench->select), names_exchange(bench->exchange));
        return;
    }
    if (!asked)
        options_take_all(names_scheme, &bench->schemes);
    for (int i = 0; i < bench->schemes.count; i++)
        if (asked || bench->schemes.at[i] != names_find_scheme("auto")) /* its runs never repeat */
            add_scheme(bench, bench->schemes.at[i]);
}

/* What the rows of options cannot say: how they go together, and the defaults of lists. */
static int settle(allreduce_bench *bench) {
    const real_list default_density = {1, {0.01}};
    TW_TRY(options_settle_k("bench allreduce", bench->k, bench->n, &bench->densities,
                            &default_density));
    if (bench->device != TW_CPU && bench->threads >= 0)
        return error_usage("bench allreduce: --threads is for --device cpu; leave it out");
    if (bench->patterns.count == 0)
        bench->patterns = (choice_list){1, {0}};
    if (bench->checksums.count == 0)
        bench->checksums = (choice_list){1, {TW_CHECKSUM_ON}};
    make_cases(bench);
    return STATUS_OK;
}

/* What depends on the job. Refuses vectors that the kernel would promise and then kill us for, all
 * ranks together; what a group takes is asked for when there is one, but for a GPU's dense sums: they
 * are on the host. */
static int settle_ranks(allreduce_bench *bench, const job_handle *job) {
    bench->nranks = job->nranks;
    bench->transport = job_transport_name(job);
    if (bench->threads < 0)
        bench->threads = job->processes ? 0 : 1;
    int64_t steps = ALLREDUCE_WARM_STEPS + bench->steps;
    if (bench->verify && steps * job->nranks > PATTERN_EXACT_STEPS) {
        return error_usage("bench allreduce: --verify takes at most %d steps with %d ranks: beyond "
                           "that float32 cannot hold all sums exactly",
                           PATTERN_EXACT_STEPS / job->nranks - ALLREDUCE_WARM_STEPS, job->nranks);
    }
    TW_TRY(bench_device_check(bench->device, bench->n, bench->threads));
    int vectors = (bench->verify ? 4 : 2) + (bench->device != TW_CPU ? 2 : 0);
    double bytes = (double)bench->n * 4 * vectors * (job->processes ? 1 : job->nranks);
    if (bytes > (double)vector_available()) {
        return error_report(
            "the vectors of %d ranks take %.0f MB, more than is free; try a smaller --n "
            "or fewer --ranks",
            job->nranks, bytes * 1e-6);
    }
    return STATUS_OK;
}

static int one_row(allreduce_rank *self, allreduce_report *report, const allreduce_row *row) {
    allreduce_result result;
    TW_TRY(allreduce_measure(self, row, &result));
    if (self->job->rank == 0) {
        progress_clear();
        allreduce_report_row(report, row, &result);
    }
    return STATUS_OK;
}

/* All rows of one pattern: dense once, then the others for each density. */
static int one_pattern(allreduce_rank *self, allreduce_report *report, int pattern) {
    const allreduce_bench *bench = self->bench;
    int status = STATUS_OK;
    if (self->job->rank == 0) {
        progress_clear();
        allreduce_report_pattern(report, pattern);
    }
    int checksums = bench->checksums.count, rows = bench->ncases * checksums;
    for (int i = 0; i < rows * bench->densities.count && status == STATUS_OK; i++) {
        int which = i % rows / checksums, density = i / rows;
        int64_t k = larger(1, llround(bench->densities.at[density] * (double)bench->n));
        allreduce_row row = {&bench->cases[which], pattern, bench->k > 0 ? bench->k : k,
                             bench->checksums.at[i % checksums]};
        if (density == 0 || !row.what->dense) /* dense is the same whatever the density */
            status = one_row(self, report, &row);
    }
    return status;
}

static int sweep(job_rank *job, void *context) {
    allreduce_report *report = context; /* but for the bench used by rank 0 alone */
    const allreduce_bench *bench = report->bench;
    allreduce_rank self;
    int status = allreduce_rank_create(&self, bench, job);
    if (job->rank == 0) {
        int64_t rows = 0;
        for (int i = 0; i < bench->ncases; i++)
            rows += bench->cases[i].dense ? 1 : bench->densities.count;
        rows *= bench->patterns.count * bench->checksums.count;
        report->device = &self.device;
        progress_begin("bench allreduce", rows * (ALLREDUCE_WARM_STEPS + bench->steps));
    }
    for (int i = 0; i < bench->patterns.count && status == STATUS_OK; i++)
        status = one_pattern(&self, report, bench->patterns.at[i]);
    if (job->rank == 0)
        progress_end();
    allreduce_rank_free(&self);
    return status;
}

static int run_job(const job_handle *begun, void *context) {
    allreduce_bench *bench = context;
    jsonl *json = NULL;
    job_handle joined = *begun;
    joined.sockets = bench->joined == 1;
    const job_handle *job = &joined;
    int status = settle_ranks(bench, job);
    if (status == STATUS_OK && job_prints(job))
        status = jsonl_open(&json, bench->json_path, false);
    status = job_worst(job, status);
    if (status == STATUS_OK) {
        allreduce_report report;
        allreduce_report_begin(&report, bench, json);
        status = job_run(job, sweep, &report);
        int found = allreduce_report_end(&report);
        status = status != STATUS_OK ? status : found;
    }
    return jsonl_close(json, status);
}

int command_bench_allreduce(int argc, char **argv) {
    allreduce_bench bench = {.joined = -1,
                             .select = -1,
                             .exchange = -1,
                             .wire = -1,
                             .tcp = JOB_TCP_INIT,
                             .n = DEFAULT_N,
                             .steps = DEFAULT_STEPS,
                             .threads = -1,
                             .seed = 1,
                             .timeout = DEFAULT_TIMEOUT};
    job_silence_others(argc, argv);
    int status = parse(&bench, argc, argv);
    bench.tcp.timeout = bench.timeout;
    if (status == STATUS_OK && bench.tcp.meet != NULL && bench.joined >= 0)
        status = error_usage("--transport is for ranks that are threads; with --meet they are "
                             "processes over TCP");
    if (status == STATUS_OK)
        status = settle(&bench);
    return job_execute(status, bench.ranks, 8, &bench.tcp, run_job, &bench);
}
