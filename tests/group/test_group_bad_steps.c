/* test_group_bad_steps.c - NaN, infinity, sums that overflow, NULL and overlaps on one rank
 *
 * All ranks must refuse the step, with a text that names the rank, and nothing may change: a group
 * that went through bad steps is compared bit by bit with one that did not.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { RANKS = 4, N = 301, K = 40 };

/* Two groups: one goes through bad steps, one is spared. */
typedef struct pair {
    ranks tried, spared;
    float **grads, **outs, **want, **before;
    int step;
} pair;

static void pair_open(pair *p, const tw_group_params *params) {
    const int64_t sizes[2] = {N, N};
    *p = (pair){.grads = rows_alloc(RANKS, N),
                .outs = rows_alloc(RANKS, N),
                .want = rows_alloc(RANKS, N),
                .before = rows_alloc(RANKS, N)};
    ranks_open(&p->tried, RANKS, params, sizes, 2);
    ranks_open(&p->spared, RANKS, params, sizes, 2);
}

static void pair_close(pair *p) {
    ranks_close(&p->tried);
    ranks_close(&p->spared);
    rows_free(p->grads);
    rows_free(p->outs);
    rows_free(p->want);
    rows_free(p->before);
}

/* The same good step on both sets gives the same. */
static void good_step(pair *p) {
    rows_fill(p->grads, RANKS, N, DATA_POWER5, p->step++);
    ranks_allreduce(&p->tried, 0, (void *const *)p->grads, p->outs);
    ranks_ok(&p->tried);
    ranks_allreduce(&p->spared, 0, (void *const *)p->grads, p->want);
    ranks_ok(&p->spared);
    for (int rank = 0; rank < RANKS; rank++)
        check_bits("out", p->outs[rank], p->want[rank], N);
    ranks_get_residuals(&p->spared, 0, p->before, N);
    ranks_check_residuals(&p->tried, 0, p->before, N);
}

/* A step of p->grads must be refused on all ranks and leave residuals and gradients unchanged. */
static void bad_step_into(pair *p, int error, float **out) {
    tw_step_info info, after;
    check_ok(tw_group_info(p->tried.groups[0], 0, &info));
    ranks_get_residuals(&p->tried, 0, p->before, N);
    for (int rank = 0; rank < RANKS; rank++)
        memcpy(p->want[rank], p->grads[rank], N * sizeof(float));
    ranks_allreduce(&p->tried, 0, (void *const *)p->grads, out);
    ranks_error(&p->tried, error);
    for (int rank = 0; rank < RANKS; rank++)
        check_bits("gradient of a refused step", p->grads[rank], p->want[rank], N);
    ranks_check_residuals(&p->tried, 0, p->before, N);
    check_ok(tw_group_info(p->tried.groups[0], 0, &after));
    check_int("steps that succeeded", after.step, info.step);
}

/* In place: the gradient must be as before. */
static void bad_step(pair *p, int error) {
    bad_step_into(p, error, p->grads);
}

static tw_group_params params_of(const char *exchange, int variant) {
    tw_group_params params = ranks_params(exchange, K);
    params.result = TW_SUM;
    params.select.method = variant % 2 ? "reuse" : "exact";
    params.select.momentum = variant == 2 ? 0.5f : 0.0f;
    if (variant == 3 && strcmp(exchange, "dense") != 0)
        params.select.before = TW_BEFORE_ADAMW;
    params.global = variant % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
    return params;
}

static void test_bad_numbers(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int e = 0; e < check_exchanges(); e++)
        for (int variant = 0; variant < 4; variant++) {
            pair p;
            const tw_group_params params = params_of(check_exchange(e), variant);
            pair_open(&p, &params);
            for (int i = 0; i < 8; i++) {
                const int rank = (i + 3) % RANKS, at = i * 42;
                check_scene("%s variant=%d: %g on rank %d at %d", check_exchange(e), variant,
                            (double)bad[i % 3], rank, at);
                good_step(&p);
                rows_fill(p.grads, RANKS, N, DATA_POWER5, 1000 + i);
                p.grads[rank][at] = bad[i % 3];
                bad_step(&p, TW_ERR_NUMBER);
                ranks_say(&p.tried, "rank %d", rank);
                ranks_say(&p.tried, "%d", at);
            }
            good_step(&p);
            pair_close(&p);
        }
}

/* Two tensors of one bucket. The first is bad on one rank, which then does not read the second. */
typedef struct two {
    float **grads, **outs;
} two;

