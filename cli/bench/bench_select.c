/* bench_select.c - `thinwire bench select`: options, sweep and report
 *
 * Every row says whether the method found the true top-k, which is checked and not assumed. The
 * bare pass closes the table as the row that nothing can beat. Its GB/s are a check of the machine:
 * far below the memory's rate, something else was running or pages were small.
 */
#include "bench/bench_select.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"
#include "options.h"

#define DEFAULT_N 14728266 /* VGG-16 on CIFAR-10 */
#define DEFAULT_STEPS 30
/* The bare pass reads e and g and writes e; that of AdamW also reads and writes m and v. */
#define BYTES_PER_ELEMENT 12.0
#define BYTES_WITH_ADAMW 28.0

/* The settings of a run, as the options gave them. */
typedef struct select_bench {
    choice_list methods; /* positions for tw_select_method */
    real_list densities; /* at least one; k/n when k is given */
    int64_t n;
    int tensors;     /* position of the model whose tensors are selected from; -1: one vector */
    int64_t k;       /* 0: use the densities */
    int data;        /* position of the kind of gradients */
    int type;        /* tw_type */
    int before;      /* tw_before */
    int device;      /* tw_device */
    int64_t threads; /* 0: the library's default; -1: not given */
    bool cold;
    int64_t steps;
    double drift;
    int64_t seed;
    const char *json_path; /* NULL: none */
} select_bench;

typedef struct select_report {
    const select_bench *bench;
    const bench_device *device;
    jsonl *json; /* NULL: none */
    table rows;
    int64_t nrows;
    double floor_us; /* mean of the rows' medians */
} select_report;

