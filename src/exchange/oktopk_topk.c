/* oktopk_topk.c - the k largest sums of all ranks, without gathering them
 *
 * The k-th largest magnitude lies in an interval that the ranks narrow together: each counts its
 * sums in 256 bins of the interval, they sum the histograms, and the bin that holds the k-th is the
 * next interval. A round costs 2 KiB each way and segment, and two alltoalls. Where the threshold
 * of the step before is known, the first round's bins lie closely around it; the outer two take the
 * rest:
 *
 *     magnitudes   0 [    bin 0    |1|2|  ...  threshold before  ...  |254|  bin 255    ] 2^31
 *
 * These bins are known before the sums are, so the first histogram is counted piece by piece, while
 * other entries travel. Sums above bin 0 are copied meanwhile: they are the candidates. With 8 ranks
 * they are 1 of 8 sums in a usual step, so the work after the histogram is short.
 *
 * Once so few magnitudes are left in the interval that all ranks may see them, each rank reports its
 * own: every magnitude with the number of sums that have it, since many values that were rounded for
 * the wire are equal. Then everyone knows the threshold, and how many sums every rank holds above it
 * and of exactly its magnitude. Since rank r's indices are all below those of rank r+1, everyone also
 * knows how many ties each rank may keep. So a usual step takes three alltoalls.
 *
 * Example, k = 3: rank 0 holds magnitudes 9 4 4, rank 1 holds 7 4 1. A histogram leaves the interval
 * 4 .. 7 with 4 sums inside and 1 above, 9. Rank 0 reports {above 1; 4 twice}, rank 1 {above 0; 4
 * once, 7 once}. The 3rd largest of all is 4: rank 0 holds 1 above it and 2 equal, rank 1 holds 1
 * above and 1 equal. One tie is left, and goes to rank 0: it keeps 9 4, rank 1 keeps 7.
 *
 * With TW_GLOBAL_REUSE the threshold of earlier steps is tried first, which needs the last message
 * alone. It is set a little above the exact one: the bound of oktopk allows k sums, not more. */
#include "exchange/oktopk.h"

#include <assert.h>

#define BINS TW__BINS
#define DIGIT 8                        /* bits that a histogram tells */
#define EVERYTHING ((uint32_t)1 << 31) /* above all magnitudes */
/* Bins around the last threshold: a 2048th of an octave each, 4 % up and down together. */
#define CLOSE_SHIFT 12
/* What a rank lists of its sums at most, of each segment: counts as two histograms. */
#define LISTED_BYTES 4096
#define LIST_MESSAGES 2
#define MOST_PICKED 64
#define LOW_BITS 16
#define TOO_MANY UINT32_MAX
/* Reused thresholds lie a twelfth above the exact one: an eighth of the way to the next octave. */
#define REUSE_MARGIN ((uint32_t)1 << 20)

/* The search for one segment's threshold. */
typedef struct search {
    tw__list part; /* this rank's sums of the segment */
    int64_t k;
    tw__bins bins;   /* of the interval lo .. hi-1; the threshold is lo once it is done */
    int64_t greater; /* sums above the interval, of all ranks */
    int64_t inside;  /* sums in it */
    int done;
    int exact;      /* it was searched for, not reused */
    uint32_t floor; /* sums of this magnitude and more are among the candidates */
} search;

/* Sums that may be in the result, those of all segments. */
typedef struct candidates {
    tw__list list;
    int64_t capacity; /* 0: they were too many */
} candidates;

/* Sums of a segment that a rank holds. */
typedef struct holding {
    uint32_t above; /* the threshold, or the interval */
    uint32_t equal; /* to the threshold */
} holding;

/* Sums of one magnitude, given by its distance from the interval's start. */
typedef struct magnitude {
    uint16_t low;
    uint16_t more; /* sums beyond the first */
} magnitude;

/* A rank's message begins with a report for each segment. The magnitudes in the intervals follow, in
 * the order of segments. */
typedef struct report {
    holding holding;
    uint32_t listed; /* magnitudes of it that follow; TOO_MANY: more than it may, and none */
} report;

