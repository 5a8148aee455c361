/* butterfly.h - which ranks meet in butterfly, and which indices each of them sums
 *
 * The tree: a group of ranks is cut into up to TW__PARTS parts, each a group of the next level, down
 * to single ranks. Parts differ by one rank at most, so any P will do. The rank at position j of a
 * part has the one at position j mod size of every other part for a partner. With P = 5 in parts
 * {0 1 2} {3 4}:
 *
 *     partners of 0 1 2: 3 4 3      of 3 4: 0 1      so 3 has two clients, 0 and 2, and 2 has none
 *
 * The order of indices: see tw__interleave. */
#ifndef TW_EXCHANGE_BUTTERFLY_H
#define TW_EXCHANGE_BUTTERFLY_H

#include "exchange/job.h"

/* 7 messages take a rank about the time that one is under way: 5 us each with TCP, 25 to 50 us. */
#define TW__PARTS 8
#define TW__LEVELS 12 /* serve 2^31 ranks on hosts of any size */

/* What a rank sees of a level: its group, and itself in it. */
typedef struct tw__level {
    int first, size; /* ranks of the group */
    int unit;        /* of ranks that are not cut apart here: as many as there are hosts, or 1 */
    int parts;
    int part;     /* this rank's */
    int position; /* this rank's within the part */
    int before;   /* lists have k / before entries when the level begins ... */
    int after;    /* ... and k / after when its scatter is done */
} tw__level;

int tw__levels_of(int nranks);
/* From the top down: tree[TW__LEVELS]. Returns their number. With `local` ranks on each host, ranks
 * are numbered in the order of tw__transport_hosts: those of a host meet first. */
int tw__level_plan(tw__level *tree, int nranks, int local, int rank);
/* The ranks of a part; first of `parts` is the end of the group. */
int tw__level_first(const tw__level *l, int part);
int tw__level_size(const tw__level *l, int part);

/* The rank of another part that this one sends to in scatter, and receives from in gather. */
int tw__level_partner(const tw__level *l, int part);
/* The ranks of another part whose partner this one is: turn 0 and 1. -1: none. */
int tw__level_client(const tw__level *l, int part, int turn);

/* Entries that m ranks among `of` may have of k: three standard deviations above the mean. */
int64_t tw__fair_share(int64_t k, int64_t m, int64_t of);
/* Entries that one round brings a rank at most. */
int64_t tw__level_receives(const tw__shape *s);
/* Words that a rank sends or receives at most, in scatter and gather. */
double tw__level_words(int64_t k, int nranks);

/* Reorder the index space so that ranges of equal length hold about as many entries.
 *
 * Gradients crowd: a few layers, rows or columns have most of the large values. Element i of a
 * tensor goes to stripe i mod C, and the stripes are laid end to end. A crowd of neighbours is then
 * spread over all stripes, and so is a column, whose elements are a stride apart, since C is a prime.
 * Whatever ranges the tensor is cut into, each has its share, and no rank has to ask where to cut.
 * Example, n = 8, C = 3:
 *
 *     element     0 1 2 3 4 5 6 7      stripes  0 3 6 | 1 4 7 | 2 5
 *     position    0 3 6 1 4 7 2 5
 *
 * Both functions leave the list in order. It lies in the host's memory. scratch has room for all. */
int tw__interleave(tw__job *job, tw__list *list, tw__entry *scratch);
int tw__deinterleave(tw__job *job, tw__list *list, tw__entry *scratch);

#endif
