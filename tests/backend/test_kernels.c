/* test_kernels.c - kernels from inside, where their results do not show it all
 *
 * What kernels compute is compared through selections and messages, by the tests that run with each
 * kind of them. Here is each of them beside the reference, what they must leave alone, and the k-th
 * magnitude, which falls back where its sample misleads it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kth.h"
#include "backend/extent.h"
#include "base/random.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

static int64_t first_other(const unsigned char *bytes, int64_t count, unsigned char want) {
    int64_t i = 0;
    while (i < count && bytes[i] == want)
        i++;
    return i;
}

/* Zeros inside, nothing outside; from 2^18 bytes on they go past the caches, in whole lines. */
static void test_clear(void **state) {
    (void)state;
    static const int64_t sizes[] = {
        0, 1, 63, 64, 65, 128, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 18) + 77};
    const int64_t most = 2 * GUARD + 66 + (1 << 18) + 77;
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    unsigned char *memory = check_alloc(most, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t shift = 0; shift <= 65; shift++) {
            const int64_t begin = GUARD + shift, end = begin + sizes[i];
            check_scene("%lld bytes from %lld", (long long)sizes[i], (long long)shift);
            memset(memory, GUARD_BYTE, (size_t)most);
            kernels->clear(memory + begin, sizes[i]);
            check_int("guard before", first_other(memory, begin, GUARD_BYTE), begin);
            check_int("zeros", first_other(memory + begin, sizes[i], 0), sizes[i]);
            check_int("guard behind", first_other(memory + end, most - end, GUARD_BYTE),
                      most - end);
        }
    free(memory);
}

/* ---- Beside the reference ---------------------------------------------------------------------- */

enum { MOST = 1000, SPACE = MOST + TW__LANES };

/* Zeros, and numbers of many magnitudes: some differences are 0, some fit into a byte, some do not. */
static float any_float(uint64_t key, int64_t i) {
    uint64_t bits = tw__random(key, (uint64_t)i);
    float x = (float)(bits >> 40) * 0x1p-24f - 0.5f;
    return bits % 16 == 0 ? 0.0f : ldexpf(x, (int)(bits >> 4 & 15) - 8);
}

static void fill(float *x, int64_t len, uint64_t key) {
    for (int64_t i = 0; i < len; i++)
        x[i] = any_float(key, i);
}

/* What a pass leaves. */
typedef struct passed {
    _Alignas(64) float next_m[MOST];
    _Alignas(64) float next_v[MOST];
    float acc[MOST], far[SPACE], val[SPACE];
    int32_t idx[SPACE];
    int8_t near[SPACE];
    uint8_t lossy[MOST / 8 + 1];
    tw__undo undo;
    tw__collector collector;
} passed;

static void begin_pass(passed *p, float threshold) {
    memset(p, 0, sizeof *p);
    fill(p->acc, MOST, 1);
    p->undo = (tw__undo){.lossy = p->lossy, .near = p->near, .far = p->far};
    p->collector =
        (tw__collector){.found = {p->idx, p->val, 0, MOST}, .threshold = tw__threshold(threshold)};
}

static void check_found(const passed *got, const passed *want) {
    check_int("entries", got->collector.found.count, want->collector.found.count);
    check_int("largest", got->collector.max_bits, want->collector.max_bits);
    for (int64_t i = 0; i < want->collector.found.count; i++)
        check_int("index", got->idx[i], want->idx[i]);
    check_bits("values", got->val, want->val, want->collector.found.count);
}

/* Bytes of the log that stand for a value in far may differ. */
static void check_log(const passed *got, const passed *want, int64_t len) {
    check_int("near", got->undo.near_count, want->undo.near_count);
    check_int("far", got->undo.far_count, want->undo.far_count);
    check_bits("far", got->far, want->far, want->undo.far_count);
    for (int64_t i = 0; i < want->undo.near_count; i++)
        check_int("difference", got->near[i] == TW__NEAR_LOW ? TW__NEAR_HIGH : got->near[i],
                  want->near[i]);
    for (int64_t i = 0; i < (len + 7) / 8; i++)
        check_int("lossy", got->lossy[i], want->lossy[i]);
}

