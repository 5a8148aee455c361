/* test_step_in_doubt.c - a rank completes a step and is lost before all others know: they complete it
 * too, once, whatever else of it they repeat
 *
 * With the argument "sockets" ranks are joined by sockets instead of queues. */
#include <string.h>

#include "elastic_job.h"
#include "group_state.h"

/* ---- a step that some have completed */

/* The rank that will be lost tells only some of the others, or none, that it has its result. It has
 * applied the step itself: so must the others. */
enum { COMPLETE_BYTES = 24 };

static int cut_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **request) {
    if (tag == TW__TAG_DATA && bytes == COMPLETE_BYTES && /* the step is its first field */
        memcmp(data, &cut.step, sizeof cut.step) == 0 && peer >= cut.told) {
        *request = &cut.nothing;
        return TW_OK;
    }
    return cut.send(context, peer, tag, data, bytes, request);
}

/* Two steps. The last rank completes the first one and is lost. */
static int step_or_die(ranks *r, int rank, void *context) {
    job *j = context;
    int status = step_rank(r, rank, context);
    if (rank == r->nranks - 1) {
        nap(0.02);
        lose_rank(j, rank);
        return status;
    }
    if (status == TW_OK)
        status = tw_group_get_residual(r->groups[rank], 0, j->residuals[rank]);
    memcpy(j->first_outs[rank], j->outs[rank], N * sizeof(float));
    oracle_fill(j->grads[rank], N, DATA_SUMMABLE, (uint64_t)(1000 * j->steps + rank));
    return status == TW_OK ? step_rank(r, rank, context) : status;
}

static void check_doubt(const char *exchange, int nranks, int told) {
    static job j, twin; /* the twin loses nobody */
    const int64_t n = N;
    const tw_group_params params = elastic_params(exchange);
    check_scene("%s, %d ranks, %d are told", exchange, nranks, told);
    job_open(&j, nranks, &params, &n, 1);
    job_open(&twin, nranks, &params, &n, 1);
    job_step(&j);
    job_step(&twin);
    cut_off(&j, nranks - 1, told, 2, cut_send);
    for (int rank = 0; rank < nranks; rank++)
        oracle_fill(j.grads[rank], N, DATA_SUMMABLE, (uint64_t)(1000 * j.steps + rank));
    j.steps++;
    ranks_run(&j.r, step_or_die, &j);
    ranks_ok(&j.r);
    job_step(&twin);
    for (int rank = 0; rank < nranks - 1; rank++) {
        float residual[N];
        tw_step_info info;
        check_bits("out", j.first_outs[rank], twin.outs[rank], N);
        check_ok(tw_group_get_residual(twin.r.groups[rank], 0, residual));
        check_bits("residual", j.residuals[rank], residual, N);
        if (rank >= told)
            check_int("completed", j.members[rank].completed, 1);
        check_ok(tw_group_info(j.r.groups[rank], 0, &info));
        check_int("steps", info.step, 3);
        check_bits("next out", j.outs[rank], j.outs[0], N);
    }
    job_close(&twin);
    job_close(&j);
}

static void test_doubt(void **state) {
    (void)state;
    check_int("bytes of the round", (int64_t)(sizeof(int64_t) + sizeof(tw__norm)), COMPLETE_BYTES);
    for (int e = 0; e < check_exchanges(); e++)
        for (int nranks = 3; nranks <= 5; nranks += 2)
            for (int told = 0; told < nranks - 1; told += nranks - 2)
                check_doubt(check_exchange(e), nranks, told);
}

/* ---- background */

enum { TENSORS = 3 };
static const int64_t sizes[TENSORS] = {300, 500, 401};

/* tw_group_shrink, until no other rank is lost meanwhile. */
static int shrink_rank(job *j, tw_group *g, int rank) {
    int error;
    while ((error = tw_group_shrink(g, &j->members[rank])) == TW_ERR_TIMEOUT ||
           error == TW_ERR_TRANSPORT)
        ;
    return j->shrinks[rank] = error;
}

/* Starts the tensors that need it, then waits for each. Afterwards needs[] has those whose call has failed.
 * Returns the first error. */
static int try_tensors(job *j, int rank, const int64_t *n, int count, int *needs) {
    tw_group *g = j->r.groups[rank];
    int first = TW_OK, started[TENSORS] = {0};
    int64_t at = 0;
    for (int t = 0; t < count && t < TENSORS; at += n[t++]) {
        int error = needs[t] && first == TW_OK
                        ? tw_allreduce_start(g, t, j->grads[rank] + at, j->outs[rank] + at)
                        : TW_OK;
        started[t] = needs[t] && first == TW_OK && error == TW_OK;
        first = first == TW_OK ? error : first;
    }
    for (int t = 0; t < count && t < TENSORS; t++) {
        int error = started[t] ? tw_allreduce_wait(g, t) : TW_OK;
        needs[t] &= !started[t] || error != TW_OK;
        first = first == TW_OK ? error : first;
    }
    (void)tw_allreduce_wait(g, TW_ALL); /* of nothing: buckets begin anew */
    return first;
}

