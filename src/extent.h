/* extent.h - how a vector is cut, and how much a method may choose
 *
 * Chunks of a fixed size are the unit of work of a thread, and of sums; blocks of these stay in the
 * first-level cache. Neither depends on the number of threads, so nor do the results. */
#ifndef TW_EXTENT_H
#define TW_EXTENT_H

#include "base/both.h"

#include <stdint.h>

#define TW__CHUNK ((int64_t)1 << 16) /* elements; 225 chunks for VGG-16 leave 2 threads even */
#define TW__BLOCK ((int64_t)1 << 11) /* elements; 8 KiB each of g and acc: half of the L1 cache */

/* The threshold methods promise at most this many times k entries. */
#define TW__MOST 4

TW__BOTH static inline int64_t tw__chunks(int64_t n) {
    return (n + TW__CHUNK - 1) / TW__CHUNK;
}

TW__BOTH static inline int64_t tw__at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