static void check_unfolded(const tw__kernels *kernels, passed *p, const void *src, int64_t len,
                           const uint8_t *keep) {
    p->undo.near_count = p->undo.far_count = 0;
    kernels->unfold(src, p->acc, len, &p->undo);
    for (int64_t i = 0; i < len; i++)
        check_float("unfolded", p->acc[i], keep[i / 8] >> i % 8 & 1 ? any_float(1, i) : 0.0f);
}

/* Source and kept elements of a pass, and the moments before it. src is misaligned by `shift`. */
typedef struct given {
    char memory[4 * MOST + 4];
    const void *src;
    uint8_t keep[MOST / 8 + 1];
    float m[MOST], v[MOST];
} given;

static void make_given(given *g, int shift) {
    float src[MOST];
    fill(src, MOST, 2);
    g->src = memcpy(g->memory + shift, src, sizeof src);
    for (size_t i = 0; i < sizeof g->keep; i++) /* most words whole, some with elements that left */
        g->keep[i] = (uint8_t)(i / 8 % 3 ? 0xff : tw__random(3, i) | tw__random(4, i));
    fill(g->m, MOST, 5);
    fill(g->v, MOST, 6);
    for (int64_t i = 0; i < MOST; i++)
        g->v[i] = fabsf(g->v[i]);
}

static const int64_t lengths[] = {0, 1, 16, 63, 64, 65, 128, 200, 959, MOST};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void check_fold(const tw__kernels *kernels, const given *g, int64_t len, float threshold) {
    static passed got, want;
    begin_pass(&got, threshold);
    begin_pass(&want, threshold);
    kernels->fold(g->src, got.acc, len, 7, g->keep, &got.undo, &got.collector);
    tw__kernels_ref.fold(g->src, want.acc, len, 7, g->keep, &want.undo, &want.collector);
    check_bits("acc", got.acc, want.acc, MOST);
    check_found(&got, &want);
    check_log(&got, &want, len);
    check_unfolded(kernels, &got, g->src, len, g->keep);
    begin_pass(&got, threshold);
    kernels->fold_uncached(g->src, got.acc, len, 7, g->keep, &got.undo, &got.collector);
    check_bits("acc, uncached", got.acc, want.acc, MOST);
    check_found(&got, &want);
    check_log(&got, &want, len);
}

static void check_fold_update(const tw__kernels *kernels, const given *g, int64_t len,
                              float threshold) {
    static passed got, want;
    const tw__adamw adamw = {0.9f, 0.1f, 0.999f, 0.001f, 0.01f, 1.7f, 1e-8f};
    const tw__moment to_got = {g->m, g->v, got.next_m, got.next_v};
    const tw__moment to_want = {g->m, g->v, want.next_m, want.next_v};
    begin_pass(&got, threshold);
    begin_pass(&want, threshold);
    kernels->fold_update(g->src, &to_got, &adamw, got.acc, len, 7, g->keep, &got.undo,
                         &got.collector);
    tw__kernels_ref.fold_update(g->src, &to_want, &adamw, want.acc, len, 7, g->keep, &want.undo,
                                &want.collector);
    check_bits("acc", got.acc, want.acc, MOST);
    check_bits("m", got.next_m, want.next_m, MOST);
    check_bits("v", got.next_v, want.next_v, MOST);
    check_found(&got, &want);
    check_log(&got, &want, len);
}

static void check_scan(const tw__kernels *kernels, const given *g, int64_t len, float threshold) {
    static passed got, want;
    begin_pass(&got, threshold);
    begin_pass(&want, threshold);
    kernels->scan(g->src, len, 7, &got.collector);
    tw__kernels_ref.scan(g->src, len, 7, &want.collector);
    check_found(&got, &want);
    check_int("count", kernels->count(g->src, len, got.collector.threshold),
              want.collector.found.count);
}

/* Thresholds that nearly all, some, few and no elements reach. */
static void test_passes(void **state) {
    (void)state;
    static const float thresholds[] = {1e-6f, 0.5f, 40.0f, 1e9f};
    static given g;
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    for (int shift = 0; shift < 4; shift++) {
        make_given(&g, shift);
        for (int l = 0; l < LENGTHS; l++)
            for (int t = 0; t < 4; t++) {
                check_scene("%lld elements, misaligned by %d, threshold %g", (long long)lengths[l],
                            shift, (double)thresholds[t]);
                check_fold(kernels, &g, lengths[l], thresholds[t]);
                check_fold_update(kernels, &g, lengths[l], thresholds[t]);
                check_scan(kernels, &g, lengths[l], thresholds[t]);
            }
    }
}

