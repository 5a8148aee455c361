/* test_slow_wire.c - groups with slow messages give the same results as groups with fast ones
 *
 * A rank that waits long for payload does overlapping work: it clears out and writes sums to it as
 * they arrive. Between threads messages are too fast for that. Here a relay delays them. Results,
 * sparse results and residuals must equal those of ranks that are threads, bit for bit.
 */
#include <stdlib.h>
#include <string.h>

#include "group/group.h"
#include "ranks.h"
#include "relay.h"

enum { RANKS = 3, STEPS = 3, MORE_STEPS = 30, BAD_STEP = 1, GARBAGE = 0xa5 };
/* k is about a third of these: enough for oktopk to send its regions in batches. TINY is too small for
 * oktopk. */
enum { LARGE = 100000, SMALL = 3000, TINY = 40 };

/* Tensors of the bucket. */
enum { USUAL, MISALIGNED, IN_PLACE, NO_OUT, FAINT, FEW, FEWEST, TENSORS };
static const int64_t sizes[TENSORS] = {LARGE, LARGE - 1, LARGE, LARGE / 2, SMALL, SMALL / 10, TINY};

static float *gradients[STEPS][RANKS][TENSORS];

/* Each element is non-zero on one rank, and so small that rounding makes its sum 0 or -0. */
static void fill_faint(float *x, int64_t n, int rank, uint64_t seed) {
    oracle_rng rng = {.key = seed};
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(oracle_below(&rng, 1023) - 511) * 0x1p-149f;
        x[i] = i % RANKS == rank ? value : 0.0f;
    }
}

static int fill_all(void **state) {
    (void)state;
    for (int step = 0; step < STEPS; step++)
        for (int rank = 0; rank < RANKS; rank++)
            for (int t = 0; t < TENSORS; t++) {
                uint64_t seed = (uint64_t)((step * RANKS + rank) * TENSORS + t);
                float *x = gradients[step][rank][t] = check_alloc(sizes[t], sizeof(float));
                if (t == FAINT)
                    fill_faint(x, sizes[t], rank, seed);
                else
                    oracle_fill(x, sizes[t], t % 2 ? DATA_GAUSS : DATA_TIES, seed);
            }
    return 0;
}

static int free_all(void **state) {
    (void)state;
    for (int step = 0; step < STEPS; step++)
        for (int rank = 0; rank < RANKS; rank++)
            for (int t = 0; t < TENSORS; t++)
                free(gradients[step][rank][t]);
    return 0;
}

/* ---- A group, slow or fast ------------------------------------------------------------------------- */

typedef struct trial {
    ranks r;
    relay *relay; /* NULL: ranks are threads */
    int step;     /* of the gradients */
    char *outs[RANKS][TENSORS];
    int64_t early[TENSORS]; /* sums that were written to out before the end of the exchange */
} trial;

static void trial_open(trial *f, const tw_group_params *params, int slow) {
    tw_transport *transports[RANKS];
    memset(f, 0, sizeof *f);
    if (slow) {
        f->relay = relay_open(transports, RANKS);
        ranks_adopt(&f->r, RANKS, transports);
    } else {
        ranks_init(&f->r, RANKS);
    }
    ranks_try_open(&f->r, params, sizes, TENSORS);
    ranks_ok(&f->r);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            f->outs[rank][t] = check_alloc(sizes[t] + 1, sizeof(float));
}

static void trial_close(trial *f) {
    ranks_close(&f->r);
    if (f->relay != NULL)
        relay_close(f->relay);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            free(f->outs[rank][t]);
}

static size_t shift_of(int t) {
    return t == MISALIGNED ? 1 : 0;
}

static char *out_of(const trial *f, int rank, int t) {
    return t == NO_OUT ? NULL : f->outs[rank][t] + shift_of(t);
}

