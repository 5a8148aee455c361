/* test_momentum.c - momentum correction and clipping, as in Deep Gradient Compression
 *
 * Momentum correction (Lin et al., 2018) is compared bitwise with the paper: u = m * u + g, v = v +
 * u, and sent entries become zero in both. Clipping has a tolerance, as the norm depends on the
 * order of summation. The third part, warm-up, is in test_warmup.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 9001, K = 30 }; /* more than one of the blocks that kernels work on */

/* The paper's state, and the scratch of a step. */
typedef struct model {
    float momentum;
    float u[N], v[N];       /* velocity, residual */
    float new_u[N], acc[N]; /* of the open step */
    float grad[N], got[N];
    char raw[N * 4];
} model;

static void model_run(model *m) {
    for (int64_t i = 0; i < N; i++) {
        const float kept = m->momentum * m->u[i];
        m->new_u[i] = kept + m->grad[i];
        m->acc[i] = m->v[i] + m->new_u[i];
    }
}

static void model_commit(model *m, const int32_t *idx, int64_t count) {
    memcpy(m->u, m->new_u, sizeof m->u);
    memcpy(m->v, m->acc, sizeof m->v);
    for (int64_t j = 0; j < count; j++)
        m->u[idx[j]] = m->v[idx[j]] = 0.0f;
}

static void model_fill(model *m, int type, oracle_data kind, float scale, uint64_t seed) {
    oracle_fill(m->got, N, kind, seed);
    for (int64_t i = 0; i < N; i++)
        m->got[i] *= scale;
    oracle_encode(m->raw, m->got, N, type);
    oracle_decode(m->grad, m->raw, N, type);
}

/* End the step by commit of all, of half, of nothing, or by undo. */
static void finish(tw_selector *selector, model *m, const tw_sparse *sparse, int how) {
    int32_t half[N];
    int64_t count = 0;
    if (how == 1)
        for (int64_t j = 0; j < sparse->count; j += 2)
            half[count++] = sparse->idx[j];
    if (how == 0) {
        model_commit(m, sparse->idx, sparse->count);
        check_ok(tw_selector_commit(selector, NULL, 0));
    } else if (how == 1 || how == 2) {
        model_commit(m, half, count);
        check_ok(tw_selector_commit(selector, half, count));
    } else {
        check_ok(tw_selector_undo(selector, m->raw));
    }
}

static void momentum_step(tw_selector *selector, model *m, const tw_select_params *params,
                          int how) {
    tw_sparse sparse;
    model_run(m);
    check_ok(tw_selector_run(selector, m->raw, &sparse));
    check_sparse(&sparse, m->acc, N);
    if (strcmp(params->method, "exact") == 0) {
        int32_t idx[K];
        float val[K];
        const int64_t count = oracle_topk(m->acc, N, K, idx, val);
        check_selection(&sparse, count, idx, val);
    }
    finish(selector, m, &sparse, how);
}

static void check_residual(tw_selector *selector, model *m) {
    check_ok(tw_selector_get_residual(selector, m->got));
    check_bits("residual", m->got, m->v, N);
}

static void check_momentum(const tw_select_params *params, oracle_data kind) {
    model *m = check_alloc(1, sizeof *m);
    m->momentum = params->momentum;
    tw_selector *selector = check_create(N, params);
    for (int step = 0; step < 24; step++) {
        check_scene("method=%s type=%d momentum=%g threads=%d data=%s step=%d", params->method,
                    params->type, (double)params->momentum, params->threads, oracle_data_name(kind),
                    step);
        model_fill(m, params->type, kind, 1.0f, (uint64_t)step);
        momentum_step(selector, m, params, (step * step + step / 3) % 4);
        if (step % 5 == 4)
            check_residual(selector, m);
    }
    check_residual(selector, m);
    tw_selector_free(selector);
    free(m);
}

static void test_momentum(void **state) {
    (void)state;
    check_kernels_or_skip();
    const oracle_data kinds[] = {DATA_GAUSS, DATA_SUMMABLE, DATA_BITS};
    for (int method = 0; method < check_methods(); method++)
        for (int type = TW_F32; type <= TW_BF16; type++)
            for (int kind = 0; kind < 3; kind++) {
                tw_select_params params = TW_SELECT_PARAMS_INIT;
                params.method = check_method(method);
                params.k = K;
                params.type = type;
                params.threads = 1 + kind;
                params.momentum = kind == 1 ? 0.5f : 0.9f;
                check_momentum(&params, kinds[kind]);
            }
}

static double norm_of(const float *x) {
    double sum = 0;
    for (int64_t i = 0; i < N; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Velocity and residual in double, and the sum of magnitudes that were added, for the tolerance. */
typedef struct clip_model {
    double u[N], v[N], added[N];
} clip_model;

static void clip_apply(clip_model *c, const float *grad, float clip, float momentum) {
    const double norm = norm_of(grad);
    const double factor = norm > (double)clip ? (double)clip / norm : 1.0;
    for (int64_t i = 0; i < N; i++) {
        c->u[i] = (double)momentum * c->u[i] + factor * (double)grad[i];
        c->v[i] += c->u[i];
        c->added[i] += fabs(c->u[i]) + factor * fabs((double)grad[i]);
    }
}

static void clip_compare(const clip_model *c, const float *residual) {
    for (int64_t i = 0; i < N; i++)
        if (fabs((double)residual[i] - c->v[i]) > 1e-6 * c->added[i])
            check_fail("residual[%lld] is %.9g, expected %.9g", (long long)i, (double)residual[i],
                       c->v[i]);
}

/* Run and commit nothing: the residual, in got, is then the sum of the clipped gradients. */
static void run_and_keep(tw_selector *selector, model *m) {
    const int32_t none = 0;
    tw_sparse sparse;
    check_ok(tw_selector_run(selector, m->raw, &sparse));
    check_ok(tw_selector_commit(selector, &none, 0));
    check_ok(tw_selector_get_residual(selector, m->got));
}

static void check_clip(int type, float clip, float scale, float momentum) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.type = type;
    params.clip_norm = clip;
    params.momentum = momentum;
    model *m = check_alloc(1, sizeof *m);
    clip_model *c = check_alloc(1, sizeof *c);
    tw_selector *selector = check_create(N, &params);
    for (int step = 0; step < 3; step++) {
        check_scene("clip=%g scale=%g type=%d step=%d", (double)clip, (double)scale, type, step);
        model_fill(m, type, DATA_GAUSS, scale, (uint64_t)step);
        clip_apply(c, m->grad, clip, momentum);
        run_and_keep(selector, m);
        clip_compare(c, m->got);
    }
    tw_selector_free(selector);
    free(c);
    free(m);
}

static void test_clip(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int type = TW_F32; type <= TW_BF16; type++) {
        check_clip(type, 1.0f, 1.0f, 0.0f);
        check_clip(type, 1.0f, 100.0f, 0.9f);
        check_clip(type, 1e-3f, 1.0f, 0.0f);
    }
    check_clip(TW_F32, 1.0f, 1e30f, 0.0f); /* squares that overflow a float */
    check_clip(TW_F32, 1e-25f, 1e-20f, 0.0f);
}

/* A norm below the limit changes no bit. */
static void test_clip_leaves_small_alone(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.clip_norm = 1e6f;
    model *m = check_alloc(1, sizeof *m);
    tw_selector *selector = check_create(N, &params);
    model_fill(m, TW_F32, DATA_GAUSS, 1.0f, 5);
    run_and_keep(selector, m);
    check_bits("residual", m->got, m->grad, N);
    tw_selector_free(selector);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_clip_leaves_small_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
