/* step_apply.c - the last stage of a step: sums to residuals and to the caller; see step.h */
#include "group/step.h"

#include <assert.h>

/* ---- while entries travel
 *
 * Most of out will be zero, and clearing it takes longer than all the rest of `apply`: 59 MB at
 * n = 14.7 M. Where out is the gradient, it is still needed: a failing step is undone with it. */

int tw__step_overlap(void *context) {
    tw__step *s = context;
    for (; !tw__is_dense(s->plan) && s->clearing < s->count; s->clearing++) {
        tw__tensor *t = tw__member(s, s->clearing);
        if (t->out == NULL || t->backend->clear == NULL || tw__out_is_grad(t) || t->cleared == t->n)
            continue;
        int64_t count = tw__at_most(TW__CLEARED_AT_ONCE, t->n - t->cleared);
        t->backend->clear(t->selector->state, t->out, t->cleared, count);
        t->cleared += (int32_t)count;
        return 1;
    }
    return 0;
}

/* Sums from `from` on that belong to the tensor, whose indices end at `end`. Returns the first that
 * does not. */
static int64_t place_sums(tw__tensor *t, const tw__list *sums, int64_t from, int64_t base,
                          int64_t end, float divisor) {
    int is_clear = t->cleared == t->n;
    for (; from < sums->count && sums->at[from].idx < end; from++) {
        float value = sums->at[from].val / divisor;
        assert(sums->at[from].idx >= base);
        if (!is_clear || sums->at[from].val == 0.0f)
            continue;
        memcpy((char *)t->out + 4 * (sums->at[from].idx - base), &value, sizeof value);
        t->placed++;
    }
    return from;
}

void tw__step_arrived(void *context, const tw__job *job, const tw__list *sums) {
    const tw__step *s = context;
    for (int64_t from = 0, at = 0; from < sums->count; at++)
        if (sums->at[from].idx < job->bases[at + 1])
            from = place_sums(tw__owner(s, (int)(job - s->jobs), (int)at), sums, from,
                              job->bases[at], job->bases[at + 1], job->divisor);
}

/* ---- apply */

/* The job's lists are cut into segments: job->parts. */
static int apply_segment(const tw__job *job, int at, tw__tensor *t) {
    const tw__outcome outcome = {.base = job->segments[at].base,
                                 .selected = t->selected,
                                 .on_device = job->kind == TW__DEVICE,
                                 .rounded = job->shape.wire != NULL,
                                 .left_more = job->left_more,
                                 .result = job->parts[0][at],
                                 .left = job->parts[1][at],
                                 .kept = job->parts[2][at],
                                 .divisor = job->divisor,
                                 .idx = t->result.idx,
                                 .val = t->result.val,
                                 .outs = tw__outs_of(t),
                                 .cleared = t->cleared,
                                 .placed = t->placed};
    assert(outcome.result.count <= t->result.cap);
    TW_TRY(tw__selector_apply(t->selector, &outcome));
    t->result.count = outcome.result.count;
    t->open = 0;
    t->has_result = 1;
    return TW_OK;
}

static int apply_dense(const tw_group *g, tw__tensor *t) {
    if (tw__dense_target(t) != t->out)
        TW_TRY(t->backend->copy(g->stream, t->out, t->staged_out, sizeof(float) * (size_t)t->n));
    if (t->selector == NULL)
        return TW_OK;
    TW_TRY(tw__selector_close_whole(t->selector));
    t->open = 0;
    return TW_OK;
}

/* Whether the list is what gather_own has laid end to end: then its parts are known, and no device is
 * asked. */
static int knows_parts(const tw__step *s, int job_at, const tw__list *list, tw__list *parts) {
    const tw__job *job = &s->jobs[job_at];
    int64_t own = 0, end = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        own += tw__owner(s, job_at, i)->selected;
    if (job->left_more || list->at != job->own.at || list->count != own)
        return 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        parts[i] = (tw__list){list->at + end, tw__owner(s, job_at, i)->selected};
        end += parts[i].count;
    }
    return 1;
}

static int cut_list(const tw__step *s, int job_at, const tw__list *list, tw__list *parts) {
    return knows_parts(s, job_at, list, parts) ? TW_OK : tw__job_cut(&s->jobs[job_at], list, parts);
}

static int cut_lists(const tw__step *s, int job_at) {
    const tw__job *job = &s->jobs[job_at];
    if (job->shape.nsegments == 0)
        return TW_OK;
    TW_TRY(cut_list(s, job_at, &job->result, job->parts[0]));
    TW_TRY(cut_list(s, job_at, &job->left, job->parts[1]));
    return tw__job_cut(job, &job->kept, job->parts[2]);
}

int tw__step_apply(tw__step *s) {
    tw_group *g = s->g;
    double begin = tw__transport_seconds(g->transport);
    for (int j = 0; j < TW__JOBS; j++) {
        tw__job *job = &s->jobs[j];
        TW_TRY(cut_lists(s, j));
        for (int i = 0; i < job->shape.nsegments; i++) {
            tw__tensor *t = tw__owner(s, j, i);
            int dense = tw__is_dense(s->plan);
            TW_TRY(dense ? apply_dense(g, t) : apply_segment(job, i, t));
            t->steps++;
            t->info.k = job->segments[i].k;
            t->info.applied = dense ? t->n : t->result.count;
            t->info.exchange = s->exchanges[j]->name;
        }
    }
    TW_TRY(g->backend->stream_wait(g->stream));
    s->info.apply_seconds = tw__transport_seconds(g->transport) - begin;
    return TW_OK;
}
