/* snapshot.c - histogram of a vector and the contraction of top-k, exactly and without sorting
 *
 * The histogram spans six standard deviations on each side of the mean; values beyond count in the
 * outer bins. The contraction |u - Top_k(u)|^2 / |u|^2 is that of GaussianK-SGD's Theorem 1. Magnitudes
 * are ordered by their bits: sums of squares per upper 16 bits, and within the bin that holds the
 * k-th per lower 15, give the sum over the k largest. */
#include "worker.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UPPER 65536
#define LOWER 32768

typedef struct bin {
    int64_t count;
    double square;
} bin;

static uint32_t magnitude(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

static double square(float x) {
    return (double)x * (double)x;
}

static void add(bin *b, float x) {
    b->count++;
    b->square += square(x);
}

/* Sum of squares of the `want` largest values, bin by bin from the top. *bin_at: the bin that only a
 * part of is wanted; *want: how many values of it. */
static double take_from_top(const bin *bins, int nbins, int64_t *want, int *bin_at) {
    double sum = 0.0;
    int at = nbins - 1;
    while (at >= 0 && *want >= bins[at].count) {
        *want -= bins[at].count;
        sum += bins[at--].square;
    }
    *bin_at = at;
    return sum;
}

/* Of the values in upper bin `upper`, the `want` largest. */
static double take_within(const float *u, int64_t n, int upper, int64_t want, bin *bins) {
    int at = 0;
    memset(bins, 0, LOWER * sizeof *bins);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = magnitude(u[i]);
        if ((int)(bits >> 15) == upper)
            add(&bins[bits & (LOWER - 1)], u[i]);
    }
    double sum = take_from_top(bins, LOWER, &want, &at);
    if (at >= 0 && bins[at].count > 0) /* equal values: as many as are wanted */
        sum += bins[at].square * (double)want / (double)bins[at].count;
    return sum;
}

static double contraction(const float *u, int64_t n, int64_t k) {
    bin *bins = calloc(UPPER, sizeof *bins);
    double total = 0.0;
    if (bins == NULL)
        return NAN;
    for (int64_t i = 0; i < n; i++) {
        add(&bins[magnitude(u[i]) >> 15], u[i]);
        total += square(u[i]);
    }
    int upper = 0;
    int64_t want = k;
    double taken = take_from_top(bins, UPPER, &want, &upper);
    if (upper >= 0 && want > 0)
        taken += take_within(u, n, upper, want, bins);
    free(bins);
    return total > 0.0 ? fmax(0.0, 1.0 - taken / total) : 0.0;
}

void snapshot_fill(trainer_snapshot *s, const float *u) {
    assert(s->n > 0 && s->k >= 0);
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < s->n; i++) {
        sum += (double)u[i];
        squares += square(u[i]);
    }
    double mean = sum / (double)s->n;
    double reach = 6.0 * sqrt(fmax(squares / (double)s->n - mean * mean, 1e-60));
    s->low = mean - reach;
    s->high = mean + reach;
    memset(s->counts, 0, sizeof s->counts);
    for (int64_t i = 0; i < s->n; i++) {
        double at = ((double)u[i] - s->low) / (2.0 * reach) * TRAINER_BINS;
        int bin_at = at < 0.0 ? 0 : at >= TRAINER_BINS ? TRAINER_BINS - 1 : (int)at;
        s->counts[bin_at]++;
    }
    s->contraction = contraction(u, s->n, s->k);
}
