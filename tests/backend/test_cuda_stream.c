/* test_cuda_stream.c - streams and contexts of the CUDA backend, without a GPU
 *
 * The linker puts functions of this test in the place of CUDA's (--wrap): two GPUs whose streams are
 * done, at work or broken as a test says, and a driver with a stack of contexts for each thread. A
 * call of CUDA that would create a context, because none is current, is counted. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/backend_cuda.h"
#include "base/clock.h"
#include "check.h"

/* ---- the driver */

static int contexts[2]; /* their addresses stand for them */
static _Thread_local void *stack[8];
static _Thread_local int depth;

static int driver_ok(unsigned flags) {
    (void)flags;
    return 0;
}

static int driver_device(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

static int driver_retain(void **context, int device) {
    *context = &contexts[device];
    return 0;
}

static int driver_push(void *context) {
    stack[depth++] = context;
    return 0;
}

static int driver_pop(void **context) {
    *context = stack[--depth];
    return 0;
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags) {
    return name != NULL && strcmp(name, "libcuda.so.1") == 0 ? contexts
                                                             : __real_dlopen(name, flags);
}

/* A function pointer is no object pointer: the bytes are copied. */
#define ANSWER(wanted, function)                                                                   \
    if (strcmp(name, wanted) == 0) {                                                               \
        __typeof__(&(function)) call = function;                                                   \
        memcpy(&found, &call, sizeof found);                                                       \
    }

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name) {
    void *found = NULL;
    if (library != contexts)
        return __real_dlsym(library, name);
    ANSWER("cuInit", driver_ok)
    ANSWER("cuDeviceGet", driver_device)
    ANSWER("cuDevicePrimaryCtxRetain", driver_retain)
    ANSWER("cuCtxPushCurrent_v2", driver_push)
    ANSWER("cuCtxPopCurrent_v2", driver_pop)
    return found;
}

/* ---- the runtime */

enum { DONE, AT_WORK, BROKEN };
static int streams;   /* all of them */
static int misplaced; /* calls for which another context was current than GPU 1's, or none */
static int held;      /* allocations, events and streams that are not freed */
static cudaError_t last;

static cudaError_t call_on_gpu_1(void) {
    misplaced += depth == 0 || stack[depth - 1] != &contexts[1];
    return cudaSuccess;
}

static cudaError_t create(void **thing) {
    *thing = malloc(1);
    held++;
    return call_on_gpu_1();
}

static cudaError_t destroy(void *thing) {
    free(thing);
    held--;
    return call_on_gpu_1();
}

static cudaError_t look(void) {
    (void)call_on_gpu_1();
    return last = streams == DONE      ? cudaSuccess
                  : streams == AT_WORK ? cudaErrorNotReady
                                       : cudaErrorAssert;
}

#define WRAP(name, parameters, answer)                                                             \
    cudaError_t __wrap_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters {                                                         \
        return answer;                                                                             \
    }

WRAP(cudaGetDeviceCount, (int *count), (*count = 2, cudaSuccess))
WRAP(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr which, int ordinal),
     (*value = which == cudaDevAttrComputeCapabilityMajor ? 90 + ordinal : 0, cudaSuccess))
WRAP(cudaFuncGetAttributes, (struct cudaFuncAttributes * attributes, const void *kernel),
     ((void)attributes, (void)kernel, call_on_gpu_1()))
WRAP(cudaFuncSetAttribute, (const void *kernel, enum cudaFuncAttribute which, int value),
     ((void)kernel, (void)which, (void)value, call_on_gpu_1()))
WRAP(cudaDeviceGetStreamPriorityRange, (int *least, int *first),
     (*least = *first = 0, call_on_gpu_1()))
WRAP(cudaStreamCreateWithPriority, (cudaStream_t * stream, unsigned flags, int priority),
     ((void)flags, (void)priority, create((void **)stream)))
WRAP(cudaStreamDestroy, (cudaStream_t stream), destroy(stream))
WRAP(cudaStreamQuery, (cudaStream_t stream), ((void)stream, look()))
WRAP(cudaEventCreate, (cudaEvent_t * event), create((void **)event))
WRAP(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags),
     ((void)flags, create((void **)event)))
WRAP(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream),
     ((void)event, (void)stream, call_on_gpu_1()))
