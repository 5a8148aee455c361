/* bench_wire.c - `thinwire bench wire`: how small messages get, how fast, and what rounding costs
 *
 * The top k of a vector are encoded and decoded by each format, on one core or a GPU. Every
 * repetition is checked: what comes back must be what the sender was told, bit for bit. Messages are
 * no part of the public interface, so this file and bench_wire_gpu.c alone look into the library.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench_wire_gpu.h"
#include "buffer.h"
#include "command.h"
#include "data.h"
#include "errors.h"
#include "json.h"
#include "median.h"
#include "options.h"
#include "place.h"
#include "progress.h"
#include "table.h"
#include "timer.h"
#include "wire/wire.h"

#define DEFAULT_N 14728266 /* VGG-16 on CIFAR-10 */
#define DEFAULT_REPEATS 50
#define WARM_REPEATS 3

typedef struct wire_bench {
    choice_list formats; /* positions for tw__wire_at */
    real_list densities;
    int64_t n;
    int data; /* position of the kind */
    int64_t repeats;
    int64_t seed;
    int device; /* tw_device */
    const char *json_path;

    const tw__kernels *kernels;
    const char *where;  /* it runs: the kernels' name, or the GPU's */
    wire_gpu gpu;       /* of the density under way */
    tw__list selected;  /* [count], of the density under way */
    tw__entry *decoded; /* [count] */
    float *rounded;     /* [count] */
    uint8_t *message;   /* [bound] of float32 */
    double *encode_us;  /* [repeats] */
    double *decode_us;  /* [repeats] */
} wire_bench;

typedef struct wire_result {
    size_t bytes;
    size_t value_bytes;
    double encode_us; /* medians */
    double decode_us;
    double error; /* norm of what rounding took away, by that of the values */
    int64_t wrong;
} wire_result;

/* ---- Options -------------------------------------------------------------------------------- */

static const char help_summary[] =
    "Encode and decode the top k of a vector in each wire format, on one core or a GPU. Bits per "
    "entry are "
    "those of indices, with the header of 8 bytes, and of values, with their levels; GB/s count "
    "the raw entries of 8 bytes each; the error is the norm of what rounding took away, relative "
    "to that of the values.";

static const char help_notes[] =
    "JSON: one object per row, times as medians. wrong counts entries that came back otherwise "
    "than the sender was told, over all repetitions: 0, or the command fails. On a GPU entries and "
    "messages lie in its memory, and the times are those of calls that wait for it.";

static const char help_examples[] =
    "  thinwire bench wire                                    all formats, VGG-16's size\n"
    "  thinwire bench wire --format bf16,q4 --density 0.05    two rows\n"
    "  thinwire bench wire --data power5 --json -\n"
    "  thinwire bench wire --device cuda --n 133547324        on the GPU, BERT's size\n";

static const char *format_at(int position) {
    const tw__wire *format = tw__wire_at(position);
    return format != NULL ? format->name : NULL;
}

