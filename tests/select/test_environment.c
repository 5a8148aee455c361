/* test_environment.c - the caller's rounding mode holds on all threads of the library
 *
 * Threads keep the floating-point environment in which they were started. Were it used, the result
 * would depend on which thread took which chunk. */
#include <fenv.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "check.h"

enum { N = 1 << 20, K = 1000, SLACK = 77000 };

static tw_selector *create(int threads) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.threads = threads;
    params.warmup_steps = 3;
    params.warmup_density = 0.01;
    return check_create(N, &params);
}

/* The residual after three steps rounded upwards, each undone and run again. */
static void rounded_upwards(int threads, const float *grad, float *residual) {
    tw_selector *selector = create(threads);
    const int before = fegetround();
    fesetround(FE_UPWARD); /* the threads have started */
    for (int step = 0; step < 3; step++) {
        tw_sparse sparse;
        check_ok(tw_selector_run(selector, grad + step, &sparse));
        check_ok(tw_selector_undo(selector, grad + step));
        check_ok(tw_selector_run(selector, grad + step, &sparse));
        check_ok(tw_selector_commit(selector, NULL, 0));
    }
    fesetround(before);
    check_ok(tw_selector_get_residual(selector, residual));
    tw_selector_free(selector);
}

static void test_rounding_mode_holds_on_all_threads(void **state) {
    (void)state;
    float *grad = check_alloc(N + 3, sizeof *grad);
    float *one = check_alloc(N, sizeof *one);
    float *many = check_alloc(N, sizeof *many);
    oracle_fill(grad, N + 3, DATA_GAUSS, 7);
    rounded_upwards(1, grad, one);
    rounded_upwards(4, grad, many);
    check_bits("residual", many, one, N);
    free(grad);
    free(one);
    free(many);
}

/* The residual after a step rounded to nearest and three rounded upwards. */
static void rounded_by_group(int background, const float *grad, float *residual) {
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.k = K;
    float *out = check_alloc(N, sizeof *out);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    const int before = fegetround();
    (void)prctl(PR_SET_TIMERSLACK, SLACK);
    for (int step = 0; step < 4; step++) {
        if (background) {
            check_ok(tw_allreduce_start(group, 0, grad + step, out));
            fesetround(FE_TOWARDZERO); /* the one of tw_allreduce_start counts */
            check_ok(tw_allreduce_wait(group, 0));
            check_int("rounding mode after the wait", fegetround(), FE_TOWARDZERO);
            check_int("timer slack after the wait", prctl(PR_GET_TIMERSLACK), SLACK);
        } else {
            check_ok(tw_allreduce(group, 0, grad + step, out));
        }
        fesetround(FE_UPWARD); /* the background thread has started */
    }
    fesetround(before);
    check_ok(tw_group_get_residual(group, 0, residual));
    tw_group_free(group);
    tw_transport_free(transport);
    free(out);
}

static void test_rounding_mode_holds_in_the_background(void **state) {
    (void)state;
    float *grad = check_alloc(N + 3, sizeof *grad);
    float *called = check_alloc(N, sizeof *called);
    float *started = check_alloc(N, sizeof *started);
    oracle_fill(grad, N + 3, DATA_GAUSS, 7);
    rounded_by_group(0, grad, called);
    rounded_by_group(1, grad, started);
    check_bits("residual", started, called, N);
    free(grad);
    free(called);
    free(started);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_mode_holds_on_all_threads),
        cmocka_unit_test(test_rounding_mode_holds_in_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
