/* test_bad_numbers.c - NaN, infinity and overflow are refused, and the refusal changes nothing
 *
 * Two selectors with the same parameters get the same good gradients; one of them also gets bad
 * ones in between. Each bad step must name the first bad index and leave the residual bit for bit,
 * and every good step must give the same on both. Bad values are put at every position of a short
 * vector (kernel tails) and at a few of a long one (threads, passes that are partly done).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Two selectors, one spared the bad steps. */
typedef struct pair {
    int64_t n;
    int type, feedback;
    tw_selector *tried, *spared;
    float *x;              /* [n] gradient as float32 */
    char *raw;             /* [n] of type */
    float *before, *after; /* [n] residuals */
    uint64_t seed;         /* of the next good step */
} pair;

static void pair_open(pair *p, int64_t n, const tw_select_params *params) {
    memset(p, 0, sizeof *p);
    p->n = n;
    p->type = params->type;
    p->feedback = params->feedback;
    p->tried = check_create(n, params);
    p->spared = check_create(n, params);
    p->x = check_alloc(n, sizeof(float));
    p->raw = check_alloc(n, oracle_type_size(params->type));
    p->before = check_alloc(n, sizeof(float));
    p->after = check_alloc(n, sizeof(float));
}

/* The residuals are the same, which also means that no step is open. */
static void same_residuals(pair *p) {
    check_ok(tw_selector_get_residual(p->tried, p->after));
    check_ok(tw_selector_get_residual(p->spared, p->before));
    check_bits("residual", p->after, p->before, p->n);
}

static void pair_close(pair *p) {
    same_residuals(p);
    tw_selector_free(p->tried);
    tw_selector_free(p->spared);
    free(p->x);
    free(p->raw);
    free(p->before);
    free(p->after);
}

static void fill(pair *p) {
    oracle_fill(p->x, p->n, DATA_GAUSS, ++p->seed);
    oracle_encode(p->raw, p->x, p->n, p->type);
}

/* The same good step on both gives the same. */
static void good_step(pair *p) {
    tw_sparse tried, spared;
    fill(p);
    check_ok(tw_selector_run(p->tried, p->raw, &tried));
    check_ok(tw_selector_run(p->spared, p->raw, &spared));
    check_selection(&tried, spared.count, spared.idx, spared.val);
    check_ok(tw_selector_commit(p->tried, NULL, 0));
    check_ok(tw_selector_commit(p->spared, NULL, 0));
}

/* What raw holds is refused with the index, and changes nothing. */
static void refused(pair *p, int64_t index) {
    tw_select_info earlier, info;
    tw_sparse sparse;
    char digits[32];
    check_ok(tw_selector_info(p->tried, &earlier));
    check_error(tw_selector_run(p->tried, p->raw, &sparse), TW_ERR_NUMBER);
    snprintf(digits, sizeof digits, "%lld", (long long)index);
    check_contains(tw_last_error(), digits);
    check_ok(tw_selector_info(p->tried, &info));
    check_int("info.bad_index", info.bad_index, index);
    check_int("info.step", info.step, earlier.step);
    same_residuals(p);
}

/* A good gradient, spoiled at index and at `also` (-1: nowhere else). */
static void bad_step(pair *p, int64_t index, int64_t also, float value) {
    fill(p);
    p->seed--; /* the next good step repeats this one without the bad numbers */
    p->x[index] = value;
    if (also >= 0)
        p->x[also] = value;
    oracle_encode(p->raw, p->x, p->n, p->type);
    refused(p, also >= 0 && also < index ? also : index);
}

static void check_refusals(int64_t n, const tw_select_params *params) {
    pair p;
    pair_open(&p, n, params);
    check_scene("n=%lld method=%s type=%d feedback=%d threads=%d momentum=%g clip=%g", (long long)n,
                params->method, params->type, params->feedback, params->threads,
                (double)params->momentum, (double)params->clip_norm);
    bad_step(&p, n / 2, -1, NAN); /* before anything was learned */
    good_step(&p);
    bad_step(&p, 0, -1, INFINITY);
    bad_step(&p, n - 1, -1, -INFINITY);
    bad_step(&p, n / 2, -1, -NAN);
    good_step(&p);
    good_step(&p);
    bad_step(&p, n - 1, n / 3, INFINITY);
    bad_step(&p, n / 3, n - 1, NAN);
    good_step(&p);
    pair_close(&p);
}

