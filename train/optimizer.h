/* optimizer.h - from mean gradients to parameters: SGD with momentum, AdamW, and the receiver of AdamW
 * before selection, whose mean updates only remain to be applied
 *
 * Every worker holds the same parameters and gets the same mean gradient, so every worker takes the
 * same step by itself: replicas stay bitwise equal without ever sending a parameter.
 */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "model.h"

typedef struct optimizer_spec {
    const char *name;    /* of the table */
    double momentum;     /* sgd: v = momentum * v + g */
    double weight_decay; /* sgd: added to g; else decoupled. Not for biases and norms */
    double beta1, beta2; /* adamw */
    double epsilon;      /* adamw */
} optimizer_spec;

typedef struct optimizer {
    optimizer_spec spec;
    int64_t n;
    int64_t steps;   /* taken so far */
    int nslots;      /* vectors of state: sgd 1 with momentum, adamw 2 */
    float *slots[2]; /* [n] each: sgd velocity; adamw first and second moment */
} optimizer;

/* The names by position from 0; NULL past the last one. */
const char *optimizer_name(int position);

/* State for a model of n parameters, zero. Returns TW_OK, TW_ERR_NAME or TW_ERR_MEMORY. */
int optimizer_create(optimizer *o, const optimizer_spec *spec, int64_t n);
void optimizer_free(optimizer *o);

/* Whether a name is that of an optimiser whose moments come before selection. */
int optimizer_is_before(const char *name);

/* One step with model->grads. */
void optimizer_step(optimizer *o, model *m, double learning_rate);

typedef struct schedule_spec {
    const char *name;   /* "constant", "step" or "cosine" */
    double rate;        /* at its highest */
    int64_t warmup;     /* steps of linear rise from rate / warmup */
    int64_t steps;      /* of the whole run: cosine ends there */
    int64_t drop_every; /* step: steps between drops */
    double drop_factor; /* step: by which the rate is multiplied */
} schedule_spec;

const char *schedule_name(int position);

/* The learning rate of a step, from 0. */
double schedule_rate(const schedule_spec *spec, int64_t step);

#endif
