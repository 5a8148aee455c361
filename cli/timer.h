/* timer.h - the clock of the benchmarks: microseconds that never run backwards */
#ifndef CLI_TIMER_H
#define CLI_TIMER_H

#include <time.h>

static inline double timer_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

#endif
