/* test_decay.c - decay of the residual: e becomes decay * e before the next gradient is added
 *
 * Residuals are compared bitwise with a model, whatever ends the step. What decays is counted: on
 * numbers that sum exactly, sent + new residual + decayed = gradient + old residual.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 70001, K = 500 }; /* more than one of the chunks that threads work on */

typedef struct model {
    float e[N], acc[N], grad[N], got[N];
    char raw[N * 4];
    int32_t half[N];
} model;

static void model_run(model *m, int type, oracle_data kind, uint64_t seed) {
    oracle_fill(m->got, N, kind, seed);
    oracle_encode(m->raw, m->got, N, type);
    oracle_decode(m->grad, m->raw, N, type);
    for (int64_t i = 0; i < N; i++)
        m->acc[i] = m->e[i] + m->grad[i];
}

static double model_commit(model *m, const int32_t *idx, int64_t count, float decay) {
    double lost = 0.0;
    memcpy(m->e, m->acc, sizeof m->e);
    for (int64_t j = 0; j < count; j++)
        m->e[idx[j]] = 0.0f;
    for (int64_t i = 0; i < N; i++) {
        lost += (double)m->e[i];
        m->e[i] *= decay;
        lost -= (double)m->e[i];
    }
    return lost;
}

static double decayed(const tw_selector *selector) {
    tw_select_info info;
    check_ok(tw_selector_info(selector, &info));
    return info.decayed;
}

/* End the step by commit of all, of half, of nothing, or by undo. Returns what should be lost. */
static double finish(tw_selector *selector, model *m, const tw_sparse *sparse, int how,
                     float decay) {
    int64_t count = 0;
    double lost = 0.0;
    for (int64_t j = 0; how == 1 && j < sparse->count; j += 2)
        m->half[count++] = sparse->idx[j];
    if (how == 3) {
        check_ok(tw_selector_undo(selector, m->raw));
        return 0.0;
    }
    lost = how == 0 ? model_commit(m, sparse->idx, sparse->count, decay)
                    : model_commit(m, m->half, count, decay);
    check_ok(tw_selector_commit(selector, how == 0 ? NULL : m->half, count));
    return lost;
}

static void check_decay(const tw_select_params *params, oracle_data kind) {
    model *m = check_alloc(1, sizeof *m);
    tw_selector *selector = check_create(N, params);
    for (int step = 0; step < 8; step++) {
        tw_sparse sparse;
        check_scene("method=%s type=%d threads=%d data=%s step=%d", params->method, params->type,
                    params->threads, oracle_data_name(kind), step);
        model_run(m, params->type, kind, (uint64_t)step);
        check_ok(tw_selector_run(selector, m->raw, &sparse));
        check_sparse(&sparse, m->acc, N);
        double lost = finish(selector, m, &sparse, (step * step + step / 3) % 4, params->decay);
        check_ok(tw_selector_get_residual(selector, m->got));
        check_bits("residual", m->got, m->e, N);
        if (kind == DATA_SUMMABLE && decayed(selector) != lost)
            check_fail("decayed is %.17g, expected %.17g", decayed(selector), lost);
    }
    tw_selector_free(selector);
    free(m);
}

static void test_residual_decays(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++)
        for (int kind = 0; kind < 2; kind++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = check_method(method);
            params.k = K;
            params.type = kind == 0 ? TW_F32 : TW_BF16;
            params.threads = 1 + kind;
            params.decay = kind == 0 ? 0.5f : 0.95f; /* 0.5: sums stay exact */
            check_decay(&params, kind == 0 ? DATA_SUMMABLE : DATA_BITS);
        }
}

/* What is counted does not depend on the number of threads. */
static void test_count_does_not_depend_on_threads(void **state) {
    (void)state;
    check_kernels_or_skip();
    double first = 0.0;
    for (int threads = 1; threads <= 4; threads++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        tw_sparse sparse;
        model *m = check_alloc(1, sizeof *m);
        params.k = K;
        params.threads = threads;
        params.decay = 0.9f;
        tw_selector *selector = check_create(N, &params);
        model_run(m, TW_F32, DATA_GAUSS, 3);
        check_ok(tw_selector_run(selector, m->raw, &sparse));
        check_ok(tw_selector_commit(selector, NULL, 0));
        first = threads == 1 ? decayed(selector) : first;
        check_true(first != 0.0 && decayed(selector) == first);
        tw_selector_free(selector);
        free(m);
    }
}

/* A step that is refused does not decay. */
static void test_refused_step(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_sparse sparse;
    model *m = check_alloc(1, sizeof *m);
    params.k = K;
    params.decay = 0.5f;
    tw_selector *selector = check_create(N, &params);
    model_run(m, TW_F32, DATA_GAUSS, 1);
    check_ok(tw_selector_run(selector, m->raw, &sparse));
    (void)finish(selector, m, &sparse, 0, params.decay);
    memcpy(m->grad, m->raw, sizeof m->grad);
    m->grad[N / 2] = NAN;
    check_error(tw_selector_run(selector, m->grad, &sparse), TW_ERR_NUMBER);
    check_ok(tw_selector_get_residual(selector, m->got));
    check_bits("residual", m->got, m->e, N);
    tw_selector_free(selector);
    free(m);
}

static void test_refusals(void **state) {
    (void)state;
    const float bad[] = {-0.5f, 1.5f, NAN, INFINITY};
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_selector *selector = NULL;
    params.k = K;
    for (int i = 0; i < 4; i++) {
        params.decay = bad[i];
        check_error(tw_selector_create(&selector, N, &params), TW_ERR_PARAM);
        check_contains(tw_last_error(), "decay");
    }
    params.decay = 0.5f;
    params.feedback = TW_FEEDBACK_OFF;
    check_error(tw_selector_create(&selector, N, &params), TW_ERR_PARAM);
    check_contains(tw_last_error(), "decay: needs feedback");
    params.decay = 1.0f; /* none */
    check_ok(tw_selector_create(&selector, N, &params));
    tw_selector_free(selector);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residual_decays),
        cmocka_unit_test(test_count_does_not_depend_on_threads),
        cmocka_unit_test(test_refused_step),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
