/* exchange_oktopk.c - balanced regions, global top-k, balanced gathering: at most 6k words
 *
 * Ok-Topk (Li and Hoefler, 2022), with a bound that holds for every input. Each rank brings its best
 * k entries.
 *
 *   split    the index space is cut into P regions that hold about as many entries of all ranks
 *            each (oktopk_partition.c); the entries of region j go to rank j, which sums them in the
 *            order of ranks. Regions are cut into batches: one is summed while the next ones travel.
 *   select   the k largest of all sums (oktopk_topk.c); everyone learns how many every rank holds
 *   balance  where holdings differ, entries move so that all hold the same (oktopk_gather.c)
 *   gather   everyone sends its share to everyone
 *
 * In a wire format nothing is balanced: a sum is rounded once, and the rank that rounds it keeps the
 * remainder.
 *
 * In entries, with T <= k in the result, T = qP + m, and k >= 8P:
 *
 *              sent                         received
 *   split      k                            2k, see below
 *   balance    its holding h <= T           s, its share: q or q + 1
 *   gather     s(P - 1)                     T - s
 *
 * Received: 2k + T <= 3k. Sent: the rank with the largest holding never gets one of the m shares of
 * q + 1: k + (T - q) + q(P - 1) <= 3k if the rest of its holding is its share, and if its holding
 * and its share have nothing in common, h <= T - q all the same, since the others' entries fill the
 * shares before or after it. Any other has h <= T/2: k + T/2 + (q + 1)(P - 1) <= 2.5k + P <= 3k. An
 * entry is two words: 6k.
 *
 * The partition promises regions of at most 2k entries but for extreme crowding. There, each rank
 * holds back the smallest of its entries, which stay in its residual.
 *
 * Worked example, P = 2, n = 8, k = 3:
 *
 *     index            0  1  2  3  4 | 5  6  7       the cut is before 5: 3 entries on each side
 *     rank 0 brings       4 -1       |       2       sends {7: 2}
 *     rank 1 brings       1          | 3     2       sends {1: 1}
 *     sums                5 -1       | 3     4       the 3rd largest magnitude of all is 3
 *     result              5          | 3     4       rank 0 holds 1, rank 1 holds 2 of it
 *
 * Rank 0's residual keeps the -1 at 2. */
#include "exchange/oktopk.h"

#include <assert.h>
#include <math.h>

/* From this k on regions are cut into batches. Below, messages are too short to be cut. */
#define BATCH_K 32768
#define BATCHES TW__OKTOPK_BATCHES
/* Histograms and such, of 2 KiB, in a step: 16 KiB of control are promised. */
#define CONTROL_MESSAGES (TW__PARTITION_ROUNDS + TW__TOPK_ROUNDS)

typedef tw__oktopk_space space;

/* Without overlap batches gain nothing. But where values are rounded by blocks, the cuts show in the
 * sums, and these must be the same for all backends. */
static int batches_of(const tw__shape *s) {
    int by_blocks = s->wire != NULL && s->wire->levels_bytes > 0;
    return s->k < BATCH_K || (!s->overlaps && !by_blocks) ? 1 : BATCHES;
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *host = &arenas->host, *lists = &arenas->lists;
    int64_t parts = (int64_t)s->nranks * batches_of(s);
    int64_t packed =
        s->k * (batches_of(s) > 2 ? batches_of(s) : 2); /* 2 in split, else in gather */
    int64_t rounds = s->wire != NULL ? s->k : 0;
    space w = {
        .batches = batches_of(s),
        .bounds = tw__arena_take(host, parts + 1, sizeof(int64_t)),
        .most = tw__arena_take(host, s->nranks, sizeof(int64_t)),
        .holdings = tw__arena_take(host, s->nranks, sizeof(int64_t)),
        .starts = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
        .shares = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
        .incoming = tw__arena_take(host, parts, sizeof(uint32_t)),
        .outgoing = tw__arena_take(host, parts, sizeof(uint32_t)),
        .runs = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .received = tw__arena_take(lists, 2 * s->k, sizeof(tw__entry)),
        .reduced = tw__arena_take(lists, 3 * s->k, sizeof(tw__entry)),
        .result = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .left = tw__arena_take(lists, s->k, sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, tw__pack_capacity(s->wire, s->k, parts)),
        .packed = tw__arena_take(lists, 1, tw__pack_capacity(s->wire, packed, parts)),
        .rounded = tw__arena_take(lists, 2 * rounds, sizeof(float)),
        .kept = {tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, 2 * rounds, sizeof(tw__entry))},
        .arrived = tw__arena_take(host, s->nranks, sizeof(int64_t)),
        .left_of = tw__arena_take(host, parts, sizeof(tw__list)),
        .kept_of = tw__arena_take(host, parts, sizeof(tw__list)),
        .cuts = tw__arena_take(host, parts + 1, sizeof(int64_t)),
        .parts = tw__arena_take(host, parts, sizeof(tw__list)),
        .partition = tw__arena_take(host, 1, tw__partition_memory(s->nranks)),
        .topk = tw__arena_take(host, 1, tw__topk_memory(s->nranks, s->nsegments)),
    };
    for (int i = 0; i < batches_of(s); i++) {
        w.out[i] = tw__arena_take(host, s->nranks, sizeof(tw__buffer));
        w.in[i] = tw__arena_take(host, s->nranks, sizeof(tw__buffer));
        w.alltoall[i] = tw__arena_take(host, 1, tw__alltoall_memory(s->nranks));
    }
    return w;
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    return (tw_cost){.least = 2.0 * k * (nranks - 1.0) / nranks,
                     .most = nranks > 1.0 ? 6.0 * k : 0.0,
                     .latencies = 2.0 * nranks + 2.0 * log2(nranks)};
}

