/* kernels_avx512.c - 16 floats at a time; needs VBMI2 (Ice Lake, Zen 4) to compress bytes
 *
 * Values are appended by compressing in the register and storing the whole vector: a compress that
 * stores to memory is microcode on some CPUs. What lies behind the last one is overwritten by the
 * next; the callers leave TW__SLACK places for it. The loops over n branch only on what is
 * rare in the data: a wrong guess would also throw away the reads that are under way. */
#include "backend/cpu/kernels_x86.h"
#include "backend/cpu/wire_kernels_loops.h"

#include <stddef.h>

#define VECTORS (TW__WORD / TW__LANES)

static inline __m512i magnitude(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)TW__MAGNITUDE_MASK));
}

static inline __m512 load(const void *src, int64_t i) {
    return _mm512_loadu_ps((const char *)src + 4 * i);
}

/* The values of the entries from `first` on, whose indices count from base; and their largest. */
static void append_values(tw__collector *collector, int64_t first, const void *src, int32_t base) {
    const __m512i bases = _mm512_set1_epi32(base);
    tw__entries *found = &collector->found;
    __m512i max_bits = _mm512_set1_epi32((int)collector->max_bits);
    for (int64_t i = first; i < found->count; i += TW__LANES) {
        int64_t left = found->count - i;
        __mmask16 lanes = (__mmask16)(left < TW__LANES ? (1u << left) - 1 : 0xffffu);
        __m512i at = _mm512_sub_epi32(_mm512_loadu_si512(found->idx + i), bases);
        __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, src, 4);
        _mm512_storeu_ps(found->val + i, x);
        max_bits = _mm512_max_epu32(max_bits, magnitude(x));
    }
    collector->max_bits = _mm512_reduce_max_epu32(max_bits);
}

static inline uint64_t reaching(__m512 x, __m512i threshold) {
    return _mm512_cmpge_epu32_mask(magnitude(x), threshold);
}

/* The difference between the bits of old and those of sum - add: see tw__undo. */
static inline __m512i difference_of(__m512 old, __m512 add, __m512 sum) {
    return _mm512_sub_epi32(_mm512_castps_si512(old), _mm512_castps_si512(_mm512_sub_ps(sum, add)));
}

/* The lanes whose difference does not fit into a byte: outside -127 .. 126. */
static inline __mmask16 far_lanes(__m512i difference) {
    return _mm512_cmpgt_epu32_mask(
        _mm512_add_epi32(difference, _mm512_set1_epi32(-TW__NEAR_LOW - 1)),
        _mm512_set1_epi32(TW__NEAR_HIGH - TW__NEAR_LOW - 2));
}

static inline void log_far(tw__undo *undo, __m512 old, __m512i difference) {
    __mmask16 far = far_lanes(difference);
    _mm512_storeu_ps(undo->far + undo->far_count, _mm512_maskz_compress_ps(far, old));
    undo->far_count += ones(far);
}

/* Appends the differences that are not zero, as bytes. Sets their lanes in *lossy; *margin becomes
 * 0 or 1 in some byte if one of them was too large. */
static inline void log_near(tw__undo *undo, __m512i difference, uint64_t *lossy, int shift,
                            __m128i *margin) {
    __m128i bytes = _mm512_cvtsepi32_epi8(difference);
    __mmask16 lanes = _mm_test_epi8_mask(bytes, bytes);
    _mm_storeu_si128((void *)(undo->near + undo->near_count),
                     _mm_maskz_compress_epi8(lanes, bytes));
    undo->near_count += ones(lanes);
    *lossy |= (uint64_t)lanes << shift;
    *margin = _mm_min_epu8(*margin, _mm_sub_epi8(bytes, _mm_set1_epi8(TW__NEAR_HIGH)));
}

/* AdamW's numbers, one in each lane. */
typedef struct adamw_lanes {
    __m512 beta1, fresh1, beta2, fresh2, rate, root, eps;
} adamw_lanes;

static inline adamw_lanes spread(const tw__adamw *a) {
    return (adamw_lanes){_mm512_set1_ps(a->beta1), _mm512_set1_ps(a->fresh1),
                         _mm512_set1_ps(a->beta2), _mm512_set1_ps(a->fresh2),
                         _mm512_set1_ps(a->rate),  _mm512_set1_ps(a->root),
                         _mm512_set1_ps(a->eps)};
}

