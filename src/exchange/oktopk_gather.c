/* oktopk_gather.c - the last part of oktopk: the sums that ranks hold go to everyone
 *
 * Raw entries are balanced first: where holdings differ by more than 3 %, entries move so that all
 * ranks send the same number. Each entry has its position in the result, the holdings end to end, so
 * shares are stretches of it. P = 3, holdings 1, 6, 2:
 *
 *     held by         0 | 1  1  1  1  1  1 | 2  2
 *     shared by       0   0  0 | 1  1  1 | 2  2  2      rank 1 sends 2 entries to rank 0, 1 to rank 2
 *
 * In a wire format each rank sends what it holds, since the rank that rounds a sum keeps the
 * remainder: batch after batch, so that most is read and settled while more travels. */
#include "exchange/oktopk.h"

#include <assert.h>

typedef tw__oktopk_space space;

/* ---- raw entries: balance and gather */

static void add_up(const int64_t *counts, int nranks, int64_t *starts) {
    starts[0] = 0;
    for (int r = 0; r < nranks; r++)
        starts[r + 1] = starts[r] + counts[r];
}

static int largest(const int64_t *counts, int nranks) {
    int at = 0;
    for (int r = 1; r < nranks; r++)
        if (counts[r] > counts[at])
            at = r;
    return at;
}

/* Moving entries pays from 3 % on: all wait for the rank with the largest holding. */
static int skewed(const int64_t *holdings, int nranks, int64_t total) {
    int64_t excess = holdings[largest(holdings, nranks)] * nranks - total;
    return 32 * excess > total;
}

/* Where each rank's share of the result starts: the holdings, or equal shares. The ranks after the
 * one with the largest holding get one more, where the total does not divide. */
static void assign_shares(const tw__job *job, space *w, int64_t total) {
    int nranks = job->shape.nranks;
    if (!skewed(w->holdings, nranks, total)) {
        memcpy(w->shares, w->starts, sizeof(int64_t) * (size_t)(nranks + 1));
        return;
    }
    int after = largest(w->holdings, nranks) + 1;
    w->shares[0] = 0;
    for (int r = 0; r < nranks; r++) {
        int odd = (r - after + nranks) % nranks < total % nranks;
        w->shares[r + 1] = w->shares[r] + total / nranks + odd;
    }
}

static int64_t overlap(const int64_t *a, const int64_t *b, int64_t *from) {
    *from = a[0] > b[0] ? a[0] : b[0];
    int64_t to = a[1] < b[1] ? a[1] : b[1];
    return to > *from ? to - *from : 0;
}

/* A stretch of entries as a message; no message where it is empty, which the other rank knows. */
static tw__buffer stretch(tw__entry *at, int64_t count) {
    size_t bytes = sizeof(tw__entry) * (size_t)count;
    return (tw__buffer){count > 0 ? at : NULL, bytes, bytes};
}

static int exchange(tw__job *job, space *w) {
    TW_TRY(tw__alltoall_run(job->transport, job->kind, w->out[0], w->in[0], w->alltoall[0]));
    return tw__job_check_lengths(job, w->in[0]);
}

/* Entries move from the ranks that hold them to the ranks that share them, each to its position in
 * the result. */
static int balance(tw__job *job, space *w, const tw__list *held) {
    const int64_t *starts = w->starts, *shares = w->shares;
    int rank = job->rank;
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t from, count = overlap(starts + rank, shares + r, &from);
        w->out[0][r] = stretch(held->at + (from - starts[rank]), count);
        count = overlap(starts + r, shares + rank, &from);
        w->in[0][r] = stretch(w->result + from, count);
        if (r == rank)
            TW_TRY(job->lists.calls->move(job->lists.context, w->result + from,
                                          held->at + (from - starts[rank]), count));
    }
    return exchange(job, w);
}

static int gather_shares(tw__job *job, space *w) {
    const int64_t *shares = w->shares;
    for (int r = 0; r < job->shape.nranks; r++) {
        w->out[0][r] =
            stretch(w->result + shares[job->rank], shares[job->rank + 1] - shares[job->rank]);
        w->in[0][r] = stretch(w->result + shares[r], shares[r + 1] - shares[r]);
    }
    return exchange(job, w);
}

