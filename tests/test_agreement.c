/* test_agreement.c - the result depends on inputs, parameters and seed alone
 *
 * For every method, a record is made with the reference kernels on one thread; every other kind of
 * kernels and number of threads must repeat it bit for bit, also when run again. The vector spans
 * several of the parts that threads take in turn, and its scale moves a little from step to step,
 * so that some threads find more than they have room for while others do not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 330007, K = 1500, STEPS = 9 };

/* What a course selected, step by step. */
typedef struct record {
    int64_t count[STEPS];
    float threshold[STEPS];
    int32_t idx[STEPS][4 * K];
    float val[STEPS][4 * K];
    float residual[N];
} record;

/* The gradients of a course, made once: [STEPS][N] of a type. */
static char *make_gradients(oracle_data kind, int type)
{
    const float factors[STEPS] = {1.0f, 1.2f, 1.5f, 2.0f, 1.0f, 0.7f, 1.8f, 10.0f, 0.1f};
    const int64_t bytes = N * oracle_type_size(type);
    char *all = check_alloc(STEPS, bytes);
    float *x = check_alloc(N, sizeof *x);
    for (int step = 0; step < STEPS; step++) {
        oracle_fill(x, N, kind, (uint64_t)step);
        for (int64_t i = 0; i < N; i++)
            x[i] *= factors[step];
        oracle_encode(all + step * bytes, x, N, type);
    }
    free(x);
    return all;
}

static void keep(record *r, int step, const tw_sparse *sparse, float threshold)
{
    check_between("count", sparse->count, 0, 4 * K);
    r->count[step] = sparse->count;
    r->threshold[step] = threshold;
    memcpy(r->idx[step], sparse->idx, (size_t)sparse->count * sizeof(int32_t));
    memcpy(r->val[step], sparse->val, (size_t)sparse->count * sizeof(float));
}

static void run_course(const tw_select_params *params, const char *gradients, record *r)
{
    tw_selector *selector = check_create(N, params);
    for (int step = 0; step < STEPS; step++) {
        tw_sparse sparse;
        tw_select_info info;
        const char *grad = gradients + step * N * oracle_type_size(params->type);
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_info(selector, &info));
        keep(r, step, &sparse, info.threshold);
        check_ok(tw_selector_commit(selector, NULL, 0));
    }
    check_ok(tw_selector_get_residual(selector, r->residual));
    tw_selector_free(selector);
}

static void compare(const record *got, const record *want, const char *course)
{
    for (int step = 0; step < STEPS; step++) {
        check_scene("%s step=%d", course, step);
        const tw_sparse sparse = {got->count[step], got->idx[step], got->val[step]};
        check_selection(&sparse, want->count[step], want->idx[step], want->val[step]);
        check_float("info.threshold", got->threshold[step], want->threshold[step]);
    }
    check_bits("residual", got->residual, want->residual, N);
}

/* One set of parameters with every kind of kernels and several numbers of threads. */
static void everywhere(tw_select_params params, oracle_data kind)
{
    const int threads[] = {1, 2, 3, 7};
    char *gradients = make_gradients(kind, params.type);
    record *want = check_alloc(1, sizeof *want);
    record *got = check_alloc(1, sizeof *got);
    const char *kernels;
    int usable;
    setenv("THINWIRE_KERNELS", "ref", 1);
    params.threads = 1;
    run_course(&params, gradients, want);
    for (int at = 0; tw_kernels_at(at, &kernels, &usable) == TW_OK; at++)
        for (int t = 0; t < 4 && usable; t++) {
            char course[160];
            snprintf(course, sizeof course,
                     "method=%s data=%s type=%d feedback=%d momentum=%g clip=%g on %s, threads=%d",
                     params.method, oracle_data_name(kind), params.type, params.feedback,
                     (double)params.momentum, (double)params.clip_norm, kernels, threads[t]);
            setenv("THINWIRE_KERNELS", kernels, 1);
            params.threads = threads[t];
            run_course(&params, gradients, got);
            compare(got, want, course);
        }
    unsetenv("THINWIRE_KERNELS");
    free(gradients);
    free(want);
    free(got);
}

static tw_select_params params_of(int method)
{
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = check_method(method);
    params.k = K;
    params.seed = 11;
    params.reuse_period = 4;
    return params;
}

static void test_feedback(void **state)
{
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        everywhere(params_of(method), DATA_GAUSS);
}

static void test_no_feedback(void **state)
{
    (void)state;
    for (int method = 0; method < check_methods(); method++) {
        tw_select_params params = params_of(method);
        params.feedback = TW_FEEDBACK_OFF;
        everywhere(params, method % 2 ? DATA_POWER5 : DATA_GAUSS);
    }
}

static void test_types(void **state)
{
    (void)state;
    for (int method = 0; method < check_methods(); method++) {
        tw_select_params params = params_of(method);
        params.type = TW_F16 + method % 2;
        everywhere(params, DATA_LAPLACE);
    }
}

static void test_momentum_and_clip(void **state)
{
    (void)state;
    for (int method = 0; method < check_methods(); method++) {
        tw_select_params params = params_of(method);
        params.momentum = method % 2 ? 0.9f : 0.0f;
        params.clip_norm = 3.0f;
        everywhere(params, DATA_GAUSS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feedback),
        cmocka_unit_test(test_no_feedback),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_momentum_and_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
