/* bench_select.c - `thinwire bench select`: options and the sweep over densities and methods
 *
 * The measuring is in measure.c, the table and the JSON lines in bench_select_report.c. Every row
 * says whether the method found the true top-k, which is checked and not assumed.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench_select.h"
#include "command.h"
#include "data.h"
#include "errors.h"
#include "names.h"
#include "options.h"
#include "place.h"
#include "progress.h"

#define DEFAULT_N 14728266 /* VGG-16 on CIFAR-10 */
#define DEFAULT_STEPS 30

/* In the order of tw_type. */
static const char *type_at(int position) {
    static const char *const names[] = {"f32", "f16", "bf16"};
    return position < (int)(sizeof names / sizeof names[0]) ? names[position] : NULL;
}

static const char help_summary[] =
    "Time one step of selection (run and commit, with error feedback) against the bare pass "
    "e += g, which error feedback needs in any case. Both are timed in turns in the same run; "
    "times are medians. What every method selects after them is checked against an independent "
    "top-k.";

static const char help_notes[] =
    "JSON: one object per row. time_us is run and commit together (run_us and commit_us apart), "
    "floor_us the bare pass, ratio = time_us / floor_us; count and candidates are those of the "
    "last timed step, rescans is the sum over the timed steps. On a CPU the library writes what a "
    "commit asks for in the next run: commit_us is near 0, a warm run_us includes the commit "
    "before it, and a --cold step never pays for its own. On a GPU arch is cuda, device its name, "
    "threads 0; a step is queued as a whole and timed by the GPU's events: run_us is all of it and "
    "commit_us 0.";

static const char help_examples[] =
    "  thinwire bench select                                  all methods, VGG-16's size\n"
    "  thinwire bench select --method exact --n 1M --k 1000   one row\n"
    "  thinwire bench select --device cuda --n 133547324      on the GPU, BERT's size\n"
    "  thinwire bench select --data power5 --drift 1.05 --json results.jsonl\n";

static int parse(select_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "method",
         TAKES_CHOICES("LIST", &bench->methods, method_at),
         .help = "methods separated by commas, or all (default all)."},
        {.name = "n",
         TAKES_INTEGER("N", &bench->n, 1, INT32_MAX),
         .help = "elements (default 14728266, VGG-16's)"},
        {.name = "density",
         TAKES_REALS("LIST", &bench->densities, 1e-10, 1),
         .help = "k/n, one or more separated by commas (default 0.001,0.01)"},
        {.name = "k",
         TAKES_INTEGER("K", &bench->k, 1, INT32_MAX),
         .help = "entries per step, instead of --density"},
        {.name = "data",
         TAKES_CHOICE("KIND", &bench->data, data_kind_name),
         .help = "synthetic gradients (default gauss)."},
        {.name = "type",
         TAKES_CHOICE("TYPE", &bench->type, type_at),
         .help = "of the gradients (default f32)."},
        {.name = "device",
         TAKES_CHOICE("DEVICE", &bench->device, place_kind_name),
         .help = "where gradients lie and selection runs (default cpu)."},
        {.name = "threads",
         TAKES_INTEGER("N", &bench->threads, 0, 256),
         .help = "threads of a CPU (default 0: THINWIRE_THREADS or all cores)"},
        {.name = "cold",
         TAKES_NOTHING(&bench->cold),
         .help = "every timed step on a freshly created selector"},
        {.name = "steps",
         TAKES_INTEGER("N", &bench->steps, 1, 1e6),
         .help = "timed steps, after 5 that are not (default 30)"},
        {.name = "drift",
         TAKES_REAL("X", &bench->drift, 1e-3, 1e3),
         .help = "scale each step's gradient by X more (default 1)"},
        OPTION_ROW_SEED(&bench->seed, "of the data and of method random (default 1)"),
        OPTION_ROW_JSON(&bench->json_path),
    };
    const option_set set = {
        .command = "bench select",
        .summary = help_summary,
        .notes = help_notes,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

/* What the rows cannot say: how options go together, and the defaults of lists. */
static int settle(select_bench *bench) {
    if (bench->k > 0 && bench->densities.count > 0)
        return usage_error("bench select: give --k or --density, not both");
    if (bench->k > bench->n) {
        return usage_error("bench select: --k %" PRId64 " is more than --n %" PRId64
                           "; give at most n",
                           bench->k, bench->n);
    }
    if (bench->k > 0)
        bench->densities = (real_list){1, {(double)bench->k / (double)bench->n}};
    else if (bench->densities.count == 0)
        bench->densities = (real_list){2, {0.001, 0.01}};
    if (bench->methods.count == 0)
        options_take_all(method_at, &bench->methods);
    if (bench->device != TW_CPU && bench->threads >= 0)
        return usage_error("bench select: --threads is for --device cpu; leave it out");
    bench->threads = bench->threads < 0 ? 0 : bench->threads;
    bench->type_name = type_at(bench->type);
    return STATUS_OK;
}

static tw_select_params params_of(const select_bench *bench, const place *where, const char *method,
                                  double density) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = bench->k;
    params.density = bench->k > 0 ? 0.0 : density;
    params.type = bench->type;
    params.threads = (int)bench->threads;
    params.device = bench->device;
    params.stream = where->stream;
    params.seed = (uint64_t)bench->seed;
    return params;
}

