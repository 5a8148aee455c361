/* kernels.h - the loops over n, one table per instruction set
 *
 * Speed lives here and only here; what the numbers mean is the business of the callers. Every
 * table has the same functions with bitwise the same results: the sums are defined for 16 lanes,
 * whatever the width of the machine's vectors. kernels_ref.c says what each function does.
 * kernels_vector.h has them for vector units, kernels_plain.c for all other CPUs.
 *
 * Magnitudes are compared as integers: for floats x, y >= 0 the bit patterns order as the values
 * do, subnormals included, infinity and NaN above all numbers. So "magnitude bits" are the bits
 * of |x|, a threshold is such a number, and NaN or infinity passes every threshold.
 *
 * Pointers `src` may be the caller's memory, misaligned by any number of bytes. */
#ifndef TW_KERNELS_KERNELS_H
#define TW_KERNELS_KERNELS_H

#include "backend/adamw.h"
#include "backend/host_device.h"

#include <stdint.h>
#include <string.h>

#define TW__LANES 16
#define TW__MAGNITUDE_MASK 0x7fffffffu
#define TW__INFINITY_BITS 0x7f800000u

/* Free places that an append may write behind its last entry: vectors are stored whole. */
#define TW__SLACK TW__LANES
#define TW__WORD 64 /* elements whose bits a kernel looks at together */

TW__HOST_DEVICE static inline uint32_t tw__to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TW__HOST_DEVICE static inline uint32_t tw__magnitude(float x) {
    return tw__to_bits(x) & TW__MAGNITUDE_MASK;
}

/* A magnitude as a threshold: at least 1, since zeros are never selected. */
static inline uint32_t tw__threshold(float magnitude) {
    uint32_t bits = tw__magnitude(magnitude);
    return bits < 1 ? 1 : bits;
}

TW__HOST_DEVICE static inline float tw__from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Entries in the making. Room for cap + TW__SLACK. */
typedef struct tw__entries {
    int32_t *idx;
    float *val;
    int64_t count;
    int64_t cap;
} tw__entries;

/* What a pass collects: entries with magnitude bits >= threshold, and the largest of these. */
typedef struct tw__collector {
    tw__entries found;
    uint32_t threshold;
    uint32_t max_bits;
} tw__collector;

/* What must be remembered to take acc = e + g back. Mostly e == (e + g) - g. Where rounding makes
 * this false, a bit is set and the bits of e minus those of (e + g) - g are appended as one byte;
 * where even that is too large for a byte, as it is when e is much smaller than g, the byte says so
 * and e itself is appended. */
typedef struct tw__undo {
    uint8_t *lossy; /* [len/8], bit i%8 of byte i/8 */
    int8_t *near;   /* [near_count] differences; TW__NEAR_LOW or _HIGH: see far */
    float *far;     /* [far_count] old values; both have room for len + TW__LANES */
    int64_t near_count;
    int64_t far_count;
} tw__undo;

/* A difference is kept as a byte if it lies strictly between these; vector code saturates to one
 * of them, so either means that the value is in `far`. */
#define TW__NEAR_LOW (-128)
#define TW__NEAR_HIGH 127

/* Sums per lane: element i of a block goes to lane i % TW__LANES. */
typedef struct tw__moments {
    double sum[TW__LANES];
    double square[TW__LANES];
    double magnitude[TW__LANES];
} tw__moments;

/* AdamW's moments of some elements: before the step, and after it. */
typedef struct tw__moment {
    const float *m, *v;
    float *next_m, *next_v;
} tw__moment;

typedef struct tw__kernels {
    const char *name;

    /* acc[i] = (keep bit i ? acc[i] : 0) + src[i]; log for undo; collect. base is the index of
     * element 0; the collector has room for len entries. */
    void (*fold)(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                 tw__undo *undo, tw__collector *collector);
    /* The same, for src and acc that no cache holds. */
    void (*fold_uncached)(const void *src, float *acc, int64_t len, int32_t base,
                          const uint8_t *keep, tw__undo *undo, tw__collector *collector);
    /* fold with u of adamw.h, from moment and src, in place of src; the new m and v go to next, past the
     * caches. next is aligned to TW__ALIGNMENT. */
    void (*fold_update)(const void *src, const tw__moment *moment, const tw__adamw *a, float *acc,
                        int64_t len, int32_t base, const uint8_t *keep, tw__undo *undo,
                        tw__collector *collector);
    /* acc as before fold, but for what was not kept; from the same src. Reads the log from
     * near_count and far_count on and moves these. */
    void (*unfold)(const void *src, float *acc, int64_t len, tw__undo *undo);
    /* Collect from src as it is; room as in fold. */
    void (*scan)(const void *src, int64_t len, int32_t base, tw__collector *collector);

    /* Zeros, past the caches where there are many: nobody reads them soon. */
    void (*clear)(void *dst, int64_t bytes);
    /* sum[i] += src[i] */
    void (*add)(void *sum, const void *src, int64_t len);
    /* dst[i] = (float)src[i], exactly */
    void (*widen_f16)(float *dst, const void *src, int64_t len);
    void (*widen_bf16)(float *dst, const void *src, int64_t len);
    /* dst[i] = factor * src[i]; dst == src is fine */
    void (*scale)(float *dst, const void *src, float factor, int64_t len);
    /* dst[i] = factor * old[i] + src[i], rounded twice */
    void (*decay)(float *dst, const float *old, const void *src, float factor, int64_t len);
    /* update[i] = u of adamw.h, from m[i], v[i] and src[i]; the new m and v go to next. update ==
     * src is fine. For a few elements, or when a step is undone: fold_update is the fast one. */
    void (*adamw)(float *update, const tw__moment *moment, const void *src, const tw__adamw *a,
                  int64_t len);
    /* Add len elements to the sums. */
    void (*moments)(const void *src, int64_t len, tw__moments *moments);

    /* Number of elements with magnitude bits >= threshold. */
    int64_t (*count)(const void *src, int64_t len, uint32_t threshold);
    /* Magnitude bits of val[] in low .. high to out, in order; stops after cap. Returns how many;
     * *above gets the number above high. Room for cap + TW__SLACK. */
    int64_t (*between)(const float *val, int64_t len, uint32_t low, uint32_t high, uint32_t *out,
                       int64_t cap, int64_t *above);
    /* Append the entries with magnitude bits >= threshold to out, which has room for them. */
    void (*pick)(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                 tw__entries *out);

    const struct tw__wire_kernels *wire; /* of the wire formats: wire_kernels.h */
} tw__kernels;

extern const tw__kernels tw__kernels_ref;
extern const tw__kernels tw__kernels_plain; /* the same results, faster */
/* To be called only on CPUs that have the instructions. */
const tw__kernels *tw__kernels_neon(void);
const tw__kernels *tw__kernels_avx2(void);
const tw__kernels *tw__kernels_avx512(void);

/* The fastest usable table, or the one that THINWIRE_KERNELS names.
 * Errors: TW_ERR_NAME when it names none that is usable here. */
int tw__kernels_choose(const tw__kernels **kernels);

#endif
