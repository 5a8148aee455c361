/* test_adamw.c - AdamW before selection: what is selected, sent and kept, bit for bit
 *
 * The model repeats the arithmetic of src/backend/adamw.h in floats, operation by operation, so it
 * must agree in every bit. That this arithmetic is AdamW's is checked against Loshchilov and
 * Hutter's formulas in double.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 9001, K = 30 }; /* more than one of the blocks that kernels work on */

typedef struct model {
    tw_select_params params;
    double rate;
    int t;                    /* gradients in the moments */
    float m[N], v[N], e[N];   /* moments and residual */
    float new_m[N], new_v[N]; /* of the open step */
    float acc[N];
    float grad[N], got[N];
    char raw[N * 4];
} model;

static void model_run(model *a) {
    const double beta1 = a->params.beta1, beta2 = a->params.beta2;
    const float keep1 = (float)beta1, fresh1 = (float)(1.0 - beta1);
    const float keep2 = (float)beta2, fresh2 = (float)(1.0 - beta2);
    double power1 = 1.0, power2 = 1.0;
    for (int i = 0; i <= a->t; i++) {
        power1 *= beta1;
        power2 *= beta2;
    }
    const float rate = (float)(a->rate / (1.0 - power1));
    const float root = (float)(1.0 / sqrt(1.0 - power2)), eps = (float)a->params.eps;
    for (int64_t i = 0; i < N; i++) {
        const float g = a->grad[i];
        a->new_m[i] = keep1 * a->m[i] + fresh1 * g;
        a->new_v[i] = keep2 * a->v[i] + fresh2 * g * g;
        const float d = root * sqrtf(a->new_v[i]) + eps;
        const float u = rate * a->new_m[i] / d;
        a->acc[i] = a->e[i] + u;
    }
}

static void model_commit(model *a, const int32_t *idx, int64_t count) {
    memcpy(a->m, a->new_m, sizeof a->m);
    memcpy(a->v, a->new_v, sizeof a->v);
    memcpy(a->e, a->acc, sizeof a->e);
    a->t++;
    for (int64_t j = 0; j < count; j++)
        a->e[idx[j]] = 0.0f; /* the moments stay */
}

static void model_fill(model *a, oracle_data kind, uint64_t seed) {
    oracle_fill(a->got, N, kind, seed);
    oracle_encode(a->raw, a->got, N, a->params.type);
    oracle_decode(a->grad, a->raw, N, a->params.type);
}

static tw_select_params params_of(const char *method, int type) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = K;
    params.type = type;
    params.before = TW_BEFORE_ADAMW;
    params.beta1 = 0.75; /* powers of these are exact, however they are computed */
    params.beta2 = 0.875;
    params.eps = 1e-6;
    params.rate = 0.01;
    return params;
}

/* End the step by commit of all, of half, of nothing, or by undo. */
static void finish(tw_selector *selector, model *a, const tw_sparse *sparse, int how) {
    int32_t half[N];
    int64_t count = 0;
    if (how == 1)
        for (int64_t j = 0; j < sparse->count; j += 2)
            half[count++] = sparse->idx[j];
    if (how == 0) {
        model_commit(a, sparse->idx, sparse->count);
        check_ok(tw_selector_commit(selector, NULL, 0));
    } else if (how == 1 || how == 2) {
        model_commit(a, half, count);
        check_ok(tw_selector_commit(selector, half, count));
    } else {
        check_ok(tw_selector_undo(selector, a->raw));
    }
}

static void one_step(tw_selector *selector, model *a, int how) {
    tw_sparse sparse;
    model_run(a);
    check_ok(tw_selector_run(selector, a->raw, &sparse));
    check_sparse(&sparse, a->acc, N);
    if (strcmp(a->params.method, "exact") == 0) {
        int32_t idx[K];
        float val[K];
        const int64_t count = oracle_topk(a->acc, N, K, idx, val);
        check_selection(&sparse, count, idx, val);
    }
    finish(selector, a, &sparse, how);
}

static void check_residual(tw_selector *selector, model *a) {
    check_ok(tw_selector_get_residual(selector, a->got));
    check_bits("residual", a->got, a->e, N);
}

static void check_adamw(const tw_select_params *params, oracle_data kind) {
    model *a = check_alloc(1, sizeof *a);
    *a = (model){.params = *params, .rate = params->rate};
    tw_selector *selector = check_create(N, params);
    for (int step = 0; step < 24; step++) {
        check_scene("method=%s type=%d threads=%d data=%s step=%d", params->method, params->type,
                    params->threads, oracle_data_name(kind), step);
        if (step % 7 == 6) { /* as a schedule does; 0 is a rate too */
            a->rate = step == 13 ? 0.0 : 0.5 * params->rate;
            check_ok(tw_selector_set_rate(selector, a->rate));
        }
        model_fill(a, kind, (uint64_t)step);
        one_step(selector, a, (step * step + step / 3) % 4);
        if (step % 5 == 4)
            check_residual(selector, a);
    }
    check_residual(selector, a);
    tw_selector_free(selector);
    free(a);
}

static void test_adamw(void **state) {
    (void)state;
    check_kernels_or_skip();
    const oracle_data kinds[] = {DATA_GAUSS, DATA_SUMMABLE, DATA_POWER5};
    for (int method = 0; method < check_methods(); method++)
        for (int type = TW_F32; type <= TW_BF16; type++)
            for (int kind = 0; kind < 3; kind++) {
                tw_select_params params = params_of(check_method(method), type);
                params.threads = 1 + kind;
                check_adamw(&params, kinds[kind]);
            }
}

