/* test_cuda_group.c - groups whose tensors lie on a GPU do what those on the CPU do, bit for bit
 *
 * Every scheme goes through the same steps here and there: see cuda_ranks.h. Wire formats are in
 * test_cuda_wires.c, several tensors in test_cuda_buckets.c, what goes wrong in test_cuda_refusals.c,
 * test_cuda_failures.c and test_cuda_forged.c, some of all for slow tools in test_cuda_quick.c. An
 * argument: tests of this name alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runs.h"

static void test_all_schemes(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        for (int c = 0; c < 4 && strcmp(scheme, "auto") != 0; c++) {
            for (transfer_kind how = DIRECT; how < TRANSFER_KINDS; how++) {
                run_scheme(scheme, how, counts[c], 5003, 0.1, STEPS);
                run_scheme(scheme, how, counts[c], 70001, 0.01, STEPS);
            }
        }
    }
}

/* Messages of several chunks; a range that dsa sends plain. */
static void test_long_lists(void **state) {
    (void)state;
    for (transfer_kind how = DIRECT; how < TRANSFER_KINDS; how++) {
        run_scheme("topka", how, 3, 1500000, 0.2, STEPS);
        run_scheme("topkdsa", how, 2, 900000, 0.4, STEPS);
        run_scheme("oktopk", how, 4, 3000000, 0.1, STEPS);
        run_scheme("fulltopk", how, 4, 1000000, 0.05, STEPS);
    }
}

static void use_before(tw_group_params *params, int before, float momentum) {
    params->select.before = before;
    params->select.momentum = before == TW_BEFORE_NOTHING ? momentum : 0.0f;
}

/* Momentum or AdamW, other data, no output, means, decay. */
static void test_options(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "gtopk", "oktopk", "randomk", "fulltopk"};
    for (int s = 0; s < 10; s++) {
        tw_group_params params = params_of(schemes[s / 2], 0.02);
        params.result = s < 2 ? TW_MEAN_OF_SENDERS : TW_MEAN;
        params.select.decay = s % 4 == 1 ? 0.9f : 0.0f;
        use_before(&params, s % 2, 0.9f);
        params.select.clip_norm = 20.0f;
        params.select.warmup_steps = 3;
        pair p;
        pair_open_one(&p, 3, 20011, &params, DIRECT);
        for (int step = 0; step < STEPS; step++) {
            check_scene("scheme=%s before=%d step=%d", schemes[s / 2], s % 2, step);
            rows_fill(p.grads, 3, 20011, step == 4 ? DATA_POWER5 : DATA_GAUSS, step);
            pair_step(&p, step % 2 ? reduce_one : reduce_one_silently, TW_OK);
        }
        compare_residuals(&p);
        pair_close(&p);
    }
}

/* ---- from a saved state */

static int save(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", (char *)context, rank);
    return tw_group_save(r->groups[rank], path);
}

static int load(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", (char *)context, rank);
    const char *const paths[] = {path};
    return tw_group_load(r->groups[rank], paths, 1);
}

static void hand_over(ranks *from, ranks *to, char *name) {
    ranks_run(from, save, name);
    ranks_ok(from);
    ranks_run(to, load, name);
    ranks_ok(to);
}

enum { NAME = 32 };

static void make_name(char name[NAME]) {
    snprintf(name, NAME, "/tmp/thinwire-cuda-XXXXXX");
    int file = mkstemp(name);
    check_true(file >= 0);
    close(file);
}

/* Rank 0 takes over both of two ranks' files. */
static int load_both(ranks *r, int rank, void *context) {
    char first[64], second[64];
    snprintf(first, sizeof first, "%s.0", (char *)context);
    snprintf(second, sizeof second, "%s.1", (char *)context);
    const char *const paths[] = {first, second};
    return tw_group_load(r->groups[rank], paths, rank == 0 ? 2 : 0);
}

static void clear_files(const char *name, int count) {
    for (int r = 0; r < count; r++) {
        char path[64];
        snprintf(path, sizeof path, "%s.%d", name, r);
        unlink(path);
    }
    unlink(name);
}

/* Residuals and velocities of two ranks are added up on a GPU as on the CPU, and moments averaged. */
static void run_states_of_two(int before) {
    char name[NAME];
    make_name(name);
    tw_group_params params = params_of("oktopk", 0.05);
    use_before(&params, before, 0.5f);
    pair p;
    pair_open_one(&p, 2, 4001, &params, DIRECT);
    for (int step = 0; step < 6; step++) {
        check_scene("states of two, before=%d step=%d", before, step);
        rows_fill(p.grads, 2, 4001, DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK);
        if (step == 2) {
            ranks_run(&p.cpu, save, name);
            ranks_ok(&p.cpu);
            ranks_run(&p.cpu, load_both, name);
            ranks_ok(&p.cpu);
            ranks_run(&p.cuda, load_both, name);
            ranks_ok(&p.cuda);
        }
    }
    compare_residuals(&p);
    pair_close(&p);
    clear_files(name, 2);
}