static int start_both(ranks *r, int rank, void *context) {
    const two *t = context;
    int error = tw_allreduce_start(r->groups[rank], 0, t->grads[rank], t->outs[rank]);
    if (error == TW_OK)
        error =
            tw_allreduce_start(r->groups[rank], 1, t->grads[rank] + N / 2, t->outs[rank] + N / 2);
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void test_bad_first_of_two(void **state) {
    (void)state;
    const int64_t sizes[2] = {N / 2, N / 2};
    for (int e = 0; e < check_exchanges(); e++) {
        const tw_group_params params = params_of(check_exchange(e), 0);
        ranks tried, spared;
        ranks_open(&tried, RANKS, &params, sizes, 2);
        ranks_open(&spared, RANKS, &params, sizes, 2);
        two got = {rows_alloc(RANKS, N), rows_alloc(RANKS, N)};
        two want = {got.grads, rows_alloc(RANKS, N)};
        for (int step = 0; step < 9; step++) {
            check_scene("%s step=%d", check_exchange(e), step);
            rows_fill(got.grads, RANKS, N, step % 2 ? DATA_POWER5 : DATA_GAUSS, step);
            const float good = got.grads[1][7];
            got.grads[1][7] = NAN;
            ranks_run(&tried, start_both, &got);
            ranks_error(&tried, TW_ERR_NUMBER);
            got.grads[1][7] = good;
            ranks_run(&tried, start_both, &got);
            ranks_ok(&tried);
            ranks_run(&spared, start_both, &want);
            ranks_ok(&spared);
            for (int rank = 0; rank < RANKS; rank++)
                check_bits("out", got.outs[rank], want.outs[rank], N);
        }
        ranks_close(&tried);
        ranks_close(&spared);
        rows_free(got.grads);
        rows_free(got.outs);
        rows_free(want.outs);
    }
}

/* Bad on all ranks: the text names the first. */
static void test_several_bad(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        pair p;
        const tw_group_params params = params_of(check_exchange(e), 0);
        check_scene("%s: all ranks are bad", check_exchange(e));
        pair_open(&p, &params);
        good_step(&p);
        rows_fill(p.grads, RANKS, N, DATA_POWER5, 500);
        for (int rank = 0; rank < RANKS; rank++)
            p.grads[rank][10 + rank] = NAN;
        bad_step(&p, TW_ERR_NUMBER);
        ranks_say(&p.tried, "rank 0");
        ranks_say(&p.tried, "10");
        good_step(&p);
        pair_close(&p);
    }
}

/* Each rank's gradient is finite, their sum is not. Dense has written to out by then, so its out is
 * not the gradient. */
static void test_sum_overflows(void **state) {
    (void)state;
    float **apart = rows_alloc(RANKS, N);
    for (int e = 0; e < check_exchanges(); e++)
        for (int result = TW_MEAN; result <= TW_SUM; result++) {
            pair p;
            const int dense = strcmp(check_exchange(e), "dense") == 0;
            tw_group_params params = params_of(check_exchange(e), result); /* with reuse too */
            params.result = result;
            pair_open(&p, &params);
            for (int i = 0; i < 3; i++) {
                check_scene("%s: sum over ranks overflows, %d", check_exchange(e), i);
                good_step(&p);
                rows_fill(p.grads, RANKS, N, DATA_POWER5, 600 + i);
                for (int64_t at = 0; at < N; at++)
                    p.grads[3][at] *= 1000.0f; /* a threshold learned here would show */
                p.grads[i][77] = p.grads[i + 1][77] = 3e38f;
                bad_step_into(&p, TW_ERR_NUMBER, dense ? apart : p.grads);
            }
            good_step(&p);
            pair_close(&p);
        }
    rows_free(apart);
}

/* The sum of gradient and residual overflows on one rank. */
static void test_residual_overflows(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        ranks r;
        const int64_t n = 8;
        tw_group_params params = params_of(check_exchange(e), 0);
        params.select.k = 1;
        float **grads = rows_alloc(RANKS, n), **before = rows_alloc(RANKS, n);
        check_scene("%s: gradient + residual overflows", check_exchange(e));
        ranks_open(&r, RANKS, &params, &n, 1);
        grads[2][3] = 3.2e38f; /* sent in the first step; 3e38 stays behind */
        grads[2][5] = 3e38f;
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, before, n);
        grads[2][3] = 0;
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_error(&r, TW_ERR_NUMBER);
        ranks_say(&r, "rank 2");
        ranks_say(&r, "5");
        ranks_check_residuals(&r, 0, before, n);
        rows_free(grads);
        rows_free(before);
        ranks_close(&r);
    }
}

/* What a rank drops overflows with what its residual holds want. */
static void drop_at(const char *exchange, const char *wire, int dropper, float dropped) {
    ranks r;
    const int64_t n = 8;
    tw_group_params params = params_of(exchange, 0);
    params.select.k = 1;
    params.wire = wire;
    float **grads = rows_alloc(RANKS, n), **before = rows_alloc(RANKS, n);
    check_scene("%s, %s: a dropped sum of %g overflows with the residual", exchange, wire,
                (double)dropped);
    ranks_open(&r, RANKS, &params, &n, 1);
    grads[dropper][3] = 3.3e38f; /* stays in the list; 3.2e38 at 5 stays behind */
    grads[dropper][5] = 3.2e38f;
    grads[1][5] = dropped; /* by that rank */
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_error(&r, TW_ERR_NUMBER);
    ranks_check_residuals(&r, 0, before, n);
    grads[dropper][5] = 0;
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    rows_free(grads);
    rows_free(before);
    ranks_close(&r);
}

