/* random.h - random numbers as a function of key and counter
 *
 * There is no state: number i of a key is the same on every machine and in any order. The mixing is
 * that of splitmix64 (Steele, Lea and Flood, 2014). */
#ifndef TW_BASE_RANDOM_H
#define TW_BASE_RANDOM_H

#include "backend/host_device.h"

#include <stdint.h>

TW__HOST_DEVICE static inline uint64_t tw__random(uint64_t key, uint64_t counter) {
    uint64_t x = key + (counter + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A hash of `hash` and one more value. */
TW__HOST_DEVICE static inline uint64_t tw__mix(uint64_t hash, uint64_t value) {
    return tw__random(hash ^ value, hash);
}

/* A number below `bound` (< 2^31): the upper part of 64 random bits times bound. Its bias is 2^-33
 * at most. */
TW__HOST_DEVICE static inline uint64_t tw__random_below(uint64_t key, uint64_t counter,
                                                        uint64_t bound) {
    uint64_t random = tw__random(key, counter);
    uint64_t low = (random & 0xffffffffu) * bound >> 32;
    return ((random >> 32) * bound + low) >> 32;
}

#endif
