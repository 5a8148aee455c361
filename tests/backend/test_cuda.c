/* test_cuda.c - selection on a GPU gives bit for bit what the CPU gives
 *
 * Two selectors with the same parameters, one on each, go through the same steps: data
 * of all kinds that change between steps so that guesses fail, all methods, types, sizes around
 * those of warps, tiles and chunks; steps end as a whole, in part, or are undone. Compared are
 * indices, values and counts of every step and the residuals at the end.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { STEPS = 7 };

/* How often random cases are drawn; fewer with the argument "quick", for tools that take long. */
static int trials = 240, large_trials = 12, long_steps = 80;

/* The same step on both sides. */
typedef struct twins {
    int64_t n;
    tw_select_params params;
    tw_selector *cpu, *cuda;
    float *values;  /* [n] */
    char *typed;    /* [n] of the type, with `shift` elements before it */
    char *on_gpu;   /* the same */
    int64_t shift;  /* elements */
    tw_sparse mine; /* selection on the CPU */
    int32_t *idx;   /* [n]: the GPU's, copied */
    float *val;     /* [n] */
} twins;

static void gpu_ok(cudaError_t error) {
    if (error != cudaSuccess)
        fail_msg("CUDA: %s", cudaGetErrorString(error));
}

static void *gpu_alloc(int64_t bytes) {
    void *memory = NULL;
    gpu_ok(cudaMalloc(&memory, (size_t)bytes + 16));
    return memory;
}

static void twins_open(twins *t, int64_t n, const tw_select_params *params, int64_t shift) {
    int64_t size = oracle_type_size(params->type);
    *t = (twins){.n = n, .params = *params, .shift = shift};
    t->values = malloc(sizeof(float) * (size_t)n);
    t->typed = malloc((size_t)((n + shift) * size));
    t->idx = malloc(sizeof(int32_t) * (size_t)n);
    t->val = malloc(sizeof(float) * (size_t)n);
    assert_true(t->values && t->typed && t->idx && t->val);
    t->on_gpu = gpu_alloc((n + shift) * size);
    check_ok(tw_selector_create(&t->cpu, n, params));
    tw_select_params cuda = *params;
    cuda.device = TW_CUDA;
    cuda.threads = 0;
    check_ok(tw_selector_create(&t->cuda, n, &cuda));
}

static void twins_close(twins *t) {
    tw_selector_free(t->cpu);
    tw_selector_free(t->cuda);
    gpu_ok(cudaFree(t->on_gpu));
    free(t->values);
    free(t->typed);
    free(t->idx);
    free(t->val);
}

static char *gradient_cpu(const twins *t) {
    return t->typed + t->shift * oracle_type_size(t->params.type);
}

static char *gradient_cuda(const twins *t) {
    return t->on_gpu + t->shift * oracle_type_size(t->params.type);
}

static void twins_upload(twins *t) {
    int64_t size = oracle_type_size(t->params.type);
    oracle_encode(gradient_cpu(t), t->values, t->n, t->params.type);
    gpu_ok(cudaMemcpy(gradient_cuda(t), gradient_cpu(t), (size_t)(t->n * size),
                      cudaMemcpyHostToDevice));
}

static void twins_fill(twins *t, oracle_data kind, float scale, uint64_t seed) {
    oracle_fill(t->values, t->n, kind, seed);
    for (int64_t i = 0; i < t->n; i++)
        t->values[i] *= scale;
    twins_upload(t);
}

