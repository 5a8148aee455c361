/* workload.h - many tensors on four ranks, summed one by one or in the background
 *
 * Two workloads of a test share gradients: what one gets by tw_allreduce, tensor by tensor, the
 * other must get bit by bit with any buckets, any order of starting and any order of waiting.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "ranks.h"

enum { RANKS = 4, MANY = 100, FEW = 9 };

typedef struct workload {
    ranks r;
    int tensors;
    int64_t *sizes;         /* [tensors] */
    float ***grads;         /* [tensors][RANKS][n], shared by all workloads of a test */
    float ***outs;          /* [tensors][RANKS][n] */
    int order[RANKS][MANY]; /* in which each rank starts tensors */
    int waits[MANY + 1];    /* in which all ranks wait; TW_ALL ends */
} workload;

/* Density 0.02, one thread. */
tw_group_params workload_params(const char *scheme, int64_t bucket);

/* Transports and outputs without groups, or with open groups. */
void workload_prepare(workload *w, int64_t *sizes, int tensors, float ***grads);
void workload_open(workload *w, const tw_group_params *params, int64_t *sizes, int tensors,
                   float ***grads);
void workload_close(workload *w);

float ***workload_gradients(const int64_t *sizes, int tensors);
void workload_gradients_free(float ***grads, int tensors);
void workload_gradients_fill(float ***grads, const int64_t *sizes, int tensors, int step);
/* One large tensor, some of middle size, many tiny ones, in no order. */
void workload_sizes(int64_t *sizes, int tensors, int64_t largest);

/* Calls for ranks_run, with the workload as context. */
int step_one_by_one(ranks *r, int rank, void *context);
int step_in_background(ranks *r, int rank, void *context);
/* The first half of step_in_background. */
int workload_start(workload *w, int rank);
/* Another order of starting for each rank. */
void workload_shuffle(workload *w, oracle_rng *rng);

/* Outputs, residuals and sparse results are the same. */
void workload_same(workload *got, workload *want, const char *what, int step);

/* A workload of FEW tensors in buckets of about three, and its reference, in the same state. */
typedef struct comparison {
    int64_t sizes[FEW];
    float ***grads;
    workload tried, reference;
} comparison;

void comparison_open(comparison *c, const char *scheme);
void comparison_close(comparison *c);
void reference_step(comparison *c);

#endif
