/* bench_device_cuda.c - GPU 0: vectors in its memory, times by its events
 *
 *     host:    queue  spin  begin  work  end   | wait for end
 *     stream:         ~~~~~~~~~~~  work  ~~~   |
 *
 * The spin is a bare pass over vectors that nobody else uses. It keeps the GPU busy until all of
 * the work is queued, so that the host's launches do not show up in the times, and it leaves the
 * same in the L2 cache before everything that is timed: nothing of the work's own vectors.
 */
#include "bench/bench_device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

#define ORDINAL 0 /* CUDA_VISIBLE_DEVICES chooses which one that is */

/* 768 MiB to move: 0.2 ms at the 4 TB/s of an H200. A launch takes the host some 5 us, a step has
 * up to six. */
#define SPIN_ELEMENTS (64 << 20)
#define BUSY_SPINS 10 /* 2 ms, in which the host starts all tensors of a group */

typedef struct cuda_own {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *typed;     /* [n] the gradient as f16 or bf16; NULL for f32 */
    float *values;   /* [n] the same as float32 */
    float *sum;      /* of the bare pass: e[n], with adamw then m[n] and v[n], each aligned */
    float *spin_sum; /* [SPIN_ELEMENTS] */
    float *spin_add; /* [SPIN_ELEMENTS] zeros */
} cuda_own;          /* all but the stream: for n > 0 alone */

/* Leave the function with CUDA's error. */
#define TRY_CUDA(call)                                                                             \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            return error_;                                                                         \
    } while (0)

static int checked(const bench_device *device, const char *doing, cudaError_t error) {
    if (error == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) {
        return error_report("%s: the GPU is out of memory; try a smaller --n%s", doing,
                            device->n > 0 ? "" : " or fewer --ranks");
    }
    return error_report("%s: %s", doing, cudaGetErrorString(error));
}

static size_t float_bytes(const bench_device *device) {
    return (size_t)device->n * sizeof(float);
}

static size_t typed_bytes(const bench_device *device) {
    return (size_t)device->n * (device->type == TW_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* From one sum of the bare pass to the next, in elements. */
static int64_t stride_of(const bench_device *device) {
    return (device->n + 63) / 64 * 64;
}

static size_t sum_bytes(const bench_device *device) {
    return (size_t)stride_of(device) * sizeof(float) * (device->adamw ? 3 : 1);
}

static cudaError_t obtain_zeros(float **array, size_t bytes, cudaStream_t stream) {
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    *array = memory;
    return error == cudaSuccess ? cudaMemsetAsync(memory, 0, bytes, stream) : error;
}

/* For gradients, the bare pass and times. */
static cudaError_t obtain_vectors(const bench_device *device, cuda_own *own) {
    size_t spin_bytes = (size_t)SPIN_ELEMENTS * sizeof(float);
    TRY_CUDA(cudaEventCreate(&own->begin));
    TRY_CUDA(cudaEventCreate(&own->end));
    TRY_CUDA(obtain_zeros(&own->sum, sum_bytes(device), own->stream));
    TRY_CUDA(obtain_zeros(&own->values, float_bytes(device), own->stream));
    TRY_CUDA(obtain_zeros(&own->spin_sum, spin_bytes, own->stream));
    TRY_CUDA(obtain_zeros(&own->spin_add, spin_bytes, own->stream));
    if (device->type != TW_F32)
        TRY_CUDA(cudaMalloc(&own->typed, typed_bytes(device)));
    return cudaStreamSynchronize(own->stream);
}

static cudaError_t obtain(const bench_device *device, cuda_own *own) {
    TRY_CUDA(cudaSetDevice(ORDINAL));
    TRY_CUDA(cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking));
    return device->n > 0 ? obtain_vectors(device, own) : cudaSuccess;
}

static void cuda_close(bench_device *device) {
    cuda_own *own = device->own;
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
    device->own = NULL;
}

static int cuda_open(bench_device *device) {
    const char *name;
    TW_TRY(error_check("preparing", tw_cuda_device(ORDINAL, &name)));
    snprintf(device->name, sizeof device->name, "%s", name);
    cuda_own *own = calloc(1, sizeof *own);
    if (own == NULL)
        return error_report("not enough memory");
    device->own = own;
    int status = checked(device, "preparing the GPU", obtain(device, own));
    if (status != STATUS_OK) {
        cuda_close(device);
        return status;
    }
    device->arch = "cuda";
    device->threads = 0;
    device->stream = own->stream;
    return STATUS_OK;
}

static cudaError_t copy(bench_device *device, void *to, const void *from, size_t bytes,
                        enum cudaMemcpyKind direction) {
    const cuda_own *own = device->own;
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, direction, own->stream));
    return cudaStreamSynchronize(own->stream);
}