typedef struct space {
    search *searches; /* [nsegments] */
    candidates *candidates;
    uint32_t *bins;          /* [nsegments][BINS] */
    uint32_t *piece;         /* [BINS]: of some of the sums */
    holding *holdings;       /* [nranks][nsegments] */
    char *messages;          /* [nranks] of message_bytes */
    magnitude *all;          /* [nranks * most_listed]: those of one segment */
    uint32_t *picked;        /* [most_picked]: magnitude bits of one segment */
    const magnitude **lists; /* [nranks]: in the messages */
    tw__buffer *out, *in;    /* [nranks] */
    void *sum;
    void *alltoall;
} space;

static uint32_t most_listed(int nranks) {
    return (uint32_t)(LISTED_BYTES / sizeof(magnitude)) / (uint32_t)(nranks > 1 ? nranks - 1 : 1);
}

/* Sums that a rank looks at for its list. Only values rounded for the wire, of which many are equal,
 * can be more. */
static int64_t most_picked(int nranks) {
    return (int64_t)MOST_PICKED * most_listed(nranks) * nranks;
}

/* Of a rank's message at most. A multiple of 8, so that reports are aligned. */
static size_t message_bytes(int nranks, int nsegments) {
    size_t each = sizeof(report) + sizeof(magnitude) * most_listed(nranks);
    return (each * (size_t)nsegments + 7) / 8 * 8;
}

static space layout(tw__arena *arena, int nranks, int nsegments) {
    return (space){
        .searches = tw__arena_take(arena, nsegments, sizeof(search)),
        .candidates = tw__arena_take(arena, 1, sizeof(candidates)),
        .bins = tw__arena_take(arena, (int64_t)nsegments * BINS, sizeof(uint32_t)),
        .piece = tw__arena_take(arena, BINS, sizeof(uint32_t)),
        .holdings = tw__arena_take(arena, (int64_t)nranks * nsegments, sizeof(holding)),
        .messages = tw__arena_take(arena, nranks, message_bytes(nranks, nsegments)),
        .all = tw__arena_take(arena, (int64_t)nranks * most_listed(nranks), sizeof(magnitude)),
        .picked = tw__arena_take(arena, most_picked(nranks), sizeof(uint32_t)),
        .lists = tw__arena_take(arena, nranks, sizeof(magnitude *)),
        .out = tw__arena_take(arena, nranks, sizeof(tw__buffer)),
        .in = tw__arena_take(arena, nranks, sizeof(tw__buffer)),
        .sum = tw__arena_take(arena, 1, tw__sum_counts_memory(nranks, (int64_t)nsegments * BINS)),
        .alltoall = tw__arena_take(arena, 1, tw__alltoall_memory(nranks)),
    };
}

size_t tw__topk_memory(int nranks, int nsegments) {
    tw__arena counting = {0};
    layout(&counting, nranks, nsegments);
    return counting.used;
}

/* ---- histograms */

/* Bins over the whole interval; or around a guess, with the rest of the interval in the outer
 * two. */
static void lay_bins(search *s, uint32_t guess) {
    const uint32_t below = ((uint32_t)BINS / 2 - 1) << CLOSE_SHIFT;
    s->bins.shift = CLOSE_SHIFT;
    s->bins.base = guess - below;
    if (guess > below)
        return;
    for (s->bins.shift = 0; (uint64_t)BINS << s->bins.shift < s->bins.hi - s->bins.lo;)
        s->bins.shift++;
    s->bins.base = s->bins.lo + ((uint32_t)1 << s->bins.shift);
}

