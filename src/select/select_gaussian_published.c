/* select_gaussian_published.c - Gaussian_k as its authors wrote it
 *
 * The code that came with Shi et al., Understanding Top-k Sparsification in Distributed Deep
 * Learning, 2019: the first threshold is mean + z * deviation of acc, where a normal distribution has
 * the share k/n beyond -z and z together. Entries whose magnitude lies above it are counted. Fewer
 * than 2k/3: halve it; more than 4k/3: times 1.5. At most three thresholds are tested, and the last
 * one tested is used, however many pass: none, or 60k. So a selection takes memory for n entries.
 *
 * It differs from the authors' code in two ways. Sums have double precision. Zeros, which would
 * change nothing, are not selected. It is there for comparison; "gaussian" is the one to use. */
#include "select/methods.h"
#include "select/normal.h"

#include <float.h>
#include <math.h>

#define TESTS 3

/* The z beyond which, on both sides together, a normal distribution has this share. */
static double quantile(double share) {
    const double root2 = 1.4142135623730951;
    double low = 0.0, high = 8.0; /* beyond 8 lie 1e-15, less than one of 2^31 elements */
    for (int bit = 0; bit < 56; bit++) {
        double middle = 0.5 * (low + high);
        if (tw__erfc(middle / root2) > share)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static double estimate(const tw__cpu_selector *s) {
    tw__sums sums = tw__feedback_sums(s);
    double n = (double)s->n, mean = sums.sum / n;
    double variance = s->n > 1 ? (sums.square - sums.sum * mean) / (n - 1.0) : 0.0;
    return mean + quantile((double)s->now.k / n) * sqrt(fmax(variance, 0.0));
}

/* The smallest magnitude bits above a threshold, of a number that is not 0. */
static uint32_t bits_above(double threshold) {
    if (threshold > FLT_MAX)
        return TW__INFINITY_BITS;
    return threshold > 0.0 ? tw__magnitude((float)threshold) + 1 : 1;
}

static void choose(tw__cpu_selector *s) {
    double threshold = estimate(s), k = (double)s->now.k;
    uint32_t tested = 0;
    for (int test = 0; test < TESTS; test++) {
        tested = bits_above(threshold);
        double count = (double)tw__candidates_count(s, tested, 4 * s->now.k / 3);
        if (count < 2.0 * k / 3.0)
            threshold *= 0.5;
        else if (count > 4.0 * k / 3.0)
            threshold *= 1.5;
        else
            break;
    }
    tw__candidates_choose_all(s, tested);
    tw__method_learn(s, tw__candidates_per_k(s->now.k, s->n / 16));
}

const tw__method tw__select_gaussian_published = {
    .name = "gaussian_published",
    .description = "Gaussian_k as published: three thresholds at most, any count",
    .unbounded = 1,
    .wants_sums = 1,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