static int start_all(ranks *r, int rank, void *context) {
    const trial *f = context;
    int error = TW_OK;
    for (int t = 0; t < TENSORS && error == TW_OK; t++) {
        void *out = out_of(f, rank, t);
        const void *grad = t == IN_PLACE ? out : gradients[f->step][rank][t];
        error = tw_allreduce_start(r->groups[rank], t, grad, out);
    }
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

/* out is garbage before the step, except in place. The caller checks the status. */
static void trial_step(trial *f, int step) {
    f->step = step;
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++) {
            size_t bytes = sizeof(float) * (size_t)sizes[t];
            memset(f->outs[rank][t], GARBAGE, bytes + sizeof(float));
            if (t == IN_PLACE)
                memcpy(f->outs[rank][t], gradients[step][rank][t], bytes);
        }
    ranks_run(&f->r, start_all, f);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            f->early[t] += f->r.groups[rank]->tensors[t].placed;
}

/* ---- Comparisons ---------------------------------------------------------------------------------- */

static void check_out(const trial *slow, const trial *fast, int rank, int t, float **rows) {
    size_t bytes = sizeof(float) * (size_t)sizes[t];
    if (t == NO_OUT)
        return;
    memcpy(rows[0], out_of(slow, rank, t), bytes);
    memcpy(rows[1], out_of(fast, rank, t), bytes);
    check_bits("out", rows[0], rows[1], sizes[t]);
    for (size_t i = 0; i < sizeof(float); i++)
        check_int("byte outside of out", slow->outs[rank][t][i < shift_of(t) ? i : bytes + i],
                  (char)GARBAGE);
}

static void check_tensor(const trial *slow, const trial *fast, int rank, int t, float **rows) {
    tw_sparse got, want;
    check_out(slow, fast, rank, t, rows);
    check_ok(tw_group_result(slow->r.groups[rank], t, &got));
    check_ok(tw_group_result(fast->r.groups[rank], t, &want));
    check_selection(&got, want.count, want.idx, want.val);
    check_ok(tw_group_get_residual(slow->r.groups[rank], t, rows[0]));
    check_ok(tw_group_get_residual(fast->r.groups[rank], t, rows[1]));
    check_bits("residual", rows[0], rows[1], sizes[t]);
}

static void check_step(trial *slow, trial *fast, int step, float **rows) {
    trial_step(slow, step);
    ranks_ok(&slow->r);
    trial_step(fast, step);
    ranks_ok(&fast->r);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            check_tensor(slow, fast, rank, t, rows);
}

/* A step whose sum overflows in one element fails and changes nothing. */
static void check_refused(trial *slow, int step, float **rows) {
    float **before = rows_alloc(RANKS * TENSORS, LARGE);
    float good[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        good[rank] = gradients[step][rank][USUAL][5];
        gradients[step][rank][USUAL][5] = 3e38f;
        for (int t = 0; t < TENSORS; t++)
            check_ok(tw_group_get_residual(slow->r.groups[rank], t, before[rank * TENSORS + t]));
    }
    trial_step(slow, step);
    for (int rank = 0; rank < RANKS; rank++)
        gradients[step][rank][USUAL][5] = good[rank];
    ranks_error(&slow->r, TW_ERR_NUMBER);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int t = 0; t < TENSORS; t++) {
            check_ok(tw_group_get_residual(slow->r.groups[rank], t, rows[0]));
            check_bits("residual after a refused step", rows[0], before[rank * TENSORS + t],
                       sizes[t]);
        }
        memcpy(rows[0], out_of(slow, rank, IN_PLACE), sizeof(float) * (size_t)sizes[IN_PLACE]);
        check_bits("gradient of a refused step", rows[0], gradients[step][rank][IN_PLACE],
                   sizes[IN_PLACE]);
    }
    rows_free(before);
}

/* ---- Configurations ----------------------------------------------------------------------------------------- */

typedef struct config {
    const char *scheme, *wire;
    int global;
    int early; /* the exchange gives sums as they arrive */
    int faint; /* faint sums leave entries */
} config;

static tw_step_info info_of(const trial *f, int t) {
    tw_step_info info;
    check_ok(tw_group_info(f->r.groups[0], t, &info));
    return info;
}

/* Both tensors that can have early sums had some. */
static int has_early(const trial *f) {
    return f->early[USUAL] > 0 && f->early[MISALIGNED] > 0;
}

