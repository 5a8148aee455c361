/* test_cuda_failures.c - streams that fail under a step, and a GPU that is full
 *
 * Typed errors, nothing changed: residuals and outputs are bit for bit as before, and the next step
 * is the CPU's. An argument: tests of this name alone.
 *
 * A stream that is being captured into a graph takes work, but cannot be waited for. Who tries spoils
 * the capture, and until that is ended every use of the stream fails. */
#include <stdlib.h>

#include "cuda_runs.h"

static void begin_capture(cudaStream_t stream) {
    gpu_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
}

static void spoil_capture(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status;
    check_true(cudaStreamSynchronize(stream) != cudaSuccess);
    (void)cudaGetLastError();
    gpu_ok(cudaStreamIsCapturing(stream, &status));
    check_int("capture", status, cudaStreamCaptureStatusInvalidated);
}

/* It was spoilt by now. */
static void end_capture(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    check_true(cudaStreamEndCapture(stream, &graph) != cudaSuccess);
    (void)cudaGetLastError();
}

/* ---- selectors */

/* A selector on the CPU, and one on a stream of the GPU. */
typedef struct twins {
    tw_selector *cpu, *cuda;
    float *grad, *copy; /* [n] */
    void *gpu_grad;
    int64_t n;
} twins;

static void twins_step(twins *t, int step) {
    tw_sparse cpu, cuda;
    oracle_fill(t->grad, t->n, DATA_GAUSS, (uint64_t)step);
    gpu_ok(cudaMemcpy(t->gpu_grad, t->grad, 4 * (size_t)t->n, cudaMemcpyHostToDevice));
    gpu_ok(cudaDeviceSynchronize()); /* the stream does not wait for the default one */
    check_ok(tw_selector_run(t->cpu, t->grad, &cpu));
    check_ok(tw_selector_run(t->cuda, t->gpu_grad, &cuda));
    check_ok(tw_selector_wait(t->cuda, &cuda));
    int32_t *idx = check_alloc(cuda.count + 1, 4);
    gpu_ok(cudaMemcpy(idx, cuda.idx, 4 * (size_t)cuda.count, cudaMemcpyDeviceToHost));
    gpu_ok(cudaMemcpy(t->copy, cuda.val, 4 * (size_t)cuda.count, cudaMemcpyDeviceToHost));
    tw_sparse copied = {.count = cuda.count, .idx = idx, .val = t->copy};
    check_selection(&copied, cpu.count, cpu.idx, cpu.val);
    check_ok(tw_selector_commit(t->cpu, NULL, 0));
    check_ok(tw_selector_commit(t->cuda, NULL, 0));
    free(idx);
}

/* A step that is queued and cannot be waited for, and one that cannot be queued. */
static void refuse_steps(twins *t, cudaStream_t stream) {
    tw_sparse sparse;
    begin_capture(stream);
    check_ok(tw_selector_run(t->cuda, t->gpu_grad, &sparse));
    check_error(tw_selector_wait(t->cuda, &sparse), TW_ERR_DEVICE);
    check_contains(tw_last_error(), "stream");
    check_ok(tw_selector_undo(t->cuda, t->gpu_grad));
    check_error(tw_selector_run(t->cuda, t->gpu_grad, &sparse), TW_ERR_DEVICE);
    check_contains(tw_last_error(), "stream");
    end_capture(stream);
    check_ok(tw_selector_get_residual(t->cpu, t->grad));
    check_ok(tw_selector_get_residual(t->cuda, t->copy));
    check_bits("residual", t->copy, t->grad, t->n);
}

static void run_selector(const char *method, cudaStream_t stream) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.density = 0.01;
    twins t = {.n = 100000};
    t.cpu = check_create(t.n, &params);
    params.device = TW_CUDA;
    params.stream = stream;
    t.cuda = check_create(t.n, &params);
    t.grad = check_alloc(t.n, 4);
    t.copy = check_alloc(t.n, 4);
    gpu_ok(cudaMalloc(&t.gpu_grad, 4 * (size_t)t.n));
    for (int step = 0; step < STEPS; step++) {
        check_scene("selector, method=%s step=%d", method, step);
        twins_step(&t, step);
        refuse_steps(&t, stream);
    }
    tw_selector_free(t.cpu);
    tw_selector_free(t.cuda);
    free(t.grad);
    free(t.copy);
    gpu_ok(cudaFree(t.gpu_grad));
}

