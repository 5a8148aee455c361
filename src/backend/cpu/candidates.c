/* candidates.c - the entries that a pass collected, and the choice among them
 *
 * The guess from which a pass collects is meant to let 1.25k to 2k entries through, as the method
 * asks. It can fail in two ways, and neither costs exactness:
 *
 *   Too many: a thread's buffer fills up, with more than 4k. It keeps its 2k+1 best and raises its
 *   own threshold to just above the worst of them. What it drops, or no longer collects, is beaten
 *   by 2k+1 entries (larger, or equal with a smaller index): it is in no top k, and a threshold
 *   below it lets more than 2k through, which is all that a method needs to know.
 *
 *   Too few: collect again from lower down, at most twice: from a sampled guess, then from the
 *   smallest non-zero on, which cannot miss.
 *
 * Zeros are never candidates: thresholds start at 1, the bits of the smallest subnormal. Each
 * thread's entries are in index order; the table of chunk owners says how they interleave. */
#include "base/pool.h"
#include "base/random.h"
#include "backend/cpu/cpu_selector.h"

#include <assert.h>
#include <math.h>

/* Runs of one cache line are sampled: one read brings 16 elements. */
#define SAMPLE_RUN 16

int64_t tw__candidates_total(const tw__cpu_selector *s) {
    int64_t total = 0;
    for (int i = 0; i < s->threads; i++)
        total += s->workers[i].collector.found.count;
    return total;
}

int64_t tw__candidates_above(const tw__cpu_selector *s, uint32_t threshold) {
    int64_t above = 0;
    for (int i = 0; i < s->threads; i++) {
        const tw__entries *found = &s->workers[i].collector.found;
        above += s->kernels->count(found->val, found->count, threshold);
    }
    return above;
}

static int any_dropped(const tw__cpu_selector *s) {
    for (int i = 0; i < s->threads; i++)
        if (s->workers[i].dropped != 0)
            return 1;
    return 0;
}

/* Whether all entries from `threshold` on are candidates. */
static int complete(const tw__cpu_selector *s, uint32_t threshold) {
    for (int i = 0; i < s->threads; i++)
        if (s->workers[i].dropped >= threshold)
            return 0;
    return threshold >= s->guess;
}

int64_t tw__candidates_count(tw__cpu_selector *s, uint32_t threshold, int64_t most) {
    assert(most <= TW__MOST * s->now.k);
    if (complete(s, threshold))
        return tw__candidates_above(s, threshold);
    if (threshold <= s->guess && any_dropped(s))
        return TW__MOST * s->now.k + 1; /* a buffer holds as many before it drops any */
    if (threshold <= s->guess && tw__candidates_total(s) > most)
        return most + 1;
    return tw__feedback_count(s, threshold);
}

int64_t tw__candidates_pluck(const tw__cpu_selector *s, uint32_t *bits, int64_t most) {
    int64_t total = tw__candidates_total(s);
    assert(most > 0);
    int64_t stride = (total + most - 1) / most;
    int64_t count = 0, next = 0; /* position of the next one in the current worker's entries */
    for (int i = 0; i < s->threads; i++) {
        const tw__entries *found = &s->workers[i].collector.found;
        for (; next < found->count; next += stride)
            bits[count++] = tw__magnitude(found->val[next]);
        next -= found->count;
    }
    return count;
}

/* Fills s->work->sample with one run from each of equally long parts, at a random place in it. */
static int64_t take_sample(tw__cpu_selector *s, int after) {
    int64_t runs = s->sample_size / SAMPLE_RUN;
    if (!after)
        tw__feedback_settle(s);
    int64_t part = s->n / runs;
    uint64_t key = tw__random(s->params->seed, (uint64_t)s->now.step);
    int64_t count = 0;
    for (int64_t run = 0; run < runs; run++) {
        float values[SAMPLE_RUN];
        int64_t room = part > SAMPLE_RUN ? part - SAMPLE_RUN + 1 : 1;
        int64_t lo = run * part + (int64_t)tw__random_below(key, (uint64_t)run, (uint64_t)room);
        int64_t len = s->n - lo < SAMPLE_RUN ? s->n - lo : SAMPLE_RUN;
        tw__feedback_peek(s, lo, len, after, values);
        for (int64_t i = 0; i < len; i++)
            s->work->sample[count++] = tw__magnitude(values[i]);
    }
    return count;
}

uint32_t tw__candidates_sample(tw__cpu_selector *s, double rank, int after) {
    assert(rank > 0.0);
    int64_t count = take_sample(s, after);
    double in_sample = rank * (double)count / (double)s->n;
    int64_t at = in_sample < 1.0 ? 1 : in_sample > (double)count ? count : (int64_t)in_sample;
    uint32_t bits = tw__kth_of_bits(s->work->sample, count, at);
    return bits < 1 ? 1 : bits > TW__INFINITY_BITS ? TW__INFINITY_BITS : bits;
}

void tw__candidates_ensure(tw__cpu_selector *s, int64_t want) {
    assert(want >= 1 && want <= 2 * s->now.k + 1);
    if (s->guess > 1 && tw__candidates_total(s) < want) {
        uint32_t lower = tw__candidates_sample(s, 3.0 * (double)want, 1);
        if (lower < s->guess)
            tw__feedback_rescan(s, lower);
        if (tw__candidates_total(s) < want)
            tw__feedback_rescan(s, 1);
    }
}

