/* bench_allreduce_options.c - the options of `thinwire bench allreduce` */
#include <inttypes.h>

#include "bench_allreduce.h"
#include "errors.h"
#include "names.h"
#include "patterns.h"
#include "place.h"

#define DEFAULT_N 1000000
#define DEFAULT_DENSITY 0.01
#define DEFAULT_STEPS 20
#define DEFAULT_TIMEOUT 300

/* In the order of tw_global. */
static const char *global_at(int position) {
    static const char *const names[] = {"exact", "reuse"};
    return position < (int)(sizeof names / sizeof names[0]) ? names[position] : NULL;
}

static const char help_summary[] =
    "Time one step of allreduce (error feedback, selection, exchange, apply) for each scheme, "
    "against dense in the same run. Ranks are threads of this process; under mpirun every process "
    "is a rank and the MPI transport is used. Times are medians over steps of the slowest rank.";

static const char help_notes[] =
    "wire is the payload that the busiest rank sent in its worst step, bound the most that the "
    "papers give for its exchange: only for oktopk is it a promise. Selections by threshold may "
    "take more than k, dsa and dense have it for shares that come out even. auto is timed once it "
    "has chosen, and says below the table what. With --verify every "
    "step is checked element by element: result and residuals "
    "must add up to gradients and earlier residuals exactly, and be the same on all ranks. "
    "JSON: one object per row; bytes are the worst over ranks and all steps, times as in the "
    "table, hash covers all results. Memory: about 20 n bytes per rank, 30 n with --verify. "
    "On a GPU: all ranks share the first one; gradients are copied there and results fetched "
    "outside of the times; butterfly, twolevel, fulltopk and auto go through the host. In JSON "
    "device is the GPU's name and threads 0. Memory: about 17 n bytes per rank there, 16 n on the "
    "host, 26 n with --verify.";

static const char help_examples[] =
    "  thinwire bench allreduce --ranks 8 --verify\n"
    "  thinwire bench allreduce --scheme oktopk,gtopk --n 14728266 --density 0.001,0.01\n"
    "  thinwire bench allreduce --select gaussian --exchange oktopk --pattern all --json -\n"
    "  thinwire bench allreduce --device cuda --ranks 4 --n 14728266\n"
    "  mpirun -n 4 thinwire bench allreduce --scheme oktopk\n";

static int parse(allreduce_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "scheme",
         TAKES_CHOICES("LIST", &bench->schemes, scheme_at),
         .help = "schemes separated by commas, or all (default all but auto)."},
        {.name = "select",
         TAKES_CHOICE("NAME", &bench->select, method_at),
         .help = "selection in place of the schemes' own."},
        {.name = "exchange",
         TAKES_CHOICE("NAME", &bench->exchange, exchange_at),
         .help = "exchange in place of the schemes' own; with --select and no --scheme, this pair "
                 "alone."},
        {.name = "wire",
         TAKES_CHOICE("NAME", &bench->wire, wire_at),
         .help = "how entries are written (default raw; auto chooses)."},
        {.name = "ranks",
         TAKES_INTEGER("P", &bench->ranks, 1, RANKS_MAX),
         .help = "ranks as threads (default 8); mpirun decides where it started this"},
        {.name = "n", TAKES_INTEGER("N", &bench->n, 1, INT32_MAX), .help = "elements (default 1M)"},
        {.name = "density",
         TAKES_REALS("LIST", &bench->densities, 1e-10, 1),
         .help = "k/n, one or more separated by commas (default 0.01)"},
        {.name = "k",
         TAKES_INTEGER("K", &bench->k, 1, INT32_MAX),
         .help = "entries per rank and step, instead of --density"},
        {.name = "pattern",
         TAKES_CHOICES("LIST", &bench->patterns, pattern_name),
         .help = "where the ranks' large values are, or all (default random)."},
        {.name = "steps",
         TAKES_INTEGER("N", &bench->steps, 1, 1e6),
         .help = "timed steps, after 3 that are not (default 20)"},
        {.name = "no-dense",
         TAKES_NOTHING(&bench->no_dense),
         .help =
             "measure nothing beside what --scheme asks for: dense takes long on slow networks"},
        {.name = "verify",
         TAKES_NOTHING(&bench->verify),
         .help = "check every step; status 1 if anything is wrong"},
        {.name = "global",
         TAKES_CHOICE("HOW", &bench->global, global_at),
         .help = "oktopk's global selection (default exact)."},
        {.name = "device",
         TAKES_CHOICE("DEVICE", &bench->device, place_kind_name),
         .help = "where gradients and results lie and selection runs (default cpu)."},
        {.name = "threads",
         TAKES_INTEGER("N", &bench->threads, 0, 256),
         .help = "of each rank's selection on a CPU; 0: THINWIRE_THREADS or all cores (default 1, "
                 "under mpirun 0)"},
        {.name = "timeout",
         TAKES_REAL("SECONDS", &bench->timeout, 0.01, 1e6),
         .help = "that a rank waits for others (default 300)"},
        OPTION_ROW_SEED(&bench->seed, "of the gradients and of selection random (default 1)"),
        OPTION_ROW_JSON(&bench->json_path),
    };
    const option_set set = {
        .command = "bench allreduce",
        .summary = help_summary,
        .notes = help_notes,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

/* What the rows of options cannot say: how they go together, and the defaults of lists. */
static int settle(allreduce_bench *bench) {
    if (bench->k > 0 && bench->densities.count > 0)
        return usage_error("bench allreduce: give --k or --density, not both");
    if (bench->k > bench->n) {
        return usage_error("bench allreduce: --k %" PRId64 " is more than --n %" PRId64
                           "; give at most n",
                           bench->k, bench->n);
    }
    if (bench->k > 0)
        bench->densities = (real_list){1, {(double)bench->k / (double)bench->n}};
    else if (bench->densities.count == 0)
        bench->densities = (real_list){1, {DEFAULT_DENSITY}};
    if (bench->device != TW_CPU && bench->threads >= 0)
        return usage_error("bench allreduce: --threads is for --device cpu; leave it out");
    if (bench->patterns.count == 0)
        bench->patterns = (choice_list){1, {0}};
    allreduce_cases(bench);
    return OPTIONS_CONTINUE;
}

int allreduce_options(allreduce_bench *bench, int argc, char **argv) {
    *bench = (allreduce_bench){
        .select = -1,
        .exchange = -1,
        .wire = -1,
        .n = DEFAULT_N,
        .steps = DEFAULT_STEPS,
        .threads = -1,
        .seed = 1,
        .timeout = DEFAULT_TIMEOUT,
    };
    int status = parse(bench, argc, argv);
    return status == OPTIONS_CONTINUE ? settle(bench) : status;
}
