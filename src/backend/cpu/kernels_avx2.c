/* kernels_avx2.c - 8 floats at a time
 *
 * AVX2 has no compress instruction: a table of 256 permutations, one per mask, stands in for it.
 * Entries are appended by storing the whole permuted vector, as in kernels_avx512.c. */
#include "backend/cpu/kernels_x86.h"
#include "backend/cpu/wire_kernels_loops.h"
#include "backend/cpu/wire_kernels.h"

#include <pthread.h>
#include <stddef.h>

#define WIDTH 8

/* Byte j of row m: the lane of the j-th set bit of m. */
static uint64_t compress_lanes[256];

static void fill_compress_lanes(void) {
    for (unsigned mask = 0; mask < 256; mask++) {
        unsigned at = 0;
        for (unsigned lane = 0; lane < WIDTH; lane++)
            if (mask >> lane & 1)
                compress_lanes[mask] |= (uint64_t)lane << (8 * at++);
    }
}

static inline __m256i permutation(unsigned mask) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)compress_lanes[mask]));
}

static inline __m256i magnitude(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32((int)TW__MAGNITUDE_MASK));
}

static inline __m256 load(const void *src, int64_t i) {
    return _mm256_loadu_ps((const void *)((const char *)src + 4 * i));
}

static inline void store_i(void *dst, __m256i x) {
    _mm256_storeu_si256(dst, x);
}

static inline unsigned lanes_of(__m256i mask) {
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(mask));
}

/* Thresholds are compared as signed numbers, so a >= b is a > b - 1: both are below 2^31. */
static inline __m256i just_below(uint32_t threshold) {
    return _mm256_set1_epi32((int)threshold - 1);
}

/* The values of the entries from `first` on, whose indices count from base; and their largest. */
static void append_values(tw__collector *collector, int64_t first, const void *src, int32_t base) {
    tw__entries *found = &collector->found;
    uint32_t max_bits = collector->max_bits;
    for (int64_t i = first; i < found->count; i++) {
        found->val[i] = load_f32(src, found->idx[i] - base);
        uint32_t bits = tw__magnitude(found->val[i]);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    collector->max_bits = max_bits;
}

static inline uint64_t reaching(__m256 x, __m256i below) {
    return lanes_of(_mm256_cmpgt_epi32(magnitude(x), below));
}

/* Logs what sum - add forgets of old: see tw__undo. */
static inline void log_lossy(tw__undo *undo, uint8_t *bits, __m256 old, __m256 add, __m256 sum) {
    __m256i difference =
        _mm256_sub_epi32(_mm256_castps_si256(old), _mm256_castps_si256(_mm256_sub_ps(sum, add)));
    unsigned lossy = ~lanes_of(_mm256_cmpeq_epi32(difference, _mm256_setzero_si256())) & 0xffu;
    *bits = (uint8_t)lossy;
    __m256i packed = _mm256_permutevar8x32_epi32(difference, permutation(lossy));
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storel_epi64((void *)(undo->near + undo->near_count), _mm_packs_epi16(words, words));
    undo->near_count += ones(lossy);
    __m256i high = _mm256_cmpgt_epi32(difference, _mm256_set1_epi32(TW__NEAR_HIGH - 1));
    __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(TW__NEAR_LOW + 1), difference);
    unsigned far = lanes_of(_mm256_or_si256(high, low));
    if (far) {
        _mm256_storeu_ps(undo->far + undo->far_count,
                         _mm256_permutevar8x32_ps(old, permutation(far)));
        undo->far_count += ones(far);
    }
}

/* x where the bit of mask is set, else 0. */
static inline __m256 keep_lanes(__m256 x, unsigned mask) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i kept = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)mask), bit), bit);
    return _mm256_and_ps(x, _mm256_castsi256_ps(kept));
}

/* AdamW's numbers, one in each lane. */
typedef struct adamw_lanes {
    __m256 beta1, fresh1, beta2, fresh2, rate, root, eps;
} adamw_lanes;

