/* lanes.h - sums along a row in eight lanes: fast, and the same bits at any vector width
 *
 * Element i goes to lane i % 8; the lanes are added in a fixed order at the end.
 */
#ifndef TRAIN_LANES_H
#define TRAIN_LANES_H

#include <stdint.h>

#include "real.h"

enum { LANES = 8 };

static inline double lanes_total(const double lane[LANES]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Sum of x[n]. */
static inline double lanes_sum(const real *x, int64_t n) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j];
    return lanes_total(lane);
}

/* Sum of x[n] y[n]. */
static inline double lanes_dot(const real *x, const real *y, int64_t n) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (double)y[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j] * (double)y[i + j];
    return lanes_total(lane);
}

#endif
