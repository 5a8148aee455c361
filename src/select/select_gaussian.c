/* select_gaussian.c - the threshold that a normal distribution would have
 *
 * Gaussian_k (Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning, 2019):
 * mean and standard deviation of acc come out of the pass; the threshold is where a normal
 * distribution with these leaves k/n in both tails together. Then a few corrections: fewer than
 * 2k/3 selected, halve it; more than 4k/3, times 1.5. Gradients have heavier tails than that, so
 * the count drifts. */
#include "select/methods.h"

#include <float.h>
#include <math.h>

/* P(|X| >= t) for X normal with this mean and deviation. */
static double both_tails(double t, double mean, double deviation) {
    double unit = deviation * sqrt(2.0);
    return 0.5 * (erfc((t - mean) / unit) + erfc((t + mean) / unit));
}

/* The t at which both tails hold `density`: by bisection, as both_tails falls steadily. */
static double two_sided_quantile(double density, double mean, double deviation) {
    double low = 0.0, high = fabs(mean) + 40.0 * deviation;
    for (int i = 0; i < 64; i++) {
        double middle = 0.5 * (low + high);
        if (both_tails(middle, mean, deviation) > density)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static double estimate(const tw_selector *s) {
    tw__sums sums = tw__feedback_sums(s);
    double n = (double)s->n, mean = sums.sum / n;
    double variance = sums.square / n - mean * mean;
    if (variance <= 0.0)
        return fabs(mean);
    return two_sided_quantile((double)s->k / n, mean, sqrt(variance));
}

static uint32_t to_bits(double threshold) {
    return tw__threshold(threshold < FLT_MAX ? (float)threshold : FLT_MAX);
}

static void choose(tw_selector *s) {
    double threshold = estimate(s), k = (double)s->k;
    for (int round = 0; round < s->params.gaussian_rounds; round++) {
        double count = (double)tw__candidates_count(s, to_bits(threshold));
        if (count < 2.0 * k / 3.0)
            threshold *= 0.5;
        else if (count > 4.0 * k / 3.0)
            threshold *= 1.5;
        else
            break;
    }
    tw__candidates_choose_above(s, to_bits(threshold));
    tw__method_learn(s, 2);
}

const tw__method tw__select_gaussian = {
    .name = "gaussian",
    .description = "normal quantile of mean and deviation, corrected a few times (Gaussian_k)",
    .exceeds_k = 1,
    .wants_sums = 1,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
