/* clock.h - monotonic time for deadlines and durations, and CPU time */
#ifndef TW_BASE_CLOCK_H
#define TW_BASE_CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#define TW__SECOND INT64_C(1000000000)

/* Nanoseconds since an arbitrary start. */
static inline int64_t tw__clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * TW__SECOND + now.tv_nsec;
}

/* The same in seconds. */
static inline double tw__seconds(void) {
    return 1e-9 * (double)tw__clock();
}

/* Between two looks at something that cannot be slept for. waited: ns since the first look. Most such
 * waits last microseconds, a pass of a device over 133 million elements a millisecond; a longer one shall
 * not keep a core busy. */
static inline void tw__relax(int64_t waited) {
    const struct timespec moment = {0, 25000};
    if (waited < 2 * TW__SECOND / 1000)
        (void)sched_yield();
    else
        (void)nanosleep(&moment, NULL);
}

/* Seconds of CPU time that this thread has used. */
static inline double tw__cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

#endif
