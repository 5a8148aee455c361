/* lists.c - the CPU's work on lists; see exchange/entries.h
 *
 * The loops choose by arithmetic where they can: no branch predictor knows which entry is taken, and
 * a wrong guess costs more than the work itself. They never read what they have just written: the
 * next iteration would wait for it, 8 ns an entry instead of 1. */
#include "backend/cpu/lists.h"
#include "backend/cpu/kth.h"

#include <assert.h>
#include <stdlib.h>

#ifndef NDEBUG
static int is_sorted(const tw__list *list) {
    for (int64_t i = 1; i < list->count; i++)
        if (list->at[i].idx <= list->at[i - 1].idx)
            return 0;
    return list->count >= 0;
}

static int are_sorted(const tw__list *runs, int nruns) {
    int sorted = 1;
    for (int r = 0; r < nruns; r++)
        sorted &= is_sorted(&runs[r]);
    return sorted;
}
#endif

static int64_t lower_bound(const tw__list *list, int64_t from, int64_t bound) {
    int64_t lo = from, hi = list->count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (list->at[middle].idx < bound)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static int cut(void *context, const tw__list *list, const int64_t *bounds, int64_t count,
               int64_t *positions) {
    (void)context;
    assert(is_sorted(list));
    for (int64_t i = 0; i < count; i++)
        positions[i] = lower_bound(list, i == 0 ? 0 : positions[i - 1], bounds[i]);
    return TW_OK;
}

static int find_misfit(void *context, const tw__list *list, int64_t lo, int64_t hi,
                       tw__bad_entry *misfit) {
    int64_t least = lo;
    (void)context;
    misfit->at = -1;
    for (int64_t i = 0; i < list->count; i++) {
        int64_t idx = list->at[i].idx;
        if (idx < least || idx >= hi) {
            *misfit = (tw__bad_entry){i, idx, least};
            return TW_OK;
        }
        least = idx + 1;
    }
    return TW_OK;
}

/* ---- the largest */

static int find_edge(void *context, const tw__list *list, int64_t best, tw__edge *edge) {
    (void)context;
    assert(best >= 1 && best < list->count);
    tw__kth worst = tw__kth_of_entries(list->at, list->count, best);
    *edge = (tw__edge){worst.bits, best - worst.greater};
    return TW_OK;
}

static int64_t part(const tw__list *list, tw__edge edge, tw__entry *kept, tw__entry *dropped) {
    int64_t nkept = 0, ndropped = 0;
    for (int64_t i = 0; i < list->count; i++) {
        tw__entry entry = list->at[i];
        if (tw__edge_takes(&edge, entry.val))
            kept[nkept++] = entry;
        else
            dropped[ndropped++] = entry;
    }
    return nkept;
}

static int64_t keep(const tw__list *list, tw__edge edge, tw__entry *kept) {
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        tw__entry entry = list->at[i];
        kept[count] = entry;
        count += tw__edge_takes(&edge, entry.val);
    }
    return count;
}

static int take(void *context, const tw__list *list, tw__edge edge, tw__entry *kept,
                tw__entry *dropped, int64_t *nkept) {
    (void)context;
    assert(kept <= list->at || kept >= list->at + list->count);
    *nkept = dropped != NULL ? part(list, edge, kept, dropped) : keep(list, edge, kept);
    return TW_OK;
}

static int count(void *context, const tw__list *list, uint32_t bits, int64_t *above,
                 int64_t *equal) {
    (void)context;
    *above = *equal = 0;
    for (int64_t i = 0; i < list->count; i++) {
        uint32_t magnitude = tw__magnitude(list->at[i].val);
        *above += magnitude > bits;
        *equal += magnitude == bits;
    }
    return TW_OK;
}

static int count_bins(void *context, const tw__list *list, const tw__bins *bins, uint32_t *counts) {
    const tw__bins b = *bins;
    uint32_t first = 0, last = 0; /* most are there, where bins lie around a guess */
    (void)context;
    memset(counts, 0, TW__BINS * sizeof *counts);
    for (int64_t i = 0; i < list->count; i++) {
        uint32_t bits = tw__magnitude(list->at[i].val), bin = tw__bin_of(&b, bits);
        uint32_t inside = (bits >= b.lo) & (bits < b.hi);
        first += inside & (bin == 0);
        last += inside & (bin == TW__BINS - 1);
        if (inside & (bin > 0) & (bin < TW__BINS - 1))
            counts[bin]++;
    }
    counts[0] = first;
    counts[TW__BINS - 1] = last;
    return TW_OK;
}

