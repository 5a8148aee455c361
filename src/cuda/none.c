/* none.c - stands in for the GPU where there was no nvcc; nothing can be created, so nothing else is
 * ever called with a selector */
#include "base/error.h"
#include "cuda/device.h"

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

void tw__device_forget(tw__device_selector *d) {
    (void)d;
}

int tw_cuda_accumulate(float *sum, const float *add, int64_t n, void *stream) {
    (void)sum, (void)add, (void)n, (void)stream;
    return NONE;
}

int tw_cuda_device(int ordinal, const char **name) {
    (void)ordinal, (void)name;
    return NONE;
}
