/* cpu_selector.h - a selector's state on the CPU, and the stages that work on it
 *
 *   backend_cpu.c   run, commit, undo, apply: the calls of the backend
 *   cpu_memory.c    create and free; scratch
 *   select/         the methods: which candidates to send
 *   candidates.c    the candidates: too few, how many above a threshold, the choice in index order
 *   feedback.c      acc = g + e in one pass that also collects candidates; undo
 *   kth.c           the exact k-th magnitude
 *
 * Each calls only those below it. */
#ifndef TW_CPU_SELECTOR_H
#define TW_CPU_SELECTOR_H

#include "backend/backend.h"
#include "backend/extent.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kth.h"
#include "base/error.h"
#include "base/memory.h"

/* Sums over acc, for the methods that ask for them. */
typedef struct tw__sums {
    double sum;
    double square;
    double magnitude;
    double decayed; /* the sum after decay; `sum` is that before it */
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

/* What a call knows of the chunks. */
typedef struct tw__work {
    uint8_t *owner;     /* [chunks]: the worker that did the chunk */
    int64_t *end;       /* [chunks]: its number of candidates after it */
    tw__sums *sums;     /* [chunks] */
    uint32_t *sample;   /* [sample_size] magnitude bits of elements */
    int64_t first_item; /* of all chunks of a batch, the first that is this selector's */
} tw__work;

typedef struct tw__cpu_selector {
    const tw_select_params *params; /* the selector's */
    const struct tw__method *method;
    const tw__kernels *kernels;
    const tw__pieces *pieces; /* of gradients and outs */
    int32_t n;
    int32_t leaving; /* chosen.idx[0 .. leaving-1], then INT32_MAX: still to leave the residual */
    int32_t chunks;
    int32_t sample_size;
    int16_t threads;     /* that params ask for, but no more than chunks */
    int8_t owns_scratch; /* else it is the group's */
    int8_t uncached;     /* no cache holds all vectors of its group, see tw__most_cached */
    uint32_t block;      /* bytes of this struct and of the parts that follow it */
    void *scratch;       /* [scratch_room] bytes */
    size_t scratch_room;

    /* State between steps. */
    float *residual; /* [n], holds acc while a step is open; NULL without feedback */
    float *first[2]; /* [n] each, this step's and the next one's: velocity, or AdamW's m; or NULL */
    float *second[2]; /* [n] each: AdamW's v; or NULL */
    tw__learned learned;

    /* The open step. */
    tw__select_step now;
    const void *const *grads; /* [pieces], the caller's; valid within a call */
    float scale;              /* by which clipping shrinks the gradient */
    uint32_t guess;           /* magnitude bits that the last pass collected from */
    uint32_t edge;            /* magnitude bits that the last choice reached down to */
    int32_t rescans;          /* further reads of the vector */
    tw__learned before;       /* learned, as it was when the step began */
    uint8_t *lossy;           /* undo log, see tw__undo: a bit per element */
    int8_t *near;             /* undo log: chunk c starts at c * (TW__CHUNK + TW__LANES) */
    float *far;               /* undo log: likewise */

    uint64_t *marks;    /* [n/64] bits, all zero between calls; random alone */
    tw__entries chosen; /* the selection */

    tw__work *work;      /* in scratch, valid within a call */
    tw__worker *workers; /* [threads], likewise */
} tw__cpu_selector;

/* ---- cpu_memory.c: see tw__backend */

int tw__cpu_selector_memory(int64_t n, int pieces, const tw_select_params *params,
                            const struct tw__method *method, tw_memory *memory, size_t *scratch);
int tw__cpu_selector_create(void **state, const tw__pieces *pieces, const tw_select_params *params,
                            const struct tw__method *method, tw__stream *stream,
                            const tw__scratch *scratch);
void tw__cpu_selector_free(void *state);
/* A call that needs scratch begins: others may have used it since. */
void tw__cpu_begin_call(tw__cpu_selector *s);
/* The same for as many selectors as there is room for, one at least. Returns how many; *threads is
 * how many threads they take together. */
int tw__cpu_begin_batch(const tw__select_task *tasks, int most, int *threads);

/* Bytes of gradients, residuals, velocities and moments that a cache may hold: 1.5 M elements of f32
 * without momentum. One core with a third-level cache of 32 MiB, density 0.001, over the bare pass, as
 * cached and as uncached: n = 1,200,000 1.45x and 1.56x, 1,500,000 1.46x and 1.41x, 2,000,000 1.46x and
 * 1.34x. Tests set it to 0. */
extern int64_t tw__most_cached;

/* ---- feedback.c */

/* The next pass, or rescan, collects from magnitude bits `guess` on. */
void tw__feedback_begin(tw__cpu_selector *s, uint32_t guess);
/* acc = grad + residual over all n, of all tasks in one pass, each begun. info->bad_index gets the
 * index of the first NaN or infinity, with everything as before, or -1. */
void tw__feedback_fold(tw__select_task *tasks, int count, int threads);
/* Take the pass back. */
void tw__feedback_unfold(tw__cpu_selector *s);
/* Collect again, from lower down; acc stays as it is. */
void tw__feedback_rescan(tw__cpu_selector *s, uint32_t guess);
/* How many elements of acc have magnitude bits >= threshold. */
int64_t tw__feedback_count(tw__cpu_selector *s, uint32_t threshold);
/* Fills in val from acc; idx is given. */
void tw__feedback_gather(tw__cpu_selector *s, tw__entries *entries);
/* The first `count` chosen entries are to leave the residual, in the next pass. */
void tw__feedback_leave(tw__cpu_selector *s, int64_t count);
/* They leave now. */
void tw__feedback_settle(tw__cpu_selector *s);
/* The residual decays, after they have left. Returns the sum of what it lost. */
double tw__feedback_decay(tw__cpu_selector *s);
/* acc[lo .. lo+len-1], at most a block, as the pass left it (after) or would leave it. */
void tw__feedback_peek(tw__cpu_selector *s, int64_t lo, int64_t len, int after, float *out);
/* Sums over acc; only after a pass for a method with wants_sums. */
tw__sums tw__feedback_sums(const tw__cpu_selector *s);
/* Set the scale that brings the gradient down to clip_norm. */
void tw__feedback_clip(tw__cpu_selector *s);

/* ---- candidates.c */

int64_t tw__candidates_total(const tw__cpu_selector *s);
/* How many candidates have magnitude bits >= threshold. */
int64_t tw__candidates_above(const tw__cpu_selector *s, uint32_t threshold);
/* How many elements have, up to `most`, which is TW__MOST * k or less; any larger number where they
 * are more. Reads acc again where the candidates do not tell. */
int64_t tw__candidates_count(tw__cpu_selector *s, uint32_t threshold, int64_t most);
/* Make sure that the candidates hold the `want` largest (want <= 2k+1), or all non-zeros. */
void tw__candidates_ensure(tw__cpu_selector *s, int64_t want);
/* Whether the number of elements with magnitude bits >= threshold leaves k / TW__MOST ..
 * TW__MOST * k. */
int tw__candidates_far_off(tw__cpu_selector *s, uint32_t threshold);
/* Choose all from `threshold` on; only where the method is unbounded or they are known to be few. */
void tw__candidates_choose_all(tw__cpu_selector *s, uint32_t threshold);
/* Choose all from `threshold` on; the best k where that would be more than TW__MOST * k. */
void tw__candidates_choose_above(tw__cpu_selector *s, uint32_t threshold);
/* Choose the `count` largest; ties go to the smaller index. Returns the bits of the
 * smallest, 0 if there is none. */
uint32_t tw__candidates_choose_best(tw__cpu_selector *s, int64_t count);
/* Magnitude bits of at most `most` candidates, evenly spaced. Returns how many. */
int64_t tw__candidates_pluck(const tw__cpu_selector *s, uint32_t *bits, int64_t most);
/* Magnitude bits that `rank` entries will probably reach in the next step. */
uint32_t tw__candidates_learn(const tw__cpu_selector *s, int64_t rank);
/* Magnitude bits of rank `rank` among n, estimated from a sample of acc. */
uint32_t tw__candidates_sample(tw__cpu_selector *s, double rank, int after);

#endif
