/* kernels_avx2.c - 8 floats at a time
 *
 * AVX2 has no compress instruction: a table of 256 permutations, one per mask, stands in for it.
 * Entries are appended by storing the whole permuted vector, as in kernels_avx512.c. */
#include "kernels/kernels_loops.h"

#include <immintrin.h>
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

static inline int64_t ones(unsigned mask) {
    return __builtin_popcount(mask);
}

/* Thresholds are compared as signed numbers, so a >= b is a > b - 1: both are below 2^31. */
static inline __m256i just_below(uint32_t threshold) {
    return _mm256_set1_epi32((int)threshold - 1);
}

/* The state of a collector in registers, for the length of a loop. */
typedef struct collecting {
    __m256i below;
    __m256i max_bits;
    int64_t count;
    int64_t last; /* no room for another two vectors when count is past this */
} collecting;

static inline collecting collect_begin(const tw__collector *collector) {
    collecting state = {
        .below = just_below(collector->threshold),
        .max_bits = _mm256_set1_epi32((int)collector->max_bits),
        .count = collector->found.count,
        .last = collector->found.cap - TW__LANES,
    };
    return state;
}

static inline void collect(collecting *state, const tw__collector *collector, __m256 x,
                           int32_t idx) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i bits = magnitude(x);
    state->max_bits = _mm256_max_epu32(state->max_bits, bits);
    unsigned found = lanes_of(_mm256_cmpgt_epi32(bits, state->below));
    if (found) {
        __m256i order = permutation(found);
        __m256i at = _mm256_add_epi32(_mm256_set1_epi32(idx), lane);
        store_i(collector->found.idx + state->count, _mm256_permutevar8x32_epi32(at, order));
        _mm256_storeu_ps(collector->found.val + state->count, _mm256_permutevar8x32_ps(x, order));
        state->count += ones(found);
    }
}

static inline void collect_end(const collecting *state, tw__collector *collector) {
    uint32_t lanes[WIDTH];
    store_i(lanes, state->max_bits);
    for (int lane = 0; lane < WIDTH; lane++)
        if (lanes[lane] > collector->max_bits)
            collector->max_bits = lanes[lane];
    collector->found.count = state->count;
}

/* Adds 8 elements and logs what the sum forgets. Returns the sum. */
static inline __m256 fold_vector(float *acc, __m256 add, uint8_t *lossy, float **old_values) {
    __m256 old = _mm256_loadu_ps(acc);
    __m256 sum = _mm256_add_ps(old, add);
    _mm256_storeu_ps(acc, sum);
    __m256i same = _mm256_cmpeq_epi32(_mm256_castps_si256(_mm256_sub_ps(sum, add)),
                                      _mm256_castps_si256(old));
    unsigned mask = ~lanes_of(same) & 0xffu;
    *lossy = (uint8_t)mask;
    _mm256_storeu_ps(*old_values, _mm256_permutevar8x32_ps(old, permutation(mask)));
    *old_values += ones(mask);
    return sum;
}

static int64_t avx2_fold(const void *src, float *acc, int64_t len, int32_t base, tw__undo *undo,
                         tw__collector *collector) {
    collecting state = collect_begin(collector);
    float *old_values = undo->old + undo->count;
    int64_t i = 0;
    for (; i + TW__LANES <= len && state.count <= state.last; i += TW__LANES) {
        for (int64_t j = i; j < i + TW__LANES; j += WIDTH) {
            __m256 sum = fold_vector(acc + j, load(src, j), undo->lossy + j / 8, &old_values);
            collect(&state, collector, sum, base + (int32_t)j);
        }
    }
    collect_end(&state, collector);
    undo->count = old_values - undo->old;
    if (state.count > state.last)
        return i;
    return fold_rest(i, src, acc, len, base, undo, collector);
}

static int64_t avx2_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    collecting state = collect_begin(collector);
    int64_t i = 0;
    for (; i + TW__LANES <= len && state.count <= state.last; i += TW__LANES) {
        collect(&state, collector, load(src, i), base + (int32_t)i);
        collect(&state, collector, load(src, i + WIDTH), base + (int32_t)i + WIDTH);
    }
    collect_end(&state, collector);
    if (state.count > state.last)
        return i;
    return scan_rest(i, src, len, base, collector);
}

static void avx2_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + WIDTH <= len; i += WIDTH)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                      (const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
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
    int64_t more_over = 0;
    if (count < cap)
        count += tw__kernels_ref.between(val + i, len - i, low, high, out + count, cap - count,
                                         &more_over);
    *above = over + more_over;
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

static const tw__kernels kernels = {
    .name = "avx2",
    .fold = avx2_fold,
    .unfold = loop_unfold,
    .scan = avx2_scan,
    .add = loop_add,
    .widen_f16 = avx2_widen_f16,
    .widen_bf16 = loop_widen_bf16,
    .scale = loop_scale,
    .decay = loop_decay,
    .moments = loop_moments,
    .count = loop_count,
    .between = avx2_between,
    .pick = avx2_pick,
};

const tw__kernels *tw__kernels_avx2(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_compress_lanes);
    return &kernels;
}
