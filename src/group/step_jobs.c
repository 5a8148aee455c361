/* step_jobs.c - how the tensors of a step are divided into jobs of exchanges, and what memory jobs take
 *
 * Job 0 runs the plan's exchange. Job 1 runs its fallback, for tensors with too few entries. Tensors of
 * a job are its segments, end to end in one index space. */
#include "group/step.h"
#include "select/methods.h"

#include <assert.h>

/* The job of a tensor with this k. */
static int job_of(const tw_group *g, const tw__plan *plan, int64_t k) {
    return tw__exchange_for(plan->exchange, k, g->nranks) != plan->exchange;
}

static const tw__exchange *exchange_of(const tw__plan *plan, int job) {
    return job == 0 ? plan->exchange : plan->exchange->fallback;
}

/* An empty job of the group. Lists of a fallback always lie in the host's memory. */
static tw__shape empty_shape(const tw_group *g, const tw__plan *plan, int job) {
    const tw__backend *backend = job == 0 && g->resident ? g->backend : &tw__backend_cpu;
    return (tw__shape){.nranks = g->nranks,
                       .wire = plan->wire,
                       .overlaps = backend == &tw__backend_cpu,
                       .dense_floats = backend->dense->slot_floats};
}

static void add_tensor(tw__shape *shape, const tw__plan *plan, const tw__tensor *t, int64_t k) {
    shape->nsegments++;
    shape->span += t->n;
    if (!tw__is_dense(plan)) {
        shape->k += k;
        shape->most += tw__method_most(t->method, tw__k_max(&t->params, t->n), t->n);
    }
}

/* ---- memory: the same jobs, at their largest */

static void add_job_memory(const tw__plan *plan, int job, const tw__shape *shape,
                           tw__arenas *arenas) {
    if (shape->nsegments == 0)
        return;
    tw__job_memory(shape, arenas);
    exchange_of(plan, job)->memory(shape, arenas);
}

/* During warm-up k falls, and a tensor may pass from job 0 to job 1: it is counted for both. */
tw__workspace tw__allreduce_memory(const tw_group *g, const tw__plan *plan, int first, int count) {
    tw__shape shapes[TW__JOBS] = {empty_shape(g, plan, 0), empty_shape(g, plan, 1)};
    for (int t = first; t < first + count; t++) {
        const tw__tensor *tensor = &g->tensors[t];
        int64_t k = tw__k_max(&tensor->params, tensor->n);
        int64_t last = tw__k_at(&tensor->params, tensor->n, INT64_MAX);
        if (job_of(g, plan, k) == 0)
            add_tensor(&shapes[0], plan, tensor, k);
        if (job_of(g, plan, last) == 1)
            add_tensor(&shapes[1], plan, tensor, k);
    }
    tw__arenas arenas = {0};
    add_job_memory(plan, 0, &shapes[0], &arenas);
    size_t device = g->resident ? arenas.lists.used : 0;
    add_job_memory(plan, 1, &shapes[1], &arenas);
    return (tw__workspace){arenas.host.used, {arenas.lists.used - device, device}};
}

int64_t tw__allreduce_applied(const tw_group *g, const tw__plans *plans, const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n), most = 0;
    for (int p = 0; p < plans->count; p++) {
        const tw__plan *plan = &plans->at[p];
        int job = job_of(g, plan, k);
        tw__shape shape = empty_shape(g, plan, job);
        add_tensor(&shape, plan, t, k);
        const tw__exchange *exchange = exchange_of(plan, job);
        int64_t applied = exchange->applied != NULL ? exchange->applied(&shape) : shape.k;
        most = applied > most ? applied : most;
    }
    return most;
}

void tw__allreduce_shapes(const tw_group *g, const tw__plan *plan, const int *members, int count,
                          tw__shape shapes[2]) {
    shapes[0] = empty_shape(g, plan, 0);
    shapes[1] = empty_shape(g, plan, 1);
    for (int i = 0; i < count; i++) {
        const tw__tensor *t = &g->tensors[members[i]];
        int64_t k = t->selector != NULL ? tw__selector_k(t->selector)
                                        : tw__k_at(&t->params, t->n, t->steps);
        add_tensor(&shapes[job_of(g, plan, k)], plan, t, k);
    }
}

/* ---- the jobs of a step */

/* With a selector the residual goes along; the gradient must stay until nothing needs to be undone. */
const void *tw__dense_source(const tw__tensor *t) {
    return t->selector != NULL ? t->acc : t->staged_grad != NULL ? t->staged_grad : t->grad;
}

float *tw__dense_target(const tw__tensor *t) {
    if (t->selector != NULL && !tw__out_is_grad(t))
        return t->out;
    return t->staged_out != NULL ? t->staged_out : t->out;
}

/* Whether the exchange divides each sum by the weights of its senders. A rank that is alone sends
 * everything, and so do all ranks with dense. */
static int divides(const tw__step *s) {
    return s->g->params.result == TW_MEAN_OF_SENDERS && s->g->nranks > 1 && !tw__is_dense(s->plan);
}

static tw__job empty_job(const tw__step *s, int job) {
    tw_group *g = s->g;
    const tw__list_memory *lists = job == 0 ? tw__group_lists(g) : &g->lists[TW__HOST_LISTS];
    int on_device = lists == &g->lists[TW__DEVICE_LISTS];
    return (tw__job){.transport = g->transport,
                     .kind = on_device ? TW__DEVICE : TW__PAYLOAD,
                     .lists = {lists->backend->lists, lists->context},
                     .codec = lists->backend->codec,
                     .dense = lists->backend->dense,
                     .rank = g->rank,
                     .shape = empty_shape(g, s->plan, job),
                     .segments = g->segments + job * g->widest,
                     .arrived = on_device ? NULL : tw__step_arrived,
                     .arrived_context = (void *)s,
                     .global = g->params.global,
                     .divisor = g->params.result == TW_SUM || divides(s) ? 1.0f : s->weight,
                     .weights = divides(s) ? s->weights : NULL};
}

static void add_segment(tw__step *s, int tensor) {
    tw_group *g = s->g;
    tw__tensor *t = &g->tensors[tensor];
    int64_t k = tw__is_dense(s->plan) ? t->n : t->selector->info.k;
    int job = job_of(g, s->plan, k), type = t->selector != NULL ? TW_F32 : t->params.type;
    tw__shape *shape = &s->jobs[job].shape;
    assert(shape->nsegments < g->widest);
    g->owners[job * g->widest + shape->nsegments] = tensor;
    s->jobs[job].segments[shape->nsegments] = (tw__segment){.base = shape->span,
                                                            .n = t->n,
                                                            .k = k,
                                                            .threshold = &t->threshold,
                                                            .selector = t->selector,
                                                            .grad = tw__dense_source(t),
                                                            .type = type,
                                                            .out = tw__dense_target(t)};
    add_tensor(shape, s->plan, t, k);
}

void tw__step_make_jobs(tw__step *s) {
    for (int job = 0; job < TW__JOBS; job++) {
        s->jobs[job] = empty_job(s, job);
        s->exchanges[job] = exchange_of(s->plan, job);
    }
    for (int i = 0; i < s->count; i++)
        add_segment(s, s->members[i]);
}
