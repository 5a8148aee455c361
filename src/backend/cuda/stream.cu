/* stream.cu - GPUs, their memory, and the order of work on them
 *
 * A group has a stream of its own. It follows the caller's stream, which makes gradients ready, and is
 * waited for before a call returns. */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/stream.cuh"

#include <cstdlib>

using namespace tw;

/* ---- devices */

int tw__cuda_check_device(int ordinal) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return tw__fail(TW_ERR_DEVICE, "device: no GPU can be used here: %s",
                        error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    }
    if (ordinal < 0 || ordinal >= count)
        return tw__fail(TW_ERR_DEVICE, "ordinal: %d; accepted is 0 .. %d", ordinal, count - 1);
    return TW_OK;
}

int tw__cuda_check_pointer(const void *pointer, const char *field, int ordinal, size_t element) {
    cudaPointerAttributes at = {};
    if (cudaPointerGetAttributes(&at, pointer) != cudaSuccess) {
        (void)cudaGetLastError();
        at.type = cudaMemoryTypeUnregistered;
    }
    if (at.type != cudaMemoryTypeDevice && at.type != cudaMemoryTypeManaged)
        return tw__fail(TW_ERR_DEVICE, "%s: is memory of the host; give memory of GPU %d", field,
                        ordinal);
    if (at.type == cudaMemoryTypeDevice && at.device != ordinal)
        return tw__fail(TW_ERR_DEVICE, "%s: is memory of GPU %d; give memory of GPU %d", field,
                        at.device, ordinal);
    if (reinterpret_cast<uintptr_t>(pointer) % element != 0)
        return tw__fail(TW_ERR_DEVICE, "%s: is not aligned to its elements of %zu bytes", field,
                        element);
    return TW_OK;
}

int tw__cuda_device_name(int ordinal, const char **name) {
    static thread_local cudaDeviceProp properties;
    TW_TRY(failure(cudaGetDeviceProperties(&properties, ordinal), "ordinal"));
    if (name != nullptr)
        *name = properties.name;
    return TW_OK;
}

/* ---- streams */

int tw__cuda_stream_create(tw__stream **stream, int ordinal) {
    TW_TRY(tw__cuda_check_device(ordinal));
    Guard guard(ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    tw__stream *s = static_cast<tw__stream *>(calloc(1, sizeof *s));
    if (s == nullptr)
        return tw__fail(TW_ERR_MEMORY, "no memory for a stream");
    s->ordinal = ordinal;
    int least = 0, first = 0; /* before what the caller computes meanwhile: others wait for it */
    (void)cudaDeviceGetStreamPriorityRange(&least, &first);
    cudaError_t error = cudaStreamCreateWithPriority(&s->native, cudaStreamNonBlocking, first);
    if (error == cudaSuccess)
        error = cudaEventCreate(&s->begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&s->end);
    if (error != cudaSuccess) {
        tw__cuda_stream_free(s);
        return failure(error, "creating a stream");
    }
    *stream = s;
    return TW_OK;
}

void tw__cuda_stream_free(tw__stream *s) {
    if (s == nullptr)
        return;
    Guard guard(s->ordinal);
    tw__cuda_event_free(s->begin);
    tw__cuda_event_free(s->end);
    if (s->native != nullptr)
        (void)cudaStreamDestroy(s->native);
    free(s);
}

void *tw__cuda_stream_native(const tw__stream *s) {
    return s->native;
}

int tw__cuda_stream_wait(tw__stream *s) {
    Guard guard(s->ordinal);
    return failure(cudaStreamSynchronize(s->native), "waiting for the stream");
}

int tw__cuda_copy(tw__stream *s, void *to, const void *from, size_t bytes) {
    Guard guard(s->ordinal);
    return failure(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->native),
                   "copying between GPU and host");
}

void *tw__cuda_host_alloc(tw__stream *s, size_t bytes) {
    void *memory = nullptr;
    Guard guard(s->ordinal);
    if (cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable) != cudaSuccess)
        (void)cudaGetLastError();
    return memory;
}

void tw__cuda_host_free(void *memory) {
    (void)cudaFreeHost(memory);
}

/* ---- what the caller's stream has made ready */

int tw__cuda_event_record(tw__stream *s, void *caller, void **event) {
    Guard guard(s->ordinal);
    cudaEvent_t mark = static_cast<cudaEvent_t>(*event);
    if (mark == nullptr) {
        TW_TRY(
            failure(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "creating an event"));
        *event = mark;
    }
    return failure(cudaEventRecord(mark, static_cast<cudaStream_t>(caller)),
                   "marking the caller's stream");
}

int tw__cuda_stream_follow(tw__stream *s, void *event) {
    Guard guard(s->ordinal);
    return failure(cudaStreamWaitEvent(s->native, static_cast<cudaEvent_t>(event), 0),
                   "following the caller's stream");
}

int tw__cuda_event_reached(void *event) {
    cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (error != cudaErrorNotReady)
        return error == cudaSuccess ? 1 : failure(error, "copying");
    (void)cudaGetLastError(); /* or the next launch would seem to have failed */
    return 0;
}

void tw__cuda_event_free(void *event) {
    if (event != nullptr)
        (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

/* ---- memory of the GPU */

int tw__cuda_alloc(tw__stream *s, void **memory, size_t bytes) {
    Guard guard(s->ordinal);
    return failure(cudaMalloc(memory, bytes > 0 ? bytes : 1), "memory of a group");
}

void tw__cuda_free(void *memory) {
    if (memory != nullptr)
        (void)cudaFree(memory);
}
