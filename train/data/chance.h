/* chance.h - random numbers and random orders as functions: no state, no tables
 *
 * Numbers are SplitMix64 (Steele, Lea and Flood, 2014) of a key and a counter. An order of n things
 * is a Feistel network (Luby and Rackoff, 1988) on the smallest even number of bits that can count
 * them; results past n are sent through again until they fall inside (cycle walking), fewer than
 * four times on average. So place i of an epoch costs the same at any i, and all of them together
 * hit every thing once.
 */
#ifndef TRAIN_DATA_CHANCE_H
#define TRAIN_DATA_CHANCE_H

#include <stdint.h>

static inline uint64_t chance_bits(uint64_t key, uint64_t counter) {
    uint64_t x = key + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A key of its own for each value under `key`. */
static inline uint64_t chance_key(uint64_t key, uint64_t value) {
    return chance_bits(chance_bits(key, 0) ^ value, 1);
}

/* 0 .. bound-1, for a bound of 1 .. 2^31; biased by 2^-33 at most. */
static inline int64_t chance_below(uint64_t key, uint64_t counter, int64_t bound) {
    return (int64_t)((chance_bits(key, counter) >> 32) * (uint64_t)bound >> 32);
}

enum { FEISTEL_ROUNDS = 6 };

static inline uint64_t chance_feistel(uint64_t key, int half, uint64_t x) {
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) {
        const uint64_t next = left ^ (chance_bits(key, (uint64_t)round << 32 | right) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

/* Which of n things (1 .. 2^62) comes at `place` (0 .. n-1) in the order of this key. */
static inline int64_t chance_order(uint64_t key, int64_t n, int64_t place) {
    int half = 1;
    while ((n - 1) >> (2 * half) != 0)
        half++;
    uint64_t x = (uint64_t)place;
    do
        x = chance_feistel(key, half, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

#endif