static void check_between_bounds(const tw__kernels *kernels, const float *val, int64_t len,
                                 int64_t cap) {
    uint32_t got[SPACE], want[SPACE];
    int64_t above_got, above_want;
    const uint32_t low = tw__magnitude(0.1f), high = tw__magnitude(3.0f);
    int64_t count = kernels->between(val, len, low, high, got, cap, &above_got);
    check_int("inside", count,
              tw__kernels_ref.between(val, len, low, high, want, cap, &above_want));
    if (count < cap) /* else it may have stopped */
        check_int("above", above_got, above_want);
    for (int64_t i = 0; i < count; i++)
        check_int("bits", got[i], want[i]);
}

static void check_pick(const tw__kernels *kernels, const int32_t *idx, const float *val,
                       int64_t len) {
    static passed got, want;
    begin_pass(&got, 0.5f);
    begin_pass(&want, 0.5f);
    kernels->pick(idx, val, len, got.collector.threshold, &got.collector.found);
    tw__kernels_ref.pick(idx, val, len, want.collector.threshold, &want.collector.found);
    check_found(&got, &want);
}

static void check_moments(const tw__kernels *kernels, const void *src, int64_t len) {
    tw__moments got = {.sum = {1.0}}, want = {.sum = {1.0}};
    kernels->moments(src, len, &got);
    tw__kernels_ref.moments(src, len, &want);
    for (int lane = 0; lane < TW__LANES; lane++) {
        check_true(got.sum[lane] == want.sum[lane]);
        check_true(got.square[lane] == want.square[lane]);
        check_true(got.magnitude[lane] == want.magnitude[lane]);
    }
}

static void test_candidates_and_sums(void **state) {
    (void)state;
    static given g;
    static float val[MOST];
    static int32_t idx[MOST];
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    make_given(&g, 1);
    fill(val, MOST, 7);
    for (int i = 0; i < MOST; i++)
        idx[i] = 3 * i + 1;
    for (int l = 0; l < LENGTHS; l++) {
        check_scene("%lld elements", (long long)lengths[l]);
        check_between_bounds(kernels, val, lengths[l], MOST);
        check_between_bounds(kernels, val, lengths[l], 20);
        check_pick(kernels, idx, val, lengths[l]);
        check_moments(kernels, g.src, lengths[l]);
    }
}

/* Every number of 16 bits, but for NaN: whether one becomes quiet is the CPU's choice. */
static void test_widen(void **state) {
    (void)state;
    enum { CODES = 1 << 16 };
    static uint16_t code[CODES];
    static float f16[CODES], bf16[CODES];
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    for (int i = 0; i < CODES; i++)
        code[i] = (uint16_t)i;
    kernels->widen_f16(f16, code, CODES);
    kernels->widen_bf16(bf16, code, CODES);
    for (int i = 0; i < CODES; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        float want = exponent == 31  ? INFINITY
                     : exponent == 0 ? ldexpf((float)mantissa, -24)
                                     : ldexpf((float)(1024 + mantissa), exponent - 25);
        check_scene("code %04x", (unsigned)i);
        check_float("bf16", bf16[i], tw__from_bits((uint32_t)i << 16));
        if (exponent == 31 && mantissa != 0)
            check_true(isnan(f16[i]));
        else
            check_float("f16", f16[i], i < CODES / 2 ? want : -want);
    }
}

/* ---- The k-th magnitude ------------------------------------------------------------------------ */

static void check_kth(tw__kth got, const float *val, int64_t n, int64_t rank) {
    int64_t greater = 0, equal = 0;
    for (int64_t i = 0; i < n; i++) {
        greater += tw__magnitude(val[i]) > got.bits;
        equal += tw__magnitude(val[i]) == got.bits;
    }
    check_int("greater", got.greater, greater);
    check_int("equal", got.equal, equal);
    check_between("rank", rank, greater + 1, greater + equal);
}

/* The median of so many values: those inside the bracket are more than their buffer holds. */
static void test_kth_of_many(void **state) {
    (void)state;
    const int64_t n = 255000;
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    float *val = check_alloc(n, sizeof *val);
    for (int trial = 0; trial < 8; trial++) {
        check_scene("%lld values, trial %d", (long long)n, trial);
        oracle_fill(val, n, DATA_GAUSS, (uint64_t)trial);
        check_kth(tw__kth_of_values(kernels, val, n, n / 2), val, n, n / 2);
    }
    free(val);
}

