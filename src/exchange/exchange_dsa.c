/* exchange_dsa.c - each rank sums one range of indices, then all gather the sums
 *
 * TopkDSA of the papers, after SparCML (Renggli et al., 2019): the index space is split into P
 * equal ranges, range j is summed by rank j and sent to all, as entries or, when those would be
 * longer, as a plain vector. The result is the union of the selections, as with allgather. Cost:
 * 4k(P-1)/P words when supports agree, at most (2k+n)(P-1)/P. Nothing balances the ranges: when
 * all entries lie in one, its rank receives them all.
 *
 * Example, P = 2, n = 8: rank 0 selects {1, 6}, rank 1 selects {1, 2, 3}. Rank 0 sums range 0..3
 * and sends it as 4 floats, since {1, 2, 3} would take 6 words; rank 1 sends {6} as an entry. */
#include "exchange/exchange.h"

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
    char *sent, *mail;   /* letters: own ones, and [nranks] of others */
    float *rounded;      /* of own entries, and of own sums */
    tw__entry *kept[3];  /* remainders of these, and both together */
    void *rotation;
    int64_t *starts;    /* [nranks + 1] of ranges */
    int64_t *positions; /* [nranks + 1] */
} space;

static int64_t longest_range(const tw__shape *s) {
    return s->span / s->nranks + 1;
}

static int64_t piece(const tw__shape *s) {
    return s->most < longest_range(s) ? s->most : longest_range(s);
}

static int64_t applied(const tw__shape *s) {
    int64_t all = s->most * s->nranks;
    return all < s->span ? all : s->span;
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

/* A letter about a range: entries for it, or its sums. */
static size_t letter(const tw__shape *s) {
    return tw__pack_room(s->wire, most_sums(s), 1);
}

static space layout(tw__arenas *room, const tw__shape *s) {
    tw__arena *host = &room->host, *lists = &room->lists;
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
        .result = tw__arena_take(lists, applied(s) + 1, sizeof(tw__entry)),
        .sent = tw__arena_take(lists, 1, tw__pack_room(s->wire, s->most + sums, s->nranks + 1)),
        .mail = tw__arena_take(lists, s->nranks, letter(s)),
        .rounded = tw__arena_take(lists, rounds, sizeof(float)),
        .kept = {tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, rounds, sizeof(tw__entry)),
                 tw__arena_take(lists, rounds, sizeof(tw__entry))},
        .rotation = tw__arena_take(host, 1, tw__alltoall_memory(s->nranks)),
        .starts = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
        .positions = tw__arena_take(host, s->nranks + 1, sizeof(int64_t)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *room) {
    layout(room, shape);
}

/* Sums go on as entries, or whole where that is less. */
static tw_cost cost(double n, double k, double nranks) {
    double others = (nranks - 1.0) / nranks;
    return (tw_cost){(2.0 * k + fmin(2.0 * k, n)) * others, (2.0 * k + n) * others};
}

static tw__cost_terms effort(const tw__shape *s) {
    double others = s->nranks - 1.0, sums = tw__expected_union(s);
    int64_t range = longest_range(s), held = (int64_t)(sums / s->nranks) + 1;
    double there = (double)tw__pack_bytes(s->wire, s->k / s->nranks + 1, 0, range);
    double back = (double)tw__pack_bytes(s->wire, held, 0, range);
    if (s->wire == NULL && back > 4.0 * (double)range)
        back = 4.0 * (double)range;
    return (tw__cost_terms){
        .rounds = 1.0 + tw__gather_rounds(s),
        .messages = 2.0 * others,
        .bytes = others * (there + back),
        .entries = s->wire != NULL ? 2.0 * (double)s->k + sums : 0.0,
        .merged = (double)s->k + sums,
    };
}

static int64_t range_start(const tw__job *job, int rank) {
    return tw__part_start(job->shape.span, rank, job->shape.nranks);
}

/* Entries go to the rank that sums their range; own ones stay. */
static int split(tw__job *job, space *w, char **mail) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), hi = range_start(job, job->rank + 1);
    for (int r = 0; r <= s->nranks; r++)
        w->starts[r] = range_start(job, r);
    TW_TRY(tw__list_cut(&job->lists, &job->own, w->starts, s->nranks + 1, w->positions, w->runs));
    for (int r = 0; r < s->nranks; r++) {
        float *rounded = w->rounded + (w->runs[r].at - job->own.at);
        if (r == job->rank)
            TW_TRY(tw__pack_keep(job, &w->runs[r], rounded));
        else
            TW_TRY(tw__pack_list(job, &w->runs[r], w->starts[r], w->starts[r + 1], mail, rounded,
                                 &w->out[r]));
        w->in[r] = (tw__buffer){.data = s->wire != NULL ? (void *)(w->mail + (size_t)r * letter(s))
                                                        : (void *)(w->received + r * piece(s)),
                                .capacity = tw__pack_bound(s->wire, piece(s), lo, hi)};
    }
    TW_TRY(tw__alltoall_run(job->transport, job->cargo, w->out, w->in, w->rotation));
    for (int r = 0; r < s->nranks; r++)
        if (r != job->rank)
            TW_TRY(tw__unpack_list(job, &w->in[r], lo, hi, piece(s), r, w->received + r * piece(s),
                                   &w->runs[r]));
    return TW_OK;
}

