/* backend.c - the table of backends, and the public calls about devices */
#include "backend/backend.h"

#include "base/error.h"

#ifdef TW_HAVE_CUDA
extern const tw__backend tw__backend_cuda;
#endif

static const tw__backend *const backends[] = {
    &tw__backend_cpu,
#ifdef TW_HAVE_CUDA
    &tw__backend_cuda,
#endif
};
#define BACKENDS ((int)(sizeof backends / sizeof backends[0]))

int tw__backend_find(int device, const tw__backend **backend) {
    if (device < TW_CPU || device > TW_CUDA)
        return tw__fail(TW_ERR_PARAM, "device: %d; accepted is %d .. %d", device, TW_CPU, TW_CUDA);
    for (int i = 0; i < BACKENDS; i++) {
        *backend = backends[i];
        if (backends[i]->device == device)
            return TW_OK;
    }
    return tw__fail(TW_ERR_DEVICE, "device: this build has no CUDA; build it where nvcc is found");
}

int tw_cuda_device(int ordinal, const char **name) {
    const tw__backend *backend = NULL;
    TW_TRY(tw__backend_find(TW_CUDA, &backend));
    TW_TRY(backend->check_device(ordinal));
    return backend->device_name(ordinal, name);
}

static int check_size(int64_t n) {
    if (n >= 1 && n <= INT32_MAX)
        return TW_OK;
    return tw__fail(TW_ERR_SIZE, "n: %lld; accepted is 1 .. %d", (long long)n, INT32_MAX);
}

int tw_cuda_accumulate(float *sum, const float *add, int64_t n, void *stream) {
    const tw__backend *backend = NULL;
    TW_TRY(tw__backend_find(TW_CUDA, &backend));
    TW_REQUIRE(sum, "sum");
    TW_REQUIRE(add, "add");
    TW_TRY(check_size(n));
    return backend->accumulate(sum, add, n, stream);
}

int tw_cuda_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n,
                             void *stream) {
    const tw__backend *backend = NULL;
    TW_TRY(tw__backend_find(TW_CUDA, &backend));
    TW_REQUIRE(e, "e");
    TW_REQUIRE(m, "m");
    TW_REQUIRE(v, "v");
    TW_REQUIRE(g, "g");
    TW_TRY(check_size(n));
    return backend->accumulate_adamw(e, m, v, g, n, stream);
}
