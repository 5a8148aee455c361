/* random_bits.h - reproducible random bits as functions of a seed and a counter
 *
 * SplitMix64 (Steele, Lea and Flood, 2014). No state: any thread can make any value in any order.
 */
#ifndef CLI_RANDOM_BITS_H
#define CLI_RANDOM_BITS_H

#include <stdint.h>

#define GOLDEN_GAMMA UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: SplitMix64's stride */

/* A bijection of 64 bits in which every bit of x moves about half of the result. */
static inline uint64_t random_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A well-mixed function of seed and counter: the random numbers behind everything here. */
static inline uint64_t random_hash(uint64_t seed, uint64_t counter) {
    return random_mix(random_mix(seed + GOLDEN_GAMMA) + counter * GOLDEN_GAMMA);
}

#endif
