/* step.h - one step of a group, and the stages that it passes
 *
 *   allreduce.c      the map: begin, select, agree, exchange, apply, publish
 *   step_select.c    gradients to selections, and back when the step is undone
 *   agree.c          all ranks go on, or none
 *   step_exchange.c  selections to sums over all ranks
 *   step_apply.c     sums to residuals and to the caller, some of it while entries travel
 *   step_jobs.c      how tensors are divided into jobs, and what memory these take */
#ifndef TW_STEP_H
#define TW_STEP_H

#include "group/group.h"

/* A step has at most two jobs: the plan's exchange, and its fallback for tensors with few entries. */
#define TW__JOBS 2

typedef struct tw__step {
    tw_group *g;
    const int *members; /* [count] tensors */
    int count;
    const tw__plan *plan;
    tw__job jobs[TW__JOBS];
    const tw__exchange *exchanges[TW__JOBS];
    tw_step_info info;
    tw_traffic before;    /* of the transport, when the step began */
    const float *weights; /* [nranks] */
    float weight;         /* their sum */
    double agreed;        /* on the transport's clock: when all had selected */
    int error_tensor;     /* select failed: with this tensor, ... */
    int64_t bad_index;    /* ... at this element; -1: for another reason */
    int bad_piece;        /* ... with this piece of grad or out; -1: with none of them */
    int refused;          /* all ranks know that the step cannot be: the group goes on */
    int clearing;         /* member whose out is being cleared */
} tw__step;

static inline int tw__is_dense(const tw__plan *plan) {
    return plan->exchange == &tw__exchange_dense;
}

static inline tw__tensor *tw__member(const tw__step *s, int i) {
    assert(i >= 0 && i < s->count);
    return &s->g->tensors[s->members[i]];
}

/* The tensor that is segment `at` of a job. */
static inline tw__tensor *tw__owner(const tw__step *s, int job, int at) {
    assert(at >= 0 && at < s->jobs[job].shape.nsegments);
    return &s->g->tensors[s->g->owners[job * s->g->widest + at]];
}

static inline size_t tw__element_size(const tw__tensor *t) {
    return t->params.type == TW_F32 ? 4 : 2;
}

static inline int tw__out_is_grad(const tw__tensor *t) {
    return t->out == t->grad;
}

/* The pieces of gradient and out; NULL: no out. */
static inline const void *const *tw__grads_of(const tw__tensor *t) {
    return t->table != NULL ? t->table->grads : &t->grad;
}

static inline float *const *tw__outs_of(const tw__tensor *t) {
    if (t->table != NULL)
        return t->table->has_outs ? t->table->outs : NULL;
    return t->out != NULL ? &t->out : NULL;
}

/* ---- step_select.c */

/* Selections of all members. An error is this rank's: tw__agree_step tells the others. */
int tw__step_select(tw__step *s);
/* Take back the members whose step is still open. Keeps the text of the first error. */
void tw__step_undo(tw__step *s);

/* ---- agree.c */

/* All ranks bring the error of their selection. Returns that of the lowest rank that has one, on all
 * ranks; also compares which tensors the ranks are about to exchange. */
int tw__agree_step(tw__step *s, int error);

/* ---- step_exchange.c */

/* Sums over all ranks. Errors: those of tw__exchange.run; TW_ERR_NUMBER when a sum overflows. */
int tw__step_exchange(tw__step *s);

/* ---- step_apply.c */

/* The overlap: what can be done while entries travel. Clears a piece of out; returns 0 when nothing is
 * left to clear. */
int tw__step_overlap(void *step);
/* Sums of the result that are known early go to out; a tw__job.arrived. */
void tw__step_arrived(void *step, const tw__job *job, const tw__list *sums);
/* Residuals keep what did not arrive, the mean goes to the caller. Errors: TW_ERR_DEVICE. */
int tw__step_apply(tw__step *s);

/* ---- step_jobs.c */

/* Divide the members into jobs, each with its segments. */
void tw__step_make_jobs(tw__step *s);
/* Dense: where the exchange finds what is to be summed, and where it leaves sums. */
const void *tw__dense_source(const tw__tensor *t);
float *tw__dense_target(const tw__tensor *t);

#endif
