/* exchange_butterfly.c - sums and gathers in log P rounds, for small tensors and many ranks
 *
 * The other exchanges send a message to every rank, several times. Here a rank talks to 7 others at
 * a time, in 2 log8 P rounds. The ranks are a tree (butterfly.h): a group has up to 8 parts, each a
 * group itself.
 *
 *   scatter  down the tree: the indices of a group are cut between its parts; each rank sends what
 *            it has of another part's indices to one rank of that part, and sums what it gets
 *   gather   up the tree: each rank sends the sums of its part to one rank of every other part, or
 *            two where parts differ; of what a group has together its best share goes on
 *
 * If groups had two parts at most, 4 ranks would meet so:
 *
 *     scatter  0-2 1-3, the halves of the indices; then 0-1 2-3, the halves of a half
 *     gather   0-1 2-3; then 0-2 1-3
 *
 * No rank asks where entries lie: indices are interleaved (tw__interleave), so that a part of m ranks
 * among G has about k m/G of a list's k entries. tw__fair_share is the most that a part may get; a
 * rank that has more keeps the smallest. At the end of scatter a rank has the sums of its own
 * positions and shares the best of them, a little more than k/P. The last selection, of k, sees
 * nearly all of the k largest sums. What a rank does not pass on goes to its residual, with all that
 * others added to it: they count their entries as sent.
 *
 * Per round of scatter a rank sends k entries at most; all of gather brings it a little over k.
 * Values are rounded to a wire format whenever they are sent. In gather all ranks of a part round
 * alike, and the rank that summed an index keeps the difference to the result.
 *
 * In twolevel the ranks of a host meet first, if each of the H hosts has the same number of ranks. The
 * tree numbers the first rank of every host 0 .. H-1, the second H .. 2H-1 and so on, so that its
 * first levels cut between ranks of a host and the later ones between hosts. In between a host cuts
 * its sums to k, as a single rank would: each of its h ranks has k/h of them, for 1/h of the indices.
 *
 * Worked example, P = 2, n = 8, k = 2, positions after interleaving; rank 0 sums 0 .. 3, rank 1 4 .. 7:
 *
 *     position         0  1  2  3   4  5  6  7
 *     rank 0 brings       4                -1        sends {6: -1}
 *     rank 1 brings       1                    3     sends {1: 1}
 *     sums                5                -1  3     rank 0 sends {1: 5}, rank 1 {6: -1, 7: 3}
 *     result, best 2      5                    3     rank 1 keeps the -1 of rank 0 */
#include "exchange/butterfly.h"
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

/* Of a round: one to each other part and up to two from it, or vice versa. */
#define MESSAGES (3 * (TW__PARTS - 1))

typedef struct space {
    tw__entry *list;     /* [k + 1]: what this rank has */
    tw__entry *mine;     /* [k]: the sums of its own positions */
    tw__entry *outgoing; /* [k]: cut by parts */
    tw__entry *received; /* [tw__level_receives] */
    tw__entry *merged;   /* [k + tw__level_receives] */
    tw__list drops;      /* [most_drops]: what this rank keeps, in the order of dropping */
    tw__entry *kept;     /* [most_drops]: the same by index */
    tw__entry *sorted;   /* [most_drops] */
    char *sent, *packed; /* messages of a round: own ones, those of others */
    float *rounded;      /* [k] */
    int *order;          /* [nranks]: ranks by their number in the tree */
    int *scratch;        /* [2 nranks] */
    int number;          /* this rank's number */
} space;

/* All segments' shares. */
static int64_t shares(const tw__job *job, int64_t m, int64_t of) {
    int64_t sum = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        sum += tw__fair_share(job->segments[i].k, m, of);
    return sum;
}

/* Hosts may take one level more, and drop their surplus. */
static int64_t most_drops(const tw__shape *s) {
    return (tw__levels_of(s->nranks) + 1) * (s->k + tw__level_receives(s)) + 2 * s->k;
}

/* ---- memory */

