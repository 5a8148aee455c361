/* pass.h - what travels with one forward or backward pass through all layers */
#ifndef TRAIN_PASS_H
#define TRAIN_PASS_H

#include <stdbool.h>

#include "model.h"
#include "plan.h"
#include "team.h"

typedef struct pass {
    team *team;        /* who computes */
    bool training;     /* batch norms: batch statistics instead of running ones */
    model_ready ready; /* backward: whom to tell of final gradients, or NULL */
    void *context;     /* for ready */
} pass;

/* The gradient of a parameter is final: layers say so as early as they can, last parameter first. */
static inline void pass_ready(const pass *p, const param *finished) {
    if (p->ready)
        p->ready(p->context, finished->index);
}

/* Tasks for `total` items in chunks of `each`. */
static inline int pass_chunks(int64_t total, int64_t each) {
    return (int)((total + each - 1) / each);
}

/* Chunk `task` of `total` items is [begin, end). */
typedef struct range {
    int64_t begin, end;
} range;

static inline range pass_chunk(int64_t total, int64_t each, int64_t task) {
    int64_t begin = task * each;
    return (range){begin, begin + each < total ? begin + each : total};
}

#endif
