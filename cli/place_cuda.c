/* place_cuda.c - selection on GPU 0: vectors in its memory, times by its events
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
} cuda_own;

static int checked(const char *doing, cudaError_t error) {
    if (error == cudaSuccess) {
        return STATUS_OK;
    }
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) {
        return failure("%s: the GPU is out of memory; try a smaller --n", doing);
    }
    return failure("%s: %s", doing, cudaGetErrorString(error));
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

static cudaError_t obtain(const place *here, cuda_own *own) {
    size_t spin_bytes = (size_t)SPIN_ELEMENTS * sizeof(float);
    cudaError_t error = cudaSetDevice(ORDINAL);
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreate(&own->begin);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreate(&own->end);
    }
    if (error == cudaSuccess) {
        error = obtain_zeros(&own->sum, float_bytes(here), own->stream);
    }
    if (error == cudaSuccess) {
        error = obtain_zeros(&own->values, float_bytes(here), own->stream);
    }
    if (error == cudaSuccess) {
        error = obtain_zeros(&own->spin_sum, spin_bytes, own->stream);
    }
    if (error == cudaSuccess) {
        error = obtain_zeros(&own->spin_add, spin_bytes, own->stream);
    }
    if (error == cudaSuccess && here->type != TW_F32) {
        error = cudaMalloc(&own->typed, typed_bytes(here));
    }
    return error == cudaSuccess ? cudaStreamSynchronize(own->stream) : error;
}

static void cuda_close(place *here) {
    cuda_own *own = here->own;
    (void)cudaFree(own->typed);
    (void)cudaFree(own->values);
    (void)cudaFree(own->sum);
    (void)cudaFree(own->spin_sum);
    (void)cudaFree(own->spin_add);
    if (own->begin != NULL) {
        (void)cudaEventDestroy(own->begin);
    }
    if (own->end != NULL) {
        (void)cudaEventDestroy(own->end);
    }
    if (own->stream != NULL) {
        (void)cudaStreamDestroy(own->stream);
    }
    free(own);
    here->own = NULL;
}

static int cuda_open(place *here) {
    const char *name;
    int error = tw_cuda_device(ORDINAL, &name);
    if (error != TW_OK) {
        return library_failure("preparing", error);
    }
    snprintf(here->name, sizeof here->name, "%s", name);
    here->own = calloc(1, sizeof(cuda_own));
    if (here->own == NULL) {
        return failure("not enough memory");
    }
    cuda_own *own = here->own;
    int status = checked("preparing the GPU", obtain(here, own));
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

static int cuda_bring(place *here, const gradient *made, gradient *there) {
    const cuda_own *own = here->own;
    cudaError_t error =
        copy(here, own->values, made->values, float_bytes(here), cudaMemcpyHostToDevice);
    if (error == cudaSuccess && own->typed != NULL) {
        error = copy(here, own->typed, made->typed, typed_bytes(here), cudaMemcpyHostToDevice);
    }
    *there = (gradient){
        .typed = own->typed != NULL ? own->typed : own->values,
        .values = own->values,
    };
    return checked("copying a gradient to the GPU", error);
}

static int cuda_fetch(place *here, void *to, const void *from, size_t bytes) {
    cudaError_t error = copy(here, to, from, bytes, cudaMemcpyDeviceToHost);
    return checked("copying from the GPU", error);
}

static int cuda_bare_clear(place *here) {
    const cuda_own *own = here->own;
    return checked("clearing", cudaMemsetAsync(own->sum, 0, float_bytes(here), own->stream));
}

/* ---- Time ----------------------------------------------------------------------------------- */

static int cuda_bare_pass(place *here, const gradient *there) {
    const cuda_own *own = here->own;
    int error = tw_cuda_accumulate(own->sum, there->values, here->n, own->stream);
    return error == TW_OK ? STATUS_OK : library_failure("timing the bare pass", error);
}

static int spin(const cuda_own *own) {
    int error = tw_cuda_accumulate(own->spin_sum, own->spin_add, SPIN_ELEMENTS, own->stream);
    return error == TW_OK ? STATUS_OK : library_failure("timing", error);
}

static int cuda_time(place *here, const place_work *works, int count, void *context, double *us) {
    const cuda_own *own = here->own;
    int status = spin(own);
    if (status == STATUS_OK) {
        status = checked("timing", cudaEventRecord(own->begin, own->stream));
    }
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        us[i] = 0.0;
        status = works[i](context);
    }
    if (status == STATUS_OK) {
        status = checked("timing", cudaEventRecord(own->end, own->stream));
    }
    if (status == STATUS_OK) {
        status = checked("waiting for the GPU", cudaEventSynchronize(own->end));
    }
    float milliseconds = 0.0f;
    if (status == STATUS_OK) {
        status = checked("timing", cudaEventElapsedTime(&milliseconds, own->begin, own->end));
    }
    us[0] = 1e3 * (double)milliseconds;
    return status;
}

const place_kind place_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .bring = cuda_bring,
    .fetch = cuda_fetch,
    .bare_pass = cuda_bare_pass,
    .bare_clear = cuda_bare_clear,
    .time = cuda_time,
};
