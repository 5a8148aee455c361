/* extent.h - how a vector is cut, and how much a method may choose
 *
 * Chunks of a fixed size are the unit of work of a thread; blocks of these stay in the first-level
 * cache, and sums are of blocks, then of a chunk's blocks, then of chunks, each in order. None of it
 * depends on the number of threads, so nor do the results. */
#ifndef TW_EXTENT_H
#define TW_EXTENT_H

#include "backend/cpu/kernels.h"

#define TW__CHUNK ((int64_t)1 << 16) /* elements; 225 chunks for VGG-16 leave 2 threads even */
#define TW__BLOCK ((int64_t)1 << 11) /* elements; 8 KiB each of g and acc: half of the L1 cache */

/* The threshold methods promise at most this many times k entries. */
#define TW__MOST 4

/* Exact selection expects at most this many times as many entries to reach a guess a step later. */
#define TW__GROWTH_MOST 8.0

/* How many times k the candidates should be for a method that asks by thresholds: with more than it
 * may choose, they answer for every lower threshold too. Where that were more than `cheap`, the
 * vector is read once more instead. */
TW__HOST_DEVICE static inline float tw__candidates_per_k(int64_t k, int64_t cheap) {
    return (TW__MOST + 1) * k <= cheap ? TW__MOST + 1 : 2;
}

TW__HOST_DEVICE static inline int64_t tw__chunks(int64_t n) {
    return (n + TW__CHUNK - 1) / TW__CHUNK;
}

TW__HOST_DEVICE static inline int64_t tw__at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Elements or candidates looked at where a rank need not be exact: it is right to about 2 %. */
#define TW__SAMPLE 2048

/* Elements of n that are sampled: 0.1 % serve a guess; dgc has a share of its own, others 0. Whole
 * runs of a cache line, and at least one. */
static inline int64_t tw__sample_of(int64_t n, double share) {
    int64_t size = n / 1000 > TW__SAMPLE ? n / 1000 : TW__SAMPLE;
    if (share * (double)n > (double)size)
        size = (int64_t)(share * (double)n);
    size = tw__at_most(size, n) / TW__LANES * TW__LANES;
    return size < TW__LANES ? TW__LANES : size;
}

#endif
