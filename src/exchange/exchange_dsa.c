/* exchange_dsa.c - each rank sums one range of indices, then all gather the sums
 *
 * TopkDSA of the papers, after SparCML (Renggli et al., 2019). The index space is split into P
 * equal ranges. Rank j sums range j and sends the sums to all: as entries or, when those would be
 * longer, as a plain vector. The result is the union of the selections, as with allgather. Cost:
 * 4k(P-1)/P words when supports agree, at most (2k+n)(P-1)/P. Nothing balances the ranges: when
 * all entries lie in one, its rank receives them all.
 *
 * Example, P = 2, n = 8, ranges 0 .. 3 and 4 .. 7. Numbers are values, dots are not selected:
 *
 *     selected by rank 0    . 4 . .   . . -1 .      split:  rank 0 sends {6: -1}, rank 1 sends
 *     selected by rank 1    . 1 2 5   . .  . .              {1: 1, 2: 2, 3: 5}
 *     sums                  . 5 2 5   . . -1 .      gather: rank 0 sends its range as 4 floats, since
 *                                                           3 entries would take 6 words; rank 1
 *                                                           sends the entry {6: -1}
 *
 * A message of as many floats as the range has elements is a vector: entries are sent only while
 * they are shorter. In a wire format sums travel as lists; it has a short form for crowded ranges. */
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

typedef struct space {
    tw__buffer *out;     /* [nranks] */
    tw__buffer *in;      /* [nranks] */
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [nranks][piece]: entries for the own range */
    tw__entry *sums;     /* of the own range, as many as there can be */
    float *plain;        /* [words] the same as a vector, where that is shorter */
    float *gathered;     /* [nranks][words]: the sums of others, in either form */
    tw__entry *result;   /* [applied] */
    char *sent;          /* own messages, packed */
    char *packed;        /* [nranks] messages of others */
    float *rounded;      /* of own entries, and of own sums */
    tw__entry *kept[3];  /* remainders of these, and both together */
    void *alltoall;
    int64_t *starts;    /* [nranks + 1] of ranges */
    int64_t *positions; /* [nranks + 1] */
} space;

static int64_t longest_range(const tw__shape *s) {
    return s->span / s->nranks + 1;
}

static int64_t piece(const tw__shape *s) {
    return s->most < longest_range(s) ? s->most : longest_range(s);
}

/* The longest message about one range. */
static int64_t words(const tw__shape *s) {
    int64_t entries = 2 * s->most * s->nranks;
    return entries < longest_range(s) ? entries : longest_range(s);
}

/* Sums that a range can have. */
static int64_t most_sums(const tw__shape *s) {
    int64_t all = s->most * s->nranks;
    return all < longest_range(s) ? all : longest_range(s);
}

/* Of a packed message about a range: entries for it, or its sums. */
static size_t message_capacity(const tw__shape *s) {
    return tw__pack_capacity(s->wire, most_sums(s), 1);
}

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *host = &arenas->host, *lists = &arenas->lists;
    int64_t sums = most_sums(s);
    int64_t rounds = s->wire != NULL ? s->most + sums : 0;
    return (space){
        .out = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .in = tw__arena_take(host, s->nranks, sizeof(tw__buffer)),
        .runs = tw__arena_take(host, s->nranks, sizeof(tw__list)),
        .received = tw__arena_take(lists, s->nranks * piece(s), sizeof(tw__entry)),
        .sums = tw__arena_take(lists, sums, sizeof(tw__entry)),
        .plain = tw__arena_take(lists, words(s), sizeof(float)),
        .gathered = tw__arena_take(lists, s->nranks * words(s), sizeof(float)),
        .result = tw__arena_take(lists, tw__most_union(s) + 1, sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, tw__pack_capacity(s->wire, s->most + sums, s->nranks + 1)),
        .packed = tw__arena_take(lists, s->nranks, message_capacity(s)),
        .rounded = tw__arena_take(lists, rounds, sizeof(float)),
        .kept = {tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, rounds, sizeof(tw__entry))},
        .alltoall = tw__arena_take(host, 1, tw__alltoall_memory(s->nranks)),
        .starts = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
        .positions = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

