/* exchange_allgather.c - everyone sends everything to everyone, and all sum alike
 *
 * TopkA and Gaussiank of the papers. The result is the union of the selections: nothing is dropped,
 * and it grows with P. Cost: 2k(P-1) words each way. */
#include "exchange/exchange.h"

typedef struct space {
    tw__buffer *out;     /* [nranks] */
    tw__buffer *in;      /* [nranks] */
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [nranks][most] */
    tw__entry *result;   /* [applied] */
    char *sent, *mail;   /* letters: the own one, and [nranks] of others */
    float *rounded;      /* [most] */
    tw__entry *kept;     /* [most] */
    void *rotation;
} space;

static int64_t applied(const tw__shape *s) {
    int64_t all = s->most * s->nranks;
    return all < s->span ? all : s->span;
}

static size_t letter(const tw__shape *s) {
    return tw__pack_room(s->wire, s->most, 1);
}

static space layout(tw__arenas *room, const tw__shape *s) {
    tw__arena *host = &room->host, *lists = &room->lists;
    int64_t rounds = s->wire != NULL ? s->most : 0;
    return (space){
        .out = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .in = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .runs = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .received = tw__arena_take(lists, s->most * s->nranks, sizeof(tw__entry)),
        .result = tw__arena_take(lists, applied(s), sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, letter(s)),
        .mail = tw__arena_take(lists, s->nranks, letter(s)),
        .rounded = tw__arena_take(lists, rounds, sizeof(float)),
        .kept = tw__arena_take(lists, rounds, sizeof(tw__entry)),
        .rotation = tw__arena_take(host, 1, tw__alltoall_memory(s->nranks)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *room) {
    layout(room, shape);
}

static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    return (tw_cost){2.0 * k * (nranks - 1.0), 2.0 * k * (nranks - 1.0)};
}

static tw__cost_terms effort(const tw__shape *s) {
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
    char *mail = w->sent;
    tw__buffer own;
    TW_TRY(tw__pack_list(job, &job->own, 0, s->span, &mail, w->rounded, &own));
    for (int r = 0; r < s->nranks; r++) {
        tw__entry *room = w->received + r * s->most;
        w->in[r] = (tw__buffer){.data = s->wire != NULL ? (void *)(w->mail + (size_t)r * letter(s))
                                                        : (void *)room,
                                .capacity = tw__pack_bound(s->wire, s->most, 0, s->span)};
    }
    TW_TRY(tw__job_gather(job, &own, w->out, w->in, w->rotation));
    for (int r = 0; r < s->nranks; r++)
        TW_TRY(tw__unpack_list(job, r == job->rank ? &own : &w->in[r], 0, s->span, s->most, r,
                               w->received + r * s->most, &w->runs[r]));
    return TW_OK;
}

static int run(tw__job *job) {
    space w = layout(&job->room, &job->shape);
    TW_TRY(gather(job, &w));
    job->result.at = w.result;
    TW_TRY(tw__list_reduce(&job->lists, w.runs, job->shape.nranks, &job->result));
    job->left = job->own;
    job->kept.at = w.kept;
    return tw__pack_remainders(job, &job->own, w.rounded, &job->kept);
}

const tw__exchange tw__exchange_allgather = {
    .name = "allgather",
    .description = "all entries to all ranks, summed there; grows with P",
    .cost = cost,
    .effort = effort,
    .memory = memory,
    .applied = applied,
    .run = run,
};