/* Magnitude bits that `rank` entries reach, where the candidates end before that: on the power law
 * through the last chosen and the last candidate. */
static uint32_t extrapolate(const tw__cpu_selector *s, int64_t rank) {
    double total = (double)tw__candidates_total(s), count = (double)s->chosen.count;
    double end = tw__from_bits(s->guess), edge = tw__from_bits(s->edge);
    double lower = 0.9; /* too close together to tell */
    if (total > 1.1 * count && count > 0.0 && edge > 1.001 * end)
        lower = pow(total / (double)rank, log(edge / end) / log(total / count));
    return tw__threshold((float)(end * fmax(lower, 0.5)));
}

uint32_t tw__candidates_learn(const tw__cpu_selector *s, int64_t rank) {
    assert(rank >= 1 && s->chosen.count <= tw__candidates_total(s));
    int64_t total = tw__candidates_total(s);
    if (total < rank)
        return extrapolate(s, rank);
    uint32_t bits[TW__SAMPLE];
    int64_t count = tw__candidates_pluck(s, bits, TW__SAMPLE);
    int64_t at = (int64_t)((double)rank * (double)count / (double)total);
    return tw__kth_of_bits(bits, count, at < 1 ? 1 : at);
}

/* Calls visit for each stretch of candidates, in index order. */
typedef void visit_stretch(tw__cpu_selector *s, const int32_t *idx, const float *val, int64_t len,
                           void *context);

static void each_stretch(tw__cpu_selector *s, visit_stretch *visit, void *context) {
    int64_t cursor[TW__MAX_THREADS] = {0};
    for (int64_t chunk = 0; chunk < s->chunks;) {
        int owner = s->work->owner[chunk];
        while (chunk < s->chunks && s->work->owner[chunk] == owner)
            chunk++;
        const tw__entries *found = &s->workers[owner].collector.found;
        int64_t from = cursor[owner], to = s->work->end[chunk - 1];
        if (s->workers[owner].dropped != 0) /* it moved its entries: look where they are now */
            to = from + tw__lower_bound(found->idx + from, found->count - from, chunk * TW__CHUNK);
        assert(from <= to && to <= found->count);
        visit(s, found->idx + from, found->val + from, to - from, context);
        cursor[owner] = to;
    }
}

static void pick_stretch(tw__cpu_selector *s, const int32_t *idx, const float *val, int64_t len,
                         void *threshold) {
    s->kernels->pick(idx, val, len, *(uint32_t *)threshold, &s->chosen);
}

static void pick_stretch_with_ties(tw__cpu_selector *s, const int32_t *idx, const float *val,
                                   int64_t len, void *edge) {
    tw__entries *chosen = &s->chosen;
    for (int64_t i = 0; i < len; i++) {
        chosen->idx[chosen->count] = idx[i];
        chosen->val[chosen->count] = val[i];
        chosen->count += tw__edge_takes(edge, val[i]);
    }
}

/* The rank-th largest of all candidates. Writes to s->chosen.idx, which is free until the choice is
 * made. */
static tw__kth kth_of_candidates(tw__cpu_selector *s, int64_t rank) {
    tw__kth_part parts[TW__MAX_THREADS];
    uint32_t bits[TW__SAMPLE];
    for (int i = 0; i < s->threads; i++)
        parts[i] =
            (tw__kth_part){s->workers[i].collector.found.val, s->workers[i].collector.found.count};
    tw__kth_sample sample = {.bits = bits,
                             .count = tw__candidates_pluck(s, bits, TW__SAMPLE),
                             .scratch = (uint32_t *)s->chosen.idx,
                             .room = s->chosen.cap};
    return tw__kth_of_parts(s->kernels, parts, s->threads, &sample, rank);
}

uint32_t tw__candidates_choose_best(tw__cpu_selector *s, int64_t count) {
    int64_t total = tw__candidates_total(s);
    if (total < count)
        count = total;
    if (count == 0) {
        s->chosen.count = 0;
        return 0;
    }
    tw__kth worst = kth_of_candidates(s, count);
    tw__edge edge = {worst.bits, count - worst.greater};
    s->edge = worst.bits;
    s->chosen.count = 0;
    if (edge.ties == worst.equal)
        each_stretch(s, pick_stretch, &worst.bits);
    else
        each_stretch(s, pick_stretch_with_ties, &edge);
    assert(s->chosen.count == count);
    return worst.bits;
}

int tw__candidates_far_off(tw__cpu_selector *s, uint32_t threshold) {
    int64_t k = s->now.k, count = tw__candidates_count(s, threshold, TW__MOST * k);
    return count > TW__MOST * k || TW__MOST * count < k;
}

void tw__candidates_choose_all(tw__cpu_selector *s, uint32_t threshold) {
    if (!complete(s, threshold))
        tw__feedback_rescan(s, threshold);
    s->edge = threshold;
    s->chosen.count = 0;
    each_stretch(s, pick_stretch, &threshold);
}

void tw__candidates_choose_above(tw__cpu_selector *s, uint32_t threshold) {
    if (tw__candidates_count(s, threshold, TW__MOST * s->now.k) <= TW__MOST * s->now.k) {
        tw__candidates_choose_all(s, threshold);
    } else {
        tw__candidates_ensure(s, s->now.k);
        tw__candidates_choose_best(s, s->now.k);
    }
}
