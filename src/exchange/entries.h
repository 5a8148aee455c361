/* entries.h - sparse vectors as they travel: lists of entries, each an index and a value
 *
 * A list is sorted by index and holds none twice. So any range of indices is one stretch of memory,
 * which can be sent from where it lies. Lists lie in the memory of a backend, and its table of calls
 * works on them there. Exchanges are written against these calls and do not know the backend.
 *
 *   entries.c                 what all backends share
 *   backend/cpu/lists.c       the calls for the host's memory
 *
 * Entries, pointers to them and buffers for messages are memory of the backend. Everything else is
 * memory of the host. */
#ifndef TW_ENTRIES_H
#define TW_ENTRIES_H

#include "backend/cpu/kernels.h"
#include "backend/host_device.h"
#include "base/memory.h"
#include "base/error.h"

/* Which backends have a row of a table: bit b stands for backend b (tw_device). Every row works on
 * the CPU; a mask of 0 says that it works there alone. */
#define TW__ALL_BACKENDS (~0u)
static inline int tw__has_backend(unsigned backends, int backend) {
    return backend == TW_CPU || (backends >> backend & 1u) != 0;
}

typedef struct tw__entry {
    int32_t idx;
    float val;
} tw__entry;

typedef struct tw__list {
    tw__entry *at; /* [count] */
    int64_t count;
} tw__list;

/* Which entries are taken: magnitudes above `bits`, and the first `ties` of exactly these bits. */
typedef struct tw__edge {
    uint32_t bits;
    int64_t ties;
} tw__edge;

/* Whether an entry of this value is taken. Ties are used up in the order of the calls. */
static inline int tw__edge_takes(tw__edge *e, float value) {
    uint32_t magnitude = tw__magnitude(value);
    int tie = magnitude == e->bits;
    int taken = (magnitude > e->bits) | (tie & (e->ties > 0));
    e->ties -= tie;
    return taken;
}

/* The first entry of a list that is out of order, or outside a range. */
typedef struct tw__bad_entry {
    int64_t at; /* its position; -1: there is none */
    int64_t idx;
    int64_t least; /* the smallest index that would have been right */
} tw__bad_entry;

/* Below half of the last place of the largest float: can be added to any other without overflow. */
#define TW__HARMLESS 0x1p103f

/* Bins of the magnitudes lo .. hi-1. Bin 0 ends at base, each further one is 2^shift wide, and the
 * last one takes the rest. */
#define TW__BINS 256
typedef struct tw__bins {
    uint32_t lo, hi;
    uint32_t base;
    int shift;
} tw__bins;

TW__HOST_DEVICE static inline uint32_t tw__bin_of(const tw__bins *b, uint32_t bits) {
    if (bits < b->base)
        return 0;
    uint32_t bin = 1 + ((bits - b->base) >> b->shift);
    return bin < TW__BINS ? bin : TW__BINS - 1;
}