static space layout(tw__arenas *arenas, const tw__shape *s) {
    tw__arena *a = &arenas->lists, *host = &arenas->host;
    int64_t receives = tw__level_receives(s), rounds = s->wire != NULL;
    return (space){
        .list = tw__arena_take(a, s->k + 1, sizeof(tw__entry)),
        .mine = tw__arena_take(a, s->k, sizeof(tw__entry)),
        .outgoing = tw__arena_take(a, s->k, sizeof(tw__entry)),
        .received = tw__arena_take(a, receives, sizeof(tw__entry)),
        .merged = tw__arena_take(a, s->k + receives, sizeof(tw__entry)),
        .drops = {tw__arena_take(a, most_drops(s), sizeof(tw__entry)), 0},
        .kept = tw__arena_take(a, most_drops(s), sizeof(tw__entry)),
        .sorted = tw__arena_take(a, most_drops(s), sizeof(tw__entry)),
        .sent = tw__arena_take(a, 1, tw__pack_capacity(s->wire, s->k, TW__PARTS)),
        .packed = tw__arena_take(a, 1, tw__pack_capacity(s->wire, receives, MESSAGES)),
        .rounded = tw__arena_take(a, rounds * s->k, sizeof(float)),
        .order = tw__arena_take(host, s->nranks, sizeof(int)),
        .scratch = tw__arena_take(host, 2 * (int64_t)s->nranks, sizeof(int)),
    };
}

static void memory(const tw__shape *shape, tw__arenas *arenas) {
    layout(arenas, shape);
}

/* Where supports agree, lists shrink as they are cut; else they keep their length. 7 messages in each
 * of log8 P rounds, in scatter and in gather. */
static tw_cost cost(double n, double k, double nranks) {
    (void)n;
    return (tw_cost){.least = 4.0 * k * (nranks - 1.0) / nranks,
                     .most = tw__level_words((int64_t)k, (int)nranks),
                     .latencies = 14.0 / 3 * log2(nranks)};
}

/* Each level cuts the lists between its parts, all of them together gather the result. */
static tw__cost_terms terms(const tw__shape *s) {
    tw__level tree[TW__LEVELS];
    int levels = tw__level_plan(tree, s->nranks, 1, 0);
    tw__cost_terms all = {.entries = 0.0};
    for (int i = 0; i < levels; i++) {
        int64_t parts = tree[i].parts, others = parts - 1;
        int64_t share = s->k / parts + 1, width = s->span / s->nranks * tree[i].size / parts + 1;
        int64_t gathered = s->k * tree[i].size / s->nranks / parts + 1;
        all.rounds += 2.0;
        all.messages += 2.0 * (double)others;
        all.bytes += (double)others * (double)(tw__pack_bytes(s->wire, share, 0, width) +
                                               tw__pack_bytes(s->wire, gathered, 0, width));
        all.entries += s->wire != NULL ? 2.0 * (double)(others * (share + gathered)) : 0.0;
        all.merged += 2.0 * (double)s->k;
    }
    all.merged += 6.0 * (double)s->k; /* to interleave, and back */
    return all;
}

/* ---- lists */

/* The entries of a segment at the positions of ranks first .. first+m-1. */
static int positions_of(const tw__job *job, const tw__segment *s, const tw__list *list, int first,
                        int m, tw__list *part) {
    int nranks = job->shape.nranks;
    return tw__list_between(&job->lists, list, s->base + tw__part_start(s->n, first, nranks),
                            s->base + tw__part_start(s->n, first + m, nranks), part);
}

/* Of the entries at these ranks' positions, the best of each segment go to out, as many as `m` ranks
 * among `of` may have; the others to dropped, unless that is NULL. */
static int select_share(const tw__job *job, const tw__list *list, int first, int count, int64_t m,
                        int64_t of, tw__list *out, tw__list *dropped) {
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        tw__list part;
        int64_t kept;
        TW_TRY(positions_of(job, s, list, first, count, &part));
        TW_TRY(tw__list_split_best(&job->lists, &part, tw__fair_share(s->k, m, of),
                                   out->at + out->count,
                                   dropped != NULL ? dropped->at + dropped->count : NULL, &kept));
        out->count += kept;
        if (dropped != NULL)
            dropped->count += part.count - kept;
    }
    return TW_OK;
}

/* What a rank sent lies at the positions of these ranks, and is no more than their share. */
static int check_list(const tw__job *job, const tw__list *list, int first, int count, int64_t of,
                      int rank) {
    int64_t within = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        tw__list part;
        TW_TRY(positions_of(job, s, list, first, count, &part));
        if (part.count > tw__fair_share(s->k, count, of))
            return tw__fail(TW_ERR_PROTOCOL,
                            "rank %d: sent %lld entries, more than their share %lld", rank,
                            (long long)part.count, (long long)tw__fair_share(s->k, count, of));
        within += part.count;
    }
    if (within != list->count)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries of others' positions", rank,
                        (long long)(list->count - within));
    return TW_OK;
}

/* ---- a round */

