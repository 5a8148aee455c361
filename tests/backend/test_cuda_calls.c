/* test_cuda_calls.c - what the library's calls of CUDA leave behind, and what becomes of those that
 * fail
 *
 * The linker puts functions of this test between the library and CUDA's runtime (--wrap). They count
 * calls, let one launch of a kernel fail, or lie about the GPU. An argument: tests of this name
 * alone. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_runs.h"

/* ---- between the library and CUDA */

static _Atomic int launches;    /* so far */
static _Atomic int spoilt;      /* the launch that fails, from 1; 0: none */
static _Atomic int devices_set; /* calls of cudaSetDevice */
static int capability_major;    /* that the GPU seems to have; 0: its own */

/* Without blocks a launch is refused, and CUDA keeps the error for whoever asks. */
static dim3 blocks_of_launch(dim3 blocks) {
    const dim3 none = {0, 0, 0};
    return atomic_fetch_add(&launches, 1) + 1 == spoilt ? none : blocks;
}

#define WRAP_LAUNCH(name, handle)                                                                  \
    cudaError_t __real_##name(handle kernel, dim3 grid, dim3 block, void **arguments,              \
                              size_t shared, cudaStream_t stream);                                 \
    cudaError_t __wrap_##name(handle kernel, dim3 grid, dim3 block, void **arguments,              \
                              size_t shared, cudaStream_t stream);                                 \
    cudaError_t __wrap_##name(handle kernel, dim3 grid, dim3 block, void **arguments,              \
                              size_t shared, cudaStream_t stream) {                                \
        return __real_##name(kernel, blocks_of_launch(grid), block, arguments, shared, stream);    \
    }

#if CUDART_VERSION >= 13000 /* <<<>>> */
WRAP_LAUNCH(__cudaLaunchKernel, cudaKernel_t)
#else
WRAP_LAUNCH(cudaLaunchKernel, const void *)
#endif
WRAP_LAUNCH(cudaLaunchCooperativeKernel, const void *)

cudaError_t __real_cudaSetDevice(int ordinal);
cudaError_t __wrap_cudaSetDevice(int ordinal);
cudaError_t __wrap_cudaSetDevice(int ordinal) {
    devices_set++;
    return __real_cudaSetDevice(ordinal);
}

cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
    cudaError_t error = __real_cudaDeviceGetAttribute(value, attribute, ordinal);
    if (capability_major > 0 && attribute == cudaDevAttrComputeCapabilityMajor)
        *value = capability_major;
    return error;
}

/* ---- the device of the calling thread */

enum { N = 20000 };

typedef struct visit {
    float *grad; /* [N] on the GPU */
    int error;   /* of the library; or 1: a context was current before, 2: after */
    int set;     /* calls of cudaSetDevice */
    char text[256];
} visit;

/* Whether a context of CUDA is current in this thread. */
static int has_context(void) {
    void *context = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*ask)(void **context) = NULL;
    *(void **)&ask = dlsym(library, "cuCtxGetCurrent");
    int known = ask != NULL && ask(&context) == 0;
    dlclose(library);
    return !known || context != NULL;
}

static int use_selector(visit *v) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_selector *selector;
    tw_sparse sparse;
    params.density = 0.01;
    params.device = TW_CUDA;
    int error = tw_cuda_device(0, NULL);
    if (error == TW_OK)
        error = tw_selector_create(&selector, N, &params);
    if (error != TW_OK)
        return error;
    error = tw_selector_run(selector, v->grad, &sparse);
    if (error == TW_OK)
        error = tw_selector_wait(selector, &sparse);
    if (error == TW_OK)
        error = tw_selector_commit(selector, NULL, 0);
    tw_selector_free(selector);
    return error;
}

static int use_group(visit *v, const char *scheme) {
    tw_group_params params = params_of(scheme, 0.01);
    tw_transport *transport = NULL;
    tw_group *group = NULL;
    params.select.device = TW_CUDA;
    int error = tw_transport_self(&transport);
    if (error == TW_OK)
        error = tw_group_create(&group, transport, &params);
    if (error == TW_OK)
        error = tw_group_add(group, N, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(group);
    if (error == TW_OK)
        error = tw_allreduce(group, 0, v->grad, v->grad);
    v->set = devices_set;
    for (int i = 0; i < 5 && error == TW_OK; i++) {
        error = tw_allreduce_start(group, 0, v->grad, v->grad);
        error = error == TW_OK ? tw_allreduce_wait(group, TW_ALL) : error;
    }
    v->set = devices_set - v->set;
    tw_group_free(group);
    tw_transport_free(transport);
    return error;
}

static void *visit_main(void *context) {
    visit *v = context;
    devices_set = 0;
    v->error = has_context() ? 1 : use_selector(v);
    if (v->error == TW_OK && devices_set > 0)
        v->error = 2;
    if (v->error == TW_OK)
        v->error = use_group(v, "topka");
    if (v->error < 0)
        snprintf(v->text, sizeof v->text, "%s", tw_last_error());
    if (v->error == TW_OK && has_context())
        v->error = 2;
    return NULL;
}

/* A thread that has never used CUDA has no context afterwards: with several GPUs, one on the first
 * would have been created. The thread of the background sets its device, once. */
static void test_thread_is_left_alone(void **state) {
    (void)state;
    pthread_t thread;
    visit v = {0};
    float *grad = check_alloc(N, sizeof *grad);
    oracle_fill(grad, N, DATA_GAUSS, 1);
    gpu_ok(cudaMalloc((void **)&v.grad, N * sizeof *grad));
    gpu_ok(cudaMemcpy(v.grad, grad, N * sizeof *grad, cudaMemcpyHostToDevice));
    check_int("pthread_create", pthread_create(&thread, NULL, visit_main, &v), 0);
    pthread_join(thread, NULL);
    check_scene("%s", v.text);
    check_int("error, or 1, 2: a context was current before, after", v.error, 0);
    check_int("devices set in five steps in the background", v.set, 1);
    gpu_ok(cudaFree(v.grad));
    free(grad);
}

/* ---- GPUs that the kernels were not compiled for */

static void test_old_gpu(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_group_params group_params = params_of("dense", 0.01);
    tw_selector *selector;
    tw_transport *transport;
    tw_group *group;
    params.density = 0.01;
    params.device = group_params.select.device = TW_CUDA;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &group_params));
    capability_major = 5;
    check_error(tw_cuda_device(0, NULL), TW_ERR_DEVICE);
    check_contains(tw_last_error(), "GPU 0 has compute capability 5.");
    check_error(tw_selector_create(&selector, N, &params), TW_ERR_DEVICE);
    check_error(tw_group_add(group, N, NULL, NULL), TW_ERR_DEVICE);
    capability_major = 0;
    check_ok(tw_cuda_device(0, NULL));
    check_ok(tw_group_add(group, N, NULL, NULL));
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- launches that fail: each is noticed */