static int parse(wire_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "format",
         TAKES_CHOICES("LIST", &bench->formats, format_at),
         .help = "formats separated by commas, or all (default all)."},
        {.name = "n",
         TAKES_INTEGER("N", &bench->n, 1, INT32_MAX),
         .help = "elements (default 14728266, VGG-16's)"},
        {.name = "density",
         TAKES_REALS("LIST", &bench->densities, 1e-10, 1),
         .help = "k/n, one or more separated by commas (default 0.001,0.01)"},
        {.name = "data",
         TAKES_CHOICE("KIND", &bench->data, data_kind_name),
         .help = "synthetic gradients (default gauss)."},
        {.name = "repeats",
         TAKES_INTEGER("N", &bench->repeats, 1, 1e6),
         .help = "timed repetitions, after 3 that are not (default 50)"},
        {.name = "device",
         TAKES_CHOICE("DEVICE", &bench->device, place_kind_name),
         .help = "where messages are written and read (default cpu)."},
        OPTION_ROW_SEED(&bench->seed, "of the data (default 1)"),
        OPTION_ROW_JSON(&bench->json_path),
    };
    const option_set set = {
        .command = "bench wire",
        .summary = help_summary,
        .notes = help_notes,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

static void settle(wire_bench *bench) {
    if (bench->formats.count == 0)
        options_take_all(format_at, &bench->formats);
    if (bench->densities.count == 0)
        bench->densities = (real_list){2, {0.001, 0.01}};
}

/* ---- Measuring ------------------------------------------------------------------------------ */

/* Bitwise, as -0 is not 0 here. */
static int64_t count_wrong(const wire_bench *bench, int64_t count) {
    int64_t wrong = llabs((long long)(count - bench->selected.count));
    for (int64_t i = 0; i < bench->selected.count && i < count; i++) {
        wrong += bench->decoded[i].idx != bench->selected.at[i].idx ||
                 tw__to_bits(bench->decoded[i].val) != tw__to_bits(bench->rounded[i]);
    }
    return wrong;
}

static double relative_error(const wire_bench *bench) {
    double lost = 0.0, whole = 0.0;
    for (int64_t i = 0; i < bench->selected.count; i++) {
        double value = bench->selected.at[i].val;
        double rest = value - bench->rounded[i];
        lost += rest * rest;
        whole += value * value;
    }
    return whole > 0.0 ? sqrt(lost / whole) : 0.0;
}

static int encode(wire_bench *bench, const tw__wire *format, size_t *bytes) {
    if (bench->device != TW_CPU)
        return wire_gpu_encode(&bench->gpu, format, bench->n, bytes);
    *bytes = tw__wire_encode(bench->kernels, format, &bench->selected, 0, bench->n, bench->message,
                             bench->rounded);
    return TW_OK;
}

static int decode(wire_bench *bench, size_t bytes, int64_t *count) {
    if (bench->device != TW_CPU)
        return wire_gpu_decode(&bench->gpu, bytes, bench->n, count);
    return tw__wire_decode(bench->kernels, bench->message, bytes, 0, bench->n,
                           bench->selected.count, bench->decoded, count, 0);
}

/* One encode and decode; the times go to sample `at`, if that is not negative. */
static int repeat_once(wire_bench *bench, const tw__wire *format, int64_t at, wire_result *result) {
    int64_t count = 0;
    int64_t begin = timer_ns();
    int error = encode(bench, format, &result->bytes);
    double encode_us = timer_us_since(begin);
    if (error != TW_OK)
        return library_failure("encoding", error);
    begin = timer_ns();
    error = decode(bench, result->bytes, &count);
    double decode_us = timer_us_since(begin);
    if (error == TW_OK && bench->device != TW_CPU)
        error = wire_gpu_fetch(&bench->gpu, bench->decoded, bench->rounded);
    if (error != TW_OK)
        return library_failure("decoding", error);
    result->wrong += count_wrong(bench, count);
    if (at >= 0) {
        bench->encode_us[at] = encode_us;
        bench->decode_us[at] = decode_us;
    }
    return STATUS_OK;
}

static int measure(wire_bench *bench, const tw__wire *format, wire_result *result) {
    *result = (wire_result){.value_bytes = tw__wire_value_bytes(format, bench->selected.count)};
    int status = STATUS_OK;
    for (int64_t at = -WARM_REPEATS; at < bench->repeats && status == STATUS_OK; at++)
        status = repeat_once(bench, format, at, result);
    if (status != STATUS_OK)
        return status;
    result->encode_us = median(bench->encode_us, bench->repeats);
    result->decode_us = median(bench->decode_us, bench->repeats);
    result->error = relative_error(bench);
    return result->wrong == 0
               ? STATUS_OK
               : failure("format %s: %" PRId64 " entries came back wrong: please report it",
                         format->name, result->wrong);
}

/* ---- Report --------------------------------------------------------------------------------- */

static const table_column columns[] = {
    {"format", "", -6},     {"density", "k/n", 8}, {"k", "entries", 8},
    {"indices", "bits", 7}, {"values", "bits", 7}, {"both", "bits", 7},
    {"encode", "GB/s", 7},  {"decode", "GB/s", 7}, {"error", "relative", 9},
};

static double gigabytes_per_second(const wire_bench *bench, double us) {
    return us > 0.0 ? (double)(sizeof(tw__entry) * (size_t)bench->selected.count) / (us * 1e3)
                    : 0.0;
}

static void report(const wire_bench *bench, const tw__wire *format, double density,
                   const wire_result *result, table *rows, jsonl *json) {
    double each = 8.0 / (double)bench->selected.count; /* bytes in all to bits of an entry */
    double value_bits = each * (double)result->value_bytes;
    double bits = each * (double)result->bytes;
    double encode = gigabytes_per_second(bench, result->encode_us);
    double decode = gigabytes_per_second(bench, result->decode_us);
    table_text(rows, format->name);
    table_general(rows, density);
    table_integer(rows, bench->selected.count);
    table_real(rows, bits - value_bits, 2);
    table_real(rows, value_bits, 2);
    table_real(rows, bits, 2);
    table_real(rows, encode, 2);
    table_real(rows, decode, 2);
    table_real(rows, result->error, 6);
    jsonl_text(json, "format", format->name);
    jsonl_text(json, "arch", bench->device == TW_CPU ? bench->kernels->name : "cuda");
    jsonl_text(json, "device", bench->device == TW_CPU ? "cpu" : bench->where);
    jsonl_text(json, "data", data_kind_name(bench->data));
    jsonl_integer(json, "n", bench->n);
    jsonl_integer(json, "k", bench->selected.count);
    jsonl_real(json, "density", density);
    jsonl_integer(json, "bytes", (int64_t)result->bytes);
    jsonl_real(json, "index_bits", bits - value_bits);
    jsonl_real(json, "value_bits", value_bits);
    jsonl_real(json, "bits", bits);
    jsonl_real(json, "encode_us", result->encode_us);
    jsonl_real(json, "decode_us", result->decode_us);
    jsonl_real(json, "encode_gbps", encode);
    jsonl_real(json, "decode_gbps", decode);
    jsonl_real(json, "error", result->error);
    jsonl_integer(json, "wrong", result->wrong);
    jsonl_write(json);
}

/* ---- The sweep ------------------------------------------------------------------------------ */

static void buffers_free(wire_bench *bench) {
    wire_gpu_close(&bench->gpu);
    free(bench->selected.at);
    free(bench->decoded);
    free(bench->rounded);
    free(bench->message);
    bench->selected.at = bench->decoded = NULL;
    bench->rounded = NULL;
    bench->message = NULL;
}

/* Room for what was selected, and a copy of it. */
static int buffers_fill(wire_bench *bench, const tw_sparse *sparse) {
    const tw__wire *largest = tw__wire_at(0);
    if (sparse->count == 0)
        return failure("there is nothing but zeros in the data; try another --data");
    size_t bytes = tw__wire_bound(largest, sparse->count, 0, bench->n);
    bench->selected.count = sparse->count;
    bench->selected.at = buffer_create(sparse->count, sizeof(tw__entry));
    bench->decoded = buffer_create(sparse->count, sizeof(tw__entry));
    bench->rounded = buffer_create(sparse->count, sizeof(float));
    bench->message = buffer_create((int64_t)bytes, 1);
    if (bench->selected.at == NULL || bench->decoded == NULL || bench->rounded == NULL ||
        bench->message == NULL) {
        return failure("not enough memory for %" PRId64 " entries; try a smaller --density",
                       sparse->count);
    }
    for (int64_t i = 0; i < sparse->count; i++)
        bench->selected.at[i] = (tw__entry){sparse->idx[i], sparse->val[i]};
    int error =
        bench->device != TW_CPU ? wire_gpu_open(&bench->gpu, &bench->selected, bytes) : TW_OK;
    return error == TW_OK ? STATUS_OK : library_failure("preparing", error);
}

static int select_entries(wire_bench *bench, const float *values, double density) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "exact";
    params.density = density;
    params.feedback = TW_FEEDBACK_OFF;
    tw_selector *selector = NULL;
    tw_sparse sparse = {0};
    int error = tw_selector_create(&selector, bench->n, &params);
    if (error == TW_OK)
        error = tw_selector_run(selector, values, &sparse);
    int status =
        error == TW_OK ? buffers_fill(bench, &sparse) : library_failure("selecting", error);
    tw_selector_free(selector);
    return status;
}

