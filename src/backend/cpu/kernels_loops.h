/* kernels_loops.h - the loops that compilers turn into good vector code by themselves
 *
 * Included by each kernels_*.c and so compiled once per instruction set. The build forbids fused
 * multiply-add here: every product and sum is rounded alike on all machines. */
#ifndef TW_KERNELS_KERNELS_LOOPS_H
#define TW_KERNELS_KERNELS_LOOPS_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/wire_numbers.h"

#include <math.h>

/* Element i of memory that may be misaligned. */
static inline float load_f32(const void *src, int64_t i) {
    float x;
    memcpy(&x, (const char *)src + 4 * i, sizeof x);
    return x;
}

static inline uint16_t load_u16(const void *src, int64_t i) {
    uint16_t x;
    memcpy(&x, (const char *)src + 2 * i, sizeof x);
    return x;
}

static inline float read_log(tw__undo *undo, float estimate) {
    int32_t near = undo->near[undo->near_count++];
    if (near == TW__NEAR_LOW || near == TW__NEAR_HIGH)
        return undo->far[undo->far_count++];
    return tw__from_bits(tw__to_bits(estimate) + (uint32_t)near);
}

static void loop_unfold(const void *src, float *acc, int64_t len, tw__undo *undo) {
    for (int64_t i = 0; i < len; i++) {
        acc[i] -= load_f32(src, i);
        if (undo->lossy[i / 8] >> (i % 8) & 1)
            acc[i] = read_log(undo, acc[i]);
    }
}

static inline void loop_clear(void *dst, int64_t size) {
    memset(dst, 0, (size_t)size);
}

static void loop_add(void *sum, const void *src, int64_t len) {
    for (int64_t i = 0; i < len; i++) {
        float x = load_f32(sum, i) + load_f32(src, i);
        memcpy((char *)sum + 4 * i, &x, sizeof x);
    }
}

static inline void loop_widen_f16(float *restrict dst, const void *restrict src, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        dst[i] = tw__from_f16(load_u16(src, i));
}

static void loop_widen_bf16(float *restrict dst, const void *restrict src, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        dst[i] = tw__from_bits((uint32_t)load_u16(src, i) << 16);
}

static void loop_scale(float *dst, const void *src, float factor, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        dst[i] = factor * load_f32(src, i);
}

static void loop_decay(float *restrict dst, const float *restrict old, const void *restrict src,
                       float factor, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        dst[i] = factor * old[i] + load_f32(src, i);
}

static inline void adamw_word(float *restrict update, const float *restrict old_m,
                              const float *restrict old_v, float *restrict next_m,
                              float *restrict next_v, const void *restrict src,
                              const tw__adamw *restrict a, int64_t len) {
    for (int64_t i = 0; i < len; i++) {
        float g = load_f32(src, i);
        float m = a->beta1 * old_m[i] + a->fresh1 * g;
        float v = a->beta2 * old_v[i] + a->fresh2 * g * g;
        float d = a->root * sqrtf(v) + a->eps;
        next_m[i] = m;
        next_v[i] = v;
        update[i] = a->rate * m / d + (d - d);
    }
}

/* A word at a time: update may be src. */
static void loop_adamw(float *update, const tw__moment *moment, const void *src, const tw__adamw *a,
                       int64_t len) {
    for (int64_t i = 0; i < len; i += TW__WORD) {
        float word[TW__WORD];
        int64_t count = len - i < TW__WORD ? len - i : TW__WORD;
        adamw_word(word, moment->m + i, moment->v + i, moment->next_m + i, moment->next_v + i,
                   (const char *)src + 4 * i, a, count);
        memcpy(update + i, word, sizeof *word * (size_t)count);
    }
}

/* fold_update by updates of a word, and a fold of these. */
static inline void fold_updates(const tw__kernels *kernels, const void *src,
                                const tw__moment *moment, const tw__adamw *a, float *acc,
                                int64_t len, int32_t base, const uint8_t *keep, tw__undo *undo,
                                tw__collector *collector) {
    tw__undo log = *undo;
    for (int64_t i = 0; i < len; i += TW__WORD) {
        float update[TW__WORD];
        int64_t count = len - i < TW__WORD ? len - i : TW__WORD;
        const tw__moment word = {moment->m + i, moment->v + i, moment->next_m + i,
                                 moment->next_v + i};
        kernels->adamw(update, &word, (const char *)src + 4 * i, a, count);
        kernels->fold(update, acc + i, count, base + (int32_t)i, keep + i / 8, &log, collector);
        log.lossy += TW__WORD / 8;
    }
    undo->near_count = log.near_count;
    undo->far_count = log.far_count;
}

/* A fold of what lies behind the first `done` elements, a multiple of 8, by the reference. */
static inline void fold_rest(const void *src, float *acc, int64_t len, int32_t base,
                             const uint8_t *keep, tw__undo *undo, tw__collector *collector,
                             int64_t done) {
    if (done == len)
        return;
    tw__undo rest = *undo;
    rest.lossy += done / 8;
    tw__kernels_ref.fold((const char *)src + 4 * done, acc + done, len - done, base + (int32_t)done,
                         keep + done / 8, &rest, collector);
    undo->near_count = rest.near_count;
    undo->far_count = rest.far_count;
}

static inline void add_moment(tw__moments *m, int lane, float value) {
    double x = value;
    m->sum[lane] += x;
    m->square[lane] += x * x; /* the product of two floats is exact in double */
    m->magnitude[lane] += x < 0 ? -x : x;
}

static inline void loop_moments(const void *src, int64_t len, tw__moments *moments) {
    tw__moments m = *moments;
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES)
        for (int lane = 0; lane < TW__LANES; lane++)
            add_moment(&m, lane, load_f32(src, i + lane));
    for (int lane = 0; i < len; i++, lane++)
        add_moment(&m, lane, load_f32(src, i));
    *moments = m;
}

static int64_t loop_count(const void *src, int64_t len, uint32_t threshold) {
    int64_t count = 0;
    for (int64_t start = 0; start < len; start += 1 << 16) {
        int64_t end = start + (1 << 16) < len ? start + (1 << 16) : len;
        int32_t part = 0; /* 32 bits: as wide as the elements, so the loop stays in one vector */
        for (int64_t i = start; i < end; i++)
            part += (int32_t)tw__magnitude(load_f32(src, i)) >= (int32_t)threshold;
        count += part;
    }
    return count;
}

/* What all tables take from here. */
#define TW__LOOPS                                                                                  \
    .unfold = loop_unfold, .add = loop_add, .widen_bf16 = loop_widen_bf16, .scale = loop_scale,    \
    .decay = loop_decay, .adamw = loop_adamw, .count = loop_count

#endif
