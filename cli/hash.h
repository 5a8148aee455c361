/* hash.h - a fingerprint of results, to compare runs, ranks and transports */
#ifndef CLI_HASH_H
#define CLI_HASH_H

#include <stdint.h>
#include <string.h>

#include "random_bits.h"

/* values[n], bit for bit, into a hash that may hold others already. */
static inline uint64_t hash_floats(const float *values, int64_t n, uint64_t hash) {
    for (int64_t i = 0; i < n; i += 2) {
        uint64_t word = 0;
        memcpy(&word, values + i, (i + 1 < n ? 2 : 1) * sizeof *values);
        hash = (hash ^ word) * GOLDEN_GAMMA;
        hash ^= hash >> 32;
    }
    return hash;
}

#endif
