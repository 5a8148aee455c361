/* job.c - what all exchanges do with a job; see job.h */
#include "exchange/job.h"
#include "select/selector.h"

#include <assert.h>

static void layout(tw__job *job, const tw__shape *s, tw__arenas *arenas) {
    job->own.at = tw__arena_take(&arenas->lists, s->most, sizeof(tw__entry));
    job->bases = tw__arena_take(&arenas->host, s->nsegments + 1, sizeof(int64_t));
    job->positions = tw__arena_take(&arenas->host, s->nsegments + 1, sizeof(int64_t));
    for (int i = 0; i < 3; i++)
        job->parts[i] = tw__arena_take(&arenas->host, s->nsegments, sizeof(tw__list));
}

void tw__job_memory(const tw__shape *shape, tw__arenas *arenas) {
    tw__job counting;
    layout(&counting, shape, arenas);
}

void tw__job_begin(tw__job *job) {
    int64_t end = 0;
    assert(job->shape.nsegments > 0 && job->rank >= 0 && job->rank < job->shape.nranks);
    layout(job, &job->shape, &job->arenas);
    for (int i = 0; i < job->shape.nsegments; i++) {
        assert(job->segments[i].base == end && job->segments[i].n >= 0);
        job->bases[i] = end;
        end += job->segments[i].n;
    }
    assert(end == job->shape.span);
    job->bases[job->shape.nsegments] = end;
}

int tw__job_cut(const tw__job *job, const tw__list *list, tw__list *parts) {
    assert(tw__list_is_sorted(&job->lists, list, 0, job->shape.span));
    parts[0] = *list;
    if (job->shape.nsegments == 1)
        return TW_OK;
    return tw__list_cut(&job->lists, list, job->bases, job->shape.nsegments + 1, job->positions,
                        parts);
}

int tw__job_split_best(tw__job *job, const tw__list *list, tw__list *best, tw__list *dropped) {
    const tw__list *parts = job->parts[0];
    TW_TRY(tw__job_cut(job, list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        int64_t kept;
        TW_TRY(tw__list_split_best(&job->lists, &parts[i], job->segments[i].k,
                                   best->at + best->count,
                                   dropped != NULL ? dropped->at + dropped->count : NULL, &kept));
        best->count += kept;
        if (dropped != NULL)
            dropped->count += parts[i].count - kept;
    }
    return TW_OK;
}

int tw__job_check_list(tw__job *job, const tw__list *list, int rank) {
    TW_TRY(tw__list_check(&job->lists, list, 0, job->shape.span, rank));
    return tw__job_check_counts(job, list, rank);
}

int tw__job_check_counts(tw__job *job, const tw__list *list, int rank) {
    const tw__list *parts = job->parts[0];
    TW_TRY(tw__job_cut(job, list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++)
        if (parts[i].count > job->segments[i].k)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, more than k = %lld", rank,
                            (long long)parts[i].count, (long long)job->segments[i].k);
    return TW_OK;
}

int tw__job_check_lengths(const tw__job *job, const tw__buffer *in) {
    for (int r = 0; r < job->shape.nranks; r++)
        if (r != job->rank && in[r].bytes != in[r].capacity)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, expected were %zu", r,
                            in[r].bytes, in[r].capacity);
    return TW_OK;
}

static int gather_around_ring(tw__job *job, const tw__buffer *own, tw__buffer *in) {
    tw__ring ring;
    int piece = 0, from = 0;
    TW_TRY(tw__ring_begin(&ring, job->transport, TW__PAYLOAD, own, in, 1));
    while (from >= 0)
        TW_TRY(tw__ring_next(&ring, &piece, &from));
    return TW_OK;
}

int tw__job_gather(tw__job *job, const tw__buffer *own, tw__buffer *out, tw__buffer *in,
                   void *alltoall) {
    if (tw__job_uses_ring(job))
        return gather_around_ring(job, own, in);
    for (int r = 0; r < job->shape.nranks; r++)
        out[r] = *own;
    return tw__alltoall_run(job->transport, job->kind, out, in, alltoall);
}

int tw__job_overflows(tw__job *job, int *yes) {
    *yes = 0;
    if (job->kept.count == 0)
        return TW_OK;
    TW_TRY(tw__job_cut(job, &job->kept, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    for (int i = 0; i < job->shape.nsegments && !*yes; i++)
        TW_TRY(tw__selector_overflows(job->segments[i].selector, job->kind == TW__DEVICE,
                                      &job->parts[0][i], &job->parts[1][i], job->segments[i].base,
                                      yes));
    return TW_OK;
}

int tw__job_uses_ring(const tw__job *job) {
    return job->shape.nranks > 1 && job->kind == TW__PAYLOAD && tw__job_is_long(&job->shape);
}
