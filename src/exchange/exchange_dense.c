/* exchange_dense.c - every value of every rank: reduce-scatter, then allgather
 *
 * What the sparse exchanges are measured against. Rank j sums range j of the index space, in pieces
 * that fit a fixed workspace: each rank sends its piece of every range to the range's rank, which
 * adds them in the order of ranks and sends the sum back to all. Cost: 2n(P-1)/P words.
 *
 * Pieces follow each other through the network, or links would stand still while ranks wait for the
 * last values of a piece. With DEPTH = 1, in every turn:
 *
 *     piece i      values set off
 *     piece i-1    values are all there: summed, sums set off
 *     piece i-2    sums are all there: written to the output
 *
 * Sums are written only after all ranks' values of the same piece were read, so the output may be
 * the gradient's own memory. On a GPU dense_gpu.c takes over. */
#include "exchange/exchange.h"

#include <math.h>

/* Turns that a piece travels before it is waited for. n = 14,728,266, P = 8, 100 Mbit/s over TCP, as
 * thinwire bench allreduce --scheme dense measured it: 16.7 s without, 9.1 s with 1, 10.0 s with 2,
 * which makes pieces shorter; the line itself takes 8.25 s. */
#define DEPTH 1
#define SLOTS (2 * DEPTH + 1) /* pieces under way */
#define WORKSPACE 250000      /* floats of a slot for the pieces of all ranks: 1 MB, twice */

/* A piece under way. */
typedef struct slot {
    tw__buffer *out; /* [nranks] */
    tw__buffer *in;  /* [nranks] */
    float *pieces;   /* [nranks][piece]: own values of every range, later the sums */
    float *received; /* [nranks][piece] */
    void *recvs;
    tw__alltoall rotation;
    int busy;     /* its rotation is under way */
    int64_t done; /* elements of each range before this piece */
} slot;

typedef struct space {
    slot slots[SLOTS];
    tw__alltoall *latest; /* begun last: its sends go before others may begin; NULL: none */
} space;

static int64_t longest_range(const tw__shape *s) {
    return tw__longest_part(s->span, s->nranks);
}

static int64_t piece(const tw__shape *s) {
    int64_t fits = WORKSPACE / s->nranks;
    return fits < longest_range(s) ? (fits < 1 ? 1 : fits) : longest_range(s);
}

static int64_t applied(const tw__shape *s) {
    (void)s;
    return 0; /* the result is written to the segments' out */
}

static space layout(tw__arena *arena, const tw__shape *s) {
    space w = {0};
    for (int i = 0; i < SLOTS; i++)
        w.slots[i] = (slot){
            .out = tw__arena_take(arena, s->nranks, sizeof(tw__buffer)),
            .in = tw__arena_take(arena, s->nranks, sizeof(tw__buffer)),
            .pieces = tw__arena_take(arena, s->nranks * piece(s), sizeof(float)),
            .received = tw__arena_take(arena, s->nranks * piece(s), sizeof(float)),
            .recvs = tw__arena_take(arena, 1, tw__alltoall_memory(s->nranks)),
        };
    return w;
}

static void memory(const tw__shape *shape, tw__arenas *room) {
    if (shape->on_gpu)
        tw__dense_gpu_memory(shape, room);
    else
        layout(&room->host, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)k;
    double words = 2.0 * n * (nranks - 1.0) / nranks;
    return (tw_cost){words, words};
}

static tw__cost_terms effort(const tw__shape *s) {
    double others = s->nranks - 1.0, span = (double)s->span;
    double pieces = ceil((double)longest_range(s) / (double)piece(s));
    return (tw__cost_terms){
        .rounds = 2.0 * pieces,
        .messages = 2.0 * pieces * others,
        .bytes = 8.0 * span * others / s->nranks,
        .elements = 4.0 * span, /* to the pieces, their sum, from the pieces, all zero again */
    };
}

/* Calls visit for what each segment has of the indices lo .. lo+len-1. `at` is the place of index
 * lo in a piece. */
typedef void visit_segment(const tw__job *job, const tw__segment *segment, int64_t first,
                           int64_t len, float *at);

static void each_segment(const tw__job *job, int64_t lo, int64_t len, float *at,
                         visit_segment *visit) {
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        int64_t from = lo > s->base ? lo : s->base;
        int64_t to = lo + len < s->base + s->n ? lo + len : s->base + s->n;
        if (from < to)
            visit(job, s, from - s->base, to - from, at + (from - lo));
    }
}

static void load(const tw__job *job, const tw__segment *s, int64_t first, int64_t len, float *to) {
    const char *grad = s->grad;
    if (s->type == TW_F32)
        memcpy(to, grad + 4 * first, sizeof *to * (size_t)len);
    else if (s->type == TW_F16)
        job->kernels->widen_f16(to, grad + 2 * first, len);
    else
        job->kernels->widen_bf16(to, grad + 2 * first, len);
}

static void store(const tw__job *job, const tw__segment *s, int64_t first, int64_t len,
                  float *from) {
    (void)job;
    memcpy((char *)s->out + 4 * first, from, sizeof *from * (size_t)len);
}

