/* patterns.h - gradients of many ranks whose sums are exact, large where a pattern says
 *
 * In every step each rank has k large values, of 500 to 1000 units with either sign, and noise of
 * -3 to 3 units everywhere else; a unit is 2^-10. The pattern decides where the large ones are:
 * what a sparse exchange costs depends on how the supports of the ranks overlap and where they lie.
 *
 * Exactness: float32 holds whole numbers of units up to 2^24 exactly. In the worst case nothing is
 * ever applied to an element that is large on all ranks in all steps: then 1000 * ranks * steps
 * units add up there. So all sums, of residuals too and in any order, are exact while
 * ranks * steps <= PATTERN_EXACT_STEPS, for instance 64 ranks and 262 steps.
 */
#ifndef CLI_PATTERNS_H
#define CLI_PATTERNS_H

#include <stdint.h>

#include "base/random.h"

#define PATTERN_LARGE_MAX 1000 /* units */
#define PATTERN_EXACT_STEPS ((1 << 24) / PATTERN_LARGE_MAX)

/* A well-mixed function of seed and counter. */
static inline uint64_t pattern_random(uint64_t seed, uint64_t counter) {
    return tw__random(tw__random(seed, 0), counter - 1);
}

typedef struct pattern_spec {
    int kind; /* position */
    int64_t n;
    int64_t k; /* large values per rank and step */
    uint64_t seed;
} pattern_spec;

/* The kinds by position from 0; NULL past the last one. */
const char *pattern_name(int position);

/* The gradient of a rank in a step, elements begin .. end-1, to values[end - begin]. Depends on its
 * arguments alone, so that any rank can make the gradient of any other. Costs about 1 ns an element
 * and 20 ns a large value, also of those outside of the range. */
void pattern_fill(const pattern_spec *made, int rank, int64_t step, int64_t begin, int64_t end,
                  float *values);

#endif
