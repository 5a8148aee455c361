/* bench_wire.c - `thinwire bench wire`: how small messages get, how fast, and what rounding costs
 *
 * The top k of a vector are encoded and decoded by each format, on one core or a GPU. Every
 * repetition is checked: what comes back must be what the sender was told, bit for bit. Messages are
 * no part of the public interface, so this file alone looks into the library.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "bench/bench_device.h"
#include "bench/gradients.h"
#include "cli.h"
#include "json.h"
#include "options.h"
#include "vector.h"
#include "wire/wire.h"

#define DEFAULT_N 14728266 /* VGG-16 on CIFAR-10 */
#define DEFAULT_REPEATS 50
#define WARM_REPEATS 3
#define CHECKED_BYTES 500000 /* about what a rank sends per step of oktopk, bf16, density 0.01 */

typedef struct wire_bench {
    choice_list formats; /* positions for tw__wire_at */
    real_list densities;
    int64_t n;
    int data; /* position of the kind */
    int64_t repeats;
    int64_t seed;
    int device; /* tw_device */
    const char *json_path;

    const char *device_name; /* the kernels' name, or the GPU's */
    tw__list selected;       /* [count], of the density under way */
    tw__entry *decoded;      /* [count] */
    float *rounded;          /* [count] */
    double *encode_us;       /* [repeats] */
    double *decode_us;       /* [repeats] */

    /* Copies in the backend's memory, and who works on them. */
    const tw__backend *backend;
    tw__stream *stream;
    void *context;
    tw__list device_selected;
    tw__entry *device_decoded;
    float *device_rounded;
    char *message; /* [bound] of float32 */
} wire_bench;

typedef struct wire_result {
    size_t bytes;
    size_t value_bytes;
    double encode_us; /* medians */
    double decode_us;
    double error; /* norm of what rounding took away, by that of the values */
    int64_t wrong;
} wire_result;

static const char help_summary[] =
    "Encode and decode the top k of a vector in each wire format, on one core or a GPU. Bits per "
    "entry are those of indices, with the header of 8 bytes, and of values, with their levels; "
    "GB/s count the raw entries of 8 bytes each; the error is the norm of what rounding took away, "
    "relative to that of the values.";

static const char help_notes[] =
    "JSON: one object per row, times as medians. wrong counts entries that came back otherwise "
    "than the sender was told, over all repetitions: 0, or the command fails. On a GPU entries and "
    "messages lie in its memory, and the times are those of calls that wait for it.";

static const char help_examples[] =
    "  thinwire bench wire                                    all formats, VGG-16's size\n"
    "  thinwire bench wire --format bf16,q4 --density 0.05    two rows\n"
    "  thinwire bench wire --data power5 --json -\n"
    "  thinwire bench wire --device cuda --n 133547324        on the GPU, BERT's size\n";

static const char *format_name(int position) {
    const tw__wire *format = tw__wire_at(position);
    return format != NULL ? format->name : NULL;
}

static int parse(wire_bench *bench, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICES("format", "LIST", &bench->formats, format_name,
                       "formats separated by commas, or all (default all)."),
        OPTION_INTEGER("n", "N", &bench->n, 1, INT32_MAX, "elements (default 14728266, VGG-16's)"),
        OPTION_REALS("density", "LIST", &bench->densities, 1e-10, 1,
                     "k/n, one or more separated by commas (default 0.001,0.01)"),
        OPTION_CHOICE("data", "KIND", &bench->data, gradients_kind_name,
                      "synthetic gradients (default gauss)."),
        OPTION_INTEGER("repeats", "N", &bench->repeats, 1, 1e6,
                       "timed repetitions, after 3 that are not (default 50)"),
        OPTION_CHOICE("device", "DEVICE", &bench->device, bench_device_name,
                      "where messages are written and read (default cpu)."),
        OPTION_SEED(&bench->seed, "of the data (default 1)"),
        OPTION_JSON(&bench->json_path),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "bench wire", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

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
    tw__wire_message m = tw__wire_plan(format, bench->selected.count, 0, bench->n);
    int huge = 0;
    int error = bench->backend->codec->encode(bench->context, &m, &bench->device_selected,
                                              bench->message, bench->device_rounded, &huge);
    *bytes = m.bytes;
    return error;
}

static int decode(wire_bench *bench, size_t bytes, int64_t *count) {
    uint8_t header[TW__WIRE_HEADER];
    tw__wire_message m;
    TW_TRY(bench->backend->lists->peek(bench->context, bench->message, sizeof header, header));
    TW_TRY(tw__wire_open(header, bytes, 0, bench->n, bench->selected.count, 0, &m));
    *count = m.count;
    return bench->backend->codec->decode(bench->context, &m, bench->message + m.head_bytes,
                                         bench->device_decoded, 0);
}

