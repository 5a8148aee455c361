/* step.h - one step of a group, as its stages pass it on
 *
 *   allreduce.c     the map, and the exchange
 *   step_select.c   gradients to selections; all ranks agree to go on
 *   step_apply.c    sums to residuals and to the caller */
#ifndef TW_STEP_H
#define TW_STEP_H

#include "group/group.h"

/* A step travels as at most two jobs: oktopk leaves small tensors to butterfly. */
#define TW__JOBS 2

typedef struct tw__step {
    tw_group *g;
    const int *members; /* [count] tensors */
    int count;
    const tw__plan *way;
    tw__job jobs[TW__JOBS];
    const tw__exchange *exchanges[TW__JOBS];
    tw_step_info info;
    double agreed; /* on the transport's clock: when all had selected */
    int clearing;  /* member whose out is being cleared */
} tw__step;

static inline int tw__is_dense(const tw__plan *way) {
    return way->exchange == &tw__exchange_dense;
}

/* The tensor that is segment `at` of a job. */
static inline tw__tensor *tw__owner(const tw__step *s, int job, int at) {
    return &s->g->tensors[s->g->owners[job * s->g->widest + at]];
}

static inline size_t tw__element_size(const tw__tensor *t) {
    return t->params.type == TW_F32 ? 4 : 2;
}

static inline int tw__out_is_grad(const tw__tensor *t) {
    uintptr_t out = (uintptr_t)t->out, grad = (uintptr_t)t->grad;
    return out < grad + tw__element_size(t) * (size_t)t->n && grad < out + 4 * (size_t)t->n;
}

/* Where the exchange finds what is to be summed whole, of which type, and where it leaves the sum.
 * With a selector the residual goes along; the gradient must then stay until nothing needs to be
 * undone. */
static inline const void *tw__whole_grad(const tw__tensor *t) {
    return t->selector != NULL     ? t->selector->residual
           : t->dense_grad != NULL ? t->dense_grad
                                   : t->grad;
}

static inline int tw__whole_type(const tw__tensor *t) {
    return t->selector != NULL ? TW_F32 : t->params.type;
}

static inline float *tw__whole_out(const tw__tensor *t) {
    if (t->selector != NULL && !tw__out_is_grad(t))
        return t->out;
    return t->dense_out != NULL ? t->dense_out : t->out;
}

/* Selections of all members, and the agreement. Errors: of any rank, the same on all. */
int tw__step_select(tw__step *s);
/* Takes back what is still open; of a step that fails when some tensors were applied, the others. */
void tw__step_undo_open(tw__step *s);
/* Takes back all. */
void tw__step_undo(tw__step *s);

/* While entries travel: out is cleared, a little at a time (a tw__overlap), and sums are put there as
 * they come (tw__job.arrived). */
int tw__step_clear(void *step);
void tw__step_arrived(void *step, const tw__job *job, const tw__list *sums);
/* Residuals keep what did not arrive, the mean goes to the caller. Errors: TW_ERR_DEVICE. */
int tw__step_apply(tw__step *s);

#endif
