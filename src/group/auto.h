/* auto.h - the exchange and wire format that take the least time here
 *
 * Ways are the pairs of exchange and wire format that a group may use. The model predicts what a
 * step takes each way, from what the ranks measured (probe.h) and from the exchange's effort; then
 * steps try the promising ones, and the fastest stays:
 *
 *     predict all -> try the best -> try others that the model gives a chance -> keep the fastest
 *                    3 steps each                                                renewed every 64
 *
 * Every step is a whole allreduce whichever way it goes, so trying costs nothing but time. All
 * ranks go by the same numbers: how long each one's last step took travels with the agreement on
 * the next one, and the slowest counts. docs/auto.md derives the model. */
#ifndef TW_AUTO_H
#define TW_AUTO_H

#include "exchange/exchange.h"
#include "group/probe.h"

#define TW__PLANS TW_CANDIDATES

typedef struct tw__plans {
    int count;
    tw__plan at[TW__PLANS];
} tw__plans;

/* What is known of a way, for the steps of one plan. */
typedef struct tw__trial {
    double predicted; /* seconds of a step, selection apart */
    double measured;  /* 0: not tried */
    int64_t steps;    /* that went this way */
} tw__trial;

/* Of the steps that begin with a tensor. */
typedef struct tw__auto_steps {
    int count;      /* tensors of these steps; 0: none was planned */
    int now;        /* the way of the next step */
    int last;       /* the way of the last step, while its time is not agreed on; -1: none */
    double seconds; /* that it took on this rank */
    int64_t window; /* steps counted of the way under way */
    double least;   /* the shortest of them */
    tw__trial trials[TW__PLANS];
} tw__auto_steps;

/* The ways that the group may use: one, unless it is to choose. Needs its tensors. */
void tw__auto_plans(const tw_group *g, tw__plans *ways);
/* Whether a tensor may be sent whole now and then: gradient and residual together. */
int tw__auto_sends_whole(const tw_select_params *p);
/* Measure between the ranks, choose the size of buckets. Collective. */
int tw__auto_open(tw_group *g);
/* Predict the steps of all buckets, once there are buckets. */
void tw__auto_plan(tw_group *g);

/* A step of these tensors: its way; then the time of the one before, which all ranks agree on
 * (negative: none); then what it took here, selection apart, which is the same whichever way. */
const tw__plan *tw__auto_begin(tw_group *g, const int *members, int count);
double tw__auto_pending(const tw_group *g, const int *members);
void tw__auto_learn(tw_group *g, const int *members, double slowest);
void tw__auto_note(tw_group *g, const int *members, const tw__plan *way, double seconds);

#endif
