/* fleet.h - many tensors on four ranks, to be summed one by one or in the background
 *
 * Fleets of one test share gradients: what one gets by tw_allreduce, tensor by tensor, the other must
 * get with any buckets, orders of starting and orders of waiting, bit for bit.
 */
#ifndef FLEET_H
#define FLEET_H

#include "ranks.h"

enum { RANKS = 4, MANY = 100, FEW = 9 };

typedef struct fleet {
    ranks r;
    int tensors;
    int64_t *sizes;         /* [tensors] */
    float ***grads;         /* [tensors][RANKS][n], shared by all fleets of a test */
    float ***outs;          /* [tensors][RANKS][n] */
    int order[RANKS][MANY]; /* in which each rank starts */
    int waits[MANY + 1];    /* in which all of them wait; TW_ALL ends */
} fleet;

/* Density 0.02, one thread. */
tw_group_params fleet_params(const char *scheme, int64_t bucket);

/* Transports and room, no groups yet; or with groups, open. */
void fleet_prepare(fleet *f, int64_t *sizes, int tensors, float ***grads);
void fleet_open(fleet *f, const tw_group_params *params, int64_t *sizes, int tensors,
                float ***grads);
void fleet_close(fleet *f);

float ***gradients(const int64_t *sizes, int tensors);
void gradients_free(float ***grads, int tensors);
void gradients_fill(float ***grads, const int64_t *sizes, int tensors, int step);
/* One large tensor, some middling ones, many tiny ones, in no order. */
void make_sizes(int64_t *sizes, int tensors, int64_t largest);

/* Calls for ranks_run, with the fleet as context. */
int step_one_by_one(ranks *r, int rank, void *context);
int step_in_background(ranks *r, int rank, void *context);
/* The first half of the second. */
int start_all(fleet *f, int rank);
/* Another order of starting for each rank. */
void shuffle_all(fleet *f, oracle_rng *rng);

/* Outputs, residuals and sparse results are the same. */
void same_fleet(fleet *got, fleet *want, const char *what, int step);

/* A fleet of FEW tensors in buckets of about three, and its reference, both at the same state. */
typedef struct duel {
    int64_t sizes[FEW];
    float ***grads;
    fleet tried, reference;
} duel;

void duel_open(duel *d, const char *scheme);
void duel_close(duel *d);
void reference_step(duel *d);

#endif
