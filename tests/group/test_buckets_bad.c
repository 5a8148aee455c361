/* test_buckets_bad.c - tensors in the background: calls out of order, bad gradients, groups freed
 * early
 *
 * A bucket that fails does so on all ranks and leaves no trace; other buckets succeed. A group may
 * be freed at any time.
 *
 *     test_buckets_bad [FILTER]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "workload.h"

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Statuses that calls gave, for the main thread to look at. */
typedef struct statuses {
    workload *w;
    int of[RANKS][32];
    int waited[RANKS][FEW];
    int pause; /* microseconds */
} statuses;

static int start_one(statuses *s, int rank, int i) {
    workload *w = s->w;
    return tw_allreduce_start(w->r.groups[rank], i, w->grads[i][rank], w->outs[i][rank]);
}

static int wrong_order(ranks *r, int rank, void *context) {
    statuses *s = context;
    tw_group *group = r->groups[rank];
    float *x = s->w->outs[0][rank];
    tw_sparse sparse;
    tw_step_info info;
    int *of = s->of[rank];
    of[0] = tw_allreduce_wait(group, 3);        /* not started */
    of[1] = start_one(s, rank, 3);              /* fine */
    of[2] = start_one(s, rank, 3);              /* twice */
    of[3] = tw_allreduce_wait(group, 4);        /* not started */
    of[4] = tw_allreduce(group, 0, x, x);       /* while one is in flight */
    of[5] = tw_group_result(group, 3, &sparse); /* in flight */
    of[6] = tw_group_info(group, 3, &info);
    of[7] = tw_group_get_residual(group, 3, x);
    of[8] = tw_group_save(group, "/tmp/thinwire-never");
    of[9] = tw_group_load(group, NULL, 0);
    of[10] = tw_allreduce_wait(group, 3);  /* fine */
    of[11] = tw_allreduce_wait(group, 3);  /* twice */
    of[12] = tw_allreduce(group, 0, x, x); /* fine again */
    return TW_OK;
}

static void test_wrong_order(void **state) {
    (void)state;
    const int want[] = {TW_ERR_STATE, TW_OK,        TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE,
                        TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE,
                        TW_OK,        TW_ERR_STATE, TW_OK};
    comparison c;
    comparison_open(&c, "oktopk");
    statuses s = {.w = &c.tried};
    ranks_run(&c.tried.r, wrong_order, &s);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < 13; i++) {
            check_scene("rank %d, call %d", rank, i);
            check_int("status", s.of[rank][i], want[i]);
        }
    comparison_close(&c);
}

static int wait_for_each(ranks *r, int rank, void *context) {
    statuses *s = context;
    int error = workload_start(s->w, rank);
    for (int i = 0; i < FEW && !error; i++)
        s->waited[rank][i] = tw_allreduce_wait(r->groups[rank], i);
    return error;
}

/* NaN in tensor 4 on rank 2: its bucket fails on all ranks, the others do not. */
static void test_bad_bucket(void **state) {
    (void)state;
    comparison c;
    comparison_open(&c, "oktopk");
    statuses s = {.w = &c.tried};
    int failed = 0;
    for (int round = 0; round < 3; round++) {
        workload_gradients_fill(c.grads, c.sizes, FEW, round);
        c.grads[4][2][17] = round == 1 ? NAN : 0.5f;
        ranks_run(&c.tried.r, wait_for_each, &s);
        ranks_ok(&c.tried.r);
        for (int i = 0; i < FEW; i++) {
            const int want = round == 1 && i >= 3 && i <= 5 ? TW_ERR_NUMBER : TW_OK;
            for (int rank = 0; rank < RANKS; rank++) {
                check_scene("bad bucket: round %d, tensor %d on rank %d", round, i, rank);
                check_int("status", s.waited[rank][i], want);
                failed += want != TW_OK;
            }
        }
    }
    check_int("failures", failed, 3 * RANKS);
    comparison_close(&c);
}

