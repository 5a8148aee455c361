/* convert.c - conversions between float32, float16 and bfloat16
 *
 *                sign  exponent (bias)  fraction
 *     float32      1       8 (127)         23
 *     float16      1       5 (15)          10
 *     bfloat16     1       8 (127)          7
 *
 * Rounding to nearest even on the bits: add just under half of the last place kept, plus one if
 * that place is odd, then cut. A carry out of the fraction raises the exponent, which is right.
 */
#include "convert.h"

#include "float_bits.h"

#define F32_INFINITY 0x7f800000u
#define F16_INFINITY 0x7c00u
#define F16_LIMIT 0x47800000u      /* 2^16 as float32: from here on float16 has no exponent left */
#define F16_MIN_NORMAL 0x38800000u /* 2^-14 as float32 */
#define BIAS_STEP (112u << 23)     /* 127 - 15, in the place of float32's exponent */

/* Drop `shift` low bits, round to nearest even. */
static uint32_t round_off(uint32_t bits, int shift) {
    uint32_t odd = (bits >> shift) & 1u;
    return (bits + (1u << (shift - 1)) - 1u + odd) >> shift;
}

static uint32_t f16_magnitude(uint32_t magnitude) {
    if (magnitude > F32_INFINITY)
        return F16_INFINITY | 0x200u; /* quiet NaN */
    if (magnitude >= F16_LIMIT)
        return F16_INFINITY;
    if (magnitude < F16_MIN_NORMAL) {
        /* The last place of 0.5f is 2^-24, the smallest float16: the addition does the rounding. */
        return float_to_bits(float_from_bits(magnitude) + 0.5f) - float_to_bits(0.5f);
    }
    return round_off(magnitude - BIAS_STEP, 13);
}

static uint16_t f16_from_float(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    return (uint16_t)(sign | f16_magnitude(bits & 0x7fffffffu));
}

static float float_from_f16(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t magnitude = (half & 0x7fffu) << 13;
    if ((half & F16_INFINITY) == F16_INFINITY)
        return float_from_bits(sign | F32_INFINITY | magnitude);
    /* Read with float32's bias the number is 2^112 too small, subnormal or not. */
    return float_from_bits(sign | float_to_bits(float_from_bits(magnitude) * 0x1p112f));
}

static uint16_t bf16_from_float(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > F32_INFINITY)
        return (uint16_t)(bits >> 16 | 0x40u); /* stays NaN even if its low bits made it one */
    return (uint16_t)round_off(bits, 16);
}

static float float_from_bf16(uint16_t half) {
    return float_from_bits((uint32_t)half << 16);
}

void convert_to_f16(float *values, uint16_t *half, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        half[i] = f16_from_float(values[i]);
        values[i] = float_from_f16(half[i]);
    }
}

void convert_to_bf16(float *values, uint16_t *half, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        half[i] = bf16_from_float(values[i]);
        values[i] = float_from_bf16(half[i]);
    }
}