/* Sums go on as entries, or whole where that is less. */
static tw_cost cost(double n, double k, double nranks) {
    double others = (nranks - 1.0) / nranks;
    return (tw_cost){.least = (2.0 * k + fmin(2.0 * k, n)) * others,
                     .most = (2.0 * k + n) * others,
                     .latencies = nranks + 2.0 * log2(nranks)};
}

static tw__cost_terms terms(const tw__shape *s) {
    double others = s->nranks - 1.0, sums = tw__expected_union(s);
    int64_t range = longest_range(s), held = (int64_t)(sums / s->nranks) + 1;
    double split = (double)tw__pack_bytes(s->wire, s->k / s->nranks + 1, 0, range);
    double gathered = (double)tw__pack_bytes(s->wire, held, 0, range);
    if (s->wire == NULL && gathered > 4.0 * (double)range)
        gathered = 4.0 * (double)range;
    return (tw__cost_terms){
        .rounds = 1.0 + tw__gather_rounds(s, 1),
        .messages = 2.0 * others,
        .bytes = others * (split + gathered),
        .entries = s->wire != NULL ? 2.0 * (double)s->k + sums : 0.0,
        .merged = (double)s->k + sums,
    };
}

static char *message_of(const space *w, const tw__shape *s, int rank) {
    return w->packed + (size_t)rank * message_capacity(s);
}

static int64_t range_start(const tw__job *job, int rank) {
    return tw__part_start(job->shape.span, rank, job->shape.nranks);
}

/* Entries go to the rank that sums their range; own ones stay. */
static int split(tw__job *job, space *w, char **sent) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), hi = range_start(job, job->rank + 1);
    for (int r = 0; r <= s->nranks; r++)
        w->starts[r] = range_start(job, r);
    TW_TRY(tw__list_cut(&job->lists, &job->own, w->starts, s->nranks + 1, w->positions, w->runs));
    for (int r = 0; r < s->nranks; r++) {
        float *rounded = w->rounded + (w->runs[r].at - job->own.at);
        if (r == job->rank)
            TW_TRY(tw__pack_keep_values(job, &w->runs[r], rounded));
        else
            TW_TRY(tw__pack_list(job, &w->runs[r], w->starts[r], w->starts[r + 1], sent, rounded,
                                 &w->out[r]));
        w->in[r] = tw__pack_receive(s->wire, piece(s), lo, hi, w->received + r * piece(s),
                                    message_of(w, s, r));
    }
    TW_TRY(tw__alltoall_run(job->transport, job->kind, w->out, w->in, w->alltoall));
    for (int r = 0; r < s->nranks; r++)
        if (r != job->rank)
            TW_TRY(tw__unpack_list(job, &w->in[r], lo, hi, piece(s), r, w->received + r * piece(s),
                                   &w->runs[r]));
    return TW_OK;
}

/* As entries, or as a vector. */
static int pack_sums(const tw__job *job, const tw__list *sums, int64_t lo, int64_t range,
                     float *plain, tw__buffer *message) {
    *message = (tw__buffer){sums->at, sizeof(tw__entry) * (size_t)sums->count, 0};
    if (2 * sums->count < range)
        return TW_OK;
    *message = (tw__buffer){plain, sizeof *plain * (size_t)range, 0};
    return job->lists.calls->spread(job->lists.context, sums, lo, plain, range);
}

