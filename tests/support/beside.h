/* beside.h - a group of ranks beside the oracle of its exchange
 *
 * For options of a group; the exchanges themselves are tried with more care by exchange_trial.h.
 */
#ifndef BESIDE_H
#define BESIDE_H

#include "exchange_oracle.h"
#include "ranks.h"

/* One step of tensor 0 on both sides: results and residuals are bitwise the same.
 *   grads, outs [nranks][n]. */
void beside_step(ranks *r, exchange_oracle *o, float **grads, float **outs);

/* Steps of a group with these params beside the oracle, which has been told of the same. */
void beside_run(const tw_group_params *params, exchange_oracle *o, int steps);

#endif