/* Walks down from the largest bin to the one that holds the k-th: the next interval. */
static void narrow(search *s, const uint32_t *bins) {
    uint32_t bin = BINS - 1;
    while (bin > 0 && s->k - s->greater > bins[bin])
        s->greater += bins[bin--];
    uint32_t start = s->bins.base + ((bin - 1) << s->bins.shift),
             end = s->bins.base + (bin << s->bins.shift);
    s->bins.lo = bin == 0 ? s->bins.lo : start;
    s->bins.hi = bin == BINS - 1 || end > s->bins.hi ? s->bins.hi : end;
    s->inside = bins[bin];
    /* Done if all of the interval is taken: there may be fewer than k sums. */
    s->done = s->k - s->greater >= s->inside || s->bins.hi - s->bins.lo == 1;
    assert(s->k == 0 || s->greater < s->k);
    lay_bins(s, 0);
}

/* One round for all segments that are not done. counted: the bins of all segments are counted. */
static int narrow_all(tw__job *job, space *w, int counted) {
    int64_t active = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        if (w->searches[i].done)
            continue;
        if (!counted)
            TW_TRY(job->lists.calls->count_bins(job->lists.context, &w->searches[i].part,
                                                &w->searches[i].bins, w->bins + BINS * active));
        active++;
    }
    TW_TRY(tw__sum_counts(job->transport, w->bins, BINS * active, w->sum));
    active = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        if (!w->searches[i].done)
            narrow(&w->searches[i], w->bins + BINS * active++);
    return TW_OK;
}

/* ---- reports */

/* Adds a sum of this magnitude to a list that is kept in order. Returns its new length, at most
 * most + 1. */
static uint32_t add_magnitude(magnitude *list, uint32_t count, uint32_t most, uint32_t low) {
    uint32_t at = 0, end = count;
    while (at < end) {
        uint32_t middle = (at + end) / 2;
        if (list[middle].low < low)
            at = middle + 1;
        else
            end = middle;
    }
    if (at < count && list[at].low == low && list[at].more < UINT16_MAX) {
        list[at].more++;
        return count;
    }
    if (count >= most)
        return most + 1;
    memmove(list + at + 1, list + at, sizeof *list * (count - at));
    list[at] = (magnitude){(uint16_t)low, 0};
    return count + 1;
}

/* Counts this rank's sums, and lists those in the interval, if it is still searched. */
static int report_on(const tw__job *job, const space *w, const search *s, magnitude *list,
                     report *a) {
    const tw__lists *lists = &job->lists;
    uint32_t most = most_listed(job->shape.nranks);
    int64_t above, equal, inside = 0, capacity = most_picked(job->shape.nranks);
    uint32_t edge = s->done ? s->bins.lo : s->bins.hi - 1;
    TW_TRY(lists->calls->count(lists->context, &s->part, edge, &above, &equal));
    *a = (report){.holding = {(uint32_t)above, s->done ? (uint32_t)equal : 0}};
    if (s->done)
        return TW_OK;
    TW_TRY(lists->calls->pick(lists->context, &s->part, s->bins.lo, s->bins.hi, capacity, w->picked,
                              &inside));
    for (int64_t i = 0; i < inside && i < capacity && a->listed <= most; i++)
        a->listed = add_magnitude(list, a->listed, most, w->picked[i] - s->bins.lo);
    if (a->listed > most || inside > capacity)
        a->listed = TOO_MANY;
    return TW_OK;
}

static magnitude *lists_of(char *message, int nsegments) {
    return (magnitude *)(void *)(message + sizeof(report) * (size_t)nsegments);
}

static size_t listed(const report *a) {
    return a->listed == TOO_MANY ? 0 : a->listed;
}

/* This rank's message, and its length. */
static int write_reports(const tw__job *job, const space *w, char *message, size_t *bytes) {
    int nsegments = job->shape.nsegments;
    report *reports = (report *)(void *)message;
    magnitude *list = lists_of(message, nsegments), *begin = list;
    for (int i = 0; i < nsegments; i++) {
        TW_TRY(report_on(job, w, &w->searches[i], list, &reports[i]));
        list += listed(&reports[i]);
    }
    *bytes = sizeof(report) * (size_t)nsegments + sizeof *list * (size_t)(list - begin);
    assert(*bytes <= message_bytes(job->shape.nranks, nsegments));
    return TW_OK;
}

