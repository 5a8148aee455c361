/* test_threads.c - selectors in different threads are independent
 *
 * Several threads, each with its own selector, select at the same time and share the library's
 * thread pool; each must get what it gets alone, also while selectors are created and freed. A
 * forked child, in which the pool's threads are gone, still selects. cmocka cannot fail from
 * another thread, so threads record and the main thread compares.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

enum { N = 600011, K = 2400, STEPS = 8, USERS = 6 };

/* One thread's work, and the digests of what it selected. */
typedef struct user {
    tw_select_params params;
    const float *grad; /* [N], shared by all */
    int failed;        /* status of the first call that failed */
    uint64_t digest[STEPS];
} user;

static uint64_t digest_of(const tw_sparse *sparse) {
    uint64_t digest = oracle_hash(0, &sparse->count, sizeof sparse->count);
    digest = oracle_hash(digest, sparse->idx, sparse->count * (int64_t)sizeof(int32_t));
    return oracle_hash(digest, sparse->val, sparse->count * (int64_t)sizeof(float));
}

static int use(user *u) {
    tw_selector *selector = NULL;
    int error = tw_selector_create(&selector, N, &u->params);
    for (int step = 0; step < STEPS && !error; step++) {
        tw_sparse sparse;
        error = tw_selector_run(selector, u->grad, &sparse);
        if (!error && step == 2) {
            error = tw_selector_undo(selector, u->grad);
            if (!error)
                error = tw_selector_run(selector, u->grad, &sparse);
        }
        if (!error) {
            u->digest[step] = digest_of(&sparse);
            error = tw_selector_commit(selector, NULL, 0);
        }
    }
    tw_selector_free(selector);
    return error;
}

static void *user_main(void *context) {
    user *u = context;
    u->failed = use(u);
    return NULL;
}

static user user_of(int number, const float *grad) {
    user u = {.params = TW_SELECT_PARAMS_INIT, .grad = grad};
    u.params.method = check_method(number % check_methods());
    u.params.k = K + number;
    u.params.threads = 1 + number % 3;
    u.params.momentum = number == 0 ? 0.5f : 0.0f;
    return u;
}

static void test_at_the_same_time(void **state) {
    (void)state;
    float *grad = check_alloc(N, sizeof *grad);
    oracle_fill(grad, N, DATA_LAPLACE, 1);
    user alone[USERS], together[USERS];
    pthread_t threads[USERS];
    for (int i = 0; i < USERS; i++) {
        alone[i] = together[i] = user_of(i, grad);
        check_ok(use(&alone[i]));
    }
    for (int i = 0; i < USERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, user_main, &together[i]), 0);
    for (int i = 0; i < USERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < USERS; i++)
        for (int step = 0; step < STEPS; step++) {
            check_scene("thread %d, method=%s step=%d", i, together[i].params.method, step);
            check_int("status", together[i].failed, TW_OK);
            check_true(together[i].digest[step] == alone[i].digest[step]);
        }
    free(grad);
}

/* Create and free with various numbers of threads, so that the pool grows, ends and starts. */
static void *churn_main(void *context) {
    user *u = context;
    for (int round = 0; round < 40 && !u->failed; round++) {
        tw_selector *selector = NULL;
        tw_sparse sparse;
        tw_select_params params = u->params;
        params.threads = 1 + round % 4;
        u->failed = tw_selector_create(&selector, N, &params);
        if (!u->failed)
            u->failed = tw_selector_run(selector, u->grad, &sparse);
        const uint64_t digest = u->failed ? 0 : digest_of(&sparse);
        if (round > 0 && digest != u->digest[0])
            u->failed = TW_ERR_STATE;
        u->digest[0] = digest;
        tw_selector_free(selector);
    }
    return NULL;
}

static void test_churn(void **state) {
    (void)state;
    float *grad = check_alloc(N, sizeof *grad);
    oracle_fill(grad, N, DATA_GAUSS, 1);
    user users[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        users[i] = user_of(i, grad);
        users[i].params.momentum = 0;
        assert_int_equal(pthread_create(&threads[i], NULL, churn_main, &users[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    check_scene("churn");
    for (int i = 0; i < 4; i++)
        check_int("status", users[i].failed, TW_OK);
    free(grad);
}

static void *fail_main(void *context) {
    const int first_is_empty = tw_last_error()[0] == '\0';
    tw_selector_run(NULL, NULL, NULL);
    *(int *)context = first_is_empty && strstr(tw_last_error(), "NULL") != NULL;
    return NULL;
}

static void test_last_error_is_per_thread(void **state) {
    (void)state;
    tw_selector *selector;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 77;
    check_error(tw_selector_create(&selector, 5, &params), TW_ERR_K);
    pthread_t thread;
    int right = 0;
    assert_int_equal(pthread_create(&thread, NULL, fail_main, &right), 0);
    pthread_join(thread, NULL);
    check_true(right);
    check_contains(tw_last_error(), "77");
}

/* The child of a fork has the handles but not the threads. */
static void test_fork(void **state) {
    (void)state;
#ifdef UNDER_TSAN
    print_message("SKIP: ThreadSanitizer allows no new threads after a fork\n");
    skip();
#endif
    if (getenv("THINWIRE_TEST_EMULATED") != NULL) {
        print_message("SKIP: qemu 7.2 ends the child of a fork that starts threads\n");
        skip();
    }
    float *grad = check_alloc(N, sizeof *grad);
    oracle_fill(grad, N, DATA_GAUSS, 1);
    user alone = user_of(2, grad), child = alone;
    tw_selector *open = check_create(N, &alone.params); /* keeps the parent's pool running */
    check_ok(use(&alone));
    const pid_t pid = fork();
    if (pid == 0) {
        tw_sparse sparse;
        alarm(60);
        const int wrong = use(&child) != TW_OK || tw_selector_run(open, grad, &sparse) != TW_OK ||
                          digest_of(&sparse) != alone.digest[0] ||
                          memcmp(child.digest, alone.digest, sizeof alone.digest) != 0;
        _exit(wrong);
    }
    int status = -1;
    check_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    check_scene("fork");
    check_int("status of the child", status, 0);
    check_ok(use(&child)); /* the parent goes on */
    check_true(memcmp(child.digest, alone.digest, sizeof alone.digest) == 0);
    tw_selector_free(open);
    free(grad);
}

/* Threads that would get no part of so short a vector take no memory. */
static void test_too_many_threads(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_memory one, many;
    params.k = 10;
    params.threads = 1;
    check_ok(tw_selector_memory(1000, &params, &one));
    params.threads = 8;
    check_ok(tw_selector_memory(1000, &params, &many));
    check_int("total", (int64_t)many.total, (int64_t)one.total);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_the_same_time),         cmocka_unit_test(test_churn),
        cmocka_unit_test(test_last_error_is_per_thread), cmocka_unit_test(test_fork),
        cmocka_unit_test(test_too_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
