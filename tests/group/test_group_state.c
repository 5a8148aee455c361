/* test_group_state.c - a group that is saved and loaded goes on bit by bit, also on other ranks
 *
 * With as many ranks as before, the loaded group must give what the saved one gives, step by step.
 * With another number of ranks, the sum of residuals over all ranks is kept.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "group_state.h"

/* ---- Going on -------------------------------------------------------------------------------- */

static void check_steps(ranks *r, int steps) {
    tw_step_info info;
    tw_sparse sparse;
    check_ok(tw_group_info(r->groups[0], 0, &info));
    check_int("info.step after loading", info.step, steps);
    check_error(tw_group_result(r->groups[0], 0, &sparse), TW_ERR_STATE);
}

/* Returns as state_same_steps does. */
static int go_on(const tw_group_params *params, int nranks, int steps) {
    ranks old, fresh;
    ranks_open(&old, nranks, params, state_sizes, STATE_TENSORS);
    state_steps(&old, 0, steps);
    state_save_all(&old, "go-on");
    ranks_open(&fresh, nranks, params, state_sizes, STATE_TENSORS);
    state_steps(&fresh, 500, 502); /* what it held is replaced */
    state_load_all(&fresh, "go-on");
    ranks_ok(&fresh);
    check_steps(&fresh, steps);
    state_same_residuals(&fresh, &old);
    const int fewer = state_same_steps(&fresh, &old, steps, steps + 6);
    ranks_close(&old);
    ranks_close(&fresh);
    return fewer;
}

static void test_go_on(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        for (int variant = 0; variant < 5 && strcmp(scheme, "auto") != 0; variant++) {
            tw_group_params params = state_params(scheme);
            if (variant == 4 && strcmp(scheme, "dense") == 0)
                continue; /* nothing comes before it */
            params.select.before = variant == 4 ? TW_BEFORE_ADAMW : TW_BEFORE_NOTHING;
            params.select.momentum = variant == 1 ? 0.5f : 0.0f;
            params.select.warmup_steps = variant == 2 ? 9 : 0;
            params.select.feedback = variant == 3 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
            params.global = variant % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
            check_scene("%s goes on, variant %d", scheme, variant);
            go_on(&params, 1 + (i + variant) % 4, 5);
        }
}

/* Every selection method keeps what it has learned, and so does the global selection. */
static void test_go_on_methods(void **state) {
    (void)state;
    int reused = 0;
    state_data = DATA_POWER5; /* heavy tails: thresholds serve for long */
    for (int method = 0; method < check_methods(); method++)
        for (int steps = 0; steps <= 7; steps += 7) {
            tw_group_params params = state_params("oktopk");
            params.select.method = check_method(method);
            params.global = TW_GLOBAL_REUSE;
            check_scene("%s goes on after %d steps", params.select.method, steps);
            reused += go_on(&params, 3, steps);
        }
    state_data = DATA_SUMMABLE;
    check_true(reused > 10); /* or global thresholds never mattered */
}

/* Saved again at once, the files are the same; a save changes nothing. */
static void test_save_twice(void **state) {
    (void)state;
    ranks r;
    int64_t size, other_size;
    const tw_group_params params = state_params("oktopk");
    check_scene("saved twice");
    ranks_open(&r, 2, &params, state_sizes, STATE_TENSORS);
    state_steps(&r, 0, 3);
    state_save_all(&r, "once");
    state_save_all(&r, "twice");
    for (int rank = 0; rank < 2; rank++) {
        char *a = state_read(state_path("once", rank), &size);
        char *b = state_read(state_path("twice", rank), &other_size);
        check_int("size", other_size, size);
        check_true(memcmp(a, b, (size_t)size) == 0);
        free(a);
        free(b);
    }
    ranks_close(&r);
}

/* ---- Other numbers of ranks ------------------------------------------------------------------ */

/* The sum of residuals over ranks in units of 2^-10, element by element; to be freed. */
static int64_t *total(ranks *r, int tensor) {
    float **rows = rows_alloc(r->nranks, state_sizes[tensor]);
    int64_t *sum = check_alloc(state_sizes[tensor], sizeof *sum);
    ranks_get_residuals(r, tensor, rows, state_sizes[tensor]);
    for (int rank = 0; rank < r->nranks; rank++)
        for (int64_t i = 0; i < state_sizes[tensor]; i++)
            sum[i] += check_units(rows[rank][i]);
    rows_free(rows);
    return sum;
}

static void same_total(ranks *a, ranks *b) {
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        int64_t *got = total(a, tensor), *want = total(b, tensor), nonzeros = 0;
        for (int64_t i = 0; i < state_sizes[tensor]; i++) {
            if (got[i] != want[i])
                check_fail("element %lld of tensor %d: residuals sum to %lld, before to %lld",
                           (long long)i, tensor, (long long)got[i], (long long)want[i]);
            nonzeros += want[i] != 0;
        }
        check_true(nonzeros > 10);
        free(got);
        free(want);
    }
}

