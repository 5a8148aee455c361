/* exchange_gtopk.c - a tree of merges, selecting again at each, and a broadcast
 *
 * gTop-k (Shi et al., 2019), for any P and without loss. Lists travel up a binomial tree towards
 * rank 0: at distance d = 1, 2, 4 ... rank r sends to r - d if r is an odd multiple of d, and
 * otherwise merges the list of r + d, if there is one, into its own and keeps the k largest sums.
 * Then rank 0's list goes down the same way. Cost: 4k log2 P words on the longest path; rank 0
 * receives 2k log2 P and sends as much.
 *
 * Whoever drops a sum at a merge keeps it in its residual, with all that other ranks contributed to
 * it: they count their entries as sent. The published code loses a sum whose index reaches the root
 * by another branch.
 *
 * Example, P = 3, k = 1: rank 0 has {4: 2}, rank 1 {4: 1}, rank 2 {7: -5}. d = 1: rank 0 merges
 * rank 1's to {4: 3}. d = 2: rank 0 merges rank 2's to {4: 3, 7: -5}, keeps {7: -5} and has 3 more
 * at index 4 of its residual: its own 2 and the 1 of rank 1. */
#include "exchange/exchange.h"

typedef struct space {
    tw__entry *list;     /* [k]: this rank's list */
    tw__entry *received; /* [k] */
    tw__entry *merged;   /* [2k] */
    tw__entry *dropped;  /* [levels][k] */
    tw__entry *kept;     /* [levels * k] */
    tw__list *drops;     /* [levels + 1]: what each merge dropped, and what rounding took */
    char *mail[2];       /* a letter sent, a letter received */
    float *rounded;      /* [k] */
} space;

/* Merges that a rank does at most. */
static int levels(int nranks) {
    int count = 0;
    while (((int64_t)1 << count) < nranks)
        count++;
    return count;
}

static int64_t applied(const tw__shape *s) {
    return s->k;
}