/* Appends what rank r sent of its range, unless that is more than ranks can have selected. */
static int unpack_sums(tw__job *job, const tw__buffer *message, int r) {
    int64_t lo = range_start(job, r), range = range_start(job, r + 1) - lo;
    int64_t most = tw__most_union(&job->shape) - job->result.count;
    tw__entry *to = job->result.at + job->result.count;
    tw__list entries;
    if (message->bytes == sizeof(float) * (size_t)range) {
        TW_TRY(job->lists.calls->collect(job->lists.context, message->data, lo, range, most, to,
                                         &entries.count));
    } else {
        TW_TRY(tw__unpack_raw(message, r, &entries));
        TW_TRY(tw__list_check(&job->lists, &entries, lo, lo + range, r));
        if (entries.count <= most)
            TW_TRY(job->lists.calls->move(job->lists.context, to, entries.at, entries.count));
    }
    if (entries.count > most)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld sums where %lld are possible", r,
                        (long long)entries.count, (long long)most);
    job->result.count += entries.count;
    return TW_OK;
}

static int gather_raw(tw__job *job, space *w, const tw__list *sums) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), range = range_start(job, job->rank + 1) - lo;
    tw__buffer mine;
    TW_TRY(pack_sums(job, sums, lo, range, w->plain, &mine));
    for (int r = 0; r < s->nranks; r++)
        w->in[r] = (tw__buffer){.data = w->gathered + r * words(s),
                                .capacity = sizeof(float) * (size_t)words(s)};
    TW_TRY(tw__job_gather(job, &mine, w->out, w->in, w->alltoall));
    for (int r = 0; r < s->nranks; r++)
        TW_TRY(unpack_sums(job, r == job->rank ? &mine : &w->in[r], r));
    return TW_OK;
}

static int gather_packed(tw__job *job, space *w, const tw__list *sums, char **sent) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), hi = range_start(job, job->rank + 1);
    tw__buffer mine;
    TW_TRY(tw__pack_list(job, sums, lo, hi, sent, w->rounded + s->most, &mine));
    for (int r = 0; r < s->nranks; r++) {
        int64_t from = range_start(job, r), to = range_start(job, r + 1);
        w->in[r] = tw__pack_receive(s->wire, most_sums(s), from, to, NULL, message_of(w, s, r));
    }
    TW_TRY(tw__job_gather(job, &mine, w->out, w->in, w->alltoall));
    for (int r = 0; r < s->nranks; r++) {
        tw__list part, *result = &job->result;
        TW_TRY(tw__unpack_list(job, r == job->rank ? &mine : &w->in[r], range_start(job, r),
                               range_start(job, r + 1), tw__most_union(s) - result->count, r,
                               result->at + result->count, &part));
        TW_TRY(tw__list_append(&job->lists, result, &part));
    }
    return TW_OK;
}

/* What rounding took of own entries, and of own sums. */
static int keep_remainders(tw__job *job, space *w, const tw__list *sums) {
    tw__list entries = {w->kept[0], 0}, of_sums = {w->kept[1], 0};
    job->kept.at = w->kept[2];
    TW_TRY(tw__pack_remainders(job, &job->own, w->rounded, &entries));
    TW_TRY(tw__pack_remainders(job, sums, w->rounded + job->shape.most, &of_sums));
    return tw__list_merge(&job->lists, &entries, &of_sums, &job->kept);
}

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    tw__list sums = {w.sums, 0};
    char *sent = w.sent;
    TW_TRY(split(job, &w, &sent));
    TW_TRY(tw__list_reduce(&job->lists, w.runs, job->shape.nranks, &sums));
    assert(sums.count <= most_sums(&job->shape));
    job->result = (tw__list){w.result, 0};
    job->left = job->own;
    if (job->shape.wire == NULL)
        return gather_raw(job, &w, &sums);
    TW_TRY(gather_packed(job, &w, &sums, &sent));
    return keep_remainders(job, &w, &sums);
}

const tw__exchange tw__exchange_dsa = {
    .name = "dsa",
    .description = "each rank sums a range of indices, then all gather (SparCML)",
    .backends = TW__ALL_BACKENDS,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .applied = tw__most_union,
    .run = run,
};
