/* kernels_plain.c - for CPUs without kernels of their own: C that compilers turn into vector code
 *
 * The passes over n do PART elements at a time, in a loop of fixed length without branches that gcc and
 * clang vectorise. What compilers cannot do is to append some of the elements. So the loop leaves bits,
 * one for each element, and those that are set are visited. */
#include "backend/cpu/kernels_loops.h"
#include "backend/cpu/wire_kernels_loops.h"

enum { PART = 32 }; /* as many as an element has bits */
#define ALL UINT32_MAX

#define EIGHT(i)                                                                                   \
    1u << (i), 2u << (i), 4u << (i), 8u << (i), 16u << (i), 32u << (i), 64u << (i), 128u << (i)
static const uint32_t bit[PART] = {EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)};

/* Compilers make no vector code of what might not happen. */
static inline uint32_t mask_of(int condition) {
    return 0u - (uint32_t)condition;
}

static inline int lowest(uint32_t bits) {
    return __builtin_ctz(bits);
}

/* By adding neighbours: the compiler's own calls a function if there is no instruction. */
static inline int64_t ones(uint32_t bits) {
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0fu;
    return bits * 0x01010101u >> 24;
}

/* What is to be done for a part: bit i for element i. */
typedef struct marks {
    uint32_t lossy;   /* its difference is not 0 */
    uint32_t found;   /* it reaches the threshold */
    uint32_t outside; /* more than 255: a difference does not fit into a byte */
} marks;

/* acc += src. A difference d is far if d + 127 < 0 or d + 129 > 255. */
static inline marks fold_part(const void *restrict src, float *restrict acc, int32_t threshold,
                              int32_t *restrict difference) {
    uint32_t lossy = 0, found = 0, outside = 0;
    for (int i = 0; i < PART; i++) {
        float add = load_f32(src, i), old = acc[i], sum = old + add;
        uint32_t d = tw__to_bits(old) - tw__to_bits(sum - add);
        acc[i] = sum;
        difference[i] = (int32_t)d;
        lossy |= bit[i] & mask_of(d != 0);
        found |= bit[i] & mask_of((int32_t)tw__magnitude(sum) >= threshold);
        outside |= (d + TW__NEAR_HIGH) | (d + TW__NEAR_HIGH + 2);
    }
    return (marks){lossy, found, outside};
}

/* The same, with 0 in place of the elements that are not kept. */
static marks fold_kept(const void *src, float *acc, uint32_t kept, int32_t threshold,
                       int32_t *difference) {
    float copy[PART];
    memcpy(copy, acc, sizeof copy);
    for (uint32_t dropped = ~kept; dropped != 0; dropped &= dropped - 1)
        copy[lowest(dropped)] = 0.0f;
    marks m = fold_part(src, copy, threshold, difference);
    memcpy(acc, copy, sizeof copy);
    return m;
}

/* Old values are (e + g) - g, and the difference. */
static void log_far(tw__undo *undo, const void *src, const float *acc, int32_t *difference) {
    for (int i = 0; i < PART; i++) {
        int32_t d = difference[i];
        if (d > TW__NEAR_LOW && d < TW__NEAR_HIGH)
            continue;
        undo->far[undo->far_count++] =
            tw__from_bits(tw__to_bits(acc[i] - load_f32(src, i)) + (uint32_t)d);
        difference[i] = TW__NEAR_HIGH;
    }
}

/* Seven at a time, whatever their number: 5 to 35 % are lossy, and a wrong guess costs more. Of eight
 * gcc makes a vector before it stores them, which takes 9 % longer. */
static inline int64_t log_near(int8_t *restrict near, const int32_t *restrict difference,
                               uint32_t lossy) {
    int64_t count = 0, total = ones(lossy);
    do {
        for (int j = 0; j < 7; j++) {
            near[count++] = (int8_t)difference[lowest(lossy | 1u << 31)];
            lossy &= lossy - 1;
        }
    } while (count < total);
    return total;
}

static inline void collect(tw__collector *collector, const void *src, uint32_t found, int32_t idx) {
    tw__entries *out = &collector->found;
    for (; found != 0; found &= found - 1) {
        float x = load_f32(src, lowest(found));
        uint32_t bits = tw__magnitude(x);
        out->idx[out->count] = idx + lowest(found);
        out->val[out->count++] = x;
        collector->max_bits = bits > collector->max_bits ? bits : collector->max_bits;
    }
}

static void plain_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                       tw__undo *undo, tw__collector *collector) {
    const int32_t threshold = (int32_t)collector->threshold;
    int64_t i = 0;
    for (; i + PART <= len; i += PART) {
        const char *from = (const char *)src + 4 * i;
        int32_t difference[PART];
        uint32_t kept;
        memcpy(&kept, keep + i / 8, sizeof kept);
        marks m = __builtin_expect(kept == ALL, 1)
                      ? fold_part(from, acc + i, threshold, difference)
                      : fold_kept(from, acc + i, kept, threshold, difference);
        if (__builtin_expect(m.outside > 255, 0))
            log_far(undo, from, acc + i, difference);
        memcpy(undo->lossy + i / 8, &m.lossy, sizeof m.lossy);
        undo->near_count += log_near(undo->near + undo->near_count, difference, m.lossy);
        collect(collector, acc + i, m.found, base + (int32_t)i);
    }
    fold_rest(src, acc, len, base, keep, undo, collector, i);
}

static void plain_fold_update(const void *src, const tw__moment *moment, const tw__adamw *a,
                              float *acc, int64_t len, int32_t base, const uint8_t *keep,
                              tw__undo *undo, tw__collector *collector) {
    fold_updates(&tw__kernels_plain, src, moment, a, acc, len, base, keep, undo, collector);
}

static inline uint32_t reaching(const void *src, int32_t threshold) {
    uint32_t found = 0;
    for (int i = 0; i < PART; i++)
        found |= bit[i] & mask_of((int32_t)tw__magnitude(load_f32(src, i)) >= threshold);
    return found;
}

static void plain_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    int64_t i = 0;
    for (; i + PART <= len; i += PART) {
        const char *from = (const char *)src + 4 * i;
        collect(collector, from, reaching(from, (int32_t)collector->threshold), base + (int32_t)i);
    }
    tw__kernels_ref.scan((const char *)src + 4 * i, len - i, base + (int32_t)i, collector);
}

static int64_t plain_between(const float *val, int64_t len, uint32_t low, uint32_t high,
                             uint32_t *out, int64_t cap, int64_t *above) {
    int64_t count = 0, over = 0;
    for (int64_t i = 0; i < len; i++) {
        uint32_t bits = tw__magnitude(val[i]);
        out[count] = bits;
        count += (bits >= low) & (bits <= high) & (count < cap);
        over += bits > high;
    }
    *above = over;
    return count;
}

static void plain_pick(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                       tw__entries *out) {
    int64_t count = out->count;
    for (int64_t i = 0; i < len; i++) {
        out->idx[count] = idx[i];
        out->val[count] = val[i];
        count += tw__magnitude(val[i]) >= threshold;
    }
    out->count = count;
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = loop_positions};

const tw__kernels tw__kernels_plain = {
    .name = "plain",
    TW__LOOPS,
    .fold = plain_fold,
    .fold_uncached = plain_fold,
    .fold_update = plain_fold_update,
    .scan = plain_scan,
    .clear = loop_clear,
    .widen_f16 = loop_widen_f16,
    .moments = loop_moments,
    .between = plain_between,
    .pick = plain_pick,
    .wire = &wire,
};
