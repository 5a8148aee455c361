/* entries.c - cutting, checking, selecting and summing lists of entries; see entries.h */
#include "entries.h"
#include "kth.h"

int64_t tw__list_lower_bound(const tw__list *list, int64_t bound) {
    int64_t lo = 0, hi = list->count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (list->at[middle].idx < bound)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

tw__list tw__list_between(const tw__list *list, int64_t lo, int64_t hi) {
    if (list->count == 0)
        return *list;
    int64_t from = tw__list_lower_bound(list, lo);
    int64_t to = tw__list_lower_bound(list, hi);
    return (tw__list){list->at + from, to > from ? to - from : 0};
}

int tw__list_check(const tw__list *list, int64_t lo, int64_t hi, int rank) {
    int64_t least = lo;
    for (int64_t i = 0; i < list->count; i++) {
        if (list->at[i].idx < least || list->at[i].idx >= hi)
            return tw__fail(TW_ERR_PROTOCOL,
                            "rank %d: entry %lld of its message has index %d, expected was one in "
                            "%lld .. %lld; do all ranks run the same version?",
                            rank, (long long)i, (int)list->at[i].idx, (long long)least,
                            (long long)hi - 1);
        least = (int64_t)list->at[i].idx + 1;
    }
    return TW_OK;
}

/* The loops below choose by arithmetic where they can: which entry is taken is anyone's guess, and
 * a wrong one costs the CPU more than the work itself. */

/* The smallest magnitude among the `best` largest, and how many of exactly that one. */
typedef struct edge {
    uint32_t bits;
    int64_t ties;
} edge;

static edge edge_of_best(const tw__list *list, int64_t best) {
    if (best >= list->count)
        return (edge){0, list->count};
    if (best == 0)
        return (edge){UINT32_MAX, 0};
    tw__kth worst = tw__kth_of_entries(list->at, list->count, best);
    return (edge){worst.bits, best - worst.greater};
}

/* Whether an entry of this value is taken; the ties are used up in the order of asking. */
static int takes(edge *e, float value) {
    uint32_t magnitude = tw__magnitude(value);
    int tie = magnitude == e->bits;
    int taken = (magnitude > e->bits) | (tie & (e->ties > 0));
    e->ties -= tie;
    return taken;
}

int64_t tw__list_split_best(const tw__list *list, int64_t best, tw__entry *kept,
                            tw__entry *dropped) {
    edge e = edge_of_best(list, best);
    int64_t nkept = 0, ndropped = 0;
    for (int64_t i = 0; i < list->count; i++) {
        tw__entry entry = list->at[i];
        if (takes(&e, entry.val))
            kept[nkept++] = entry;
        else
            dropped[ndropped++] = entry;
    }
    return nkept;
}

static int64_t keep(const tw__list *list, edge e, tw__entry *kept) {
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        kept[count] = list->at[i];
        count += takes(&e, kept[count].val);
    }
    return count;
}

int64_t tw__list_keep_best(const tw__list *list, int64_t best, tw__entry *kept) {
    return keep(list, edge_of_best(list, best), kept);
}

void tw__list_keep_above(tw__list *list, uint32_t bits, int64_t ties) {
    list->count = keep(list, (edge){bits, ties}, list->at);
}

static void append(tw__list *list, tw__entry entry) {
    list->at[list->count] = entry;
    list->count += entry.val != 0.0f;
}

void tw__list_merge(const tw__list *a, const tw__list *b, tw__list *out) {
    int64_t i = 0, j = 0;
    out->count = 0;
    while (i < a->count && j < b->count) {
        tw__entry x = a->at[i], y = b->at[j];
        tw__entry sum = {x.idx, x.val + y.val};
        i += x.idx <= y.idx;
        j += y.idx <= x.idx;
        append(out, x.idx < y.idx ? x : y.idx < x.idx ? y : sum);
    }
    for (; i < a->count; i++)
        append(out, a->at[i]);
    for (; j < b->count; j++)
        append(out, b->at[j]);
}

