/* exchange_check.h - groups run step by step against the oracle of their exchange
 *
 * exchange_check() compares all that a step leaves behind, bit by bit: every rank's result, dense
 * and sparse, the step's information, every rank's residual, and the gradient, which must be
 * untouched unless it is the output. exchange_check_steps() is for options of a group, which the
 * caller sets; it compares results and residuals.
 */
#ifndef EXCHANGE_CHECK_H
#define EXCHANGE_CHECK_H

#include "exchange_oracle.h"
#include "ranks.h"

/* Where the result goes: to a vector apart, over the gradient, or nowhere. */
typedef enum { OUT_APART, OUT_IN_PLACE, OUT_NONE, OUTS } out_mode;

typedef struct exchange_case {
    const char *exchange;
    int nranks;
    int64_t n, k;
    int steps;
    int result; /* tw_result */
    int type;   /* tw_type */
    out_mode mode;
    int data;          /* oracle_data; -1: support */
    support_kind kind; /* of large entries */
    int summable;      /* values that sum exactly; else gaussian */
    int quiet;         /* nothing but large entries */
    int shift;         /* bytes by which grad and out are misaligned */
    int jump;          /* steps are 1, 2^jump and 2^-jump times as large, in turn */
    uint64_t seed;
} exchange_case;

/* A common case; callers change the fields that they test. */
exchange_case exchange_case_default(const char *exchange, int nranks);

/* Another output for each number, of those that the exchange allows. */
out_mode exchange_case_out(const char *exchange, int number);

void exchange_check(const exchange_case *t);

/* One step of tensor 0 in the group and in the oracle.
 *   grads, outs [nranks][n]. */
void exchange_check_step(ranks *r, exchange_oracle *o, float **grads, float **outs);

/* Steps of a group with these params; the oracle has the same options. */
void exchange_check_steps(const tw_group_params *params, exchange_oracle *o, int steps);

#endif
