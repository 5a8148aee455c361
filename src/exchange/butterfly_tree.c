/* butterfly_tree.c - the tree of ranks, shares of entries, the order of indices; see butterfly.h */
#include "exchange/butterfly.h"

#include <assert.h>

/* ---- the tree */

int tw__level_first(const tw__level *l, int part) {
    return l->first + l->unit * (int)tw__part_start(l->size / l->unit, part, l->parts);
}

int tw__level_size(const tw__level *l, int part) {
    return tw__level_first(l, part + 1) - tw__level_first(l, part);
}

static int64_t power(int64_t base, int exponent) {
    return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

/* The fewest parts with which `levels` levels serve so many ranks. */
static int parts_of(int ranks, int levels) {
    int parts = 1;
    while (power(parts, levels) < ranks)
        parts++;
    return parts;
}

int tw__levels_of(int nranks) {
    int levels = 0;
    while (power(TW__PARTS, levels) < nranks)
        levels++;
    return levels;
}

int tw__level_plan(tw__level *tree, int nranks, int local, int rank) {
    int inner = tw__levels_of(local), levels = inner + tw__levels_of(nranks / local);
    assert(nranks % local == 0 && rank >= 0 && rank < nranks && levels <= TW__LEVELS);
    int first = 0, size = nranks;
    for (int i = 0; i < levels; i++) {
        tw__level *l = &tree[i];
        int unit = i < inner ? nranks / local : 1, left = (i < inner ? inner : levels) - i;
        *l = (tw__level){.first = first,
                         .size = size,
                         .unit = unit,
                         .parts = parts_of(size / unit, left),
                         .before = i < inner ? 1 : local,
                         .after = i + 1 < inner ? 1 : local};
        while (tw__level_first(l, l->part + 1) <= rank)
            l->part++;
        first = tw__level_first(l, l->part);
        size = tw__level_size(l, l->part);
        l->position = rank - first;
    }
    assert(size == 1 && first == rank);
    return levels;
}

int tw__level_partner(const tw__level *l, int part) {
    assert(part != l->part && part >= 0 && part < l->parts);
    return tw__level_first(l, part) + l->position % tw__level_size(l, part);
}

int tw__level_client(const tw__level *l, int part, int turn) {
    int position = l->position + turn * tw__level_size(l, l->part);
    return position < tw__level_size(l, part) ? tw__level_first(l, part) + position : -1;
}

/* ---- shares */

static int64_t root_of(int64_t x) {
    int64_t root = 0;
    for (int64_t bit = (int64_t)1 << 30; bit > 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= x)
            root += bit;
    return root;
}

int64_t tw__fair_share(int64_t k, int64_t m, int64_t of) {
    int64_t even = (k * m + of - 1) / of;
    int64_t most = even + 3 * root_of(even) + 3;
    return most < k ? most : k;
}

/* Up to 14 messages hold at most twice the k entries that all are about: position 0 may have two
 * clients in every part. To these come the roundings and roots of every segment's share, which are
 * largest when all messages and segments are alike. No message has more than k: of many small
 * segments that is less. */
int64_t tw__level_receives(const tw__shape *s) {
    int64_t parts = s->nranks < TW__PARTS ? s->nranks : TW__PARTS, messages = 2 * (parts - 1);
    int64_t each = messages * s->nsegments;
    int64_t most = 2 * s->k + 4 * each + 3 * (root_of(each * (2 * s->k + each)) + 1);
    return most < messages * s->k ? most : messages * s->k;
}

/* Entries that a rank sends and receives at most, in both rounds of a level. */
typedef struct load {
    double sent, received;
} load;

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Position 0 of a part may have two clients in the parts that are larger. */
static load load_of(int64_t k, int64_t nranks, int size, int parts) {
    int64_t small = size / parts, more = size % parts;
    double others = parts - 1.0, clients = others + (double)more;
    double wide = (double)tw__fair_share(k, small + (more > 0), nranks);
    double narrow = (double)tw__fair_share(k, small, nranks);
    return (load){(double)k + larger(clients * narrow, others * wide),
                  clients * (double)tw__fair_share(k, small + (more > 0), size) + others * wide};
}

/* Sizes of groups on a level lie between least and most. */
double tw__level_words(int64_t k, int nranks) {
    load all = {0};
    int least = nranks, most = nranks;
    for (int i = tw__levels_of(nranks); i > 0; i--) {
        load worst = {0};
        int smallest = most, largest = 1;
        for (int size = least; size <= most; size++) {
            int parts = parts_of(size, i);
            load here = load_of(k, nranks, size, parts);
            worst = (load){larger(worst.sent, here.sent), larger(worst.received, here.received)};
            smallest = size / parts < smallest ? size / parts : smallest;
            largest = (size + parts - 1) / parts > largest ? (size + parts - 1) / parts : largest;
        }
        all = (load){all.sent + worst.sent, all.received + worst.received};
        least = smallest;
        most = largest;
    }
    return 2.0 * larger(all.sent, all.received);
}

/* ---- the order of indices */

/* At least four stripes for a rank, or a range would see only part of a short crowd. The minimum
 * keeps strides that are multiples of C, which all go to one stripe, rare. */
#define LEAST_STRIPES 60

static int is_prime(int64_t x) {
    for (int64_t d = 2; d * d <= x; d++)
        if (x % d == 0)
            return 0;
    return 1;
}

static int64_t stripes_of(int nranks) {
    int64_t stripes = 4 * (int64_t)nranks;
    stripes = (stripes < LEAST_STRIPES ? LEAST_STRIPES : stripes) + 1;
    while (!is_prime(stripes))
        stripes++;
    return stripes;
}

/* The first `longer` stripes have one element more. */
static int64_t position_of(int64_t i, int64_t n, int64_t stripes) {
    int64_t stripe = i % stripes, length = n / stripes, longer = n % stripes;
    return stripe * length + (stripe < longer ? stripe : longer) + i / stripes;
}

static int64_t element_at(int64_t position, int64_t n, int64_t stripes) {
    int64_t length = n / stripes, longer = n % stripes, end = longer * (length + 1);
    if (position < end)
        return position % (length + 1) * stripes + position / (length + 1);
    position -= end;
    return position % length * stripes + longer + position / length;
}

static int reorder(tw__job *job, tw__list *list, tw__entry *scratch,
                   int64_t (*map)(int64_t, int64_t, int64_t)) {
    int64_t stripes = stripes_of(job->shape.nranks);
    assert(job->kind == TW__PAYLOAD);
    TW_TRY(tw__job_cut(job, list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        const tw__list *part = &job->parts[0][i];
        for (int64_t e = 0; e < part->count; e++)
            part->at[e].idx = (int32_t)(s->base + map(part->at[e].idx - s->base, s->n, stripes));
    }
    tw__list_sort(list, job->shape.span, scratch);
    assert(tw__list_is_sorted(&job->lists, list, 0, job->shape.span));
    return TW_OK;
}

int tw__interleave(tw__job *job, tw__list *list, tw__entry *scratch) {
    return reorder(job, list, scratch, position_of);
}

int tw__deinterleave(tw__job *job, tw__list *list, tw__entry *scratch) {
    return reorder(job, list, scratch, element_at);
}