static space layout(tw__arenas *room, const tw__shape *s) {
    tw__arena *host = &room->host, *lists = &room->lists;
    int64_t merges = levels(s->nranks), rounds = s->wire != NULL;
    return (space){
        .list = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .received = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .merged = tw__arena_take(lists, 2 * s->k, sizeof(tw__entry)),
        .dropped = tw__arena_take(lists, (merges + rounds) * s->k, sizeof(tw__entry)),
        .kept = tw__arena_take(lists, (merges + rounds) * s->k, sizeof(tw__entry)),
        .drops = tw__arena_take(host, merges + 1, sizeof(tw__list)),
        .mail = {tw__arena_take(lists, 1, tw__pack_room(s->wire, s->k, 1)),
                 tw__arena_take(lists, 1, tw__pack_room(s->wire, s->k, 1))},
        .rounded = tw__arena_take(lists, rounds * s->k, sizeof(float)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *room) {
    layout(room, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    double most = 4.0 * k * levels((int)nranks);
    return (tw_cost){nranks > 1.0 ? 2.0 * k : 0.0, most};
}

/* The way from the farthest rank to rank 0 and back. */
static tw__cost_terms effort(const tw__shape *s) {
    double hops = 2.0 * levels(s->nranks);
    return (tw__cost_terms){
        .rounds = hops,
        .messages = hops,
        .bytes = hops * (double)tw__pack_bytes(s->wire, s->k, 0, s->span),
        .entries = s->wire != NULL ? hops * (double)s->k : 0.0,
        .merged = hops * (double)s->k,
    };
}

/* *letter is what arrived, for passing it on; in a wire format it lies in the mail. */
static int receive_list(tw__job *job, space *w, int peer, tw__list *list, tw__buffer *letter) {
    const tw__shape *s = &job->shape;
    void *at = s->wire != NULL ? (void *)w->mail[1] : (void *)list->at;
    tw__message message;
    TW_TRY(tw__transport_recv(job->transport, peer, job->cargo, at,
                              tw__pack_bound(s->wire, s->k, 0, s->span), &message));
    TW_TRY(tw__transport_wait(job->transport, &message, 1));
    *letter = (tw__buffer){at, message.bytes, 0};
    tw__entry *room = list->at;
    TW_TRY(tw__unpack_list(job, letter, 0, s->span, s->k, peer, room, list));
    if (list->at != room) /* a plain letter */
        TW_TRY(job->lists.calls->move(job->lists.context, room, list->at, list->count));
    list->at = room;
    return tw__job_check_list(job, list, peer);
}

static int send_letter(tw__job *job, int peer, const tw__buffer *letter) {
    tw__message message;
    TW_TRY(tw__transport_send(job->transport, peer, job->cargo, letter->data, letter->bytes,
                              &message));
    return tw__transport_wait(job->transport, &message, 1);
}

/* Writes the list; what rounding takes away is dropped here, after `merges` others. */
static int write_list(tw__job *job, space *w, tw__list *list, int merges, tw__buffer *letter) {
    char *mail = w->mail[0];
    tw__list *remainders = &w->drops[merges];
    *remainders = (tw__list){w->dropped + merges * job->shape.k, 0};
    TW_TRY(tw__pack_list(job, list, 0, job->shape.span, &mail, w->rounded, letter));
    TW_TRY(tw__pack_remainders(job, list, w->rounded, remainders));
    return tw__pack_round(job, list, w->rounded);
}

/* Of the merged list, each segment's k best go to list, the others to dropped. */
static int select_again(tw__job *job, const tw__list *merged, tw__list *list, tw__list *dropped) {
    list->count = dropped->count = 0;
    const tw__list *parts = job->parts[0];
    TW_TRY(tw__job_cut(job, merged, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        int64_t kept;
        TW_TRY(tw__list_split_best(&job->lists, &parts[i], job->segments[i].k,
                                   list->at + list->count, dropped->at + dropped->count, &kept));
        list->count += kept;
        dropped->count += parts[i].count - kept;
    }
    return TW_OK;
}

/* This rank has merged all that it will, and writes it: what it dropped becomes what it keeps. Where
 * that cannot be held in a float, a NaN in the list tells all ranks to refuse the step: it outranks
 * all sums, so it reaches the result. */
static int end_merging(tw__job *job, space *w, tw__list *list, int merges, tw__buffer *letter) {
    int yes = 0;
    TW_TRY(write_list(job, w, list, merges, letter));
    job->kept.at = w->kept;
    job->left = job->own;
    TW_TRY(tw__list_reduce(&job->lists, w->drops, merges + 1, &job->kept));
    TW_TRY(tw__job_overflows(job, &yes));
    if (yes && list->count > 0) {
        TW_TRY(job->lists.calls->spoil(job->lists.context, list->at));
        TW_TRY(write_list(job, w, list, merges, letter));
    }
    return TW_OK;
}

/* Up the tree. Afterwards rank 0's list is the result. */
static int merge_up(tw__job *job, space *w, tw__list *list, tw__buffer *letter) {
    int merges = 0;
    for (int d = 1; d < job->shape.nranks; d *= 2) {
        if (job->rank % (2 * d) != 0) {
            TW_TRY(end_merging(job, w, list, merges, letter));
            return send_letter(job, job->rank - d, letter);
        }
        if (job->rank + d >= job->shape.nranks)
            continue;
        tw__list received = {w->received, 0}, merged = {w->merged, 0};
        tw__list *dropped = &w->drops[merges];
        dropped->at = w->dropped + merges * job->shape.k;
        TW_TRY(receive_list(job, w, job->rank + d, &received, letter));
        TW_TRY(tw__list_merge(&job->lists, list, &received, &merged));
        TW_TRY(select_again(job, &merged, list, dropped));
        merges++;
    }
    return end_merging(job, w, list, merges, letter);
}

/* The distance at which this rank sent its list up; beyond all for rank 0. */
static int parent_distance(const tw__job *job) {
    int d = 1;
    while (d < job->shape.nranks && job->rank % (2 * d) == 0)
        d *= 2;
    return d;
}

/* Rank 0's letter; the others pass it on as it came, to one after the other: the first has the most
 * to pass on itself, and would have to wait for all if they shared the link. */
static int broadcast(tw__job *job, space *w, tw__list *list, tw__buffer *letter) {
    int d = parent_distance(job);
    if (job->rank != 0)
        TW_TRY(receive_list(job, w, job->rank - d, list, letter));
    for (d /= 2; d >= 1; d /= 2)
        if (job->rank + d < job->shape.nranks)
            TW_TRY(send_letter(job, job->rank + d, letter));
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->room, &job->shape);
    job->result = (tw__list){w.list, job->own.count};
    TW_TRY(job->lists.calls->move(job->lists.context, w.list, job->own.at, job->own.count));
    tw__buffer letter = {0};
    TW_TRY(merge_up(job, &w, &job->result, &letter));
    return broadcast(job, &w, &job->result, &letter);
}

const tw__exchange tw__exchange_gtopk = {
    .name = "gtopk",
    .description = "merges up a tree, the k largest sums each time, then a broadcast (gTop-k)",
    .best_k = 1,
    .cost = cost,
    .effort = effort,
    .memory = memory,
    .applied = applied,
    .run = run,
};
