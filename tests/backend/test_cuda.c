/* test_cuda.c - selection on a GPU gives bit for bit what the CPU gives
 *
 * Two selectors with the same parameters, one on each, go through the same steps: data
 * of all kinds that change between steps so that guesses fail, all methods, types, sizes around
 * those of warps, tiles and chunks; nothing, momentum or AdamW before selection; steps end as a
 * whole, in part, or are undone. Compared are indices, values and counts of every step, and the
 * residuals and moments at the end.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_twins.h"

enum { STEPS = 7 };

/* How often random cases are drawn; fewer with the argument "quick", for tools that take long. */
static int trials = 240, large_trials = 12, long_steps = 80;

static const float scales[] = {1.0f, 1.0f, 1.0f, 1e3f, 1.0f, 1e-4f, 1.0f, 1.01f};

static void set_rates(twins *t, double rate) {
    check_ok(tw_selector_set_rate(t->cpu, rate));
    check_ok(tw_selector_set_rate(t->cuda, rate));
}

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
                    "momentum=%g before=%d clip=%g shift=%lld step=%d",
                    (long long)n, (long long)params->k, params->density, params->method,
                    oracle_data_name(kind), (double)scale, params->type, params->feedback,
                    (double)params->momentum, params->before, (double)params->clip_norm,
                    (long long)shift, step);
        twins_fill(&t, kind, scale, seed + (uint64_t)step);
        if (params->before == TW_BEFORE_ADAMW)
            set_rates(&t, 1e-3 * (double)oracle_below(&rng, 3));
        if (twins_run(&t))
            twins_end(&t, (int)oracle_below(&rng, 5));
        else /* whose squares overflow */
            check_int("before", params->before, TW_BEFORE_ADAMW);
    }
    compare_states(&t);
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

static void any_before(oracle_rng *rng, tw_select_params *p) {
    int64_t which = p->feedback == TW_FEEDBACK_ON ? oracle_below(rng, 4) : 0;
    if (which == 1)
        p->momentum = 0.9f;
    if (which < 2)
        return;
    p->before = TW_BEFORE_ADAMW;
    p->beta1 = which == 2 ? 0.0 : 0.8;
    p->beta2 = 0.99;
    p->eps = oracle_below(rng, 2) == 0 ? 0.0 : 1e-3;
}

static tw_select_params any_params(oracle_rng *rng, int64_t n) {
    static const double densities[] = {0.001, 0.01, 0.05, 0.3, 1.0};
    tw_select_params p = TW_SELECT_PARAMS_INIT;
    p.method = check_method((int)oracle_below(rng, check_gpu_methods()));
    if (oracle_below(rng, 3) == 0)
        p.k = 1 + oracle_below(rng, n);
    else
        p.density = densities[oracle_below(rng, 5)];
    p.type = (int)oracle_below(rng, 3);
    p.feedback = oracle_below(rng, 5) == 0 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
    p.seed = oracle_next(rng);
    any_before(rng, &p);
    if (p.feedback == TW_FEEDBACK_ON)
        p.decay = oracle_below(rng, 3) == 0 ? 0.9f : 0.0f;
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
        params.method = check_method(trial % check_gpu_methods());
        run_course(n, &params, trial < 6 ? DATA_GAUSS : DATA_POWER5, (uint64_t)trial * 17, 0);
    }
}

static void run_long(int64_t n, const tw_select_params *params) {
    twins t;
    twins_open(&t, n, params, 0);
    for (int step = 0; step < long_steps; step++) {
        check_scene("method=%s before=%d step=%d", params->method, params->before, step);
        twins_fill(&t, DATA_GAUSS, 1.0f, (uint64_t)step);
        assert_true(twins_run(&t));
        twins_end(&t, 0);
    }
    compare_states(&t);
    twins_close(&t);
}

/* Long and calm, so that margins and reused thresholds settle. */
static void test_long_runs(void **state) {
    (void)state;
    for (int method = 0; method < check_gpu_methods(); method++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = check_method(method);
        params.density = 0.01;
        run_long(300000, &params);
        params.before = TW_BEFORE_ADAMW;
        run_long(100003, &params);
    }
}

/* ---- refusals */