/* Messages of one round. */
typedef struct round_messages {
    tw__message messages[MESSAGES]; /* under way; receives first */
    tw__buffer in[MESSAGES];        /* of receives */
    int about[MESSAGES];            /* the part whose positions they are about */
    int receives, sends;
    tw__entry *received; /* where the next entries go */
    char *sent, *packed; /* and the next messages */
    const int *order;    /* ranks by their number in the tree */
} round_messages;

static round_messages round_of(const space *w) {
    return (round_messages){
        .received = w->received, .sent = w->sent, .packed = w->packed, .order = w->order};
}

/* The positions lo .. hi-1 that a message about a part may have. */
static void extent(const tw__job *job, const tw__level *l, int part, int64_t *lo, int64_t *hi) {
    const tw__segment *head = job->segments, *tail = head + job->shape.nsegments - 1;
    int nranks = job->shape.nranks;
    *lo = head->base + tw__part_start(head->n, tw__level_first(l, part), nranks);
    *hi = tail->base + tw__part_start(tail->n, tw__level_first(l, part + 1), nranks);
}

/* Receives a message about a part of the group, of `most` entries at most. */
static int receive(tw__job *job, const tw__level *l, round_messages *r, int peer, int part,
                   int64_t most) {
    const tw__wire *wire = job->shape.wire;
    int64_t lo, hi;
    assert(r->sends == 0 && r->receives < MESSAGES);
    extent(job, l, part, &lo, &hi);
    tw__buffer *in = &r->in[r->receives];
    *in = tw__pack_receive(wire, most, lo, hi, r->received, r->packed);
    r->packed += tw__pack_capacity(wire, most, 1);
    r->received += most;
    r->about[r->receives] = part;
    return tw__transport_recv(job->transport, r->order[peer], TW__PAYLOAD, in->data, in->capacity,
                              &r->messages[r->receives++]);
}

static int send(tw__job *job, round_messages *r, int peer, const tw__buffer *message) {
    assert(r->receives + r->sends < MESSAGES);
    return tw__transport_send(job->transport, r->order[peer], TW__PAYLOAD, message->data,
                              message->bytes, &r->messages[r->receives + r->sends++]);
}

/* Waits for the round. begun: TW_OK, or why it could not begin. */
static int end_round(tw__job *job, round_messages *r, int begun) {
    if (begun != TW_OK) {
        tw__transport_cancel(job->transport, r->messages, r->receives + r->sends);
        return tw__transport_abort(job->transport, begun);
    }
    TW_TRY(tw__transport_wait(job->transport, r->messages, r->receives + r->sends));
    for (int i = 0; i < r->receives; i++)
        r->in[i].bytes = r->messages[i].bytes;
    return TW_OK;
}

/* The list of message i, decoded to *entries, which moves on. */
static int unpack(tw__job *job, const tw__level *l, const round_messages *r, int i, int64_t of,
                  int peer, tw__entry **entries, tw__list *list) {
    int64_t lo, hi, most = shares(job, tw__level_size(l, r->about[i]), of);
    extent(job, l, r->about[i], &lo, &hi);
    TW_TRY(tw__unpack_list(job, &r->in[i], lo, hi, most, r->order[peer], *entries, list));
    *entries += most;
    return check_list(job, list, tw__level_first(l, r->about[i]), tw__level_size(l, r->about[i]),
                      of, r->order[peer]);
}

/* ---- scatter */

/* As many ranks would have k entries at this level. */
static int64_t whole(const tw__level *l) {
    return (int64_t)l->size * l->before;
}

/* Packs what this rank has of another part's positions. What exceeds the share is dropped. */
static int pack_part(tw__job *job, space *w, const tw__level *l, int part, const tw__list *list,
                     tw__list *out, char **sent, tw__buffer *message) {
    int64_t lo, hi;
    extent(job, l, part, &lo, &hi);
    TW_TRY(select_share(job, list, tw__level_first(l, part), tw__level_size(l, part),
                        tw__level_size(l, part), whole(l), out, &w->drops));
    TW_TRY(tw__pack_list(job, out, lo, hi, sent, w->rounded, message));
    return tw__pack_remainders(job, out, w->rounded, &w->drops);
}

/* Sums the entries of this rank and of its clients, in the order of ranks. */
static int sum_up(tw__job *job, space *w, const tw__level *l, const round_messages *r,
                  const tw__list *own, tw__list *merged) {
    tw__list runs[MESSAGES];
    tw__entry *entries = w->received;
    int nruns = 0, message = 0;
    for (int part = 0; part < l->parts; part++) {
        if (part == l->part)
            runs[nruns++] = *own;
        for (int turn = 0; turn < 2 && part != l->part; turn++) {
            int peer = tw__level_client(l, part, turn);
            if (peer < 0)
                continue;
            TW_TRY(unpack(job, l, r, message++, whole(l), peer, &entries, &runs[nruns++]));
        }
    }
    assert(nruns <= MESSAGES && message == r->receives);
    return tw__list_reduce(&job->lists, runs, nruns, merged);
}

