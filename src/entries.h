/* entries.h - sparse vectors as they travel: index and value side by side
 *
 * Lists are sorted by index and hold none twice, so any range of indices is one stretch of memory
 * that can be sent as it lies. */
#ifndef TW_ENTRIES_H
#define TW_ENTRIES_H

#include "base/arena.h"
#include "base/error.h"
#include "kernels/kernels.h"

typedef struct tw__entry {
    int32_t idx;
    float val;
} tw__entry;

typedef struct tw__list {
    tw__entry *at; /* [count] */
    int64_t count;
} tw__list;

/* First position whose index is >= bound. */
int64_t tw__list_lower_bound(const tw__list *list, int64_t bound);

/* The part with indices lo .. hi-1. */
tw__list tw__list_between(const tw__list *list, int64_t lo, int64_t hi);

/* What another rank sent: indices must ascend strictly and lie in lo .. hi-1.
 * Errors: TW_ERR_PROTOCOL naming the rank. */
int tw__list_check(const tw__list *list, int64_t lo, int64_t hi, int rank);

/* Part the entries: the `best` largest magnitudes, ties to the smaller index, go to kept, the
 * others to dropped, both in index order. Returns how many were kept. */
int64_t tw__list_split_best(const tw__list *list, int64_t best, tw__entry *kept,
                            tw__entry *dropped);

/* The same without the others; kept may be list->at or lie before it. Elsewhere it needs room for
 * one more than are kept. */
int64_t tw__list_keep_best(const tw__list *list, int64_t best, tw__entry *kept);

/* Entries with magnitude bits above `bits`, and the first `ties` of those with exactly these bits,
 * in place. */
void tw__list_keep_above(tw__list *list, uint32_t bits, int64_t ties);

/* The union of a and b; values of shared indices are added as a + b; zero sums are left out. out
 * has room for both. */
void tw__list_merge(const tw__list *a, const tw__list *b, tw__list *out);

/* The entries of a whose index is in b, to out, which has room for all of a. */
void tw__list_intersect(const tw__list *a, const tw__list *b, tw__list *out);

/* Put entries with indices 0 .. span-1 in index order; those of the same index stay in theirs.
 * scratch has room for all. */
void tw__list_sort(tw__list *list, int64_t span, tw__entry *scratch);

/* Sum runs[nruns], the values of each index in the order of runs; zero sums are left out.
 *   out      has room for all entries, or for as many as there are indices
 *   scratch  tw__reduce_memory() bytes */
void tw__list_reduce(const tw__list *runs, int nruns, tw__list *out, void *scratch);
size_t tw__reduce_memory(int nruns);

#endif