static int pick(void *context, const tw__list *list, uint32_t lo, uint32_t hi, int64_t capacity,
                uint32_t *bits, int64_t *many) {
    (void)context;
    *many = 0;
    for (int64_t i = 0; i < list->count; i++) {
        uint32_t magnitude = tw__magnitude(list->at[i].val);
        if (magnitude < lo || magnitude >= hi)
            continue;
        if (*many < capacity)
            bits[*many] = magnitude;
        ++*many;
    }
    return TW_OK;
}

/* ---- two lists */

static void append(tw__list *list, tw__entry entry) {
    list->at[list->count] = entry;
    list->count += entry.val != 0.0f;
}

static void merge(const tw__list *a, const tw__list *b, tw__list *merged) {
    int64_t i = 0, j = 0;
    tw__list out = {merged->at, 0}; /* in registers */
    while (i < a->count && j < b->count) {
        tw__entry x = a->at[i], y = b->at[j];
        tw__entry sum = {x.idx, x.val + y.val};
        i += x.idx <= y.idx;
        j += y.idx <= x.idx;
        append(&out, x.idx < y.idx ? x : y.idx < x.idx ? y : sum);
    }
    for (; i < a->count; i++)
        append(&out, a->at[i]);
    for (; j < b->count; j++)
        append(&out, b->at[j]);
    merged->count = out.count;
}

static int intersect(void *context, const tw__list *a, const tw__list *b, tw__list *out) {
    const tw__entry *from = a->at, *from_end = a->at + a->count;
    const tw__entry *other = b->at, *other_end = b->at + b->count;
    tw__entry *to = out->at;
    (void)context;
    assert(is_sorted(a) && is_sorted(b));
    while (from < from_end && other < other_end) {
        tw__entry entry = *from;
        int32_t y = other->idx;
        *to = entry;
        to += entry.idx == y;
        from += entry.idx <= y;
        other += y <= entry.idx;
    }
    out->count = to - out->at;
    return TW_OK;
}

/* ---- order: by 11 bits of the index at a time, the lowest first */

#define DIGIT 11

