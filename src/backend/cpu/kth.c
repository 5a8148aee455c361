/* kth.c - the exact k-th largest magnitude, without sorting
 *
 * Up to 256 values: a search for the answer's bits from the top, by counting.
 *
 * Up to 8192: histograms of 1024 bins between the smallest and the largest value, then within the
 * answer's bin, until up to 256 values are left. Bins of fixed digits take twice as long: candidates
 * are of the same order of magnitude, so they share a few bins of the first digit.
 *
 * More: first a bracket from a sample (Floyd and Rivest, 1975), which nearly always contains the answer.
 * One loop counts the values above it and copies out those inside, a few per cent, for the histograms.
 * If the bracket missed, as it does when many values tie, the histograms count all values. Among the
 * 190,000 candidates of n = 14.7 M at density 0.01: 0.05 ms, without the bracket 0.42 ms. */
#include "backend/cpu/kth.h"

#include "backend/extent.h"
#include "base/pool.h"
#include "exchange/entries.h"

#include <assert.h>
#include <math.h>

/* Some values, as floats or as magnitude bits: masking the sign serves both. */
typedef struct values {
    const void *bits;
    int64_t len;
    int64_t stride; /* bytes from one to the next */
} values;

static uint32_t magnitude_at(const values *s, int64_t i) {
    uint32_t bits;
    memcpy(&bits, (const char *)s->bits + s->stride * i, sizeof bits);
    return bits & TW__MAGNITUDE_MASK;
}

/* Magnitude bits low .. high. */
typedef struct bracket {
    uint32_t low, high;
} bracket;

static int is_inside(bracket b, uint32_t bits) {
    return bits - b.low <= b.high - b.low;
}

/* From the smallest to the largest. */
static bracket range_of(const values *parts, int count) {
    bracket all = {TW__MAGNITUDE_MASK, 0};
    for (int p = 0; p < count; p++)
        for (int64_t i = 0; i < parts[p].len; i++) {
            uint32_t bits = magnitude_at(&parts[p], i);
            all.low = bits < all.low ? bits : all.low;
            all.high = bits > all.high ? bits : all.high;
        }
    return all;
}

#define BINS 1024

/* Counts the values inside of b, in bins of 2^shift. */
static void histogram(const values *s, bracket b, int shift, uint32_t *bins) {
    for (int64_t i = 0; i < s->len; i++) {
        uint32_t bits = magnitude_at(s, i);
        if (is_inside(b, bits))
            bins[(bits - b.low) >> shift]++;
    }
}

/* Up to so many values are compared with the answer bit by bit: 100 values take 0.43 us instead of
 * 1.35, 256 values 0.9 instead of 1.5. A histogram must be cleared and walked whatever the number. */
#define FEW 256

/* The compiler turns this into vector code, which compares signed numbers. */
static int64_t count_from(const int32_t *bits, int64_t len, int32_t least) {
    int32_t count = 0;
    for (int64_t i = 0; i < len; i++)
        count += bits[i] >= least;
    return count;
}

/* The values inside of b are few. */
static tw__kth select_few(const values *parts, int count, bracket b, int64_t rank) {
    int32_t bits[FEW + 1], answer = 0;
    int64_t len = 0;
    for (int p = 0; p < count; p++)
        for (int64_t i = 0; i < parts[p].len; i++) {
            uint32_t x = magnitude_at(&parts[p], i);
            bits[len] = (int32_t)x;
            len += is_inside(b, x);
        }
    for (int32_t bit = 1 << 30; bit > 0; bit >>= 1)
        if (count_from(bits, len, answer | bit) >= rank)
            answer |= bit;
    int64_t reaching = count_from(bits, len, answer), equal = 0;
    for (int64_t i = 0; i < len; i++)
        equal += bits[i] == answer;
    return (tw__kth){(uint32_t)answer, reaching - equal, equal};
}

/* The bin of b that has the rank-th largest takes the place of b. Returns how many it has; *greater
 * grows by those above it. */
static int64_t narrow(const values *parts, int count, bracket *b, int64_t rank, int64_t *greater) {
    uint32_t bins[BINS] = {0}, bin = BINS - 1;
    int shift = 0;
    while ((b->high - b->low) >> shift >= BINS)
        shift++;
    for (int p = 0; p < count; p++)
        histogram(&parts[p], *b, shift, bins);
    while (bin > 0 && rank - *greater > bins[bin])
        *greater += bins[bin--];
    b->low += bin << shift;
    b->high = b->low + (1u << shift) - 1;
    return bins[bin];
}

static tw__kth select_by_bins(const values *parts, int count, int64_t rank) {
    int64_t inside = 0, greater = 0;
    for (int i = 0; i < count; i++)
        inside += parts[i].len;
    bracket b = {0, TW__MAGNITUDE_MASK};
    if (inside > FEW)
        b = range_of(parts, count);
    while (inside > FEW && b.low < b.high)
        inside = narrow(parts, count, &b, rank, &greater);
    if (b.low == b.high)
        return (tw__kth){b.low, greater, inside};
    tw__kth kth = select_few(parts, count, b, rank - greater);
    kth.greater += greater;
    return kth;
}

