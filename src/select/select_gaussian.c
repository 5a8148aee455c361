/* select_gaussian.c - the threshold that a normal distribution would have
 *
 * Gaussian_k (Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning, 2019):
 * mean and standard deviation of acc come out of the pass; the threshold is where a normal
 * distribution with these leaves k/n in both tails together. Then a few corrections: fewer than
 * 2k/3 selected, halve it; more than 4k/3, times 1.5. Gradients have heavier tails than that, so
 * the count drifts. And under error feedback acc ends steeply at the threshold of earlier steps:
 * corrections jump over that edge, from 30k to nothing, and the last one may end where nothing
 * passes, step after step. So a count outside k/4 .. 4k is not accepted: the best k are chosen.
 * select_gaussian_published.c is the authors' code, without that. */
#include "select/methods.h"
#include "select/normal.h"

#include <float.h>
#include <math.h>

static float estimate(const tw__cpu_selector *s) {
    tw__sums sums = tw__feedback_sums(s);
    tw__normal normal = tw__normal_from(sums.sum, sums.square, (double)s->n, (double)s->now.k);
    uint32_t low = TW__NORMAL_LOW, high = TW__NORMAL_HIGH;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (tw__normal_is_low(&normal, middle))
            low = middle;
        else
            high = middle;
    }
    return tw__from_bits(high);
}

static float corrected(tw__cpu_selector *s) {
    float threshold = estimate(s);
    double k = (double)s->now.k;
    int64_t most = 4 * s->now.k / 3; /* more is too many, however many */
    for (int round = 0; round < s->params->gaussian_rounds; round++) {
        double count = (double)tw__candidates_count(s, tw__threshold(threshold), most);
        if (count < 2.0 * k / 3.0)
            threshold *= 0.5f;
        else if (count > 4.0 * k / 3.0)
            threshold = fminf(1.5f * threshold, FLT_MAX);
        else
            break;
    }
    return threshold;
}

static void choose(tw__cpu_selector *s) {
    uint32_t threshold = tw__threshold(corrected(s));
    if (tw__candidates_far_off(s, threshold)) {
        tw__candidates_ensure(s, s->now.k);
        tw__candidates_choose_best(s, s->now.k);
    } else {
        tw__candidates_choose_above(s, threshold);
    }
    /* At density 0.01 that costs 1.7 bare passes in all, reading once more 2.0. */
    tw__method_learn(s, tw__candidates_per_k(s->now.k, s->n / 16));
}

const tw__method tw__select_gaussian = {
    .name = "gaussian",
    .description = "normal quantile, corrected; exact where that is far off k (Gaussian_k)",
    .backends = TW__ALL_BACKENDS,
    .exceeds_k = 1,
    .wants_sums = 1,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