/* Another rank's message: lists for open searches only, and the length that they have. */
static int check_reports(const tw__job *job, const space *w, const tw__buffer *in, int rank) {
    const report *reports = in->data;
    int nsegments = job->shape.nsegments;
    size_t bytes = sizeof(report) * (size_t)nsegments;
    int good = in->bytes >= bytes;
    for (int i = 0; good && i < nsegments; i++) {
        size_t count = listed(&reports[i]);
        good = count <= (w->searches[i].done ? 0 : most_listed(job->shape.nranks));
        bytes += sizeof(magnitude) * count;
    }
    if (good && in->bytes == bytes)
        return TW_OK;
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes about its sums, which are not these",
                    rank, in->bytes);
}

/* Everyone learns what every rank holds. */
static int share_reports(tw__job *job, space *w) {
    int nranks = job->shape.nranks;
    size_t capacity = message_bytes(nranks, job->shape.nsegments);
    char *own = w->messages + (size_t)job->rank * capacity;
    size_t bytes;
    TW_TRY(write_reports(job, w, own, &bytes));
    for (int r = 0; r < nranks; r++) {
        w->out[r] = (tw__buffer){.data = own, .bytes = bytes};
        w->in[r] = (tw__buffer){.data = w->messages + (size_t)r * capacity, .capacity = capacity};
    }
    TW_TRY(tw__alltoall_run(job->transport, TW__CONTROL, w->out, w->in, w->alltoall));
    for (int r = 0; r < nranks; r++) {
        if (r != job->rank)
            TW_TRY(check_reports(job, w, &w->in[r], r));
        const report *reports = w->in[r].data;
        for (int i = 0; i < job->shape.nsegments; i++)
            w->holdings[r * job->shape.nsegments + i] = reports[i].holding;
    }
    return TW_OK;
}

/* The largest x for which `wanted` of the sums are x or more. */
static uint32_t find_kth(const magnitude *list, int64_t count, int64_t wanted) {
    uint32_t x = 0;
    for (uint32_t bit = (uint32_t)1 << (LOW_BITS - 1); bit > 0; bit >>= 1) {
        int64_t above = 0;
        for (int64_t i = 0; i < count; i++)
            above += list[i].low >= (x | bit) ? 1 + list[i].more : 0;
        x |= above >= wanted ? bit : 0;
    }
    return x;
}

static void add_listed(holding *h, const magnitude *list, size_t count, uint32_t kth) {
    for (size_t i = 0; i < count; i++) {
        uint32_t sums = 1 + (uint32_t)list[i].more;
        h->above += list[i].low > kth ? sums : 0;
        h->equal += list[i].low == kth ? sums : 0;
    }
}

/* Ends the search of a segment whose sums all ranks listed; the lists move on to the next. */
static void resolve(tw__job *job, space *w, int segment) {
    search *s = &w->searches[segment];
    int nsegments = job->shape.nsegments, complete = 1;
    int64_t count = 0;
    for (int r = 0; r < job->shape.nranks; r++) {
        const report *a = (const report *)w->in[r].data + segment;
        memcpy(w->all + count, w->lists[r], sizeof *w->all * listed(a));
        count += (int64_t)listed(a);
        complete &= a->listed != TOO_MANY;
    }
    uint32_t kth = find_kth(w->all, count, s->k - s->greater);
    for (int r = 0; r < job->shape.nranks; r++) {
        size_t its = listed((const report *)w->in[r].data + segment);
        if (complete)
            add_listed(&w->holdings[r * nsegments + segment], w->lists[r], its, kth);
        w->lists[r] += its;
    }
    s->done = complete;
    s->bins.lo += complete ? kth : 0;
}

static void resolve_all(tw__job *job, space *w) {
    for (int r = 0; r < job->shape.nranks; r++)
        w->lists[r] = lists_of(w->in[r].data, job->shape.nsegments);
    for (int i = 0; i < job->shape.nsegments; i++)
        if (!w->searches[i].done)
            resolve(job, w, i);
}

/* ---- the search */

