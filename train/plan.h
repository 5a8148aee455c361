/* plan.h - how layers ask for parameters, state and memory when a model is built
 *
 * A model is built twice by the same code. The first time the plan only measures: it adds up what
 * is asked for and hands out no memory. Then the blocks are allocated, and the second time every
 * request gets its part of them. So a count of parameters needs no memory, and the count and the
 * model cannot differ.
 *
 * While measuring, all pointers are NULL: a layer's create stores them and does not look behind.
 */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"

/* One parameter tensor as its layer sees it. */
typedef struct param {
    int index; /* of model->tensors */
    int64_t n;
    real *value; /* [n] */
    real *grad;  /* [n] */
} param;

enum { PLAN_NAME = 48 }; /* bytes for a tensor's name, its end included */

typedef struct plan {
    model *m;                 /* its lists and blocks are filled; NULL: only measure */
    uint64_t seed;            /* of initial parameters */
    char (*names)[PLAN_NAME]; /* [ntensors + nstates] texts behind the tensors' names */
    char *memory;             /* the block that plan_work cuts up */
    int64_t n;                /* parameters so far */
    int64_t nstate;           /* state so far */
    int ntensors;
    int nstates;
    size_t work;    /* bytes of `memory` so far */
    size_t scratch; /* the largest request of plan_scratch */
    size_t common;  /* the largest request of plan_common */
} plan;

/* Initial values of a parameter. All are uniform: their variance is what counts, and they need no
 * library function whose last bit differs between machines. */
typedef enum { INIT_ZERO, INIT_ONE, INIT_UNIFORM } plan_init;

/* A tensor of n parameters named "block.part". bound: of INIT_UNIFORM, values in [-bound, bound).
 * Weight decay goes with INIT_UNIFORM. */
param plan_param(plan *p, const char *block, const char *part, int64_t n, plan_init init,
                 double bound);

/* n numbers of state, all `initial`. */
real *plan_state(plan *p, const char *block, const char *part, int64_t n, real initial);

/* Memory of the model's own, on whole cache lines, zero at first. */
void *plan_work(plan *p, int64_t count, size_t size);
real *plan_reals(plan *p, int64_t count);

/* What a layer needs while one of its functions runs: for each worker, and once for all. */
void plan_scratch(plan *p, size_t bytes);
void plan_common(plan *p, size_t bytes);

/* Bounds of uniform values with the variance 2 / inputs (He) and 2 / (inputs + outputs) (Xavier). */
double plan_he(int inputs);
double plan_xavier(int inputs, int outputs);

#endif