/* Each rank's sums are right, but not all of them together: nobody knows whose are too many. */
static int blame_all(int error) {
    if (error != TW_ERR_PROTOCOL)
        return error;
    return tw__fail(error, "the ranks' sums together are out of order, or more than k of a tensor; "
                           "do all ranks run the same version?");
}

/* An error names the rank that sent the wrong entries. */
static int check_result(tw__job *job, const space *w) {
    int error = tw__job_check_list(job, &job->result, job->rank);
    for (int r = 0; r < job->shape.nranks && error != TW_OK; r++) {
        tw__list share = {w->result + w->shares[r], w->shares[r + 1] - w->shares[r]};
        TW_TRY(tw__list_check(&job->lists, &share, 0, job->shape.span, r));
    }
    return blame_all(error);
}

static int gather_raw(tw__job *job, space *w, const tw__list *held) {
    assign_shares(job, w, w->starts[job->shape.nranks]);
    TW_TRY(balance(job, w, held));
    TW_TRY(gather_shares(job, w));
    job->result = (tw__list){w->result, w->starts[job->shape.nranks]};
    TW_TRY(check_result(job, w));
    job->left.at = w->left;
    return tw__list_intersect(&job->lists, &job->own, &job->result, &job->left);
}

/* ---- packed messages, each about one batch of its sender's region */

/* Which own entries are in the sums of a part, and what rounding took of those. Both lists lie at the
 * positions of the part's own entries, so parts do not wait for each other. An entry that was not
 * applied stays in the residual unrounded. */
static int settle(tw__job *job, space *w, int part, const tw__list *sums) {
    const tw__list *own = &w->parts[part];
    tw__list *left = &w->left_of[part], *kept = &w->kept_of[part];
    int64_t at = own->at - job->own.at;
    tw__list all = {w->kept[2] + at, 0}; /* free until parts are joined */
    assert(at >= 0 && at + own->count <= job->shape.k);
    *left = (tw__list){w->left + at, 0};
    TW_TRY(tw__list_intersect(&job->lists, own, sums, left));
    if (part / w->batches == job->rank)
        return TW_OK; /* they were not sent, and so not rounded */
    *kept = (tw__list){w->kept[0] + at, 0};
    TW_TRY(tw__pack_remainders(job, own, w->rounded + at, &all));
    return tw__list_intersect(&job->lists, &all, left, kept);
}

/* Reads batch b of rank r's region. A rank's batches are read in order. */
static int read_batch(tw__job *job, space *w, int r, int b, const tw__buffer *message) {
    int part = r * w->batches + b;
    int64_t most = w->holdings[r] - w->arrived[r];
    tw__entry *to = w->result + w->starts[r] + w->arrived[r];
    tw__list sums = {0};
    assert(most >= 0);
    TW_TRY(tw__unpack_list(job, message, w->bounds[part], w->bounds[part + 1], most, r, to, &sums));
    if (b == w->batches - 1 && sums.count != most)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld sums, expected were %lld", r,
                        (long long)(w->arrived[r] + sums.count), (long long)w->holdings[r]);
    if (sums.at != to)
        TW_TRY(job->lists.calls->move(job->lists.context, to, sums.at, sums.count));
    sums.at = to;
    w->arrived[r] += sums.count;
    if (job->arrived != NULL)
        job->arrived(job->arrived_context, job, &sums);
    return settle(job, w, part, &sums);
}

/* Where the next messages are packed, and where they arrive. */
typedef struct cursor {
    char *sent, *packed;
} cursor;

