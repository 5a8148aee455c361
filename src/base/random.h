/* random.h - random numbers as a function of key and counter
 *
 * No state: draw i under a key is the same on every machine and in any order. The mixing is that of
 * splitmix64 (Steele, Lea and Flood, 2014). */
#ifndef TW_BASE_RANDOM_H
#define TW_BASE_RANDOM_H

#include <stdint.h>

static inline uint64_t tw__random(uint64_t key, uint64_t counter) {
    uint64_t x = key + (counter + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Below `bound` (< 2^32), by multiplication; the bias is less than 2^-31. */
static inline uint64_t tw__random_below(uint64_t key, uint64_t counter, uint64_t bound) {
    return ((tw__random(key, counter) >> 32) * bound) >> 32;
}

#endif
