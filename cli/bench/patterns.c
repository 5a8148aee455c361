/* patterns.c - makes the gradients that patterns.h describes
 *
 * Everything is a function of counters. The k indices of a support are the first k numbers of a
 * pseudo-random permutation of 0 .. n-1, so that none comes twice and none has to be remembered.
 * The permutation is one of 2^b >= n numbers, made of steps that can each be undone (add, multiply
 * by an odd number, xor with the own upper half); numbers past n are sent through it again, which
 * ends, as the cycle leads back to where it began.
 */
#include "bench/patterns.h"

#include <assert.h>
#include <stddef.h>

#include "cli.h"

#define UNIT 0x1p-10f
#define LARGE_MIN 500 /* units */
#define NOISE_MAX 3   /* units */
#define REGION_STAY 8 /* steps until the one region jumps */
#define DRIFT_LIFE 20 /* steps that an index of a drifting support stays: 5 % are new each step */

/* What the hashes of a gradient are for, so that they have nothing in common. */
enum { FOR_NOISE = 1, FOR_LARGE, FOR_SUPPORT, FOR_REGION };

static uint64_t key_of(const pattern_spec *made, int purpose, int64_t step, int64_t rank) {
    uint64_t key = pattern_random(made->seed, (uint64_t)purpose);
    return pattern_random(pattern_random(key, (uint64_t)step), (uint64_t)rank);
}

/* The number at position j of a permutation of 0 .. n-1; j < n. */
static int64_t permuted(uint64_t key, int64_t n, int64_t j) {
    assert(0 <= j && j < n);
    int bits = 0;
    while (INT64_C(1) << bits < n)
        bits++;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    int half = (bits + 1) / 2;
    uint64_t x = (uint64_t)j;
    do {
        for (int turn = 0; turn < 3; turn++) {
            x = ((x + (key >> (20 * turn))) * UINT64_C(0x9e3779b97f4a7c15)) & mask;
            x ^= x >> half;
        }
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* The patterns: where a rank has its j-th large value. */
static int64_t random_index(const pattern_spec *made, int rank, int64_t step, int64_t j) {
    return permuted(key_of(made, FOR_SUPPORT, step, rank), made->n, j);
}

static int64_t identical_index(const pattern_spec *made, int rank, int64_t step, int64_t j) {
    (void)rank;
    return permuted(key_of(made, FOR_SUPPORT, step, 0), made->n, j);
}

/* As far as n goes: with ranks * k > n some must meet. */
static int64_t disjoint_index(const pattern_spec *made, int rank, int64_t step, int64_t j) {
    return permuted(key_of(made, FOR_SUPPORT, step, 0), made->n, (rank * made->k + j) % made->n);
}

static int64_t region_index(const pattern_spec *made, int rank, int64_t step, int64_t j) {
    int64_t width = 2 * made->k < made->n ? 2 * made->k : made->n;
    uint64_t random = key_of(made, FOR_REGION, step / REGION_STAY, 0);
    int64_t first = (int64_t)(random % (uint64_t)(made->n - width + 1));
    return first + permuted(key_of(made, FOR_SUPPORT, step, rank), width, j);
}

/* A slot gets a new index every DRIFT_LIFE steps, each slot in another step. A few may coincide. */
static int64_t drift_index(const pattern_spec *made, int rank, int64_t step, int64_t j) {
    int64_t generation = (step + j % DRIFT_LIFE) / DRIFT_LIFE;
    return permuted(key_of(made, FOR_SUPPORT, generation, rank), made->n, j);
}

static const struct {
    const char *name;
    int64_t (*index)(const pattern_spec *made, int rank, int64_t step, int64_t j);
} kinds[] = {
    {"random", random_index},       /* every rank and step other random indices */
    {"identical", identical_index}, /* the same random indices on all ranks */
    {"disjoint", disjoint_index},   /* random indices, no two ranks share one */
    {"oneregion", region_index},    /* all within 2k neighbours, which jump every 8 steps */
    {"drift", drift_index},         /* random indices of which 5 % are new in each step */
};

const char *pattern_name(int position) {
    return position < COUNT_OF(kinds) ? kinds[position].name : NULL;
}

/* One hash serves eight neighbours. */
static void fill_noise(uint64_t key, int64_t begin, int64_t end, float *values) {
    for (int64_t i = begin; i < end;) {
        uint64_t bits = tw__random(key, (uint64_t)(i / 8) - 1) >> (8 * (i % 8));
        int64_t stop = i / 8 * 8 + 8 < end ? i / 8 * 8 + 8 : end;
        for (; i < stop; i++, bits >>= 8) {
            int units = (int)((bits & 0xff) * (2 * NOISE_MAX + 1) >> 8) - NOISE_MAX;
            values[i - begin] = (float)units * UNIT;
        }
    }
}

static float large_value(uint64_t key, int64_t i) {
    uint64_t bits = pattern_random(key, (uint64_t)i);
    int units = LARGE_MIN + (int)((bits >> 8) % (PATTERN_LARGE_MAX - LARGE_MIN + 1));
    return (float)(bits & 1 ? units : -units) * UNIT;
}

void pattern_fill(const pattern_spec *made, int rank, int64_t step, int64_t begin, int64_t end,
                  float *values) {
    assert(made->kind >= 0 && made->kind < COUNT_OF(kinds));
    assert(made->k <= made->n && 0 <= begin && begin <= end && end <= made->n);
    fill_noise(key_of(made, FOR_NOISE, step, rank), begin, end, values);
    uint64_t key = key_of(made, FOR_LARGE, step, rank);
    for (int64_t j = 0; j < made->k; j++) {
        int64_t i = kinds[made->kind].index(made, rank, step, j);
        if (i >= begin && i < end)
            values[i - begin] = large_value(key, i);
    }
}
