/* exchange_gtopk.c - a tree of merges, selecting again at each, and a broadcast
 *
 * gTop-k (Shi et al., 2019), for any P and without loss. Lists travel up a binomial tree towards
 * rank 0: at distance d = 1, 2, 4 ... rank r sends to r - d if r is an odd multiple of d, and
 * otherwise merges the list of r + d, if there is one, into its own and keeps the k largest sums.
 * Then rank 0's list goes down the same tree. With P = 5:
 *
 *     d = 1    0 <- 1    2 <- 3    4         up, then the same down in reverse order
 *     d = 2    0 <----- 2         4
 *     d = 4    0 <--------------- 4
 *
 * Cost: 4k log2 P words on the longest path; rank 0 receives 2k log2 P and sends as much.
 *
 * The rank that drops a sum at a merge keeps it in its residual, with all that other ranks
 * contributed: they count their entries as sent. The published code loses a sum whose index reaches
 * the root by another branch.
 *
 * Example, P = 3, k = 1: rank 0 has {4: 2}, rank 1 {4: 1}, rank 2 {7: -5}. d = 1: rank 0 merges
 * rank 1's to {4: 3}. d = 2: rank 0 merges rank 2's to {4: 3, 7: -5}, keeps {7: -5} and adds 3 to
 * index 4 of its residual: its own 2 and the 1 of rank 1. */
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

typedef struct space {
    tw__entry *list;     /* [k]: this rank's list */
    tw__entry *received; /* [k] */
    tw__entry *merged;   /* [2k] */
    tw__entry *dropped;  /* [levels][k] */
    tw__entry *kept;     /* [levels * k] */
    tw__list *drops;     /* [levels + 1]: what each merge dropped, and what rounding took */
    char *packed[2];     /* a message sent, a message received */
    float *rounded;      /* [k] */
} space;