/* Afterwards the bucket's tensors are as those of a run without the bad step. */
static int only_middle(ranks *r, int rank, void *context) {
    workload *w = context;
    int error = TW_OK;
    for (int i = 3; i <= 5 && !error; i++)
        error = tw_allreduce_start(r->groups[rank], i, w->grads[i][rank], w->outs[i][rank]);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void test_bad_bucket_leaves_no_trace(void **state) {
    (void)state;
    comparison c;
    comparison_open(&c, "oktopk");
    for (int round = 0; round < 3; round++) {
        check_scene("round %d after a bad bucket", round);
        workload_gradients_fill(c.grads, c.sizes, FEW, 10 + round);
        c.grads[5][round][3] = INFINITY;
        ranks_run(&c.tried.r, only_middle, &c.tried);
        ranks_error(&c.tried.r, TW_ERR_NUMBER);
        ranks_say(&c.tried.r, "rank %d", round);
        workload_gradients_fill(c.grads, c.sizes, FEW, 20 + round);
        ranks_run(&c.tried.r, step_in_background, &c.tried);
        ranks_ok(&c.tried.r);
        reference_step(&c);
        workload_same(&c.tried, &c.reference, "after a bad bucket", round);
    }
    comparison_close(&c);
}

/* A tensor's own pointer is NULL on one rank. */
static void test_null_gradient(void **state) {
    (void)state;
    comparison c;
    comparison_open(&c, "oktopk");
    check_scene("NULL in a bucket");
    float *kept = c.grads[4][1];
    c.grads[4][1] = NULL;
    ranks_run(&c.tried.r, only_middle, &c.tried);
    c.grads[4][1] = kept;
    ranks_error(&c.tried.r, TW_ERR_NULL);
    ranks_say(&c.tried.r, "rank 1");
    ranks_run(&c.tried.r, step_in_background, &c.tried);
    ranks_ok(&c.tried.r);
    reference_step(&c);
    workload_same(&c.tried, &c.reference, "after NULL", 0);
    comparison_close(&c);
}

/* Tensors 0 and 1 of one bucket, each sent by its own wait and refused for a NaN. The error of 0
 * names tensor 0, also after 1 was refused. */
typedef struct two_launches {
    int status[RANKS][2];
    char text[RANKS][2][128];
} two_launches;

static int launch_apart(ranks *r, int rank, void *context) {
    two_launches *l = context;
    static const float bad[3][100] = {{NAN}, {NAN}, {1.0f}};
    static float out[RANKS][3][100];
    tw_group *group = r->groups[rank];
    const int order[3] = {0, 2, 1};
    int error = TW_OK;
    for (int i = 0; i < 3 && !error; i++) {
        const int tensor = order[i];
        error = tw_allreduce_start(group, tensor, bad[tensor], out[rank][tensor]);
        if (tensor == 2 && !error)
            error = tw_allreduce_wait(group, 2);
    }
    for (int tensor = 1; tensor >= 0; tensor--) {
        l->status[rank][tensor] = tw_allreduce_wait(group, tensor);
        snprintf(l->text[rank][tensor], sizeof l->text[rank][tensor], "%s", tw_last_error());
    }
    return error;
}

static void test_two_launches(void **state) {
    (void)state;
    ranks r;
    const int64_t sizes[3] = {100, 100, 100};
    const tw_group_params params = workload_params("oktopk", 200);
    two_launches l;
    check_scene("two launches of one bucket");
    ranks_open(&r, RANKS, &params, sizes, 3);
    ranks_run(&r, launch_apart, &l);
    ranks_ok(&r);
    for (int rank = 0; rank < RANKS; rank++)
        for (int tensor = 0; tensor < 2; tensor++) {
            check_int("status", l.status[rank][tensor], TW_ERR_NUMBER);
            check_contains(l.text[rank][tensor], tensor == 0 ? "tensor 0" : "tensor 1");
        }
    ranks_close(&r);
}

/* More failed launches than the group keeps texts of: every tensor has its error, and the texts that
 * were read make room for others. */
static void test_many_failures(void **state) {
    (void)state;
    enum { TENSORS = 80, TEXTS = 64 };
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = ranks_params("allgather", 1);
    const float bad = NAN;
    params.bucket = 1;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    for (int t = 0; t < TENSORS; t++)
        check_ok(tw_group_add(group, 1, NULL, NULL));
    check_ok(tw_group_open(group));
    for (int round = 0; round < 2; round++) {
        for (int t = 0; t < TENSORS; t++)
            check_ok(tw_allreduce_start(group, t, &bad, NULL));
        check_error(tw_allreduce_wait(group, TENSORS - 1), TW_ERR_NUMBER);
        for (int t = 0; t < TENSORS - 1; t++) {
            char name[16];
            snprintf(name, sizeof name, "tensor %d:", t);
            check_scene("failure of %s round %d", name, round);
            check_error(tw_allreduce_wait(group, t), TW_ERR_NUMBER);
            check_contains(tw_last_error(), t < TEXTS ? name : "NaN");
        }
    }
    tw_group_free(group);
    tw_transport_free(transport);
}

/* A wait that succeeds leaves the last error as it was, also if it runs another bucket that fails; and
 * residuals cannot be read while any tensor is under way. */
static void test_errors_of_others(void **state) {
    (void)state;
    enum { N = 20000 };
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = ranks_params("allgather", 100);
    float *bad = check_alloc(N, sizeof *bad), *good = check_alloc(N, sizeof *good);
    float *residual = check_alloc(N, sizeof *residual);
    bad[5] = NAN;
    params.bucket = 1;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    for (int t = 0; t < 2; t++)
        check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    for (int step = 0; step < 20; step++) {
        check_error(tw_group_info(group, 99, NULL), TW_ERR_NULL);
        check_ok(tw_allreduce_start(group, 0, bad, NULL));
        check_ok(tw_allreduce_start(group, 1, good, NULL));
        check_ok(tw_allreduce_wait(group, 1));
        check_contains(tw_last_error(), "info: is NULL");
        check_error(tw_group_get_residual(group, 1, residual), TW_ERR_STATE);
        check_contains(tw_last_error(), "under way");
        check_error(tw_allreduce_wait(group, 0), TW_ERR_NUMBER);
        check_contains(tw_last_error(), "tensor 0");
        check_ok(tw_group_get_residual(group, 1, residual));
    }
    tw_group_free(group);
    tw_transport_free(transport);
    free(bad);
    free(good);
    free(residual);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static int start_and_free(ranks *r, int rank, void *context) {
    statuses *s = context;
    int error = TW_OK;
    for (int i = 0; i < (rank == 3 ? 1 : FEW) && !error; i++)
        error = start_one(s, rank, s->w->order[rank][i]);
    usleep((useconds_t)s->pause); /* the library's thread has begun, or not yet */
    tw_group_free(r->groups[rank]);
    r->groups[rank] = NULL;
    return error;
}

/* Freed with tensors in flight, some of which can never complete: returns soon. */
static void test_free_in_flight(void **state) {
    (void)state;
    oracle_rng rng = {.key = 9};
    for (int round = 0; round < 20; round++) {
        comparison c;
        comparison_open(&c, round % 2 ? "oktopk" : "gtopk");
        statuses s = {.w = &c.tried, .pause = round * 1000};
        check_scene("free with tensors in flight, round %d", round);
        workload_shuffle(&c.tried, &rng);
        const time_t begin = time(NULL);
        ranks_run(&c.tried.r, start_and_free, &s);
        ranks_ok(&c.tried.r);
        check_between("seconds until all are free", time(NULL) - begin, 0, 5);
        comparison_close(&c);
    }
}

static int free_or_step(ranks *r, int rank, void *context) {
    static const float grad[100];
    static float out[2][100];
    int *told = context;
    int error = rank == 0 ? tw_allreduce_start(r->groups[0], 0, grad, out[0])
                          : tw_allreduce(r->groups[1], 0, grad, out[1]);
    if (rank == 0) {
        tw_group_free(r->groups[0]);
        r->groups[0] = NULL;
    }
    if (error != TW_ERR_STATE)
        return error; /* the step has ended before */
    *told += strstr(tw_last_error(), "freed") != NULL;
    return TW_OK;
}

/* Freed with a step that was launched: the other rank does not wait for its timeout, 300 s. */
static void test_free_launched(void **state) {
    (void)state;
    const int64_t n = 100;
    const tw_group_params params = workload_params("topka", 0);
    int told = 0;
    for (int round = 0; round < 50; round++) {
        ranks r;
        ranks_open(&r, 2, &params, &n, 1);
        const time_t begin = time(NULL);
        ranks_run(&r, free_or_step, &told);
        ranks_ok(&r);
        check_between("seconds until the other knows", time(NULL) - begin, 0, 5);
        ranks_close(&r);
    }
    check_between("rounds in which the other was told", told, 1, 50);
}

/* Where there is no other rank to tell, the transport serves the next group. */
static void test_free_alone(void **state) {
    (void)state;
    static const float grad[100];
    static float out[100];
    tw_transport *transport;
    tw_group *group;
    const tw_group_params params = workload_params("topka", 0);
    check_ok(tw_transport_self(&transport));
    for (int round = 0; round < 200; round++) {
        check_scene("free alone, round %d", round);
        check_ok(tw_group_create(&group, transport, &params));
        check_ok(tw_group_add(group, 100, NULL, NULL));
        check_ok(tw_group_open(group));
        check_ok(tw_allreduce_start(group, 0, grad, out));
        tw_group_free(group);
    }
    tw_transport_free(transport);
}

/* Starts one tensor, or two in separate buckets, and waits for the second: the first is done. */
static int start_and_leave(ranks *r, int rank, void *context) {
    const int *tensors = context;
    static const float grad[100];
    static float out[RANKS][2][100];
    int error = TW_OK;
    for (int i = 0; i < *tensors && !error; i++)
        error = tw_allreduce_start(r->groups[rank], i, grad, out[rank][i]);
    return error || *tensors < 2 ? error : tw_allreduce_wait(r->groups[rank], 1);
}

/* A group freed before its tensors were waited for, with nothing in flight, leaves a transport that
 * the next group can use. */
static void test_next_group(void **state) {
    (void)state;
    const int64_t sizes[2] = {100, 100};
    for (int tensors = 1; tensors <= 2; tensors++) {
        ranks r;
        tw_group_params params = workload_params("oktopk", tensors == 1 ? 200 : 1);
        check_scene("the next group, after %d tensors", tensors);
        ranks_open(&r, RANKS, &params, sizes, 2);
        ranks_run(&r, start_and_leave, &tensors);
        ranks_ok(&r);
        ranks_free_groups(&r);
        ranks_try_open(&r, &params, sizes, 2);
        ranks_ok(&r);
        ranks_close(&r);
    }
}

/* A rank that starts nothing: the others time out at their wait, and name it. */
static int all_but_rank_1(ranks *r, int rank, void *context) {
    if (rank == 1)
        return TW_ERR_TIMEOUT;
    return step_in_background(r, rank, context);
}

static void test_absent(void **state) {
    (void)state;
    int64_t sizes[FEW];
    workload w;
    tw_group_params params = workload_params("oktopk", 360);
    params.timeout = 0.4;
    for (int i = 0; i < FEW; i++)
        sizes[i] = 100;
    float ***grads = workload_gradients(sizes, FEW);
    oracle_rng rng = {.key = 1};
    check_scene("rank 1 starts nothing");
    workload_open(&w, &params, sizes, FEW, grads);
    workload_shuffle(&w, &rng);
    ranks_run(&w.r, all_but_rank_1, &w);
    ranks_error(&w.r, TW_ERR_TIMEOUT);
    check_contains(w.r.text[0], "1");
    workload_close(&w);
    workload_gradients_free(grads, FEW);
}

/* Every tensor's error, where rank 1 starts nothing. */
typedef struct texts {
    workload *w;
    char of[RANKS][FEW][256];
} texts;

static int each_without_rank_1(ranks *r, int rank, void *context) {
    texts *s = context;
    int error = rank == 1 ? TW_OK : workload_start(s->w, rank);
    for (int i = 0; i < FEW && rank != 1 && !error; i++) {
        if (tw_allreduce_wait(r->groups[rank], i) != TW_ERR_TIMEOUT)
            return TW_ERR_STATE;
        snprintf(s->of[rank][i], sizeof s->of[rank][i], "%s", tw_last_error());
    }
    return error;
}

/* The first bucket waits for rank 1 in vain. The others are not tried, and say why. */
static void test_buckets_after_a_break(void **state) {
    (void)state;
    int64_t sizes[FEW];
    workload w;
    tw_group_params params = workload_params("oktopk", 300);
    params.timeout = 0.4;
    for (int i = 0; i < FEW; i++)
        sizes[i] = 100;
    float ***grads = workload_gradients(sizes, FEW);
    workload_open(&w, &params, sizes, FEW, grads);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < FEW; i++)
            w.order[rank][i] = i;
    texts s = {.w = &w};
    ranks_run(&w.r, each_without_rank_1, &s);
    ranks_ok(&w.r);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < FEW && rank != 1; i++) {
            check_scene("rank %d, tensor %d: %s", rank, i, s.of[rank][i]);
            check_int("not tried", strstr(s.of[rank][i], "an earlier bucket failed") != NULL,
                      i >= 3);
        }
    workload_close(&w);
    workload_gradients_free(grads, FEW);
}