/* Alltoalls: two for the partition, one for the counts, the split, two for a histogram near the
 * threshold, one for the sums that it leaves and what is held, the gather. */
static tw__cost_terms terms(const tw__shape *s) {
    double others = s->nranks - 1.0, share = others / s->nranks, nranks = s->nranks;
    double sums = tw__expected_union(s), listed = 2048.0 * s->nsegments;
    int batches = batches_of(s);
    int64_t parts = (int64_t)s->nranks * batches;
    int64_t found = (int64_t)sums < s->k ? (int64_t)sums : s->k;
    double split = (double)tw__pack_bytes(s->wire, s->k / parts + 1, 0, s->span / parts + 1);
    double gathered =
        (double)tw__pack_bytes(s->wire, found / s->nranks + 1, 0, s->span / s->nranks + 1);
    double bins = (nranks > 64.0 ? 4.0 * nranks : 256.0) + 256.0 * s->nsegments;
    return (tw__cost_terms){
        .rounds = 8.0,
        .messages = others * (6.0 + batches + (s->wire != NULL ? batches : 1)),
        .bytes = others * (batches * split + gathered + 4.0 * batches + 12.0 * s->nsegments) +
                 8.0 * bins * share + listed,
        .entries = s->wire != NULL ? 3.0 * (double)s->k : 0.0,
        .merged = 5.0 * (double)s->k,
    };
}

/* ---- split */

/* Own entries of each part. */
static int cut_own(tw__job *job, space *w) {
    int bounds = job->shape.nranks * w->batches + 1;
    return tw__list_cut(&job->lists, &job->own, w->bounds, bounds, w->cuts, w->parts);
}

/* Keeps back entries of regions that might get more than 2k: every rank the same fraction. */
static int hold_back(tw__job *job, space *w) {
    int64_t limit = 2 * job->shape.k, all = 0;
    TW_TRY(cut_own(job, w));
    for (int r = 0; r < job->shape.nranks; r++) {
        tw__list part = w->parts[r * w->batches];
        for (int b = 1; b < w->batches; b++)
            part.count += w->parts[r * w->batches + b].count;
        int64_t best = part.count, kept;
        if (w->most[r] > limit)
            best = (int64_t)((double)part.count * (double)limit / (double)w->most[r]);
        TW_TRY(tw__list_split_best(&job->lists, &part, best, job->own.at + all, NULL, &kept));
        all += kept;
    }
    job->own.count = all;
    return TW_OK;
}

static int crowded(const tw__job *job, const space *w) {
    for (int r = 0; r < job->shape.nranks; r++)
        if (w->most[r] > 2 * job->shape.k)
            return 1;
    return 0;
}

/* Everyone tells everyone how many entries will come in each batch. */
static int announce(tw__job *job, space *w) {
    int batches = w->batches;
    size_t bytes = sizeof(uint32_t) * (size_t)batches;
    int64_t total = 0;
    int nparts = job->shape.nranks * batches;
    TW_TRY(cut_own(job, w));
    for (int p = 0; p < nparts; p++)
        w->outgoing[p] = (uint32_t)w->parts[p].count;
    for (int r = 0; r < job->shape.nranks; r++) {
        w->out[0][r] = (tw__buffer){w->outgoing + r * batches, bytes, 0};
        w->in[0][r] = (tw__buffer){.data = w->incoming + r * batches, .capacity = bytes};
    }
    TW_TRY(tw__alltoall_run(job->transport, TW__CONTROL, w->out[0], w->in[0], w->alltoall[0]));
    TW_TRY(tw__job_check_lengths(job, w->in[0]));
    for (int r = 0; r < job->shape.nranks; r++)
        for (int b = 0; b < batches && r != job->rank; b++)
            total += w->incoming[r * batches + b];
    if (total > 2 * job->shape.k)
        return tw__fail(TW_ERR_PROTOCOL, "other ranks announce %lld entries; possible are %lld",
                        (long long)total, 2 * (long long)job->shape.k);
    return TW_OK;
}

/* Where the next messages and entries go. */
typedef struct cursor {
    char *sent, *packed;
    tw__entry *received; /* of messages begun; raw entries arrive there */
    tw__entry *decoded;  /* of messages read */
} cursor;

