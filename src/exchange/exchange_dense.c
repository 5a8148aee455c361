/* exchange_dense.c - every value of every rank: reduce-scatter, then allgather
 *
 * What the sparse exchanges are measured against. Rank j sums range j of the index space. Each rank
 * sends its piece of every range to the range's rank, which adds them in the order of ranks and sends
 * the sum back to all. Cost: 2n(P-1)/P words.
 *
 * Example, P = 2, n = 4: ranks have (1 2 3 4) and (10 20 30 40). Rank 0 sends (3 4) and sums range 0,
 * (11 22); rank 1 sends (10 20) and sums range 1, (33 44). Each sends its sums to the other.
 *
 * A backend says how much workspace this may take (tw__dense_calls.slot_floats). Where a range does
 * not fit it is cut into pieces. They follow each other through the network, or links would stand
 * still while ranks wait for the last values of a piece. With DEPTH = 1, in every turn:
 *
 *     piece i      its values are sent
 *     piece i-1    its values have arrived: they are summed, the sums are sent
 *     piece i-2    its sums have arrived: they are written to the output
 *
 * Sums are written only after all ranks' values of the same piece were read, so the output may be
 * the gradient's own memory. */
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

/* Turns that a piece travels before it is waited for. n = 14,728,266, P = 8, 100 Mbit/s over TCP, as
 * thinwire bench allreduce --scheme dense measured it: 16.7 s without, 9.1 s with 1, 10.0 s with 2,
 * which makes pieces shorter; the line itself takes 8.25 s. */
#define DEPTH 1
#define SLOTS (2 * DEPTH + 1) /* pieces under way */

/* A piece under way. */
typedef struct slot {
    tw__buffer *out; /* [nranks] */
    tw__buffer *in;  /* [nranks] */
    float *values;   /* [nranks][piece]: own values of every range, later the sums */
    float *received; /* [nranks][piece] */
    void *recvs;
    tw__alltoall alltoall;
    int busy;     /* its alltoall is under way */
    int64_t done; /* elements of each range before this piece */
} slot;

typedef struct space {
    int64_t piece;  /* elements of a range that a slot holds */
    int64_t pieces; /* of the longest range */
    int nslots;
    slot slots[SLOTS];
    tw__alltoall *latest; /* begun last: its sends must have started before another one begins */
} space;

static int64_t longest_range(const tw__shape *s) {
    return tw__longest_part(s->span, s->nranks);
}

static int64_t piece_of(const tw__shape *s) {
    int64_t fits = s->dense_floats / s->nranks;
    if (s->dense_floats == 0 || fits >= longest_range(s))
        return longest_range(s);
    return fits < 1 ? 1 : fits;
}

static int64_t pieces_of(const tw__shape *s) {
    return s->span > 0 ? (longest_range(s) + piece_of(s) - 1) / piece_of(s) : 0;
}

static int64_t applied(const tw__shape *s) {
    (void)s;
    return 0; /* the result is written to the segments' out */
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    space w = {.piece = piece_of(s), .pieces = pieces_of(s)};
    w.nslots = w.pieces < SLOTS ? (int)w.pieces : SLOTS;
    for (int i = 0; i < w.nslots; i++)
        w.slots[i] = (slot){
            .out = tw__arena_take(&arenas->host, s->nranks, sizeof(tw__buffer)),
            .in = tw__arena_take(&arenas->host, s->nranks, sizeof(tw__buffer)),
            .recvs = tw__arena_take(&arenas->host, 1, tw__alltoall_memory(s->nranks)),
            .values = tw__arena_take(&arenas->lists, s->nranks * w.piece, sizeof(float)),
            .received = tw__arena_take(&arenas->lists, s->nranks * w.piece, sizeof(float)),
        };
    return w;
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)k;
    double words = 2.0 * n * (nranks - 1.0) / nranks;
    return (tw_cost){.least = words, .most = words, .latencies = 2.0 * log2(nranks)};
}

static tw__cost_terms terms(const tw__shape *s) {
    double others = s->nranks - 1.0, span = (double)s->span, pieces = (double)pieces_of(s);
    return (tw__cost_terms){
        .rounds = 2.0 * pieces,
        .messages = 2.0 * pieces * others,
        .bytes = 8.0 * span * others / s->nranks,
        .elements = 4.0 * span, /* loaded, summed, stored; and the residual is cleared */
    };
}

/* ---- values and pieces */

static int load(const tw__job *job, const tw__segment *s, int64_t first, int64_t len, float *to) {
    const char *grad = s->grad;
    return job->dense->load(job->lists.context, to, grad + (s->type == TW_F32 ? 4 : 2) * first,
                            s->type, len);
}

static int store(const tw__job *job, const tw__segment *s, int64_t first, int64_t len,
                 float *from) {
    return job->dense->store(job->lists.context, (char *)s->out + 4 * first, from, len);
}

/* Calls visit for what each segment has of the indices lo .. lo+len-1. values[0] is that of lo. */
typedef int visit_segment(const tw__job *job, const tw__segment *segment, int64_t first,
                          int64_t len, float *values);