static int sweep(wire_bench *bench, const float *values, table *rows, jsonl *json) {
    int64_t done = 0;
    int status = STATUS_OK;
    for (int d = 0; d < bench->densities.count && status == STATUS_OK; d++) {
        double density = bench->densities.at[d];
        status = select_entries(bench, values, density);
        for (int f = 0; f < bench->formats.count && status == STATUS_OK; f++) {
            const tw__wire *format = tw__wire_at(bench->formats.at[f]);
            wire_result result;
            status = measure(bench, format, &result);
            progress_clear();
            if (status == STATUS_OK)
                report(bench, format, density, &result, rows, json);
            progress_to(++done);
        }
        buffers_free(bench);
    }
    return status;
}

static int run_bench(wire_bench *bench, jsonl *json) {
    float *values = buffer_vector(bench->n);
    bench->encode_us = calloc((size_t)bench->repeats, sizeof *bench->encode_us);
    bench->decode_us = calloc((size_t)bench->repeats, sizeof *bench->decode_us);
    int status = STATUS_OK;
    if (values == NULL || bench->encode_us == NULL || bench->decode_us == NULL) {
        status = failure("not enough memory for %" PRId64 " elements; try a smaller --n", bench->n);
    } else {
        table rows;
        FILE *stream = jsonl_table_stream(json);
        data_fill(bench->data, values, bench->n, (uint64_t)bench->seed);
        fprintf(stream, "bench wire: n %" PRId64 ", data %s, %s %s\n\n", bench->n,
                data_kind_name(bench->data),
                bench->device == TW_CPU ? "1 thread, kernels" : "device", bench->where);
        table_begin(&rows, stream, columns, sizeof columns / sizeof columns[0]);
        progress_begin("bench wire", (int64_t)bench->densities.count * bench->formats.count);
        status = sweep(bench, values, &rows, json);
        progress_end();
    }
    free(values);
    free(bench->encode_us);
    free(bench->decode_us);
    return status;
}

int bench_wire(int argc, char **argv) {
    wire_bench bench = {.n = DEFAULT_N, .repeats = DEFAULT_REPEATS, .seed = 1};
    int status = parse(&bench, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return status;
    settle(&bench);
    int error = tw__kernels_choose(&bench.kernels);
    if (error == TW_OK)
        bench.where = bench.kernels->name;
    if (error == TW_OK && bench.device != TW_CPU)
        error = tw_cuda_device(0, &bench.where);
    if (error != TW_OK)
        return library_failure("preparing", error);
    jsonl *json = NULL;
    status = jsonl_open(&json, bench.json_path);
    if (status != STATUS_OK)
        return status;
    status = run_bench(&bench, json);
    int closed = jsonl_close(json);
    return status != STATUS_OK ? status : closed;
}