static int all_done(const tw__job *job, const space *w) {
    int done = 1;
    for (int i = 0; i < job->shape.nsegments; i++)
        done &= w->searches[i].done;
    return done;
}

/* Histograms that end a search, if nothing else does. */
static int most_rounds(const search *s) {
    int rounds = 0;
    for (uint32_t width = s->bins.hi - s->bins.lo; width > 1; rounds++)
        width = (width + BINS - 1) >> DIGIT;
    return rounds;
}

/* Whether to list what is left of a search: where it is little, or rounded values have few
 * magnitudes. */
static int worth_listing(const tw__job *job, const search *s) {
    int64_t most = (int64_t)most_listed(job->shape.nranks) * job->shape.nranks;
    uint32_t width = s->bins.hi - s->bins.lo;
    return (s->inside <= most * 3 / 4 && width <= (uint32_t)1 << LOW_BITS) ||
           (job->shape.wire != NULL && width <= (uint32_t)1 << CLOSE_SHIFT);
}

/* Whether all searches can be listed. That may fail; messages for histograms must be left then. */
static int can_list(const tw__job *job, const space *w, int messages) {
    int can = 1;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const search *s = &w->searches[i];
        can &= s->done || (worth_listing(job, s) && messages - LIST_MESSAGES >= most_rounds(s));
    }
    return can;
}

static void lay_first_bins(tw__job *job, space *w, int messages) {
    for (int i = 0; i < job->shape.nsegments; i++) {
        search *s = &w->searches[i];
        uint32_t before = *job->segments[i].threshold;
        int close = before > REUSE_MARGIN && messages - 1 >= most_rounds(s);
        lay_bins(s, close ? before - REUSE_MARGIN : 0);
        s->exact = !s->done;
    }
}

/* After the first histogram: what is left of a search is among the candidates, unless the threshold
 * is in bin 0. */
static int narrow_to_candidates(tw__job *job, space *w) {
    if (w->candidates->capacity == 0)
        return TW_OK;
    TW_TRY(tw__job_cut(job, &w->candidates->list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++)
        if (w->searches[i].bins.lo >= w->searches[i].floor)
            w->searches[i].part = job->parts[0][i];
    return TW_OK;
}

/* With so many messages of 2 KiB, each of which is a histogram or a list. counted: the first
 * histogram is counted. */
static int find_thresholds(tw__job *job, space *w, int messages, int counted) {
    for (; !all_done(job, w); messages--, counted = 0) {
        if (can_list(job, w, messages)) {
            TW_TRY(share_reports(job, w));
            resolve_all(job, w);
            if (all_done(job, w))
                return TW_OK;
            messages -= LIST_MESSAGES;
        }
        TW_TRY(narrow_all(job, w, counted));
        if (counted)
            TW_TRY(narrow_to_candidates(job, w));
    }
    return share_reports(job, w);
}

/* Tries the thresholds of earlier steps. A segment is done where its threshold fits. */
static int reuse_thresholds(tw__job *job, space *w) {
    int any = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        any |= (w->searches[i].bins.lo = *job->segments[i].threshold) != 0;
        w->searches[i].done = 1;
    }
    if (any)
        TW_TRY(share_reports(job, w));
    for (int i = 0; i < job->shape.nsegments; i++) {
        search *s = &w->searches[i];
        int64_t total = 0;
        for (int r = 0; r < job->shape.nranks && any; r++) {
            const holding *h = &w->holdings[r * job->shape.nsegments + i];
            total += (int64_t)h->above + h->equal;
        }
        s->done = s->bins.lo != 0 && total <= s->k && 3 * total >= 2 * s->k;
        s->bins.lo = s->done ? s->bins.lo : 0;
    }
    return TW_OK;
}