/* One step of all tensors. After a loss exactly those are repeated whose call has failed: whether
 * tw_group_shrink has completed them is the library's business. */
static int step_tensors(job *j, int rank, const int64_t *n, int count) {
    int needs[TENSORS] = {1, 1, 1}, error;
    while (is_broken(error = try_tensors(j, rank, n, count, needs))) {
        error = j->shrinks[rank] = tw_group_shrink(j->r.groups[rank], &j->members[rank]);
        if (error != TW_OK && !is_broken(error))
            return error;
    }
    return error;
}

static int background_rank(ranks *r, int rank, void *context) {
    (void)r;
    job *j = context;
    return j->lost[rank] ? TW_OK : step_tensors(j, rank, sizes, TENSORS);
}

static void test_background(void **state) {
    (void)state;
    static job j;
    tw_group_params params = elastic_params("oktopk");
    params.bucket = 801;
    job_open(&j, 4, &params, sizes, TENSORS);
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            lose_rank(&j, 3);
        j.steps++;
        rows_fill(j.grads, 4, N, DATA_SUMMABLE, i);
        ranks_run(&j.r, background_rank, &j);
        ranks_ok(&j.r);
        check_equal_outs(&j, 0, j.outs[0]);
    }
    check_int("ranks", j.members[0].nranks, 3);
    for (int rank = 0; rank < 3; rank++)
        for (int t = 0; t < TENSORS; t++) {
            tw_step_info info;
            check_ok(tw_group_info(j.r.groups[rank], t, &info));
            check_int("steps", info.step, 4);
        }
    job_close(&j);
}

/* ---- a step that some have completed, of two tensors in buckets of their own */

enum { PAIR = 2 };
static const int64_t pair_sizes[PAIR] = {500, 701};

static int pair_rank(ranks *r, int rank, void *context) {
    (void)r;
    job *j = context;
    return j->lost[rank] ? TW_OK : step_tensors(j, rank, pair_sizes, PAIR);
}

/* Two steps. The last rank completes cut.step in the first one, does not tell all, and is lost. */
static int pair_or_die(ranks *r, int rank, void *context) {
    job *j = context;
    if (rank < r->nranks - 1) {
        int error = pair_rank(r, rank, context);
        memcpy(j->first_outs[rank], j->outs[rank], N * sizeof(float));
        oracle_fill(j->grads[rank], N, DATA_SUMMABLE, (uint64_t)(1000 + rank));
        return error == TW_OK ? pair_rank(r, rank, context) : error;
    }
    int needs[TENSORS] = {1, 1, 1};
    int status = try_tensors(j, rank, pair_sizes, cut.step == 3 ? 1 : PAIR, needs);
    nap(0.02);
    lose_rank(j, rank);
    return status;
}

static void pair_step(job *j, ranks_call call) {
    rows_fill(j->grads, j->r.nranks, N, DATA_SUMMABLE, j->steps++);
    ranks_run(&j->r, call, j);
    ranks_ok(&j->r);
}

/* Buckets count as steps: 1 and 2, then 3 and 4, of which one is cut. */
static void check_pair(const char *exchange, int64_t step, int told) {
    static job j, twin; /* the twin loses nobody */
    tw_group_params params = elastic_params(exchange);
    params.bucket = 701;
    check_scene("%s, two buckets, step %d is cut, %d are told", exchange, (int)step, told);
    job_open(&j, 4, &params, pair_sizes, PAIR);
    job_open(&twin, 4, &params, pair_sizes, PAIR);
    pair_step(&j, pair_rank);
    pair_step(&twin, pair_rank);
    cut_off(&j, 3, told, step, cut_send);
    pair_step(&j, pair_or_die);
    pair_step(&twin, pair_rank);
    for (int rank = 0; rank < 3; rank++) {
        /* The second tensor of the first case is exchanged anew, without the lost rank. */
        check_bits("out", j.first_outs[rank], twin.outs[rank], step == 3 ? pair_sizes[0] : N);
        check_bits("all outs", j.first_outs[rank], j.first_outs[0], N);
        check_bits("next outs", j.outs[rank], j.outs[0], N);
        if (rank >= told)
            check_int("completed", j.members[rank].completed, 1);
        for (int i = 0; i < PAIR; i++) {
            tw_step_info info;
            check_ok(tw_group_info(j.r.groups[rank], i, &info));
            check_int("steps", info.step, 3);
        }
    }
    job_close(&twin);
    job_close(&j);
}

static void test_doubt_of_buckets(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        for (int step = 3; step <= 4; step++)
            for (int told = 0; told < 3; told += 2)
                check_pair(check_exchange(e), step, told);
}

/* ---- a bucket of which one tensor was completed, while the rest fails */