/* A backend's work on lists. Every call is done when it returns. Errors: TW_ERR_DEVICE. */
typedef struct tw__list_calls {
    /* positions[count]: the number of entries below each of the ascending bounds. */
    int (*cut)(void *context, const tw__list *list, const int64_t *bounds, int64_t count,
               int64_t *positions);
    int (*find_misfit)(void *context, const tw__list *list, int64_t lo, int64_t hi,
                       tw__bad_entry *misfit);
    /* The edge that takes the `best` largest magnitudes, 1 .. count-1 of them. */
    int (*find_edge)(void *context, const tw__list *list, int64_t best, tw__edge *edge);
    /* What the edge takes goes to kept, the rest to dropped if that is not NULL, in order. kept may
     * be list->at or lie before it. */
    int (*take)(void *context, const tw__list *list, tw__edge edge, tw__entry *kept,
                tw__entry *dropped, int64_t *nkept);
    int (*reduce)(void *context, const tw__list *runs, int nruns, tw__list *out);
    int (*intersect)(void *context, const tw__list *a, const tw__list *b, tw__list *out);
    /* Magnitudes above `bits`, and equal to them. */
    int (*count)(void *context, const tw__list *list, uint32_t bits, int64_t *above,
                 int64_t *equal);
    /* counts[TW__BINS] of the magnitudes in each bin. */
    int (*count_bins)(void *context, const tw__list *list, const tw__bins *bins, uint32_t *counts);
    /* The magnitudes lo .. hi-1, in any order, to bits[capacity] in the host's memory. *count is
     * their number, also where it exceeds the capacity. */
    int (*pick)(void *context, const tw__list *list, uint32_t lo, uint32_t hi, int64_t capacity,
                uint32_t *bits, int64_t *count);
    /* Copy entries; the two stretches may overlap. */
    int (*move)(void *context, tw__entry *to, const tw__entry *from, int64_t count);
    /* The list's values to val[count], and from there. */
    int (*get_values)(void *context, const tw__list *list, float *val);
    int (*set_values)(void *context, const tw__list *list, const float *val);
    /* Each value minus val[i], appended to out; zeros are left out. */
    int (*subtract)(void *context, const tw__list *list, const float *val, tw__list *out);
    /* A few bytes from the backend's memory to the host's, and back. */
    int (*peek)(void *context, const void *from, size_t bytes, void *to);
    int (*poke)(void *context, void *to, const void *from, size_t bytes);
    /* The entry's value becomes NaN. */
    int (*spoil)(void *context, tw__entry *entry);
    /* Entries of lo .. lo+range-1 as a plain vector, and the non-zeros of one as entries. *count is
     * their number; where it exceeds the capacity, nothing is written. */
    int (*spread)(void *context, const tw__list *list, int64_t lo, float *plain, int64_t range);
    int (*collect)(void *context, const float *plain, int64_t lo, int64_t range, int64_t capacity,
                   tw__entry *to, int64_t *count);
    /* Each value of the list divided by the sum of the weights of the runs that have its index.
     * Weights are added in the order of runs, as floats. Every index is in one run at least. */
    int (*divide)(void *context, const tw__list *list, const tw__list *runs, int nruns,
                  const float *weights);
} tw__list_calls;

/* The calls, with the context that they, tw__wire_calls and tw__dense_calls of a backend share. */
typedef struct tw__lists {
    const tw__list_calls *calls;
    void *context;
} tw__lists;

/* For asserts: whether indices ascend strictly within lo .. hi-1. Reads the whole list. */
#ifdef NDEBUG
#define tw__list_is_sorted(lists, list, lo, hi) 1
#else
int tw__list_is_sorted(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi);
#endif

/* The parts between consecutive bounds: parts[count - 1]. positions[count] is scratch. */
int tw__list_cut(const tw__lists *w, const tw__list *list, const int64_t *bounds, int64_t count,
                 int64_t *positions, tw__list *parts);

/* The part with indices lo .. hi-1. */
int tw__list_between(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi,
                     tw__list *part);

/* Check a list that another rank sent: indices ascend strictly and lie in lo .. hi-1.
 * Errors: TW_ERR_PROTOCOL naming the rank. */
int tw__list_check(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi, int rank);

/* Part the entries: the `best` largest magnitudes, ties to the smaller index, go to kept, the
 * others to dropped, unless that is NULL, both in index order. kept may be list->at or lie before
 * it. Without dropped it needs room for one entry more than are kept. *nkept is their number. */
int tw__list_split_best(const tw__lists *w, const tw__list *list, int64_t best, tw__entry *kept,
                        tw__entry *dropped, int64_t *nkept);

/* Keep the entries with magnitude bits above `bits`, and the first `ties` of those with exactly these
 * bits, in place. */
int tw__list_keep_above(const tw__lists *w, tw__list *list, uint32_t bits, int64_t ties);

/* Sum runs[nruns], the values of each index in the order of runs; zero sums are left out. out has
 * room for all entries, or for as many as there are indices. */
int tw__list_reduce(const tw__lists *w, const tw__list *runs, int nruns, tw__list *out);

/* The same for two. */
int tw__list_merge(const tw__lists *w, const tw__list *a, const tw__list *b, tw__list *out);

/* The entries of a whose index is in b, to out, which has room for all of a. */
int tw__list_intersect(const tw__lists *w, const tw__list *a, const tw__list *b, tw__list *out);

/* *yes says whether all values are finite. */
int tw__list_finite(const tw__lists *w, const tw__list *list, int *yes);

/* Append a list. */
int tw__list_append(const tw__lists *w, tw__list *to, const tw__list *from);

/* In the host's memory alone: whether any value has this magnitude or more. */
int tw__list_reaches(const tw__list *list, float magnitude);

/* In the host's memory alone: put entries with indices 0 .. span-1 in index order; those of the same
 * index stay in theirs. scratch has room for all. */
void tw__list_sort(tw__list *list, int64_t span, tw__entry *scratch);

#endif
