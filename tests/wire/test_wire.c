/* test_wire.c - every message is, byte for byte, what the model writes, and comes back as promised
 *
 * Memory is allocated to the byte and bytes start at odd addresses, so the sanitizers see every
 * access beyond them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"
#include "wire_lists.h"
#include "wire_model.h"

static const int64_t counts[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 3001};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* What the model says of a list. */
typedef struct expectation {
    uint8_t *bytes; /* [size] */
    size_t size;
    float *rounded; /* [count] */
} expectation;

static expectation expect(int format, const tw__list *list, int64_t lo, int64_t hi) {
    int32_t *idx = check_alloc(list->count + 1, sizeof *idx);
    float *val = check_alloc(list->count + 1, sizeof *val);
    expectation e = {.rounded = check_alloc(list->count + 1, sizeof *e.rounded)};
    for (int64_t i = 0; i < list->count; i++) {
        idx[i] = list->at[i].idx;
        val[i] = list->at[i].val;
    }
    e.bytes = wire_model_encode(format, idx, val, list->count, lo, hi, &e.size, e.rounded);
    free(idx);
    free(val);
    return e;
}

static void check_same_bytes(const uint8_t *got, const expectation *want) {
    for (size_t i = 0; i < want->size; i++)
        if (got[i] != want->bytes[i])
            check_fail("byte %zu of %zu is %02x, expected %02x", i, want->size, got[i],
                       want->bytes[i]);
}

/* Nothing is rounded to more than twice what it was, or to more than its block has. */
static void check_magnitudes(const tw__list *list, const float *rounded) {
    for (int64_t start = 0; start < list->count; start += 128) {
        const int64_t end = start + 128 < list->count ? start + 128 : list->count;
        float most = 0.0f;
        for (int64_t i = start; i < end; i++)
            most = fmaxf(most, fabsf(list->at[i].val));
        for (int64_t i = start; i < end; i++) {
            const double was = fabs((double)list->at[i].val), is = fabs((double)rounded[i]);
            if (!isfinite(rounded[i]) || (is > 2.000001 * was && is > (double)most))
                check_fail("[%lld] %a became %a", (long long)i, (double)list->at[i].val,
                           (double)rounded[i]);
        }
    }
}

static void check_decoded(const tw__kernels *kernels, const uint8_t *bytes, size_t size,
                          const tw__list *list, const float *rounded, int64_t lo, int64_t hi) {
    tw__entry *entries = malloc(sizeof *entries * (size_t)list->count);
    int64_t count = -1;
    check_ok(tw__wire_decode(kernels, bytes, size, lo, hi, list->count, entries, &count, 7));
    check_int("count", count, list->count);
    for (int64_t i = 0; i < count; i++) {
        check_int("index", entries[i].idx, list->at[i].idx);
        check_float("value", entries[i].val, rounded[i]);
    }
    free(entries);
}

/* The bytes that version 1 took, in which Elias and Fano's code wrote x instead of gaps: entry i set
 * bit (x >> width) + i. */
static size_t version_1_size(const tw__wire *format, int64_t count, int64_t span) {
    size_t least = 4 * (size_t)count, bitmap = (size_t)(span + 7) / 8;
    least = count > 0 && bitmap < least ? bitmap : least;
    for (int width = 1; width <= 24 && count > 0; width++) {
        const size_t low = (size_t)(count / 128) * tw__packed_bytes(128, width) +
                           tw__packed_bytes(count % 128, width);
        const size_t bytes = low + (size_t)(count + ((span - 1) >> width) + 7) / 8;
        least = bytes < least ? bytes : least;
    }
    return 8 + least + tw__wire_value_bytes(format, count);
}

static void check_list(const tw__list *list, int64_t lo, int64_t hi, int format) {
    const tw__kernels *kernels = wire_kernels();
    const tw__wire *row = tw__wire_at(format);
    expectation want = expect(format, list, lo, hi);
    const size_t bound = tw__wire_bound(row, list->count, lo, hi);
    check_true(want.size <= bound);
    check_true(bound <= version_1_size(row, list->count, hi - lo));
    uint8_t *bytes = malloc(bound + 1);
    float *rounded = malloc(sizeof *rounded * (size_t)list->count);
    const size_t size = tw__wire_encode(kernels, row, list, lo, hi, bytes + 1, rounded);
    check_int("size", (int64_t)size, (int64_t)want.size);
    check_same_bytes(bytes + 1, &want);
    check_bits("rounded", rounded, want.rounded, list->count);
    check_magnitudes(list, rounded);
    check_decoded(kernels, bytes + 1, size, list, rounded, lo, hi);
    free(bytes);
    free(rounded);
    free(want.bytes);
    free(want.rounded);
}

static void check_formats(int64_t count, int64_t lo, int64_t hi, int clustered, oracle_data kind) {
    for (int format = 0; tw__wire_at(format); format++) {
        check_scene("%s count=%lld lo=%lld hi=%lld %s %s", tw__wire_at(format)->name,
                    (long long)count, (long long)lo, (long long)hi,
                    clustered ? "clustered" : "scattered", oracle_data_name(kind));
        tw__list list = wire_list(count, lo, hi, clustered, kind, (uint64_t)(count + kind));
        check_list(&list, lo, hi, format);
        wire_list_free(&list);
    }
}

static void test_sizes_and_densities(void **state) {
    (void)state;
    const double densities[] = {1.0, 0.9, 0.5, 0.3, 0.1, 0.01, 0.001, 0.00003};
    check_kernels_or_skip();
    for (int c = 0; c < COUNTS; c++)
        for (int d = 0; d < 8; d++) {
            const int64_t span = (int64_t)((double)counts[c] / densities[d]);
            check_formats(counts[c], 1000003, 1000003 + span, 0, DATA_GAUSS);
        }
}