/* The trial has tested what it should. */
static void check_coverage(const trial *slow, const config *how) {
    int oktopk = strcmp(how->scheme, "logtopk") != 0;
    check_int("tensors in the bucket", info_of(slow, USUAL).tensors, TENSORS);
    check_int("k of a batched tensor", info_of(slow, USUAL).k > 32768, 1);
    check_int("the smallest one uses butterfly",
              strcmp(info_of(slow, FEWEST).exchange, "butterfly") == 0, 1);
    check_int("a small one uses butterfly", strcmp(info_of(slow, FEW).exchange, "butterfly") == 0,
              !oktopk);
    check_int("faint sums are left", info_of(slow, FAINT).applied > 0, how->faint);
    check_int("early sums in place", slow->early[IN_PLACE], 0);
    check_int("early sums without out", slow->early[NO_OUT], 0);
    check_int("early sums", has_early(slow), how->early);
}

static void check_config(const config *how) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = how->scheme;
    params.wire = how->wire;
    params.global = how->global;
    params.select.density = 0.34;
    params.select.threads = 1;
    trial slow, fast;
    float **rows = rows_alloc(2, LARGE);
    trial_open(&slow, &params, 1);
    trial_open(&fast, &params, 0);
    for (int step = 0; step < STEPS; step++) {
        check_scene("%s %s global=%d step=%d", how->scheme, how->wire, how->global, step);
        if (step == BAD_STEP)
            check_refused(&slow, step, rows);
        check_step(&slow, &fast, step, rows);
    }
    /* On a busy machine ranks may be too late to wait for messages. */
    for (int more = 0; more < MORE_STEPS && how->early && !has_early(&slow); more++)
        check_step(&slow, &fast, more % STEPS, rows);
    check_coverage(&slow, how);
    trial_close(&slow);
    trial_close(&fast);
    rows_free(rows);
}

static void test_oktopk(void **state) {
    (void)state;
    static const config configs[] = {{"oktopk", "bf16", TW_GLOBAL_EXACT, 1, 0},
                                     {"oktopk", "bf16", TW_GLOBAL_REUSE, 1, 0},
                                     {"oktopk", "q4", TW_GLOBAL_EXACT, 1, 0},
                                     {"oktopk", "raw", TW_GLOBAL_EXACT, 0, 1}};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        check_config(&configs[i]);
}

/* Its sums are not those that oktopk gives early. */
static void test_fulltopk(void **state) {
    (void)state;
    check_config(&(config){"fulltopk", "bf16", TW_GLOBAL_EXACT, 0, 1});
}

static void test_butterfly(void **state) {
    (void)state;
    check_config(&(config){"logtopk", "bf16", TW_GLOBAL_EXACT, 0, 0});
}

/* ---- A rank leaves ------------------------------------------------------------------------------------------ */

static int leave_slowly(ranks *r, int rank, void *context) {
    (void)context;
    return rank == 1 ? tw_group_leave(r->groups[rank], 0) : tw_group_grow(r->groups[rank], NULL);
}

/* Its residual takes longer than the timeout: 32 MB at 64 KiB in 3 ms. Rank 2 has nothing to do meanwhile. */
static void test_leave(void **state) {
    (void)state;
    tw_transport *transports[RANKS];
    tw_group_params params = ranks_params("oktopk", 1000);
    const int64_t n = 8000000;
    float *residual = check_alloc(n, sizeof *residual);
    ranks r;
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 0.8;
    relay *slow = relay_open(transports, RANKS);
    ranks_adopt(&r, RANKS, transports);
    ranks_try_open(&r, &params, &n, 1);
    ranks_ok(&r);
    residual[0] = residual[n - 1] = 3.0f;
    check_ok(tw_selector_set_residual(r.groups[1]->tensors[0].selector, residual));
    const double begin = check_seconds();
    ranks_run(&r, leave_slowly, NULL);
    ranks_ok(&r);
    check_true(check_seconds() - begin > params.timeout);
    memset(residual, 0, sizeof *residual * (size_t)n);
    check_ok(tw_group_get_residual(r.groups[0], 0, residual));
    check_float("first of the residual", residual[0], 3.0f);
    check_float("last of the residual", residual[n - 1], 3.0f);
    ranks_close(&r);
    relay_close(slow);
    free(residual);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oktopk), cmocka_unit_test(test_fulltopk),
        cmocka_unit_test(test_butterfly), cmocka_unit_test(test_leave)};
    return cmocka_run_group_tests(tests, fill_all, free_all);
}
