/* selector.h - what a selector holds, and the stages that work on it
 *
 *   params.c      what the caller asked for, checked
 *   feedback.c    acc = g + e in one pass that also collects candidates; undo; what was sent leaves
 *   candidates.c  the candidates: too many, too few, how many above, out in order
 *   kth.c         the exact k-th magnitude
 *   select/       the methods: which candidates to send
 *   selector.c    the map: create, run, commit, undo, free
 */
#ifndef TW_SELECTOR_H
#define TW_SELECTOR_H

#include "base/error.h"
#include "base/memory.h"
#include "backend/cuda/device.h"
#include "exchange/entries.h"
#include "backend/cpu/extent.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kth.h"
#include "thinwire.h"

struct tw__method;

/* Sums over acc, for the methods that ask for them. */
typedef struct tw__sums {
    double sum;
    double square;
    double magnitude;
} tw__sums;

/* One thread's share of a pass. On cache lines of its own: two threads on one line made a step
 * 1.45x the bare pass instead of 1.26x, where that ran at 85 GB/s. */
typedef struct tw__worker {
    _Alignas(TW__ALIGNMENT) tw__collector collector;
    uint32_t dropped;  /* largest magnitude bits thrown out for lack of room, 0 if none */
    int64_t bad_index; /* first NaN or infinity, -1 if none */
    int64_t counted;   /* of tw__feedback_count */
    float *scratch;    /* [TW__BLOCK]: the gradient as scaled floats */
    uint8_t *keep;     /* [TW__BLOCK/8]: all bits set between blocks; see the fold kernel */
} tw__worker;

/* What a method learns from step to step. Goes back with an undo. */
typedef struct tw__learned {
    uint32_t guess;  /* magnitude bits to collect from in the next pass; 0: not known yet */
    double rank;     /* exact: entries that reached the guess when it was made; 0: not known */
    double growth;   /* exact: entries that reach a guess a step later, over that rank */
    double margin;   /* exact: candidates wanted, over k */
    float threshold; /* reuse: the threshold in use */
    int64_t age;     /* reuse: steps since it was exact in its turn */
} tw__learned;

struct tw_selector {
    tw_select_params params;     /* with defaults filled in */
    tw__device_selector *device; /* does all of this on a GPU; NULL on the CPU */
    const struct tw__method *method;
    const tw__kernels *kernels;
    int64_t n;
    int64_t chunks;
    int threads;

    /* State between steps. */
    float *residual;    /* [n], holds acc while a step is open; NULL without feedback */
    float *velocity[2]; /* [n] each: this step's and the next one's; NULL without momentum */
    int64_t step;
    tw__learned learned;
    int64_t leaving; /* chosen.idx[0 .. leaving-1], then INT32_MAX: still to leave the residual */

    /* The open step. */
    int open;
    const void *grad; /* [n], the caller's; valid within a call */
    float scale;      /* by which clipping shrinks the gradient */
    int64_t k;
    uint32_t guess;     /* magnitude bits that the last pass collected from */
    uint32_t edge;      /* magnitude bits that the last choice reached down to */
    tw__learned before; /* learned, as it was when the step began */
    uint8_t *lossy;     /* undo log, see tw__undo: a bit per element */
    int8_t *near;       /* undo log: chunk c starts at c * (TW__CHUNK + TW__LANES) */
    float *far;         /* undo log: likewise */

    /* Workspace. */
    tw__worker *workers; /* [threads] */
    uint8_t *owner;      /* [chunks]: the worker that did the chunk */
    int64_t *end;        /* [chunks]: its number of candidates after it */
    tw__sums *sums;      /* [chunks] */
    uint32_t *sample;    /* [sample_size] magnitude bits of elements */
    int64_t sample_size;
    uint64_t *marks;    /* [n/64] bits, all zero; random alone */
    tw__entries chosen; /* the selection */

    tw_select_info info;
};

/* ---- params.c */

/* The k of a step, and the largest over all steps. */
int64_t tw__k_at(const tw_select_params *params, int64_t n, int64_t step);
int64_t tw__k_max(const tw_select_params *params, int64_t n);
/* Checks params and fills in defaults and the method. */
int tw__params_resolve(tw_select_params *params, int64_t n, const struct tw__method **method);

/* ---- feedback.c */

/* acc = grad + residual over all n, collecting from magnitude bits `guess` on. Fails with
 * TW_ERR_NUMBER, everything as before, when a number is not finite. */