static int begin_scatter(tw__job *job, space *w, const tw__level *l, const tw__list *list,
                         round_messages *r, tw__list *own) {
    int64_t most = shares(job, tw__level_size(l, l->part), whole(l));
    for (int part = 0; part < l->parts; part++)
        for (int turn = 0; turn < 2 && part != l->part; turn++)
            if (tw__level_client(l, part, turn) >= 0)
                TW_TRY(receive(job, l, r, tw__level_client(l, part, turn), l->part, most));
    tw__entry *next = w->outgoing;
    for (int turn = 1; turn < l->parts; turn++) {
        int part = (l->part + turn) % l->parts;
        tw__list out = {next, 0};
        tw__buffer message;
        TW_TRY(pack_part(job, w, l, part, list, &out, &r->sent, &message));
        next += out.count;
        TW_TRY(send(job, r, tw__level_partner(l, part), &message));
    }
    *own = (tw__list){next, 0};
    return select_share(job, list, tw__level_first(l, l->part), tw__level_size(l, l->part), 1, 1,
                        own, NULL);
}

static int scatter(tw__job *job, space *w, const tw__level *l, tw__list *list) {
    round_messages r = round_of(w);
    tw__list own, merged = {w->merged, 0};
    int begun = begin_scatter(job, w, l, list, &r, &own);
    TW_TRY(end_round(job, &r, begun));
    assert(r.received - w->received <= tw__level_receives(&job->shape));
    TW_TRY(sum_up(job, w, l, &r, &own, &merged));
    assert(merged.count <= job->shape.k + tw__level_receives(&job->shape));
    list->count = 0;
    return select_share(job, &merged, 0, job->shape.nranks, 1, l->after, list, &w->drops);
}

/* ---- gather */

/* A message of one byte says that a rank cannot keep what it dropped: all refuse the step. */
static char refusal[1];

static int begin_gather(tw__job *job, const tw__level *l, const tw__buffer *message,
                        round_messages *r) {
    for (int part = 0; part < l->parts; part++)
        if (part != l->part)
            TW_TRY(receive(job, l, r, tw__level_partner(l, part), part,
                           shares(job, tw__level_size(l, part), job->shape.nranks)));
    for (int i = 1; i < l->parts; i++)
        for (int turn = 0; turn < 2; turn++) {
            int peer = tw__level_client(l, (l->part + i) % l->parts, turn);
            if (peer >= 0)
                TW_TRY(send(job, r, peer, message));
        }
    return TW_OK;
}

/* The lists of all parts, segment by segment. */
static int concatenate(const tw__job *job, const tw__level *l, const tw__list *lists,
                       tw__list *merged) {
    for (int i = 0; i < job->shape.nsegments; i++)
        for (int part = 0; part < l->parts; part++) {
            tw__list piece;
            TW_TRY(positions_of(job, &job->segments[i], &lists[part], l->first, l->size, &piece));
            TW_TRY(tw__list_append(&job->lists, merged, &piece));
        }
    return TW_OK;
}

static int gather(tw__job *job, space *w, const tw__level *l, tw__list *list, int *refuse) {
    round_messages r = round_of(w);
    tw__list lists[TW__PARTS], merged = {w->merged, 0};
    tw__buffer message = {refusal, sizeof refusal, 0};
    tw__entry *entries = w->received;
    int64_t lo, hi;
    extent(job, l, l->part, &lo, &hi);
    if (!*refuse) {
        TW_TRY(tw__pack_list(job, list, lo, hi, &r.sent, w->rounded, &message));
        TW_TRY(tw__pack_set_rounded(job, list, w->rounded));
    }
    int begun = begin_gather(job, l, &message, &r);
    TW_TRY(end_round(job, &r, begun));
    for (int i = 0; i < r.receives; i++)
        *refuse |= r.in[i].bytes == sizeof refusal;
    for (int i = 0; i < r.receives && !*refuse; i++)
        TW_TRY(unpack(job, l, &r, i, job->shape.nranks, tw__level_partner(l, r.about[i]), &entries,
                      &lists[r.about[i]]));
    if (*refuse)
        return TW_OK;
    lists[l->part] = *list;
    TW_TRY(concatenate(job, l, lists, &merged));
    list->count = 0;
    return select_share(job, &merged, l->first, l->size, l->size, job->shape.nranks, list, NULL);
}

