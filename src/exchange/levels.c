/* levels.c - see levels.h */
#include "exchange/levels.h"

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
    int first = 0, size = nranks;
    for (int i = 0; i < levels; i++) {
        tw__level *l = &tree[i];
        int unit = i < inner ? nranks / local : 1, left = (i < inner ? inner : levels) - i;
        *l = (tw__level){.first = first,
                         .size = size,
                         .unit = unit,
                         .parts = parts_of(size / unit, left),
                         .thin = i < inner ? 1 : local,
                         .keep = i + 1 < inner ? 1 : local};
        while (tw__level_first(l, l->part + 1) <= rank)
            l->part++;
        first = tw__level_first(l, l->part);
        size = tw__level_size(l, l->part);
        l->place = rank - first;
    }
    return levels;
}

int tw__level_partner(const tw__level *l, int part) {
    return tw__level_first(l, part) + l->place % tw__level_size(l, part);
}

int tw__level_client(const tw__level *l, int part, int turn) {
    int place = l->place + turn * tw__level_size(l, l->part);
    return place < tw__level_size(l, part) ? tw__level_first(l, part) + place : -1;
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

/* Of 14 letters, which hold at most twice the k entries that all are about (place 0 may have two
 * clients in every part): these, and the roundings and roots of every segment's share, which are
 * largest when all letters and segments are alike. */
int64_t tw__level_receives(const tw__shape *s) {
    const int64_t letters = 2 * (TW__PARTS - 1), each = letters * s->nsegments;
    return 2 * s->k + 4 * each + 3 * (root_of(each * (2 * s->k + each)) + 1);
}

/* Entries that a rank sends and receives at most, in both rounds of a level. */
typedef struct load {
    double sent, received;
} load;

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Place 0 of a part may have two clients in the parts that are larger. */
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