int tw__feedback_fold(tw_selector *s, uint32_t guess);
/* Take the pass back. */
void tw__feedback_unfold(tw_selector *s);
/* Collect again, from lower down; acc stays as it is. */
void tw__feedback_rescan(tw_selector *s, uint32_t guess);
/* How many elements of acc have magnitude bits >= threshold. */
int64_t tw__feedback_count(tw_selector *s, uint32_t threshold);
/* Fills in val from acc; idx is given. */
void tw__feedback_gather(tw_selector *s, tw__entries *entries);
/* The first `count` chosen entries are to leave the residual, in the next pass. */
void tw__feedback_leave(tw_selector *s, int64_t count);
/* They leave now. */
void tw__feedback_settle(tw_selector *s);
/* acc[lo .. lo+len-1], at most a block, as the pass left it (after) or would leave it. */
void tw__feedback_peek(tw_selector *s, int64_t lo, int64_t len, int after, float *out);
/* Sums over acc; only after a pass for a method with wants_sums. */
tw__sums tw__feedback_sums(const tw_selector *s);
/* Set the scale that brings the gradient down to clip_norm. */
void tw__feedback_clip(tw_selector *s);

/* ---- candidates.c */

/* The collector is full: keep the best 2k+1. */
void tw__candidates_squeeze(tw_selector *s, tw__worker *worker);
int64_t tw__candidates_total(const tw_selector *s);
/* How many candidates have magnitude bits >= threshold. */
int64_t tw__candidates_above(const tw_selector *s, uint32_t threshold);
/* How many elements have, up to `most`, which is TW__MOST * k or less; any larger number where they
 * are more. Reads acc again where the candidates do not tell. */
int64_t tw__candidates_count(tw_selector *s, uint32_t threshold, int64_t most);
/* Make sure that the candidates hold the `want` largest (want <= 2k+1), or all non-zeros. */
void tw__candidates_ensure(tw_selector *s, int64_t want);
/* Choose all from `threshold` on; the best k where that would be more than TW__MOST * k. */
void tw__candidates_choose_above(tw_selector *s, uint32_t threshold);
/* Choose the `count` largest; ties go to the smaller index. Returns the bits of the
 * smallest, 0 if there is none. */
uint32_t tw__candidates_choose_best(tw_selector *s, int64_t count);
/* Magnitude bits of at most `most` candidates, evenly spaced. Returns how many. */
int64_t tw__candidates_pluck(const tw_selector *s, uint32_t *bits, int64_t most);
/* Magnitude bits that `rank` entries will probably reach in the next step. */
uint32_t tw__candidates_learn(const tw_selector *s, int64_t rank);
/* Magnitude bits of rank `rank` among n, estimated from a sample of acc. */
uint32_t tw__candidates_sample(tw_selector *s, double rank, int after);

/* First of the ascending idx[count] that is >= bound. */
int64_t tw__lower_bound(const int32_t *idx, int64_t count, int64_t bound);

/* ---- selector.c */

/* Whether acc would overflow if the entries `sent` left it and `kept` were added; both lie on the
 * GPU if `there`. Indices are those of the vector plus base. Errors: TW_ERR_DEVICE. */
int tw__selector_overflows(tw_selector *s, int there, const tw__list *kept, const tw__list *sent,
                           int64_t base, int *yes);
/* acc at the indices of a list, in an open step with feedback, to values[list->count]; where the
 * vector is a GPU's, both lie in pinned memory. Errors: TW_ERR_DEVICE. */
int tw__selector_peek(tw_selector *s, const tw__list *list, int64_t base, float *values);
/* The open step is over; its GPU has ended it. */
void tw__selector_count(tw_selector *s);
/* For a step that sends all of acc: fold, and select nothing. On the CPU, with feedback. The step is
 * open then; tw__selector_close_whole ends it with a residual of zeros, or it is undone.
 * Errors: as tw_selector_run. */
int tw__selector_fold(tw_selector *s, const void *grad);
void tw__selector_close_whole(tw_selector *s);
/* End the open step as an exchange says: `left`, at most k elements, leaves the residual, then
 * `kept` is added to it. What left for good loses its velocity: all that is not kept, and of that
 * what is in `applied`. Indices are those of the vector plus base. */
void tw__selector_close(tw_selector *s, const tw__list *left, const tw__list *kept,
                        const tw__list *applied, int64_t base);

/* ---- kth.c: the candidates' part; the rest is in kth.h */

/* Writes to s->chosen.idx, which is free until the choice is made. */
tw__kth tw__kth_of_candidates(tw_selector *s, int64_t rank);

#endif