/* Samples that put the answer just above the bracket, in it, and just below it. */
static void test_kth_beside_bracket(void **state) {
    (void)state;
    enum { N = 4 * TW__SAMPLE + 1000, ROOM = 100, MIDDLE = 700 };
    uint32_t bits[TW__SAMPLE], scratch[ROOM + TW__SLACK];
    const tw__kth_sample sample = {bits, TW__SAMPLE, scratch, ROOM};
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    float *val = check_alloc(N, sizeof *val);
    for (int64_t i = 0; i < N; i++)
        val[i] = (float)(N - i);
    for (int64_t i = 0; i < TW__SAMPLE; i++)
        bits[i] = tw__magnitude(val[MIDDLE]);
    const tw__kth_part part = {val, N};
    for (int64_t rank = MIDDLE - 1; rank <= MIDDLE + 3; rank++) { /* MIDDLE values are above */
        check_scene("rank %lld", (long long)rank);
        check_kth(tw__kth_of_parts(kernels, &part, 1, &sample, rank), val, N, rank);
    }
    free(val);
}

static void check_ranks(const float *val, int64_t n) {
    const tw__kernels *kernels;
    const int64_t step = n / 7 + 1;
    check_ok(tw__kernels_choose(&kernels));
    for (int64_t rank = 1; rank < n; rank += step)
        check_kth(tw__kth_of_values(kernels, val, n, rank), val, n, rank);
    check_kth(tw__kth_of_values(kernels, val, n, n), val, n, n);
}

/* Bits from `low` on, up to `low` + `span` - 1, and signs; equal bits for the first `ties`. */
static void fill_bits(float *val, int64_t n, uint32_t low, uint32_t span, int64_t ties) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t random = tw__random(low + span, (uint64_t)i);
        uint32_t bits = low + (i < ties ? span / 2 : (uint32_t)((random >> 32) % span));
        val[i] = tw__from_bits(bits | (uint32_t)(random & 1) << 31);
    }
}

/* Lists too short for a sample: compared bit by bit up to 256 values, else histograms first. */
static void test_kth_of_few(void **state) {
    (void)state;
    enum { MANY = 5000 };
    static float val[MANY];
    static const int64_t sizes[] = {1, 2, 255, 256, 257, 300, MANY};
    check_kernels_or_skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i];
        check_scene("%lld values of 31 bits", (long long)n);
        fill_bits(val, n, 0, 1u << 31, 0);
        check_ranks(val, n);
        val[n / 2] = tw__from_bits(0);
        val[0] = tw__from_bits(TW__MAGNITUDE_MASK);
        check_scene("%lld values from 0 to all bits", (long long)n);
        check_ranks(val, n);
        check_scene("%lld values in 1000 and in 1025", (long long)n);
        fill_bits(val, n, 0x3f800000, 1000, 0);
        check_ranks(val, n);
        fill_bits(val, n, 0x3f800000, 1025, 0);
        check_ranks(val, n);
        check_scene("%lld values, half of them equal", (long long)n);
        fill_bits(val, n, 0, 1u << 31, n / 2);
        check_ranks(val, n);
        check_scene("%lld equal values", (long long)n);
        fill_bits(val, n, 0x3f800000, 1, 0);
        check_ranks(val, n);
    }
    fill_bits(val, MANY, 0, 1u << 31, 300); /* these alone are more than are compared bit by bit */
    int64_t above = 0;
    for (int64_t i = 300; i < MANY; i++)
        above += tw__magnitude(val[i]) > 1u << 30;
    for (int64_t rank = above; rank <= above + 301; rank++) {
        check_scene("300 equal values below %lld, rank %lld", (long long)above, (long long)rank);
        check_kth(tw__kth_of_values(&tw__kernels_ref, val, MANY, rank), val, MANY, rank);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clear),
                                       cmocka_unit_test(test_passes),
                                       cmocka_unit_test(test_candidates_and_sums),
                                       cmocka_unit_test(test_widen),
                                       cmocka_unit_test(test_kth_of_few),
                                       cmocka_unit_test(test_kth_of_many),
                                       cmocka_unit_test(test_kth_beside_bracket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
