/* deal.c - indices dealt like cards, so that ranges of equal length hold about as many entries
 *
 * Gradients crowd: a few layers, rows or columns have most of the large values. Element i of a
 * tensor goes to pile i mod C, and the piles are laid end to end. A crowd of neighbours then lies in
 * all piles, and so does a column, whose elements are a stride apart, since C is a prime: whatever
 * ranges the dealt tensor is cut into, each has its share, and nobody has to ask where the cuts
 * should be. Example, n = 8, C = 3:
 *
 *     element   0 1 2 3 4 5 6 7      piles  0 3 6 | 1 4 7 | 2 5
 *     place     0 3 6 1 4 7 2 5
 */
#include "exchange/exchange.h"

/* Four piles for a rank at least, or a range would see only part of a short crowd; the smallest
 * keeps strides that are multiples of C, which all go to one pile, rare. */
#define FEWEST 60

static int is_prime(int64_t x) {
    for (int64_t d = 2; d * d <= x; d++)
        if (x % d == 0)
            return 0;
    return 1;
}

/* How many piles there are. */
static int64_t piles_of(int nranks) {
    int64_t piles = 4 * (int64_t)nranks;
    piles = (piles < FEWEST ? FEWEST : piles) + 1;
    while (!is_prime(piles))
        piles++;
    return piles;
}

/* The first `longer` piles have one more. */
static int64_t place_of(int64_t i, int64_t n, int64_t piles) {
    int64_t pile = i % piles, height = n / piles, longer = n % piles;
    return pile * height + (pile < longer ? pile : longer) + i / piles;
}

static int64_t element_at(int64_t place, int64_t n, int64_t piles) {
    int64_t height = n / piles, longer = n % piles, high = longer * (height + 1);
    if (place < high)
        return place % (height + 1) * piles + place / (height + 1);
    place -= high;
    return place % height * piles + longer + place / height;
}

static int move_all(tw__job *job, tw__list *list, tw__entry *scratch, int64_t piles,
                    int64_t (*to)(int64_t, int64_t, int64_t)) {
    TW_TRY(tw__job_cut(job, list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        const tw__list *part = &job->parts[0][i];
        for (int64_t e = 0; e < part->count; e++)
            part->at[e].idx = (int32_t)(s->base + to(part->at[e].idx - s->base, s->n, piles));
    }
    tw__list_sort(list, job->shape.span, scratch);
    return TW_OK;
}

int tw__interleave(tw__job *job, tw__list *list, tw__entry *scratch) {
    return move_all(job, list, scratch, piles_of(job->shape.nranks), place_of);
}

int tw__deinterleave(tw__job *job, tw__list *list, tw__entry *scratch) {
    return move_all(job, list, scratch, piles_of(job->shape.nranks), element_at);
}