static int each_segment(const tw__job *job, int64_t lo, int64_t len, float *values,
                        visit_segment *visit) {
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        int64_t from = lo > s->base ? lo : s->base;
        int64_t to = lo + len < s->base + s->n ? lo + len : s->base + s->n;
        if (from < to)
            TW_TRY(visit(job, s, from - s->base, to - from, values + (from - lo)));
    }
    return TW_OK;
}

/* The slot's piece of range r: its indices, and where its values are. One piece for all lies as the
 * index space does. */
typedef struct stretch {
    int64_t lo, len;
    float *values;
} stretch;

static stretch stretch_of(const tw__job *job, const space *w, const slot *s, int r) {
    int64_t start = tw__part_start(job->shape.span, r, job->shape.nranks);
    int64_t left = tw__part_start(job->shape.span, r + 1, job->shape.nranks) - start - s->done;
    assert(s->done < w->piece * w->pieces);
    return (stretch){.lo = start + s->done,
                     .len = left < 0          ? 0
                            : left < w->piece ? left
                                              : w->piece,
                     .values = s->values + (w->pieces == 1 ? start : r * w->piece)};
}

static int each_piece(const tw__job *job, const space *w, const slot *s, visit_segment *visit) {
    if (w->pieces == 1)
        return each_segment(job, 0, job->shape.span, s->values, visit);
    for (int r = 0; r < job->shape.nranks; r++) {
        stretch part = stretch_of(job, w, s, r);
        TW_TRY(each_segment(job, part.lo, part.len, part.values, visit));
    }
    return TW_OK;
}

static tw__buffer buffer_of(float *values, int64_t len) {
    return (tw__buffer){values, sizeof *values * (size_t)len, sizeof *values * (size_t)len};
}

/* ---- a piece under way */

/* Sends what the slot has laid out, after all that was begun before. */
static int begin(tw__job *job, space *w, slot *s) {
    assert(!s->busy);
    if (w->latest != NULL)
        TW_TRY(tw__alltoall_flush(w->latest));
    w->latest = NULL;
    TW_TRY(tw__alltoall_begin(&s->alltoall, job->transport, job->kind, s->out, s->in, s->recvs));
    w->latest = &s->alltoall;
    s->busy = 1;
    return TW_OK;
}

static int end(tw__job *job, space *w, slot *s) {
    assert(s->busy);
    if (w->latest == &s->alltoall)
        w->latest = NULL;
    s->busy = 0;
    TW_TRY(tw__alltoall_end(&s->alltoall));
    return tw__job_check_lengths(job, s->in);
}

static int send_values(tw__job *job, space *w, slot *s, int64_t done) {
    s->done = done;
    int64_t mine = stretch_of(job, w, s, job->rank).len;
    TW_TRY(each_piece(job, w, s, load));
    for (int r = 0; r < job->shape.nranks; r++) {
        stretch part = stretch_of(job, w, s, r);
        s->out[r] = buffer_of(part.values, part.len);
        s->in[r] = buffer_of(s->received + r * w->piece, mine);
    }
    return begin(job, w, s);
}

/* Every rank's values of this rank's piece have arrived. Their sum replaces the own values. */
static int send_sums(tw__job *job, space *w, slot *s) {
    stretch own = stretch_of(job, w, s, job->rank);
    TW_TRY(end(job, w, s));
    TW_TRY(job->dense->sum(job->lists.context, own.values, s->received, w->piece, job->rank,
                           job->shape.nranks, own.len, job->divisor));
    for (int r = 0; r < job->shape.nranks; r++) {
        stretch part = stretch_of(job, w, s, r);
        s->in[r] = buffer_of(part.values, part.len);
        s->out[r] = buffer_of(own.values, own.len);
    }
    return begin(job, w, s);
}

static int write_sums(tw__job *job, space *w, slot *s) {
    TW_TRY(end(job, w, s));
    return each_piece(job, w, s, store);
}

/* ---- the map */

static slot *slot_of(space *w, int64_t piece) {
    return &w->slots[piece % w->nslots];
}

/* One turn: values of a piece are sent, sums of another, a third one is done. */
static int turn(tw__job *job, space *w, int64_t at) {
    if (at < w->pieces)
        TW_TRY(send_values(job, w, slot_of(w, at), at * w->piece));
    if (at >= DEPTH && at - DEPTH < w->pieces)
        TW_TRY(send_sums(job, w, slot_of(w, at - DEPTH)));
    if (at >= 2 * DEPTH)
        TW_TRY(write_sums(job, w, slot_of(w, at - 2 * DEPTH)));
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    int error = TW_OK;
    for (int64_t at = 0; at < w.pieces + 2 * DEPTH && w.pieces > 0 && error == TW_OK; at++)
        error = turn(job, &w, at);
    for (int i = 0; i < w.nslots && error != TW_OK; i++)
        if (w.slots[i].busy)
            tw__alltoall_cancel(&w.slots[i].alltoall);
    return error;
}

const tw__exchange tw__exchange_dense = {
    .name = "dense",
    .description = "every value: reduce-scatter and allgather",
    .backends = TW__ALL_BACKENDS,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .applied = applied,
    .run = run,
};
