/* wire_numbers.h - the arithmetic of the wire formats, one value or block at a time
 *
 * The vector loops of the CPU and the threads of a device are made of these: the bytes are an
 * agreement between ranks, so there is one definition. Every operation is rounded for itself. */
#ifndef TW_KERNELS_WIRE_NUMBERS_H
#define TW_KERNELS_WIRE_NUMBERS_H

#include "backend/cpu/kernels.h"

#define TW__LARGEST_F16 0x7bffu
#define TW__LARGEST_BF16 0x7f7fu
#define TW__SMALLEST_BF16 0x0080u /* of the normal ones: 2^-126 */

/* ---- Values of 16 bits ---------------------------------------------------------------------- */

/* bits / 2^drop, to nearest, ties to even. */
TW__HOST_DEVICE static inline uint32_t tw__round_bits(uint32_t bits, int drop) {
    return (bits + (1u << (drop - 1)) - 1 + (bits >> drop & 1)) >> drop;
}

TW__HOST_DEVICE static inline uint32_t tw__bf16_of(uint32_t magnitude) {
    uint32_t code = tw__round_bits(magnitude, 16);
    return code < TW__LARGEST_BF16 ? code : TW__LARGEST_BF16;
}

/* Exponents count from 15 instead of 127. Numbers below 2^-14 are multiples of 2^-24, as are the
 * floats from 0.5 to 1: adding 0.5 rounds to them. Chosen by a mask, since compilers do not make
 * vector code of an addition that might not happen. */
TW__HOST_DEVICE static inline uint32_t tw__f16_of(uint32_t magnitude) {
    uint32_t normal = tw__round_bits(magnitude, 13) - (112u << 10);
    uint32_t tiny = tw__to_bits(tw__from_bits(magnitude) + 0.5f) - tw__to_bits(0.5f);
    uint32_t is_tiny = 0u - (uint32_t)(magnitude < tw__to_bits(0x1p-14f));
    uint32_t code = (tiny & is_tiny) | (normal & ~is_tiny);
    return code < TW__LARGEST_F16 ? code : TW__LARGEST_F16;
}

TW__HOST_DEVICE static inline uint32_t tw__sign_of_16(float x) {
    return tw__to_bits(x) >> 16 & 0x8000u;
}

TW__HOST_DEVICE static inline float tw__from_bf16(uint32_t code) {
    return tw__from_bits(code << 16);
}

/* binary16 has 5 exponent and 10 mantissa bits, and an exponent that counts from 15, not 127. Subnormal
 * ones are multiples of 2^-24; no float32 is subnormal here, so that flushing modes do not matter. */
TW__HOST_DEVICE static inline float tw__from_f16(uint32_t half) {
    uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t is_tiny = 0u - (uint32_t)(magnitude < 0x0400u);
    uint32_t is_huge = 0u - (uint32_t)(magnitude > TW__LARGEST_F16); /* infinity or NaN */
    uint32_t normal = (magnitude << 13) + (112u << 23) + (is_huge & 112u << 23);
    uint32_t tiny = tw__to_bits((float)(int32_t)magnitude * 0x1p-24f);
    return tw__from_bits(sign | (tiny & is_tiny) | (normal & ~is_tiny));
}

/* ---- Values of 8, 4 and 2 bits -------------------------------------------------------------- */

/* The magnitudes that a block can express: base + level * step, level = 0 .. top. bf16, so that
 * level * step is exact and a fused multiply-add gives the same as two operations. */
typedef struct tw__levels {
    uint16_t base;
    uint16_t step;
} tw__levels;

/* The largest level of codes of so many bits, of which one is the sign. */
TW__HOST_DEVICE static inline int tw__top_level(int bits) {
    return (1 << (bits - 1)) - 1;
}

/* Whether the largest magnitude is finite. */
TW__HOST_DEVICE static inline int tw__levels_fit(tw__levels levels, int top) {
    float largest = tw__from_bf16(levels.base) + (float)top * tw__from_bf16(levels.step);
    return tw__magnitude(largest) < TW__INFINITY_BITS;
}

/* A step that can be divided by, and no infinity: rounding up may have overshot by one unit. */
TW__HOST_DEVICE static inline tw__levels tw__levels_settle(tw__levels levels, int top) {
    if (levels.base < TW__SMALLEST_BF16)
        levels.base = 0;
    if (levels.step < TW__SMALLEST_BF16)
        levels.step = TW__SMALLEST_BF16;
    if (!tw__levels_fit(levels, top))
        levels.step--;
    return levels;
}

/* From a block's smallest magnitude to its largest: base is rounded down and step up. Selected
 * values are all alike in magnitude; levels from 0 on would go unused. */
TW__HOST_DEVICE static inline tw__levels tw__levels_between(uint32_t least, uint32_t most,
                                                            int top) {
    tw__levels levels;
    levels.base = (uint16_t)(least >> 16);
    float range = tw__from_bits(most) - tw__from_bf16(levels.base);
    levels.step = (uint16_t)((tw__to_bits(range / (float)top) + 0xffffu) >> 16);
    return tw__levels_settle(levels, top);
}

/* Sums of the magnitudes up to a border and of those above it, and how many are above. */
typedef struct tw__shares {
    double small;
    double large;
    int nlarge;
} tw__shares;

/* Two levels: the mean of a block's magnitudes up to the mean, and of those above. Means lose
 * least, and never more than there is: the squares of what remains sum to less than those of the
 * values. The best border for Gaussian tails, 1.6 times as far from the least magnitude, would leave
 * 4 % less: not worth looking for the least. */
TW__HOST_DEVICE static inline tw__levels tw__levels_of_means(tw__shares shares, int count) {
    tw__levels levels;
    float low = (float)(shares.small / (count - shares.nlarge)); /* the least is never above */
    levels.base = (uint16_t)tw__bf16_of(tw__to_bits(low));
    levels.step = 0;
    if (shares.nlarge > 0) {
        float range = (float)(shares.large / shares.nlarge) - tw__from_bf16(levels.base);
        levels.step = (uint16_t)(range > 0.0f ? tw__bf16_of(tw__to_bits(range)) : 0);
    }
    return tw__levels_settle(levels, 1);
}

/* The nearest level, with the sign as the top bit of a code, and what a code says. */
TW__HOST_DEVICE static inline uint32_t tw__code_of(float value, float base, float step, int bits) {
    const float top = (float)tw__top_level(bits);
    float level = (tw__from_bits(tw__magnitude(value)) - base) / step;
    level = level > 0.0f ? level : 0.0f;
    level = level < top ? level : top;
    uint32_t sign = tw__to_bits(value) >> 31;
    return sign << (bits - 1) | (uint32_t)(int32_t)(level + 0.5f);
}

TW__HOST_DEVICE static inline float tw__coded_value(uint32_t code, float base, float step,
                                                    int bits) {
    const uint32_t sign = 1u << (bits - 1);
    float magnitude = base + (float)(int32_t)(code & (sign - 1)) * step;
    return tw__from_bits(tw__to_bits(magnitude) ^ (code & sign) << (32 - bits));
}

#endif
