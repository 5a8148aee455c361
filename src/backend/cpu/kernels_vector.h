/* kernels_vector.h - the kernels of vector units, written once for all of them
 *
 * The loops over n do a word of TW__WORD elements at a time, in groups of four vectors. A group has as
 * many elements as a vector has bytes, so its differences (tw__undo) fit into one vector. The loops
 * branch only on what is rare in the data: a wrong guess would also throw away the reads that are
 * under way. What is left behind the last word is done by the reference.
 *
 * Values are appended by compressing in the register and storing the whole vector. What lies behind
 * the last one is overwritten by the next. A whole word of the undo log always has room: it has at
 * most one byte for each element before.
 *
 * kernels_avx512.c, kernels_avx2.c and kernels_neon.c include it, and define for their vectors:
 *
 *     WIDTH                          floats of a vector
 *     floats, ints, doubles, bytes   vectors; of doubles DOUBLES
 *     flags                          one for each element of a group
 *     load, load_ints, store, store_ints, stream     vectors from and to memory, misaligned or not;
 *                                                    stream: aligned, past the caches
 *     fence                          after the last stream
 *     all, all_ints                  the same number in all lanes
 *     add, sub, mul, divide, root    of floats
 *     magnitude, bits_apart          the bits of |x|; the bits of x minus the bits of y
 *     reaching                       flags of 4 vectors: whose magnitude is above `below`
 *     word_of                        flags of a word as bits
 *     lanes_above                    lanes of a vector whose number is above another, as bits
 *     far_lanes                      lanes whose difference does not fit into a byte, as bits
 *     compress, compress_ints        the lanes of a mask, moved to the front
 *     keep_lanes                     0 in all lanes but those of a mask
 *     saturate                       4 vectors of differences, as bytes
 *     any_far                        whether one of the bytes is TW__NEAR_LOW or _HIGH
 *     log_near                       appends the bytes of a word that are not 0; returns which, as bits
 *     append_bits                    appends idx + j for each set bit j of a word
 *     widen                          DOUBLES floats from memory, as doubles
 *     load_doubles, store_doubles, add_doubles, mul_doubles, abs_doubles
 */
#ifndef TW_KERNELS_KERNELS_VECTOR_H
#define TW_KERNELS_KERNELS_VECTOR_H

#include "backend/cpu/kernels_loops.h"
#include "backend/cpu/wire_kernels.h"

enum {
    VECTORS = 4,
    GROUP = VECTORS * WIDTH,
    GROUPS = TW__WORD / GROUP,
    PARTS = TW__LANES / DOUBLES
};

#define ALWAYS_INLINE inline __attribute__((always_inline))

static inline int64_t ones(unsigned mask) {
    return __builtin_popcount(mask);
}

