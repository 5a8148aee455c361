/* oktopk_partition.c - cut the index space so that every rank receives about as many entries
 *
 * The paper averages over ranks the boundaries that would split each rank's own entries evenly,
 * every 64 steps. That balances only where ranks agree and supports stand still. Here the ranks sum
 * a histogram of their entries over the index space, every step, and cut it into equal weights,
 * assuming that entries lie evenly within a bin. Bins too heavy for that are split and counted
 * again, at most TW__PARTITION_ROUNDS times in all.
 *
 * The ends of bins are called edges; each carries the number of entries below it:
 *
 *     edge    0     4     8    12    16        P = 2: cut where 5 of 10 entries are below:
 *     below   0     1     7     9    10        4 + (5 - 1) / (7 - 1) * (8 - 4) = 6.67 -> 6
 *
 * In a bin with more than 1/(2P) of all entries that would be too rough: there the cut moves to the
 * nearer edge, where the number is known. With more than 1/P the bin is split. So a part holds at
 * most 2/P of all: 1/P, and at each end half of 1/P or all of 1/(2P). That is 2k entries. Where the
 * last round left a bin with more, parts may still come out right. If not, the partition says how
 * many entries a part may hold, and the ranks keep some back. That takes far more than k entries of
 * all ranks crowded into a ten-thousandth of the index space, at several points. */
#include "exchange/oktopk.h"

#include <assert.h>

/* 256 bins cost 2 KiB per round each way, and serve until P = 64. */
static int64_t bins_of(int nranks) {
    int64_t bins = 4 * (int64_t)nranks;
    return bins < 256 ? 256 : bins;
}

typedef struct edges {
    int64_t *at;    /* [count] ascending indices, from 0 to span */
    int64_t *below; /* [count] entries below, of all ranks */
    int64_t count;
} edges;

typedef struct space {
    edges edges;
    edges next;       /* the edges while more are put in between */
    int64_t *split;   /* [bins]: the bins, by number, that are split in this round */
    uint32_t *counts; /* [bins] */
    int64_t *starts;  /* [2 * bins] of pieces, and the end of each bin that is split */
    int64_t *found;   /* [2 * bins] entries below */
    void *sum;
} space;

static edges take_edges(tw__arena *arena, int nranks) {
    int64_t most = 2 + TW__PARTITION_ROUNDS * bins_of(nranks);
    return (edges){.at = tw__arena_take(arena, most, sizeof(int64_t)),
                   .below = tw__arena_take(arena, most, sizeof(int64_t))};
}

static space layout(tw__arena *arena, int nranks) {
    space w = {.edges = take_edges(arena, nranks), .next = take_edges(arena, nranks)};
    w.split = tw__arena_take(arena, bins_of(nranks), sizeof(int64_t));
    w.counts = tw__arena_take(arena, bins_of(nranks), sizeof(uint32_t));
    w.starts = tw__arena_take(arena, 2 * bins_of(nranks), sizeof(int64_t));
    w.found = tw__arena_take(arena, 2 * bins_of(nranks), sizeof(int64_t));
    w.sum = tw__arena_take(arena, 1, tw__sum_counts_memory(nranks, bins_of(nranks)));
    return w;
}

size_t tw__partition_memory(int nranks) {
    tw__arena counting = {0};
    layout(&counting, nranks);
    return counting.used;
}

static int64_t total_of(const edges *e) {
    return e->below[e->count - 1];
}

/* The first of the pieces into which a bin is split: piece `p` of `pieces`. */
static int64_t piece_start(const edges *e, int64_t bin, int64_t p, int64_t pieces) {
    int64_t width = e->at[bin + 1] - e->at[bin];
    return e->at[bin] + width * p / pieces;
}

static int64_t pieces_of(const edges *e, int64_t bin, int64_t share) {
    int64_t width = e->at[bin + 1] - e->at[bin];
    int64_t pieces = width < share ? width : share;
    return pieces > 1 ? pieces : 1;
}

/* Counts this rank's entries in the pieces, then everyone's. */
static int count_pieces(tw__job *job, space *w, int64_t nsplit, int64_t share) {
    int64_t cuts = 0, used = 0, at = 0;
    for (int64_t i = 0; i < nsplit; i++) {
        int64_t pieces = pieces_of(&w->edges, w->split[i], share);
        for (int64_t p = 0; p <= pieces; p++)
            w->starts[cuts++] = piece_start(&w->edges, w->split[i], p, pieces);
    }
    TW_TRY(job->lists.calls->cut(job->lists.context, &job->own, w->starts, cuts, w->found));
    for (int64_t i = 0; i < nsplit; i++, at++)
        for (int64_t p = 0; p < pieces_of(&w->edges, w->split[i], share); p++, at++)
            w->counts[used++] = (uint32_t)(w->found[at + 1] - w->found[at]);
    return tw__sum_counts(job->transport, w->counts, used, w->sum);
}

