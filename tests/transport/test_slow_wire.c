/* test_slow_wire.c - groups whose messages take long get what groups with fast ones get
 *
 * A rank that waits long for payload uses the time: it clears out, and puts sums there as they come.
 * Between threads messages are too fast for that. Here they go through a relay that holds them back;
 * results, sparse results and residuals must be those of ranks that are threads, bit for bit.
 */
#include <stdlib.h>
#include <string.h>

#include "group/group.h"
#include "ranks.h"
#include "relay.h"

enum { RANKS = 3, STEPS = 3, MORE_STEPS = 30, BAD_STEP = 1, NONSENSE = 0xa5 };
/* k is about a third of these: enough for oktopk to cut its regions into batches, and for the last
 * one too few to go by oktopk at all. */
enum { LARGE = 100000, SMALL = 3000, TINY = 40 };

/* Tensors of the bucket, by what is special about them. */
enum { USUAL, MISALIGNED, IN_PLACE, NO_OUT, FAINT, FEW, FEWEST, TENSORS };
static const int64_t sizes[TENSORS] = {LARGE, LARGE - 1, LARGE, LARGE / 2, SMALL, SMALL / 10, TINY};

static float *gradients[STEPS][RANKS][TENSORS];

/* Each element is one rank's, and so small that a sum of it is rounded to zero, of either sign. */
static void fill_faint(float *x, int64_t n, int rank, uint64_t seed) {
    oracle_rng rng = {seed};
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

/* ---- A group, over either ------------------------------------------------------------------------- */

typedef struct fleet {
    ranks r;
    relay *relay; /* NULL: ranks are threads */
    int step;     /* whose gradients it gets */
    char *outs[RANKS][TENSORS];
    int64_t early[TENSORS]; /* sums that were put into out before the exchange had ended */
} fleet;

static void fleet_open(fleet *f, const tw_group_params *params, int slow) {
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

static void fleet_close(fleet *f) {
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

static char *out_of(const fleet *f, int rank, int t) {
    return t == NO_OUT ? NULL : f->outs[rank][t] + shift_of(t);
}

static int start_all(ranks *r, int rank, void *context) {
    const fleet *f = context;
    int error = TW_OK;
    for (int t = 0; t < TENSORS && error == TW_OK; t++) {
        void *out = out_of(f, rank, t);
        const void *grad = t == IN_PLACE ? out : gradients[f->step][rank][t];
        error = tw_allreduce_start(r->groups[rank], t, grad, out);
    }
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

/* out holds nonsense before, but where it is the gradient. The status is left to be checked. */
static void fleet_step(fleet *f, int step) {
    f->step = step;
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++) {
            size_t bytes = sizeof(float) * (size_t)sizes[t];
            memset(f->outs[rank][t], NONSENSE, bytes + sizeof(float));
            if (t == IN_PLACE)
                memcpy(f->outs[rank][t], gradients[step][rank][t], bytes);
        }
    ranks_run(&f->r, start_all, f);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            f->early[t] += f->r.groups[rank]->tensors[t].early;
}

/* ---- Comparisons ---------------------------------------------------------------------------------- */

static void same_out(const fleet *slow, const fleet *fast, int rank, int t, float **rows) {
    size_t bytes = sizeof(float) * (size_t)sizes[t];
    if (t == NO_OUT)
        return;
    memcpy(rows[0], out_of(slow, rank, t), bytes);
    memcpy(rows[1], out_of(fast, rank, t), bytes);
    check_bits("out", rows[0], rows[1], sizes[t]);
    for (size_t i = 0; i < sizeof(float); i++)
        check_int("byte outside of out", slow->outs[rank][t][i < shift_of(t) ? i : bytes + i],
                  (char)NONSENSE);
}

static void same_tensor(const fleet *slow, const fleet *fast, int rank, int t, float **rows) {
    tw_sparse got, want;
    same_out(slow, fast, rank, t, rows);
    check_ok(tw_group_result(slow->r.groups[rank], t, &got));
    check_ok(tw_group_result(fast->r.groups[rank], t, &want));
    check_selection(&got, want.count, want.idx, want.val);
    check_ok(tw_group_get_residual(slow->r.groups[rank], t, rows[0]));
    check_ok(tw_group_get_residual(fast->r.groups[rank], t, rows[1]));
    check_bits("residual", rows[0], rows[1], sizes[t]);
}

static void same_step(fleet *slow, fleet *fast, int step, float **rows) {
    fleet_step(slow, step);
    ranks_ok(&slow->r);
    fleet_step(fast, step);
    ranks_ok(&fast->r);
    for (int rank = 0; rank < RANKS; rank++)
        for (int t = 0; t < TENSORS; t++)
            same_tensor(slow, fast, rank, t, rows);
}

/* One element of all ranks is so large that their sum is not finite. */
static void refused_step(fleet *slow, int step, float **rows) {
    float **before = rows_alloc(RANKS * TENSORS, LARGE);
    float good[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        good[rank] = gradients[step][rank][USUAL][5];
        gradients[step][rank][USUAL][5] = 3e38f;
        for (int t = 0; t < TENSORS; t++)
            check_ok(tw_group_get_residual(slow->r.groups[rank], t, before[rank * TENSORS + t]));
    }
    fleet_step(slow, step);
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

/* ---- Runs ----------------------------------------------------------------------------------------- */

typedef struct run {
    const char *scheme, *wire;
    int global;
    int early; /* it tells of sums as they come */
    int faint; /* entries that the faint sums leave: none, or else some */
} run;

static tw_step_info info_of(const fleet *f, int t) {
    tw_step_info info;
    check_ok(tw_group_info(f->r.groups[0], t, &info));
    return info;
}

/* Sums of both tensors that can have them early were put in place so. */
static int tells_early(const fleet *f) {
    return f->early[USUAL] > 0 && f->early[MISALIGNED] > 0;
}

/* That the run was what it is meant to be. */
static void check_course(const fleet *slow, const run *how) {
    int oktopk = strcmp(how->scheme, "logtopk") != 0;
    check_int("tensors in the bucket", info_of(slow, USUAL).tensors, TENSORS);
    check_int("k of a batched tensor", info_of(slow, USUAL).k > 32768, 1);
    check_int("the smallest one goes by butterfly",
              strcmp(info_of(slow, FEWEST).exchange, "butterfly") == 0, 1);
    check_int("a small one does, too", strcmp(info_of(slow, FEW).exchange, "butterfly") == 0,
              !oktopk);
    check_int("faint sums are left", info_of(slow, FAINT).applied > 0, how->faint);
    check_int("early sums in place", slow->early[IN_PLACE], 0);
    check_int("early sums without out", slow->early[NO_OUT], 0);
    check_int("early sums", tells_early(slow), how->early);
}

static void play(const run *how) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = how->scheme;
    params.wire = how->wire;
    params.global = how->global;
    params.select.density = 0.34;
    params.select.threads = 1;
    fleet slow, fast;
    float **rows = rows_alloc(2, LARGE);
    fleet_open(&slow, &params, 1);
    fleet_open(&fast, &params, 0);
    for (int step = 0; step < STEPS; step++) {
        check_scene("%s %s global=%d step=%d", how->scheme, how->wire, how->global, step);
        if (step == BAD_STEP)
            refused_step(&slow, step, rows);
        same_step(&slow, &fast, step, rows);
    }
    /* On a busy machine ranks may be too late to wait for each other. */
    for (int more = 0; more < MORE_STEPS && how->early && !tells_early(&slow); more++)
        same_step(&slow, &fast, more % STEPS, rows);
    check_course(&slow, how);
    fleet_close(&slow);
    fleet_close(&fast);
    rows_free(rows);
}

static void test_oktopk(void **state) {
    (void)state;
    static const run runs[] = {{"oktopk", "bf16", TW_GLOBAL_EXACT, 1, 0},
                               {"oktopk", "bf16", TW_GLOBAL_REUSE, 1, 0},
                               {"oktopk", "q4", TW_GLOBAL_EXACT, 1, 0},
                               {"oktopk", "raw", TW_GLOBAL_EXACT, 0, 1}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        play(&runs[i]);
}

/* What oktopk would tell are other sums than these. */
static void test_fulltopk(void **state) {
    (void)state;
    play(&(run){"fulltopk", "bf16", TW_GLOBAL_EXACT, 0, 1});
}

static void test_butterfly(void **state) {
    (void)state;
    play(&(run){"logtopk", "bf16", TW_GLOBAL_EXACT, 0, 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oktopk),
                                       cmocka_unit_test(test_fulltopk),
                                       cmocka_unit_test(test_butterfly)};
    return cmocka_run_group_tests(tests, fill_all, free_all);
}