static void sort_by_digit(const tw__entry *from, int64_t many, int shift, tw__entry *to) {
    int64_t starts[(1 << DIGIT) + 1] = {0};
    const int32_t mask = (1 << DIGIT) - 1;
    assert(from != to);
    for (int64_t i = 0; i < many; i++)
        starts[(from[i].idx >> shift & mask) + 1]++;
    for (int32_t d = 0; d < mask; d++)
        starts[d + 1] += starts[d];
    for (int64_t i = 0; i < many; i++)
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
 * A window of sums moves over the indices. Every run, in its turn, adds the entries that it has in
 * the window, and a bit per element marks where. Runs are sorted, so each is read once, in order. */

#define WINDOW TW__LISTS_WINDOW
typedef tw__cpu_lists window;

size_t tw__cpu_lists_memory(int most_runs) {
    return sizeof(window) + sizeof(int64_t) * (size_t)most_runs;
}

tw__cpu_lists *tw__cpu_lists_create(const tw__kernels *kernels, int most_runs) {
    window *w = calloc(1, tw__cpu_lists_memory(most_runs));
    if (w != NULL) {
        w->kernels = kernels;
        w->most_runs = most_runs;
    }
    return w;
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

/* Appends the sums of the window, and clears it. */
static void flush_window(window *w, int64_t first, tw__list *taken) {
    tw__list out = *taken;
    for (int64_t word = 0; word < WINDOW / 64; word++) {
        for (uint64_t bits = w->bits[word]; bits != 0; bits &= bits - 1) {
            int64_t i = 64 * word + __builtin_ctzll(bits);
            append(&out, (tw__entry){(int32_t)(first + i), w->sums[i]});
            w->sums[i] = 0.0f;
        }
        w->bits[word] = 0;
    }
    taken->count = out.count;
}

static void sum_all(window *w, const tw__list *runs, int nruns, tw__list *out) {
    assert(nruns <= w->most_runs);
    memset(w->cursors, 0, sizeof *w->cursors * (size_t)nruns);
    for (;;) {
        int64_t first = first_index(runs, nruns, w->cursors);
        if (first == INT64_MAX)
            break;
        for (int r = 0; r < nruns; r++)
            w->cursors[r] = add_run(w, &runs[r], w->cursors[r], first);
        flush_window(w, first, out);
    }
}

static int reduce(void *context, const tw__list *runs, int nruns, tw__list *out) {
    out->count = 0;
    assert(are_sorted(runs, nruns));
    if (nruns == 2)
        merge(&runs[0], &runs[1], out);
    else
        sum_all(context, runs, nruns, out);
    return TW_OK;
}

static int divide(void *context, const tw__list *list, const tw__list *runs, int nruns,
                  const float *weights) {
    window *w = context;
    assert(is_sorted(list) && are_sorted(runs, nruns) && nruns <= w->most_runs);
    memset(w->cursors, 0, sizeof *w->cursors * (size_t)nruns);
    for (int64_t i = 0; i < list->count; i++) {
        float divisor = 0.0f;
        for (int r = 0; r < nruns; r++) {
            int64_t at = w->cursors[r];
            while (at < runs[r].count && runs[r].at[at].idx < list->at[i].idx)
                at++;
            int sent = at < runs[r].count && runs[r].at[at].idx == list->at[i].idx;
            divisor += sent ? weights[r] : 0.0f;
            w->cursors[r] = at;
        }
        assert(divisor > 0.0f);
        list->at[i].val /= divisor;
    }
    return TW_OK;
}

/* ---- memory and values */

static int move(void *context, tw__entry *to, const tw__entry *from, int64_t many) {
    (void)context;
    memmove(to, from, sizeof *to * (size_t)many);
    return TW_OK;
}

static int get_values(void *context, const tw__list *list, float *val) {
    (void)context;
    for (int64_t i = 0; i < list->count; i++)
        val[i] = list->at[i].val;
    return TW_OK;
}

static int set_values(void *context, const tw__list *list, const float *val) {
    (void)context;
    for (int64_t i = 0; i < list->count; i++)
        list->at[i].val = val[i];
    return TW_OK;
}

static int subtract(void *context, const tw__list *list, const float *val, tw__list *rest) {
    tw__list out = *rest;
    (void)context;
    for (int64_t i = 0; i < list->count; i++)
        append(&out, (tw__entry){list->at[i].idx, list->at[i].val - val[i]});
    rest->count = out.count;
    return TW_OK;
}

static int peek(void *context, const void *from, size_t bytes, void *to) {
    (void)context;
    memcpy(to, from, bytes);
    return TW_OK;
}

static int poke(void *context, void *to, const void *from, size_t bytes) {
    (void)context;
    memcpy(to, from, bytes);
    return TW_OK;
}

static int spoil(void *context, tw__entry *entry) {
    (void)context;
    entry->val = tw__from_bits(TW__MAGNITUDE_MASK);
    return TW_OK;
}

static int spread(void *context, const tw__list *list, int64_t lo, float *plain, int64_t range) {
    (void)context;
    assert(is_sorted(list));
    memset(plain, 0, sizeof *plain * (size_t)range);
    for (int64_t i = 0; i < list->count; i++)
        plain[list->at[i].idx - lo] = list->at[i].val;
    return TW_OK;
}

static int collect(void *context, const float *plain, int64_t lo, int64_t range, int64_t capacity,
                   tw__entry *to, int64_t *many) {
    (void)context;
    *many = 0;
    for (int64_t i = 0; i < range; i++)
        *many += plain[i] != 0.0f;
    if (*many > capacity)
        return TW_OK;
    tw__list list = {to, 0};
    for (int64_t i = 0; i < range; i++)
        if (plain[i] != 0.0f)
            append(&list, (tw__entry){(int32_t)(lo + i), plain[i]});
    return TW_OK;
}

const tw__list_calls tw__lists_cpu = {
    .cut = cut,
    .find_misfit = find_misfit,
    .find_edge = find_edge,
    .take = take,
    .reduce = reduce,
    .intersect = intersect,
    .count = count,
    .count_bins = count_bins,
    .pick = pick,
    .move = move,
    .get_values = get_values,
    .set_values = set_values,
    .subtract = subtract,
    .peek = peek,
    .poke = poke,
    .spoil = spoil,
    .spread = spread,
    .collect = collect,
    .divide = divide,
};