/* The paper's algorithm in double. */
typedef struct paper {
    double m[N], v[N], sum[N];
} paper;

static void paper_step(paper *p, const float *grad, int t, const tw_select_params *params) {
    const double beta1 = params->beta1, beta2 = params->beta2;
    for (int64_t i = 0; i < N; i++) {
        p->m[i] = beta1 * p->m[i] + (1.0 - beta1) * (double)grad[i];
        p->v[i] = beta2 * p->v[i] + (1.0 - beta2) * (double)grad[i] * (double)grad[i];
        const double m = p->m[i] / (1.0 - pow(beta1, t)), v = p->v[i] / (1.0 - pow(beta2, t));
        p->sum[i] += params->rate * m / (sqrt(v) + params->eps);
    }
}

/* Nothing is sent, so the residual is the sum of all updates. Defaults are those of the header. */
static void test_is_the_papers(void **state) {
    (void)state;
    check_kernels_or_skip();
    static const int32_t none;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.before = TW_BEFORE_ADAMW;
    tw_selector *selector = check_create(N, &params);
    params.beta1 = 0.9;
    params.beta2 = 0.999;
    params.eps = 1e-8;
    params.rate = 1e-3;
    paper *p = check_alloc(1, sizeof *p);
    float *grad = check_alloc(N, sizeof *grad);
    for (int t = 1; t <= 60; t++) {
        tw_sparse sparse;
        oracle_fill(grad, N, DATA_GAUSS, (uint64_t)t);
        paper_step(p, grad, t, &params);
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_commit(selector, &none, 0));
    }
    check_ok(tw_selector_get_residual(selector, grad));
    for (int64_t i = 0; i < N; i++)
        if (fabs((double)grad[i] - p->sum[i]) > 60 * params.rate * 1e-6)
            check_fail("the updates of element %lld sum up to %.9g, expected %.9g", (long long)i,
                       (double)grad[i], p->sum[i]);
    tw_selector_free(selector);
    free(grad);
    free(p);
}

/* Clipping comes first: a gradient far above the norm gives the step of the clipped one. */
static void test_clip_comes_first(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = params_of("exact", TW_F32);
    tw_selector *plain = check_create(N, &params);
    params.clip_norm = 1.0f;
    tw_selector *clipped = check_create(N, &params);
    float *grad = check_alloc(N, sizeof *grad), *large = check_alloc(N, sizeof *large);
    for (int64_t i = 0; i < N; i++)
        grad[i] = 0.0f;
    grad[3] = 0.5f; /* norm 1 in all, powers of two: scaling is exact */
    grad[4] = -0.5f;
    grad[5] = 0.5f;
    grad[6] = 0.5f;
    for (int64_t i = 0; i < N; i++)
        large[i] = 1024.0f * grad[i];
    tw_sparse want, got;
    check_ok(tw_selector_run(plain, grad, &want));
    check_ok(tw_selector_run(clipped, large, &got));
    check_selection(&got, want.count, want.idx, want.val);
    tw_selector_free(plain);
    tw_selector_free(clipped);
    free(grad);
    free(large);
}

/* NaN, infinity, and a square that overflows are refused. Nothing has changed then, the count of
 * gradients in the moments included. */
static void test_refusals(void **state) {
    (void)state;
    check_kernels_or_skip();
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e20f, FLT_MAX};
    tw_select_params params = params_of("exact", TW_F32);
    params.threads = 2;
    model *a = check_alloc(1, sizeof *a);
    *a = (model){.params = params, .rate = params.rate};
    tw_selector *selector = check_create(N, &params);
    for (int step = 0; step < 10; step++) {
        tw_sparse sparse;
        tw_select_info info;
        const int64_t at = (step * 1800 + 7) % N;
        check_scene("%g at %lld", (double)bad[step % 5], (long long)at);
        model_fill(a, DATA_GAUSS, (uint64_t)step);
        const float good = a->grad[at];
        memcpy(a->raw + 4 * at, &bad[step % 5], 4);
        check_error(tw_selector_run(selector, a->raw, &sparse), TW_ERR_NUMBER);
        check_ok(tw_selector_info(selector, &info));
        check_int("bad_index", info.bad_index, at);
        check_residual(selector, a);
        memcpy(a->raw + 4 * at, &good, 4);
        one_step(selector, a, step % 3);
    }
    check_residual(selector, a);
    tw_selector_free(selector);
    free(a);
}

static void test_bad_rates(void **state) {
    (void)state;
    const double bad[] = {-1e-9, -INFINITY, INFINITY, NAN, 1e39};
    tw_select_params params = params_of("exact", TW_F32);
    tw_selector *selector = check_create(N, &params);
    for (int i = 0; i < 5; i++) {
        check_scene("rate %g", bad[i]);
        check_error(tw_selector_set_rate(selector, bad[i]), TW_ERR_PARAM);
        check_contains(tw_last_error(), "rate");
    }
    check_error(tw_selector_set_rate(NULL, 1.0), TW_ERR_NULL);
    float *grad = check_alloc(N, sizeof *grad);
    tw_sparse sparse;
    oracle_fill(grad, N, DATA_GAUSS, 1);
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_error(tw_selector_set_rate(selector, 1.0), TW_ERR_STATE);
    tw_selector_free(selector);
    params = (tw_select_params){.k = K};
    selector = check_create(N, &params);
    check_error(tw_selector_set_rate(selector, 1.0), TW_ERR_PARAM);
    check_contains(tw_last_error(), "TW_BEFORE_ADAMW");
    tw_selector_free(selector);
    free(grad);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_is_the_papers),
        cmocka_unit_test(test_clip_comes_first),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
