/* levels.h - the tree in which butterfly's ranks meet: who has whom for a partner, and what each may
 * have
 *
 * A group of ranks is cut into up to TW__PARTS parts, each a group of the next level, down to single
 * ranks. Parts differ by one rank at most, so any P will do: the rank at place j of a part has the
 * one at place j mod size of every other part for a partner. With P = 5 in parts {0 1 2} {3 4}:
 *
 *     partners of 0 1 2: 3 4 3      of 3 4: 0 1      so 3 has two clients, 0 and 2, and 2 has none
 */
#ifndef TW_EXCHANGE_LEVELS_H
#define TW_EXCHANGE_LEVELS_H

#include "exchange/exchange.h"

/* 7 messages take a rank about the time that one is under way: 5 us each with TCP, 25 to 50 us. */
#define TW__PARTS 8
#define TW__LEVELS 12 /* serve 2^31 ranks on hosts of any size */

/* What a rank sees of a level: its group, and itself in it. */
typedef struct tw__level {
    int first, size; /* ranks of the group */
    int unit;        /* of ranks that are not cut apart here: as many as there are hosts, or 1 */
    int parts;
    int part;  /* this rank's */
    int place; /* this rank's within the part */
    int thin;  /* lists that come here have k / thin entries */
    int keep;  /* lists that go on have k / keep */
} tw__level;

int tw__levels_of(int nranks);
/* From the top down: tree[TW__LEVELS]. Returns how many. With `local` ranks on each host, ranks are
 * numbered as tw__transport_hosts has them in order: those of a host meet first. */
int tw__level_plan(tw__level *tree, int nranks, int local, int rank);
/* The ranks of a part; first of `parts` is where the group ends. */
int tw__level_first(const tw__level *l, int part);
int tw__level_size(const tw__level *l, int part);

/* The rank of another part that this one gives to on the way down, and takes from on the way up. */
int tw__level_partner(const tw__level *l, int part);
/* The ranks of another part whose partner this one is: turn 0 and 1. -1: none. */
int tw__level_client(const tw__level *l, int part, int turn);

/* What m ranks among `of` may have of k entries: three standard deviations more than it should
 * be. */
int64_t tw__fair_share(int64_t k, int64_t m, int64_t of);
/* Entries that one round brings a rank at most. */
int64_t tw__level_receives(const tw__shape *s);
/* Words that a rank sends or receives at most, on both ways. */
double tw__level_words(int64_t k, int nranks);

#endif
