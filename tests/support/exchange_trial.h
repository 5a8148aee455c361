/* exchange_trial.h - a few steps of an exchange beside its oracle
 *
 * Every rank's result, dense and sparse, what is said about the step, and every rank's residual must
 * be those of exchange_oracle, bit by bit; gradients that are not the output stay as they were.
 */
#ifndef EXCHANGE_TRIAL_H
#define EXCHANGE_TRIAL_H

#include "exchange_oracle.h"
#include "ranks.h"

typedef enum { OUT_APART, OUT_IN_PLACE, OUT_NONE, OUTS } out_mode;

typedef struct trial {
    const char *exchange;
    int nranks;
    int64_t n, k;
    int steps;
    int result;        /* tw_result */
    int type;          /* tw_type */
    out_mode mode;     /* where the result goes */
    int data;          /* oracle_data, or -1: support */
    support_kind kind; /* of large entries */
    int summable;      /* exactly; else gaussian */
    int quiet;         /* nothing but large entries */
    int shift;         /* bytes by which grad and out are misaligned */
    int jump;          /* steps in turn are 1, 2^jump and 2^-jump times as large */
    uint64_t seed;
} trial;

/* A usual trial; callers change what they are about. */
trial trial_usual(const char *exchange, int nranks);

/* One of the places for results in turn, as the exchange allows. */
out_mode trial_mode(const char *exchange, int number);

void trial_run(const trial *t);

#endif
