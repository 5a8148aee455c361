/* simulate_size.c - how much of a large vector is really exchanged
 *
 * The vectors of all ranks lie in this machine's memory: 256 ranks of BERT would take 137 GB. What
 * is sent is proportional to n at one density, so 1/s of it is exchanged, each byte taking the time
 * of s.
 *
 * The exchanges whose results grow with P (allgather, dsa) also hold kP entries on each rank.
 * The others hold k, and what they do depends on k against P (oktopk needs k >= 8P), not on n: k is
 * then kept at 8P at least, at a higher density where n would be too large.
 */
#include <math.h>
#include <string.h>

#include "simulate.h"

#define MOST_ELEMENTS 40e6 /* n over all ranks: 0.4 GB and a second for a step */
#define MOST_GATHERED 40e6 /* kP over all ranks: 1 to 4 GB */
#define LEAST_K_PER_RANK 8

/* Auto may do so. */
static bool gathers(const char *exchange) {
    return strcmp(exchange, "allgather") == 0 || strcmp(exchange, "dsa") == 0 ||
           strcmp(exchange, "auto") == 0;
}

static int64_t at_least_one(double value) {
    return value >= 1.0 ? llround(value) : 1;
}

simulate_size simulate_size_of(const simulate_row *row) {
    double nranks = row->nranks, n = (double)row->n, k = (double)row->k;
    double scale = fmax(1.0, n * nranks / MOST_ELEMENTS);
    if (gathers(row->exchange))
        scale = fmax(scale, k * nranks * nranks / MOST_GATHERED);
    if (scale <= 1.0)
        return (simulate_size){row->n, row->k, 1.0};
    if (row->dense) {
        /* Ranges alike: rounding up a range of 9.5 would cost 5 %. */
        int64_t less = at_least_one(n / scale / nranks) * row->nranks;
        return (simulate_size){less, less, n / (double)less};
    }
    bool grows = gathers(row->exchange) && !row->automatic;
    double kept = grows ? 1.0 : fmin(k, LEAST_K_PER_RANK * nranks);
    simulate_size size = {.n = at_least_one(n / scale), .k = at_least_one(fmax(k / scale, kept))};
    size.n = size.n > size.k ? size.n : size.k;
    size.scale = k / (double)size.k;
    return size;
}
