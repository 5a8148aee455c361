/* select_dgc.c - the threshold of a sample
 *
 * Deep Gradient Compression (Lin et al., 2018): the exact top-k of a sample of acc, 1 % by default,
 * gives the threshold; where more than 4k/3 pass it, the best k of these are taken. */
#include "select/methods.h"

static void choose(tw__cpu_selector *s) {
    uint32_t threshold = tw__candidates_sample(s, (double)s->now.k, 1);
    if (3 * tw__candidates_count(s, threshold, 4 * s->now.k / 3) > 4 * s->now.k) {
        tw__candidates_ensure(s, s->now.k);
        tw__candidates_choose_best(s, s->now.k);
    } else {
        tw__candidates_choose_above(s, threshold);
    }
    tw__method_learn(s, 2);
}

const tw__method tw__select_dgc = {
    .name = "dgc",
    .description = "threshold from a 1 % sample, exact top-k where too many pass (DGC)",
    .backends = TW__ALL_BACKENDS,
    .exceeds_k = 1,
    .samples = 1,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
