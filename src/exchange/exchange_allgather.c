/* exchange_allgather.c - everyone sends everything to everyone, and all sum alike
 *
 * TopkA and Gaussiank of the papers. The result is the union of the selections: nothing is dropped,
 * and it grows with P. Cost: 2k(P-1) words each way.
 *
 * Example, P = 2, k = 2: ranks select {1: 4, 6: -1} and {1: 1, 7: 3}; all get {1: 5, 6: -1, 7: 3}. */
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

typedef struct space {
    tw__buffer *out;     /* [nranks] */
    tw__buffer *in;      /* [nranks] */
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [nranks][most] */
    tw__entry *result;   /* [applied] */
    char *sent;          /* the own message, packed */
    char *packed;        /* [nranks] messages of others */
    float *rounded;      /* [most] */
    tw__entry *kept;     /* [most] */
    void *alltoall;
} space;

static size_t message_capacity(const tw__shape *s) {
    return tw__pack_capacity(s->wire, s->most, 1);
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *host = &arenas->host, *lists = &arenas->lists;
    int64_t rounds = s->wire != NULL ? s->most : 0;
    return (space){
        .out = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .in = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .runs = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .received = tw__arena_take(lists, s->most * s->nranks, sizeof(tw__entry)),
        .result = tw__arena_take(lists, tw__most_union(s), sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, message_capacity(s)),
        .packed = tw__arena_take(lists, s->nranks, message_capacity(s)),
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
    return (tw__cost_terms){
        .rounds = tw__gather_rounds(s),
        .messages = others,
        .bytes = others * (double)tw__pack_bytes(s->wire, s->k, 0, s->span),
        .entries = s->wire != NULL ? all : 0.0,
        .merged = all,
    };
}

static int gather(tw__job *job, space *w) {
    const tw__shape *s = &job->shape;
    char *sent = w->sent;
    tw__buffer own;
    TW_TRY(tw__pack_list(job, &job->own, 0, s->span, &sent, w->rounded, &own));
    for (int r = 0; r < s->nranks; r++)
        w->in[r] = tw__pack_receive(s->wire, s->most, 0, s->span, w->received + r * s->most,
                                    w->packed + (size_t)r * message_capacity(s));
    TW_TRY(tw__job_gather(job, &own, w->out, w->in, w->alltoall));
    for (int r = 0; r < s->nranks; r++)
        TW_TRY(tw__unpack_list(job, r == job->rank ? &own : &w->in[r], 0, s->span, s->most, r,
                               w->received + r * s->most, &w->runs[r]));
    return TW_OK;
}

/* With one rank nothing travels, and nothing is rounded: the result is its selection without zeros. */
static int run_alone(tw__job *job, const space *w) {
    const tw__list_calls *calls = job->lists.calls;
    int64_t others = 0, zeros = 0;
    job->left = job->result = job->own;
    if (job->own.count > 0)
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
    TW_TRY(gather(job, &w));
    job->result.at = w.result;
    TW_TRY(tw__list_reduce(&job->lists, w.runs, job->shape.nranks, &job->result));
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