/* Merges that a rank does at most. */
static int levels(int nranks) {
    int count = 0;
    while (((int64_t)1 << count) < nranks)
        count++;
    return count;
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *host = &arenas->host, *lists = &arenas->lists;
    int64_t merges = levels(s->nranks), rounds = s->wire != NULL;
    return (space){
        .list = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .received = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .merged = tw__arena_take(lists, 2 * s->k, sizeof(tw__entry)),
        .dropped = tw__arena_take(lists, (merges + rounds) * s->k, sizeof(tw__entry)),
        .kept = tw__arena_take(lists, (merges + rounds) * s->k, sizeof(tw__entry)),
        .drops = tw__arena_take(host, merges + 1, sizeof(tw__list)),
        .packed = {tw__arena_take(lists, 1, tw__pack_capacity(s->wire, s->k, 1)),
                   tw__arena_take(lists, 1, tw__pack_capacity(s->wire, s->k, 1))},
        .rounded = tw__arena_take(lists, rounds * s->k, sizeof(float)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    double most = 4.0 * k * levels((int)nranks);
    return (tw_cost){
        .least = nranks > 1.0 ? 2.0 * k : 0.0, .most = most, .latencies = 2.0 * log2(nranks)};
}

/* From the farthest rank to rank 0 and back. */
static tw__cost_terms terms(const tw__shape *s) {
    double hops = 2.0 * levels(s->nranks);
    return (tw__cost_terms){
        .rounds = hops,
        .messages = hops,
        .bytes = hops * (double)tw__pack_bytes(s->wire, s->k, 0, s->span),
        .entries = s->wire != NULL ? hops * (double)s->k : 0.0,
        .merged = hops * (double)s->k,
    };
}

/* Receives to list->at[k]. *message is what arrived, for passing it on. */
static int receive_list(tw__job *job, space *w, int peer, tw__list *list, tw__buffer *message) {
    const tw__shape *s = &job->shape;
    tw__entry *entries = list->at;
    tw__message under_way;
    *message = tw__pack_receive(s->wire, s->k, 0, s->span, entries, w->packed[1]);
    TW_TRY(tw__transport_recv(job->transport, peer, job->kind, message->data, message->capacity,
                              &under_way));
    TW_TRY(tw__transport_wait(job->transport, &under_way, 1));
    message->bytes = under_way.bytes;
    TW_TRY(tw__unpack_list(job, message, 0, s->span, s->k, peer, entries, list));
    if (list->at != entries) /* plain entries within a packed message */
        TW_TRY(job->lists.calls->move(job->lists.context, entries, list->at, list->count));
    list->at = entries;
    return tw__job_check_list(job, list, peer);
}

static int send_message(tw__job *job, int peer, const tw__buffer *message) {
    tw__message under_way;
    TW_TRY(tw__transport_send(job->transport, peer, job->kind, message->data, message->bytes,
                              &under_way));
    return tw__transport_wait(job->transport, &under_way, 1);
}

/* Packs the list. What rounding takes away is one more list of drops, after those of the merges. */
static int pack(tw__job *job, space *w, tw__list *list, int merges, tw__buffer *message) {
    char *packed = w->packed[0];
    tw__list *remainders = &w->drops[merges];
    *remainders = (tw__list){w->dropped + merges * job->shape.k, 0};
    TW_TRY(tw__pack_list(job, list, 0, job->shape.span, &packed, w->rounded, message));
    TW_TRY(tw__pack_remainders(job, list, w->rounded, remainders));
    return tw__pack_set_rounded(job, list, w->rounded);
}

/* This rank's last merge is done: it packs its list, and keeps what it dropped. Where a float cannot
 * hold that, a NaN in the list tells all ranks to refuse the step. It outranks all sums, so it
 * reaches the result. */
static int end_merging(tw__job *job, space *w, tw__list *list, int merges, tw__buffer *message) {
    int yes = 0;
    assert(merges <= levels(job->shape.nranks));
    TW_TRY(pack(job, w, list, merges, message));
    job->kept.at = w->kept;
    job->left = job->own;
    TW_TRY(tw__list_reduce(&job->lists, w->drops, merges + 1, &job->kept));
    TW_TRY(tw__job_overflows(job, &yes));
    if (yes && list->count > 0) {
        TW_TRY(job->lists.calls->spoil(job->lists.context, list->at));
        TW_TRY(pack(job, w, list, merges, message));
    }
    return TW_OK;
}

/* Up the tree. Afterwards rank 0's list is the result. */
static int merge_up(tw__job *job, space *w, tw__list *list, tw__buffer *message) {
    int merges = 0;
    for (int d = 1; d < job->shape.nranks; d *= 2) {
        if (job->rank % (2 * d) != 0) {
            TW_TRY(end_merging(job, w, list, merges, message));
            return send_message(job, job->rank - d, message);
        }
        if (job->rank + d >= job->shape.nranks)
            continue;
        tw__list received = {w->received, 0}, merged = {w->merged, 0};
        tw__list *dropped = &w->drops[merges];
        *dropped = (tw__list){w->dropped + merges * job->shape.k, 0};
        TW_TRY(receive_list(job, w, job->rank + d, &received, message));
        TW_TRY(tw__list_merge(&job->lists, list, &received, &merged));
        assert(merged.count <= 2 * job->shape.k);
        list->count = 0;
        TW_TRY(tw__job_split_best(job, &merged, list, dropped));
        merges++;
    }
    return end_merging(job, w, list, merges, message);
}

/* Rank 0's message. The others pass it on unchanged, to one rank after the other: the first one has
 * the most to pass on itself, and would be late if all shared the link. */
static int broadcast(tw__job *job, space *w, tw__list *list, tw__buffer *message) {
    int d = 1; /* the distance at which this rank sent its list up; beyond all for rank 0 */
    while (d < job->shape.nranks && job->rank % (2 * d) == 0)
        d *= 2;
    if (job->rank != 0)
        TW_TRY(receive_list(job, w, job->rank - d, list, message));
    for (d /= 2; d >= 1; d /= 2)
        if (job->rank + d < job->shape.nranks)
            TW_TRY(send_message(job, job->rank + d, message));
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    tw__buffer message = {0};
    assert(job->own.count <= job->shape.k);
    job->result = (tw__list){w.list, 0};
    TW_TRY(tw__list_append(&job->lists, &job->result, &job->own));
    TW_TRY(merge_up(job, &w, &job->result, &message));
    return broadcast(job, &w, &job->result, &message);
}

const tw__exchange tw__exchange_gtopk = {
    .name = "gtopk",
    .description = "merges up a tree, the k largest sums each time, then a broadcast (gTop-k)",
    .backends = TW__ALL_BACKENDS,
    .best_k = 1,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .run = run,
};
