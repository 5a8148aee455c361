/* test_warmup.c - k of a step: rounding of the density, and its fall during warm-up
 *
 * The first warm-up step has density warmup_density, the step after the last one has the final
 * density, and in between it falls by a constant factor, on a line or a cosine, or as the caller
 * says. k is read from tw_selector_info and from
 * the count of "exact" on data without zeros.
 */
#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { N = 10000 };

/* Run one step on data without zeros; returns the k that it asked for. */
static int64_t step_k(tw_selector *selector, int64_t n, uint64_t seed) {
    float *grad = check_alloc(n, sizeof *grad);
    oracle_fill(grad, n, DATA_LAPLACE, seed);
    tw_sparse sparse;
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_commit(selector, NULL, 0));
    tw_select_info info;
    check_ok(tw_selector_info(selector, &info));
    check_int("count", sparse.count, info.k);
    free(grad);
    return info.k;
}

static void check_fall(const tw_select_params *params, double first, double last) {
    const int steps = params->warmup_steps;
    tw_selector *selector = check_create(N, params);
    const double ratio = pow(last / first, 1.0 / steps);
    int64_t before = N;
    for (int step = 0; step < steps + 5; step++) {
        check_scene("warm-up of %d steps from %g to %g, step=%d", steps, first, last, step);
        const int64_t k = step_k(selector, N, (uint64_t)step);
        const double density = step < steps ? first * pow(ratio, step) : last;
        check_between("k", k, (int64_t)floor(density * N - 0.5), (int64_t)ceil(density * N + 0.5));
        check_true(k <= before);
        if (step == 0 || step >= steps)
            check_int("k", k, llround(density * N));
        before = k;
    }
    tw_selector_free(selector);
}

static void test_fall(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.density = 0.001;
    params.warmup_steps = 20;
    params.warmup_density = 0.5;
    check_fall(&params, 0.5, 0.001);
    params.warmup_density = 0; /* default */
    check_fall(&params, 0.25, 0.001);
    params.warmup_steps = 1;
    check_fall(&params, 0.25, 0.001);
    params.density = 0;
    params.k = 50;
    params.warmup_steps = 4;
    check_fall(&params, 0.25, 0.005);
}

/* "reuse" takes exactly k wherever k has changed, whatever the threshold before would give. */
static void test_reuse(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "reuse";
    params.density = 0.01;
    params.warmup_steps = 8;
    tw_selector *selector = check_create(N, &params);
    for (int step = 0; step <= params.warmup_steps; step++) {
        check_scene("step %d", step);
        (void)step_k(selector, N, (uint64_t)step); /* checks the count */
    }
    tw_selector_free(selector);
}

/* A warm-up that would begin below the density is none. */
static void test_no_rise(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.density = 0.3; /* the default of warmup_density is 0.25 */
    params.warmup_steps = 4;
    tw_selector *selector = check_create(N, &params);
    for (int step = 0; step < 6; step++) {
        check_scene("step %d", step);
        check_int("k", step_k(selector, N, (uint64_t)step), 3000);
    }
    tw_selector_free(selector);
}

/* The middle tells the shapes apart: the geometric mean, the mean, the mean; at a quarter linear has
 * lost a quarter, and a cosine less. */
static void test_shapes(void **state) {
    (void)state;
    const struct {
        int warmup;
        double quarter, half;
    } shapes[] = {{TW_WARMUP_EXPONENTIAL, 0.5 * 0.376060, 0.5 * 0.141421},
                  {TW_WARMUP_LINEAR, 0.3775, 0.255},
                  {TW_WARMUP_COSINE, 0.428241, 0.255}};
    for (int i = 0; i < 3; i++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.density = 0.01;
        params.warmup = shapes[i].warmup;
        params.warmup_steps = 8;
        params.warmup_density = 0.5;
        tw_selector *selector = check_create(N, &params);
        for (int step = 0; step < 10; step++) {
            check_scene("shape %d, step %d", shapes[i].warmup, step);
            const int64_t k = step_k(selector, N, (uint64_t)step);
            const double want = step == 0   ? 0.5
                                : step == 2 ? shapes[i].quarter
                                : step == 4 ? shapes[i].half
                                            : 0.01;
            if (step == 0 || step == 2 || step == 4 || step >= 8)
                check_int("k", k, llround(want * N));
        }
        tw_selector_free(selector);
    }
}

/* What the caller sets holds until it sets another, within its limits. */
static void test_by_caller(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.density = 0.01;
    params.warmup = TW_WARMUP_CALLER;
    params.warmup_density = 0.2;
    for (int method = 0; method < 2; method++) {
        params.method = method ? "exact" : NULL;
        tw_selector *selector = check_create(N, &params);
        check_scene("density by the caller");
        check_int("k", step_k(selector, N, 1), N / 5);
        check_error(tw_selector_set_density(selector, 0.21), TW_ERR_DENSITY);
        check_error(tw_selector_set_density(selector, 0.009), TW_ERR_DENSITY);
        check_int("k", step_k(selector, N, 2), N / 100); /* unset: density, from step 1 on */
        check_ok(tw_selector_set_density(selector, 0.1));
        check_int("k", step_k(selector, N, 3), N / 10);
        check_int("k", step_k(selector, N, 4), N / 10);
        check_ok(tw_selector_set_density(selector, 0.2));
        check_int("k", step_k(selector, N, 5), N / 5);
        tw_selector_free(selector);
    }
}

/* A step taken back is taken back in the warm-up too. */
static void test_undo_keeps_place(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.density = 0.01;
    params.warmup_steps = 10;
    tw_selector *selector = check_create(N, &params);
    check_scene("undo in the warm-up");
    const int64_t first = step_k(selector, N, 1);
    float *grad = check_alloc(N, sizeof *grad);
    oracle_fill(grad, N, DATA_GAUSS, 2);
    tw_sparse sparse;
    int64_t second = 0;
    for (int round = 0; round < 3; round++) {
        check_ok(tw_selector_run(selector, grad, &sparse));
        if (round > 0)
            check_int("count", sparse.count, second);
        second = sparse.count;
        check_ok(tw_selector_undo(selector, grad));
    }
    check_true(second < first);
    check_int("k", step_k(selector, N, 2), second);
    free(grad);
    tw_selector_free(selector);
}

static void test_density_rounds(void **state) {
    (void)state;
    const struct {
        int64_t n;
        double density;
        int64_t k;
    } cases[] = {{1000, 0.01, 10},  {1000, 0.0104, 10},  {1000, 0.0106, 11}, {1000, 1e-9, 1},
                 {1000, 1.0, 1000}, {1, 0.5, 1},         {1, 1e-300, 1},     {7, 0.999, 7},
                 {3, 0.49, 1},      {100003, 0.1, 10000}};
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.density = cases[i].density;
        check_scene("n=%lld density=%g", (long long)cases[i].n, cases[i].density);
        tw_selector *selector = check_create(cases[i].n, &params);
        check_int("k", step_k(selector, cases[i].n, 1), cases[i].k);
        tw_selector_free(selector);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fall),           cmocka_unit_test(test_no_rise),
        cmocka_unit_test(test_reuse),          cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_by_caller),      cmocka_unit_test(test_undo_keeps_place),
        cmocka_unit_test(test_density_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