/* Both select; the selections must be the same. */
static void twins_run(twins *t) {
    tw_sparse sparse;
    check_ok(tw_selector_run(t->cpu, gradient_cpu(t), &t->mine));
    check_ok(tw_selector_run(t->cuda, gradient_cuda(t), &sparse));
    assert_int_equal(sparse.count, -1);
    check_ok(tw_selector_wait(t->cuda, &sparse));
    size_t bytes = 4 * (size_t)sparse.count;
    gpu_ok(cudaMemcpy(t->idx, sparse.idx, bytes, cudaMemcpyDeviceToHost));
    gpu_ok(cudaMemcpy(t->val, sparse.val, bytes, cudaMemcpyDeviceToHost));
    tw_sparse got = {sparse.count, t->idx, t->val};
    check_selection(&got, t->mine.count, t->mine.idx, t->mine.val);
    tw_select_info mine, theirs;
    check_ok(tw_selector_info(t->cpu, &mine));
    check_ok(tw_selector_info(t->cuda, &theirs));
    check_float("threshold", theirs.threshold, mine.threshold);
    check_int("k", theirs.k, mine.k);
}

/* Every second entry of the selection was sent. */
static void commit_half(twins *t) {
    int64_t count = 0;
    int32_t *half = malloc(sizeof *half * (size_t)(t->mine.count + 1));
    assert_non_null(half);
    for (int64_t i = 0; i < t->mine.count; i += 2)
        half[count++] = t->mine.idx[i];
    int32_t *on_gpu = gpu_alloc(4 * count);
    gpu_ok(cudaMemcpy(on_gpu, half, 4 * (size_t)count, cudaMemcpyHostToDevice));
    check_ok(tw_selector_commit(t->cuda, on_gpu, count));
    check_ok(tw_selector_commit(t->cpu, half, count));
    gpu_ok(cudaFree(on_gpu));
    free(half);
}

static void twins_end(twins *t, int how) {
    if (how == 1) {
        check_ok(tw_selector_undo(t->cpu, gradient_cpu(t)));
        check_ok(tw_selector_undo(t->cuda, gradient_cuda(t)));
    } else if (how == 2) {
        commit_half(t);
    } else {
        check_ok(tw_selector_commit(t->cpu, NULL, 0));
        check_ok(tw_selector_commit(t->cuda, NULL, 0));
    }
}

static void compare_residuals(twins *t) {
    float *theirs = malloc(sizeof(float) * (size_t)t->n);
    assert_non_null(theirs);
    check_ok(tw_selector_get_residual(t->cpu, t->values));
    check_ok(tw_selector_get_residual(t->cuda, theirs));
    for (int64_t i = 0; i < t->n; i++) {
        if (theirs[i] != t->values[i]) { /* a zero may have another sign */
            fail_msg("residual %lld: %a on the CPU, %a on the GPU", (long long)i,
                     (double)t->values[i], (double)theirs[i]);
        }
    }
    free(theirs);
}

static const float scales[] = {1.0f, 1.0f, 1.0f, 1e3f, 1.0f, 1e-4f, 1.0f, 1.01f};

static void run_course(int64_t n, const tw_select_params *params, oracle_data kind, uint64_t seed,
                       int64_t shift) {
    twins t;
    twins_open(&t, n, params, shift);
    for (int step = 0; step < STEPS; step++) {
        oracle_rng rng = {.key = seed + 977 * (uint64_t)step};
        float scale = scales[oracle_below(&rng, 8)];
        if (oracle_below(&rng, 6) == 0)
            kind = (oracle_data)oracle_below(&rng, DATA_KINDS);
        check_scene("n=%lld k=%lld density=%g method=%s data=%s x %g type=%d feedback=%d "
                    "momentum=%g clip=%g shift=%lld step=%d",
                    (long long)n, (long long)params->k, params->density, params->method,
                    oracle_data_name(kind), (double)scale, params->type, params->feedback,
                    (double)params->momentum, (double)params->clip_norm, (long long)shift, step);
        twins_fill(&t, kind, scale, seed + (uint64_t)step);
        twins_run(&t);
        twins_end(&t, (int)oracle_below(&rng, 5));
    }
    compare_residuals(&t);
    twins_close(&t);
}

/* Sizes around those of the hardware, or any. */
static int64_t any_size(oracle_rng *rng, int64_t most) {
    static const int64_t edges[] = {1, 15, 16, 31, 32, 512, 4096, 8192, 65536, 131072};
    if (oracle_below(rng, 2) == 0) {
        int64_t n = edges[oracle_below(rng, 10)] + oracle_below(rng, 3) - 1;
        return n < 1 ? 1 : n;
    }
    return (int64_t)exp(oracle_uniform(rng) * log((double)most)) + 1;
}

