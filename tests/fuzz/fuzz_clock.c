/* fuzz_clock.c - time that passes only when a fuzz target says so; see fuzz.h */
#include "fuzz.h"

#include "base/clock.h"

#include <time.h>

int64_t fuzz_now;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __real_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    if (fuzz_now == 0 || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    fuzz_now += 100;
    *time = (struct timespec){(time_t)(fuzz_now / TW__SECOND), (long)(fuzz_now % TW__SECOND)};
    return 0;
}
