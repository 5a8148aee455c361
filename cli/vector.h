/* vector.h - vectors of floats: memory, hashes, bits; medians of measured times
 *
 * Memory is touched and on huge pages where large. Benchmarks compare passes over memory: page
 * faults and scattered small pages would be measured instead.
 */
#ifndef CLI_VECTOR_H
#define CLI_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* count zeroed elements of `size` bytes; free() them. NULL when out of memory. */
void *vector_alloc(int64_t count, size_t size);

/* Bytes that are safe to take, 7/8 of what Linux calls available; no limit where it says none. */
size_t vector_available(void);

/* values[n], bit for bit, into a hash that may hold others already: to compare runs, ranks and
 * transports. */
uint64_t vector_hash(const float *values, int64_t n, uint64_t hash);

/* Of values[count], which get sorted; count is at least 1. A few slow steps do not move it. */
double vector_median(double *values, int64_t count);

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
