/* none.c - stands in for the GPU where there was no nvcc; nothing can be created, so nothing else is
 * ever called with a selector */
#include "base/error.h"
#include "backend/cuda/device.h"

#define NONE tw__fail(TW_ERR_DEVICE, "device: this build has no CUDA; build it where nvcc is found")

int tw__device_check(int ordinal) {
    (void)ordinal;
    return NONE;
}

int tw__device_pointer(const void *pointer, const char *name, int ordinal, size_t element) {
    (void)pointer, (void)name, (void)ordinal, (void)element;
    return NONE;
}

int tw__device_memory(int64_t n, int64_t k_max, const tw_select_params *params, tw_memory *memory) {
    (void)n, (void)k_max, (void)params, (void)memory;
    return NONE;
}

int tw__device_create(tw__device_selector **selector, int64_t n, int64_t k_max,
                      const tw_select_params *params) {
    (void)selector, (void)n, (void)k_max, (void)params;
    return NONE;
}

void tw__device_free(tw__device_selector *d) {
    (void)d;
}

int tw__device_run(tw__device_selector *d, const void *grad, const tw__device_plan *plan,
                   tw_sparse *sparse) {
    (void)d, (void)grad, (void)plan, (void)sparse;
    return NONE;
}

int tw__device_wait(tw__device_selector *d, tw_select_info *info) {
    (void)d, (void)info;
    return NONE;
}

int tw__device_commit(tw__device_selector *d) {
    (void)d;
    return NONE;
}

int tw__device_commit_part(tw__device_selector *d, const int32_t *idx, int64_t count) {
    (void)d, (void)idx, (void)count;
    return NONE;
}

int tw__device_get(tw__device_selector *d, tw__device_vector which, float *to) {
    (void)d, (void)which, (void)to;
    return NONE;
}

int tw__device_set(tw__device_selector *d, tw__device_vector which, const float *from) {
    (void)d, (void)which, (void)from;
    return NONE;
}

int tw__device_forget(tw__device_selector *d) {
    (void)d;
    return NONE;
}

int tw__device_reset(tw__device_selector *d) {
    (void)d;
    return NONE;
}

int tw__device_learned(tw__device_selector *d, float *threshold, int64_t *age) {
    (void)d, (void)threshold, (void)age;
    return NONE;
}

int tw__device_learn(tw__device_selector *d, float threshold, int64_t age) {
    (void)d, (void)threshold, (void)age;
    return NONE;
}

int tw__stream_create(tw__device_stream **lane, int ordinal) {
    (void)lane, (void)ordinal;
    return NONE;
}

void tw__stream_free(tw__device_stream *l) {
    (void)l;
}

void *tw__stream_native(const tw__device_stream *l) {
    (void)l;
    return NULL;
}

int tw__stream_wait(tw__device_stream *l) {
    (void)l;
    return NONE;
}

int tw__stream_copy(tw__device_stream *l, void *to, const void *from, size_t bytes) {
    (void)l, (void)to, (void)from, (void)bytes;
    return NONE;
}

void *tw__stream_pinned(tw__device_stream *l, size_t bytes) {
    (void)l, (void)bytes;
    return NULL;
}

void tw__stream_unpin(void *memory) {
    (void)memory;
}

int tw__stream_alloc(tw__device_stream *l, void **memory, size_t bytes) {
    (void)l, (void)memory, (void)bytes;
    return NONE;
}

void tw__stream_release(void *memory) {
    (void)memory;
}

int tw__stream_mark(tw__device_stream *l, void *caller, void **event) {
    (void)l, (void)caller, (void)event;
    return NONE;
}

int tw__stream_follow(tw__device_stream *l, void *event) {
    (void)l, (void)event;
    return NONE;
}

void tw__stream_forget(void *event) {
    (void)event;
}

int tw__stream_reached(void *event) {
    (void)event;
    return NONE;
}

int tw__stream_begin(tw__device_stream *l) {
    (void)l;
    return NONE;
}

int tw__stream_end(tw__device_stream *l) {
    (void)l;
    return NONE;
}

int tw__stream_took(tw__device_stream *l, double *seconds) {
    (void)l, (void)seconds;
    return NONE;
}

void tw__device_join(tw__device_selector *d, tw__device_stream *l) {
    (void)d, (void)l;
}

int tw__device_pack(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to) {
    (void)d, (void)count, (void)base, (void)to;
    return NONE;
}

int tw__device_fetch(tw__device_selector *d, int64_t count, int64_t base, tw__entry *to) {
    (void)d, (void)count, (void)base, (void)to;
    return NONE;
}

int tw__device_apply(tw__device_selector *d, const tw__device_outcome *o) {
    (void)d, (void)o;
    return NONE;
}

int tw__device_overflows(tw__device_selector *d, const tw__list *kept, const tw__list *sent,
                         int64_t base, int *yes) {
    (void)d, (void)kept, (void)sent, (void)base, (void)yes;
    return NONE;
}

int tw__device_gather(tw__device_selector *d, const tw__list *list, int64_t base, float *values) {
    (void)d, (void)list, (void)base, (void)values;
    return NONE;
}

int tw__device_peek(tw__device_selector *d, int64_t index, float *value) {
    (void)d, (void)index, (void)value;
    return NONE;
}

const tw__list_calls tw__lists_cuda = {0};
const tw__wire_calls tw__wire_cuda = {0};

int tw__device_lists_create(tw__device_lists **lists, tw__device_stream *lane, int64_t most) {
    (void)lists, (void)lane, (void)most;
    return NONE;
}

void tw__device_lists_free(tw__device_lists *d) {
    (void)d;
}

size_t tw__device_lists_memory(int64_t most) {
    (void)most;
    return 0;
}

int tw__device_widen(tw__device_lists *d, float *to, const void *from, int type, int64_t n) {
    (void)d, (void)to, (void)from, (void)type, (void)n;
    return NONE;
}

int tw__device_find_bad(tw__device_lists *d, const void *x, int type, int64_t n, int64_t *bad) {
    (void)d, (void)x, (void)type, (void)n, (void)bad;
    return NONE;
}

int tw__device_sum(tw__device_lists *d, float *own, const float *received, int64_t stride, int rank,
                   int nranks, int64_t n, float divisor) {
    (void)d, (void)own, (void)received, (void)stride, (void)rank, (void)nranks, (void)n;
    (void)divisor;
    return NONE;
}

int tw_cuda_accumulate(float *sum, const float *add, int64_t n, void *stream) {
    (void)sum, (void)add, (void)n, (void)stream;
    return NONE;
}

int tw_cuda_device(int ordinal, const char **name) {
    (void)ordinal, (void)name;
    return NONE;
}
