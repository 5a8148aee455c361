/* bench_select.h - what the parts of `thinwire bench select` share
 *
 *     bench_select.c     options, the sweep over densities and methods, table and JSON
 *     select_measure.c   times one method and checks what it selects
 *     select_tensors.c   the same for all tensors of a model in one step
 */
#ifndef CLI_BENCH_SELECT_H
#define CLI_BENCH_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench_device.h"

#define SELECT_WARM_STEPS 5
#define SELECT_CHECKED_STEPS 2

/* What all measurements of a run share. */
typedef struct select_plan {
    gradients *source;
    bench_device *device;
    int64_t steps;                        /* timed steps */
    bool cold;                            /* every step on a fresh selector */
    const struct select_tensors *tensors; /* NULL: one vector */
    float *acc;                           /* [n] for the check of the last step */
    float *after;                         /* [n] also for the check */
    double *samples;                      /* [4][steps] times in us: run, commit, both, bare pass */
} select_plan;

typedef struct select_result {
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
} select_result;

/* Returns STATUS_OK, or reports the error. */
int select_plan_create(select_plan *plan, gradients *source, bench_device *device, int64_t steps);
void select_plan_free(select_plan *plan);

/* Measure the method that params describes. Steps done are added to *progress and shown.
 * Returns STATUS_OK, or reports what failed: a call, or the check of the last step. */
int select_measure(const select_plan *plan, const tw_select_params *params, select_result *result,
                   int64_t *progress);

/* ---- select_tensors.c */

/* The tensors of a model. */
typedef struct select_tensors select_tensors;

/* The models by position; NULL past the last one. */
const char *select_tensors_name(int position);
/* free() it. *n gets the elements of a vector that holds all of them. Returns a status. */
int select_tensors_create(select_tensors **all, int position, int64_t *n);

typedef struct select_tensors_result {
    int tensors;
    int64_t k, count;   /* of all of them, in the last step */
    double together_us; /* medians: all tensors in one step of a group, */
    double each_us;     /* one after the other, */
    double floor_us;    /* and the bare pass over all of them */
} select_tensors_result;

/* As select_measure; all tensors have the same params. */
int select_tensors_measure(const select_plan *plan, const select_tensors *all,
                           const tw_select_params *params, select_tensors_result *result,
                           int64_t *progress);

#endif