static void move_ranks(const char *scheme, int from, int to, int stride) {
    ranks old, fresh;
    const tw_group_params params = state_params(scheme);
    check_scene("%s from %d to %d ranks, stride %d", scheme, from, to, stride);
    ranks_open(&old, from, &params, state_sizes, STATE_TENSORS);
    state_steps(&old, 0, 5);
    state_save_all(&old, "move");
    ranks_open(&fresh, to, &params, state_sizes, STATE_TENSORS);
    state_steps(&fresh, 700, 702);
    state_files c = state_spread("move", from, to, stride);
    ranks_run(&fresh, state_load, &c);
    ranks_ok(&fresh);
    same_total(&fresh, &old);
    state_steps(&fresh, 5, 8);
    tw_step_info info;
    check_ok(tw_group_info(fresh.groups[0], 0, &info));
    check_int("steps counted on", info.step, 8);
    ranks_close(&old);
    ranks_close(&fresh);
}

/* dense has none; auto may choose dense. */
static int keeps_residuals(const char *scheme) {
    return strcmp(scheme, "dense") != 0 && strcmp(scheme, "auto") != 0;
}

static void test_other_ranks(void **state) {
    (void)state;
    const int moves[][3] = {{4, 2, 1}, {2, 4, 1}, {2, 4, 3}, {3, 5, 2},
                            {5, 1, 1}, {1, 3, 1}, {6, 4, 1}, {8, 3, 2}};
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++)
        for (int i = 0; i < 8 && keeps_residuals(scheme); i++)
            move_ranks(scheme, moves[i][0], moves[i][1], moves[i][2]);
}

/* ---- AdamW's moments on another number of ranks ---------------------------------------------- */

enum { ELEMENTS = 500 };

static void open_adamw(ranks *r, int nranks) {
    const int64_t size = ELEMENTS;
    tw_group_params params = ranks_params("allgather", 5);
    params.select.before = TW_BEFORE_ADAMW;
    params.result = TW_SUM;
    ranks_open(r, nranks, &params, &size, 1);
}

/* Rank 0's update of a step in which all ranks have the same gradient: what was sent, over the ranks,
 * and what its residual gained. */
static void updates(ranks *r, int step, float *update) {
    float **rows = rows_alloc(r->nranks, ELEMENTS), **before = rows_alloc(r->nranks, ELEMENTS);
    for (int rank = 0; rank < r->nranks; rank++)
        oracle_fill(rows[rank], ELEMENTS, DATA_GAUSS, (uint64_t)step);
    ranks_get_residuals(r, 0, before, ELEMENTS);
    ranks_allreduce(r, 0, (void *const *)rows, rows);
    ranks_ok(r);
    for (int64_t i = 0; i < ELEMENTS; i++)
        update[i] = rows[0][i] / (float)r->nranks - before[0][i];
    ranks_get_residuals(r, 0, before, ELEMENTS);
    for (int64_t i = 0; i < ELEMENTS; i++)
        update[i] += before[0][i];
    rows_free(rows);
    rows_free(before);
}

static void same_updates(const char *what, const float *got, const float *want) {
    for (int64_t i = 0; i < ELEMENTS; i++)
        if (fabsf(got[i] - want[i]) > 1e-6f)
            check_fail("%s: element %lld is updated by %g, expected %g", what, (long long)i,
                       (double)got[i], (double)want[i]);
}

/* Ranks that had the same gradients have the same moments, and so has a rank that takes them all. One
 * that takes none starts as a new one does, with its correction for moments that start at zero. */
static void test_moments_on_other_ranks(void **state) {
    (void)state;
    ranks old, one, three, fresh;
    float want[ELEMENTS], got[ELEMENTS];
    check_scene("AdamW's moments of two ranks, taken by one, and by one of three");
    open_adamw(&old, 2);
    for (int step = 0; step < 7; step++)
        updates(&old, step, want);
    state_save_all(&old, "moments");
    open_adamw(&one, 1);
    state_files files = state_spread("moments", 2, 1, 1);
    ranks_run(&one, state_load, &files);
    ranks_ok(&one);
    open_adamw(&three, 3);
    files = state_spread("moments", 2, 3, 1); /* rank 2 takes none */
    ranks_run(&three, state_load, &files);
    ranks_ok(&three);
    updates(&old, 7, want);
    updates(&one, 7, got);
    same_updates("taken by one", got, want);
    open_adamw(&fresh, 1);
    updates(&fresh, 7, want);
    float row[ELEMENTS];
    float **rows = rows_alloc(3, ELEMENTS);
    for (int rank = 0; rank < 3; rank++)
        oracle_fill(rows[rank], ELEMENTS, DATA_GAUSS, 7);
    ranks_allreduce(&three, 0, (void *const *)rows, rows);
    ranks_ok(&three);
    check_ok(tw_group_get_residual(three.groups[2], 0, row)); /* it had none: what was not sent */
    for (int64_t i = 0; i < ELEMENTS; i++)
        want[i] = row[i] != 0.0f ? want[i] : 0.0f;
    same_updates("of the rank that took none", row, want);
    rows_free(rows);

    ranks_close(&old);
    ranks_close(&one);
    ranks_close(&three);
    ranks_close(&fresh);
}