/* ---- what this rank keeps */

/* The sums of all that was dropped. */
static tw__list sum_drops(const tw__job *job, space *w) {
    tw__list kept = {w->kept, 0};
    assert(w->drops.count <= most_drops(&job->shape));
    tw__list_sort(&w->drops, job->shape.span, w->sorted);
    for (int64_t i = 0; i < w->drops.count;) {
        tw__entry sum = w->drops.at[i++];
        for (; i < w->drops.count && w->drops.at[i].idx == sum.idx; i++)
            sum.val += w->drops.at[i].val;
        kept.at[kept.count] = sum;
        kept.count += sum.val != 0.0f;
    }
    return kept;
}

/* Whether this rank's residual might overflow from what it dropped, and from its sums, should they
 * not be in the result. Only numbers near the end of the range need a look: a hundred of the others
 * do no harm. */
static int must_refuse(tw__job *job, space *w, const tw__list *mine, int *yes) {
    *yes = 0;
    if (!tw__list_reaches(&w->drops, 0x1p96f) && !tw__list_reaches(mine, 0x1p96f))
        return TW_OK;
    tw__list kept = sum_drops(job, w);
    job->kept.at = w->sorted;
    TW_TRY(tw__list_merge(&job->lists, &kept, mine, &job->kept));
    TW_TRY(tw__deinterleave(job, &job->kept, w->kept));
    return tw__job_overflows(job, yes);
}

/* Of its own sums a rank keeps what the result does not have. */
static void drop_difference(tw__list *drops, const tw__list *mine, const tw__list *result) {
    int64_t at = 0;
    for (int64_t i = 0; i < mine->count; i++) {
        while (at < result->count && result->at[at].idx < mine->at[i].idx)
            at++;
        int found = at < result->count && result->at[at].idx == mine->at[i].idx;
        float left = mine->at[i].val - (found ? result->at[at].val : 0.0f);
        drops->at[drops->count] = (tw__entry){mine->at[i].idx, left};
        drops->count += left != 0.0f;
    }
}

/* ---- the map */

/* `local` ranks of each host meet first; 1: hosts do not matter. */
static int exchange(tw__job *job, space *w, int local) {
    tw__level tree[TW__LEVELS];
    int levels = tw__level_plan(tree, job->shape.nranks, local, w->number), refuse = 0;
    tw__list list = {w->list, 0}, mine = {w->mine, 0};
    assert(job->own.count <= job->shape.k);
    TW_TRY(tw__list_append(&job->lists, &list, &job->own));
    TW_TRY(tw__interleave(job, &list, w->sorted));
    for (int i = 0; i < levels; i++)
        TW_TRY(scatter(job, w, &tree[i], &list));
    TW_TRY(tw__list_append(&job->lists, &mine, &list));
    list.count = 0;
    TW_TRY(select_share(job, &mine, 0, job->shape.nranks, 1, job->shape.nranks, &list, NULL));
    job->left = job->own;
    TW_TRY(must_refuse(job, w, &mine, &refuse));
    for (int i = levels - 1; i >= 0; i--)
        TW_TRY(gather(job, w, &tree[i], &list, &refuse));
    if (refuse)
        return tw__fail(TW_ERR_NUMBER, "a sum over ranks that one of them is to keep overflows in "
                                       "this step; skip it or lower the loss scale");
    drop_difference(&w->drops, &mine, &list);
    job->kept = sum_drops(job, w);
    job->result = list;
    TW_TRY(tw__deinterleave(job, &job->kept, w->sorted));
    return tw__deinterleave(job, &job->result, w->sorted);
}

static int run(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    for (int r = 0; r < job->shape.nranks; r++)
        w.order[r] = r;
    w.number = job->rank;
    return exchange(job, &w, 1);
}

static int run_by_host(tw__job *job) {
    space w = layout(&job->arenas, &job->shape);
    int local = tw__transport_hosts(job->transport, w.order, w.scratch);
    while (w.order[w.number] != job->rank)
        w.number++;
    return exchange(job, &w, local);
}

const tw__exchange tw__exchange_butterfly = {
    .name = "butterfly",
    .description = "sums and gathers among 8 ranks at a time, in log P rounds",
    .best_k = 1,
    .cost = cost,
    .terms = terms,
    .memory = memory,
    .run = run,
};

const tw__exchange tw__exchange_twolevel = {
    .name = "twolevel",
    .description = "butterfly in which ranks of a host first sum what they have",
    .best_k = 1,
    .cost = cost,
    .memory = memory,
    .run = run_by_host,
};