static inline adamw_lanes spread(const tw__adamw *a) {
    return (adamw_lanes){_mm256_set1_ps(a->beta1), _mm256_set1_ps(a->fresh1),
                         _mm256_set1_ps(a->beta2), _mm256_set1_ps(a->fresh2),
                         _mm256_set1_ps(a->rate),  _mm256_set1_ps(a->root),
                         _mm256_set1_ps(a->eps)};
}

/* The update of 8 elements; their next moments go past the caches. */
static inline __m256 update_of(const tw__moment *moment, const void *src, const adamw_lanes *a,
                               int64_t i) {
    __m256 g = load(src, i), m = load(moment->m, i), v = load(moment->v, i);
    m = _mm256_add_ps(_mm256_mul_ps(a->beta1, m), _mm256_mul_ps(a->fresh1, g));
    v = _mm256_add_ps(_mm256_mul_ps(a->beta2, v), _mm256_mul_ps(_mm256_mul_ps(a->fresh2, g), g));
    __m256 d = _mm256_add_ps(_mm256_mul_ps(a->root, _mm256_sqrt_ps(v)), a->eps);
    __m256 u = _mm256_div_ps(_mm256_mul_ps(a->rate, m), d);
    _mm256_stream_ps(moment->next_m + i, m);
    _mm256_stream_ps(moment->next_v + i, v);
    return _mm256_add_ps(u, _mm256_sub_ps(d, d));
}

/* moment NULL: src is folded itself. Returns how many elements it did. */
static inline __attribute__((always_inline)) int64_t
fold_words(const void *src, const tw__moment *moment, const adamw_lanes *a, float *acc, int64_t len,
           int32_t base, const uint8_t *keep, tw__undo *undo, tw__collector *collector) {
    const __m256i below = just_below(collector->threshold);
    int32_t *out = collector->found.idx;
    int64_t first = collector->found.count, count = first, i = 0;
    tw__undo log = *undo; /* in registers: nothing in the loop can point to it */
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t word = 0;
        for (int j = 0; j < TW__WORD; j += WIDTH) {
            __m256 old = keep_lanes(_mm256_loadu_ps(acc + i + j), keep[(i + j) / 8]);
            __m256 add = moment != NULL ? update_of(moment, src, a, i + j) : load(src, i + j);
            __m256 sum = _mm256_add_ps(old, add);
            _mm256_storeu_ps(acc + i + j, sum);
            log_lossy(&log, log.lossy + (i + j) / 8, old, add, sum);
            word |= reaching(sum, below) << j;
        }
        count = append_bits(out, count, base + (int32_t)i, word);
    }
    *undo = log;
    collector->found.count = count;
    append_values(collector, first, acc, base);
    return i;
}

static void avx2_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                      tw__undo *undo, tw__collector *collector) {
    int64_t done = fold_words(src, NULL, NULL, acc, len, base, keep, undo, collector);
    fold_rest(done, src, acc, len, base, keep, undo, collector);
}

static void avx2_fold_update(const void *src, const tw__moment *moment, const tw__adamw *a,
                             float *acc, int64_t len, int32_t base, const uint8_t *keep,
                             tw__undo *undo, tw__collector *collector) {
    const adamw_lanes lanes = spread(a);
    int64_t done = fold_words(src, moment, &lanes, acc, len, base, keep, undo, collector);
    _mm_sfence();
    fold_update_rest(done, src, moment, a, acc, len, base, keep, undo, collector);
}

static void avx2_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    const __m256i below = just_below(collector->threshold);
    int64_t first = collector->found.count, count = first, i = 0;
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t word = 0;
        for (int j = 0; j < TW__WORD; j += WIDTH)
            word |= reaching(load(src, i + j), below) << j;
        count = append_bits(collector->found.idx, count, base + (int32_t)i, word);
    }
    collector->found.count = count;
    append_values(collector, first, src, base);
    scan_rest(i, src, len, base, collector);
}