/* The update of 16 elements; their next moments go past the caches. */
static inline __m512 update_of(const tw__moment *moment, const void *src, const adamw_lanes *a,
                               int64_t i) {
    __m512 g = load(src, i), m = load(moment->m, i), v = load(moment->v, i);
    m = _mm512_add_ps(_mm512_mul_ps(a->beta1, m), _mm512_mul_ps(a->fresh1, g));
    v = _mm512_add_ps(_mm512_mul_ps(a->beta2, v), _mm512_mul_ps(_mm512_mul_ps(a->fresh2, g), g));
    __m512 d = _mm512_add_ps(_mm512_mul_ps(a->root, _mm512_sqrt_ps(v)), a->eps);
    __m512 u = _mm512_div_ps(_mm512_mul_ps(a->rate, m), d);
    _mm512_stream_ps(moment->next_m + i, m);
    _mm512_stream_ps(moment->next_v + i, v);
    return _mm512_add_ps(u, _mm512_sub_ps(d, d));
}

/* moment NULL: src is folded itself. Returns how many elements it did. */
static inline __attribute__((always_inline)) int64_t
fold_words(const void *src, const tw__moment *moment, const adamw_lanes *a, float *acc, int64_t len,
           int32_t base, const uint8_t *keep, tw__undo *undo, tw__collector *collector) {
    const __m512i threshold = _mm512_set1_epi32((int)collector->threshold);
    int32_t *out = collector->found.idx;
    int64_t first = collector->found.count, count = first, i = 0;
    tw__undo log = *undo; /* in registers: nothing in the loop can point to it */
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t found = 0, lossy = 0, kept;
        __m512 old[VECTORS];
        __m512i difference[VECTORS];
        __m128i margin = _mm_set1_epi8(-1);
        memcpy(&kept, keep + i / 8, sizeof kept);
        for (int v = 0; v < VECTORS; v++) {
            int64_t at = i + v * TW__LANES;
            old[v] = _mm512_maskz_loadu_ps((__mmask16)(kept >> v * TW__LANES), acc + at);
            __m512 add = moment != NULL ? update_of(moment, src, a, at) : load(src, at);
            __m512 sum = _mm512_add_ps(old[v], add);
            _mm512_storeu_ps(acc + at, sum);
            difference[v] = difference_of(old[v], add, sum);
            log_near(&log, difference[v], &lossy, v * TW__LANES, &margin);
            found |= reaching(sum, threshold) << v * TW__LANES;
        }
        memcpy(log.lossy + i / 8, &lossy, sizeof lossy);
        if (_mm_cmple_epu8_mask(margin, _mm_set1_epi8(1)))
            for (int v = 0; v < VECTORS; v++)
                log_far(&log, old[v], difference[v]);
        count = append_bits(out, count, base + (int32_t)i, found);
    }
    *undo = log;
    collector->found.count = count;
    append_values(collector, first, acc, base);
    return i;
}

static void avx512_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                        tw__undo *undo, tw__collector *collector) {
    int64_t done = fold_words(src, NULL, NULL, acc, len, base, keep, undo, collector);
    fold_rest(done, src, acc, len, base, keep, undo, collector);
}

static void avx512_fold_update(const void *src, const tw__moment *moment, const tw__adamw *a,
                               float *acc, int64_t len, int32_t base, const uint8_t *keep,
                               tw__undo *undo, tw__collector *collector) {
    const adamw_lanes lanes = spread(a);
    int64_t done = fold_words(src, moment, &lanes, acc, len, base, keep, undo, collector);
    _mm_sfence();
    fold_update_rest(done, src, moment, a, acc, len, base, keep, undo, collector);
}

static void avx512_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    const __m512i threshold = _mm512_set1_epi32((int)collector->threshold);
    int64_t first = collector->found.count, count = first, i = 0;
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t word = 0;
        for (int v = 0; v < VECTORS; v++)
            word |= reaching(load(src, i + v * TW__LANES), threshold) << v * TW__LANES;
        count = append_bits(collector->found.idx, count, base + (int32_t)i, word);
    }
    collector->found.count = count;
    append_values(collector, first, src, base);
    scan_rest(i, src, len, base, collector);
}