/* Cuts this rank's part of the segment down to what it keeps; counts what every rank keeps. */
static int keep_share(tw__job *job, space *w, int segment, int64_t *holdings) {
    search *s = &w->searches[segment];
    int64_t above = 0;
    for (int r = 0; r < job->shape.nranks; r++)
        above += w->holdings[r * job->shape.nsegments + segment].above;
    int64_t ties = s->k - above;
    for (int r = 0; r < job->shape.nranks; r++) {
        holding h = w->holdings[r * job->shape.nsegments + segment];
        int64_t mine = ties < 0 ? 0 : ties < h.equal ? ties : h.equal;
        ties -= mine;
        holdings[r] += h.above + mine;
        if (r == job->rank)
            TW_TRY(tw__list_keep_above(&job->lists, &s->part, s->bins.lo, mine));
    }
    return TW_OK;
}

/* A threshold that is tried first may make the histogram needless. */
static int counts_early(const tw__job *job) {
    return job->global != TW_GLOBAL_REUSE;
}

static space space_in(void *scratch, const tw__job *job) {
    tw__arena arena = {scratch, 0};
    return layout(&arena, job->shape.nranks, job->shape.nsegments);
}

void tw__topk_begin(tw__job *job, int messages, tw__entry *entries, int64_t capacity,
                    void *scratch) {
    space w = space_in(scratch, job);
    int nsegments = job->shape.nsegments;
    assert(messages >= TW__TOPK_ROUNDS);
    for (int i = 0; i < nsegments; i++)
        w.searches[i] = (search){.k = job->segments[i].k, .bins.hi = EVERYTHING};
    lay_first_bins(job, &w, messages);
    for (int i = 0; i < nsegments; i++)
        w.searches[i].floor = w.searches[i].bins.base;
    *w.candidates = (candidates){{entries, 0}, capacity};
    memset(w.bins, 0, sizeof *w.bins * BINS * (size_t)nsegments);
}

/* Copies the candidates among these sums, `many` of them. Copying writes one entry more. */
static int add_candidates(tw__job *job, candidates *h, const tw__list *sums, uint32_t floor,
                          int64_t many) {
    int64_t kept = 0;
    if (h->list.count + many >= h->capacity)
        h->capacity = 0;
    if (h->capacity == 0 || many == 0)
        return TW_OK;
    TW_TRY(job->lists.calls->take(job->lists.context, sums, (tw__edge){floor - 1, 0},
                                  h->list.at + h->list.count, NULL, &kept));
    assert(kept == many);
    h->list.count += kept;
    return TW_OK;
}

int tw__topk_count(tw__job *job, const tw__list *sums, void *scratch) {
    space w = space_in(scratch, job);
    if (!counts_early(job))
        return TW_OK;
    TW_TRY(tw__job_cut(job, sums, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        search *s = &w.searches[i];
        int64_t many = 0;
        TW_TRY(
            job->lists.calls->count_bins(job->lists.context, &job->parts[0][i], &s->bins, w.piece));
        for (int bin = 0; bin < BINS; bin++) {
            w.bins[BINS * (size_t)i + (size_t)bin] += w.piece[bin];
            many += bin > 0 ? w.piece[bin] : 0;
        }
        TW_TRY(add_candidates(job, w.candidates, &job->parts[0][i], s->floor, many));
    }
    return TW_OK;
}

int tw__topk_select(tw__job *job, tw__list *reduced, int messages, int64_t *holdings,
                    void *scratch) {
    space w = space_in(scratch, job);
    TW_TRY(tw__job_cut(job, reduced, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++)
        w.searches[i].part = job->parts[0][i];
    if (!counts_early(job)) {
        TW_TRY(reuse_thresholds(job, &w));
        lay_first_bins(job, &w, messages);
    }
    if (!all_done(job, &w))
        TW_TRY(find_thresholds(job, &w, messages, counts_early(job)));
    memset(holdings, 0, sizeof *holdings * (size_t)job->shape.nranks);
    reduced->count = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const search *s = &w.searches[i];
        TW_TRY(keep_share(job, &w, i, holdings));
        if (s->exact && s->bins.lo < TW__INFINITY_BITS - REUSE_MARGIN)
            *job->segments[i].threshold = s->bins.lo + REUSE_MARGIN; /* for the next steps */
        TW_TRY(tw__list_append(&job->lists, reduced, &s->part));
    }
    return TW_OK;
}
