/* exchange_allgather.c - everyone sends everything to everyone, and all sum alike
 *
 * TopkA and Gaussiank of the papers. The result is the union of the selections: nothing is dropped,
 * and it grows with P. Cost: 2k(P-1) words each way. */
#include "exchange/exchange.h"

typedef struct space {
    tw__parcel *out;     /* [nranks] */
    tw__parcel *in;      /* [nranks] */
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [nranks][most] */
    tw__entry *result;   /* [applied] */
    void *rotation;
    void *window;
} space;

static int64_t applied(const tw__shape *s) {
    int64_t all = s->most * s->nranks;
    return all < s->span ? all : s->span;
}

static space layout(tw__arena *arena, const tw__shape *s) {
    return (space){
        .out = tw__arena_take(arena, s->nranks, sizeof(tw__parcel)),
        .in = tw__arena_take(arena, s->nranks, sizeof(tw__parcel)),
        .runs = tw__arena_take(arena, s->nranks, sizeof(tw__list)),
        .received = tw__arena_take(arena, s->most * s->nranks, sizeof(tw__entry)),
        .result = tw__arena_take(arena, applied(s), sizeof(tw__entry)),
        .rotation = tw__arena_take(arena, 1, tw__rotation_memory(s->nranks)),
        .window = tw__arena_take(arena, 1, tw__reduce_memory(s->nranks)),
    };
}

static size_t memory(const tw__shape *shape) {
    tw__arena counting = {0};
    layout(&counting, shape);
    return counting.used;
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    return (tw_cost){2.0 * k * (nranks - 1.0), 2.0 * k * (nranks - 1.0)};
}

static int gather(tw__job *job, space *w) {
    const tw__shape *s = &job->shape;
    for (int r = 0; r < s->nranks; r++) {
        w->out[r] = (tw__parcel){job->own.at, sizeof(tw__entry) * (size_t)job->own.count, 0};
        w->in[r] = (tw__parcel){.data = w->received + r * s->most,
                                .capacity = sizeof(tw__entry) * (size_t)s->most};
    }
    TW_TRY(tw__rotate(job->transport, TW__PAYLOAD, w->out, w->in, w->rotation));
    for (int r = 0; r < s->nranks; r++) {
        w->runs[r] = job->own;
        if (r != job->rank)
            TW_TRY(tw__parcel_list(&w->in[r], r, &w->runs[r]));
        TW_TRY(tw__list_check(&w->runs[r], 0, s->span, r));
    }
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->arena, &job->shape);
    TW_TRY(gather(job, &w));
    job->result.at = w.result;
    tw__list_reduce(w.runs, job->shape.nranks, &job->result, w.window);
    job->left = job->own;
    return TW_OK;
}

const tw__exchange tw__exchange_allgather = {
    .name = "allgather",
    .description = "all entries to all ranks, summed there; grows with P",
    .cost = cost,
    .memory = memory,
    .applied = applied,
    .run = run,
};
