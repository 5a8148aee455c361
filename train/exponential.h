/* exponential.h - e^x for loops that compilers can vectorise, the same bits with every C library
 *
 * float: x = n ln 2 + r with |r| <= ln(2)/2, e^r by its series up to r^7 / 7! (the rest is below
 * 6e-9 of the result), times 2^n by adding n to the exponent. Within 2 units in the last place.
 * Below -87 the result is held at e^-87 = 1.6e-38, above 88 at e^88; NaN gives NaN. double: the C
 * library's.
 */
#ifndef TRAIN_EXPONENTIAL_H
#define TRAIN_EXPONENTIAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "real.h"

static inline real exponential(real x) {
#ifdef TRAIN_DOUBLE
    return exp(x);
#else
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float rounder = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float shifted = x * 1.44269504f + rounder;
    float n = shifted - rounder;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts, the first exact */
    float series = 1.0f / 5040.0f;
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = (series * r) * r + r + 1.0f;
    uint32_t bits, power;
    memcpy(&bits, &series, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 23; /* the low bits of `shifted` are n */
    memcpy(&series, &bits, sizeof series);
    return x == x ? series : x;
#endif
}

#endif
