/* bounds.c - `thinwire bounds`: what top-k leaves behind, against the bounds of theory
 *
 * For a bell-shaped u, GaussianK-SGD (Shi et al., 2019), Theorem 1, says
 *
 *     |u - Top_k(u)|^2 / |u|^2  <=  (1 - k/n)^2          and 1 - k/n holds for any u.
 *
 * Both stand next to the measured ratio over a range of k. Sums are in double, over the entries
 * left behind rather than as a difference, so that small ratios keep their digits and k = n gives
 * exactly 0. Of a zero vector nothing is left behind: its ratio is 0 by definition.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench/gradients.h"
#include "cli.h"
#include "json.h"
#include "options.h"
#include "vector.h"

#define VALUE_BYTES 4 /* in a file */
#define DEFAULT_N 1000000
#define DEFAULT_POINTS 17 /* four per decade */
#define LOWEST_DENSITY 1e-4
#define BAR_WIDTH 32
#define NOT_GIVEN (-1)

typedef struct bounds_settings {
    int data; /* position of the kind, or NOT_GIVEN */
    const char *file;
    int64_t n;    /* or NOT_GIVEN */
    int64_t seed; /* or NOT_GIVEN */
    int64_t points;
    const char *json_path;
} bounds_settings;

typedef struct vector {
    float *values; /* [n] */
    int64_t n;
    double square; /* |u|^2 */
} vector;

static const table_column columns[] = {
    {"density", "k/n", 9},
    {"k", "entries", 10},
    {"measured", "share", 12},
    {"(1-k/n)^2", "share", 12},
    {"1-k/n", "share", 8},
    {"holds", "(1-k/n)^2", 9},
    {"measured #, (1-k/n)^2 |", "0 to 1", -BAR_WIDTH},
};

static int parse(bounds_settings *settings, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICE("data", "KIND", &settings->data, gradients_kind_name,
                      "synthetic vector (default gauss)."),
        OPTION_TEXT("file", "PATH", &settings->file,
                    "vector from a file of raw little-endian float32, instead of --data"),
        OPTION_INTEGER("n", "N", &settings->n, 1, INT32_MAX,
                       "elements of the synthetic vector (default 1M)"),
        OPTION_SEED(&settings->seed, "of the synthetic vector (default 1)"),
        OPTION_INTEGER("points", "N", &settings->points, 2, 1000,
                       "values of k, evenly spaced in log k from density 0.0001 to 1 (default 17)"),
        OPTION_JSON(&settings->json_path),
    };
    return OPTIONS_PARSE(
        options, argc, argv, .command = "bounds",
        .summary = "Measure the share of a vector's squared norm that top-k leaves behind, "
                   "|u - Top_k(u)|^2 / |u|^2, and set it beside (1 - k/n)^2, which holds for "
                   "bell-shaped vectors (GaussianK-SGD, Theorem 1), and 1 - k/n, which holds for "
                   "all. The ratio of a zero vector is 0 by definition.",
        .examples = "  thinwire bounds\n"
                    "  thinwire bounds --data constant --points 9    a vector that is not a bell\n"
                    "  thinwire bounds --file gradient.f32 --json bounds.jsonl\n");
}

/* The file's size, checked, becomes u's. */
static int take_size(const char *path, size_t bytes, vector *u) {
    if (bytes == 0 || bytes % VALUE_BYTES != 0)
        return error_report("%s: %zu bytes; raw float32 has a positive multiple of 4", path, bytes);
    if (bytes / VALUE_BYTES > INT32_MAX)
        return error_report("%s: %zu values; at most 2147483647 are accepted", path,
                            bytes / VALUE_BYTES);
    u->n = (int64_t)(bytes / VALUE_BYTES);
    return STATUS_OK;
}