void tw__list_intersect(const tw__list *a, const tw__list *b, tw__list *out) {
    int64_t i = 0, j = 0, count = 0;
    while (i < a->count && j < b->count) {
        int32_t x = a->at[i].idx, y = b->at[j].idx;
        out->at[count] = a->at[i];
        count += x == y;
        i += x <= y;
        j += y <= x;
    }
    out->count = count;
}

/* ---- order: by 11 bits of the index at a time, the lowest first */

#define DIGIT 11

static void sort_by_digit(const tw__entry *from, int64_t count, int shift, tw__entry *to) {
    int64_t starts[(1 << DIGIT) + 1] = {0};
    const int32_t mask = (1 << DIGIT) - 1;
    for (int64_t i = 0; i < count; i++)
        starts[(from[i].idx >> shift & mask) + 1]++;
    for (int32_t d = 0; d < mask; d++)
        starts[d + 1] += starts[d];
    for (int64_t i = 0; i < count; i++)
        to[starts[from[i].idx >> shift & mask]++] = from[i];
}

void tw__list_sort(tw__list *list, int64_t span, tw__entry *scratch) {
    tw__entry *from = list->at, *to = scratch;
    for (int shift = 0; list->count > 1 && (span - 1) >> shift > 0; shift += DIGIT) {
        sort_by_digit(from, list->count, shift, to);
        tw__entry *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != list->at)
        memcpy(list->at, from, sizeof *from * (size_t)list->count);
}

/* ---- sums
 *
 * A window of sums moves over the indices: every run adds what it has there, in its turn, and a bit
 * per element says where to look afterwards. Sorted runs make each pass over the window a walk. */

#define WINDOW 16384 /* elements: 64 KiB of sums and 2 KiB of bits stay in the L2 cache */

typedef struct window {
    float sums[WINDOW];
    uint64_t bits[WINDOW / 64];
    int64_t cursors[]; /* [nruns] */
} window;

size_t tw__reduce_memory(int nruns) {
    return sizeof(window) + sizeof(int64_t) * (size_t)nruns;
}

static int64_t first_index(const tw__list *runs, int nruns, const int64_t *cursors) {
    int64_t first = INT64_MAX;
    for (int r = 0; r < nruns; r++)
        if (cursors[r] < runs[r].count && runs[r].at[cursors[r]].idx < first)
            first = runs[r].at[cursors[r]].idx;
    return first;
}

/* Adds the run's entries below first + WINDOW. Returns the position of the next one. */
static int64_t add_run(window *w, const tw__list *run, int64_t cursor, int64_t first) {
    for (; cursor < run->count && run->at[cursor].idx < first + WINDOW; cursor++) {
        int64_t i = run->at[cursor].idx - first;
        w->sums[i] += run->at[cursor].val;
        w->bits[i / 64] |= (uint64_t)1 << (i % 64);
    }
    return cursor;
}

static void take_out(window *w, int64_t first, tw__list *out) {
    for (int64_t word = 0; word < WINDOW / 64; word++) {
        for (uint64_t bits = w->bits[word]; bits != 0; bits &= bits - 1) {
            int64_t i = 64 * word + __builtin_ctzll(bits);
            append(out, (tw__entry){(int32_t)(first + i), w->sums[i]});
            w->sums[i] = 0.0f;
        }
        w->bits[word] = 0;
    }
}

void tw__list_reduce(const tw__list *runs, int nruns, tw__list *out, void *scratch) {
    window *w = memset(scratch, 0, tw__reduce_memory(nruns));
    out->count = 0;
    for (;;) {
        int64_t first = first_index(runs, nruns, w->cursors);
        if (first == INT64_MAX)
            break;
        for (int r = 0; r < nruns; r++)
            w->cursors[r] = add_run(w, &runs[r], w->cursors[r], first);
        take_out(w, first, out);
    }
}
