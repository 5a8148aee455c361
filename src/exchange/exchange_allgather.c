/* exchange_allgather.c - everyone sends everything to everyone, and all sum alike
 *
 * TopkA and Gaussiank of the papers. The result is the union of the selections: nothing is dropped,
 * and it grows with P. Cost: 2k(P-1) words each way.
 *
 * Long lists go around a ring in pieces. While others travel, a rank reads those that have arrived, and
 * sums the indices that no later piece can bring:
 *
 *     rank 0    piece 0: indices 3 .. 40 | piece 1: 44 ..      after both pieces 0 the sums of indices
 *     rank 1    piece 0: indices 1 .. 52 | piece 1: 60 ..      up to 40 are known
 *
 * Example, P = 2, k = 2: ranks select {1: 4, 6: -1} and {1: 1, 7: 3}; all get {1: 5, 6: -1, 7: 3}. */
#include "exchange/exchange.h"
#include "select/selector.h"

#include <assert.h>
#include <math.h>

typedef struct space {
    tw__buffer *out;     /* [nranks] */
    tw__buffer *own;     /* [pieces] the own messages */
    tw__buffer *in;      /* [pieces][nranks] */
    tw__list *runs;      /* [nranks] what was read of each rank */
    tw__list *parts;     /* [nranks] what is summed of each run */
    int64_t *summed;     /* [nranks] entries of each run that were summed */
    tw__entry *received; /* [nranks][most] */
    tw__entry *result;   /* [applied] */
    char *sent;          /* the own messages, packed */
    char *packed;        /* [nranks] messages of others; the pieces of each follow each other */
    float *rounded;      /* [most] */
    tw__entry *kept;     /* [most] */
    void *alltoall;
} space;

static int64_t blocks_of(int64_t entries) {
    return (entries + TW__WIRE_BLOCK - 1) / TW__WIRE_BLOCK;
}

/* Where a piece begins in a list of so many entries. The place is the same in all lists, so that raw
 * pieces arrive where they are used. Some methods select more than k: the last piece has the rest. A piece
 * begins at a block of the wire format, so that values are rounded as in one message. */
static int64_t piece_start(const tw__shape *s, int64_t count, int piece) {
    int pieces = tw__gather_pieces(s);
    int64_t start = piece * tw__longest_part(blocks_of(s->k), pieces) * TW__WIRE_BLOCK;
    return piece < pieces && start < count ? start : count;
}

static int64_t most_of_piece(const tw__shape *s, int piece) {
    return piece_start(s, s->most, piece + 1) - piece_start(s, s->most, piece);
}

