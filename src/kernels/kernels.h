/* kernels.h - the loops over n, one table per instruction set
 *
 * Speed lives here and only here; what the numbers mean is the business of the callers. Every
 * table has the same functions with bitwise the same results: the sums are defined for 16 lanes,
 * whatever the width of the machine's vectors. kernels_ref.c says what each function does; a table
 * for an instruction set starts as a copy of it and overwrites what it does better.
 *
 * Magnitudes are compared as integers: for floats x, y >= 0 the bit patterns order as the values
 * do, subnormals included, infinity and NaN above all numbers. So "magnitude bits" are the bits
 * of |x|, a threshold is such a number, and NaN or infinity passes every threshold.
 *
 * Pointers `src` are the caller's memory and may be misaligned by any number of bytes. */
#ifndef TW_KERNELS_KERNELS_H
#define TW_KERNELS_KERNELS_H

#include <stdint.h>
#include <string.h>

#define TW__LANES 16
#define TW__MAGNITUDE_MASK 0x7fffffffu
#define TW__INFINITY_BITS 0x7f800000u

/* Free places that an append may write behind its last entry: vectors are stored whole. */
#define TW__SLACK 64

static inline uint32_t tw__magnitude(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & TW__MAGNITUDE_MASK;
}

static inline float tw__from_bits(uint32_t bits) {
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

/* What a pass collects: entries with magnitude bits >= threshold, and the largest it met. */
typedef struct tw__collector {
    tw__entries found;
    uint32_t threshold;
    uint32_t max_bits;
} tw__collector;

/* What must be remembered to take acc = e + g back: nearly always e == (e + g) - g; where rounding
 * makes this false, the bit in `lossy` is set and the old e appended to `old`. */
typedef struct tw__undo {
    uint8_t *lossy; /* [len/8], bit i%8 of byte i/8 */
    float *old;     /* [count], room for len + TW__LANES */
    int64_t count;
} tw__undo;

/* Sums per lane: element i of a block goes to lane i % TW__LANES. */
typedef struct tw__moments {
    double sum[TW__LANES];
    double square[TW__LANES];
    double magnitude[TW__LANES];
} tw__moments;

typedef struct tw__kernels {
    const char *name;

    /* acc[i] += src[i]; log for undo; collect. Stops early when the collector is full. Returns
     * the number of elements done: len, or a multiple of 16. base is the index of element 0. */
    int64_t (*fold)(const void *src, float *acc, int64_t len, int32_t base, tw__undo *undo,
                    tw__collector *collector);
    /* acc as before fold, from the same src; takes old values from undo->old[undo->count++]. */
    void (*unfold)(const void *src, float *acc, int64_t len, tw__undo *undo);
    /* Collect from src as it is. Stops and returns like fold. */
    int64_t (*scan)(const void *src, int64_t len, int32_t base, tw__collector *collector);

    /* sum[i] += src[i] */
    void (*add)(void *sum, const void *src, int64_t len);
    /* dst[i] = (float)src[i], exactly */
    void (*widen_f16)(float *dst, const void *src, int64_t len);
    void (*widen_bf16)(float *dst, const void *src, int64_t len);
    /* dst[i] = factor * src[i]; dst == src is fine */
    void (*scale)(float *dst, const void *src, float factor, int64_t len);
    /* dst[i] = factor * old[i] + src[i], rounded twice */
    void (*decay)(float *dst, const float *old, const void *src, float factor, int64_t len);
    /* Add len elements to the sums. */
    void (*moments)(const void *src, int64_t len, tw__moments *moments);

    /* Number of val[] with magnitude bits >= threshold. */
    int64_t (*count)(const float *val, int64_t len, uint32_t threshold);
    /* Magnitude bits of val[] in low .. high to out, in order; stops after cap. Returns how many;
     * *above gets the number above high. Room for cap + TW__SLACK. */
    int64_t (*between)(const float *val, int64_t len, uint32_t low, uint32_t high, uint32_t *out,
                       int64_t cap, int64_t *above);
    /* Append the entries with magnitude bits >= threshold to out, which has room for them. */
    void (*pick)(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                 tw__entries *out);
} tw__kernels;

extern const tw__kernels tw__kernels_ref;
/* To be called only on CPUs that have the instructions. */
const tw__kernels *tw__kernels_avx2(void);
const tw__kernels *tw__kernels_avx512(void);

/* The fastest usable table, or the one that THINWIRE_KERNELS names.
 * Errors: TW_ERR_NAME when it names none that is usable here. */
int tw__kernels_choose(const tw__kernels **kernels);

#endif
