/* test_state.c - the residual is read and replaced; info, memory and copies of parameters
 *
 * A checkpoint resumes by giving a saved residual to a fresh selector, which must then go on like
 * the old one.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 3001, K = 37 };

static tw_select_params plain(void) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.threads = 2;
    return params;
}

/* One committed step of gauss data on each of two selectors, which must select the same. */
static void step_both(tw_selector *a, tw_selector *b, uint64_t seed) {
    float grad[N];
    tw_sparse one, two;
    oracle_fill(grad, N, DATA_GAUSS, seed);
    check_ok(tw_selector_run(a, grad, &one));
    check_ok(tw_selector_run(b, grad, &two));
    check_selection(&one, two.count, two.idx, two.val);
    check_ok(tw_selector_commit(a, NULL, 0));
    check_ok(tw_selector_commit(b, NULL, 0));
}

static void test_resume(void **state) {
    (void)state;
    const tw_select_params params = plain();
    tw_selector *old = check_create(N, &params);
    tw_selector *fresh = check_create(N, &params);
    tw_selector *unused = check_create(N, &params);
    float residual[N], again[N];
    for (uint64_t seed = 0; seed < 10; seed++)
        step_both(old, unused, seed);
    check_ok(tw_selector_get_residual(old, residual));
    check_ok(tw_selector_set_residual(fresh, residual));
    for (uint64_t seed = 10; seed < 20; seed++) {
        check_scene("resumed, step=%d", (int)seed);
        step_both(old, fresh, seed);
    }
    check_ok(tw_selector_get_residual(old, residual));
    check_ok(tw_selector_get_residual(fresh, again));
    check_bits("residual", again, residual, N);
    tw_selector_free(old);
    tw_selector_free(fresh);
    tw_selector_free(unused);
}

/* Right after a commit, when the library may still have to remove sent entries. */
static void test_set_after_commit(void **state) {
    (void)state;
    const tw_select_params params = plain();
    tw_selector *selector = check_create(N, &params);
    float grad[N], want[N], got[N];
    tw_sparse sparse;
    oracle_fill(grad, N, DATA_GAUSS, 1);
    oracle_fill(want, N, DATA_BITS, 2);
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_commit(selector, NULL, 0));
    check_ok(tw_selector_set_residual(selector, want));
    check_ok(tw_selector_get_residual(selector, got));
    check_bits("residual", got, want, N);
    memset(grad, 0, sizeof grad);
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_sparse(&sparse, want, N);
    tw_selector_free(selector);
}

/* Any alignment, for residuals and for committed indices. */
static void test_misaligned(void **state) {
    (void)state;
    const tw_select_params params = plain();
    tw_selector *selector = check_create(N, &params);
    char in[N * 4 + 8], out[N * 4 + 8], idx[K * 4 + 8];
    float want[N], got[N];
    oracle_fill(want, N, DATA_GAUSS, 1);
    for (int shift = 1; shift < 8; shift++) {
        check_scene("shift=%d", shift);
        memcpy(in + shift, want, sizeof want);
        check_ok(tw_selector_set_residual(selector, (const void *)(in + shift)));
        check_ok(tw_selector_get_residual(selector, (void *)(out + shift)));
        memcpy(got, out + shift, sizeof got);
        check_bits("residual", got, want, N);

        tw_sparse sparse;
        check_ok(tw_selector_run(selector, in + shift, &sparse));
        const int32_t first = sparse.idx[0];
        memcpy(idx + shift, sparse.idx, (size_t)sparse.count * 4);
        check_ok(tw_selector_commit(selector, (const void *)(idx + shift), sparse.count));
        check_ok(tw_selector_get_residual(selector, got));
        check_float("sent entry", got[first], 0.0f);
    }
    tw_selector_free(selector);
}

static void test_info(void **state) {
    (void)state;
    const tw_select_params params = plain();
    tw_selector *selector = check_create(N, &params);
    float grad[N];
    tw_sparse sparse;
    tw_select_info info;
    check_ok(tw_selector_info(selector, &info));
    check_int("step of a fresh selector", info.step, 0);
    check_int("bad_index of a fresh selector", info.bad_index, -1);
    for (int step = 0; step < 3; step++) {
        oracle_fill(grad, N, DATA_GAUSS, (uint64_t)step);
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_info(selector, &info));
        check_int("step while open", info.step, step);
        check_int("k", info.k, K);
        check_int("count", info.count, sparse.count);
        check_ok(tw_selector_commit(selector, NULL, 0));
        check_ok(tw_selector_info(selector, &info));
        check_int("step after commit", info.step, step + 1);
    }
    tw_selector_free(selector);
}

/* A step whose threshold guess was too high counts its rescans. */
static void test_rescans_are_counted(void **state) {
    (void)state;
    tw_select_params params = plain();
    params.feedback = TW_FEEDBACK_OFF;
    tw_selector *selector = check_create(N, &params);
    float grad[N];
    tw_sparse sparse;
    tw_select_info info;
    oracle_fill(grad, N, DATA_GAUSS, 1);
    check_ok(tw_selector_run(selector, grad, &sparse));
    for (int i = 0; i < N; i++)
        grad[i] *= 1e-10f;
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_info(selector, &info));
    check_between("rescans", info.rescans, 1, 4);
    check_int("steps run", info.step, 2);
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_info(selector, &info));
    check_int("rescans when nothing changed", info.rescans, 0);
    tw_selector_free(selector);
}

/* params is copied: the caller may overwrite struct and method name. */
static void test_params_are_copied(void **state) {
    (void)state;
    char name[] = "random";
    tw_select_params params = plain();
    params.method = name;
    params.seed = 5;
    tw_selector *selector = check_create(N, &params);
    params.method = "random";
    tw_selector *other = check_create(N, &params);
    memset(name, 'x', sizeof name - 1);
    memset(&params, 0xff, sizeof params);
    for (uint64_t seed = 0; seed < 3; seed++)
        step_both(selector, other, seed);
    tw_selector_free(selector);
    tw_selector_free(other);
}

static void test_memory_fields(void **state) {
    (void)state;
    const int64_t n = 4000000;
    tw_memory m, larger;
    tw_select_params params = plain();
    check_ok(tw_selector_memory(n, &params, &m));
    check_int("total", (int64_t)m.total, (int64_t)(m.residual + m.moments + m.undo + m.workspace));
    check_between("residual", (int64_t)m.residual, 4 * n, 4 * n + (2 << 20));
    check_int("moments", (int64_t)m.moments, 0);
    check_between("undo", (int64_t)m.undo, 4 * n, 6 * n + (4 << 20));
    check_ok(tw_selector_memory(8 * n, &params, &larger));
    check_between("workspace of 8n", (int64_t)larger.workspace, 0,
                  (int64_t)m.workspace + 8 * n / 100);
    params.momentum = 0.9f;
    check_ok(tw_selector_memory(n, &params, &m));
    check_between("moments", (int64_t)m.moments, 8 * n, 8 * n + (4 << 20));
    params.momentum = 0;
    params.feedback = TW_FEEDBACK_OFF;
    check_ok(tw_selector_memory(n, &params, &m));
    check_int("residual, moments and undo", (int64_t)(m.residual + m.moments + m.undo), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_set_after_commit),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_rescans_are_counted),
        cmocka_unit_test(test_params_are_copied),
        cmocka_unit_test(test_memory_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
