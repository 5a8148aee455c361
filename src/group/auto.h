/* auto.h - the exchange and wire format that take the least time here
 *
 * A plan is a pair of exchange and wire format. The model predicts the time of a step with each plan,
 * from what the ranks measured (probe.c) and from the exchange's cost terms. Then steps try the
 * promising plans, and the fastest stays:
 *
 *     predict all -> try the best -> try others that are promising -> keep the fastest
 *                    3 steps each                                     measured again every 64
 *
 * Every step is a whole allreduce with any plan, so trying costs nothing but time. All ranks go by the
 * same numbers: each rank's time of the last step travels with the agreement on the next one, and the
 * slowest counts. docs/auto.md derives the model. */
#ifndef TW_AUTO_H
#define TW_AUTO_H

#include "backend/backend.h"
#include "exchange/exchange.h"

/* ---- probe.c: what messages take between the ranks of a transport, measured */

/* The same on all ranks: of each measurement the slowest rank's. A rank that sends m messages of b
 * bytes, and waits r times for one under way, takes r * latency + m * overhead + m * b * byte. */
typedef struct tw__probe {
    double latency;  /* seconds */
    double overhead; /* seconds that each further message takes of a rank */
    double byte;     /* seconds per byte of payload, when all ranks send at once */
} tw__probe;

/* Collective; takes some ten milliseconds, or twenty latencies.
 * Errors: TW_ERR_MEMORY; those of tw__transport_wait. */
int tw__probe_measure(tw_transport *t, tw__probe *probe);

/* ---- auto.c */

#define TW__PLANS TW_CANDIDATES

typedef struct tw__plans {
    int count;
    tw__plan at[TW__PLANS];
} tw__plans;

/* What is known of a plan, for the steps of one tuner. */
typedef struct tw__trial {
    double predicted; /* seconds of a step, selection apart */
    double measured;  /* 0: not tried */
    int64_t steps;    /* with this plan */
} tw__trial;

/* The choice for the steps that begin with one tensor. */
typedef struct tw__tuner {
    int count;      /* tensors of these steps; 0: nothing was predicted yet */
    int now;        /* the plan of the next step */
    int last;       /* the plan of the last step, until ranks have agreed on its time; -1: none */
    double seconds; /* of the last step on this rank */
    int64_t window; /* steps of the present trial */
    double least;   /* the shortest of them */
    tw__trial trials[TW__PLANS];
} tw__tuner;

/* The plans that the group may use: one, unless it is to choose. Needs its tensors. */
void tw__auto_plans(const tw_group *g, tw__plans *plans);
/* Whether a tensor may be sent whole now and then: gradient and residual together. */
int tw__auto_sends_whole(const tw_select_params *p, const tw__backend *backend);
/* Measure between the ranks, choose the size of buckets. Collective. */
int tw__auto_open(tw_group *g);
/* Predict the steps of all buckets, once there are buckets. */
void tw__auto_predict(tw_group *g);

/* A step of these tensors begins: the plan that it takes. */
const tw__plan *tw__auto_begin(tw_group *g, const int *members, int count);
/* The seconds of their last step, on which ranks have not agreed yet; negative: none. */
double tw__auto_pending(const tw_group *g, const int *members);
/* All ranks agree on them: the slowest rank's. */
void tw__auto_learn(tw_group *g, const int *members, double slowest);
/* A step took so long on this rank, its selection apart: that is the same with any plan. */
void tw__auto_note(tw_group *g, const int *members, const tw__plan *plan, double seconds);

#endif
