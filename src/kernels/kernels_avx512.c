/* kernels_avx512.c - 16 floats at a time
 *
 * Entries are appended by compressing in the register and storing the whole vector: a compress
 * that stores to memory is microcode on some CPUs. What lies behind the last entry is overwritten
 * by the next append; the callers leave TW__SLACK places for it. */
#include "kernels/kernels_loops.h"

#include <immintrin.h>
#include <stddef.h>

static inline __m512i magnitude(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)TW__MAGNITUDE_MASK));
}

static inline __m512 load(const void *src, int64_t i) {
    return _mm512_loadu_ps((const char *)src + 4 * i);
}

static inline int64_t ones(__mmask16 mask) {
    return __builtin_popcount(mask);
}

/* The state of a collector in registers, for the length of a loop. */
typedef struct collecting {
    __m512i threshold;
    __m512i max_bits;
    int64_t count;
    int64_t last; /* no room for another vector when count is past this */
} collecting;

static inline collecting collect_begin(const tw__collector *collector) {
    collecting state = {
        .threshold = _mm512_set1_epi32((int)collector->threshold),
        .max_bits = _mm512_set1_epi32((int)collector->max_bits),
        .count = collector->found.count,
        .last = collector->found.cap - TW__LANES,
    };
    return state;
}

static inline void collect(collecting *state, const tw__collector *collector, __m512 x,
                           int32_t idx) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i bits = magnitude(x);
    state->max_bits = _mm512_max_epu32(state->max_bits, bits);
    __mmask16 found = _mm512_cmpge_epu32_mask(bits, state->threshold);
    if (found) {
        __m512i at = _mm512_add_epi32(_mm512_set1_epi32(idx), lane);
        _mm512_storeu_si512(collector->found.idx + state->count,
                            _mm512_maskz_compress_epi32(found, at));
        _mm512_storeu_ps(collector->found.val + state->count, _mm512_maskz_compress_ps(found, x));
        state->count += ones(found);
    }
}

static inline void collect_end(const collecting *state, tw__collector *collector) {
    collector->found.count = state->count;
    collector->max_bits = _mm512_reduce_max_epu32(state->max_bits);
}

static int64_t avx512_fold(const void *src, float *acc, int64_t len, int32_t base, tw__undo *undo,
                           tw__collector *collector) {
    collecting state = collect_begin(collector);
    float *old_values = undo->old + undo->count;
    int64_t i = 0;
    for (; i + TW__LANES <= len && state.count <= state.last; i += TW__LANES) {
        __m512 old = _mm512_loadu_ps(acc + i);
        __m512 add = load(src, i);
        __m512 sum = _mm512_add_ps(old, add);
        _mm512_storeu_ps(acc + i, sum);
        __mmask16 lossy = _mm512_cmpneq_epi32_mask(
            _mm512_castps_si512(_mm512_sub_ps(sum, add)), _mm512_castps_si512(old));
        memcpy(undo->lossy + i / 8, &lossy, sizeof lossy);
        _mm512_storeu_ps(old_values, _mm512_maskz_compress_ps(lossy, old));
        old_values += ones(lossy);
        collect(&state, collector, sum, base + (int32_t)i);
    }
    collect_end(&state, collector);
    undo->count = old_values - undo->old;
    if (state.count > state.last)
        return i;
    return fold_rest(i, src, acc, len, base, undo, collector);
}

static int64_t avx512_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    collecting state = collect_begin(collector);
    int64_t i = 0;
    for (; i + TW__LANES <= len && state.count <= state.last; i += TW__LANES)
        collect(&state, collector, load(src, i), base + (int32_t)i);
    collect_end(&state, collector);
    if (state.count > state.last)
        return i;
    return scan_rest(i, src, len, base, collector);
}

static void avx512_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES)
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256(
                                      (const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
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
    int64_t more_over = 0;
    if (count < cap)
        count += tw__kernels_ref.between(val + i, len - i, low, high, out + count, cap - count,
                                         &more_over);
    *above = over + more_over;
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

static const tw__kernels kernels = {
    .name = "avx512",
    .fold = avx512_fold,
    .unfold = loop_unfold,
    .scan = avx512_scan,
    .add = loop_add,
    .widen_f16 = avx512_widen_f16,
    .widen_bf16 = loop_widen_bf16,
    .scale = loop_scale,
    .decay = loop_decay,
    .moments = loop_moments,
    .count = loop_count,
    .between = avx512_between,
    .pick = avx512_pick,
};

const tw__kernels *tw__kernels_avx512(void) {
    return &kernels;
}