/* The part of range r that the step from `done` elements on is about. */
static void part_of(const tw__job *job, int r, int64_t done, int64_t *lo, int64_t *len) {
    int64_t end = tw__part_start(job->shape.span, r + 1, job->shape.nranks);
    int64_t rest;
    *lo = tw__part_start(job->shape.span, r, job->shape.nranks) + done;
    rest = end - *lo;
    *len = rest < 0 ? 0 : rest < piece(&job->shape) ? rest : piece(&job->shape);
}

static int check_bytes(const tw__buffer *parcel, int rank) {
    if (parcel->bytes == parcel->capacity)
        return TW_OK;
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes where %zu were expected", rank,
                    parcel->bytes, parcel->capacity);
}

/* ---- a piece on its way */

/* Sets off what the slot has laid out, after all that was begun before. */
static int set_off(tw__job *job, space *w, slot *s) {
    if (w->latest != NULL)
        TW_TRY(tw__alltoall_flush(w->latest));
    w->latest = NULL;
    TW_TRY(tw__alltoall_begin(&s->rotation, job->transport, TW__PAYLOAD, s->out, s->in, s->recvs));
    w->latest = &s->rotation;
    s->busy = 1;
    return TW_OK;
}

static int arrive(tw__job *job, space *w, slot *s) {
    if (w->latest == &s->rotation)
        w->latest = NULL;
    s->busy = 0;
    TW_TRY(tw__alltoall_end(&s->rotation));
    for (int r = 0; r < job->shape.nranks; r++)
        if (r != job->rank)
            TW_TRY(check_bytes(&s->in[r], r));
    return TW_OK;
}

static int send_values(tw__job *job, space *w, slot *s, int64_t done) {
    int64_t lo, mine, most = piece(&job->shape);
    s->done = done;
    part_of(job, job->rank, done, &lo, &mine);
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t len;
        float *at = s->pieces + r * most;
        part_of(job, r, done, &lo, &len);
        each_segment(job, lo, len, at, load);
        s->out[r] = (tw__buffer){at, sizeof *at * (size_t)len, 0};
        s->in[r] =
            (tw__buffer){.data = s->received + r * most, .capacity = sizeof(float) * (size_t)mine};
    }
    return set_off(job, w, s);
}

/* Every rank's values of this rank's piece are there; their sum takes the place of its own. */
static void add_values(tw__job *job, slot *s) {
    int64_t lo, mine;
    part_of(job, job->rank, s->done, &lo, &mine);
    float *own = s->out[job->rank].data;
    float *sum = job->rank == 0 ? own : s->in[0].data;
    for (int r = 1; r < job->shape.nranks; r++)
        job->kernels->add(sum, r == job->rank ? own : s->in[r].data, mine);
    for (int64_t i = 0; i < mine; i++)
        own[i] = sum[i] / job->divisor;
}

static int send_sums(tw__job *job, space *w, slot *s) {
    TW_TRY(arrive(job, w, s));
    add_values(job, s);
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t lo, len;
        float *at = s->pieces + r * piece(&job->shape);
        part_of(job, r, s->done, &lo, &len);
        s->in[r] = (tw__buffer){.data = at, .capacity = sizeof *at * (size_t)len};
        s->out[r] = s->out[job->rank];
    }
    return set_off(job, w, s);
}

static int write_sums(tw__job *job, space *w, slot *s) {
    TW_TRY(arrive(job, w, s));
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t lo, len;
        part_of(job, r, s->done, &lo, &len);
        each_segment(job, lo, len, s->pieces + r * piece(&job->shape), store);
    }
    return TW_OK;
}

/* ---- the map */

/* One turn: a piece comes in, one goes on, one is done. */
static int turn(tw__job *job, space *w, int64_t at, int64_t pieces) {
    if (at < pieces)
        TW_TRY(send_values(job, w, &w->slots[at % SLOTS], at * piece(&job->shape)));
    if (at >= DEPTH && at - DEPTH < pieces)
        TW_TRY(send_sums(job, w, &w->slots[(at - DEPTH) % SLOTS]));
    if (at >= 2 * DEPTH)
        TW_TRY(write_sums(job, w, &w->slots[(at - 2 * DEPTH) % SLOTS]));
    return TW_OK;
}

static int run(tw__job *job) {
    if (job->shape.on_gpu)
        return tw__dense_gpu_run(job);
    space w = layout(&job->room.host, &job->shape);
    int64_t pieces = (longest_range(&job->shape) + piece(&job->shape) - 1) / piece(&job->shape);
    int error = TW_OK;
    for (int64_t at = 0; at < pieces + 2 * DEPTH && error == TW_OK; at++)
        error = turn(job, &w, at, pieces);
    for (int i = 0; i < SLOTS && error != TW_OK; i++)
        if (w.slots[i].busy)
            tw__alltoall_cancel(&w.slots[i].rotation);
    return error;
}

const tw__exchange tw__exchange_dense = {
    .name = "dense",
    .description = "every value: reduce-scatter and allgather",
    .cost = cost,
    .effort = effort,
    .memory = memory,
    .applied = applied,
    .run = run,
};
