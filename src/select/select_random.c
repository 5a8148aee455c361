/* select_random.c - k indices by chance
 *
 * The baseline that the papers compare with. Every k-subset is equally likely; which one depends on
 * the seed and the step alone, in integers, so that ranks with the same seed agree everywhere. An
 * index is drawn, and drawn again where it is marked already; where more than half would be marked,
 * the ones to leave out are drawn instead. A sweep over the marks gives the order. */
#include "base/random.h"
#include "select/methods.h"

static void mark(uint64_t *marks, int64_t n, int64_t count, uint64_t key) {
    for (uint64_t draw = 0; count > 0; draw++) {
        uint64_t i = tw__random_below(key, draw, (uint64_t)n);
        uint64_t bit = (uint64_t)1 << (i % 64);
        if (!(marks[i / 64] & bit)) {
            marks[i / 64] |= bit;
            count--;
        }
    }
}

/* Indices of the marks, or of the others, to idx; clears the marks. */
static int64_t sweep(uint64_t *marks, int64_t n, int others, int32_t *idx) {
    int64_t count = 0;
    for (int64_t word = 0; 64 * word < n; word++) {
        uint64_t bits = others ? ~marks[word] : marks[word];
        if (n - 64 * word < 64)
            bits &= ((uint64_t)1 << (n - 64 * word)) - 1;
        for (; bits != 0; bits &= bits - 1)
            idx[count++] = (int32_t)(64 * word + __builtin_ctzll(bits));
        marks[word] = 0;
    }
    return count;
}

static void choose(tw__cpu_selector *s) {
    int others = 2 * s->now.k > s->n;
    uint64_t key = tw__random(s->params->seed, (uint64_t)s->now.step);
    mark(s->marks, s->n, others ? s->n - s->now.k : s->now.k, key);
    s->chosen.count = sweep(s->marks, s->n, others, s->chosen.idx);
    tw__feedback_gather(s, &s->chosen);
}

const tw__method tw__select_random = {
    .name = "random",
    .description = "k indices by chance, the same on ranks that share a seed (Rand_k)",
    .backends = TW__ALL_BACKENDS,
    .wants_marks = 1,
    .guess = tw__method_guess_none,
    .choose = choose,
};
