/* select_redsync.c - search between mean and maximum
 *
 * RedSync (Fang et al., 2019): a threshold mean + r * (max - mean) of the magnitudes, r found by
 * bisection until between k and 2k entries pass. The candidates hold more than 2k entries, so
 * that a threshold below them is known to let too many pass, and the search costs no further read.
 */
#include "select/methods.h"

#define ROUNDS 32 /* r down to 2^-32: a spike may be that much larger than the rest */

static uint32_t largest(const tw__cpu_selector *s) {
    uint32_t bits = 0;
    for (int i = 0; i < s->threads; i++)
        if (s->workers[i].collector.max_bits > bits)
            bits = s->workers[i].collector.max_bits;
    return bits;
}

static void choose(tw__cpu_selector *s) {
    double mean = tw__feedback_sums(s).magnitude / (double)s->n;
    tw__candidates_ensure(s, 2 * s->now.k + 1);
    double max = tw__from_bits(largest(s));
    double low = 0.0, high = 1.0;
    for (int round = 0; round < ROUNDS; round++) {
        double r = 0.5 * (low + high);
        uint32_t threshold = tw__threshold((float)(mean + r * (max - mean)));
        int64_t count = tw__candidates_above(s, threshold);
        if (count < s->now.k) {
            high = r;
        } else if (count > 2 * s->now.k) {
            low = r;
        } else {
            tw__candidates_choose_above(s, threshold);
            tw__method_learn(s, 3);
            return;
        }
    }
    tw__candidates_choose_best(s, s->now.k); /* ties, or the k-th lies below the mean */
    tw__method_learn(s, 3);
}

const tw__method tw__select_redsync = {
    .name = "redsync",
    .description = "bisection between mean and maximum until k to 2k pass (RedSync)",
    .backends = TW__ALL_BACKENDS,
    .exceeds_k = 1,
    .wants_sums = 1,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