static void run_bad_numbers(const tw_select_params *params) {
    static const int64_t places[] = {0, 4095, 4096, 70000, 99999};
    /* AdamW squares a gradient */
    const float large = params->before == TW_BEFORE_ADAMW ? -1e25f : -INFINITY;
    twins t;
    twins_open(&t, 100000, params, 0);
    for (int step = 0; step < 10; step++) {
        tw_sparse sparse;
        tw_select_info info;
        check_scene("method=%s before=%d step=%d", params->method, params->before, step);
        twins_fill(&t, DATA_GAUSS, 1.0f, (uint64_t)step);
        if (step % 2 == 0) {
            assert_true(twins_run(&t));
            twins_end(&t, 0);
            continue;
        }
        t.values[99999] = INFINITY;
        t.values[places[step / 2]] = step % 4 == 1 ? NAN : large;
        twins_upload(&t);
        if (step == 9) { /* committed unseen: it changes nothing */
            check_error(tw_selector_run(t.cpu, gradient_cpu(&t), &sparse), TW_ERR_NUMBER);
            check_ok(tw_selector_run(t.cuda, gradient_cuda(&t), &sparse));
            check_ok(tw_selector_commit(t.cuda, NULL, 0));
        } else {
            assert_false(twins_run(&t));
        }
        check_ok(tw_selector_info(t.cuda, &info));
        check_int("bad index", info.bad_index, places[step / 2]);
        check_int("refused", info.refused, step / 2 + 1);
        compare_states(&t);
    }
    twins_close(&t);
}

