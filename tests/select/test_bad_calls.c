/* test_bad_calls.c - NULL pointers, calls out of order, commits of what was not selected
 *
 * Each is refused with its typed error and changes nothing: an open step stays open, and the right
 * commit still succeeds.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 8, K = 3 };

/* Entries 1, 3 and 6 are the largest. */
static const float grad[N] = {1.0f, -3.0f, 0.0f, 2.5f, 0.0f, -2.0f, 4.0f, 0.5f};
static const int32_t chosen[K] = {1, 3, 6};
static const float left[N] = {1.0f, 0.0f, 0.0f, 0.0f, 0.0f, -2.0f, 0.0f, 0.5f};

static tw_selector *create(int feedback) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    params.feedback = feedback;
    params.threads = 1;
    return check_create(N, &params);
}

/* A selector with an open step, its selection checked. */
static tw_selector *create_open(tw_sparse *sparse) {
    tw_selector *selector = create(TW_FEEDBACK_ON);
    check_ok(tw_selector_run(selector, grad, sparse));
    const float values[K] = {-3.0f, 2.5f, 4.0f};
    check_selection(sparse, K, chosen, values);
    return selector;
}

/* The step is still open: committing it gives what it would have given. */
static void check_still_open(tw_selector *selector) {
    float residual[N];
    check_ok(tw_selector_commit(selector, chosen, K));
    check_ok(tw_selector_get_residual(selector, residual));
    check_bits("residual", residual, left, N);
    tw_selector_free(selector);
}

static void test_null_at_create(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = K;
    tw_selector *selector = (tw_selector *)&selector;
    tw_memory memory;
    check_error(tw_selector_create(NULL, N, &params), TW_ERR_NULL);
    check_contains(tw_last_error(), "selector");
    check_error(tw_selector_create(&selector, N, NULL), TW_ERR_NULL);
    check_contains(tw_last_error(), "params");
    check_true(selector == NULL);
    check_error(tw_selector_memory(N, NULL, &memory), TW_ERR_NULL);
    check_error(tw_selector_memory(N, &params, NULL), TW_ERR_NULL);
    tw_selector_free(NULL);
}

static void test_null_in_step(void **state) {
    (void)state;
    tw_sparse sparse;
    tw_selector *selector = create(TW_FEEDBACK_ON);
    check_error(tw_selector_run(NULL, grad, &sparse), TW_ERR_NULL);
    check_error(tw_selector_run(selector, NULL, &sparse), TW_ERR_NULL);
    check_error(tw_selector_run(selector, grad, NULL), TW_ERR_NULL);
    check_ok(tw_selector_run(selector, grad, &sparse)); /* none of these opened a step */
    check_error(tw_selector_commit(NULL, chosen, K), TW_ERR_NULL);
    check_error(tw_selector_commit(selector, NULL, K), TW_ERR_NULL);
    check_error(tw_selector_undo(NULL, grad), TW_ERR_NULL);
    check_error(tw_selector_undo(selector, NULL), TW_ERR_NULL);
    check_still_open(selector);
}

static void test_null_elsewhere(void **state) {
    (void)state;
    float numbers[N] = {0};
    tw_select_info info;
    tw_selector *selector = create(TW_FEEDBACK_ON);
    check_error(tw_selector_get_residual(NULL, numbers), TW_ERR_NULL);
    check_error(tw_selector_get_residual(selector, NULL), TW_ERR_NULL);
    check_error(tw_selector_set_residual(NULL, numbers), TW_ERR_NULL);
    check_error(tw_selector_set_residual(selector, NULL), TW_ERR_NULL);
    check_error(tw_selector_info(NULL, &info), TW_ERR_NULL);
    check_error(tw_selector_info(selector, NULL), TW_ERR_NULL);
    check_error(tw_accumulate(NULL, grad, N, 1), TW_ERR_NULL);
    check_error(tw_accumulate(numbers, NULL, N, 1), TW_ERR_NULL);
    tw_selector_free(selector);
}

static void test_order_without_step(void **state) {
    (void)state;
    tw_selector *selector = create(TW_FEEDBACK_ON);
    tw_sparse sparse;
    for (int round = 0; round < 2; round++) { /* fresh, and after a step has ended */
        check_error(tw_selector_commit(selector, NULL, 0), TW_ERR_STATE);
        check_error(tw_selector_commit(selector, chosen, K), TW_ERR_STATE);
        check_error(tw_selector_undo(selector, grad), TW_ERR_STATE);
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_undo(selector, grad));
    }
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_still_open(selector);
}