/* Begins to send batch b of what is held to everyone. A rank that holds nothing sends no messages. */
static int begin_batch(tw__job *job, space *w, int b, const tw__list *held, cursor *c,
                       tw__buffer *own, tw__alltoall *alltoall) {
    int part = job->rank * w->batches + b;
    tw__list list;
    TW_TRY(tw__list_between(&job->lists, held, w->bounds[part], w->bounds[part + 1], &list));
    TW_TRY(tw__pack_list(job, &list, w->bounds[part], w->bounds[part + 1], &c->sent,
                         w->rounded + job->shape.k + (list.at - held->at), own));
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t most = w->holdings[r];
        w->out[b][r] = held->count > 0 ? *own : (tw__buffer){0};
        w->in[b][r] = (tw__buffer){0};
        if (most == 0 || r == job->rank)
            continue;
        part = r * w->batches + b;
        w->in[b][r] = tw__pack_receive(job->shape.wire, most, w->bounds[part], w->bounds[part + 1],
                                       NULL, c->packed);
        c->packed += tw__pack_capacity(job->shape.wire, most, 1);
    }
    return tw__alltoall_begin(alltoall, job->transport, job->kind, w->out[b], w->in[b],
                              w->alltoall[b]);
}

/* What this rank holds, as others see it. */
static int read_own(tw__job *job, space *w, const tw__list *held, const tw__buffer *own) {
    tw__list *kept = &w->kept_of[job->rank * w->batches];
    *kept = (tw__list){w->kept[1], 0};
    for (int b = 0; b < w->batches && held->count > 0; b++)
        TW_TRY(read_batch(job, w, job->rank, b, &own[b]));
    return tw__pack_remainders(job, held, w->rounded + job->shape.k, kept);
}

/* Reads every message when it has arrived. */
static int read_others(tw__job *job, space *w, tw__alltoall *alltoalls) {
    for (int b = 0, from = 0;;) {
        TW_TRY(tw__alltoalls_next(alltoalls, w->batches, &b, &from));
        if (from < 0)
            return TW_OK;
        TW_TRY(read_batch(job, w, from, b, &w->in[b][from]));
    }
}

static int gather_batches(tw__job *job, space *w, const tw__list *held) {
    tw__alltoall alltoalls[TW__OKTOPK_BATCHES] = {0};
    tw__buffer own[TW__OKTOPK_BATCHES];
    cursor c = {w->sent, w->packed};
    int error = TW_OK;
    for (int r = 0; r < job->shape.nranks; r++)
        w->arrived[r] = 0;
    for (int part = 0; part < job->shape.nranks * w->batches; part++)
        w->left_of[part] = w->kept_of[part] = (tw__list){0};
    for (int b = 0; b < w->batches && error == TW_OK; b++) {
        if (b > 0)
            error = tw__alltoall_flush(&alltoalls[b - 1]);
        if (error == TW_OK)
            error = begin_batch(job, w, b, held, &c, &own[b], &alltoalls[b]);
    }
    if (error == TW_OK)
        error = read_own(job, w, held, own);
    if (error == TW_OK)
        error = read_others(job, w, alltoalls);
    for (int b = 0; b < w->batches && error != TW_OK; b++)
        tw__alltoall_cancel(&alltoalls[b]);
    return error;
}

/* The parts' lists, one behind the other; `to` may be where the first of them is. */
static int join(const tw__job *job, const space *w, const tw__list *parts, tw__entry *to,
                tw__list *all) {
    *all = (tw__list){to, 0};
    for (int part = 0; part < job->shape.nranks * w->batches; part++)
        TW_TRY(tw__list_append(&job->lists, all, &parts[part]));
    return TW_OK;
}

static int gather_packed(tw__job *job, space *w, const tw__list *held) {
    TW_TRY(gather_batches(job, w, held));
    job->result = (tw__list){w->result, w->starts[job->shape.nranks]};
    TW_TRY(join(job, w, w->left_of, w->left, &job->left));
    TW_TRY(join(job, w, w->kept_of, w->kept[2], &job->kept));
    return blame_all(tw__job_check_counts(job, &job->result, job->rank));
}

int tw__oktopk_gather(tw__job *job, space *w, const tw__list *held) {
    int nranks = job->shape.nranks;
    add_up(w->holdings, nranks, w->starts);
    int64_t total = w->starts[nranks];
    if (total > job->shape.k || w->holdings[job->rank] != held->count)
        return tw__fail(TW_ERR_PROTOCOL, "ranks hold %lld sums; possible are %lld",
                        (long long)total, (long long)job->shape.k);
    return job->shape.wire != NULL ? gather_packed(job, w, held) : gather_raw(job, w, held);
}