static void test_states_of_two(void **state) {
    (void)state;
    run_states_of_two(TW_BEFORE_NOTHING);
    run_states_of_two(TW_BEFORE_ADAMW);
}

/* The GPU's groups go on from what the CPU's saved, and the other way round. */
static void run_state(int before) {
    char name[NAME];
    make_name(name);
    tw_group_params params = params_of("oktopk", 0.05);
    use_before(&params, before, 0.5f);
    pair p;
    pair_open_one(&p, 3, 4001, &params, DIRECT);
    for (int step = 0; step < 3 * STEPS; step++) {
        check_scene("state, before=%d step=%d", before, step);
        rows_fill(p.grads, 3, 4001, DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK);
        if (step % 8 == 3)
            hand_over(&p.cpu, &p.cuda, name);
        else if (step % 8 == 7)
            hand_over(&p.cuda, &p.cpu, name);
    }
    compare_residuals(&p);
    pair_close(&p);
    clear_files(name, 3);
}

static void test_state(void **state) {
    (void)state;
    run_state(TW_BEFORE_NOTHING);
    run_state(TW_BEFORE_ADAMW);
}

/* ---- residuals and guesses that are replaced while what the last step sent has yet to leave */

static int load_residuals(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", (char *)context, rank);
    return tw_group_load_residuals(r->groups[rank], path);
}

/* Steps with gradients of these numbers. */
static void take_steps(pair *p, int first, int end) {
    for (int step = first; step < end; step++) {
        check_scene("residuals alone, step=%d", step);
        rows_fill(p->grads, 2, p->n, DATA_GAUSS, step);
        pair_step(p, reduce_one, TW_OK);
    }
}

/* Residuals of a longer run reach higher than what the young group has sent last. */
static void test_residuals_alone(void **state) {
    (void)state;
    char name[NAME];
    make_name(name);
    tw_group_params params = params_of("topka", 0.05);
    pair old, young;
    pair_open_one(&old, 2, 4001, &params, DIRECT);
    take_steps(&old, 0, 10);
    ranks_run(&old.cpu, save, name);
    ranks_ok(&old.cpu);
    pair_close(&old);
    pair_open_one(&young, 2, 4001, &params, DIRECT);
    take_steps(&young, 10, 11);
    ranks_run(&young.cpu, load_residuals, name);
    ranks_ok(&young.cpu);
    ranks_run(&young.cuda, load_residuals, name);
    ranks_ok(&young.cuda);
    compare_residuals(&young);
    take_steps(&young, 11, 15);
    compare_residuals(&young);
    pair_close(&young);
    clear_files(name, 2);
}

static int last_leaves(ranks *r, int rank, void *context) {
    (void)context;
    if (rank < r->nranks - 1)
        return tw_group_grow(r->groups[rank], NULL);
    int error = tw_group_leave(r->groups[rank], 0);
    tw_group_free(r->groups[rank]);
    r->groups[rank] = NULL;
    return error;
}

static void set_ranks(pair *p, int nranks) {
    p->nranks = p->cpu.nranks = p->cuda.nranks = nranks;
}

/* Rank 0 inherits. Rank 1 begins with new guesses, and with the residual that it had. */
static void test_rank_leaves(void **state) {
    (void)state;
    tw_group_params params = params_of("topka", 0.05);
    params.membership = TW_MEMBERSHIP_ELASTIC;
    pair p;
    pair_open_one(&p, 3, 4001, &params, STAGED);
    for (int step = 0; step < 6; step++) {
        check_scene("the last rank leaves after step 2, step=%d", step);
        rows_fill(p.grads, p.nranks, 4001, DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK);
        if (step == 2) {
            ranks_run(&p.cpu, last_leaves, NULL);
            ranks_ok(&p.cpu);
            ranks_run(&p.cuda, last_leaves, NULL);
            ranks_ok(&p.cuda);
            set_ranks(&p, 2);
        }
    }
    compare_residuals(&p);
    set_ranks(&p, 3);
    pair_close(&p);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schemes),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_long_lists),    cmocka_unit_test(test_state),
        cmocka_unit_test(test_states_of_two), cmocka_unit_test(test_residuals_alone),
        cmocka_unit_test(test_rank_leaves),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
