/* select_reuse.c - an exact threshold now and then, reused in between
 *
 * Ok-Topk (Li and Hoefler, 2022): the exact k-th magnitude every reuse_period steps; in between all
 * entries from that threshold on, which moves by reuse_nudge when the count leaves
 * [reuse_low * k, reuse_high * k]. Nudges of 1 % do not catch up with a jump, as at the start of
 * error feedback or after a change of the learning rate: where the count is off by more than 4x,
 * the threshold is found anew at once. */
#include "select/methods.h"

static int due(const tw__cpu_selector *s) {
    return s->now.k_changed || s->learned.threshold == 0.0f ||
           s->learned.age >= s->params->reuse_period;
}

static uint32_t guess(tw__cpu_selector *s) {
    return due(s) ? tw__method_learned_guess(s) : tw__magnitude(s->learned.threshold);
}

static void choose_exactly(tw__cpu_selector *s) {
    tw__candidates_ensure(s, s->now.k);
    s->learned.threshold = tw__from_bits(tw__candidates_choose_best(s, s->now.k));
    tw__method_learn(s, 2);
}

/* Moves the threshold, and with it the guess for the next exact step. */
static void nudge(tw__cpu_selector *s) {
    float count = (float)s->chosen.count, k = (float)s->now.k;
    float factor = 1.0f;
    if (count < s->params->reuse_low * k)
        factor -= s->params->reuse_nudge;
    else if (count > s->params->reuse_high * k)
        factor += s->params->reuse_nudge;
    s->learned.threshold *= factor;
    if (s->learned.guess != 0) /* it is, after loading what another backend saved */
        s->learned.guess = tw__threshold(tw__from_bits(s->learned.guess) * factor);
}

static void choose(tw__cpu_selector *s) {
    uint32_t threshold = tw__magnitude(s->learned.threshold);
    if (due(s)) {
        choose_exactly(s);
        s->learned.age = 0;
    } else if (tw__candidates_far_off(s, threshold)) {
        choose_exactly(s); /* out of turn: the next one in turn stays where it is */
    } else {
        tw__candidates_choose_above(s, threshold);
        nudge(s);
    }
    s->learned.age++;
}

const tw__method tw__select_reuse = {
    .name = "reuse",
    .description = "threshold exact every few steps, reused and nudged in between (Ok-Topk)",
    .backends = TW__ALL_BACKENDS,
    .exceeds_k = 1,
    .guess = guess,
    .choose = choose,
};
