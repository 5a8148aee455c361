/* allocations.h - counts what a test's program allocates, and lets a call fail
 *
 * For tests with COUNT_ALLOCATIONS in their CMakeLists.txt: the linker then puts the functions of
 * allocations.c between the program, the library included, and the C library.
 */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include <stdatomic.h>
#include <stdint.h>

/* Of all threads, since the test set them to 0. */
extern _Atomic int64_t allocation_calls, allocation_bytes;

/* This thread's call that fails, from 1; 0: none. Counts down: 0 afterwards says that it failed. */
extern _Thread_local int64_t allocation_fails_in;

#endif
