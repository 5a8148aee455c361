/* normal.h - the threshold that a normal distribution leaves a given share above
 *
 * Written in plain arithmetic, without the C library's erfc and exp: CPU and GPU then agree in
 * every bit, whatever libraries they come with. Good to about 12 digits, of which a float needs 8.
 */
#ifndef TW_SELECT_NORMAL_H
#define TW_SELECT_NORMAL_H

#include "base/both.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp(-y) for y >= 0: 2^-m times a series in what is left of y, at most ln(2)/2. */
TW__BOTH static inline double tw__exp_minus(double y) {
    if (y > 740.0)
        return 0.0;
    int m = (int)(y * 1.4426950408889634 + 0.5);
    double rest = (double)m * 0.6931471803691238 - y; /* ln(2) in two parts: the first is exact */
    rest += (double)m * 1.9082149292705877e-10;
    double term = 1.0, sum = 1.0;
    for (int i = 1; i <= 15; i++) {
        term *= rest / (double)i;
        sum += term;
    }
    return ldexp(sum, -m);
}

/* erfc(x) for x >= 0: below 2 the series of erf, whose terms are all positive; above, the continued
 * fraction x + 1/2 / (x + 1 / (x + 3/2 / (x + 2 / ...))), as a quotient of two recurrences. */
TW__BOTH static inline double tw__erfc_positive(double x) {
    double bell = tw__exp_minus(x * x) * 0.5641895835477563; /* 1/sqrt(pi) */
    if (x < 2.0) {
        double term = x, sum = x;
        for (int i = 1; i <= 48; i++) {
            term *= 2.0 * x * x / (double)(2 * i + 1);
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

TW__BOTH static inline double tw__erfc(double x) {
    return x < 0.0 ? 2.0 - tw__erfc_positive(-x) : tw__erfc_positive(x);
}

/* The share of a normal distribution whose magnitude is t or more. */
TW__BOTH static inline double tw__normal_tails(float t, double mean, double deviation) {
    double unit = deviation * 1.4142135623730951;
    return 0.5 * (tw__erfc(((double)t - mean) / unit) + tw__erfc(((double)t + mean) / unit));
}

TW__BOTH static inline float tw__normal_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of the smallest positive float that leaves at most `share` in both tails, from sums over
 * n numbers; without variance, of the mean's magnitude. The tails differ by a millionth from one
 * float to the next, so any search finds the same one. */
TW__BOTH static inline uint32_t tw__normal_threshold(double sum, double square, double n,
                                                     double share) {
    double mean = sum / n, variance = square / n - mean * mean;
    uint32_t low = 0, high = 0x7f7fffffu; /* tails above share at low, not so at high */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        float t = tw__normal_float(middle);
        double tails = variance > 0.0           ? tw__normal_tails(t, mean, sqrt(variance))
                       : (double)t < fabs(mean) ? 1.0
                                                : 0.0;
        if (tails > share)
            low = middle;
        else
            high = middle;
    }
    return high;
}

#endif
