/* kernels_avx512.c - 16 floats at a time
 *
 * Values are appended by compressing in the register and storing the whole vector: a compress that
 * stores to memory is microcode on some CPUs. What lies behind the last one is overwritten by the
 * next; the callers leave TW__SLACK places for it. Nothing in the loops over n branches on the
 * data: a wrong guess would also throw away the reads that are under way. */
#include "kernels/kernels_x86.h"

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

/* The lanes that reach the threshold. */
static inline uint64_t reaching(__m512 x, __m512i threshold, __m512i *max_bits) {
    __m512i bits = magnitude(x);
    *max_bits = _mm512_max_epu32(*max_bits, bits);
    return _mm512_cmpge_epu32_mask(bits, threshold);
}

/* Logs what sum - add forgets of old: see tw__undo. */
static inline void log_lossy(tw__undo *undo, uint8_t *bits, __m512 old, __m512 add, __m512 sum) {
    __m512i difference =
        _mm512_sub_epi32(_mm512_castps_si512(old), _mm512_castps_si512(_mm512_sub_ps(sum, add)));
    __mmask16 lossy = _mm512_test_epi32_mask(difference, difference);
    memcpy(bits, &lossy, sizeof lossy);
    __m512i packed = _mm512_maskz_compress_epi32(lossy, difference);
    _mm_storeu_si128((void *)(undo->near + undo->near_count), _mm512_cvtsepi32_epi8(packed));
    undo->near_count += ones(lossy);
    /* Outside -127 .. 126, by one unsigned comparison. */
    __mmask16 far =
        _mm512_cmpgt_epu32_mask(_mm512_add_epi32(difference, _mm512_set1_epi32(-TW__NEAR_LOW - 1)),
                                _mm512_set1_epi32(TW__NEAR_HIGH - TW__NEAR_LOW - 2));
    if (far) {
        _mm512_storeu_ps(undo->far + undo->far_count, _mm512_maskz_compress_ps(far, old));
        undo->far_count += ones(far);
    }
}

static void avx512_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                        tw__undo *undo, tw__collector *collector) {
    const __m512i threshold = _mm512_set1_epi32((int)collector->threshold);
    __m512i max_bits = _mm512_set1_epi32((int)collector->max_bits);
    int32_t *out = collector->found.idx;
    int64_t first = collector->found.count, count = first, i = 0;
    tw__undo log = *undo; /* in registers: nothing in the loop can point to it */
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t word = 0;
        for (int j = 0; j < TW__WORD; j += TW__LANES) {
            __mmask16 kept;
            memcpy(&kept, keep + (i + j) / 8, sizeof kept);
            __m512 old = _mm512_maskz_loadu_ps(kept, acc + i + j);
            __m512 add = load(src, i + j);
            __m512 sum = _mm512_add_ps(old, add);
            _mm512_storeu_ps(acc + i + j, sum);
            log_lossy(&log, log.lossy + (i + j) / 8, old, add, sum);
            word |= reaching(sum, threshold, &max_bits) << j;
        }
        count = append_bits(out, count, base + (int32_t)i, word);
    }
    *undo = log;
    collector->found.count = count;
    collector->max_bits = _mm512_reduce_max_epu32(max_bits);
    append_values(&collector->found, first, acc, base);
    fold_rest(i, src, acc, len, base, keep, undo, collector);
}

static void avx512_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    const __m512i threshold = _mm512_set1_epi32((int)collector->threshold);
    __m512i max_bits = _mm512_set1_epi32((int)collector->max_bits);
    int64_t first = collector->found.count, count = first, i = 0;
    for (; i + TW__WORD <= len; i += TW__WORD) {
        uint64_t word = 0;
        for (int j = 0; j < TW__WORD; j += TW__LANES)
            word |= reaching(load(src, i + j), threshold, &max_bits) << j;
        count = append_bits(collector->found.idx, count, base + (int32_t)i, word);
    }
    collector->found.count = count;
    collector->max_bits = _mm512_reduce_max_epu32(max_bits);
    append_values(&collector->found, first, src, base);
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
    .moments = avx512_moments,
    .count = loop_count,
    .between = avx512_between,
    .pick = avx512_pick,
};

const tw__kernels *tw__kernels_avx512(void) {
    return &kernels;
}
