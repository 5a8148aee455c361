/* test_undo.c - an undone step leaves residual, thresholds and counts as they were
 *
 * g + e rounds, so subtracting g does not give e back. The data makes that matter: all exponents,
 * denormals, signed zeros, spikes. The residual is compared bit by bit with a copy of the test, and
 * the same gradient must give the same selection again. The residual is not read in every step:
 * unread, part of a commit waits for the next pass.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static const oracle_data kinds[] = {DATA_GAUSS,     DATA_POWER5, DATA_BITS,        DATA_SPIKE,
                                    DATA_DENORMALS, DATA_TIES,   DATA_SIGNED_ZEROS};
enum { NKINDS = sizeof kinds / sizeof kinds[0] };

/* A selector with an arbitrary residual, and what it should hold. */
typedef struct undo_run {
    int64_t n;
    tw_selector *selector;
    void *raw;       /* [n] gradient, of the selector's type */
    float *grad;     /* [n] the same as float32 */
    float *residual; /* [n] as it must be */
    float *scratch;  /* [n] */
} undo_run;

static void fill_grad(undo_run *b, int type, oracle_data kind, uint64_t seed) {
    oracle_fill(b->scratch, b->n, kind, seed);
    oracle_encode(b->raw, b->scratch, b->n, type);
    oracle_decode(b->grad, b->raw, b->n, type);
}

static void undo_run_open(undo_run *b, int64_t n, const tw_select_params *params,
                          oracle_data kind) {
    b->n = n;
    b->selector = check_create(n, params);
    b->raw = check_alloc(n, oracle_type_size(params->type));
    b->grad = check_alloc(n, sizeof(float));
    b->residual = check_alloc(n, sizeof(float));
    b->scratch = check_alloc(n, sizeof(float));
    oracle_fill(b->residual, n, kind, 99);
    b->residual[0] = -0.0f;
    check_ok(tw_selector_set_residual(b->selector, b->residual));
}

static void undo_run_close(undo_run *b) {
    tw_selector_free(b->selector);
    free(b->raw);
    free(b->grad);
    free(b->residual);
    free(b->scratch);
}

static void check_residual(undo_run *b, const char *when) {
    check_ok(tw_selector_get_residual(b->selector, b->scratch));
    check_bits(when, b->scratch, b->residual, b->n);
}

static int64_t steps_of(const undo_run *b) {
    tw_select_info info;
    check_ok(tw_selector_info(b->selector, &info));
    return info.step;
}

/* Expect acc without the sent entries as residual. */
static void settle(undo_run *b, const tw_sparse *sparse) {
    for (int64_t i = 0; i < b->n; i++)
        b->residual[i] += b->grad[i];
    check_sparse(sparse, b->residual, b->n);
    for (int64_t j = 0; j < sparse->count; j++)
        b->residual[sparse->idx[j]] = 0.0f;
}

/* Run and undo; then run again and commit, so that the next round starts from another residual. */
static void undo_round(undo_run *b, int look) {
    tw_sparse sparse;
    const int64_t step = steps_of(b);
    check_ok(tw_selector_run(b->selector, b->raw, &sparse));
    const int64_t count = sparse.count;
    int32_t *idx = check_alloc(count + 1, sizeof *idx);
    float *val = check_alloc(count + 1, sizeof *val);
    if (count) {
        memcpy(idx, sparse.idx, (size_t)count * sizeof *idx);
        memcpy(val, sparse.val, (size_t)count * sizeof *val);
    }
    check_ok(tw_selector_undo(b->selector, b->raw));
    check_int("info.step after undo", steps_of(b), step);
    if (look)
        check_residual(b, "residual after undo");

    check_ok(tw_selector_run(b->selector, b->raw, &sparse));
    check_selection(&sparse, count, idx, val);
    settle(b, &sparse);
    check_ok(tw_selector_commit(b->selector, NULL, 0));
    check_int("info.step after commit", steps_of(b), step + 1);
    free(idx);
    free(val);
}

static void check_undo(int64_t n, const tw_select_params *params, oracle_data kind) {
    undo_run b;
    undo_run_open(&b, n, params, kind);
    check_residual(&b, "residual as set");
    for (int step = 0; step < 5; step++) {
        check_scene("n=%lld k=%lld method=%s type=%d threads=%d data=%s step=%d", (long long)n,
                    (long long)params->k, params->method, params->type, params->threads,
                    oracle_data_name(kind), step);
        fill_grad(&b, params->type, kinds[((int)kind + step) % NKINDS], (uint64_t)(n + step));
        undo_round(&b, step % 2);
    }
    check_residual(&b, "residual at the end");
    undo_run_close(&b);
}

static void test_every_method(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++)
        for (int kind = 0; kind < NKINDS; kind++)
            for (int type = TW_F32; type <= TW_BF16; type++) {
                tw_select_params params = TW_SELECT_PARAMS_INIT;
                params.method = check_method(method);
                params.k = 50;
                params.type = type;
                params.threads = 1 + 2 * (kind % 2);
                check_undo(1999, &params, kinds[kind]);
            }
}

static void test_every_size(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int64_t n = 1; n <= 140; n++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = "exact";
        params.k = 1 + n / 3;
        params.threads = 1;
        check_undo(n, &params, kinds[n % NKINDS]);
    }
}

/* Large enough for several threads and many pages of the undo log. Everything selected, too. */
static void test_large(void **state) {
    (void)state;
    check_kernels_or_skip();
    const int64_t ks[] = {1, 3000, 300007};
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < 3; kind++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = "exact";
            params.k = ks[i];
            params.threads = 1 + i;
            check_undo(300007, &params, kinds[kind]);
        }
}

/* Undo after undo: the log of one step is not in that of the next. */
static void test_undo_in_a_row(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 20;
    undo_run b;
    undo_run_open(&b, 5003, &params, DATA_BITS);
    for (int step = 0; step < 20; step++) {
        check_scene("undo in a row, step=%d", step);
        tw_sparse sparse;
        fill_grad(&b, TW_F32, kinds[step % NKINDS], (uint64_t)step);
        check_ok(tw_selector_run(b.selector, b.raw, &sparse));
        check_ok(tw_selector_undo(b.selector, b.raw));
        check_residual(&b, "residual after undo");
    }
    undo_run_close(&b);
}

/* ---- What a step learned and counted --------------------------------------------------------- */

enum { LARGE = 200003, LARGE_K = 200 };

static tw_selector *create_warming(const char *method, int feedback) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = LARGE_K;
    params.feedback = feedback;
    params.threads = 2;
    params.warmup_steps = 3;
    params.warmup_density = 0.01;
    return check_create(LARGE, &params);
}

/* One selector undoes its first step, the other never ran it: the next steps are the same. Else
 * ranks would diverge after a refused step. */
static void undo_leaves_no_trace(const char *method, int feedback) {
    float *grad = check_alloc(LARGE, sizeof *grad);
    float *other = check_alloc(LARGE, sizeof *other);
    oracle_fill(grad, LARGE, DATA_GAUSS, 1);
    oracle_fill(other, LARGE, DATA_GAUSS, 2);
    tw_selector *undone = create_warming(method, feedback);
    tw_selector *fresh = create_warming(method, feedback);
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
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++) {
        undo_leaves_no_trace(check_method(method), TW_FEEDBACK_ON);
        undo_leaves_no_trace(check_method(method), TW_FEEDBACK_OFF);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_method),
        cmocka_unit_test(test_every_size),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_undo_in_a_row),
        cmocka_unit_test(test_undo_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