static void test_data(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int kind = 0; kind < DATA_KINDS; kind++)
        for (int c = 0; c < COUNTS; c++)
            check_formats(counts[c], 0, 5000, c % 2, (oracle_data)kind);
}

/* All of the index space, and indices that crowd at one place of it. */
static void test_wide_spans(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int c = 0; c < COUNTS; c++)
        for (int clustered = 0; clustered < 2; clustered++) {
            check_formats(counts[c], 0, INT32_MAX, clustered, DATA_LAPLACE);
            check_formats(counts[c], INT32_MAX - 4000, INT32_MAX, clustered, DATA_LAPLACE);
        }
}

/* Magnitudes at which rounding could overflow, underflow or divide by nothing. */
static void test_extreme_values(void **state) {
    (void)state;
    const float largest = 0x1.fffffep127f;
    const float wild[][4] = {
        {largest, -largest, largest, largest},
        {largest, 0.0f, -0.0f, 1e-45f},
        {0x1p-126f, -0x1p-127f, 0.0f, 1e-45f},
        {-0.0f, 0.0f, -0.0f, 0.0f},
        {65504.0f, 65519.9f, 65520.0f, -1e9f},
        {0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1.000002p-25f},
        {1.0f, 1.0f, -1.0f, 1.0f},
        {largest, 0x1.fep127f, 0x1.ffp127f, -0x1.ff8p127f},
        {0x1p-14f, 0x1.ff8p-15f, 1.0f, 2e30f},
        {0x1.01p0f, 0x1.03p0f, 0x1.018p0f, 0x1.008p0f},
    };
    check_kernels_or_skip();
    for (size_t row = 0; row < sizeof wild / sizeof wild[0]; row++)
        for (int64_t count = 1; count <= 133; count += 11) {
            tw__list list = wire_list(count, 0, 900, 0, DATA_ZEROS, row);
            for (int64_t i = 0; i < count; i++)
                list.at[i].val = wild[row][i % 4];
            for (int format = 0; tw__wire_at(format); format++) {
                check_scene("%s row %zu count %lld", tw__wire_at(format)->name, row,
                            (long long)count);
                check_list(&list, 0, 900, format);
            }
            wire_list_free(&list);
        }
}

/* Feeding back what rounding took away sends everything in the end. */
static void test_feedback_converges(void **state) {
    (void)state;
    enum { N = 700, STEPS = 60 };
    check_kernels_or_skip();
    for (int format = 0; tw__wire_at(format); format++) {
        check_scene("%s", tw__wire_at(format)->name);
        tw__list list = wire_list(N, 0, N, 0, DATA_LAPLACE, 5);
        uint8_t *bytes = check_alloc((int64_t)tw__wire_bound(tw__wire_at(format), N, 0, N), 1);
        float rounded[N];
        double first = 0.0, last = 0.0;
        for (int64_t i = 0; i < N; i++)
            first += pow((double)list.at[i].val, 2.0);
        for (int step = 0; step < STEPS; step++) {
            tw__wire_encode(wire_kernels(), tw__wire_at(format), &list, 0, N, bytes, rounded);
            for (int64_t i = 0; i < N; i++)
                list.at[i].val -= rounded[i];
        }
        for (int64_t i = 0; i < N; i++)
            last += pow((double)list.at[i].val, 2.0);
        check_true(last < 1e-6 * first);
        free(bytes);
        wire_list_free(&list);
    }
}

/* Of random indices, within 2 %; others may take fewer. */
static void test_expected(void **state) {
    (void)state;
    const double densities[] = {0.9, 0.5, 0.3, 0.1, 1.0 / 64, 0.01, 0.001, 0.0003};
    check_kernels_or_skip();
    for (int d = 0; d < 8; d++) {
        const tw__wire *format = tw__wire_find("q2");
        const int64_t count = 5000, span = (int64_t)((double)count / densities[d]);
        tw__list list = wire_list(count, 0, span, 0, DATA_GAUSS, (uint64_t)d);
        uint8_t *bytes = check_alloc((int64_t)tw__wire_bound(format, count, 0, span), 1);
        float *rounded = check_alloc(count, sizeof *rounded);
        const double size =
            (double)tw__wire_encode(wire_kernels(), format, &list, 0, span, bytes, rounded);
        check_scene("density %g", densities[d]);
        check_true(fabs(size / (double)tw__wire_expected(format, count, 0, span) - 1.0) < 0.02);
        check_true(densities[d] != 1.0 / 64 || 8.0 * size < 10.0 * (double)count);
        free(bytes);
        free(rounded);
        wire_list_free(&list);
    }
}

static void test_bound_grows(void **state) {
    (void)state;
    for (int format = 0; tw__wire_at(format); format++)
        for (int64_t count = 1; count <= 700; count++) {
            check_scene("%s count=%lld", tw__wire_at(format)->name, (long long)count);
            check_true(tw__wire_bound(tw__wire_at(format), count, 0, 600) >=
                       tw__wire_bound(tw__wire_at(format), count - 1, 0, 600));
        }
}

static void test_names(void **state) {
    (void)state;
    for (int i = 0; wire_model_name(i); i++) {
        const tw__wire *format = tw__wire_find(wire_model_name(i));
        check_true(format != NULL);
        check_int("code", format->code, i);
        check_true(format == tw__wire_at(i));
    }
    check_true(tw__wire_find("q3") == NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_and_densities), cmocka_unit_test(test_data),
        cmocka_unit_test(test_wide_spans),          cmocka_unit_test(test_extreme_values),
        cmocka_unit_test(test_feedback_converges),  cmocka_unit_test(test_expected),
        cmocka_unit_test(test_bound_grows),         cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
