/* global.c - the k largest sums of all ranks, without gathering them
 *
 * Radix selection over the ranks: four rounds, each fixing 8 bits (the last 7) of the k-th largest
 * magnitude's 31 by a histogram that the ranks sum. A round costs 2 KiB each way and segment. When
 * a bin's end falls right on the k-th, the rest of the rounds is not needed. Afterwards the ranks
 * tell each other how many they hold above the threshold and of exactly its magnitude: since rank
 * r's indices are all below those of rank r+1, everyone knows who may keep how many ties.
 *
 * With TW_GLOBAL_REUSE the threshold of earlier steps is tried first, which needs the last message
 * alone. It is set a little above the exact one, since a count above k is no use: the bound of
 * oktopk stands on k. */
#include "exchange/exchange.h"

#define DIGITS 4
#define BINS TW__DIGIT_BINS
static const int digit_shift[DIGITS] = {23, 15, 7, 0};

/* The search for one segment's threshold. */
typedef struct search {
    tw__list part; /* this rank's sums of the segment */
    int64_t k;
    int64_t greater; /* sums known to be above the threshold, of all ranks */
    uint32_t bits;   /* the threshold's bits as far as known */
    int done;
    int exact; /* it was searched for, not reused */
} search;

typedef struct space {
    search *searches;      /* [nsegments] */
    uint32_t *bins;        /* [nsegments][BINS] */
    tw__holding *holdings; /* [nranks][nsegments] */
    void *sum;
    void *share;
} space;

static space layout(tw__arena *arena, int nranks, int nsegments) {
    return (space){
        .searches = tw__arena_take(arena, nsegments, sizeof(search)),
        .bins = tw__arena_take(arena, (int64_t)nsegments * BINS, sizeof(uint32_t)),
        .holdings = tw__arena_take(arena, (int64_t)nranks * nsegments, sizeof(tw__holding)),
        .sum = tw__arena_take(arena, 1, tw__sum_memory(nranks, (int64_t)nsegments * BINS)),
        .share = tw__arena_take(arena, 1, tw__share_memory(nranks)),
    };
}

size_t tw__global_memory(int nranks, int nsegments) {
    tw__arena counting = {0};
    layout(&counting, nranks, nsegments);
    return counting.used;
}

static int count_digit(const tw__lists *lists, const search *s, int digit, uint32_t *bins) {
    uint32_t known = digit == 0 ? 0 : ~(((uint32_t)1 << digit_shift[digit - 1]) - 1);
    return lists->calls->count_digit(lists->context, &s->part, known, s->bits, digit_shift[digit],
                                     bins);
}

/* Walks down from the largest digit to the one that holds the k-th. */
static void fix_digit(search *s, int digit, const uint32_t *bins) {
    int64_t wanted = s->k - s->greater;
    int bin = BINS - 1;
    while (bin > 0 && wanted > bins[bin]) {
        wanted -= bins[bin];
        s->greater += bins[bin--];
    }
    s->bits |= (uint32_t)bin << digit_shift[digit];
    if (wanted >= bins[bin]) /* the bin is taken whole; beyond its end there may be nothing left */
        s->done = 1;
}

/* A threshold for each segment: sums of this magnitude and above are enough for k. */
static int find_thresholds(tw__job *job, space *w) {
    for (int i = 0; i < job->shape.nsegments; i++)
        w->searches[i].exact = !w->searches[i].done;
    for (int digit = 0; digit < DIGITS; digit++) {
        int64_t active = 0;
        for (int i = 0; i < job->shape.nsegments; i++)
            if (!w->searches[i].done)
                TW_TRY(count_digit(&job->lists, &w->searches[i], digit, w->bins + BINS * active++));
        if (active == 0)
            return TW_OK;
        TW_TRY(tw__sum(job->transport, w->bins, BINS * active, w->sum));
        active = 0;
        for (int i = 0; i < job->shape.nsegments; i++)
            if (!w->searches[i].done)
                fix_digit(&w->searches[i], digit, w->bins + BINS * active++);
    }
    return TW_OK;
}