uint32_t tw__kth_of_bits(const uint32_t *bits, int64_t len, int64_t rank) {
    assert(rank >= 1 && rank <= len);
    values all = {bits, len, 4};
    return select_by_bins(&all, 1, rank).bits;
}

static int64_t clamp_rank(double rank, int64_t len) {
    return rank < 1.0 ? 1 : rank > (double)len ? len : (int64_t)rank;
}

/* Around the value of rank `share` of all: three standard deviations of that rank in the sample. */
static bracket bracket_of(const uint32_t *sample, int64_t size, double share) {
    double middle = share * (double)size;
    double spread = 3.0 * sqrt((double)size * share * (1.0 - share)) + 2.0;
    return (bracket){.low = tw__kth_of_bits(sample, size, clamp_rank(middle + spread, size)),
                     .high = tw__kth_of_bits(sample, size, clamp_rank(middle - spread, size))};
}

/* The answer among those inside, if it is there. */
static int select_inside(const uint32_t *inside, int64_t count, int64_t above, int64_t rank,
                         tw__kth *kth) {
    if (rank <= above || rank > above + count)
        return 0;
    values all = {inside, count, 4};
    *kth = select_by_bins(&all, 1, rank - above);
    kth->greater += above;
    return 1;
}

/* Values inside the bracket of a list: 6 % of it, so lists of up to 270,000 are served. */
#define MOST_INSIDE 16384

static int is_served(int64_t len) {
    return len > 4 * TW__SAMPLE && len < 16 * MOST_INSIDE;
}

static bracket bracket_of_list(const values *all, int64_t rank) {
    uint32_t sample[TW__SAMPLE];
    for (int64_t i = 0; i < TW__SAMPLE; i++)
        sample[i] = magnitude_at(all, all->len / TW__SAMPLE * i);
    return bracket_of(sample, TW__SAMPLE, (double)rank / (double)all->len);
}

tw__kth tw__kth_of_values(const tw__kernels *kernels, const float *val, int64_t len, int64_t rank) {
    assert(rank >= 1 && rank <= len);
    values all = {val, len, sizeof *val};
    if (is_served(len)) {
        uint32_t inside[MOST_INSIDE + TW__SLACK];
        bracket b = bracket_of_list(&all, rank);
        tw__kth kth;
        int64_t above;
        int64_t count = kernels->between(val, len, b.low, b.high, inside, MOST_INSIDE, &above);
        if (count < MOST_INSIDE && select_inside(inside, count, above, rank, &kth))
            return kth;
    }
    return select_by_bins(&all, 1, rank);
}

static int bracket_entries(const values *all, int64_t rank, tw__kth *kth) {
    uint32_t inside[MOST_INSIDE];
    bracket b = bracket_of_list(all, rank);
    int64_t count = 0, above = 0;
    for (int64_t i = 0; i < all->len && count < MOST_INSIDE; i++) {
        uint32_t bits = magnitude_at(all, i);
        inside[count] = bits;
        count += (bits >= b.low) & (bits <= b.high);
        above += bits > b.high;
    }
    return count < MOST_INSIDE && select_inside(inside, count, above, rank, kth);
}

tw__kth tw__kth_of_entries(const tw__entry *entries, int64_t len, int64_t rank) {
    assert(rank >= 1 && rank <= len);
    values all = {&entries->val, len, sizeof *entries};
    tw__kth kth;
    if (is_served(len) && bracket_entries(&all, rank, &kth))
        return kth;
    return select_by_bins(&all, 1, rank);
}

/* Returns 0 where the bracket missed. */
static int bracket_parts(const tw__kernels *kernels, const tw__kth_part *parts, int nparts,
                         const tw__kth_sample *sample, int64_t total, int64_t rank, tw__kth *kth) {
    bracket b = bracket_of(sample->bits, sample->count, (double)rank / (double)total);
    int64_t count = 0, above = 0;
    for (int i = 0; i < nparts; i++) {
        int64_t over = 0;
        count += kernels->between(parts[i].val, parts[i].len, b.low, b.high,
                                  sample->scratch + count, sample->room - count, &over);
        above += over;
    }
    return count < sample->room && select_inside(sample->scratch, count, above, rank, kth);
}

tw__kth tw__kth_of_parts(const tw__kernels *kernels, const tw__kth_part *parts, int nparts,
                         const tw__kth_sample *sample, int64_t rank) {
    values all[TW__MAX_THREADS];
    int64_t total = 0;
    tw__kth kth;
    assert(nparts <= TW__MAX_THREADS);
    for (int i = 0; i < nparts; i++) {
        all[i] = (values){parts[i].val, parts[i].len, sizeof *parts[i].val};
        total += parts[i].len;
    }
    assert(rank >= 1 && rank <= total);
    if (total > 4 * TW__SAMPLE && bracket_parts(kernels, parts, nparts, sample, total, rank, &kth))
        return kth;
    return select_by_bins(all, nparts, rank);
}

int64_t tw__lower_bound(const int32_t *idx, int64_t count, int64_t bound) {
    int64_t lo = 0;
    while (lo < count) {
        int64_t middle = lo + (count - lo) / 2;
        if (idx[middle] < bound)
            lo = middle + 1;
        else
            count = middle;
    }
    return lo;
}