static tw_select_params any_params(oracle_rng *rng, int64_t n) {
    static const double densities[] = {0.001, 0.01, 0.05, 0.3, 1.0};
    tw_select_params p = TW_SELECT_PARAMS_INIT;
    p.method = check_method((int)oracle_below(rng, check_methods()));
    if (oracle_below(rng, 3) == 0)
        p.k = 1 + oracle_below(rng, n);
    else
        p.density = densities[oracle_below(rng, 5)];
    p.type = (int)oracle_below(rng, 3);
    p.feedback = oracle_below(rng, 5) == 0 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
    p.seed = oracle_next(rng);
    p.momentum = p.feedback == TW_FEEDBACK_ON && oracle_below(rng, 4) == 0 ? 0.9f : 0.0f;
    p.clip_norm = oracle_below(rng, 4) == 0 ? 2.5f : 0.0f;
    p.warmup_steps = oracle_below(rng, 4) == 0 ? 3 : 0;
    p.reuse_period = oracle_below(rng, 2) == 0 ? 2 : 0;
    return p;
}

static void test_same_as_cpu(void **state) {
    (void)state;
    for (int trial = 0; trial < trials; trial++) {
        oracle_rng rng = {.key = (uint64_t)trial};
        int64_t n = any_size(&rng, 400000);
        tw_select_params params = any_params(&rng, n);
        run_course(n, &params, (oracle_data)(trial % DATA_KINDS), (uint64_t)trial * 31,
                   oracle_below(&rng, 5));
    }
}

static void test_same_as_cpu_large(void **state) {
    (void)state;
    for (int trial = 0; trial < large_trials; trial++) {
        oracle_rng rng = {.key = (uint64_t)trial + 1000};
        int64_t n = 3000000 + oracle_below(&rng, 3000000);
        tw_select_params params = any_params(&rng, n);
        params.method = check_method(trial % check_methods());
        run_course(n, &params, trial < 6 ? DATA_GAUSS : DATA_POWER5, (uint64_t)trial * 17, 0);
    }
}

/* Long and calm, so that margins and reused thresholds settle. */
static void test_long_runs(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = check_method(method);
        params.density = 0.01;
        twins t;
        twins_open(&t, 300000, &params, 0);
        for (int step = 0; step < long_steps; step++) {
            check_scene("method=%s step=%d", params.method, step);
            twins_fill(&t, DATA_GAUSS, 1.0f, (uint64_t)step);
            twins_run(&t);
            twins_end(&t, 0);
        }
        compare_residuals(&t);
        twins_close(&t);
    }
}

/* ---- refusals */

static void test_bad_numbers(void **state) {
    (void)state;
    static const int64_t places[] = {0, 4095, 4096, 70000, 99999};
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.density = 0.01;
    params.momentum = 0.5f;
    for (int method = 0; method < check_methods(); method++) {
        params.method = check_method(method);
        twins t;
        twins_open(&t, 100000, &params, 0);
        for (int step = 0; step < 10; step++) {
            tw_sparse sparse;
            tw_select_info info;
            check_scene("method=%s step=%d", params.method, step);
            twins_fill(&t, DATA_GAUSS, 1.0f, (uint64_t)step);
            if (step % 2 == 0) {
                twins_run(&t);
                twins_end(&t, 0);
                continue;
            }
            t.values[99999] = INFINITY;
            t.values[places[step / 2]] = step % 4 == 1 ? NAN : -INFINITY;
            twins_upload(&t);
            check_error(tw_selector_run(t.cpu, gradient_cpu(&t), &sparse), TW_ERR_NUMBER);
            check_ok(tw_selector_run(t.cuda, gradient_cuda(&t), &sparse));
            if (step == 9) { /* committed unseen: it changes nothing */
                check_ok(tw_selector_commit(t.cuda, NULL, 0));
                check_ok(tw_selector_info(t.cuda, &info));
            } else {
                check_error(tw_selector_wait(t.cuda, &sparse), TW_ERR_NUMBER);
                check_ok(tw_selector_info(t.cuda, &info));
            }
            check_int("bad index", info.bad_index, places[step / 2]);
            check_int("refused", info.refused, step / 2 + 1);
        }
        compare_residuals(&t);
        twins_close(&t);
    }
}