/* As many ranks as before, but each loads the file of another. */
static void test_files_permuted(void **state) {
    (void)state;
    move_ranks("oktopk", 5, 5, 2);
    move_ranks("gtopk", 3, 3, 2);
}

/* ---- Missing states --------------------------------------------------------------------------- */

typedef struct partial_load {
    state_files files;
    int strict; /* the rank that does not allow missing states; -1: all do */
    tw_missing missing[STATE_RANKS];
} partial_load;

static int load_some(ranks *r, int rank, void *context) {
    partial_load *p = context;
    if (rank == p->strict)
        return state_load(r, rank, &p->files);
    return tw_group_load_some(r->groups[rank], p->files.paths[rank], p->files.count[rank],
                              &p->missing[rank]);
}

static void load_without_rank_2(int to) {
    ranks old, fresh;
    const tw_group_params params = state_params("oktopk");
    check_scene("from 4 ranks to %d, without the state of rank 2", to);
    ranks_open(&old, 4, &params, state_sizes, STATE_TENSORS);
    state_steps(&old, 0, 5);
    state_save_all(&old, "some");
    ranks_open(&fresh, to, &params, state_sizes, STATE_TENSORS);
    state_steps(&fresh, 700, 702);
    partial_load p = {.files = {.count = {0}}, .strict = to - 1};
    const int kept[] = {0, 1, 3};
    for (int i = 0; i < 3; i++) {
        const int rank = kept[i] % to;
        p.files.paths[rank][p.files.count[rank]++] = state_path("some", kept[i]);
    }
    ranks_run(&fresh, load_some, &p);
    ranks_error(&fresh, TW_ERR_MISMATCH);
    ranks_say(&fresh, "missing states: rank");
    p.strict = -1;
    ranks_run(&fresh, load_some, &p);
    ranks_ok(&fresh);
    for (int rank = 0; rank < to; rank++) {
        check_int("ranks that saved", p.missing[rank].saved, 4);
        check_int("missing states", p.missing[rank].count, 1);
        check_int("the missing one", p.missing[rank].ranks[0], 2);
    }
    for (int tensor = 0; tensor < STATE_TENSORS; tensor++) {
        int64_t *got = total(&fresh, tensor), *want = total(&old, tensor);
        float *lost = check_alloc(state_sizes[tensor], sizeof *lost);
        int64_t nonzeros = 0;
        check_ok(tw_group_get_residual(old.groups[2], tensor, lost));
        for (int64_t i = 0; i < state_sizes[tensor]; i++) {
            check_int("sum of the residuals that are left", got[i], want[i] - check_units(lost[i]));
            nonzeros += lost[i] != 0.0f;
        }
        check_true(nonzeros > 10); /* or it would not matter */
        free(got);
        free(want);
        free(lost);
    }
    state_steps(&fresh, 5, 8);
    ranks_close(&old);
    ranks_close(&fresh);
}

static void test_missing_states(void **state) {
    (void)state;
    load_without_rank_2(4);
    load_without_rank_2(3);
    load_without_rank_2(2);
}

/* Moments of more steps than the group has made: what is saved after that can be loaded. */
static void test_residuals_of_a_longer_run(void **state) {
    (void)state;
    ranks old, fresh;
    tw_group_params params = state_params("topka");
    params.select.before = TW_BEFORE_ADAMW;
    ranks_open(&old, 1, &params, state_sizes, STATE_TENSORS);
    state_steps(&old, 0, 5);
    state_save_all(&old, "longer");
    ranks_open(&fresh, 1, &params, state_sizes, STATE_TENSORS);
    check_ok(tw_group_load_residuals(fresh.groups[0], state_path("longer", 0)));
    state_steps(&fresh, 5, 6);
    state_save_all(&fresh, "shorter");
    check_ok(tw_group_load_residuals(old.groups[0], state_path("shorter", 0)));
    state_load_all(&old, "shorter");
    ranks_ok(&old);
    check_steps(&old, 1);
    state_same_residuals(&fresh, &old);
    ranks_close(&old);
    ranks_close(&fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_states),
        cmocka_unit_test(test_go_on),
        cmocka_unit_test(test_go_on_methods),
        cmocka_unit_test(test_save_twice),
        cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_files_permuted),
        cmocka_unit_test(test_moments_on_other_ranks),
        cmocka_unit_test(test_residuals_of_a_longer_run),
    };
    return cmocka_run_group_tests(tests, state_begin, state_end);
}