static void avx2_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + WIDTH <= len; i += WIDTH)
        _mm256_storeu_ps(
            dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
}

/* Adds 4 elements to 4 lanes of the sums. */
static inline void add_moments(__m256d x, __m256d *sum, __m256d *square, __m256d *magnitudes) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    *sum = _mm256_add_pd(*sum, x);
    *square = _mm256_add_pd(*square, _mm256_mul_pd(x, x));
    *magnitudes = _mm256_add_pd(*magnitudes, _mm256_andnot_pd(sign, x));
}

static void avx2_moments(const void *src, int64_t len, tw__moments *m) {
    __m256d sum[4], square[4], magnitudes[4];
    for (int part = 0; part < 4; part++) {
        sum[part] = _mm256_loadu_pd(m->sum + 4 * part);
        square[part] = _mm256_loadu_pd(m->square + 4 * part);
        magnitudes[part] = _mm256_loadu_pd(m->magnitude + 4 * part);
    }
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES)
        for (int part = 0; part < 4; part++) {
            __m128 x = _mm_loadu_ps((const void *)((const char *)src + 4 * (i + 4 * part)));
            add_moments(_mm256_cvtps_pd(x), &sum[part], &square[part], &magnitudes[part]);
        }
    for (int part = 0; part < 4; part++) {
        _mm256_storeu_pd(m->sum + 4 * part, sum[part]);
        _mm256_storeu_pd(m->square + 4 * part, square[part]);
        _mm256_storeu_pd(m->magnitude + 4 * part, magnitudes[part]);
    }
    tw__kernels_ref.moments((const char *)src + 4 * i, len - i, m);
}

static int64_t avx2_between(const float *val, int64_t len, uint32_t low, uint32_t high,
                            uint32_t *out, int64_t cap, int64_t *above) {
    const __m256i below = just_below(low);
    const __m256i highs = _mm256_set1_epi32((int)high);
    int64_t count = 0, over = 0, i = 0;
    for (; i + WIDTH <= len && count < cap; i += WIDTH) {
        __m256i bits = magnitude(load(val, i));
        unsigned higher = lanes_of(_mm256_cmpgt_epi32(bits, highs));
        unsigned within = lanes_of(_mm256_cmpgt_epi32(bits, below)) & ~higher;
        store_i(out + count, _mm256_permutevar8x32_epi32(bits, permutation(within)));
        count += ones(within);
        over += ones(higher);
    }
    count += between_rest(i, val, len, low, high, out + count, cap - count, above);
    *above += over;
    return count < cap ? count : cap;
}

static void avx2_pick(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                      tw__entries *out) {
    const __m256i below = just_below(threshold);
    int64_t count = out->count, i = 0;
    for (; i + WIDTH <= len; i += WIDTH) {
        __m256 x = load(val, i);
        unsigned picked = lanes_of(_mm256_cmpgt_epi32(magnitude(x), below));
        __m256i order = permutation(picked);
        __m256i at = _mm256_loadu_si256((const void *)(idx + i));
        store_i(out->idx + count, _mm256_permutevar8x32_epi32(at, order));
        _mm256_storeu_ps(out->val + count, _mm256_permutevar8x32_ps(x, order));
        count += ones(picked);
    }
    out->count = count;
    tw__kernels_ref.pick(idx + i, val + i, len - i, threshold, out);
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = loop_positions};

static const tw__kernels kernels = {
    .name = "avx2",
    TW__LOOPS,
    .fold = avx2_fold,
    .fold_update = avx2_fold_update,
    .scan = avx2_scan,
    .clear = stream_zeros,
    .widen_f16 = avx2_widen_f16,
    .moments = avx2_moments,
    .between = avx2_between,
    .pick = avx2_pick,
    .wire = &wire,
};

const tw__kernels *tw__kernels_avx2(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_compress_lanes);
    return &kernels;
}