WRAP(cudaEventQuery, (cudaEvent_t event), ((void)event, look()))
WRAP(cudaEventDestroy, (cudaEvent_t event), destroy(event))
WRAP(cudaMalloc, (void **memory, size_t bytes), ((void)bytes, create(memory)))
WRAP(cudaFree, (void *memory), destroy(memory))
WRAP(cudaHostAlloc, (void **memory, size_t bytes, unsigned flags),
     ((void)bytes, (void)flags, create(memory)))
WRAP(cudaFreeHost, (void *memory), destroy(memory))
WRAP(cudaPointerGetAttributes, (struct cudaPointerAttributes * at, const void *pointer),
     (at->type = cudaMemoryTypeDevice, at->device = pointer != NULL, call_on_gpu_1()))

cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

/* ---- a stream of GPU 1, with memory and an event */

typedef struct set {
    tw__stream *stream;
    void *memory, *host, *event;
    int checks, waits; /* questions whether to go on, of these first ones */
    int most;          /* the question that ends the wait */
} set;

static int go_on(void *context, int first) {
    set *s = context;
    s->checks++;
    s->waits += first;
    return s->checks < s->most ? TW_OK : TW_ERR_STATE;
}

static void set_open(set *s, int most) {
    *s = (set){.most = most};
    streams = DONE;
    held = misplaced = 0;
    check_ok(tw__cuda_stream_create(&s->stream, 1, go_on, s));
    check_ok(tw__cuda_alloc(s->stream, &s->memory, 8));
    s->host = tw__cuda_host_alloc(s->stream, 8);
    check_ok(tw__cuda_event_record(s->stream, NULL, &s->event));
    check_ok(tw__cuda_check_pointer(s->memory, "memory", 1, 4));
    check_int("held", held, 6); /* with the stream and its own events */
}

/* Returns the seconds that it took. */
static double set_free(set *s, int left) {
    double begin = tw__seconds();
    tw__cuda_free(s->stream, s->memory);
    tw__cuda_host_free(s->stream, s->host);
    tw__cuda_event_free(s->stream, s->event);
    tw__cuda_stream_free(s->stream);
    check_int("held", held, left);
    check_int("calls without the context of GPU 1", misplaced, 0);
    check_int("contexts that are still current", depth, 0);
    return tw__seconds() - begin;
}

/* ---- tests */

static void test_done(void **state) {
    (void)state;
    set s;
    set_open(&s, 1);
    check_ok(tw__cuda_stream_wait(s.stream));
    check_int("event", tw__cuda_event_reached(s.stream, s.event), 1);
    check_int("questions", s.checks, 0);
    (void)set_free(&s, 0);
}

/* The wait ends when it must, and leaves no error of CUDA's to the next call. */
static void test_given_up(void **state) {
    (void)state;
    set s;
    set_open(&s, 100);
    streams = AT_WORK;
    check_error(tw__cuda_stream_wait(s.stream), TW_ERR_STATE);
    check_int("questions", s.checks, 100);
    check_int("waits", s.waits, 1);
    check_error(tw__cuda_stream_wait(s.stream), TW_ERR_TIMEOUT);
    check_int("questions", s.checks, 100);
    check_int("event", tw__cuda_event_reached(s.stream, s.event), 0);
    check_int("CUDA's last error", last, cudaSuccess);
    streams = DONE; /* what held it was aborted */
    check_ok(tw__cuda_stream_wait(s.stream));
    (void)set_free(&s, 0);
}

/* What a stream may still use is not freed, and nobody waits for it. */
static void test_free_at_work(void **state) {
    (void)state;
    set s;
    set_open(&s, 1);
    streams = AT_WORK;
    check_error(tw__cuda_stream_wait(s.stream), TW_ERR_STATE);
    check_true(set_free(&s, 6) < 0.5);
    set_open(&s, 1);
    tw__cuda_stream_give_up(s.stream, 1); /* more may be queued, though all is done */
    check_ok(tw__cuda_stream_wait(s.stream));
    (void)set_free(&s, 6);
}

static void test_broken_device(void **state) {
    (void)state;
    set s;
    set_open(&s, 100);
    streams = BROKEN;
    check_error(tw__cuda_stream_wait(s.stream), TW_ERR_DEVICE);
    check_int("questions", s.checks, 0);
    (void)set_free(&s, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_done),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_free_at_work),
        cmocka_unit_test(test_broken_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