static int hold(const tw__lists *lists, const search *s, tw__holding *h) {
    int64_t above, equal;
    TW_TRY(lists->calls->count(lists->context, &s->part, s->bits, &above, &equal));
    *h = (tw__holding){(uint32_t)above, (uint32_t)equal};
    return TW_OK;
}

/* Tells the others what this rank holds. */
static int share_holdings(tw__job *job, space *w) {
    int nsegments = job->shape.nsegments;
    for (int i = 0; i < nsegments; i++)
        TW_TRY(hold(&job->lists, &w->searches[i], &w->holdings[job->rank * nsegments + i]));
    return tw__share(job->transport, w->holdings, sizeof(tw__holding) * (size_t)nsegments,
                     w->share);
}

static int64_t total_held(const tw__job *job, const space *w, int segment) {
    int64_t total = 0;
    for (int r = 0; r < job->shape.nranks; r++) {
        const tw__holding *h = &w->holdings[r * job->shape.nsegments + segment];
        total += (int64_t)h->above + h->equal;
    }
    return total;
}

/* Tries the thresholds of earlier steps: the segments that they serve are done. */
static int reuse_thresholds(tw__job *job, space *w) {
    int any = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        any |= (w->searches[i].bits = *job->segments[i].threshold) != 0;
    if (!any)
        return TW_OK;
    TW_TRY(share_holdings(job, w));
    for (int i = 0; i < job->shape.nsegments; i++) {
        search *s = &w->searches[i];
        int64_t total = total_held(job, w, i);
        s->done = s->bits != 0 && total <= s->k && 3 * total >= 2 * s->k;
        s->bits = s->done ? s->bits : 0;
    }
    return TW_OK;
}

static int all_done(const tw__job *job, const space *w) {
    int done = 1;
    for (int i = 0; i < job->shape.nsegments; i++)
        done &= w->searches[i].done;
    return done;
}

/* A twelfth above the exact threshold: an eighth of the way to the next power of two. */
static void remember_threshold(const tw__segment *segment, const search *s) {
    if (s->bits < TW__INFINITY_BITS)
        *segment->threshold = s->bits + ((uint32_t)1 << 20);
}

/* Cuts this rank's part of the segment down to what it may keep; counts what every rank keeps. */
static int keep_share(tw__job *job, space *w, int segment, int64_t *holdings) {
    search *s = &w->searches[segment];
    int64_t above = 0;
    for (int r = 0; r < job->shape.nranks; r++)
        above += w->holdings[r * job->shape.nsegments + segment].above;
    int64_t ties = s->k - above;
    for (int r = 0; r < job->shape.nranks; r++) {
        tw__holding h = w->holdings[r * job->shape.nsegments + segment];
        int64_t mine = ties < 0 ? 0 : ties < h.equal ? ties : h.equal;
        ties -= mine;
        holdings[r] += h.above + mine;
        if (r == job->rank)
            TW_TRY(tw__list_keep_above(&job->lists, &s->part, s->bits, mine));
    }
    return TW_OK;
}

static int begin(tw__job *job, space *w, const tw__list *reduced) {
    TW_TRY(tw__job_cut(job, reduced, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++)
        w->searches[i] = (search){.part = job->parts[0][i], .k = job->segments[i].k};
    return TW_OK;
}

int tw__global_select(tw__job *job, tw__list *reduced, int64_t *holdings, void *scratch) {
    tw__arena arena = {scratch, 0};
    space w = layout(&arena, job->shape.nranks, job->shape.nsegments);
    TW_TRY(begin(job, &w, reduced));
    if (job->global == TW_GLOBAL_REUSE)
        TW_TRY(reuse_thresholds(job, &w));
    if (!all_done(job, &w)) {
        TW_TRY(find_thresholds(job, &w));
        TW_TRY(share_holdings(job, &w));
    }
    memset(holdings, 0, sizeof *holdings * (size_t)job->shape.nranks);
    reduced->count = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        TW_TRY(keep_share(job, &w, i, holdings));
        if (w.searches[i].exact)
            remember_threshold(&job->segments[i], &w.searches[i]);
        const tw__list *part = &w.searches[i].part;
        TW_TRY(job->lists.calls->move(job->lists.context, reduced->at + reduced->count, part->at,
                                      part->count));
        reduced->count += part->count;
    }
    return TW_OK;
}
