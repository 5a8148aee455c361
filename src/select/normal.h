/* normal.h - the threshold that a normal distribution leaves a given share above
 *
 * Written in plain arithmetic, without the C library's erfc and exp: CPU and device then agree in
 * every bit, whatever libraries they come with. Good to about 12 digits, of which a float needs 8.
 */
#ifndef TW_SELECT_NORMAL_H
#define TW_SELECT_NORMAL_H

#include "backend/host_device.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp(-y) for y >= 0: 2^-m times a series in what is left of y, at most ln(2)/2. */
TW__HOST_DEVICE static inline double tw__exp_minus(double y) {
    if (y > 740.0)
        return 0.0;
    int m = (int)(y * 1.4426950408889634 + 0.5);
    double rest = (double)m * 0.6931471803691238 - y; /* ln(2) in two parts: the first is exact */
    rest += (double)m * 1.9082149292705877e-10;
    double term = 1.0, sum = 1.0;
    TW__UNROLL
    for (int i = 1; i <= 15; i++) {
        term *= rest * (1.0 / (double)i);
        sum += term;
    }
    return ldexp(sum, -m);
}

/* erfc(x) for x >= 0: below 2 the series of erf, whose terms are all positive; above, the continued
 * fraction x + 1/2 / (x + 1 / (x + 3/2 / (x + 2 / ...))), as a quotient of two recurrences, which
 * overflow where x is 65000. */
TW__HOST_DEVICE static inline double tw__erfc_positive(double x) {
    if (x > 28.0)
        return 0.0;                                          /* less than any double */
    double bell = tw__exp_minus(x * x) * 0.5641895835477563; /* 1/sqrt(pi) */
    if (x < 2.0) {
        double term = x, sum = x;
        TW__UNROLL
        for (int i = 1; i <= 48; i++) {
            term *= 2.0 * x * x * (1.0 / (double)(2 * i + 1));
            sum += term;
        }
        return 1.0 - 2.0 * bell * sum;
    }
    double above = x, above_before = 1.0, below = 1.0, below_before = 0.0;
    for (int i = 1; i <= 64; i++) {
        double half = 0.5 * (double)i;
        double next_above = x * above + half * above_before;
        double next_below = x * below + half * below_before;
        above_before = above;
        below_before = below;
        above = next_above;
        below = next_below;
    }
    return bell * below / above;
}

TW__HOST_DEVICE static inline double tw__erfc(double x) {
    return x < 0.0 ? 2.0 - tw__erfc_positive(-x) : tw__erfc_positive(x);
}

/* The share of a normal distribution whose magnitude is t or more. */
TW__HOST_DEVICE static inline double tw__normal_tails(float t, double mean, double deviation) {
    double unit = deviation * 1.4142135623730951;
    return 0.5 * (tw__erfc(((double)t - mean) / unit) + tw__erfc(((double)t + mean) / unit));
}

TW__HOST_DEVICE static inline float tw__normal_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

typedef struct tw__normal {
    double mean, variance;
    double share; /* to be left above the threshold */
} tw__normal;

/* From sums over n numbers. */
TW__HOST_DEVICE static inline tw__normal tw__normal_from(double sum, double square, double n,
                                                         double k) {
    double mean = sum / n;
    tw__normal normal = {mean, square / n - mean * mean, k / n};
    return normal;
}

/* Whether the float of these bits leaves more than the share above it; without variance, whether it
 * is below the mean's magnitude. */
TW__HOST_DEVICE static inline int tw__normal_is_low(const tw__normal *d, uint32_t bits) {
    float t = tw__normal_float(bits);
    if (d->variance > 0.0)
        return tw__normal_tails(t, d->mean, sqrt(d->variance)) > d->share;
    return (double)t < fabs(d->mean);
}

/* The smallest float that is not low lies above the bits LOW, up to HIGH. The tails differ by a
 * millionth from one float to the next, so any search finds the same one. */
#define TW__NORMAL_LOW 0u
#define TW__NORMAL_HIGH 0x7f7fffffu

#endif