static void test_selector_stream(void **state) {
    (void)state;
    cudaStream_t stream;
    gpu_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int method = 0; method < check_gpu_methods(); method++)
        run_selector(check_method(method), stream);
    gpu_ok(cudaStreamDestroy(stream));
}

/* ---- groups: rank 1's stream fails, all ranks refuse */

static void refuse_stream(pair *p, cudaStream_t stream, int spoilt) {
    begin_capture(stream);
    if (spoilt)
        spoil_capture(stream);
    ranks_run(&p->cuda, reduce_all, p);
    end_capture(stream);
    ranks_error(&p->cuda, TW_ERR_DEVICE);
    ranks_say(&p->cuda, "rank 1, tensor ");
    check_contains(p->cuda.text[1], spoilt ? "stream: it cannot be followed" : "stream");
    pair_check_outs(p);
    compare_residuals(p);
}

static void run_group(const char *scheme, mixture mix, transfer_kind how, cudaStream_t stream) {
    tw_select_params selects[MIXED];
    group_setup mixed = {
        .params = params_of(scheme, 0.05), .nranks = 3, .how = how, .stream = (void *)stream};
    setup_mixed(&mixed, mix, selects);
    pair p;
    pair_open(&p, &mixed);
    for (int step = 0; step < STEPS; step++) {
        check_scene("group, scheme=%s %s step=%d", scheme, transfer_names[how], step);
        rows_fill(p.grads, p.nranks, p.n, DATA_GAUSS, step);
        pair_step(&p, reduce_all, TW_OK);
        refuse_stream(&p, stream, step % 2);
    }
    pair_step(&p, reduce_all, TW_OK);
    compare_residuals(&p);
    pair_close(&p);
}

static void test_group_stream(void **state) {
    (void)state;
    cudaStream_t stream;
    gpu_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    run_group("oktopk", BOTH, DIRECT, stream);
    run_group("topka", TYPES, LENT, stream);
    run_group("dense", TYPES, LENT, stream);
    gpu_ok(cudaStreamDestroy(stream));
}

/* ---- a GPU that is full */

enum { LEFT = 256 << 20 };

/* All but LEFT bytes of it, or a little more. */
static void *fill_gpu(void) {
    size_t free_bytes, all;
    void *hog = NULL;
    gpu_ok(cudaMemGetInfo(&free_bytes, &all));
    cudaError_t error = cudaErrorMemoryAllocation;
    while (error == cudaErrorMemoryAllocation && free_bytes > 2 * (size_t)LEFT) {
        free_bytes -= LEFT;
        error = cudaMalloc(&hog, free_bytes);
        (void)cudaGetLastError();
    }
    gpu_ok(error);
    return hog;
}

/* So many elements that their residual takes twice what is free. */
static int64_t too_many(void) {
    size_t free_bytes, all;
    gpu_ok(cudaMemGetInfo(&free_bytes, &all));
    return (int64_t)(free_bytes / 4);
}

/* A group that was open goes on; one that is opened gets an error, and its memory once it is there. */
static void test_full(void **state) {
    (void)state;
    tw_group_params params = params_of("oktopk", 0.01), large = params_of("oktopk", 1e-5);
    large.select.device = TW_CUDA;
    ranks second;
    pair p;
    pair_open_one(&p, 3, 70001, &params, LENT);
    ranks_init(&second, 2);
    for (int step = 0; step < STEPS; step++) {
        check_scene("full, step=%d", step);
        rows_fill(p.grads, 3, 70001, DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK); /* kernels are loaded now */
        void *hog = fill_gpu();
        int64_t n = too_many();
        ranks_try_open(&second, &large, &n, 1);
        ranks_error(&second, TW_ERR_MEMORY);
        ranks_say(&second, "the GPU is out of memory");
        ranks_free_groups(&second);
        rows_fill(p.grads, 3, 70001, DATA_GAUSS, 100 + step);
        pair_step(&p, reduce_one, TW_OK);
        gpu_ok(cudaFree(hog));
        ranks_try_open(&second, &large, &n, 1);
        ranks_ok(&second);
        ranks_free_groups(&second);
    }
    compare_residuals(&p);
    ranks_close(&second);
    pair_close(&p);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selector_stream),
        cmocka_unit_test(test_group_stream),
        cmocka_unit_test(test_full),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
