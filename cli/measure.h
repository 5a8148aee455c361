/* measure.h - times one selection method and checks what it selects
 *
 * A timed step is tw_selector_run and tw_selector_commit together: what a training step pays. Right
 * before or after each one, in turns, the bare pass e += g is timed on the same gradient, so that
 * whatever else the machine does hits both alike. Medians are reported. Two more steps at the end
 * are not timed but checked.
 */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "gradients.h"
#include "place.h"
#include "thinwire.h"

#define MEASURE_WARM_STEPS 5
#define MEASURE_CHECKED_STEPS 2

/* What all measurements of a run share. */
typedef struct bench_plan {
    gradients *source;
    place *where;
    int64_t steps;   /* timed steps */
    bool cold;       /* every step on a fresh selector */
    float *acc;      /* [n] for the check of the last step */
    float *after;    /* [n] likewise */
    double *samples; /* [4][steps] times in us: run, commit, both, bare pass */
} bench_plan;

typedef struct measurement {
    int64_t k;     /* entries asked for */
    int64_t count; /* entries selected in the last timed step, and over the timed steps: */
    int64_t count_min;
    int64_t count_max;
    double count_mean;
    int64_t candidates; /* in the last timed step */
    int64_t rescans;    /* sum over the timed steps */
    bool exact;         /* the last checked step gave the true top-k */
    double run_us;      /* medians */
    double commit_us;
    double time_us; /* of run + commit, step by step */
    double floor_us;
} measurement;

/* Returns STATUS_OK, or prints why not. */
int bench_plan_create(bench_plan *plan, gradients *source, place *where, int64_t steps);
void bench_plan_free(bench_plan *plan);

/* Measure the method that params describes. Steps done are added to *progress and shown.
 * Returns STATUS_OK, or prints what failed: a call, or the check of the last step. */
int measure_method(const bench_plan *plan, const tw_select_params *params, measurement *result,
                   int64_t *progress);

#endif