/* Bytes in file order become values in place, on any byte order of the machine; finite ones only. */
static int read_values(const char *path, FILE *file, size_t size, vector *u) {
    TW_TRY(take_size(path, size, u));
    u->values = vector_alloc(u->n, sizeof *u->values);
    if (u->values == NULL)
        return error_report("%s: not enough memory for %" PRId64 " values", path, u->n);
    if (fread(u->values, VALUE_BYTES, (size_t)u->n, file) != (size_t)u->n)
        return error_report("%s: could not be read to its end", path);
    for (int64_t i = 0; i < u->n; i++) {
        unsigned char bytes[VALUE_BYTES];
        memcpy(bytes, &u->values[i], sizeof bytes);
        u->values[i] = float_from_bits(bytes[0] | (uint32_t)bytes[1] << 8 |
                                       (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        if (!isfinite(u->values[i])) {
            return error_report("%s: value %" PRId64 " is %f; only finite numbers are accepted",
                                path, i, (double)u->values[i]);
        }
    }
    return STATUS_OK;
}

/* Raw little-endian float32, as numpy's tofile writes it. Regular files only: their size says
 * beforehand whether the vector fits. */
static int read_vector(const char *path, vector *u) {
    FILE *file = NULL;
    size_t size = 0;
    if (tw__file_open(path, &file, &size) != TW_OK)
        return error_report("%s", tw_last_error());
    int status = read_values(path, file, size, u);
    fclose(file);
    return status;
}

static int make_vector(const bounds_settings *settings, vector *u) {
    if (settings->file != NULL)
        return read_vector(settings->file, u);
    u->n = settings->n;
    u->values = vector_alloc(u->n, sizeof *u->values);
    if (u->values == NULL)
        return error_report("not enough memory for %" PRId64 " elements; try a smaller --n", u->n);
    gradients_fill(settings->data, u->values, u->n, (uint64_t)settings->seed);
    return STATUS_OK;
}

/* The squared norm of u without the entries of sparse. */
static double square_left(const vector *u, const tw_sparse *sparse) {
    double sum = 0.0;
    int64_t next = 0;
    for (int64_t i = 0; i < u->n; i++)
        if (next < sparse->count && sparse->idx[next] == i)
            next++;
        else
            sum += (double)u->values[i] * (double)u->values[i];
    return sum;
}

static int measure_ratio(const vector *u, int64_t k, double *ratio) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "exact";
    params.k = k;
    params.feedback = TW_FEEDBACK_OFF;
    tw_selector *selector = NULL;
    tw_sparse sparse;
    TW_TRY(error_check("creating the selector", tw_selector_create(&selector, u->n, &params)));
    int status = error_check("selecting", tw_selector_run(selector, u->values, &sparse));
    if (status == STATUS_OK)
        *ratio = u->square > 0.0 ? square_left(u, &sparse) / u->square : 0.0;
    tw_selector_free(selector);
    return status;
}

/* measured as a bar of '#', the bound as '|' on the same scale. */
static void draw_bar(char bar[BAR_WIDTH + 2], double measured, double bound) {
    int filled = (int)lround(measured * BAR_WIDTH);
    int mark = (int)lround(bound * BAR_WIDTH);
    for (int i = 0; i <= BAR_WIDTH; i++)
        bar[i] = i < filled ? '#' : ' ';
    bar[mark] = '|';
    bar[BAR_WIDTH + 1] = '\0';
    for (int i = BAR_WIDTH; i >= 0 && bar[i] == ' '; i--)
        bar[i] = '\0';
}

static void report_point(table *rows, jsonl *json, const vector *u, int64_t k, double measured) {
    double rest = (double)(u->n - k) / (double)u->n; /* 1 - k/n without cancellation */
    double density = (double)k / (double)u->n;
    bool holds = measured <= rest * rest;
    char bar[BAR_WIDTH + 2];
    draw_bar(bar, measured, rest * rest);
    table_row(rows, "%.4g|%" PRId64 "|%.6f|%.6f|%.6f|%s|%s", density, k, measured, rest * rest,
              rest, holds ? "yes" : "no", bar);
    jsonl_set(json, J_INT("n", u->n), J_INT("k", k), J_REAL("density", density),
              J_REAL("measured", measured), J_REAL("bound_gaussian", rest * rest),
              J_REAL("bound_random", rest), J_FLAG("holds", holds));
    jsonl_write(json);
}

static int report_all(const vector *u, int64_t points, jsonl *json) {
    table rows;
    table_begin(&rows, jsonl_table_stream(json), columns, COUNT_OF(columns), 2);
    int status = STATUS_OK;
    int64_t last_k = 0; /* short vectors have fewer values of k than points */
    progress_begin("bounds", points);
    for (int64_t p = 0; p < points && status == STATUS_OK; p++) {
        double exponent = 1.0 - (double)p / (double)(points - 1); /* evenly spaced in log k */
        int64_t k = larger(1, llround((double)u->n * pow(LOWEST_DENSITY, exponent)));
        if (k == last_k)
            continue;
        double measured = 0.0;
        status = measure_ratio(u, k, &measured);
        progress_clear();
        if (status == STATUS_OK)
            report_point(&rows, json, u, k, measured);
        last_k = k;
        progress_to(p + 1);
    }
    progress_end();
    return status;
}

static int run_bounds(const bounds_settings *settings, jsonl *json) {
    vector u = {0};
    int status = make_vector(settings, &u);
    if (status == STATUS_OK) {
        FILE *stream = jsonl_table_stream(json);
        const char *origin =
            settings->file != NULL ? settings->file : gradients_kind_name(settings->data);
        fprintf(stream, "bounds: |u - Top_k(u)|^2 / |u|^2 of u = %s, n %" PRId64 "\n", origin, u.n);
        u.square = square_left(&u, &(tw_sparse){0});
        if (!(u.square > 0.0))
            fputs("u is zero: the ratio is 0 by definition\n", stream);
        fputc('\n', stream);
        status = report_all(&u, settings->points, json);
    }
    free(u.values);
    return status;
}

int command_bounds(int argc, char **argv) {
    bounds_settings settings = {
        .data = NOT_GIVEN, .n = NOT_GIVEN, .seed = NOT_GIVEN, .points = DEFAULT_POINTS};
    jsonl *json = NULL;
    TW_TRY(parse(&settings, argc, argv));
    bool synthetic =
        settings.data != NOT_GIVEN || settings.n != NOT_GIVEN || settings.seed != NOT_GIVEN;
    if (settings.file != NULL && synthetic)
        return error_usage("bounds: --file excludes --data, --n and --seed");
    settings.data = settings.data != NOT_GIVEN ? settings.data : 0;
    settings.n = settings.n != NOT_GIVEN ? settings.n : DEFAULT_N;
    settings.seed = settings.seed != NOT_GIVEN ? settings.seed : 1;
    TW_TRY(jsonl_open(&json, settings.json_path, false));
    return jsonl_close(json, run_bounds(&settings, json));
}
