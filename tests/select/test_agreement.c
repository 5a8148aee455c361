/* test_agreement.c - the result depends on inputs, parameters and seed alone
 *
 * For every method, the reference kernels on one thread make a record; every other kind of kernels
 * and number of threads must repeat it bit for bit. The vector spans several of the chunks that
 * threads take, and its scale changes a little from step to step, so that some threads find more
 * candidates than they have room for while others do not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Large enough that threads wake up before one of them has done it all. */
#if defined(__SANITIZE_ADDRESS__) /* it is slower: fewer will do */
enum { N = 300011, K = 1400, STEPS = 9 };
#else
enum { N = 800011, K = 3700, STEPS = 9 };
#endif

/* What was selected, step by step. */
typedef struct record {
    int64_t count[STEPS];
    float threshold[STEPS];
    int32_t idx[STEPS][N];
    float val[STEPS][N];
    float residual[N];
} record;

/* Gradients [STEPS][N] of a type: one vector, rotated and scaled. */
static char *make_gradients(oracle_data kind, int type) {
    const float factors[STEPS] = {1.0f, 1.2f, 1.5f, 2.0f, 1.0f, 0.7f, 1.8f, 10.0f, 0.1f};
    const int64_t bytes = N * oracle_type_size(type);
    char *all = check_alloc(STEPS, bytes);
    float *base = check_alloc(N, sizeof *base);
    float *x = check_alloc(N, sizeof *x);
    oracle_fill(base, N, kind, 1);
    for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < N; i++)
            x[i] = base[(i + 7919 * step) % N] * factors[step];
        oracle_encode(all + step * bytes, x, N, type);
    }
    free(base);
    free(x);
    return all;
}

static void keep(record *r, int step, const tw_sparse *sparse, float threshold) {
    check_between("count", sparse->count, 0, N);
    r->count[step] = sparse->count;
    r->threshold[step] = threshold;
    memcpy(r->idx[step], sparse->idx, (size_t)sparse->count * sizeof(int32_t));
    memcpy(r->val[step], sparse->val, (size_t)sparse->count * sizeof(float));
}

static void record_run(const tw_select_params *params, const char *gradients, record *r) {
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

static void compare(const record *got, const record *want, const char *what) {
    for (int step = 0; step < STEPS; step++) {
        check_scene("%s step=%d", what, step);
        const tw_sparse sparse = {
            .count = got->count[step], .idx = got->idx[step], .val = got->val[step]};
        check_selection(&sparse, want->count[step], want->idx[step], want->val[step]);
        check_float("info.threshold", got->threshold[step], want->threshold[step]);
    }
    check_bits("residual", got->residual, want->residual, N);
}

/* One set of parameters with every kind of kernels and several numbers of threads. */
static void everywhere(tw_select_params params, const char *gradients, const char *data) {
    const int threads[] = {1, 2, 7};
    record *want = check_alloc(1, sizeof *want);
    record *got = check_alloc(1, sizeof *got);
    const char *kernels;
    int usable;
    setenv("THINWIRE_KERNELS", "ref", 1);
    params.threads = 1;
    record_run(&params, gradients, want);
    for (int at = 0; tw_kernels_at(at, &kernels, &usable) == TW_OK; at++)
        for (int t = 0; t < 3 && usable; t++) {
            char what[160];
            snprintf(what, sizeof what,
                     "method=%s data=%s type=%d feedback=%d momentum=%g clip=%g on %s, threads=%d",
                     params.method, data, params.type, params.feedback, (double)params.momentum,
                     (double)params.clip_norm, kernels, threads[t]);
            setenv("THINWIRE_KERNELS", kernels, 1);
            params.threads = threads[t];
            record_run(&params, gradients, got);
            compare(got, want, what);
        }
    unsetenv("THINWIRE_KERNELS");
    free(want);
    free(got);
}

static void every_method(tw_select_params params, oracle_data kind) {
    char *gradients = make_gradients(kind, params.type);
    params.k = K;
    params.seed = 11;
    params.reuse_period = 4;
    params.gaussian_rounds = 3; /* on Laplace data this ends between 2k and 4k entries */
    for (int method = 0; method < check_methods(); method++) {
        params.method = check_method(method);
        everywhere(params, gradients, oracle_data_name(kind));
    }
    free(gradients);
}

static void test_feedback(void **state) {
    (void)state;
    every_method((tw_select_params){.feedback = TW_FEEDBACK_ON}, DATA_GAUSS);
}

static void test_no_feedback(void **state) {
    (void)state;
    every_method((tw_select_params){.feedback = TW_FEEDBACK_OFF}, DATA_LAPLACE);
}

/* The largest first: the first chunks have too many candidates, later ones few. */
static void test_descending(void **state) {
    (void)state;
    every_method((tw_select_params){.feedback = TW_FEEDBACK_OFF}, DATA_DESCENDING);
}

/* The smallest first: every chunk has too many candidates. */
static void test_ascending(void **state) {
    (void)state;
    every_method((tw_select_params){.feedback = TW_FEEDBACK_OFF}, DATA_ASCENDING);
}

static void test_types(void **state) {
    (void)state;
    every_method((tw_select_params){.type = TW_F16}, DATA_LAPLACE);
    every_method((tw_select_params){.type = TW_BF16}, DATA_GAUSS);
}

static void test_momentum_and_clip(void **state) {
    (void)state;
    every_method((tw_select_params){.momentum = 0.9f, .clip_norm = 3.0f}, DATA_GAUSS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feedback),   cmocka_unit_test(test_no_feedback),
        cmocka_unit_test(test_descending), cmocka_unit_test(test_ascending),
        cmocka_unit_test(test_types),      cmocka_unit_test(test_momentum_and_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