static void test_wrong_memory(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 2;
    twins t;
    tw_sparse sparse;
    twins_open(&t, 100, &params, 0);
    twins_fill(&t, DATA_GAUSS, 1.0f, 1);
    check_error(tw_selector_run(t.cuda, t.typed, &sparse), TW_ERR_DEVICE);
    check_error(tw_selector_run(t.cuda, t.on_gpu + 2, &sparse), TW_ERR_DEVICE);
    check_error(tw_selector_commit(t.cuda, NULL, 0), TW_ERR_STATE);
    twins_run(&t); /* nothing has changed */
    int32_t wrong[2] = {t.mine.idx[0], 100};
    int32_t *on_gpu = gpu_alloc(sizeof wrong);
    gpu_ok(cudaMemcpy(on_gpu, wrong, sizeof wrong, cudaMemcpyHostToDevice));
    check_error(tw_selector_commit(t.cuda, on_gpu, 2), TW_ERR_INDEX);
    check_error(tw_selector_commit(t.cuda, wrong, 1), TW_ERR_DEVICE);
    twins_end(&t, 0);
    compare_residuals(&t);
    gpu_ok(cudaFree(on_gpu));
    twins_close(&t);
}

static void test_no_such_gpu(void **state) {
    (void)state;
    tw_selector *selector = NULL;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1;
    params.device = TW_CUDA;
    params.ordinal = 99;
    check_error(tw_selector_create(&selector, 10, &params), TW_ERR_DEVICE);
    assert_null(selector);
}

/* Both go on from another residual; one that is not finite is refused. */
static void test_set_residual(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 100;
    twins t;
    twins_open(&t, 5000, &params, 0);
    for (int step = 0; step < 3; step++) {
        check_scene("set residual, step=%d", step);
        oracle_fill(t.values, t.n, DATA_LAPLACE, (uint64_t)step);
        check_ok(tw_selector_set_residual(t.cpu, t.values));
        check_ok(tw_selector_set_residual(t.cuda, t.values));
        t.values[7] = NAN;
        check_error(tw_selector_set_residual(t.cuda, t.values), TW_ERR_NUMBER);
        twins_fill(&t, DATA_GAUSS, 1.0f, (uint64_t)step);
        twins_run(&t);
        twins_end(&t, 0);
    }
    compare_residuals(&t);
    twins_close(&t);
}

/* Selectors until the GPU is full; then it is free again. */
static void test_out_of_memory(void **state) {
    (void)state;
    enum { MOST = 64 };
    tw_selector *selectors[MOST] = {NULL};
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1000;
    params.device = TW_CUDA;
    int count = 0, error = TW_OK;
    while (count < MOST && error == TW_OK)
        error = tw_selector_create(&selectors[count++], INT32_MAX, &params);
    assert_int_equal(error, TW_ERR_MEMORY);
    for (int i = 0; i < count; i++)
        tw_selector_free(selectors[i]);
    check_ok(tw_selector_create(&selectors[0], INT32_MAX, &params));
    tw_selector_free(selectors[0]);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "quick") == 0) {
        trials = 8;
        large_trials = 1;
        long_steps = 6;
    }
    if (tw_cuda_device(0, NULL) != TW_OK) {
        printf("SKIP: %s\n", tw_last_error());
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu),  cmocka_unit_test(test_same_as_cpu_large),
        cmocka_unit_test(test_long_runs),    cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_wrong_memory), cmocka_unit_test(test_no_such_gpu),
        cmocka_unit_test(test_set_residual), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