/* Thresholds are compared as signed numbers, so a >= b is a > b - 1: both are below 2^31. */
static inline ints just_below(uint32_t threshold) {
    return all_ints((int32_t)threshold - 1);
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

/* ---- fold ------------------------------------------------------------------------------------ */

/* AdamW's numbers, one in each lane. */
typedef struct adamw_lanes {
    floats beta1, fresh1, beta2, fresh2, rate, root, eps;
} adamw_lanes;

static inline adamw_lanes spread(const tw__adamw *a) {
    return (adamw_lanes){all(a->beta1), all(a->fresh1), all(a->beta2), all(a->fresh2),
                         all(a->rate),  all(a->root),   all(a->eps)};
}

/* The update of a vector; its next moments go past the caches. */
static ALWAYS_INLINE floats update_of(const tw__moment *moment, const void *src,
                                      const adamw_lanes *a, int64_t i) {
    floats g = load(src, i), m = load(moment->m, i), v = load(moment->v, i);
    m = add(mul(a->beta1, m), mul(a->fresh1, g));
    v = add(mul(a->beta2, v), mul(mul(a->fresh2, g), g));
    floats d = add(mul(a->root, root(v)), a->eps);
    floats u = divide(mul(a->rate, m), d);
    stream(moment->next_m + i, m);
    stream(moment->next_v + i, v);
    return add(u, sub(d, d));
}

static void log_far(tw__undo *undo, floats old, ints difference) {
    unsigned far = far_lanes(difference);
    store(undo->far + undo->far_count, compress(old, far));
    undo->far_count += ones(far);
}

/* In nearly all groups all elements are kept. A branch costs less than masks: with masks for every
 * vector 16 elements take 8 cycles of a Zen 4 instead of 6. */
#define ALL_KEPT (~UINT64_C(0) >> (TW__WORD - GROUP))

static inline uint64_t kept_of_group(uint64_t word, int group) {
    return word >> group * GROUP & ALL_KEPT;
}

/* Elements at .. at + GROUP - 1, of which those with a bit in `kept` are kept. moment NULL: src is folded
 * itself. */
static ALWAYS_INLINE bytes fold_group(const void *src, const tw__moment *moment,
                                      const adamw_lanes *a, float *acc, int64_t at, uint64_t kept,
                                      ints below, tw__undo *log, flags *found) {
    floats old[VECTORS], sum[VECTORS];
    ints difference[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        old[v] = load(acc, at + v * WIDTH);
    if (__builtin_expect(kept != ALL_KEPT, 0))
        for (int v = 0; v < VECTORS; v++)
            old[v] = keep_lanes(old[v], (unsigned)(kept >> v * WIDTH));
    for (int v = 0; v < VECTORS; v++, at += WIDTH) {
        floats more = moment != NULL ? update_of(moment, src, a, at) : load(src, at);
        sum[v] = add(old[v], more);
        store(acc + at, sum[v]);
        difference[v] = bits_apart(old[v], sub(sum[v], more));
    }
    bytes near = saturate(difference);
    if (__builtin_expect(any_far(near), 0))
        for (int v = 0; v < VECTORS; v++)
            log_far(log, old[v], difference[v]);
    *found = reaching(sum, below);
    return near;
}

/* Asks for the word that lies 4 KiB ahead, by lines of 64 bytes. Without it one core waits for memory:
 * over 14,728,266 elements the fold took 1.24x to 1.42x the bare pass, and with it 1.13x to 1.17x. Over
 * 1,000,000, which the cache holds, it would cost 6 %. A gradient that was converted or scaled lies in a
 * worker's scratch: then only acc comes earlier. */
static ALWAYS_INLINE void fetch_ahead(const void *src, const float *acc, int64_t i) {
    const char *more = (const char *)src + 4 * i + 4096, *old = (const char *)(acc + i) + 4096;
    for (int line = 0; line < 4 * TW__WORD; line += 64) {
        __builtin_prefetch(old + line, 1);
        __builtin_prefetch(more + line);
    }
}

/* Returns how many elements it did. */
static ALWAYS_INLINE int64_t fold_words(const void *src, const tw__moment *moment,
                                        const adamw_lanes *a, float *acc, int64_t len, int32_t base,
                                        const uint8_t *keep, tw__undo *undo,
                                        tw__collector *collector, int uncached) {
    const ints below = just_below(collector->threshold);
    int32_t *out = collector->found.idx;
    int64_t first = collector->found.count, count = first, i = 0;
    tw__undo log = *undo; /* in registers: nothing in the loop can point to it */
    for (; i + TW__WORD <= len; i += TW__WORD) {
        bytes near[GROUPS];
        flags found[GROUPS];
        uint64_t kept;
        memcpy(&kept, keep + i / 8, sizeof kept);
        if (uncached)
            fetch_ahead(src, acc, i);
#pragma GCC unroll 4 /* with its rare branches gcc would think it too long */
        for (int g = 0; g < GROUPS; g++)
            near[g] = fold_group(src, moment, a, acc, i + g * GROUP, kept_of_group(kept, g), below,
                                 &log, &found[g]);
        uint64_t lossy = log_near(&log, near);
        memcpy(log.lossy + i / 8, &lossy, sizeof lossy);
        count = append_bits(out, count, base + (int32_t)i, word_of(found));
    }
    *undo = log;
    collector->found.count = count;
    append_values(collector, first, acc, base);
    return i;
}

static void vector_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                        tw__undo *undo, tw__collector *collector) {
    int64_t done = fold_words(src, NULL, NULL, acc, len, base, keep, undo, collector, 0);
    fold_rest(src, acc, len, base, keep, undo, collector, done);
}

static void vector_fold_uncached(const void *src, float *acc, int64_t len, int32_t base,
                                 const uint8_t *keep, tw__undo *undo, tw__collector *collector) {
    int64_t done = fold_words(src, NULL, NULL, acc, len, base, keep, undo, collector, 1);
    fold_rest(src, acc, len, base, keep, undo, collector, done);
}

static void vector_fold_update(const void *src, const tw__moment *moment, const tw__adamw *a,
                               float *acc, int64_t len, int32_t base, const uint8_t *keep,
                               tw__undo *undo, tw__collector *collector) {
    const adamw_lanes lanes = spread(a);
    int64_t done = fold_words(src, moment, &lanes, acc, len, base, keep, undo, collector, 0);
    const tw__moment behind = {moment->m + done, moment->v + done, moment->next_m + done,
                               moment->next_v + done};
    tw__undo rest = *undo;
    fence();
    rest.lossy += done / 8;
    tw__kernels_ref.fold_update((const char *)src + 4 * done, &behind, a, acc + done, len - done,
                                base + (int32_t)done, keep + done / 8, &rest, collector);
    undo->near_count = rest.near_count;
    undo->far_count = rest.far_count;
}

/* ---- the others ------------------------------------------------------------------------------ */

static void vector_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    const ints below = just_below(collector->threshold);
    int64_t first = collector->found.count, count = first, i = 0;
    for (; i + TW__WORD <= len; i += TW__WORD) {
        flags found[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            floats x[VECTORS];
            for (int v = 0; v < VECTORS; v++)
                x[v] = load(src, i + g * GROUP + v * WIDTH);
            found[g] = reaching(x, below);
        }
        count = append_bits(collector->found.idx, count, base + (int32_t)i, word_of(found));
    }
    collector->found.count = count;
    append_values(collector, first, src, base);
    tw__kernels_ref.scan((const char *)src + 4 * i, len - i, base + (int32_t)i, collector);
}

