/* place_cuda.c - GPU 0: vectors in its memory, times by its events
 *
 *     host:    queue  spin  begin  work  end   | wait for end
 *     stream:         ~~~~~~~~~~~  work  ~~~   |
 *
 * The spin is a bare pass over vectors that nobody else uses. It keeps the GPU busy until all of
 * the work is queued, so that the host's launches do not show up in the times, and it leaves the
 * same in the L2 cache before everything that is timed: nothing of the work's own vectors.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "errors.h"
#include "place.h"
#include "thinwire.h"

#define ORDINAL 0 /* CUDA_VISIBLE_DEVICES chooses which one that is */

/* 768 MiB to move: 0.2 ms at the 4 TB/s of an H200. A launch takes the host some 5 us, a step has
 * up to six. */
#define SPIN_ELEMENTS (64 << 20)

typedef struct cuda_own {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *typed;     /* [n] the gradient as f16 or bf16; NULL for f32 */
    float *values;   /* [n] the same as float32 */
    float *sum;      /* [n] of the bare pass */
    float *spin_sum; /* [SPIN_ELEMENTS] */
    float *spin_add; /* [SPIN_ELEMENTS] zeros */
} cuda_own;          /* all but the stream are there for n > 0 alone */

static int checked(const place *here, const char *doing, cudaError_t error) {
    if (error == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) {
        return place_failure(here, "%s: the GPU is out of memory; try a smaller --n%s", doing,
                             here->seat != NULL ? " or fewer --ranks" : "");
    }
    return place_failure(here, "%s: %s", doing, cudaGetErrorString(error));
}

/* ---- Open and close ------------------------------------------------------------------------- */

static size_t float_bytes(const place *here) {
    return (size_t)here->n * sizeof(float);
}

static size_t typed_bytes(const place *here) {
    return (size_t)here->n * (here->type == TW_F32 ? sizeof(float) : sizeof(uint16_t));
}

static cudaError_t obtain_zeros(float **array, size_t bytes, cudaStream_t stream) {
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    *array = memory;
    return error == cudaSuccess ? cudaMemsetAsync(memory, 0, bytes, stream) : error;
}

/* For bring, bare_pass and time. */
static cudaError_t obtain_vectors(const place *here, cuda_own *own) {
    size_t spin_bytes = (size_t)SPIN_ELEMENTS * sizeof(float);
    cudaError_t error = cudaEventCreate(&own->begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&own->end);
    if (error == cudaSuccess)
        error = obtain_zeros(&own->sum, float_bytes(here), own->stream);
    if (error == cudaSuccess)
        error = obtain_zeros(&own->values, float_bytes(here), own->stream);
    if (error == cudaSuccess)
        error = obtain_zeros(&own->spin_sum, spin_bytes, own->stream);
    if (error == cudaSuccess)
        error = obtain_zeros(&own->spin_add, spin_bytes, own->stream);
    if (error == cudaSuccess && here->type != TW_F32)
        error = cudaMalloc(&own->typed, typed_bytes(here));
    return error == cudaSuccess ? cudaStreamSynchronize(own->stream) : error;
}

static cudaError_t obtain(const place *here, cuda_own *own) {
    cudaError_t error = cudaSetDevice(ORDINAL);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking);
    return error == cudaSuccess && here->n > 0 ? obtain_vectors(here, own) : error;
}

static void cuda_close(place *here) {
    cuda_own *own = here->own;
    (void)cudaFree(own->typed);
    (void)cudaFree(own->values);
    (void)cudaFree(own->sum);
    (void)cudaFree(own->spin_sum);
    (void)cudaFree(own->spin_add);
    if (own->begin != NULL)
        (void)cudaEventDestroy(own->begin);
    if (own->end != NULL)
        (void)cudaEventDestroy(own->end);
    if (own->stream != NULL)
        (void)cudaStreamDestroy(own->stream);
    free(own);
    here->own = NULL;
}

