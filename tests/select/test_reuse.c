/* test_reuse.c - "reuse" against the rule of Ok-Topk, step by step
 *
 * Every reuse_period steps, and when the count leaves [k/4, 4k], exactly k entries are selected,
 * and their smallest magnitude becomes the threshold. In between, all entries from the threshold on
 * are selected; then the threshold moves by reuse_nudge if the count left [low * k, high * k]. The
 * model below does the same on a full copy of acc and must select the same entries in every step.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* K such that neither limit is a whole number: on one, rounding would decide. */
enum { N = 6007, K = 121 };

typedef struct model {
    float low, high, nudge;
    int period, age; /* age: steps since the last exact one that was due */
    float threshold;
    float residual[N], acc[N], grad[N];
    int32_t idx[N];
    float val[N];
} model;

static int64_t above(const model *m) {
    int64_t count = 0;
    for (int64_t i = 0; i < N; i++)
        count += oracle_magnitude(m->acc[i]) >= oracle_magnitude(m->threshold);
    return count;
}

static float smallest(const float *val, int64_t count) {
    uint32_t bits = count ? UINT32_MAX : 0;
    for (int64_t j = 0; j < count; j++)
        if (oracle_magnitude(val[j]) < bits)
            bits = oracle_magnitude(val[j]);
    return oracle_float(bits);
}

/* The model's selection for acc, in idx and val. */
static int64_t select_by_rule(model *m) {
    const int due = m->threshold == 0.0f || m->age == m->period;
    const int64_t passing = above(m);
    m->age = due ? 1 : m->age + 1;
    if (due || passing > 4 * K || 4 * passing < K) {
        const int64_t count = oracle_topk(m->acc, N, K, m->idx, m->val);
        m->threshold = smallest(m->val, count);
        return count;
    }
    if ((float)passing < m->low * K)
        m->threshold *= 1.0f - m->nudge;
    else if ((float)passing > m->high * K)
        m->threshold *= 1.0f + m->nudge;
    return oracle_topk(m->acc, N, passing, m->idx, m->val);
}

static void step(tw_selector *selector, model *m) {
    tw_sparse sparse;
    for (int64_t i = 0; i < N; i++)
        m->acc[i] = m->grad[i] + m->residual[i];
    const int64_t count = select_by_rule(m);
    check_ok(tw_selector_run(selector, m->grad, &sparse));
    check_selection(&sparse, count, m->idx, m->val);
    check_ok(tw_selector_commit(selector, NULL, 0));
    memcpy(m->residual, m->acc, sizeof m->acc);
    for (int64_t j = 0; j < count; j++)
        m->residual[m->idx[j]] = 0.0f;
}

/* params: 0 is default; the model gets the documented defaults. */
static model *model_of(const tw_select_params *params) {
    model *m = check_alloc(1, sizeof *m);
    m->period = params->reuse_period ? params->reuse_period : 32;
    m->low = params->reuse_low > 0 ? params->reuse_low : 2.0f / 3;
    m->high = params->reuse_high > 0 ? params->reuse_high : 5.0f / 4;
    m->nudge = params->reuse_nudge > 0 ? params->reuse_nudge : 0.01f;
    return m;
}

/* 70 steps whose scale grows and shrinks by the factor `swing`, so that thresholds must move. */
static void check_reuse(tw_select_params params, oracle_data kind, float swing) {
    params.method = "reuse";
    params.k = K;
    model *m = model_of(&params);
    tw_selector *selector = check_create(N, &params);
    float factor = 1.0f;
    int nudges = 0;
    for (int at = 0; at < 70; at++) {
        check_scene("data=%s swing=%g period=%d step=%d threshold=%g", oracle_data_name(kind),
                    (double)swing, m->period, at, (double)m->threshold);
        oracle_fill(m->grad, N, kind, (uint64_t)at);
        factor *= at / 10 % 2 ? 1.0f / swing : swing;
        for (int64_t i = 0; i < N; i++)
            m->grad[i] *= factor;
        const float before = m->threshold;
        step(selector, m);
        nudges += m->age > 1 && oracle_bits(m->threshold) != oracle_bits(before);
    }
    check_true(nudges > 0 || m->period == 1); /* or the rule was not tested */
    tw_selector_free(selector);
    free(m);
}

static void test_defaults(void **state) {
    (void)state;
    check_kernels_or_skip();
    const tw_select_params params = TW_SELECT_PARAMS_INIT;
    check_reuse(params, DATA_GAUSS, 1.0f);
    check_reuse(params, DATA_GAUSS, 1.1f);
    check_reuse(params, DATA_POWER5, 1.5f); /* jumps of more than 4x */
    check_reuse(params, DATA_LAPLACE, 0.9f);
}

static void test_own_values(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.reuse_period = 5;
    params.reuse_low = 0.9f;
    params.reuse_high = 1.1f;
    params.reuse_nudge = 0.2f;
    params.threads = 3;
    check_reuse(params, DATA_GAUSS, 1.05f);
    params.reuse_period = 1; /* always exact */
    check_reuse(params, DATA_GAUSS, 1.05f);
}

/* Without the model: exactly k at every period, and the threshold in the info. */
static void test_period_is_exact(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "reuse";
    params.k = K;
    params.reuse_period = 8;
    tw_selector *selector = check_create(N, &params);
    float *grad = check_alloc(N, sizeof *grad);
    int others = 0;
    for (int at = 0; at < 40; at++) {
        tw_sparse sparse;
        tw_select_info info;
        check_scene("period of 8, step=%d", at);
        oracle_fill(grad, N, DATA_GAUSS, (uint64_t)at);
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_info(selector, &info));
        check_float("info.threshold", info.threshold, smallest(sparse.val, sparse.count));
        if (at % 8 == 0)
            check_int("count", sparse.count, K);
        others += sparse.count != K;
        check_ok(tw_selector_commit(selector, NULL, 0));
    }
    check_true(others > 10); /* in between the count is what passes */
    tw_selector_free(selector);
    free(grad);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_own_values),
        cmocka_unit_test(test_period_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
