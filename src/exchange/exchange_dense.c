/* exchange_dense.c - every value of every rank: reduce-scatter, then allgather
 *
 * What the sparse exchanges are measured against. Rank j sums range j of the index space, in pieces
 * that fit a fixed workspace: each rank sends its piece of every range to the range's rank, which
 * adds them in the order of ranks and sends the sum back to all. Cost: 2n(P-1)/P words.
 *
 * Sums are written only after all ranks' values of the same piece were read, so the output may be
 * the gradient's own memory. */
#include "exchange/exchange.h"

#include <math.h>

#define WORKSPACE ((int64_t)1 << 19) /* floats for the pieces of all ranks: 2 MiB, twice */

typedef struct space {
    tw__parcel *out; /* [nranks] */
    tw__parcel *in;  /* [nranks] */
    float *pieces;   /* [nranks][piece]: own values of every range, later the sums */
    float *received; /* [nranks][piece] */
    void *rotation;
} space;

static int64_t longest_range(const tw__shape *s) {
    return (s->span + s->nranks - 1) / s->nranks;
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
    return (space){
        .out = tw__arena_take(arena, s->nranks, sizeof(tw__parcel)),
        .in = tw__arena_take(arena, s->nranks, sizeof(tw__parcel)),
        .pieces = tw__arena_take(arena, s->nranks * piece(s), sizeof(float)),
        .received = tw__arena_take(arena, s->nranks * piece(s), sizeof(float)),
        .rotation = tw__arena_take(arena, 1, tw__rotation_memory(s->nranks)),
    };
}

static size_t memory(const tw__shape *shape) {
    tw__arena counting = {0};
    layout(&counting, shape);
    return counting.used;
}

static tw_cost cost(double n, double k, double nranks) {
    (void)k;
    double words = 2.0 * n * (nranks - 1.0) / nranks;
    return (tw_cost){words, words};
}

static tw__effort effort(const tw__shape *s) {
    double others = s->nranks - 1.0, span = (double)s->span;
    double pieces = ceil((double)longest_range(s) / (double)piece(s));
    return (tw__effort){
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

static int check_bytes(const tw__parcel *parcel, int rank) {
    if (parcel->bytes == parcel->capacity)
        return TW_OK;
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes where %zu were expected", rank,
                    parcel->bytes, parcel->capacity);
}

static int check_all(const tw__job *job, const space *w) {
    for (int r = 0; r < job->shape.nranks; r++)
        if (r != job->rank)
            TW_TRY(check_bytes(&w->in[r], r));
    return TW_OK;
}

/* Every rank's values of this rank's piece arrive; their sum takes the place of its own. */
static int reduce_scatter(tw__job *job, space *w, int64_t done) {
    int64_t lo, mine;
    part_of(job, job->rank, done, &lo, &mine);
    float *own = w->pieces + job->rank * piece(&job->shape);
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t len;
        float *at = w->pieces + r * piece(&job->shape);
        part_of(job, r, done, &lo, &len);
        each_segment(job, lo, len, at, load);
        w->out[r] = (tw__parcel){at, sizeof *at * (size_t)len, 0};
        w->in[r] = (tw__parcel){.data = w->received + r * piece(&job->shape),
                                .capacity = sizeof(float) * (size_t)mine};
    }
    TW_TRY(tw__rotate(job->transport, TW__PAYLOAD, w->out, w->in, w->rotation));
    TW_TRY(check_all(job, w));
    float *sum = job->rank == 0 ? own : w->in[0].data;
    for (int r = 1; r < job->shape.nranks; r++)
        job->kernels->add(sum, r == job->rank ? own : w->in[r].data, mine);
    for (int64_t i = 0; i < mine; i++)
        own[i] = sum[i] / job->divisor;
    return TW_OK;
}

static int allgather(tw__job *job, space *w, int64_t done) {
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t lo, len;
        float *at = w->pieces + r * piece(&job->shape);
        part_of(job, r, done, &lo, &len);
        w->in[r] = (tw__parcel){.data = at, .capacity = sizeof *at * (size_t)len};
        w->out[r] = w->out[job->rank];
    }
    TW_TRY(tw__rotate(job->transport, TW__PAYLOAD, w->out, w->in, w->rotation));
    TW_TRY(check_all(job, w));
    for (int r = 0; r < job->shape.nranks; r++) {
        int64_t lo, len;
        part_of(job, r, done, &lo, &len);
        each_segment(job, lo, len, w->pieces + r * piece(&job->shape), store);
    }
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->arena, &job->shape);
    for (int64_t done = 0; done < longest_range(&job->shape); done += piece(&job->shape)) {
        TW_TRY(reduce_scatter(job, &w, done));
        TW_TRY(allgather(job, &w, done));
    }
    return TW_OK;
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