/* Own entries of a part, as a message for the rank that sums it. */
static int pack_part(tw__job *job, space *w, int r, int part, cursor *c, tw__buffer *message) {
    tw__list list = w->parts[part];
    *message = (tw__buffer){0};
    if (r == job->rank || list.count == 0)
        return TW_OK; /* no message; rank r knows from the counts */
    return tw__pack_list(job, &list, w->bounds[part], w->bounds[part + 1], &c->sent,
                         w->rounded + (list.at - job->own.at), message);
}

/* Where rank r's entries for the own part arrive. */
static tw__buffer receive_part(const tw__job *job, const space *w, int r, int b, cursor *c) {
    int own_part = job->rank * w->batches + b;
    int64_t count = w->incoming[r * w->batches + b];
    if (r == job->rank || count == 0)
        return (tw__buffer){0};
    tw__buffer in = tw__pack_receive(job->shape.wire, count, w->bounds[own_part],
                                     w->bounds[own_part + 1], c->received, c->packed);
    c->packed += tw__pack_capacity(job->shape.wire, count, 1);
    c->received += count;
    assert(c->received - w->received <= 2 * job->shape.k);
    return in;
}

/* Begins all messages of batch b. */
static int begin_batch(tw__job *job, space *w, int b, cursor *c, tw__alltoall *alltoall) {
    tw__buffer *out = w->out[b], *in = w->in[b];
    for (int r = 0; r < job->shape.nranks; r++) {
        TW_TRY(pack_part(job, w, r, r * w->batches + b, c, &out[r]));
        in[r] = receive_part(job, w, r, b, c);
    }
    TW_TRY(tw__alltoall_begin(alltoall, job->transport, job->kind, out, in, w->alltoall[b]));
    return tw__alltoall_flush(alltoall);
}

/* Sums what arrived in batch b, and the own entries, and appends the sums. */
static int reduce_batch(tw__job *job, space *w, int b, cursor *c, tw__list *reduced) {
    int part = job->rank * w->batches + b;
    int64_t lo = w->bounds[part], hi = w->bounds[part + 1];
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t count = w->incoming[r * w->batches + b];
        w->runs[r] = (tw__list){0};
        if (r == job->rank)
            w->runs[r] = w->parts[part];
        if (r == job->rank || count == 0)
            continue;
        TW_TRY(tw__unpack_list(job, &w->in[b][r], lo, hi, count, r, c->decoded, &w->runs[r]));
        if (w->runs[r].count != count)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, announced were %lld", r,
                            (long long)w->runs[r].count, (long long)count);
        c->decoded += count;
    }
    tw__list sums = {reduced->at + reduced->count, 0};
    TW_TRY(tw__list_reduce(&job->lists, w->runs, job->shape.nranks, &sums));
    reduced->count += sums.count;
    assert(reduced->count <= 3 * job->shape.k);
    return tw__topk_count(job, &sums, w->topk);
}

/* Batch after batch, AHEAD of them under way while one is summed. More would fill the links before
 * the counts have reached everyone: these arrived 5 ms later (P = 8, 100 Mbit/s). */
#define AHEAD 2

static int split_and_reduce(tw__job *job, space *w, tw__list *reduced) {
    tw__alltoall alltoalls[BATCHES] = {0};
    cursor c = {w->sent, w->packed, w->received, w->received};
    int error = TW_OK, begun = 0;
    for (int b = -AHEAD; b < w->batches && error == TW_OK; b++) {
        if (b >= 0)
            error = tw__alltoall_end(&alltoalls[b]);
        if (error == TW_OK && begun < w->batches) {
            error = begin_batch(job, w, begun, &c, &alltoalls[begun]);
            begun++;
        }
        if (error == TW_OK && b >= 0)
            error = reduce_batch(job, w, b, &c, reduced);
    }
    for (int b = 0; b < begun && error != TW_OK; b++)
        tw__alltoall_cancel(&alltoalls[b]);
    return error;
}

/* ---- the map */

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    int rounds = 0;
    tw__list reduced = {w.reduced, 0};
    assert(job->own.count <= job->shape.k);
    TW_TRY(
        tw__partition(job, job->shape.nranks * w.batches, w.bounds, w.most, &rounds, w.partition));
    if (crowded(job, &w))
        TW_TRY(hold_back(job, &w));
    TW_TRY(announce(job, &w));
    int messages = CONTROL_MESSAGES - rounds;
    tw__topk_begin(job, messages, w.result, job->shape.k, w.topk);
    TW_TRY(split_and_reduce(job, &w, &reduced));
    TW_TRY(tw__topk_select(job, &reduced, messages, w.holdings, w.topk));
    return tw__oktopk_gather(job, &w, &reduced);
}

const tw__exchange tw__exchange_oktopk = {
    .name = "oktopk",
    .description = "balanced regions and global top-k, at most 6k words (Ok-Topk)",
    .backends = TW__ALL_BACKENDS,
    .best_k = 1,
    .least_k = TW__OKTOPK_LEAST_K,
    .fallback = &tw__exchange_butterfly,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .run = run,
};
