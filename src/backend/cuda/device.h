/* device.h - the GPU's part of selection, as the rest of the library calls it
 *
 * A tw__device_selector does on one GPU what feedback.c, candidates.c and select/ do on the CPU,
 * with the same results bit for bit. Work is queued on a stream; nothing here waits for the GPU but
 * what says so. Without nvcc, none.c stands in: it refuses to create one.
 *
 *   selector.cu  create, run, wait, end a step, free: the host's side
 *   fold.cu      the pass over n: acc = g + e, collecting candidates; sums
 *   choose.cu    the choice among the candidates, straight; choose_any.cuh in all cases
 *   draw.cu      random
 *   sample.cu    a threshold from a sample: the first guess, and dgc
 *   scatter.cu   what was sent leaves the residual
 *   lane.cu      groups: what comes before and after an exchange
 *   lists.cu     groups: work on lists of entries, for exchanges
 *   wire.cu      groups: entries in wire formats
 *   dense.cu     groups: whole vectors, for the dense exchange
 *   carrier.c    groups: entries from GPU to GPU
 *   step.cuh     what these share in device memory
 *
 * The residual has two copies: a step reads one and writes the other, so that undoing it costs
 * nothing. On a GPU this moves no byte more than adding in place. */
#ifndef TW_CUDA_DEVICE_H
#define TW_CUDA_DEVICE_H

#include "exchange/entries.h"
#include "thinwire.h"
#include "wire/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw__device_selector tw__device_selector;

/* A GPU of this number exists. Errors: TW_ERR_DEVICE. */
int tw__device_check(int ordinal);
/* The pointer is memory of that GPU, aligned to elements of this size. Errors: TW_ERR_DEVICE. */
int tw__device_pointer(const void *pointer, const char *name, int ordinal, size_t element);

/* params are resolved; k_max is the largest k of all steps. */
int tw__device_memory(int64_t n, int64_t k_max, const tw_select_params *params, tw_memory *memory);
int tw__device_create(tw__device_selector **selector, int64_t n, int64_t k_max,
                      const tw_select_params *params);
void tw__device_free(tw__device_selector *d);

/* What the host knows of a step. */
typedef struct tw__device_plan {
    int64_t step;
    int64_t k, next_k;        /* of this step and the next */
    int k_changed, k_changes; /* since the step before; until the next */
} tw__device_plan;

/* Queue one step. sparse gets the arrays, and -1: how many is known after tw__device_wait. */
int tw__device_run(tw__device_selector *d, const void *grad, const tw__device_plan *plan,
                   tw_sparse *sparse);
/* Wait for the step that was queued last: fills in count, candidates, rescans, threshold and
 * bad_index. Where that is not -1, the step changed nothing, even if it was committed. */
int tw__device_wait(tw__device_selector *d, tw_select_info *info);
/* The step counts: what was selected has left the residual. Without this, it did not happen. */
int tw__device_commit(tw__device_selector *d);
/* The same for a part of the selection, idx[count] in device memory. Waits.
 * Errors: TW_ERR_INDEX, the step stays open. */
int tw__device_commit_part(tw__device_selector *d, const int32_t *idx, int64_t count);

/* Copies of a whole vector, float[n] in the host's memory. Waits. */
typedef enum { TW__RESIDUAL, TW__VELOCITY } tw__device_vector;
int tw__device_get(tw__device_selector *d, tw__device_vector which, float *to);
int tw__device_set(tw__device_selector *d, tw__device_vector which, const float *from);
/* Thresholds are learned anew. */
int tw__device_forget(tw__device_selector *d);
/* And all vectors are zero. */
int tw__device_reset(tw__device_selector *d);
/* What reuse goes by. Both wait. */
int tw__device_learned(tw__device_selector *d, float *threshold, int64_t *age);
int tw__device_learn(tw__device_selector *d, float threshold, int64_t age);

/* ---- lane.cu: groups */