static int cuda_open(place *here) {
    const char *name;
    int error = tw_cuda_device(ORDINAL, &name);
    if (error != TW_OK)
        return place_library_failure(here, "preparing", error);
    snprintf(here->name, sizeof here->name, "%s", name);
    here->own = calloc(1, sizeof(cuda_own));
    if (here->own == NULL)
        return place_failure(here, "not enough memory");
    cuda_own *own = here->own;
    int status = checked(here, "preparing the GPU", obtain(here, own));
    if (status != STATUS_OK) {
        cuda_close(here);
        return status;
    }
    here->arch = "cuda";
    here->threads = 0;
    here->stream = own->stream;
    return STATUS_OK;
}

/* ---- Vectors -------------------------------------------------------------------------------- */

static cudaError_t copy(place *here, void *to, const void *from, size_t bytes,
                        enum cudaMemcpyKind direction) {
    const cuda_own *own = here->own;
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, direction, own->stream);
    return error == cudaSuccess ? cudaStreamSynchronize(own->stream) : error;
}

static int cuda_mirror(place *here, void *host, size_t bytes, void **there) {
    (void)host;
    *there = NULL;
    return checked(here, "allocating a vector", cudaMalloc(there, bytes));
}

static void cuda_release(place *here, void *there) {
    (void)here;
    (void)cudaFree(there);
}

static int cuda_put(place *here, void *there, const void *from, size_t bytes) {
    cudaError_t error = copy(here, there, from, bytes, cudaMemcpyHostToDevice);
    return checked(here, "copying to the GPU", error);
}

static int cuda_fetch(place *here, void *to, const void *there, size_t bytes) {
    cudaError_t error = copy(here, to, there, bytes, cudaMemcpyDeviceToHost);
    return checked(here, "copying from the GPU", error);
}

static int cuda_bring(place *here, const gradient *made, gradient *there) {
    const cuda_own *own = here->own;
    cudaError_t error =
        copy(here, own->values, made->values, float_bytes(here), cudaMemcpyHostToDevice);
    if (error == cudaSuccess && own->typed != NULL)
        error = copy(here, own->typed, made->typed, typed_bytes(here), cudaMemcpyHostToDevice);
    *there = (gradient){
        .typed = own->typed != NULL ? own->typed : own->values,
        .values = own->values,
    };
    return checked(here, "copying a gradient to the GPU", error);
}

static int cuda_bare_clear(place *here) {
    const cuda_own *own = here->own;
    return checked(here, "clearing", cudaMemsetAsync(own->sum, 0, float_bytes(here), own->stream));
}

/* ---- Time ----------------------------------------------------------------------------------- */

static int cuda_bare_pass(place *here, const gradient *there) {
    const cuda_own *own = here->own;
    int error = tw_cuda_accumulate(own->sum, there->values, here->n, own->stream);
    return error == TW_OK ? STATUS_OK : place_library_failure(here, "timing the bare pass", error);
}

static int spin(const place *here) {
    const cuda_own *own = here->own;
    int error = tw_cuda_accumulate(own->spin_sum, own->spin_add, SPIN_ELEMENTS, own->stream);
    return error == TW_OK ? STATUS_OK : place_library_failure(here, "timing", error);
}

static int cuda_time(place *here, const place_work *works, int count, void *context, double *us) {
    const cuda_own *own = here->own;
    int status = spin(here);
    if (status == STATUS_OK)
        status = checked(here, "timing", cudaEventRecord(own->begin, own->stream));
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        us[i] = 0.0;
        status = works[i](context);
    }
    if (status == STATUS_OK)
        status = checked(here, "timing", cudaEventRecord(own->end, own->stream));
    if (status == STATUS_OK)
        status = checked(here, "waiting for the GPU", cudaEventSynchronize(own->end));
    float milliseconds = 0.0f;
    if (status == STATUS_OK)
        status = checked(here, "timing", cudaEventElapsedTime(&milliseconds, own->begin, own->end));
    us[0] = 1e3 * (double)milliseconds;
    return status;
}

const place_kind place_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .mirror = cuda_mirror,
    .release = cuda_release,
    .put = cuda_put,
    .fetch = cuda_fetch,
    .bring = cuda_bring,
    .bare_pass = cuda_bare_pass,
    .bare_clear = cuda_bare_clear,
    .time = cuda_time,
};