static void push(edges *e, int64_t at, int64_t below) {
    assert(e->count == 0 || at >= e->at[e->count - 1]);
    e->at[e->count] = at;
    e->below[e->count++] = below;
}

/* Puts the new edges between the old ones. The first round also learns the total. */
static void insert_edges(space *w, int64_t nsplit, int64_t share) {
    int64_t used = 0, i = 0, moved = 0;
    w->next.count = 0;
    for (int64_t bin = 0; bin + 1 < w->edges.count; bin++) {
        push(&w->next, w->edges.at[bin], w->edges.below[bin] + moved);
        if (i == nsplit || w->split[i] != bin)
            continue;
        int64_t below = w->edges.below[bin], pieces = pieces_of(&w->edges, bin, share);
        for (int64_t p = 1; p < pieces; p++) {
            below += w->counts[used++];
            push(&w->next, piece_start(&w->edges, bin, p, pieces), below);
        }
        below += w->counts[used++];
        moved = below - w->edges.below[bin + 1];
        i++;
    }
    push(&w->next, w->edges.at[w->edges.count - 1], w->edges.below[w->edges.count - 1] + moved);
    assert(i == nsplit);
    edges old = w->edges;
    w->edges = w->next;
    w->next = old;
}

/* Entries below cut c of `cuts`. */
static int64_t target(const edges *e, int64_t c, int64_t cuts) {
    return (int64_t)((double)total_of(e) * (double)c / (double)cuts);
}

/* Lists the bins that hold a cut between ranks, and too much. */
static int64_t find_heavy(space *w, int nranks) {
    const edges *e = &w->edges;
    int64_t limit = total_of(e) / nranks, count = 0, bin = 0;
    for (int c = 1; c < nranks; c++) {
        while (bin + 2 < e->count && e->below[bin + 1] < target(e, c, nranks))
            bin++;
        int heavy = e->below[bin + 1] - e->below[bin] > limit && e->at[bin + 1] - e->at[bin] > 1;
        if (heavy && (count == 0 || w->split[count - 1] != bin))
            w->split[count++] = bin;
    }
    return count;
}

static int refine(tw__job *job, space *w, int *rounds) {
    int64_t nsplit = 1;
    w->split[0] = 0;
    for (*rounds = 0; *rounds < TW__PARTITION_ROUNDS && nsplit > 0; ++*rounds) {
        int64_t share = bins_of(job->shape.nranks) / nsplit;
        assert(nsplit < job->shape.nranks || nsplit == 1);
        TW_TRY(count_pieces(job, w, nsplit, share));
        insert_edges(w, nsplit, share);
        nsplit = find_heavy(w, job->shape.nranks);
    }
    return TW_OK;
}

/* The index below which `want` entries lie, if they lie evenly within the bin; for a heavy bin its
 * nearer edge. */
static int64_t cut_at(const edges *e, int64_t *bin, int64_t want, int64_t heavy) {
    while (*bin + 2 < e->count && e->below[*bin + 1] < want)
        ++*bin;
    int64_t weight = e->below[*bin + 1] - e->below[*bin];
    int64_t width = e->at[*bin + 1] - e->at[*bin];
    if (weight <= 0)
        return e->at[*bin];
    double share = (double)(want - e->below[*bin]) / (double)weight;
    if (weight > heavy)
        share = share < 0.5 ? 0.0 : 1.0;
    return e->at[*bin] + (int64_t)(share * (double)width);
}

/* What lies between lo and hi at most: all bins that they touch. */
static int64_t most_between(const edges *e, int64_t lo, int64_t hi, int64_t *bin) {
    while (*bin + 2 < e->count && e->at[*bin + 1] <= lo)
        ++*bin;
    int64_t last = *bin;
    while (last + 2 < e->count && e->at[last + 1] < hi)
        last++;
    return e->below[last + 1] - e->below[*bin];
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

int tw__partition(tw__job *job, int parts, int64_t *bounds, int64_t *most, int *rounds,
                  void *scratch) {
    int nranks = job->shape.nranks;
    assert(parts % nranks == 0);
    tw__arena arena = {scratch, 0};
    space w = layout(&arena, nranks);
    push(&w.edges, 0, 0);
    push(&w.edges, job->shape.span, 0);
    TW_TRY(refine(job, &w, rounds));

    int64_t bin = 0, heavy = total_of(&w.edges) / (2 * (int64_t)nranks);
    bounds[0] = 0;
    for (int c = 1; c < parts; c++) {
        int64_t cut = cut_at(&w.edges, &bin, target(&w.edges, c, parts), heavy);
        bounds[c] = clamp(cut, bounds[c - 1], job->shape.span);
    }
    bounds[parts] = job->shape.span;
    bin = 0;
    for (int r = 0; r < nranks; r++) {
        int64_t lo = bounds[parts / nranks * r], hi = bounds[parts / nranks * (r + 1)];
        most[r] = lo < hi ? most_between(&w.edges, lo, hi, &bin) : 0;
    }
    return TW_OK;
}