static void test_bad_numbers(void **state) {
    (void)state;
    for (int method = 0; method < check_gpu_methods(); method++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.density = 0.01;
        params.method = check_method(method);
        params.momentum = 0.5f;
        params.decay = 0.5f;
        run_bad_numbers(&params);
        params.momentum = params.decay = 0.0f;
        params.before = TW_BEFORE_ADAMW;
        run_bad_numbers(&params);
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
    compare_states(&t);
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
    compare_states(&t);
    twins_close(&t);
}

/* Fewer elements than k are not zero: that is learned once, and no step reads all elements again. */
static void test_few_non_zeros(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1000;
    twins t;
    twins_open(&t, 100000, &params, 0);
    for (int step = 0; step < 8; step++) {
        tw_select_info info;
        oracle_rng rng = {.key = (uint64_t)step};
        check_scene("few non-zeros, step=%d", step);
        for (int64_t i = 0; i < t.n; i++)
            t.values[i] = i % 200 == 0 ? (float)oracle_gauss(&rng) : 0.0f;
        twins_upload(&t);
        twins_run(&t);
        check_ok(tw_selector_info(t.cuda, &info));
        check_int("selected", info.count, t.n / 200);
        if (step >= 2)
            check_int("rescans", info.rescans, 0);
        twins_end(&t, 0);
    }
    twins_close(&t);
}

/* Some elements of zeros; `every` 1: all are Gaussian numbers, 0: none is. */
static void fill_every(twins *t, int64_t every, uint64_t seed) {
    oracle_rng rng = {.key = seed};
    for (int64_t i = 0; i < t->n; i++)
        t->values[i] = every > 0 && i % every == 0 ? (float)oracle_gauss(&rng) : 0.0f;
    twins_upload(t);
}

enum { SPARSE_STEPS = 3, DENSE_STEPS = 7 };

/* Steps with few non-zeros, whose candidates are all of them; then steps with none that is zero. */
static void become_dense(const tw_select_params *params, int64_t every) {
    twins t;
    twins_open(&t, 1000000, params, 0);
    for (int step = 0; step < SPARSE_STEPS + DENSE_STEPS; step++) {
        tw_select_info info;
        const int dense = step - SPARSE_STEPS;
        check_scene("method=%s k=%lld feedback=%d, every %lld, then all, step=%d", params->method,
                    (long long)params->k, params->feedback, (long long)every, step);
        fill_every(&t, dense >= 0 ? 1 : every, (uint64_t)step);
        assert_true(twins_run(&t));
        check_ok(tw_selector_info(t.cuda, &info));
        if (step == SPARSE_STEPS - 1)
            check_int("rescans", info.rescans, 0);
        if (dense >= 4) /* with feedback magnitudes still grow from step to step */
            check_between("candidates", info.candidates, 0,
                          (params->feedback == TW_FEEDBACK_ON ? 12 : 4) * params->k);
        twins_end(&t, 0);
    }
    twins_close(&t);
}

/* The guess rises within four steps, from that which collects everything. */
static void test_becomes_dense(void **state) {
    (void)state;
    const int64_t k[] = {100, 8192, 20000};
    for (int i = 0; i < 3; i++)
        for (int feedback = TW_FEEDBACK_ON; feedback <= TW_FEEDBACK_OFF; feedback++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.k = k[i];
            params.feedback = feedback;
            become_dense(&params, 0);
            become_dense(&params, 20000); /* 50 of a million */
        }
}

/* Values from 1 on, this many of them, so that one bin near the guess has nearly all candidates. */
static void fill_narrow(twins *t, int64_t values, uint64_t seed) {
    oracle_rng rng = {.key = seed};
    for (int64_t i = 0; i < t->n; i++)
        t->values[i] = 1.0f + 0x1p-23f * (float)oracle_below(&rng, values);
    twins_upload(t);
}

/* In the bin of the k-th largest are too many to gather. Its magnitudes tell them apart, unless too many
 * are equal. Twice k candidates fit into their slots: 102 of 4,096 elements, where 256 have room. */
static void test_steep(void **state) {
    (void)state;
    const int64_t values[] = {8192, 1400, 40};
    for (int i = 0; i < 3; i++)
        for (int feedback = TW_FEEDBACK_ON; feedback <= TW_FEEDBACK_OFF; feedback++) {
            twins t;
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.k = 10000;
            params.feedback = feedback;
            twins_open(&t, 800000, &params, 0);
            for (int step = 0; step < STEPS; step++) {
                check_scene("%lld values, feedback=%d, step=%d", (long long)values[i], feedback,
                            step);
                fill_narrow(&t, values[i], (uint64_t)step);
                assert_true(twins_run(&t));
                twins_end(&t, step == 3);
            }
            compare_states(&t);
            twins_close(&t);
        }
}

/* Magnitudes from 1 to 1.3 become four times as large at once. All bins near the guess together span a
 * quarter for so large a k: the guess must come close enough to the k-th largest, or it never does. */
static void test_guess_of_many_recovers(void **state) {
    (void)state;
    twins t;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 600000;
    params.feedback = TW_FEEDBACK_OFF;
    twins_open(&t, 3000000, &params, 0);
    for (int step = 0; step < 8; step++) {
        tw_select_info info;
        oracle_rng rng = {.key = (uint64_t)step};
        check_scene("guess of many, step=%d", step);
        for (int64_t i = 0; i < t.n; i++)
            t.values[i] = (float)((step < 2 ? 0.25 : 1.0) * (1.0 + 0.3 * oracle_uniform(&rng)));
        twins_upload(&t);
        assert_true(twins_run(&t));
        check_ok(tw_selector_info(t.cuda, &info));
        if (step >= 5)
            check_between("candidates", info.candidates, params.k, 5 * params.k / 2);
        twins_end(&t, 0);
    }
    twins_close(&t);
}

/* The bare pass over the memory of AdamW, aligned and not, to an end that is not whole. */
static void test_bare_pass_of_adamw(void **state) {
    (void)state;
    enum { N = 10007, VECTORS = 4 };
    float *values = check_alloc(N, sizeof *values), *got = check_alloc(N, sizeof *got);
    float *on_gpu[VECTORS];
    for (int64_t shift = 0; shift < 2; shift++) {
        check_scene("bare pass, shift=%lld", (long long)shift);
        for (int v = 0; v < VECTORS; v++) {
            on_gpu[v] = (float *)gpu_alloc(4 * N) + shift;
            oracle_fill(values, N, DATA_GAUSS, (uint64_t)v);
            gpu_ok(cudaMemcpy(on_gpu[v], values, 4 * N, cudaMemcpyHostToDevice));
        }
        check_ok(tw_cuda_accumulate_adamw(on_gpu[0], on_gpu[1], on_gpu[2], on_gpu[3], N, NULL));
        float *g = check_alloc(N, sizeof *g);
        oracle_fill(g, N, DATA_GAUSS, 3);
        for (int v = 0; v < VECTORS; v++) {
            oracle_fill(values, N, DATA_GAUSS, (uint64_t)v);
            for (int i = 0; i < N && v < 3; i++)
                values[i] += g[i];
            gpu_ok(cudaMemcpy(got, on_gpu[v], 4 * N, cudaMemcpyDeviceToHost));
            check_bits("vector", got, values, N);
            gpu_ok(cudaFree(on_gpu[v] - shift));
        }
        free(g);
    }
    check_error(tw_cuda_accumulate_adamw(got, got, NULL, got, N, NULL), TW_ERR_NULL);
    check_error(tw_cuda_accumulate_adamw(got, got, got, got, 0, NULL), TW_ERR_SIZE);
    free(values);
    free(got);
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
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu),
        cmocka_unit_test(test_same_as_cpu_large),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_wrong_memory),
        cmocka_unit_test(test_no_such_gpu),
        cmocka_unit_test(test_set_residual),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_few_non_zeros),
        cmocka_unit_test(test_bare_pass_of_adamw),
        cmocka_unit_test(test_becomes_dense),
        cmocka_unit_test(test_steep),
        cmocka_unit_test(test_guess_of_many_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
