/* timer.h - the clock of the benchmarks, which never runs backwards
 *
 * Nanoseconds as an integer, so that a difference is exact; times are reported in microseconds.
 */
#ifndef CLI_TIMER_H
#define CLI_TIMER_H

#include <stdint.h>
#include <time.h>

static inline int64_t timer_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Microseconds since timer_ns() returned begin. */
static inline double timer_us_since(int64_t begin) {
    return (double)(timer_ns() - begin) * 1e-3;
}

#endif