static void test_every_method(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++)
        for (int type = TW_F32; type <= TW_BF16; type++)
            for (int variant = 0; variant < 8; variant++) {
                tw_select_params params = TW_SELECT_PARAMS_INIT;
                params.method = check_method(method);
                params.k = 20;
                params.type = type;
                params.threads = variant & 1 ? 4 : 1;
                params.momentum = variant & 2 ? 0.9f : 0.0f;
                params.clip_norm = variant & 4 ? 1.0f : 0.0f;
                check_refusals(1013, &params);
                if (variant < 2) {
                    params.feedback = TW_FEEDBACK_OFF;
                    check_refusals(1013, &params);
                }
            }
}

static void test_every_position(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int type = TW_F32; type <= TW_BF16; type++)
        for (int64_t n = 1; n <= 131; n += 13) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.k = 1;
            params.type = type;
            params.threads = 1;
            pair p;
            pair_open(&p, n, &params);
            good_step(&p);
            for (int64_t i = 0; i < n; i++) {
                check_scene("n=%lld type=%d position=%lld", (long long)n, type, (long long)i);
                bad_step(&p, i, n - 1, i & 1 ? NAN : INFINITY);
            }
            good_step(&p);
            pair_close(&p);
        }
}

static void test_large(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int threads = 1; threads <= 4; threads += 3)
        for (int method = 0; method < check_methods(); method++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = check_method(method);
            params.density = 0.01;
            params.threads = threads;
            params.momentum = threads == 4 && method == 0 ? 0.5f : 0.0f;
            check_refusals(150001, &params);
        }
}

/* g and e are finite, their sum is not. */
static void overflow_at(int64_t n, int64_t index, int type, int threads, float momentum) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 2;
    params.type = type;
    params.threads = threads;
    params.momentum = momentum;
    pair p;
    pair_open(&p, n, &params);
    check_scene("overflow: n=%lld index=%lld type=%d threads=%d", (long long)n, (long long)index,
                type, threads);
    fill(&p);
    p.x[index] = -3e38f;
    check_ok(tw_selector_set_residual(p.tried, p.x));
    check_ok(tw_selector_set_residual(p.spared, p.x));
    oracle_encode(p.raw, p.x, n, type);
    refused(&p, index);
    good_step(&p);
    pair_close(&p);
}

static void test_overflow(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int threads = 1; threads <= 4; threads += 3)
        for (int64_t n = 2; n <= 70001; n = 3 * n + 5) {
            overflow_at(n, 0, TW_F32, threads, 0.0f);
            overflow_at(n, n / 2, TW_BF16, threads, 0.9f);
            overflow_at(n, n - 1, TW_F32, threads, 0.9f);
            overflow_at(n, n - 1, TW_BF16, threads, 0.0f);
        }
}

/* The largest numbers are not infinity, and a 16-bit maximum is a number. */
static void test_largest_numbers_pass(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int type = TW_F32; type <= TW_BF16; type++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.k = 1;
        params.type = type;
        float x[40] = {0}, want;
        char raw[160];
        x[7] = 3.4028235e38f; /* encoded: the largest number of each type */
        oracle_encode(raw, x, 40, type);
        oracle_decode(x, raw, 40, type);
        want = x[7];
        tw_selector *selector = check_create(40, &params);
        tw_sparse sparse;
        check_ok(tw_selector_run(selector, raw, &sparse));
        check_selection(&sparse, 1, (int32_t[]){7}, &want);
        tw_selector_free(selector);
    }
}

static void test_set_residual(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 1;
    tw_selector *selector = check_create(37, &params);
    float good[37], spoiled[37], got[37];
    oracle_fill(good, 37, DATA_GAUSS, 1);
    check_ok(tw_selector_set_residual(selector, good));
    for (int i = 0; i < 37; i++) {
        check_scene("set_residual, bad at %d", i);
        oracle_fill(spoiled, 37, DATA_GAUSS, 2);
        spoiled[i] = bad[i % 4];
        check_error(tw_selector_set_residual(selector, spoiled), TW_ERR_NUMBER);
        check_ok(tw_selector_get_residual(selector, got));
        check_bits("residual", got, good, 37);
    }
    tw_selector_free(selector);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_method),
        cmocka_unit_test(test_every_position),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_largest_numbers_pass),
        cmocka_unit_test(test_set_residual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