static int download(wire_bench *bench) {
    const tw__backend *b = bench->backend;
    size_t count = (size_t)bench->selected.count;
    TW_TRY(b->copy(bench->stream, bench->decoded, bench->device_decoded,
                   sizeof *bench->decoded * count));
    TW_TRY(b->copy(bench->stream, bench->rounded, bench->device_rounded,
                   sizeof *bench->rounded * count));
    return b->stream_wait(bench->stream);
}

/* One encode and decode; the times go to sample `at`, if that is not negative. */
static int repeat_once(wire_bench *bench, const tw__wire *format, int64_t at, wire_result *result) {
    int64_t count = 0;
    int64_t begin = tw__clock();
    int error = encode(bench, format, &result->bytes);
    double encode_us = (double)(tw__clock() - begin) * 1e-3;
    TW_TRY(error_check("encoding", error));
    begin = tw__clock();
    error = decode(bench, result->bytes, &count);
    double decode_us = (double)(tw__clock() - begin) * 1e-3;
    if (error == TW_OK)
        error = download(bench);
    TW_TRY(error_check("decoding", error));
    result->wrong += count_wrong(bench, count);
    if (at >= 0) {
        bench->encode_us[at] = encode_us;
        bench->decode_us[at] = decode_us;
    }
    return STATUS_OK;
}

static int measure(wire_bench *bench, const tw__wire *format, wire_result *result) {
    *result = (wire_result){.value_bytes = tw__wire_value_bytes(format, bench->selected.count)};
    for (int64_t at = -WARM_REPEATS; at < bench->repeats; at++)
        TW_TRY(repeat_once(bench, format, at, result));
    result->encode_us = vector_median(bench->encode_us, bench->repeats);
    result->decode_us = vector_median(bench->decode_us, bench->repeats);
    result->error = relative_error(bench);
    return result->wrong == 0
               ? STATUS_OK
               : error_report("format %s: %" PRId64 " entries came back wrong: please report it",
                              format->name, result->wrong);
}

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
    table_row(rows, "%s|%.4g|%" PRId64 "|%.2f|%.2f|%.2f|%.2f|%.2f|%.6f", format->name, density,
              bench->selected.count, bits - value_bits, value_bits, bits, encode, decode,
              result->error);
    jsonl_set(json, J_TEXT("format", format->name),
              J_TEXT("arch", bench->device == TW_CPU ? tw_kernels() : "cuda"),
              J_TEXT("device", bench->device == TW_CPU ? "cpu" : bench->device_name),
              J_TEXT("data", gradients_kind_name(bench->data)), J_INT("n", bench->n),
              J_INT("k", bench->selected.count), J_REAL("density", density),
              J_INT("bytes", (int64_t)result->bytes), J_REAL("index_bits", bits - value_bits),
              J_REAL("value_bits", value_bits), J_REAL("bits", bits),
              J_REAL("encode_us", result->encode_us), J_REAL("decode_us", result->decode_us),
              J_REAL("encode_gbps", encode), J_REAL("decode_gbps", decode),
              J_REAL("error", result->error), J_INT("wrong", result->wrong));
    jsonl_write(json);
}

static void buffers_free(wire_bench *bench) {
    const tw__backend *b = bench->backend;
    b->free(bench->stream, bench->device_selected.at);
    b->free(bench->stream, bench->device_decoded);
    b->free(bench->stream, bench->device_rounded);
    b->free(bench->stream, bench->message);
    if (bench->context != NULL)
        b->lists_free(bench->context);
    if (bench->stream != NULL)
        b->stream_free(bench->stream);
    free(bench->selected.at);
    free(bench->decoded);
    free(bench->rounded);
}

static int device_open(wire_bench *bench, size_t message_bytes) {
    const tw__backend *b = bench->backend;
    size_t count = (size_t)bench->selected.count, bytes = sizeof(tw__entry) * count;
    bench->device_selected.count = bench->selected.count;
    TW_TRY(b->stream_create(&bench->stream, 0, NULL, NULL));
    TW_TRY(b->lists_create(&bench->context, bench->stream, bench->selected.count, 1));
    TW_TRY(b->alloc(bench->stream, (void **)&bench->device_selected.at, bytes));
    TW_TRY(b->alloc(bench->stream, (void **)&bench->device_decoded, bytes));
    TW_TRY(b->alloc(bench->stream, (void **)&bench->device_rounded, sizeof(float) * count));
    TW_TRY(b->alloc(bench->stream, (void **)&bench->message, message_bytes));
    TW_TRY(b->copy(bench->stream, bench->device_selected.at, bench->selected.at, bytes));
    return b->stream_wait(bench->stream);
}

