/* step_apply.c - the last stage of a step, some of it done while entries travel; see step.h */
#include "group/step.h"

#include <assert.h>
#include <sched.h>

/* ---- while entries travel
 *
 * Most of out will be zero, and clearing it takes longer than all the rest of `apply`: 59 MB at
 * n = 14.7 M. Not where the gradient is still needed. */

/* Elements that are cleared in one go: 30 us. */
#define CLEARED_AT_ONCE ((int64_t)1 << 18)

static int clear_piece(const tw__kernels *kernels, tw__tensor *t) {
    int64_t many = tw__at_most(CLEARED_AT_ONCE, t->n - t->cleared);
    kernels->clear((char *)t->out + 4 * t->cleared, 4 * many);
    t->cleared += many;
    return many > 0; /* 0: nothing was left */
}

int tw__step_clear(void *context) {
    tw__step *s = context;
    for (; s->clearing < s->count; s->clearing++) {
        tw__tensor *t = &s->g->tensors[s->members[s->clearing]];
        if (t->out == NULL || tw__on_gpu(t) || tw__is_dense(s->way) || tw__out_is_grad(t))
            continue;
        if (clear_piece(s->g->kernels, t))
            return 1;
    }
    return 0;
}

/* Sums from `from` on that belong to the tensor, whose indices end at `end`. Returns the first that
 * does not. */
static int64_t put_early(tw__tensor *t, const tw__list *sums, int64_t from, int64_t base,
                         int64_t end, float divisor) {
    int wanted = t->cleared == t->n;
    for (; from < sums->count && sums->at[from].idx < end; from++) {
        float value = sums->at[from].val / divisor;
        if (!wanted || sums->at[from].val == 0.0f)
            continue;
        memcpy((char *)t->out + 4 * (sums->at[from].idx - base), &value, sizeof value);
        t->early++;
    }
    return from;
}

void tw__step_arrived(void *context, const tw__job *job, const tw__list *sums) {
    const tw__step *s = context;
    for (int64_t from = 0, at = 0; from < sums->count; at++) {
        if (sums->at[from].idx < job->bases[at + 1])
            from = put_early(tw__owner(s, (int)(job - s->jobs), (int)at), sums, from,
                             job->bases[at], job->bases[at + 1], job->divisor);
    }
}

/* ---- apply */

/* The segment's part of the result, divided, into the tensor's arrays and the caller's, where it is
 * not yet. */
static void deliver(const tw__kernels *kernels, tw__tensor *t, const tw__list *part, int64_t base,
                    float divisor) {
    char *out = t->early < part->count ? (char *)t->out : NULL; /* of any alignment */
    while (t->out != NULL && clear_piece(kernels, t))
        sched_yield(); /* on a shared core, ranks that still wait for entries come first */
    assert(part->count <= t->result.cap);
    t->result.count = part->count;
    for (int64_t i = 0; i < part->count; i++) {
        int64_t index = part->at[i].idx - base;
        float value = part->at[i].val / divisor;
        t->result.idx[i] = (int32_t)index;
        t->result.val[i] = value;
        if (out != NULL)
            memcpy(out + 4 * index, &value, sizeof value);
    }
}

/* The same on a GPU. */
static int deliver_there(tw__tensor *t, const tw__list *result, const tw__list *left,
                         const tw__list *kept, int64_t base, const tw__job *job) {
    const tw__device_outcome outcome = {.base = base,
                                        .there = job->shape.on_gpu,
                                        .left_more = job->left_more,
                                        .selected = t->selected,
                                        .left = *left,
                                        .kept = *kept,
                                        .result = *result,
                                        .divisor = job->divisor,
                                        .idx = t->result.idx,
                                        .val = t->result.val,
                                        .out = t->out};
    TW_TRY(tw__device_apply(t->selector->device, &outcome));
    tw__selector_count(t->selector);
    t->result.count = result->count;
    return TW_OK;
}

/* The job's lists are cut. */
static int apply_segment(const tw__job *job, int at, tw__tensor *t) {
    int64_t lo = job->segments[at].base;
    tw__list result = job->parts[0][at], left = job->parts[1][at], kept = job->parts[2][at];
    if (tw__on_gpu(t)) {
        TW_TRY(deliver_there(t, &result, &left, &kept, lo, job));
    } else {
        /* With raw entries, what a rank keeps came back to it; else it is a rounding remainder. */
        const tw__list none = {0};
        tw__selector_close(t->selector, &left, &kept, job->shape.wire != NULL ? &result : &none,
                           lo);
        deliver(job->kernels, t, &result, lo, job->divisor);
    }
    t->open = 0;
    t->has_result = 1;
    return TW_OK;
}

static int apply_dense(tw_group *g, tw__tensor *t) {
    size_t bytes = sizeof(float) * (size_t)t->n;
    if (g->resident)
        return TW_OK;
    if (tw__on_gpu(t))
        return tw__stream_copy(g->lane, t->out, t->dense_out, bytes);
    if (t->selector == NULL)
        return TW_OK;
    if (tw__whole_out(t) != t->out)
        memcpy((void *)t->out, t->dense_out, bytes);
    tw__selector_close_whole(t->selector);
    t->open = 0;
    return TW_OK;
}

static int cut_lists(tw__job *job) {
    if (job->shape.nsegments == 0)
        return TW_OK;
    TW_TRY(tw__job_cut(job, &job->result, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    return tw__job_cut(job, &job->kept, job->parts[2]);
}

int tw__step_apply(tw__step *s) {
    double begin = tw__transport_seconds(s->g->transport);
    for (int j = 0; j < TW__JOBS; j++) {
        tw__job *job = &s->jobs[j];
        TW_TRY(cut_lists(job));
        for (int i = 0; i < job->shape.nsegments; i++) {
            tw__tensor *t = tw__owner(s, j, i);
            int dense = tw__is_dense(s->way);
            TW_TRY(dense ? apply_dense(s->g, t) : apply_segment(job, i, t));
            t->steps++;
            t->info.k = job->segments[i].k;
            t->info.applied = dense ? t->n : t->result.count;
            t->info.exchange = s->exchanges[j]->name;
        }
    }
    if (s->g->lane != NULL)
        TW_TRY(tw__stream_wait(s->g->lane));
    s->info.apply_seconds = tw__transport_seconds(s->g->transport) - begin;
    return TW_OK;
}