static int both_rank(ranks *r, int rank, void *context) {
    job *j = context;
    tw_group *g = r->groups[rank];
    int error = tw_allreduce_start(g, 0, j->grads[rank], j->outs[rank]);
    if (error == TW_OK)
        error = tw_allreduce_start(g, 1, j->grads[rank] + sizes[0], j->outs[rank] + sizes[0]);
    return error == TW_OK ? tw_allreduce_wait(g, TW_ALL) : error;
}

/* The last rank completes a step of tensor 0 alone and is lost, so that the others complete it too. They
 * repeat it together with tensor 1, and the rank before the last is lost: then tensor 1 alone fails. */
static int half_rank(ranks *r, int rank, void *context) {
    job *j = context;
    tw_group *g = r->groups[rank];
    int failed[] = {1, 1}, error = tw_allreduce_start(g, 0, j->grads[rank], j->outs[rank]);
    if (error == TW_OK)
        error = tw_allreduce_wait(g, 0);
    if (rank == r->nranks - 1) {
        nap(0.02);
        lose_rank(j, rank);
        return error;
    }
    if (!is_broken(error))
        return TW_ERR_DAMAGED;
    for (int i = 0; failed[0] || failed[1]; i++) {
        int started[2] = {0};
        error = shrink_rank(j, g, rank);
        if (error != TW_OK)
            return error;
        if (i == 0 && rank == r->nranks - 2) {
            nap(0.1);
            lose_rank(j, rank);
            return TW_OK;
        }
        for (int t = 0, at = 0; t < 2; at += (int)sizes[t++])
            if (failed[t])
                started[t] =
                    tw_allreduce_start(g, t, j->grads[rank] + at, j->outs[rank] + at) == TW_OK;
        for (int t = 0; t < 2; t++)
            if (started[t])
                failed[t] = tw_allreduce_wait(g, t) != TW_OK;
    }
    return TW_OK;
}

static void test_half_completed(void **state) {
    (void)state;
    static job j;
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 5, &params, sizes, 2);
    rows_fill(j.grads, 5, N, DATA_SUMMABLE, 0);
    ranks_run(&j.r, both_rank, &j);
    ranks_ok(&j.r);
    cut_off(&j, 4, 0, 2, cut_send);
    ranks_run(&j.r, half_rank, &j);
    ranks_ok(&j.r);
    for (int rank = 0; rank < 3; rank++)
        for (int t = 0; t < 2; t++) {
            tw_step_info info;
            check_ok(tw_group_info(j.r.groups[rank], t, &info));
            check_int("steps", info.step, 2);
            check_int("ranks", j.members[rank].nranks, 3);
        }
    check_equal_outs(&j, 0, j.outs[0]);
    job_close(&j);
}

/* ---- a step that was completed late, and is not repeated because an older state is loaded */

static const char *saved[3];

/* Saves, steps, and goes back to what was saved instead of repeating the step. The last rank is lost. */
static int go_back(ranks *r, int rank, void *context) {
    job *j = context;
    tw_group *g = r->groups[rank];
    int error = tw_group_save(g, saved[rank]);
    if (error != TW_OK)
        return error;
    error = tw_allreduce(g, 0, j->grads[rank], j->outs[rank]);
    if (rank == r->nranks - 1) {
        nap(0.02);
        lose_rank(j, rank);
        return error;
    }
    if (!is_broken(error))
        return TW_ERR_DAMAGED;
    error = shrink_rank(j, g, rank);
    if (error == TW_OK)
        error = tw_group_load_some(g, &saved[rank], 1, NULL);
    memset(j->outs[rank], 0, N * sizeof(float));
    return error == TW_OK ? tw_allreduce(g, 0, j->grads[rank], j->outs[rank]) : error;
}

static void test_load_after_doubt(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("allgather");
    for (int rank = 0; rank < 3; rank++)
        saved[rank] = state_path("doubt", rank);
    job_open(&j, 3, &params, &n, 1);
    job_step(&j);
    cut_off(&j, 2, 0, 2, cut_send);
    rows_fill(j.grads, 3, N, DATA_SUMMABLE, 1);
    ranks_run(&j.r, go_back, &j);
    ranks_ok(&j.r);
    for (int rank = 0; rank < 2; rank++) {
        tw_step_info info;
        check_int("completed", j.members[rank].completed, 1);
        check_ok(tw_group_info(j.r.groups[rank], 0, &info));
        check_int("steps", info.step, 2);
        check_true(info.applied > 0);
        check_bits("out", j.outs[rank], j.outs[0], N);
    }
    job_close(&j);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_after_doubt), cmocka_unit_test(test_doubt),
        cmocka_unit_test(test_background),       cmocka_unit_test(test_doubt_of_buckets),
        cmocka_unit_test(test_half_completed),
    };
    elastic_begin(argc, argv);
    return cmocka_run_group_tests(tests, state_begin, state_end);
}
