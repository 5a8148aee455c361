/* backend_cuda.h - the calls of the CUDA backend; backend/backend.h says what each does
 *
 * Work is queued on a stream; nothing here waits for the GPU but what says so. Selections are bit for
 * bit those of the CPU.
 *
 *   backend_cuda.c  the row
 *   guard.cu        which GPU a thread works on
 *   stream.cu       streams, events, memory
 *   selector.cu     a selector, the host's part: memory, create, free, state
 *   queue.cu        its steps: launches, alone or with those of other tensors; wait, commit, undo
 *   fold.cu         the pass over n: acc = g + e, collecting candidates; sums
 *   choose.cu       the choice among the candidates, straight; choose_any.cuh in all cases
 *   draw.cu         random
 *   sample.cu       a threshold from a sample: the first guess, and dgc
 *   scatter.cu      what was sent leaves the residual
 *   apply.cu        groups: selections to entries, and what an exchange leaves to residual and result
 *   lists.cu        groups: work on lists of entries
 *   wire.cu         groups: entries in wire formats
 *   dense.cu        groups: whole vectors
 *   step.cuh        what the kernels of a step share in device memory
 *   teams.h         which blocks of a launch choose for which steps
 *
 * The residual has two copies, and so have moments: a step reads one and writes the other, so that
 * undoing it costs nothing. On a GPU this moves no byte more than adding in place. */
#ifndef TW_BACKEND_CUDA_H
#define TW_BACKEND_CUDA_H

#include "backend/backend.h"
#include "exchange/job.h"
#include "wire/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- stream.cu */

int tw__cuda_check_device(int ordinal);
int tw__cuda_check_pointer(const void *pointer, const char *field, int ordinal, size_t element);
int tw__cuda_device_name(int ordinal, const char **name);
int tw__cuda_stream_create(tw__stream **stream, int ordinal, tw__check *check, void *context);
void tw__cuda_stream_free(tw__stream *s);
void tw__cuda_stream_adopt(const tw__stream *s);
void *tw__cuda_stream_native(const tw__stream *s);
int tw__cuda_stream_wait(tw__stream *s);
void tw__cuda_stream_give_up(tw__stream *s, int for_good);
int tw__cuda_stream_follow(tw__stream *s, void *event);
int tw__cuda_event_record(tw__stream *s, void *native, void **event);
int tw__cuda_event_reached(const tw__stream *s, void *event);
void tw__cuda_event_free(tw__stream *s, void *event);
int tw__cuda_alloc(tw__stream *s, void **memory, size_t bytes);
void tw__cuda_free(tw__stream *s, void *memory);
void *tw__cuda_host_alloc(tw__stream *s, size_t bytes);
void tw__cuda_host_free(tw__stream *s, void *memory);
int tw__cuda_copy(tw__stream *s, void *to, const void *from, size_t bytes);

/* ---- selector.cu, queue.cu */

int tw__cuda_batch_begin(tw__stream *s);
int tw__cuda_batch_end(tw__stream *s);
int tw__cuda_batch_seconds(tw__stream *s, double *seconds);
int tw__cuda_selector_memory(int64_t n, int pieces, const tw_select_params *params,
                             const struct tw__method *method, tw_memory *memory, size_t *scratch);
int tw__cuda_selector_create(void **state, const tw__pieces *pieces, const tw_select_params *params,
                             const struct tw__method *method, tw__stream *stream,
                             const tw__scratch *scratch);
void tw__cuda_selector_free(void *state);
int tw__cuda_run(tw__select_task *tasks, int count);
int tw__cuda_wait(tw__select_task *tasks, int count);
int tw__cuda_info(const void *state, tw_select_info *info);
int tw__cuda_commit(void *state, const int32_t *idx, int64_t count);
void tw__cuda_undo(void *state, const void *const *grads);
int tw__cuda_decay(void *state, double *lost);
int tw__cuda_get(void *state, tw__vector which, int64_t first, int64_t count, float *to);
int tw__cuda_set(void *state, tw__vector which, const float *from);
int tw__cuda_get_learned(void *state, tw__learned *learned);
int tw__cuda_set_learned(void *state, const tw__learned *learned);
int tw__cuda_reset(void *state);

/* ---- fold.cu */

int tw__cuda_accumulate(float *sum, const float *add, int64_t n, void *native);
int tw__cuda_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n,
                              void *native);

/* ---- apply.cu */

int tw__cuda_pack(void *state, int64_t selected, int64_t most, int64_t base, int on_device,
                  tw__entry *to, int64_t *count);
int tw__cuda_apply(void *state, const tw__outcome *outcome);
int tw__cuda_subtract(void *state, const tw_sparse *result, float *const *params);
int tw__cuda_gather(void *state, const tw__list *list, int64_t base, float *values);
int tw__cuda_peek(void *state, int64_t index, float *value);
int tw__cuda_overflows(void *state, const tw__list *kept, const tw__list *sent, int64_t base,
                       int *yes);

/* ---- lists.cu, wire.cu, dense.cu: calls with one context */

extern const tw__list_calls tw__lists_cuda;
extern const tw__wire_calls tw__wire_cuda;
extern const tw__dense_calls tw__dense_cuda;
size_t tw__cuda_lists_memory(int64_t entries, int runs);
int tw__cuda_lists_create(void **context, tw__stream *stream, int64_t entries, int runs);
void tw__cuda_lists_free(void *context);

#ifdef __cplusplus
}
#endif

#endif
