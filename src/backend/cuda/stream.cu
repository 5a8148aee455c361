/* stream.cu - GPUs, their memory, and the order of work on them
 *
 * A group has a stream of its own. It follows the caller's stream, which makes gradients ready, and is
 * waited for before a call returns. Both may be stuck: a kernel of NCCL waits for a rank that is gone.
 * So waits look at the stream again and again, and end at the group's deadline. Then the stream is
 * given up: whatever it may still use is left alone, because CUDA frees memory only when the GPU has
 * come to its end. */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/stream.cuh"
#include "base/clock.h"

#include <cstdlib>

using namespace tw;

/* ---- devices */

/* The kernels were compiled for a GPU like this one, or an older one. */
static int check_kernels(int ordinal) {
    constexpr int compiled[] = {__CUDA_ARCH_LIST__}; /* 800: compute capability 8.0 */
    int least = compiled[0], major = 0, minor = 0;
    for (int architecture : compiled)
        least = architecture < least ? architecture : least;
    TW_TRY(failure(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                   "ordinal"));
    TW_TRY(failure(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                   "ordinal"));
    if (100 * major + 10 * minor >= least)
        return TW_OK;
    return tw__fail(TW_ERR_DEVICE,
                    "ordinal: GPU %d has compute capability %d.%d; this build needs %d.%d or more",
                    ordinal, major, minor, least / 100, least / 10 % 10);
}

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
    return check_kernels(ordinal);
}

int tw__cuda_check_pointer(const void *pointer, const char *field, int ordinal, size_t element) {
    cudaPointerAttributes at = {};
    Guard guard(ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
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

static cudaError_t create_stream(tw__stream *s) {
    int least = 0, first = 0; /* before what the caller computes meanwhile: others wait for it */
    cudaError_t error =
        prepare_choose(s->ordinal, &s->stage); /* has this GPU's kernels, or fails */
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&s->blocks, cudaDevAttrMultiProcessorCount, s->ordinal);
    (void)cudaDeviceGetStreamPriorityRange(&least, &first);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&s->native, cudaStreamNonBlocking, first);
    if (error == cudaSuccess)
        error = cudaEventCreate(&s->begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&s->end);
    return error;
}

int tw__cuda_stream_create(tw__stream **stream, int ordinal, tw__check *check, void *context) {
    TW_TRY(tw__cuda_check_device(ordinal));
    TW_TRY(failure(retain_context(ordinal), "ordinal"));
    Guard guard(ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    tw__stream *s = static_cast<tw__stream *>(calloc(1, sizeof *s));
    if (s == nullptr)
        return tw__fail(TW_ERR_MEMORY, "no memory for a stream");
    s->ordinal = ordinal;
    s->check = check;
    s->context = context;
    cudaError_t error = create_stream(s);
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
    tw__cuda_event_free(s, s->begin);
    tw__cuda_event_free(s, s->end);
    if (s->native != nullptr && !is_at_work(s))
        (void)cudaStreamDestroy(s->native);
    free(s);
}

/* Of a thread that is the library's own: it need not be left as it was. */
void tw__cuda_stream_adopt(const tw__stream *s) {
    (void)cudaSetDevice(s->ordinal);
}

void *tw__cuda_stream_native(const tw__stream *s) {
    return s->native;
}

/* ---- waits */

static int given_up(const tw__stream *s) {
    return __atomic_load_n(&s->given_up, __ATOMIC_RELAXED);
}

void tw__cuda_stream_give_up(tw__stream *s, int for_good) {
    __atomic_store_n(&s->given_up, for_good ? FOR_GOOD : AT_WORK, __ATOMIC_RELAXED);
}

/* 1: it has come to its end, 0: not yet, or an error. */
static int look_at(cudaError_t state, const char *doing) {
    if (state != cudaErrorNotReady)
        return state == cudaSuccess ? 1 : failure(state, doing);
    (void)cudaGetLastError(); /* or the next launch would seem to have failed */
    return 0;
}

/* Until the stream ends, or `on` does not return TW_OK; `begun` is 0 in the first of its calls. What
 * the caller's stream computes first may take long, and only then does it pay to sleep. Once the GPU has
 * come to the begin of the last batch, the end is near. */
template <typename On> static int await_while(tw__stream *s, const On &on) {
    int64_t begun = 0, near = 0;
    Guard guard(s->ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    for (;;) {
        int state = look_at(cudaStreamQuery(s->native), "waiting for the stream");
        if (state != 0)
            return state > 0 ? TW_OK : state;
        TW_TRY(on(begun));
        begun = begun == 0 ? tw__clock() : begun;
        if (near == 0 && look_at(cudaEventQuery(s->begin), "waiting for the stream") > 0)
            near = tw__clock();
        tw__relax(tw__clock() - (near != 0 ? near : begun));
    }
}

static int fail_given_up() {
    return tw__fail(TW_ERR_TIMEOUT, "the GPU is still at work on a step that has failed");
}

int tw::await(tw__stream *s) {
    return await_while(
        s,
        [&](int64_t begun) {
            if (given_up(s) != KEPT)
                return fail_given_up();
            int error = s->check != nullptr ? s->check(s->context, begun == 0) : TW_OK;
            if (error != TW_OK)
                tw__cuda_stream_give_up(s, 0);
            return error;
        });
}

int tw::await_outside(tw__stream *s) {
    return await_while(
        s, [&](int64_t) { return given_up(s) == KEPT ? TW_OK : fail_given_up(); });
}

bool tw::is_at_work(tw__stream *s) {
    constexpr int64_t MOMENT = TW__SECOND / 10; /* what was aborted ends in less */
    if (given_up(s) != AT_WORK)
        return given_up(s) == FOR_GOOD;
    int error = await_while(s, [&](int64_t begun) {
        return begun == 0 || tw__clock() - begun < MOMENT ? TW_OK : TW_ERR_TIMEOUT;
    });
    __atomic_store_n(&s->given_up, error == TW_ERR_TIMEOUT ? FOR_GOOD : KEPT, __ATOMIC_RELAXED);
    return error == TW_ERR_TIMEOUT;
}

int tw__cuda_stream_wait(tw__stream *s) {
    return await(s);
}

/* ---- memory of the host, for the GPU */

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

void tw__cuda_host_free(tw__stream *s, void *memory) {
    if (memory == nullptr || is_at_work(s))
        return;
    Guard guard(s->ordinal);
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

int tw__cuda_event_reached(const tw__stream *s, void *event) {
    Guard guard(s->ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    return look_at(cudaEventQuery(static_cast<cudaEvent_t>(event)), "waiting for an event");
}

void tw__cuda_event_free(tw__stream *s, void *event) {
    if (event == nullptr || is_at_work(s))
        return;
    Guard guard(s->ordinal);
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

/* ---- memory of the GPU */

int tw__cuda_alloc(tw__stream *s, void **memory, size_t bytes) {
    Guard guard(s->ordinal);
    return failure(cudaMalloc(memory, bytes > 0 ? bytes : 1), "memory of a group");
}

void tw__cuda_free(tw__stream *s, void *memory) {
    if (memory == nullptr || is_at_work(s))
        return;
    Guard guard(s->ordinal);
    (void)cudaFree(memory);
}
