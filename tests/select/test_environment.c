/* test_environment.c - the caller's rounding mode, and steps taken back without a trace
 *
 * The rounding mode is the caller's: it must hold on all threads of the library, whenever they were
 * started, or results would depend on who took which chunk. And undo must take back what a step
 * learned and counted, with and without feedback, or ranks would part ways after a refused step. */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 1 << 20, K = 1000 };

static tw_selector *create(const char *method, int feedback, int threads) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = K;
    params.feedback = feedback;
    params.threads = threads;
    params.warmup_steps = 3;
    params.warmup_density = 0.01;
    return check_create(N, &params);
}

/* The residual after three steps rounded upwards, one of them taken back and done again. */
static void rounded_upwards(int threads, const float *grad, float *residual) {
    tw_selector *selector = create("exact", TW_FEEDBACK_ON, threads);
    const int before = fegetround();
    fesetround(FE_UPWARD); /* the threads are running by now */
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
    for (int step = 0; step < 4; step++) {
        if (background) {
            check_ok(tw_allreduce_start(group, 0, grad + step, out));
            check_ok(tw_allreduce_wait(group, 0));
        } else {
            check_ok(tw_allreduce(group, 0, grad + step, out));
        }
        fesetround(FE_UPWARD); /* the background's thread is running by now */
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

/* One selector takes its first step back, the other never did it: the next one is the same. */
static void undo_leaves_no_trace(const char *method, int feedback) {
    float *grad = check_alloc(N, sizeof *grad);
    float *other = check_alloc(N, sizeof *other);
    oracle_fill(grad, N, DATA_GAUSS, 1);
    oracle_fill(other, N, DATA_GAUSS, 2);
    tw_selector *undone = create(method, feedback, 2);
    tw_selector *fresh = create(method, feedback, 2);
    tw_sparse a, b;
    tw_select_info info_a, info_b;
    check_scene("method=%s feedback=%d", method, feedback);
    check_ok(tw_selector_run(undone, other, &a));
    check_ok(tw_selector_undo(undone, other));
    for (int step = 0; step < 2; step++) {
        check_ok(tw_selector_run(undone, grad, &a));
        check_ok(tw_selector_run(fresh, grad, &b));
        check_selection(&a, b.count, b.idx, b.val);
        check_ok(tw_selector_info(undone, &info_a));
        check_ok(tw_selector_info(fresh, &info_b));
        check_int("info.step", info_a.step, info_b.step);
        check_int("info.k", info_a.k, info_b.k);
        check_ok(tw_selector_commit(undone, NULL, 0));
        check_ok(tw_selector_commit(fresh, NULL, 0));
    }
    tw_selector_free(undone);
    tw_selector_free(fresh);
    free(grad);
    free(other);
}

static void test_undo_leaves_no_trace(void **state) {
    (void)state;
    const char *method;
    for (int i = 0; tw_select_method(i, &method, NULL) == TW_OK; i++) {
        undo_leaves_no_trace(method, TW_FEEDBACK_ON);
        undo_leaves_no_trace(method, TW_FEEDBACK_OFF);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_mode_holds_on_all_threads),
        cmocka_unit_test(test_rounding_mode_holds_in_the_background),
        cmocka_unit_test(test_undo_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
