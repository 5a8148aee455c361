/* entries.c - lists of entries, in any backend's memory; see entries.h */
#include "exchange/entries.h"

#include <assert.h>

#ifndef NDEBUG
int tw__list_is_sorted(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi) {
    tw__bad_entry misfit = {.at = -1};
    if (list->count > 0)
        (void)w->calls->find_misfit(w->context, list, lo, hi, &misfit);
    return misfit.at < 0;
}

static int ascend(const int64_t *bounds, int64_t count) {
    for (int64_t i = 1; i < count; i++)
        if (bounds[i] < bounds[i - 1])
            return 0;
    return 1;
}
#endif

int tw__list_cut(const tw__lists *w, const tw__list *list, const int64_t *bounds, int64_t count,
                 int64_t *positions, tw__list *parts) {
    assert(ascend(bounds, count));
    if (list->count > 0)
        TW_TRY(w->calls->cut(w->context, list, bounds, count, positions));
    for (int64_t i = 0; i + 1 < count; i++)
        parts[i] = list->count == 0
                       ? *list
                       : (tw__list){list->at + positions[i], positions[i + 1] - positions[i]};
    return TW_OK;
}

int tw__list_between(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi,
                     tw__list *part) {
    int64_t bounds[2] = {lo, hi < lo ? lo : hi}, positions[2] = {0};
    *part = *list;
    return list->count == 0 ? TW_OK : tw__list_cut(w, list, bounds, 2, positions, part);
}

int tw__list_check(const tw__lists *w, const tw__list *list, int64_t lo, int64_t hi, int rank) {
    tw__bad_entry misfit = {.at = -1};
    if (list->count > 0)
        TW_TRY(w->calls->find_misfit(w->context, list, lo, hi, &misfit));
    if (misfit.at < 0)
        return TW_OK;
    return tw__fail(TW_ERR_PROTOCOL,
                    "rank %d: entry %lld of its message has index %lld, expected was one in "
                    "%lld .. %lld; do all ranks run the same version?",
                    rank, (long long)misfit.at, (long long)misfit.idx, (long long)misfit.least,
                    (long long)hi - 1);
}

int tw__list_split_best(const tw__lists *w, const tw__list *list, int64_t best, tw__entry *kept,
                        tw__entry *dropped, int64_t *nkept) {
    tw__edge edge = {UINT32_MAX, 0};
    assert(best >= 0 && list->count >= 0);
    *nkept = list->count;
    if (best >= list->count)
        return list->at == kept ? TW_OK : w->calls->move(w->context, kept, list->at, list->count);
    if (best > 0)
        TW_TRY(w->calls->find_edge(w->context, list, best, &edge));
    return w->calls->take(w->context, list, edge, kept, dropped, nkept);
}

int tw__list_keep_above(const tw__lists *w, tw__list *list, uint32_t bits, int64_t ties) {
    if (list->count == 0)
        return TW_OK;
    return w->calls->take(w->context, list, (tw__edge){bits, ties}, list->at, NULL, &list->count);
}

int tw__list_reduce(const tw__lists *w, const tw__list *runs, int nruns, tw__list *out) {
    return w->calls->reduce(w->context, runs, nruns, out);
}

int tw__list_merge(const tw__lists *w, const tw__list *a, const tw__list *b, tw__list *out) {
    const tw__list runs[2] = {*a, *b};
    return tw__list_reduce(w, runs, 2, out);
}

int tw__list_intersect(const tw__lists *w, const tw__list *a, const tw__list *b, tw__list *out) {
    return w->calls->intersect(w->context, a, b, out);
}

int tw__list_finite(const tw__lists *w, const tw__list *list, int *yes) {
    int64_t above = 0, equal = 0;
    if (list->count > 0)
        TW_TRY(w->calls->count(w->context, list, TW__INFINITY_BITS - 1, &above, &equal));
    *yes = above == 0;
    return TW_OK;
}

int tw__list_append(const tw__lists *w, tw__list *to, const tw__list *from) {
    if (from->count > 0)
        TW_TRY(w->calls->move(w->context, to->at + to->count, from->at, from->count));
    to->count += from->count;
    return TW_OK;
}

int tw__list_reaches(const tw__list *list, float magnitude) {
    for (int64_t i = 0; i < list->count; i++)
        if (tw__magnitude(list->at[i].val) >= tw__magnitude(magnitude))
            return 1;
    return 0;
}
