/* vector.h - loops that are worth compiling for wider registers, with the same bits at any width
 *
 * VECTOR before a function: GCC makes an AVX-512, an AVX2 and a plain version of it, and the loader
 * picks. None of them may contract or reorder arithmetic (-ffp-contract=off, no fast-math), so all
 * give the same bits. Loops run over channels or rows of memory with independent lanes; sums are
 * kept per lane, never across lanes. Sanitizers start too late for the loader's choice: plain then.
 */
#ifndef TRAIN_VECTOR_H
#define TRAIN_VECTOR_H

#include <math.h>
#include <string.h>

#include "model.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default"), noinline))
#else
#define VECTOR
#endif

/* Before a loop whose lanes are independent, if pointers hide that from the compiler. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* sum[n] += x[n], which do not overlap; x[n] *= factor. */
void vector_add(real *restrict sum, const real *restrict x, int64_t n);
void vector_scale(real *x, real factor, int64_t n);

enum { LANES = 8 }; /* element i goes to lane i % 8; lanes are added in a fixed order at the end */

/* Sum of x[n] y[n], or of x[n] where y is NULL. */
static inline double lanes_dot(const real *x, const real *y, int64_t n) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (y ? (double)y[i + j] : 1.0);
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j] * (y ? (double)y[i + j] : 1.0);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static inline double lanes_sum(const real *x, int64_t n) {
    return lanes_dot(x, NULL, n);
}

/* The same bits with every C library. float: x = n ln 2 + r with |r| <= ln(2)/2, e^r by its series
 * up to r^7 / 7! (the rest is below 6e-9 of the result), times 2^n by adding n to the exponent.
 * Within 2 units in the last place. Below -87 the result is held at e^-87 = 1.6e-38, above 88 at
 * e^88; NaN gives NaN. double: the C library's. */
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