/* Tensors 0 and 2, each a part of its bucket: rank 0 waits for the first before it starts the second,
 * the others wait once. The next round begins with the first bucket on all of them. */
static int wait_unevenly(ranks *r, int rank, void *context) {
    static const float grad[100] = {1.0f};
    static float out[RANKS][4][100];
    tw_group *group = r->groups[rank];
    const int tensors[] = {0, 2, 0, 1, 2, 3};
    int error = TW_OK;
    (void)context;
    for (int i = 0; i < 6 && !error; i++) {
        error = tw_allreduce_start(group, tensors[i], grad, out[rank][tensors[i]]);
        if (i == 0 && rank == 0 && !error)
            error = tw_allreduce_wait(group, 0);
        if ((i == 1 || i == 5) && !error)
            error = tw_allreduce_wait(group, TW_ALL);
    }
    return error;
}

static void test_uneven_waits(void **state) {
    (void)state;
    ranks r;
    const int64_t sizes[4] = {100, 100, 100, 100};
    tw_group_params params = workload_params("oktopk", 200);
    params.timeout = 5.0;
    check_scene("uneven waits, then a full round");
    ranks_open(&r, RANKS, &params, sizes, 4);
    ranks_run(&r, wait_unevenly, NULL);
    ranks_ok(&r);
    ranks_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_order),
        cmocka_unit_test(test_bad_bucket),
        cmocka_unit_test(test_bad_bucket_leaves_no_trace),
        cmocka_unit_test(test_null_gradient),
        cmocka_unit_test(test_two_launches),
        cmocka_unit_test(test_many_failures),
        cmocka_unit_test(test_errors_of_others),
        cmocka_unit_test(test_free_in_flight),
        cmocka_unit_test(test_free_launched),
        cmocka_unit_test(test_free_alone),
        cmocka_unit_test(test_next_group),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_buckets_after_a_break),
        cmocka_unit_test(test_uneven_waits),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