/* A selector's life; returns the first error. */
static int run_selector(const char *method, float momentum, const float *grad, float *residual) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_selector *selector = NULL;
    tw_sparse sparse;
    params.method = method;
    params.density = 0.01;
    params.momentum = momentum;
    params.device = TW_CUDA;
    int error = tw_selector_create(&selector, N, &params);
    for (int step = 0; step < 2 && error == TW_OK; step++) {
        error = tw_selector_run(selector, grad, &sparse);
        error = error == TW_OK ? tw_selector_wait(selector, &sparse) : error;
        int64_t half = error == TW_OK ? sparse.count / 2 : 0;
        if (error == TW_OK)
            error = step == 0 ? tw_selector_commit(selector, NULL, 0)
                              : tw_selector_commit(selector, sparse.idx, half);
        error = error == TW_OK ? tw_selector_get_residual(selector, residual) : error;
    }
    tw_selector_free(selector);
    return error;
}

static void spoil(int launch) {
    launches = 0;
    spoilt = launch;
}

static void test_launches_of_selectors(void **state) {
    (void)state;
    float *host = check_alloc(N, sizeof *host), *residual = check_alloc(N, sizeof *residual);
    float *grad;
    oracle_fill(host, N, DATA_GAUSS, 1);
    gpu_ok(cudaMalloc((void **)&grad, N * sizeof *grad));
    gpu_ok(cudaMemcpy(grad, host, N * sizeof *grad, cudaMemcpyHostToDevice));
    for (int i = 0; i < 2 * check_gpu_methods(); i++) {
        const char *method = check_method(i / 2);
        float momentum = i % 2 ? 0.5f : 0.0f;
        spoil(0);
        check_scene("method=%s momentum=%g", method, (double)momentum);
        check_ok(run_selector(method, momentum, grad, residual));
        int all = launches;
        check_between("launches", all, 4, 100);
        for (int launch = 1; launch <= all; launch++) {
            check_scene("method=%s momentum=%g, launch %d of %d fails", method, (double)momentum,
                        launch, all);
            spoil(launch);
            check_error(run_selector(method, momentum, grad, residual), TW_ERR_DEVICE);
        }
    }
    spoil(0);
    gpu_ok(cudaFree(grad));
    free(host);
    free(residual);
}

/* Values so large that sums which return to a residual are checked for overflow. */
static void fill_large(pair *p) {
    rows_fill(p->grads, p->nranks, p->n, DATA_GAUSS, 1);
    for (int r = 0; r < p->nranks; r++)
        for (int64_t i = 0; i < p->n; i++)
            p->grads[r][i] *= 1e36f;
    pair_upload(p);
}

/* A step with this launch spoilt. Returns how many launches it took. */
static int step_with(const tw_group_params *params, int launch) {
    pair p;
    pair_open_one(&p, 2, N, params, DIRECT);
    fill_large(&p);
    spoil(launch);
    ranks_run(&p.cuda, reduce_one, &p);
    int all = launches;
    spoil(0);
    if (launch == 0)
        ranks_ok(&p.cuda);
    else /* the other rank may have completed the step */
        check_true(p.cuda.status[0] != TW_OK || p.cuda.status[1] != TW_OK);
    pair_close(&p);
    return all;
}

static void test_launches_of_groups(void **state) {
    (void)state;
    static const char *const plans[][2] = {
        {"gtopk", "bf16"}, {"oktopk", "raw"}, {"topkdsa", "q8"}, {"dense", "raw"}};
    for (int i = 0; i < 4; i++) {
        tw_group_params params = params_of(plans[i][0], 0.9); /* lists stay on the GPU */
        params.wire = plans[i][1];
        params.timeout = 5.0;
        check_scene("scheme=%s wire=%s", plans[i][0], plans[i][1]);
        int all = step_with(&params, 0);
        check_between("launches", all, 8, 1000);
        for (int launch = 1; launch <= all; launch++) {
            check_scene("scheme=%s wire=%s, launch %d of %d fails", plans[i][0], plans[i][1],
                        launch, all);
            (void)step_with(&params, launch);
        }
    }
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_is_left_alone),
        cmocka_unit_test(test_old_gpu),
        cmocka_unit_test(test_launches_of_selectors),
        cmocka_unit_test(test_launches_of_groups),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