static void test_order_within_step(void **state) {
    (void)state;
    float residual[N] = {0};
    tw_sparse sparse, again;
    tw_selector *selector = create_open(&sparse);
    check_error(tw_selector_run(selector, grad, &again), TW_ERR_STATE);
    check_error(tw_selector_get_residual(selector, residual), TW_ERR_STATE);
    check_error(tw_selector_set_residual(selector, residual), TW_ERR_STATE);
    check_still_open(selector);
}

static void refuse_commit(tw_selector *selector, const int32_t *idx, int64_t count) {
    check_scene("commit of %lld indices from %d", (long long)count, idx[0]);
    check_error(tw_selector_commit(selector, idx, count), TW_ERR_INDEX);
    check_true(tw_last_error()[0] != '\0');
}

static void test_commit_of_wrong_indices(void **state) {
    (void)state;
    tw_sparse sparse;
    tw_selector *selector = create_open(&sparse);
    refuse_commit(selector, (int32_t[]){0}, 1);          /* before the first */
    refuse_commit(selector, (int32_t[]){2}, 1);          /* between */
    refuse_commit(selector, (int32_t[]){7}, 1);          /* after the last */
    refuse_commit(selector, (int32_t[]){1, 3, 5}, 3);    /* right, then wrong */
    refuse_commit(selector, (int32_t[]){1, 3, 6, 7}, 4); /* more than were selected */
    refuse_commit(selector, (int32_t[]){3, 1}, 2);       /* descending */
    refuse_commit(selector, (int32_t[]){1, 1}, 2);       /* twice */
    refuse_commit(selector, (int32_t[]){-1}, 1);
    refuse_commit(selector, (int32_t[]){N}, 1);
    refuse_commit(selector, (int32_t[]){INT32_MIN}, 1);
    refuse_commit(selector, (int32_t[]){1, INT32_MAX}, 2);
    refuse_commit(selector, chosen, -1);
    check_still_open(selector);
}

/* The arrays that the library handed out may be handed back. */
static void test_commit_of_own_arrays(void **state) {
    (void)state;
    tw_sparse sparse;
    tw_selector *selector = create_open(&sparse);
    check_ok(tw_selector_commit(selector, sparse.idx, sparse.count));
    float residual[N];
    check_ok(tw_selector_get_residual(selector, residual));
    check_bits("residual", residual, left, N);
    tw_selector_free(selector);
}

static void test_freed_while_open(void **state) {
    (void)state;
    tw_sparse sparse;
    tw_selector_free(create_open(&sparse));
}

/* Without feedback a step is over when it has run. */
static void test_order_without_feedback(void **state) {
    (void)state;
    float residual[N];
    const float zeros[N] = {0};
    tw_sparse sparse;
    tw_selector *selector = create(TW_FEEDBACK_OFF);
    for (int step = 0; step < 3; step++) {
        check_ok(tw_selector_run(selector, grad, &sparse));
        assert_memory_equal(sparse.idx, chosen, sizeof chosen);
    }
    check_ok(tw_selector_undo(selector, grad));
    check_error(tw_selector_undo(selector, grad), TW_ERR_STATE);
    check_ok(tw_selector_commit(selector, NULL, 0));
    check_error(tw_selector_undo(selector, grad), TW_ERR_STATE);
    memset(residual, 0xff, sizeof residual);
    check_ok(tw_selector_get_residual(selector, residual));
    check_bits("residual", residual, zeros, N);
    check_error(tw_selector_set_residual(selector, zeros), TW_ERR_STATE);
    check_ok(tw_selector_run(selector, grad, &sparse));
    tw_selector_free(selector);
}

/* Each thread has its own text; a success leaves it alone. */
static void test_last_error_stays(void **state) {
    (void)state;
    check_error(tw_selector_run(NULL, NULL, NULL), TW_ERR_NULL);
    char text[256];
    strncpy(text, tw_last_error(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    check_true(text[0] != '\0');
    tw_selector_free(create(TW_FEEDBACK_ON));
    assert_string_equal(tw_last_error(), text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_at_create),
        cmocka_unit_test(test_null_in_step),
        cmocka_unit_test(test_null_elsewhere),
        cmocka_unit_test(test_order_without_step),
        cmocka_unit_test(test_order_within_step),
        cmocka_unit_test(test_commit_of_wrong_indices),
        cmocka_unit_test(test_commit_of_own_arrays),
        cmocka_unit_test(test_freed_while_open),
        cmocka_unit_test(test_order_without_feedback),
        cmocka_unit_test(test_last_error_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