/* Measure and report one row. The method "exact" promises the top-k: less is a failure. */
static int one_row(const select_bench *bench, const bench_plan *plan, select_report *report,
                   int64_t *progress, const char *method, double density) {
    tw_select_params params = params_of(bench, plan->where, method, density);
    measurement result;
    int status = measure_method(plan, &params, &result, progress);
    if (status != STATUS_OK)
        return status;
    progress_clear();
    select_report_row(report, method, density, &result);
    if (strcmp(method, "exact") == 0 && !result.exact) {
        return failure(
            "method exact did not select the top-k in the step checked: please report it");
    }
    return STATUS_OK;
}

static int sweep(const select_bench *bench, const bench_plan *plan, select_report *report) {
    int64_t rows = (int64_t)bench->densities.count * bench->methods.count;
    int64_t progress = 0;
    int status = STATUS_OK;
    progress_begin("bench select", rows * (MEASURE_WARM_STEPS + bench->steps));
    for (int64_t row = 0; row < rows && status == STATUS_OK; row++) {
        double density = bench->densities.at[row / bench->methods.count];
        const char *method = method_at(bench->methods.at[row % bench->methods.count]);
        status = one_row(bench, plan, report, &progress, method, density);
    }
    progress_end();
    return status;
}

/* Whether the library would take a selector of this size at all, asked before the data are made. */
static int check_library(const select_bench *bench) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1;
    params.threads = (int)bench->threads;
    params.device = bench->device;
    tw_memory memory;
    int error = tw_selector_memory(bench->n, &params, &memory);
    return error == TW_OK ? STATUS_OK : library_failure("preparing", error);
}

static int run_with(const select_bench *bench, place *where, gradients *source, jsonl *json) {
    bench_plan plan;
    int status = bench_plan_create(&plan, source, where, bench->steps);
    if (status != STATUS_OK)
        return status;
    plan.cold = bench->cold;
    select_report report;
    select_report_begin(&report, bench, where, json);
    status = sweep(bench, &plan, &report);
    select_report_end(&report);
    bench_plan_free(&plan);
    return status;
}

static int run_bench(const select_bench *bench, jsonl *json) {
    gradient_spec spec = {
        .n = bench->n,
        .data = bench->data,
        .type = bench->type,
        .drift = bench->drift,
        .seed = (uint64_t)bench->seed,
    };
    place where = {
        .kind = place_kind_at(bench->device),
        .n = bench->n,
        .type = bench->type,
        .threads = (int)bench->threads,
    };
    int status = check_library(bench);
    if (status == STATUS_OK)
        status = where.kind->open(&where);
    if (status != STATUS_OK)
        return status;
    gradients source;
    status = gradients_create(&source, &spec);
    if (status == STATUS_OK) {
        status = run_with(bench, &where, &source, json);
        gradients_free(&source);
    }
    where.kind->close(&where);
    return status;
}

int bench_select(int argc, char **argv) {
    select_bench bench = {
        .n = DEFAULT_N, .steps = DEFAULT_STEPS, .threads = -1, .drift = 1.0, .seed = 1};
    int status = parse(&bench, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return status;
    status = settle(&bench);
    jsonl *json = NULL;
    if (status == STATUS_OK)
        status = jsonl_open(&json, bench.json_path);
    if (status != STATUS_OK)
        return status;
    status = run_bench(&bench, json);
    int closed = jsonl_close(json);
    return status != STATUS_OK ? status : closed;
}
