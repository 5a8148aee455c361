/* select_exact.c - the k largest magnitudes, exactly
 *
 * The pass collects from a magnitude that somewhat more than k entries should reach, learned in the
 * step before; the exact choice is made among these. A guess that lets too few through costs
 * another read, never exactness; one that lets too many through costs time for each.
 *
 * How much more than k is learned too: 2k at first, down to 1.25k while the number of candidates
 * comes out as foreseen, and up again by three times the surprise when it does not. A fixed 2k costs
 * 0.1 passes more at density 0.01.
 *
 * Foreseen is the rank of the guess times the growth of the step before, since under error feedback
 * magnitudes grow steadily, and many times over in the first steps of AdamW. Growth is believed step by
 * step, 1.5 times as much in each: if it ended at once, too few would pass. With magnitudes that grow by
 * 5 % a step, density 0.001: 1.3k candidates; if growth is limited to 1.25, 3.2k. */
#include "select/methods.h"

#include <math.h>

#define MARGIN_MOST 2.0
#define MARGIN_LEAST 1.25
#define GROWTH_LEAST 0.8

static double clamp(double x, double low, double high) {
    return fmin(fmax(x, low), high);
}

/* Learns from how many candidates the last guess let through. */
static void update_margin(tw__cpu_selector *s) {
    tw__learned *l = &s->learned;
    if (s->rescans > 0 || l->margin == 0.0)
        l->margin = MARGIN_MOST;
    if (s->rescans > 0 || l->rank == 0.0) {
        l->growth = 1.0;
        return;
    }
    double seen = (double)tw__candidates_total(s);
    double surprise = fabs(seen / (l->rank * l->growth) - 1.0);
    double calm = 0.8 * l->margin + 0.2 * MARGIN_LEAST;
    double chance = 1.0 + 4.0 / sqrt((double)s->now.k); /* small counts vary by themselves */
    l->margin = clamp(fmax(calm, MARGIN_LEAST + 3.0 * surprise), chance, MARGIN_MOST);
    l->growth =
        clamp(seen / l->rank, GROWTH_LEAST, fmin(1.5 * fmax(l->growth, 1.0), TW__GROWTH_MOST));
}

static void choose(tw__cpu_selector *s) {
    tw__candidates_ensure(s, s->now.k);
    tw__candidates_choose_best(s, s->now.k);
    update_margin(s);
    s->learned.rank = tw__method_learn(s, s->learned.margin / s->learned.growth);
}

const tw__method tw__select_exact = {
    .name = "exact",
    .description = "the k largest magnitudes, ties to the smaller index",
    .backends = TW__ALL_BACKENDS,
    .guess = tw__method_learned_guess,
    .choose = choose,
};
