/* step_exchange.c - the third stage of a step: selections to sums over all ranks; see step.h */
#include "group/step.h"

#include <assert.h>

/* The selections of all segments, end to end. */
static int gather_own(tw__step *s, int job_at) {
    const tw_group *g = s->g;
    tw__job *job = &s->jobs[job_at];
    int best_k = s->exchanges[job_at]->best_k;
    if (tw__is_dense(s->plan))
        return TW_OK;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__tensor *t = tw__owner(s, job_at, i);
        int64_t most = best_k ? job->segments[i].k : t->selected, count;
        assert(job->own.count + t->selected <= job->shape.most);
        TW_TRY(t->backend->pack(t->selector->state, t->selected, most, job->segments[i].base,
                                job->kind == TW__DEVICE, job->own.at + job->own.count, &count));
        job->own.count += count;
    }
    TW_TRY(g->backend->stream_wait(g->stream));
    assert(job->own.count <= job->shape.most);
    tw__list best = {job->own.at, 0};
    if (best_k) {
        TW_TRY(tw__job_split_best(job, &job->own, &best, NULL));
        job->own = best;
    }
    return TW_OK;
}

static int run_job(tw__step *s, int job_at) {
    tw__job *job = &s->jobs[job_at];
    tw__job_begin(job);
    TW_TRY(gather_own(s, job_at));
    TW_TRY(s->exchanges[job_at]->run(job));
    if (job->shape.wire != NULL && job->result.at != job->own.at) /* may be rounded to nothing */
        TW_TRY(tw__list_keep_above(&job->lists, &job->result, 0, 0));
    return TW_OK;
}

/* An overflow is among the largest sums, so every exchange has it in its result: all ranks see it
 * alike. */
static int check_sums(const tw__step *s) {
    for (int j = 0; j < TW__JOBS; j++) {
        const tw__job *job = &s->jobs[j];
        int finite = 1;
        if (job->result.at != job->own.at) /* one rank's own values were checked before */
            TW_TRY(tw__list_finite(&job->lists, &job->result, &finite));
        for (int i = 0; i < job->shape.nsegments && tw__is_dense(s->plan); i++) {
            const tw__segment *its = &job->segments[i];
            int64_t bad = -1;
            TW_TRY(job->dense->find_bad(job->lists.context, its->out, TW_F32, its->n, &bad));
            finite &= bad < 0;
        }
        if (!finite)
            return tw__fail(TW_ERR_NUMBER, "the sum over ranks overflows in this step; skip it or "
                                           "lower the loss scale");
    }
    return TW_OK;
}

/* One job after the other; their workspaces follow each other in the same arenas. */
int tw__step_exchange(tw__step *s) {
    tw_group *g = s->g;
    tw__arena host = {g->host_memory, 0};
    tw__arena lists[2] = {{g->lists[0].memory, 0}, {g->lists[1].memory, 0}};
    double begin = tw__transport_seconds(g->transport);
    tw__step_make_jobs(s);
    for (int j = 0; j < TW__JOBS; j++) {
        tw__job *job = &s->jobs[j];
        int where = job->kind == TW__DEVICE ? TW__DEVICE_LISTS : TW__HOST_LISTS;
        if (job->shape.nsegments == 0)
            continue;
        job->arenas = (tw__arenas){host, lists[where]};
        TW_TRY(run_job(s, j));
        host = job->arenas.host;
        lists[where] = job->arenas.lists;
    }
    assert(host.used <= g->workspace.host);
    assert(lists[TW__HOST_LISTS].used <= g->workspace.lists[TW__HOST_LISTS]);
    assert(lists[TW__DEVICE_LISTS].used <= g->workspace.lists[TW__DEVICE_LISTS]);
    s->info.exchange_seconds = tw__transport_seconds(g->transport) - begin;
    return check_sums(s);
}