/* In the order of tw_type. */
static const char *type_name(int position) {
    static const char *const names[] = {"f32", "f16", "bf16"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

/* In the order of tw_before. */
static const char *before_name(int position) {
    static const char *const names[] = {"nothing", "adamw"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

static const char help_summary[] =
    "Time one step of selection (run and commit, with error feedback) against the bare pass e += "
    "g, which error feedback needs in any case. Both are timed in turns in the same run; times are "
    "medians. What every method selects after them is checked against an independent top-k.";

static const char help_notes[] =
    "JSON: one object per row. time_us is run and commit together (run_us and commit_us apart), "
    "floor_us the bare pass, ratio = time_us / floor_us; count and candidates are those of the "
    "last timed step, rescans is the sum over the timed steps. On a CPU the library writes what a "
    "commit asks for in the next run: commit_us is near 0, a warm run_us includes the commit "
    "before it, and a --cold step never pays for its own. On a GPU arch is cuda, device its name, "
    "threads 0; a step is queued as a whole and timed by the GPU's events: run_us is all of it and "
    "commit_us 0. With --tensors a step of a group selects from all tensors together: time_us is "
    "its "
    "select_seconds, each_us a selector for each tensor, one after the other, and floor_us the "
    "bare "
    "pass over all of them. Both ways must select the same.";

static const char help_examples[] =
    "  thinwire bench select                                  all methods, VGG-16's size\n"
    "  thinwire bench select --method exact --n 1M --k 1000   one row\n"
    "  thinwire bench select --method exact --tensors vgg16   its 54 tensors in one step\n"
    "  thinwire bench select --device cuda --n 133547324      on the GPU, BERT's size\n"
    "  thinwire bench select --method exact --before adamw    AdamW before selection\n"
    "  thinwire bench select --data power5 --drift 1.05 --json results.jsonl\n";

static int parse(select_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICES("method", "LIST", &bench->methods, names_method,
                       "methods separated by commas, or all that the device has (default all)."),
        OPTION_INTEGER("n", "N", &bench->n, 1, INT32_MAX, "elements (default 14728266, VGG-16's)"),
        OPTION_CHOICE("tensors", "MODEL", &bench->tensors, select_tensors_name,
                      "select from all tensors of a model in one step, instead of one vector."),
        OPTION_REALS("density", "LIST", &bench->densities, 1e-10, 1,
                     "k/n, one or more separated by commas (default 0.001,0.01)"),
        OPTION_INTEGER("k", "K", &bench->k, 1, INT32_MAX, "entries per step, instead of --density"),
        OPTION_CHOICE("data", "KIND", &bench->data, gradients_kind_name,
                      "synthetic gradients (default gauss)."),
        OPTION_CHOICE("type", "TYPE", &bench->type, type_name, "of the gradients (default f32)."),
        OPTION_CHOICE("before", "WHAT", &bench->before, before_name,
                      "what happens to a gradient before selection (default nothing). With adamw "
                      "the bare pass goes over g, m, v and e."),
        OPTION_CHOICE("device", "DEVICE", &bench->device, bench_device_name,
                      "where gradients lie and selection runs (default cpu)."),
        OPTION_INTEGER("threads", "N", &bench->threads, 0, 256,
                       "threads of a CPU (default 0: THINWIRE_THREADS or all cores)"),
        OPTION_FLAG("cold", &bench->cold, "every timed step on a freshly created selector"),
        OPTION_INTEGER("steps", "N", &bench->steps, 1, 1e6,
                       "timed steps, after 5 that are not (default 30)"),
        OPTION_REAL("drift", "X", &bench->drift, 1e-3, 1e3,
                    "scale each step's gradient by X more (default 1)"),
        OPTION_SEED(&bench->seed, "of the data and of method random (default 1)"),
        OPTION_JSON(&bench->json_path),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "bench select", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

/* All methods means those that the device has. */
static void take_methods(select_bench *bench) {
    choice_list all = {0};
    options_take_all(names_method, &all);
    if (bench->methods.count != 0 && bench->methods.count != all.count)
        return;
    bench->methods.count = 0;
    for (int i = 0; i < all.count; i++) {
        tw_memory memory;
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = names_method(all.at[i]);
        params.k = 1;
        params.device = bench->device;
        if (tw_selector_memory(1, &params, &memory) != TW_ERR_NAME)
            bench->methods.at[bench->methods.count++] = all.at[i];
    }
}

/* A model says how many elements there are, and each tensor has its own k. */
static int settle_tensors(const select_bench *bench) {
    if (bench->tensors >= 0 && (bench->n > 0 || bench->k > 0 || bench->cold))
        return error_usage("bench select: --tensors goes without --n, --k and --cold; leave them "
                           "out");
    return STATUS_OK;
}

/* What the rows cannot say: how options go together, and the defaults of lists. */
static int settle(select_bench *bench) {
    const real_list defaults = {2, {0.001, 0.01}};
    TW_TRY(settle_tensors(bench));
    bench->n = bench->n > 0 ? bench->n : DEFAULT_N;
    TW_TRY(options_settle_k("bench select", bench->k, bench->n, &bench->densities, &defaults));
    take_methods(bench);
    if (bench->device != TW_CPU && bench->threads >= 0)
        return error_usage("bench select: --threads is for --device cpu; leave it out");
    bench->threads = bench->threads < 0 ? 0 : bench->threads;
    return STATUS_OK;
}

static const table_column columns[] = {
    {"method", "", -18},   {"density", "k/n", 8}, {"k", "entries", 8},  {"count", "entries", 8},
    {"min", "count/k", 7}, {"max", "count/k", 7}, {"exact", "", 5},     {"time", "us", 9},
    {"floor", "us", 9},    {"ratio", "x", 6},     {"floor", "GB/s", 5},
};

static const table_column tensor_columns[] = {
    {"method", "", -18}, {"density", "k/n", 8}, {"k", "entries", 8},   {"count", "entries", 8},
    {"each", "us", 9},   {"ratio", "x", 6},     {"together", "us", 9}, {"ratio", "x", 6},
    {"floor", "us", 9},  {"floor", "GB/s", 5},
};

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : 0.0;
}

static double gigabytes_per_second(const select_bench *bench, double floor_us) {
    double bytes = bench->before == TW_BEFORE_ADAMW ? BYTES_WITH_ADAMW : BYTES_PER_ELEMENT;
    return quotient(bytes * (double)bench->n, floor_us * 1e3);
}

static void report_begin(select_report *report, const select_bench *bench,
                         const bench_device *device, jsonl *json) {
    FILE *stream = jsonl_table_stream(json);
    *report = (select_report){.bench = bench, .device = device, .json = json};
    fprintf(stream, "bench select: n %" PRId64 ", data %s, type %s, ", bench->n,
            gradients_kind_name(bench->data), type_name(bench->type));
    if (bench->device == TW_CPU)
        fprintf(stream, "kernels %s, threads %d, ", device->arch, device->threads);
    else
        fprintf(stream, "device %s, ", device->name);
    fprintf(stream, "%" PRId64 " steps %s", bench->steps, bench->cold ? "cold" : "warm");
    if (bench->before != TW_BEFORE_NOTHING)
        fprintf(stream, ", before %s", before_name(bench->before));
    if (bench->drift != 1.0)
        fprintf(stream, ", drift %g", bench->drift);
    if (bench->tensors >= 0)
        fprintf(stream, ", tensors of %s", select_tensors_name(bench->tensors));
    fputs("\n\n", stream);
    if (bench->tensors >= 0)
        table_begin(&report->rows, stream, tensor_columns, COUNT_OF(tensor_columns), 2);
    else
        table_begin(&report->rows, stream, columns, COUNT_OF(columns), 2);
}

static void report_row(select_report *report, const char *method, double density,
                       const select_result *result) {
    jsonl *json = report->json;
    const select_bench *bench = report->bench;
    double k = (double)result->k, ratio = quotient(result->time_us, result->floor_us);
    table_row(&report->rows, "%s|%.4g|%" PRId64 "|%" PRId64 "|%.2f|%.2f|%s|%.1f|%.1f|%.2f|%.1f",
              method, density, result->k, result->count, (double)result->count_min / k,
              (double)result->count_max / k, result->exact ? "yes" : "no", result->time_us,
              result->floor_us, ratio, gigabytes_per_second(bench, result->floor_us));
    report->nrows++;
    report->floor_us += (result->floor_us - report->floor_us) / (double)report->nrows;
    jsonl_set(json, J_TEXT("method", method), J_TEXT("arch", report->device->arch),
              J_TEXT("device", report->device->name), J_INT("threads", report->device->threads),
              J_INT("n", bench->n), J_INT("k", result->k), J_INT("count", result->count),
              J_FLAG("exact", result->exact), J_REAL("time_us", result->time_us),
              J_REAL("floor_us", result->floor_us), J_REAL("ratio", ratio),
              J_TEXT("data", gradients_kind_name(bench->data)),
              J_TEXT("type", type_name(bench->type)), J_TEXT("before", before_name(bench->before)),
              J_REAL("density", density), J_FLAG("cold", bench->cold), J_INT("steps", bench->steps),
              J_INT("count_min", result->count_min), J_INT("count_max", result->count_max),
              J_REAL("count_mean", result->count_mean), J_INT("candidates", result->candidates),
              J_INT("rescans", result->rescans), J_REAL("run_us", result->run_us),
              J_REAL("commit_us", result->commit_us), J_REAL("drift", bench->drift));
    jsonl_write(json);
}

static void report_tensors(select_report *report, const char *method, double density,
                           const select_tensors_result *r) {
    const select_bench *bench = report->bench;
    double each = quotient(r->each_us, r->floor_us), ratio = quotient(r->together_us, r->floor_us);
    double rate = gigabytes_per_second(bench, r->floor_us);
    table_row(&report->rows, "%s|%.4g|%" PRId64 "|%" PRId64 "|%.1f|%.2f|%.1f|%.2f|%.1f|%.1f",
              method, density, r->k, r->count, r->each_us, each, r->together_us, ratio, r->floor_us,
              rate);
    jsonl_set(report->json, J_TEXT("method", method), J_TEXT("arch", report->device->arch),
              J_TEXT("device", report->device->name), J_INT("threads", report->device->threads),
              J_TEXT("model", select_tensors_name(bench->tensors)), J_INT("tensors", r->tensors),
              J_INT("n", bench->n), J_INT("k", r->k), J_INT("count", r->count),
              J_REAL("time_us", r->together_us), J_REAL("each_us", r->each_us),
              J_REAL("floor_us", r->floor_us), J_REAL("ratio", ratio),
              J_TEXT("data", gradients_kind_name(bench->data)),
              J_TEXT("type", type_name(bench->type)), J_TEXT("before", before_name(bench->before)),
              J_REAL("density", density), J_INT("steps", bench->steps),
              J_REAL("drift", bench->drift));
    jsonl_write(report->json);
}

static void report_end(select_report *report) {
    if (report->nrows == 0)
        return;
    table *rows = &report->rows;
    const char *pass =
        report->bench->before == TW_BEFORE_ADAMW ? "bare g, m, v, e" : "bare pass e += g";
    table_row(rows, "%s|-|-|-|-|-|-|%.1f|%.1f|%.2f|%.1f", pass, report->floor_us, report->floor_us,
              1.0, gigabytes_per_second(report->bench, report->floor_us));
    if (report->bench->cold && report->bench->device == TW_CPU) {
        fputs("cold: the writes of a commit fall into the next run and are not in these times\n",
              rows->stream);
    }
}

static int one_row_of_tensors(const tw_select_params *params, const select_plan *plan,
                              select_report *report, int64_t *progress, double density) {
    select_tensors_result result;
    TW_TRY(select_tensors_measure(plan, plan->tensors, params, &result, progress));
    progress_clear();
    report_tensors(report, params->method, density, &result);
    return STATUS_OK;
}

/* Measure and report one row. The method "exact" promises the top-k: less is a failure. */
static int one_row(const select_bench *bench, const select_plan *plan, select_report *report,
                   int64_t *progress, const char *method, double density) {
    select_result result;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = bench->k;
    params.density = bench->k > 0 ? 0.0 : density;
    params.type = bench->type;
    params.threads = (int)bench->threads;
    params.device = bench->device;
    params.stream = plan->device->stream;
    params.seed = (uint64_t)bench->seed;
    params.before = bench->before;
    if (plan->tensors != NULL)
        return one_row_of_tensors(&params, plan, report, progress, density);
    TW_TRY(select_measure(plan, &params, &result, progress));
    progress_clear();
    report_row(report, method, density, &result);
    if (strcmp(method, "exact") == 0 && !result.exact) {
        return error_report(
            "method exact did not select the top-k in the step checked: please report it");
    }
    return STATUS_OK;
}

static int sweep(const select_bench *bench, const select_plan *plan, select_report *report) {
    int64_t rows = (int64_t)bench->densities.count * bench->methods.count;
    int64_t progress = 0;
    int status = STATUS_OK;
    progress_begin("bench select", rows * (SELECT_WARM_STEPS + bench->steps));
    for (int64_t row = 0; row < rows && status == STATUS_OK; row++) {
        double density = bench->densities.at[row / bench->methods.count];
        const char *method = names_method(bench->methods.at[row % bench->methods.count]);
        status = one_row(bench, plan, report, &progress, method, density);
    }
    progress_end();
    return status;
}

static int run_steps(const select_bench *bench, bench_device *device, gradients *source,
                     const select_tensors *tensors, jsonl *json) {
    select_plan plan;
    select_report report;
    TW_TRY(select_plan_create(&plan, source, device, bench->steps));
    plan.cold = bench->cold;
    plan.tensors = tensors;
    report_begin(&report, bench, device, json);
    int status = sweep(bench, &plan, &report);
    report_end(&report);
    select_plan_free(&plan);
    return status;
}

static int run_bench(const select_bench *bench, const select_tensors *tensors, jsonl *json) {
    gradient_spec spec = {.n = bench->n,
                          .kind = bench->data,
                          .type = bench->type,
                          .drift = bench->drift,
                          .seed = (uint64_t)bench->seed};
    bench_device device = {.kind = bench_device_at(bench->device),
                           .n = bench->n,
                           .type = bench->type,
                           .adamw = bench->before == TW_BEFORE_ADAMW,
                           .threads = (int)bench->threads};
    gradients source;
    TW_TRY(bench_device_check(bench->device, bench->n, bench->threads));
    TW_TRY(device.kind->open(&device));
    int status = gradients_create(&source, &spec);
    if (status == STATUS_OK) {
        status = run_steps(bench, &device, &source, tensors, json);
        gradients_free(&source);
    }
    device.kind->close(&device);
    return status;
}

int command_bench_select(int argc, char **argv) {
    select_bench bench = {
        .tensors = -1, .steps = DEFAULT_STEPS, .threads = -1, .drift = 1.0, .seed = 1};
    select_tensors *tensors = NULL;
    jsonl *json = NULL;
    TW_TRY(parse(&bench, argc, argv));
    TW_TRY(settle(&bench));
    if (bench.tensors >= 0)
        TW_TRY(select_tensors_create(&tensors, bench.tensors, &bench.n));
    int status = jsonl_open(&json, bench.json_path, false);
    if (status == STATUS_OK)
        status = jsonl_close(json, run_bench(&bench, tensors, json));
    free(tensors);
    return status;
}
