/* wire_lists.c - lists of entries for the tests of the wire formats; see wire_lists.h */
#include "wire_lists.h"

#include <stdlib.h>

/* Knuth's selection sampling: each index in turn, with the probability that is still needed. Where
 * the span is much larger than the list, one index of each of `count` equal parts. */
static void choose_indices(tw__list *list, int64_t lo, int64_t hi, oracle_rng *rng) {
    const int64_t span = hi - lo;
    int64_t taken = 0;
    if (span > 1000 * list->count) {
        for (int64_t i = 0; i < list->count; i++) {
            const int64_t start = span / list->count * i;
            list->at[i].idx = (int32_t)(lo + start + oracle_below(rng, span / list->count));
        }
        return;
    }
    for (int64_t i = 0; i < span && taken < list->count; i++)
        if (oracle_below(rng, span - i) < list->count - taken)
            list->at[taken++].idx = (int32_t)(lo + i);
}

tw__list wire_list(int64_t count, int64_t lo, int64_t hi, int clustered, oracle_data kind,
                   uint64_t seed) {
    oracle_rng rng = {.key = seed};
    tw__list list = {check_alloc(count + 1, sizeof *list.at), count};
    float *val = check_alloc(count + 1, sizeof *val);
    const int64_t first = oracle_below(&rng, hi - lo - count + 1);
    if (!clustered && count > 0)
        choose_indices(&list, lo, hi, &rng);
    oracle_fill(val, count, kind, seed);
    for (int64_t i = 0; i < count; i++) {
        if (clustered)
            list.at[i].idx = (int32_t)(lo + first + i);
        list.at[i].val = val[i];
    }
    free(val);
    return list;
}

void wire_list_free(tw__list *list) {
    free(list->at);
    list->at = NULL;
}

const tw__kernels *wire_kernels(void) {
    const tw__kernels *kernels = NULL;
    check_ok(tw__kernels_choose(&kernels));
    return kernels;
}