/* gtopk merges at rank 0; in butterfly the rank that owns a range drops its sums. */
static void test_dropped_sum_overflows(void **state) {
    (void)state;
    for (int w = 0; w < check_wires(); w++) {
        drop_at("gtopk", check_wire(w), 0, 3e38f);
        drop_at("butterfly", check_wire(w), 5 * RANKS / 8, 3e38f);
        drop_at("butterfly", check_wire(w), 5 * RANKS / 8, 1e38f);
    }
}

/* A rank gets back what it sent itself, near the end of the range: its residual does not hold that
 * twice, so nothing overflows. */
static void test_dropped_own_entry(void **state) {
    (void)state;
    ranks r;
    const int64_t n = 8;
    tw_group_params params = params_of("gtopk", 0);
    params.select.k = 2;
    float **grads = rows_alloc(RANKS, n), **want = rows_alloc(RANKS, n);
    check_scene("a rank drops its own entry");
    ranks_open(&r, RANKS, &params, &n, 1);
    grads[0][3] = grads[1][7] = 3e38f;
    grads[0][5] = want[0][5] = 2e38f;
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    ranks_check_residuals(&r, 0, want, n);
    rows_free(grads);
    rows_free(want);
    ranks_close(&r);
}

/* ---- NULL on one rank ------------------------------------------------------------------------ */

static void test_null_on_one_rank(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        for (int rank = 0; rank < RANKS; rank++) {
            pair p;
            const tw_group_params params = params_of(check_exchange(e), 0);
            check_scene("%s: NULL on rank %d", check_exchange(e), rank);
            pair_open(&p, &params);
            good_step(&p);
            float *kept = p.grads[rank];
            p.grads[rank] = NULL;
            ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
            p.grads[rank] = kept;
            ranks_error(&p.tried, TW_ERR_NULL);
            ranks_say(&p.tried, "rank %d", rank);
            ranks_check_residuals(&p.tried, 0, p.before, N);
            good_step(&p);
            pair_close(&p);
        }
}

/* Out that overlaps with the gradient, by one element at its end or its begin, or that is a gradient of
 * 16 bits, is refused on all ranks. Out that only touches it is not. */
static void test_overlap_on_one_rank(void **state) {
    (void)state;
    enum { BYTES = 16 * N };
    static const struct {
        int type, at, refused; /* bytes from the gradient to out */
    } cases[] = {
        {TW_F32, 4 * N - 4, 1},  {TW_F32, 4 - 4 * N, 1}, {TW_F32, 4, 1},
        {TW_F32, 4 * N, 0},      {TW_F32, -4 * N, 0},    {TW_F32, 0, 0},
        {TW_F16, 0, 1},          {TW_F16, 2 * N - 2, 1}, {TW_BF16, 2 * N, 0},
        {TW_BF16, 2 - 4 * N, 1}, {TW_F16, -4 * N, 0},
    };
    char *memory = check_alloc(BYTES, 1);
    for (int e = 0; e < check_exchanges(); e++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            pair p;
            tw_group_params params = params_of(check_exchange(e), 0);
            params.select.type = cases[i].type;
            check_scene("%s, type %d: out %d bytes behind the gradient on rank 2",
                        check_exchange(e), cases[i].type, cases[i].at);
            pair_open(&p, &params); /* gradients of zeros, of any type */
            memset(memory, 0, BYTES);
            float *grad = p.grads[2], *out = p.outs[2];
            p.grads[2] = (void *)(memory + BYTES / 2);
            p.outs[2] = (void *)(memory + BYTES / 2 + cases[i].at);
            ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
            ranks_error(&p.tried, cases[i].refused ? TW_ERR_PARAM : TW_OK);
            if (cases[i].refused)
                ranks_say(&p.tried, "rank 2, tensor 0: grad and out overlap");
            p.grads[2] = grad;
            p.outs[2] = out;
            ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
            ranks_ok(&p.tried);
            pair_close(&p);
        }
    free(memory);
}

/* The result of dense goes to out and nowhere else. */
static void test_dense_needs_out(void **state) {
    (void)state;
    pair p;
    const tw_group_params params = params_of("dense", 0);
    check_scene("dense without out on rank 1");
    pair_open(&p, &params);
    float *kept = p.outs[1];
    p.outs[1] = NULL;
    ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
    p.outs[1] = kept;
    ranks_error(&p.tried, TW_ERR_NULL);
    ranks_say(&p.tried, "rank 1");
    good_step(&p);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_numbers),         cmocka_unit_test(test_bad_first_of_two),
        cmocka_unit_test(test_several_bad),         cmocka_unit_test(test_sum_overflows),
        cmocka_unit_test(test_residual_overflows),  cmocka_unit_test(test_dropped_sum_overflows),
        cmocka_unit_test(test_null_on_one_rank),    cmocka_unit_test(test_dense_needs_out),
        cmocka_unit_test(test_overlap_on_one_rank), cmocka_unit_test(test_dropped_own_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
