/* test_conservation.c - nothing is lost: committed entries + residual = sum of all gradients
 *
 * Gradients are small integers times 2^-10, so that every sum over sixty steps is exact in float32
 * and in the 16-bit types. A ledger in integers must balance to the last unit, for every method,
 * element by element: whether all of a step was committed, some, nothing, or the step was undone.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 2003, K = 40, STEPS = 60 };

typedef enum { COMMIT_ALL, COMMIT_SOME, COMMIT_NOTHING, UNDO_SOME, MODES } mode;

static const char *const mode_names[MODES] = {"all", "some", "nothing", "undo some"};

/* Gradients given and entries sent, in units of 2^-10. */
typedef struct ledger {
    int64_t given[N];
    int64_t sent[N];
} ledger;

/* The residual that is due. */
static float owed(const ledger *book, int64_t i) {
    return (float)(book->given[i] - book->sent[i]) * 0x1p-10f;
}

static void check_balance(tw_selector *selector, const ledger *book) {
    float residual[N];
    check_ok(tw_selector_get_residual(selector, residual));
    for (int64_t i = 0; i < N; i++)
        if (book->sent[i] + check_units(residual[i]) != book->given[i])
            check_fail("element %lld: sent %lld + residual %lld, given %lld (units of 2^-10)",
                       (long long)i, (long long)book->sent[i], (long long)check_units(residual[i]),
                       (long long)book->given[i]);
}

static int64_t nonzeros(const float *acc) {
    int64_t count = 0;
    for (int64_t i = 0; i < N; i++)
        count += acc[i] != 0.0f;
    return count;
}

static void check_count(const char *method, int64_t count, const float *acc) {
    if (strcmp(method, "exact") == 0)
        check_int("count", count, nonzeros(acc) < K ? nonzeros(acc) : K);
    else if (strcmp(method, "random") == 0)
        check_int("count", count, K);
    else
        check_between("count", count, 0, check_most(method, K, N));
}

/* Commit a random part of the selection and enter it in the book. */
static void commit_some(tw_selector *selector, const tw_sparse *sparse, ledger *book, double share,
                        oracle_rng *rng) {
    int32_t idx[N + 1];
    int64_t count = 0;
    for (int64_t j = 0; j < sparse->count; j++)
        if (oracle_uniform(rng) < share) {
            idx[count++] = sparse->idx[j];
            book->sent[sparse->idx[j]] += check_units(sparse->val[j]);
        }
    check_ok(tw_selector_commit(selector, idx, count));
}

static void commit_all(tw_selector *selector, const tw_sparse *sparse, ledger *book) {
    for (int64_t j = 0; j < sparse->count; j++)
        book->sent[sparse->idx[j]] += check_units(sparse->val[j]);
    check_ok(tw_selector_commit(selector, NULL, 0));
}

/* One step in one mode. The residual is read after every other step only: unread, the library
 * leaves part of the work of a commit for the next pass. */
static void conserve_step(tw_selector *selector, const tw_select_params *params, mode how,
                          ledger *book, oracle_rng *rng) {
    float grad[N], acc[N], raw[N];
    oracle_fill(grad, N, DATA_SUMMABLE, oracle_next(rng));
    oracle_encode(raw, grad, N, params->type);
    for (int64_t i = 0; i < N; i++)
        acc[i] = grad[i] + owed(book, i);

    tw_sparse sparse;
    check_ok(tw_selector_run(selector, raw, &sparse));
    check_sparse(&sparse, acc, N);
    check_count(params->method, sparse.count, acc);

    if (how == UNDO_SOME && oracle_below(rng, 3) == 0) {
        check_ok(tw_selector_undo(selector, raw));
    } else {
        for (int64_t i = 0; i < N; i++)
            book->given[i] += check_units(grad[i]);
        if (how == COMMIT_ALL)
            commit_all(selector, &sparse, book);
        else
            commit_some(selector, &sparse, book, how == COMMIT_NOTHING ? 0.0 : 0.5, rng);
    }
    if (oracle_below(rng, 2))
        check_balance(selector, book);
}

static void conserve(const tw_select_params *params, mode how, uint64_t seed) {
    oracle_rng rng = {.key = seed};
    ledger *book = check_alloc(1, sizeof *book);
    tw_selector *selector = check_create(N, params);
    for (int step = 0; step < STEPS; step++) {
        check_scene("method=%s type=%d threads=%d commit=%s step=%d", params->method, params->type,
                    params->threads, mode_names[how], step);
        conserve_step(selector, params, how, book, &rng);
    }
    check_balance(selector, book);
    tw_selector_free(selector);
    free(book);
}

static void conserve_all(mode how) {
    check_kernels_or_skip();
    check_true(check_methods() >= 6);
    for (int method = 0; method < check_methods(); method++)
        for (int type = TW_F32; type <= TW_BF16; type++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = check_method(method);
            params.k = K;
            params.type = type;
            params.threads = 1 + (method + type) % 3;
            params.reuse_period = 7;
            conserve(&params, how, (uint64_t)(method * 100 + type * 10) + (uint64_t)how);
        }
}

static void test_commit_all(void **state) {
    (void)state;
    conserve_all(COMMIT_ALL);
}

static void test_commit_some(void **state) {
    (void)state;
    conserve_all(COMMIT_SOME);
}

static void test_commit_nothing(void **state) {
    (void)state;
    conserve_all(COMMIT_NOTHING);
}

static void test_undo_some(void **state) {
    (void)state;
    conserve_all(UNDO_SOME);
}

/* Committing nothing keeps the whole sum: two such steps leave g1 + g2 in the residual. */
static void test_residual_is_the_sum(void **state) {
    (void)state;
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1;
    tw_selector *selector = check_create(3, &params);
    const float grad[3] = {1.0f, -2.0f, 0.5f};
    const float twice[3] = {2.0f, -4.0f, 1.0f};
    const int32_t none = 0;
    float residual[3];
    tw_sparse sparse;
    for (int step = 0; step < 2; step++) {
        check_ok(tw_selector_run(selector, grad, &sparse));
        check_ok(tw_selector_commit(selector, &none, 0));
    }
    check_ok(tw_selector_get_residual(selector, residual));
    check_bits("residual", residual, twice, 3);
    tw_selector_free(selector);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit_all),          cmocka_unit_test(test_commit_some),
        cmocka_unit_test(test_commit_nothing),      cmocka_unit_test(test_undo_some),
        cmocka_unit_test(test_residual_is_the_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