/* Entries are sent as such while that is shorter: then a message of the range's length is plain. */
static int pack(const tw__job *job, const tw__list *sums, int64_t lo, int64_t range, float *plain,
                tw__buffer *parcel) {
    *parcel = (tw__buffer){sums->at, sizeof(tw__entry) * (size_t)sums->count, 0};
    if (2 * sums->count < range)
        return TW_OK;
    *parcel = (tw__buffer){plain, sizeof *plain * (size_t)range, 0};
    return job->lists.calls->spread(job->lists.context, sums, lo, plain, range);
}

static int no_room(int rank, int64_t sums, int64_t room) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld sums where %lld are possible", rank,
                    (long long)sums, (long long)room);
}

/* Appends what rank r sent of its range, unless that is more than ranks can have selected. */
static int unpack(tw__job *job, const tw__buffer *parcel, int r) {
    int64_t lo = range_start(job, r), range = range_start(job, r + 1) - lo;
    int64_t room = applied(&job->shape) - job->result.count;
    tw__entry *to = job->result.at + job->result.count;
    tw__list entries;
    if (parcel->bytes == sizeof(float) * (size_t)range) {
        TW_TRY(job->lists.calls->collect(job->lists.context, parcel->data, lo, range, room, to,
                                         &entries.count));
    } else {
        TW_TRY(tw__buffer_list(parcel, r, &entries));
        TW_TRY(tw__list_check(&job->lists, &entries, lo, lo + range, r));
        if (entries.count <= room)
            TW_TRY(job->lists.calls->move(job->lists.context, to, entries.at, entries.count));
    }
    if (entries.count > room)
        return no_room(r, entries.count, room);
    job->result.count += entries.count;
    return TW_OK;
}

static int gather(tw__job *job, space *w, const tw__list *sums) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), range = range_start(job, job->rank + 1) - lo;
    tw__buffer mine;
    TW_TRY(pack(job, sums, lo, range, w->plain, &mine));
    for (int r = 0; r < s->nranks; r++) {
        w->in[r] = (tw__buffer){.data = w->gathered + r * words(s),
                                .capacity = sizeof(float) * (size_t)words(s)};
    }
    TW_TRY(tw__job_gather(job, &mine, w->out, w->in, w->rotation));
    for (int r = 0; r < s->nranks; r++)
        TW_TRY(unpack(job, r == job->rank ? &mine : &w->in[r], r));
    return TW_OK;
}

/* The same as letters: a wire format has a form for crowded ranges of its own. */
static int gather_letters(tw__job *job, space *w, const tw__list *sums, char **mail) {
    const tw__shape *s = &job->shape;
    int64_t lo = range_start(job, job->rank), hi = range_start(job, job->rank + 1);
    tw__buffer mine;
    TW_TRY(tw__pack_list(job, sums, lo, hi, mail, w->rounded + s->most, &mine));
    for (int r = 0; r < s->nranks; r++) {
        int64_t from = range_start(job, r), to = range_start(job, r + 1);
        w->in[r] = (tw__buffer){.data = w->mail + (size_t)r * letter(s),
                                .capacity = tw__pack_bound(s->wire, most_sums(s), from, to)};
    }
    TW_TRY(tw__job_gather(job, &mine, w->out, w->in, w->rotation));
    for (int r = 0; r < s->nranks; r++) {
        tw__list part, *result = &job->result;
        int64_t room = applied(s) - result->count;
        TW_TRY(tw__unpack_list(job, r == job->rank ? &mine : &w->in[r], range_start(job, r),
                               range_start(job, r + 1), room, r, result->at + result->count,
                               &part));
        TW_TRY(job->lists.calls->move(job->lists.context, result->at + result->count, part.at,
                                      part.count));
        result->count += part.count;
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
    space w = layout(&job->room, &job->shape);
    tw__list sums = {w.sums, 0};
    char *mail = w.sent;
    TW_TRY(split(job, &w, &mail));
    TW_TRY(tw__list_reduce(&job->lists, w.runs, job->shape.nranks, &sums));
    job->result = (tw__list){w.result, 0};
    job->left = job->own;
    if (job->shape.wire == NULL)
        return gather(job, &w, &sums);
    TW_TRY(gather_letters(job, &w, &sums, &mail));
    return keep_remainders(job, &w, &sums);
}

const tw__exchange tw__exchange_dsa = {
    .name = "dsa",
    .description = "each rank sums a range of indices, then all gather (SparCML)",
    .cost = cost,
    .effort = effort,
    .memory = memory,
    .applied = applied,
    .run = run,
};