/* A stream of a group's own. */
typedef struct tw__device_stream tw__device_stream;
int tw__stream_create(tw__device_stream **lane, int ordinal);
void tw__stream_free(tw__device_stream *l);
void *tw__stream_native(const tw__device_stream *l);
int tw__stream_wait(tw__device_stream *l);
/* Queue a copy between any two memories. */
int tw__stream_copy(tw__device_stream *l, void *to, const void *from, size_t bytes);
/* The host's memory that a GPU reads and writes at full speed; NULL when there is none. */
void *tw__stream_pinned(tw__device_stream *l, size_t bytes);
void tw__stream_unpin(void *memory);
int tw__stream_alloc(tw__device_stream *l, void **memory, size_t bytes);
void tw__stream_release(void *memory);

/* Remember where the caller's stream is now; the event is made when it is NULL. */
int tw__stream_mark(tw__device_stream *l, void *caller, void **event);
/* What is queued from here on waits until the caller's stream has come there. */
int tw__stream_follow(tw__device_stream *l, void *event);
/* 1: the stream has come there; 0: not yet; negative: it failed. */
int tw__stream_reached(void *event);
void tw__stream_forget(void *event);

/* The selector's steps are run between begin and end: those of small tensors are queued side by
 * side, the last of them by end. What was not queued by then is forgotten at the next begin. */
void tw__device_join(tw__device_selector *d, tw__device_stream *l);
int tw__stream_begin(tw__device_stream *l);
int tw__stream_end(tw__device_stream *l);
/* How long that took the GPU; to be asked for after a wait. */
int tw__stream_took(tw__device_stream *l, double *seconds);

/* Queue a copy of the selection, with indices from `base` on, to the GPU's memory. */
int tw__device_pack(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to);
/* The same to pinned memory. */
int tw__device_fetch(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to);
/* What an exchange leaves for a tensor; see tw__job. Indices start at `base`. */
typedef struct tw__device_outcome {
    int64_t base;
    int64_t selected;
    int there;     /* the lists lie on the GPU, else in pinned memory */
    int left_more; /* see tw__job */
    tw__list left, kept, result;
    float divisor;
    int32_t *idx; /* the result, in the GPU's memory */
    float *val;
    float *out; /* or NULL */
} tw__device_outcome;
/* Queue the end of the step. */
int tw__device_apply(tw__device_selector *d, const tw__device_outcome *o);
/* See tw__selector_overflows. Waits. */
int tw__device_overflows(tw__device_selector *d, const tw__list *kept, const tw__list *sent,
                         int64_t base, int *yes);
/* acc at the indices of a list, to values[list->count], both in pinned memory. Waits. */
int tw__device_gather(tw__device_selector *d, const tw__list *list, int64_t base, float *values);
/* One element of acc. Waits. */
int tw__device_peek(tw__device_selector *d, int64_t index, float *value);

/* ---- lists.cu: entries on a GPU */

typedef struct tw__device_lists tw__device_lists;
extern const tw__list_calls tw__lists_cuda;
/* wire.cu: messages there; context: tw__device_lists. */
extern const tw__wire_calls tw__wire_cuda;
/* For lists of `most` entries in all. Where it fails, what was made is
 * there to be freed. */
int tw__device_lists_create(tw__device_lists **lists, tw__device_stream *lane, int64_t most);
void tw__device_lists_free(tw__device_lists *d);
size_t tw__device_lists_memory(int64_t most);

/* ---- dense.cu: whole vectors on a GPU. All wait. */

/* As floats. */
int tw__device_widen(tw__device_lists *d, float *to, const void *from, int type, int64_t n);
/* The first NaN or infinity, -1 if there is none. */
int tw__device_find_bad(tw__device_lists *d, const void *x, int type, int64_t n, int64_t *bad);
/* own[n] becomes the sum, divided, over all ranks, in their order: rank r's values lie at
 * received + r * stride. */
int tw__device_sum(tw__device_lists *d, float *own, const float *received, int64_t stride, int rank,
                   int nranks, int64_t n, float divisor);

#ifdef __cplusplus
}
#endif

#endif