static void vector_moments(const void *src, int64_t len, tw__moments *m) {
    doubles sum[PARTS], square[PARTS], magnitudes[PARTS];
    for (int part = 0; part < PARTS; part++) {
        sum[part] = load_doubles(m->sum + part * DOUBLES);
        square[part] = load_doubles(m->square + part * DOUBLES);
        magnitudes[part] = load_doubles(m->magnitude + part * DOUBLES);
    }
    int64_t i = 0;
    for (; i + TW__LANES <= len; i += TW__LANES)
        for (int part = 0; part < PARTS; part++) {
            doubles x = widen(src, i + part * DOUBLES);
            sum[part] = add_doubles(sum[part], x);
            square[part] = add_doubles(square[part], mul_doubles(x, x));
            magnitudes[part] = add_doubles(magnitudes[part], abs_doubles(x));
        }
    for (int part = 0; part < PARTS; part++) {
        store_doubles(m->sum + part * DOUBLES, sum[part]);
        store_doubles(m->square + part * DOUBLES, square[part]);
        store_doubles(m->magnitude + part * DOUBLES, magnitudes[part]);
    }
    tw__kernels_ref.moments((const char *)src + 4 * i, len - i, m);
}

/* The last vector may write a few more than cap. */
static int64_t vector_between(const float *val, int64_t len, uint32_t low, uint32_t high,
                              uint32_t *out, int64_t cap, int64_t *above) {
    const ints below = just_below(low), highs = all_ints((int32_t)high);
    int64_t count = 0, over = 0, i = 0;
    for (; i + WIDTH <= len && count < cap; i += WIDTH) {
        ints bits = magnitude(load(val, i));
        unsigned higher = lanes_above(bits, highs);
        unsigned within = lanes_above(bits, below) & ~higher;
        store_ints(out + count, compress_ints(bits, within));
        count += ones(within);
        over += ones(higher);
    }
    *above = 0;
    if (count < cap)
        count +=
            tw__kernels_ref.between(val + i, len - i, low, high, out + count, cap - count, above);
    *above += over;
    return count < cap ? count : cap;
}

static void vector_pick(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                        tw__entries *out) {
    const ints below = just_below(threshold);
    int64_t count = out->count, i = 0;
    for (; i + WIDTH <= len; i += WIDTH) {
        floats x = load(val, i);
        unsigned picked = lanes_above(magnitude(x), below);
        store_ints(out->idx + count, compress_ints(load_ints(idx, i), picked));
        store(out->val + count, compress(x, picked));
        count += ones(picked);
    }
    out->count = count;
    tw__kernels_ref.pick(idx + i, val + i, len - i, threshold, out);
}

/* What all vector units take from here. */
#define TW__VECTOR_KERNELS                                                                         \
    TW__LOOPS, .fold = vector_fold, .fold_uncached = vector_fold_uncached,                         \
               .fold_update = vector_fold_update, .scan = vector_scan, .moments = vector_moments,  \
               .between = vector_between, .pick = vector_pick

#endif
