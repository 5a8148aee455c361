/* test_group_options.c - options of selection in a group: momentum, warm-up, feedback, threads, and
 * tensors with options of their own
 *
 * Results and residuals are compared with the oracle of each exchange.
 */
#include "exchange_check.h"

enum { RANKS = 4, N = 2003, K = 64 };

/* ---- Options of the selection ---------------------------------------------------------------- */

static void test_feedback_off(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        exchange_oracle o;
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.select.feedback = TW_FEEDBACK_OFF;
        exchange_oracle_open(&o, check_exchange(e), RANKS, N, K, TW_MEAN);
        o.feedback = TW_FEEDBACK_OFF;
        exchange_check_steps(&params, &o, 4);
        exchange_oracle_close(&o);
    }
}

static void test_momentum(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        for (int nranks = 3; nranks <= 4; nranks++) {
            exchange_oracle o;
            tw_group_params params = ranks_params(check_exchange(e), K);
            params.select.momentum = 0.75f;
            exchange_oracle_open(&o, check_exchange(e), nranks, N, K, TW_MEAN);
            o.momentum = 0.75f;
            exchange_check_steps(&params, &o, 6);
            exchange_oracle_close(&o);
        }
}

/* Several threads per rank change nothing. */
static void test_threads(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        exchange_oracle o;
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.select.threads = 3;
        exchange_oracle_open(&o, check_exchange(e), RANKS, 200003, K, TW_MEAN);
        exchange_check_steps(&params, &o, 3);
        exchange_oracle_close(&o);
    }
}

/* k falls during warm-up as it does for a selector alone; below 8P oktopk becomes butterfly. */
static int64_t next_k(tw_selector *selector, const float *grad) {
    tw_sparse sparse;
    tw_select_info info;
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_commit(selector, NULL, 0));
    check_ok(tw_selector_info(selector, &info));
    return info.k;
}

static void warm_up(const char *exchange) {
    ranks r;
    exchange_oracle o;
    const int64_t n = N;
    tw_group_params params = ranks_params(exchange, K);
    params.select.k = 0;
    params.select.density = 0.005;
    params.select.warmup_steps = 6;
    params.select.warmup_density = 0.5;
    tw_selector *alone = check_create(n, &params.select);
    float **grads = rows_alloc(RANKS, n), **outs = rows_alloc(RANKS, n);
    exchange_oracle_open(&o, exchange, RANKS, n, 1, TW_MEAN);
    ranks_open(&r, RANKS, &params, &n, 1);
    int64_t first = 0;
    for (int step = 0; step < 9; step++) {
        tw_step_info info;
        check_scene("warm-up with %s, step=%d", exchange, step);
        rows_fill(grads, RANKS, n, DATA_LAPLACE, step);
        o.k = next_k(alone, grads[0]);
        first = step == 0 ? o.k : first;
        exchange_check_step(&r, &o, grads, outs);
        check_ok(tw_group_info(r.groups[1], 0, &info));
        check_int("k", info.k, o.k);
        assert_string_equal(info.exchange, o.used);
    }
    check_true(o.k == 10 && first > 1000);
    tw_selector_free(alone);
    exchange_oracle_close(&o);
    rows_free(grads);
    rows_free(outs);
    ranks_close(&r);
}

static void test_warmup(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        warm_up(check_exchange(e));
}

/* ---- Tensors of several kinds ---------------------------------------------------------------- */

typedef struct mixture {
    tw_group_params params;
    tw_select_params own[3];
    const void *const *grads[3]; /* [tensor][rank] */
    float **outs[3];
} mixture;

static const int64_t mixed_n[3] = {500, N, 333};

static int mixed_rank(ranks *r, int rank, void *context) {
    mixture *m = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &m->params);
    for (int i = 0; i < 3 && !error; i++)
        error = tw_group_add(r->groups[rank], mixed_n[i], i ? &m->own[i] : NULL, NULL);
    if (!error)
        error = tw_group_open(r->groups[rank]);
    for (int i = 2; i >= 0 && !error; i--)
        error = tw_allreduce(r->groups[rank], i, m->grads[i][rank], m->outs[i][rank]);
    return error;
}

/* The group's selection for tensor 0, own ones (k, type) for the others. */
static void test_mixed_tensors(void **state) {
    (void)state;
    ranks r;
    mixture m = {.params = ranks_params("oktopk", K)};
    m.own[1] = m.own[2] = m.params.select;
    m.own[1].k = 100;
    m.own[1].type = TW_BF16;
    m.own[2].k = 5;
    m.own[2].type = TW_F16;
    float **grads[3], **raw[3];
    for (int i = 0; i < 3; i++) {
        grads[i] = rows_alloc(RANKS, mixed_n[i]);
        raw[i] = rows_alloc(RANKS, mixed_n[i]);
        m.outs[i] = rows_alloc(RANKS, mixed_n[i]);
        m.grads[i] = (const void *const *)raw[i];
        rows_fill(grads[i], RANKS, mixed_n[i], DATA_LAPLACE, i);
        for (int rank = 0; rank < RANKS; rank++) {
            const int type = i ? m.own[i].type : TW_F32;
            oracle_encode(raw[i][rank], grads[i][rank], mixed_n[i], type);
            oracle_decode(grads[i][rank], raw[i][rank], mixed_n[i], type);
        }
    }
    ranks_init(&r, RANKS);
    ranks_run(&r, mixed_rank, &m);
    ranks_ok(&r);
    for (int i = 0; i < 3; i++) {
        exchange_oracle o;
        check_scene("tensor %d of several kinds", i);
        exchange_oracle_open(&o, "oktopk", RANKS, mixed_n[i], i ? m.own[i].k : K, TW_MEAN);
        exchange_oracle_step(&o, grads[i]);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out", m.outs[i][rank], o.out, mixed_n[i]);
        ranks_check_residuals(&r, i, o.residual, mixed_n[i]);
        exchange_oracle_close(&o);
        rows_free(grads[i]);
        rows_free(raw[i]);
        rows_free(m.outs[i]);
    }
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feedback_off),  cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_mixed_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