static void avx512_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256(
                                      (const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
}

/* Adds 8 elements to lanes 0-7 or 8-15 of the sums. */
static inline void add_moments(__m512d x, __m512d *sum, __m512d *square, __m512d *magnitudes) {
    *sum = _mm512_add_pd(*sum, x);
    *square = _mm512_add_pd(*square, _mm512_mul_pd(x, x));
    *magnitudes = _mm512_add_pd(*magnitudes, _mm512_abs_pd(x));
}

static void avx512_moments(const void *src, int64_t len, tw__moments *m) {
    __m512d sum[2], square[2], magnitudes[2];
    for (int half = 0; half < 2; half++) {
        sum[half] = _mm512_loadu_pd(m->sum + 8 * half);
        square[half] = _mm512_loadu_pd(m->square + 8 * half);
        magnitudes[half] = _mm512_loadu_pd(m->magnitude + 8 * half);
    }
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES) {
        __m512 x = load(src, i);
        __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        add_moments(low, &sum[0], &square[0], &magnitudes[0]);
        add_moments(high, &sum[1], &square[1], &magnitudes[1]);
    }
    for (int half = 0; half < 2; half++) {
        _mm512_storeu_pd(m->sum + 8 * half, sum[half]);
        _mm512_storeu_pd(m->square + 8 * half, square[half]);
        _mm512_storeu_pd(m->magnitude + 8 * half, magnitudes[half]);
    }
    tw__kernels_ref.moments((const char *)src + 4 * i, len - i, m);
}

static int64_t avx512_between(const float *val, int64_t len, uint32_t low, uint32_t high,
                              uint32_t *out, int64_t cap, int64_t *above) {
    const __m512i lows = _mm512_set1_epi32((int)low);
    const __m512i highs = _mm512_set1_epi32((int)high);
    int64_t count = 0, over = 0, i = 0;
    for (; i + TW__LANES <= len && count < cap; i += TW__LANES) {
        __m512i bits = magnitude(load(val, i));
        __mmask16 higher = _mm512_cmpgt_epu32_mask(bits, highs);
        __mmask16 within = _mm512_mask_cmpge_epu32_mask((__mmask16)~higher, bits, lows);
        _mm512_storeu_si512(out + count, _mm512_maskz_compress_epi32(within, bits));
        count += ones(within);
        over += ones(higher);
    }
    count += between_rest(i, val, len, low, high, out + count, cap - count, above);
    *above += over;
    return count < cap ? count : cap;
}

static void avx512_pick(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                        tw__entries *out) {
    const __m512i thresholds = _mm512_set1_epi32((int)threshold);
    int64_t count = out->count, i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES) {
        __m512 x = load(val, i);
        __mmask16 picked = _mm512_cmpge_epu32_mask(magnitude(x), thresholds);
        _mm512_storeu_si512(out->idx + count,
                            _mm512_maskz_compress_epi32(picked, _mm512_loadu_si512(idx + i)));
        _mm512_storeu_ps(out->val + count, _mm512_maskz_compress_ps(picked, x));
        count += ones(picked);
    }
    out->count = count;
    tw__kernels_ref.pick(idx + i, val + i, len - i, threshold, out);
}

/* ---- wire formats: only positions needs more than the compiler, a compress of the numbers 0 .. 63 */

static inline void store_positions(uint32_t *at, __m128i position, __m512i first) {
    _mm512_storeu_si512(at, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(position)));
}

static int avx512_positions(uint64_t word, uint32_t first, uint32_t *at) {
    static const uint8_t numbers[TW__WIRE_WORD] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const __m512i firsts = _mm512_set1_epi32((int)first);
    int count = __builtin_popcountll(word);
    __m512i set = _mm512_maskz_compress_epi8(word, _mm512_loadu_si512(numbers));
    store_positions(at, _mm512_castsi512_si128(set), firsts);
    store_positions(at + 16, _mm512_extracti32x4_epi32(set, 1), firsts);
    if (count > 32) { /* seldom: Elias and Fano's bitmaps are a third to half full */
        store_positions(at + 32, _mm512_extracti32x4_epi32(set, 2), firsts);
        store_positions(at + 48, _mm512_extracti32x4_epi32(set, 3), firsts);
    }
    return count;
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = avx512_positions};

static const tw__kernels kernels = {
    .name = "avx512",
    TW__LOOPS,
    .fold = avx512_fold,
    .fold_update = avx512_fold_update,
    .scan = avx512_scan,
    .clear = stream_zeros,
    .widen_f16 = avx512_widen_f16,
    .moments = avx512_moments,
    .between = avx512_between,
    .pick = avx512_pick,
    .wire = &wire,
};

const tw__kernels *tw__kernels_avx512(void) {
    return &kernels;
}
