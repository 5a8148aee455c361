/* teams.h - which blocks of a launch choose for which steps
 *
 * Blocks that choose for the same step wait for each other, so all of a launch must run at the same
 * time. A step gets the blocks that it needs at least, and its share of those that are left, by its
 * size. For the first steps, the singles, one block each is enough: it waits for no other. Where
 * blocks are scarce, one chooses for two singles or more, one after the other.
 *
 *   12 blocks for       single  single  single  n = 30   n = 10   n = 5     (1 to 8 blocks each)
 *   are divided into      0       0       1     2 .. 6   7 .. 9   10, 11
 */
#ifndef TW_CUDA_TEAMS_H
#define TW_CUDA_TEAMS_H

#include <assert.h>
#include <stdint.h>

/* What a step needs. */
typedef struct tw__need {
    int64_t n;
    int least, most; /* blocks; most is 1 for singles, least no more than a launch can have */
} tw__need;

/* Blocks first .. last choose for a step. */
typedef struct tw__blocks {
    uint16_t first, last;
} tw__blocks;

static inline int tw__blocks_of_singles(int singles, int64_t wanted, int blocks) {
    int half = (singles + 1) / 2;
    if (singles + wanted <= blocks)
        return singles;
    return half < blocks ? half : blocks;
}

/* Divides `blocks` among the first of need[count]: given[] tells how. Returns how many steps got
 * some: all, or those for whose `least` the blocks suffice, but at least one. */
static inline int tw__divide_blocks(const tw__need *need, int count, int blocks,
                                    tw__blocks *given) {
    int singles = 0, end;
    int64_t wanted = 0, total = 0, before = 0;
    while (singles < count && need[singles].most == 1)
        singles++;
    for (int i = singles; i < count; i++)
        wanted += need[i].most;
    int next = tw__blocks_of_singles(singles, wanted, blocks), left = blocks - next;
    for (int i = 0; i < singles; i++) /* next <= singles: no block is left out */
        given[i].first = given[i].last = (uint16_t)((int64_t)i * next / singles);
    for (end = singles; end < count && need[end].least <= left; end++) {
        left -= need[end].least;
        total += need[end].n;
    }
    for (int i = singles; i < end; i++) {
        int64_t more = left * (before + need[i].n) / total - left * before / total;
        int64_t size = need[i].least + more < need[i].most ? need[i].least + more : need[i].most;
        before += need[i].n;
        given[i].first = (uint16_t)next;
        given[i].last = (uint16_t)(next + size - 1);
        next += (int)size;
    }
    assert(end > 0);
    return end;
}

#endif