static int cuda_map(bench_device *device, void *host, size_t bytes, void **mapped) {
    (void)host;
    *mapped = NULL;
    return checked(device, "allocating a vector", cudaMalloc(mapped, bytes));
}

static void cuda_unmap(bench_device *device, void *mapped) {
    (void)device;
    (void)cudaFree(mapped);
}

static int cuda_upload(bench_device *device, void *mapped, const void *from, size_t bytes) {
    return checked(device, "copying to the GPU",
                   copy(device, mapped, from, bytes, cudaMemcpyHostToDevice));
}

static int cuda_download(bench_device *device, void *to, const void *mapped, size_t bytes) {
    return checked(device, "copying from the GPU",
                   copy(device, to, mapped, bytes, cudaMemcpyDeviceToHost));
}

static int cuda_upload_gradient(bench_device *device, const gradient *made, gradient *uploaded) {
    const cuda_own *own = device->own;
    cudaError_t error =
        copy(device, own->values, made->values, float_bytes(device), cudaMemcpyHostToDevice);
    if (error == cudaSuccess && own->typed != NULL)
        error = copy(device, own->typed, made->typed, typed_bytes(device), cudaMemcpyHostToDevice);
    *uploaded =
        (gradient){.typed = own->typed != NULL ? own->typed : own->values, .values = own->values};
    return checked(device, "copying a gradient to the GPU", error);
}

static int cuda_bare_clear(bench_device *device) {
    const cuda_own *own = device->own;
    return checked(device, "clearing",
                   cudaMemsetAsync(own->sum, 0, sum_bytes(device), own->stream));
}

static int cuda_bare_pass(bench_device *device, const gradient *uploaded) {
    const cuda_own *own = device->own;
    float *e = own->sum, *m = e + stride_of(device), *v = m + stride_of(device);
    int status = device->adamw
                     ? tw_cuda_accumulate_adamw(e, m, v, uploaded->values, device->n, own->stream)
                     : tw_cuda_accumulate(e, uploaded->values, device->n, own->stream);
    return error_check("timing the bare pass", status);
}

static int spin(bench_device *device) {
    const cuda_own *own = device->own;
    return error_check(
        "timing", tw_cuda_accumulate(own->spin_sum, own->spin_add, SPIN_ELEMENTS, own->stream));
}

static int cuda_keep_busy(bench_device *device) {
    for (int i = 0; i < BUSY_SPINS; i++)
        TW_TRY(spin(device));
    return STATUS_OK;
}

static int cuda_time(bench_device *device, const bench_device_work *works, int count, void *context,
                     double *us) {
    const cuda_own *own = device->own;
    float milliseconds = 0.0f;
    us[0] = 0.0;
    TW_TRY(spin(device));
    TW_TRY(checked(device, "timing", cudaEventRecord(own->begin, own->stream)));
    for (int i = 0; i < count; i++) {
        us[i] = 0.0;
        TW_TRY(works[i](context));
    }
    TW_TRY(checked(device, "timing", cudaEventRecord(own->end, own->stream)));
    TW_TRY(checked(device, "waiting for the GPU", cudaEventSynchronize(own->end)));
    TW_TRY(checked(device, "timing", cudaEventElapsedTime(&milliseconds, own->begin, own->end)));
    us[0] = 1e3 * (double)milliseconds;
    return STATUS_OK;
}

const bench_device_kind bench_device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .upload = cuda_upload,
    .download = cuda_download,
    .upload_gradient = cuda_upload_gradient,
    .bare_pass = cuda_bare_pass,
    .bare_clear = cuda_bare_clear,
    .time = cuda_time,
    .keep_busy = cuda_keep_busy,
};