/* Room for what was selected, and a copy of it. */
static int buffers_fill(wire_bench *bench, const tw_sparse *sparse) {
    const tw__wire *largest = tw__wire_at(0);
    if (sparse->count == 0)
        return error_report("there is nothing but zeros in the data; try another --data");
    size_t bytes = tw__wire_bound(largest, sparse->count, 0, bench->n);
    bench->selected.count = sparse->count;
    bench->selected.at = vector_alloc(sparse->count, sizeof(tw__entry));
    bench->decoded = vector_alloc(sparse->count, sizeof(tw__entry));
    bench->rounded = vector_alloc(sparse->count, sizeof(float));
    if (bench->selected.at == NULL || bench->decoded == NULL || bench->rounded == NULL)
        return error_report("not enough memory for %" PRId64 " entries; try a smaller --density",
                            sparse->count);
    for (int64_t i = 0; i < sparse->count; i++)
        bench->selected.at[i] = (tw__entry){sparse->idx[i], sparse->val[i]};
    return error_check("preparing", device_open(bench, bytes));
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
    int status = error == TW_OK ? buffers_fill(bench, &sparse) : error_check("selecting", error);
    tw_selector_free(selector);
    return status;
}

static int sweep(const wire_bench *bench, const float *values, table *rows, jsonl *json) {
    int64_t done = 0;
    int status = STATUS_OK;
    for (int d = 0; d < bench->densities.count && status == STATUS_OK; d++) {
        double density = bench->densities.at[d];
        wire_bench one = *bench; /* with buffers of its own */
        one.selected = one.device_selected = (tw__list){0};
        one.decoded = one.device_decoded = NULL;
        one.rounded = one.device_rounded = NULL;
        one.message = NULL;
        status = select_entries(&one, values, density);
        for (int f = 0; f < bench->formats.count && status == STATUS_OK; f++) {
            const tw__wire *format = tw__wire_at(bench->formats.at[f]);
            wire_result result;
            status = measure(&one, format, &result);
            progress_clear();
            if (status == STATUS_OK)
                report(&one, format, density, &result, rows, json);
            progress_to(++done);
        }
        buffers_free(&one);
    }
    return status;
}

/* The checksum of messages beside the copy of the same bytes: the shortest of `repeats`, in GB/s. */
static void report_checksum(const wire_bench *bench, const float *values, FILE *stream) {
    size_t bytes = (size_t)(bench->n < CHECKED_BYTES / 4 ? bench->n * 4 : CHECKED_BYTES);
    int64_t shortest[2] = {INT64_MAX, INT64_MAX};
    char *copy = calloc(bytes, 1);
    uint32_t crc = 0;
    for (int64_t i = 0; i < bench->repeats && copy != NULL; i++) {
        int64_t begin = tw__clock();
        crc = tw__crc32c(crc, values, bytes);
        int64_t checked = tw__clock();
        memcpy(copy, values, bytes);
        int64_t copied = tw__clock();
        shortest[0] = checked - begin < shortest[0] ? checked - begin : shortest[0];
        shortest[1] = copied - checked < shortest[1] ? copied - checked : shortest[1];
    }
    fprintf(stream, "\nCRC32C of %zu bytes (%s): %.1f GB/s, %08x; copying them: %.1f GB/s\n", bytes,
            tw__crc32c_name(), (double)bytes / (double)shortest[0], crc,
            (double)bytes / (double)shortest[1]);
    free(copy);
}

static int run_bench(wire_bench *bench, jsonl *json) {
    float *values = vector_alloc(bench->n, sizeof(float));
    bench->encode_us = calloc((size_t)bench->repeats, 2 * sizeof *bench->encode_us);
    int status = STATUS_OK;
    if (values == NULL || bench->encode_us == NULL) {
        status =
            error_report("not enough memory for %" PRId64 " elements; try a smaller --n", bench->n);
    } else {
        table rows;
        FILE *stream = jsonl_table_stream(json);
        bench->decode_us = bench->encode_us + bench->repeats;
        gradients_fill(bench->data, values, bench->n, (uint64_t)bench->seed);
        fprintf(stream, "bench wire: n %" PRId64 ", data %s, %s %s\n\n", bench->n,
                gradients_kind_name(bench->data),
                bench->device == TW_CPU ? "1 thread, kernels" : "device", bench->device_name);
        table_begin(&rows, stream, columns, COUNT_OF(columns), 2);
        progress_begin("bench wire", (int64_t)bench->densities.count * bench->formats.count);
        status = sweep(bench, values, &rows, json);
        progress_end();
        report_checksum(bench, values, stream);
    }
    free(values);
    free(bench->encode_us);
    return status;
}

int command_bench_wire(int argc, char **argv) {
    wire_bench bench = {.n = DEFAULT_N, .repeats = DEFAULT_REPEATS, .seed = 1};
    jsonl *json = NULL;
    TW_TRY(parse(&bench, argc, argv));
    if (bench.formats.count == 0)
        options_take_all(format_name, &bench.formats);
    if (bench.densities.count == 0)
        bench.densities = (real_list){2, {0.001, 0.01}};
    TW_TRY(error_check("preparing", tw__backend_find(bench.device, &bench.backend)));
    bench.device_name = tw_kernels();
    if (bench.device != TW_CPU)
        TW_TRY(error_check("preparing", tw_cuda_device(0, &bench.device_name)));
    TW_TRY(jsonl_open(&json, bench.json_path, false));
    return jsonl_close(json, run_bench(&bench, json));
}
