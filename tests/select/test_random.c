/* test_random.c - "random": k different indices, each equally likely, decided by seed and step
 *
 * Ranks that share a seed must pick the same indices whatever their gradients are, so that only
 * values need be sent. A step that is undone or refused does not advance the sequence.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 60 };

static tw_selector *create(int64_t n, int64_t k, uint64_t seed) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "random";
    params.k = k;
    params.seed = seed;
    params.threads = 1;
    return check_create(n, &params);
}

/* One committed step; idx[k] receives the indices. */
static void draw(tw_selector *selector, int64_t n, int64_t k, const float *grad, int32_t *idx) {
    tw_sparse sparse;
    float *residual = check_alloc(n, sizeof *residual);
    check_ok(tw_selector_get_residual(selector, residual));
    for (int64_t i = 0; i < n; i++)
        residual[i] += grad[i];
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_int("count", sparse.count, k);
    check_sparse(&sparse, residual, n);
    memcpy(idx, sparse.idx, (size_t)k * sizeof *idx);
    check_ok(tw_selector_commit(selector, NULL, 0));
    free(residual);
}

static int same(const int32_t *a, const int32_t *b, int64_t k) {
    return memcmp(a, b, (size_t)k * sizeof *a) == 0;
}

static void test_every_k(void **state) {
    (void)state;
    check_kernels_or_skip();
    float grad[130];
    int32_t idx[130];
    oracle_fill(grad, 130, DATA_GAUSS, 1);
    for (int64_t n = 1; n <= 130; n += n < 66 ? 1 : 16)
        for (int64_t k = 1; k <= n; k++) {
            check_scene("n=%lld k=%lld", (long long)n, (long long)k);
            tw_selector *selector = create(n, k, 7);
            draw(selector, n, k, grad, idx);
            draw(selector, n, k, grad, idx);
            tw_selector_free(selector);
        }
}

/* Same seed, other gradient: same indices in every step. Other seed or step: other indices. */
static void test_seed_decides(void **state) {
    (void)state;
    check_kernels_or_skip();
    float gauss[1000], zeros[1000];
    int32_t a[50], b[50], c[50], before[50] = {0};
    oracle_fill(gauss, 1000, DATA_GAUSS, 1);
    oracle_fill(zeros, 1000, DATA_ZEROS, 2);
    tw_selector *first = create(1000, 50, 42);
    tw_selector *second = create(1000, 50, 42);
    tw_selector *other = create(1000, 50, 43);
    for (int step = 0; step < 20; step++) {
        check_scene("step=%d", step);
        draw(first, 1000, 50, gauss, a);
        draw(second, 1000, 50, zeros, b);
        draw(other, 1000, 50, gauss, c);
        check_true(same(a, b, 50));
        check_true(!same(a, c, 50));
        check_true(!same(a, before, 50));
        memcpy(before, a, sizeof a);
    }
    tw_selector_free(first);
    tw_selector_free(second);
    tw_selector_free(other);
}

/* A step that was undone or refused is drawn again. */
static void test_step_counter(void **state) {
    (void)state;
    check_kernels_or_skip();
    float grad[1000], bad[1000];
    int32_t a[50], b[50];
    tw_sparse sparse;
    oracle_fill(grad, 1000, DATA_GAUSS, 1);
    memcpy(bad, grad, sizeof bad);
    bad[500] = NAN;
    tw_selector *plain = create(1000, 50, 42);
    tw_selector *tried = create(1000, 50, 42);
    for (int step = 0; step < 10; step++) {
        check_scene("step=%d", step);
        check_error(tw_selector_run(tried, bad, &sparse), TW_ERR_NUMBER);
        check_ok(tw_selector_run(tried, grad, &sparse));
        check_ok(tw_selector_undo(tried, grad));
        draw(plain, 1000, 50, grad, a);
        draw(tried, 1000, 50, grad, b);
        check_true(same(a, b, 50));
    }
    tw_selector_free(plain);
    tw_selector_free(tried);
}

/* Chi-square of how often each index comes: about N - 1, deviation sqrt(2 N), under equal chances.
 * The limits are six deviations away, above and, for draws that are too even, below. */
static void check_even(int64_t k, uint64_t seed) {
    enum { STEPS = 4000 };
    int64_t hits[N] = {0};
    float grad[N];
    int32_t idx[N];
    oracle_fill(grad, N, DATA_GAUSS, 1);
    tw_selector *selector = create(N, k, seed);
    for (int step = 0; step < STEPS; step++) {
        draw(selector, N, k, grad, idx);
        for (int64_t j = 0; j < k; j++)
            hits[idx[j]]++;
    }
    tw_selector_free(selector);
    const double chance = (double)k / N;
    const double expected = STEPS * chance;
    double chi_square = 0;
    for (int i = 0; i < N; i++)
        chi_square += ((double)hits[i] - expected) * ((double)hits[i] - expected);
    chi_square /= expected * (1 - chance);
    const double deviation = sqrt(2.0 * N);
    check_scene("k=%lld seed=%d chi-square=%g", (long long)k, (int)seed, chi_square);
    check_true(chi_square < N - 1 + 6 * deviation);
    check_true(chi_square > (N - 1) / 4.0);
}

static void test_even_chances(void **state) {
    (void)state;
    check_kernels_or_skip();
    check_even(1, 1);
    check_even(6, 2);
    check_even(29, 0);
    check_even(45, 3); /* more than half: the library draws what to leave out */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_k),
        cmocka_unit_test(test_seed_decides),
        cmocka_unit_test(test_step_counter),
        cmocka_unit_test(test_even_chances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
