/* test_alloc.c - a step allocates nothing; a creation that runs out of memory frees all it took
 *
 * allocations.h counts calls and bytes, and fails a chosen call. AddressSanitizer finds the leaks of
 * a failed creation.
 */
#include <math.h>
#include <stdlib.h>

#include "allocations.h"
#include "check.h"

enum { N = 140003, K = 700 };

static void count_from_here(int64_t fails_in) {
    allocation_calls = allocation_bytes = 0;
    allocation_fails_in = fails_in;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Gradients that take different paths through the library, made beforehand. */
typedef struct gradients {
    char *usual, *tiny, *zeros, *sorted, *bad; /* [N] of the type */
    float *residual;                           /* [N] */
} gradients;

static char *encoded(float *x, int type) {
    char *raw = check_alloc(N, oracle_type_size(type));
    oracle_encode(raw, x, N, type);
    return raw;
}

static void gradients_open(gradients *g, int type) {
    float *x = g->residual = check_alloc(N, sizeof(float));
    oracle_fill(x, N, DATA_GAUSS, 1);
    g->usual = encoded(x, type);
    x[N / 2] = NAN;
    g->bad = encoded(x, type);
    oracle_fill(x, N, DATA_ASCENDING, 1);
    g->sorted = encoded(x, type);
    oracle_fill(x, N, DATA_GAUSS, 2);
    for (int64_t i = 0; i < N; i++)
        x[i] *= 1e-4f;
    g->tiny = encoded(x, type);
    oracle_fill(x, N, DATA_ZEROS, 1);
    g->zeros = encoded(x, type);
}

static void gradients_close(gradients *g) {
    free(g->usual);
    free(g->tiny);
    free(g->zeros);
    free(g->sorted);
    free(g->bad);
    free(g->residual);
}

/* Steps of all sorts; returns the number of rescans. */
static int64_t all_sorts_of_steps(tw_selector *selector, const gradients *g) {
    const char *const order[] = {g->usual, g->tiny, g->usual, g->sorted, g->tiny, g->zeros};
    int64_t rescans = 0;
    tw_sparse sparse;
    tw_select_info info;
    for (int step = 0; step < 6; step++) {
        check_error(tw_selector_run(selector, g->bad, &sparse), TW_ERR_NUMBER);
        check_ok(tw_selector_run(selector, order[step], &sparse));
        check_ok(tw_selector_undo(selector, order[step]));
        check_ok(tw_selector_run(selector, order[step], &sparse));
        check_ok(tw_selector_info(selector, &info));
        rescans += info.rescans;
        if (step % 2)
            check_ok(tw_selector_commit(selector, NULL, 0));
        else
            check_ok(tw_selector_commit(selector, sparse.idx, sparse.count / 2));
    }
    check_ok(tw_selector_get_residual(selector, g->residual));
    return rescans;
}

static void test_steps_allocate_nothing(void **state) {
    (void)state;
    int64_t rescans = 0;
    for (int type = TW_F32; type <= TW_BF16; type++) {
        gradients g;
        gradients_open(&g, type);
        for (int method = 0; method < check_methods(); method++)
            for (int variant = 0; variant < 6; variant++) {
                tw_select_params params = TW_SELECT_PARAMS_INIT;
                params.method = check_method(method);
                params.k = K;
                params.type = type;
                params.threads = variant % 2 ? 3 : 1;
                params.feedback = variant / 2 == 1;
                params.momentum = variant / 2 == 2 ? 0.9f : 0.0f;
                params.clip_norm = variant / 2 == 2 ? 1.0f : 0.0f;
                params.reuse_period = 2;
                check_scene("method=%s type=%d variant=%d", params.method, type, variant);
                tw_selector *selector = check_create(N, &params);
                count_from_here(0);
                rescans += all_sorts_of_steps(selector, &g);
                check_int("allocations in the step path", allocation_calls, 0);
                tw_selector_free(selector);
            }
        gradients_close(&g);
    }
    check_true(rescans > 0); /* or the path that reads again was not tested */
}

/* ---- Creation -------------------------------------------------------------------------------- */

static void fail_every_call(const tw_select_params *params) {
    int64_t call = 0;
    int error = TW_ERR_MEMORY;
    while (error != TW_OK) {
        check_scene("method=%s threads=%d, allocation %lld fails", params->method, params->threads,
                    (long long)++call);
        tw_selector *selector = (tw_selector *)&selector;
        count_from_here(call);
        error = tw_selector_create(&selector, 3000, params);
        const int64_t left = allocation_fails_in;
        allocation_fails_in = 0;
        if (error == TW_OK) {
            check_true(left > 0); /* there was no such call */
            tw_selector_free(selector);
        } else {
            check_error(error, TW_ERR_MEMORY);
            check_true(selector == NULL);
            check_true(tw_last_error()[0] != '\0');
        }
    }
    check_true(call > 5);
}

static void test_creation_out_of_memory(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        for (int threads = 1; threads <= 3; threads += 2) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = check_method(method);
            params.k = 30;
            params.threads = threads;
            params.momentum = 0.5f;
            fail_every_call(&params);
        }
}

/* tw_selector_memory says what tw_selector_create takes, give or take 64 KiB. */
static void test_memory_is_as_reported(void **state) {
    (void)state;
    const int64_t sizes[] = {1, 1000, 65537, 3000001};
    for (int method = 0; method < check_methods(); method++)
        for (int i = 0; i < 4; i++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = check_method(method);
            params.density = 0.02;
            params.threads = 1 + i;
            params.momentum = i % 2 ? 0.5f : 0.0f;
            tw_memory memory;
            check_ok(tw_selector_memory(sizes[i], &params, &memory));
            count_from_here(0);
            tw_selector *selector = check_create(sizes[i], &params);
            const int64_t taken = allocation_bytes;
            tw_selector_free(selector);
            check_scene("method=%s n=%lld", params.method, (long long)sizes[i]);
            check_between("memory.total", (int64_t)memory.total, taken - 65536, taken + 65536);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_creation_out_of_memory),
        cmocka_unit_test(test_memory_is_as_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