/* Bytes of the pieces of one rank. */
static size_t capacity(const tw__shape *s) {
    return tw__pack_capacity(s->wire, s->most, tw__gather_pieces(s));
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *host = &arenas->host, *lists = &arenas->lists;
    int64_t rounds = s->wire != NULL ? s->most : 0, pieces = tw__gather_pieces(s);
    return (space){
        .out = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .own = tw__arena_take(host, pieces, sizeof(tw__buffer)),
        .in = tw__arena_take(host, pieces * s->nranks, sizeof(tw__buffer)),
        .runs = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .parts = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .summed = tw__arena_take(host, s->nranks, sizeof(int64_t)),
        .received = tw__arena_take(lists, s->nranks * s->most, sizeof(tw__entry)),
        .result = tw__arena_take(lists, tw__most_union(s), sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, capacity(s)),
        .packed = tw__arena_take(lists, s->nranks, capacity(s)),
        .rounded = tw__arena_take(lists, rounds, sizeof(float)),
        .kept = tw__arena_take(lists, rounds, sizeof(tw__entry)),
        .alltoall = tw__arena_take(host, 1, tw__alltoall_memory(s->nranks)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    double words = 2.0 * k * (nranks - 1.0);
    return (tw_cost){.least = words, .most = words, .latencies = log2(nranks)};
}

static tw__cost_terms terms(const tw__shape *s) {
    double others = s->nranks - 1.0, all = (double)s->k * s->nranks;
    int pieces = tw__gather_pieces(s);
    return (tw__cost_terms){
        .rounds = tw__gather_rounds(s, pieces),
        .messages = others * pieces,
        .bytes = others * (double)tw__pack_bytes(s->wire, s->k, 0, s->span),
        .entries = s->wire != NULL ? all : 0.0,
        .merged = all,
    };
}

/* ---- one message to each rank */

static int gather_at_once(tw__job *job, space *w) {
    const tw__shape *s = &job->shape;
    char *sent = w->sent;
    TW_TRY(tw__pack_list(job, &job->own, 0, s->span, &sent, w->rounded, w->own));
    for (int r = 0; r < s->nranks; r++)
        w->in[r] = tw__pack_receive(s->wire, s->most, 0, s->span, w->received + r * s->most,
                                    w->packed + (size_t)r * capacity(s));
    TW_TRY(tw__job_gather(job, w->own, w->out, w->in, w->alltoall));
    for (int r = 0; r < s->nranks; r++)
        TW_TRY(tw__unpack_list(job, r == job->rank ? w->own : &w->in[r], 0, s->span, s->most, r,
                               w->received + r * s->most, &w->runs[r]));
    return tw__list_reduce(&job->lists, w->runs, s->nranks, &job->result);
}

/* ---- pieces around a ring; the lists lie in the host's memory */

/* The smallest index that can follow this list. */
static int64_t end_of(const tw__list *list) {
    return list->count > 0 ? list->at[list->count - 1].idx + INT64_C(1) : 0;
}

static int pack_pieces(tw__job *job, space *w) {
    const tw__shape *s = &job->shape;
    int plain = s->wire != NULL && tw__list_reaches(&job->own, TW__WIRE_HUGE);
    char *sent = w->sent;
    for (int piece = 0; piece < tw__gather_pieces(s); piece++) {
        int64_t begin = piece_start(s, job->own.count, piece);
        int64_t end = piece_start(s, job->own.count, piece + 1);
        tw__list before = {job->own.at, begin}, entries = {job->own.at + begin, end - begin};
        TW_TRY(tw__pack_piece(job, &entries, end_of(&before), plain, &sent, w->rounded + begin,
                              &w->own[piece]));
    }
    return TW_OK;
}

static void expect_pieces(const tw__job *job, space *w) {
    const tw__shape *s = &job->shape;
    for (int r = 0; r < s->nranks; r++) {
        int stays = r == job->rank && s->wire == NULL; /* a raw message is the list itself */
        w->runs[r] = (tw__list){stays ? job->own.at : w->received + r * s->most, 0};
        w->summed[r] = 0;
        for (int piece = 0; piece < tw__gather_pieces(s); piece++) {
            int64_t start = piece_start(s, s->most, piece);
            w->in[piece * s->nranks + r] = tw__pack_receive(
                s->wire, most_of_piece(s, piece), 0, s->span, w->runs[r].at + start,
                w->packed + (size_t)r * capacity(s) + tw__pack_capacity(s->wire, start, piece));
        }
    }
}

/* Appends a piece to the run of its rank. */
static int read_piece(tw__job *job, space *w, int piece, int r, const tw__buffer *message) {
    tw__list *run = &w->runs[r], read;
    int64_t start = piece_start(&job->shape, job->shape.most, piece);
    /* After a piece that is not full, later pieces must be empty. */
    int64_t most = run->count == start ? most_of_piece(&job->shape, piece) : 0;
    TW_TRY(tw__unpack_list(job, message, end_of(run), job->shape.span, most, r, run->at + start,
                           &read));
    if (read.at != run->at + start) /* plain entries of a packed message: they lie in it */
        return tw__list_append(&job->lists, run, &read);
    run->count += read.count;
    return TW_OK;
}

/* After this piece of all ranks: whether the rank has sent all that it selected. */
static int is_complete(const tw__shape *s, const tw__list *run, int piece) {
    return piece + 1 == tw__gather_pieces(s) || run->count < piece_start(s, s->most, piece + 1);
}

/* Sums all indices that no further piece can bring. */
static int sum_pieces(tw__job *job, space *w, int piece) {
    int64_t end = job->shape.span;
    for (int r = 0; r < job->shape.nranks; r++)
        if (!is_complete(&job->shape, &w->runs[r], piece) && end_of(&w->runs[r]) < end)
            end = end_of(&w->runs[r]);
    for (int r = 0; r < job->shape.nranks; r++) {
        tw__list rest = {w->runs[r].at + w->summed[r], w->runs[r].count - w->summed[r]};
        TW_TRY(tw__list_between(&job->lists, &rest, 0, end, &w->parts[r]));
        w->summed[r] += w->parts[r].count;
    }
    tw__list sums = {job->result.at + job->result.count, 0};
    TW_TRY(tw__list_reduce(&job->lists, w->parts, job->shape.nranks, &sums));
    job->result.count += sums.count;
    if (job->arrived != NULL && job->weights == NULL) /* weights divide the sums at the end */
        job->arrived(job->arrived_context, job, &sums);
    return TW_OK;
}

static int read_pieces(tw__job *job, space *w, tw__ring *ring) {
    int nranks = job->shape.nranks;
    for (int piece = 0, from = 0;;) {
        TW_TRY(tw__ring_next(ring, &piece, &from));
        if (from < 0)
            return TW_OK;
        TW_TRY(read_piece(job, w, piece, from, &w->in[piece * nranks + from]));
        if (from != (job->rank + 1) % nranks)
            continue;
        TW_TRY(read_piece(job, w, piece, job->rank, &w->own[piece]));
        TW_TRY(sum_pieces(job, w, piece));
    }
}

static int gather_pieces(tw__job *job, space *w) {
    tw__ring ring;
    TW_TRY(pack_pieces(job, w));
    expect_pieces(job, w);
    TW_TRY(tw__ring_begin(&ring, job->transport, job->kind, w->own, w->in,
                          tw__gather_pieces(&job->shape)));
    int error = read_pieces(job, w, &ring);
    if (error != TW_OK)
        tw__ring_cancel(&ring);
    return error;
}

/* ---- run */

/* A device tells the smallest magnitude of a selection; 0 where it was not told. */
static int may_have_zeros(const tw__job *job) {
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw_select_info *info = &job->segments[i].selector->info;
        if (info->count > 0 && info->threshold == 0.0f)
            return 1;
    }
    return 0;
}

/* With one rank nothing travels, and nothing is rounded: the result is its selection without zeros. */
static int run_alone(tw__job *job, const space *w) {
    const tw__list_calls *calls = job->lists.calls;
    int64_t others = 0, zeros = 0;
    job->left = job->result = job->own;
    if (may_have_zeros(job))
        TW_TRY(calls->count(job->lists.context, &job->own, 0, &others, &zeros));
    if (zeros == 0)
        return TW_OK;
    job->result.at = w->result;
    return calls->take(job->lists.context, &job->own, (tw__edge){0, 0}, w->result, NULL,
                       &job->result.count);
}

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    if (job->shape.nranks == 1)
        return run_alone(job, &w);
    job->result.at = w.result;
    TW_TRY(tw__job_uses_ring(job) ? gather_pieces(job, &w) : gather_at_once(job, &w));
    assert(job->result.count <= tw__most_union(&job->shape));
    if (job->weights != NULL)
        TW_TRY(job->lists.calls->divide(job->lists.context, &job->result, w.runs, job->shape.nranks,
                                        job->weights));
    job->left = job->own;
    job->kept.at = w.kept;
    return tw__pack_remainders(job, &job->own, w.rounded, &job->kept);
}

const tw__exchange tw__exchange_allgather = {
    .name = "allgather",
    .description = "all entries to all ranks, summed there; grows with P",
    .backends = TW__ALL_BACKENDS,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .applied = tw__most_union,
    .run = run,
};
