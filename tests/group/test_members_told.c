/* test_members_told.c - what a rank is told of those that were lost, and when
 *
 * With the argument "sockets" ranks are joined by sockets instead of queues. */
#include <pthread.h>

#include "elastic_job.h"

/* ---- who asks meanwhile */

static _Atomic int asking;

/* Any thread may ask a transport for its ranks: ThreadSanitizer looks at this. */
static void *ask_main(void *context) {
    job *j = context;
    while (asking) {
        int rank = -1, nranks = 0;
        if (tw_transport_info(j->r.transports[0], NULL, &rank, &nranks, NULL) != TW_OK ||
            rank != 0 || nranks < 3 || nranks > 4)
            return j;
    }
    return NULL;
}

static void test_info_meanwhile(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    pthread_t thread;
    void *wrong = NULL;
    job_open(&j, 4, &params, &n, 1);
    job_step(&j);
    lose_rank(&j, 3);
    asking = 1;
    check_true(pthread_create(&thread, NULL, ask_main, &j) == 0);
    job_step(&j);
    asking = 0;
    pthread_join(thread, &wrong);
    ranks_ok(&j.r);
    check_int("ranks", j.members[0].nranks, 3);
    check_true(wrong == NULL);
    job_close(&j);
}

/* ---- a call that fails after the ranks have changed */

static int shrink_and_die(ranks *r, int rank, void *context) {
    job *j = context;
    tw_group *g = r->groups[rank];
    if (rank != 2)
        return step_rank(r, rank, context);
    if (!is_broken(tw_allreduce(g, 0, j->grads[rank], j->outs[rank])))
        return TW_ERR_DAMAGED;
    return agree_and_die(j, &(tw__intent){.step = g->elastic.step + g->elastic.in_doubt});
}

/* The caller is told of both losses at once, by the numbers that it knows. */
static void test_lost_in_shrink(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const int before[] = {0, 1, 4};
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 5, &params, &n, 1);
    job_step(&j);
    ranks_ok(&j.r);
    lose_rank(&j, 3);
    ranks_run(&j.r, shrink_and_die, &j);
    ranks_ok(&j.r);
    for (int i = 0; i < 3; i++) {
        const tw_members *m = &j.members[before[i]];
        check_int("ranks", m->nranks, 3);
        check_int("rank", m->rank, i);
        check_int("ranks before", m->nranks_before, 5);
        check_int("rank before", m->rank_before, before[i]);
        for (int r = 0; r < 3; r++)
            check_int("before", m->before[r], before[r]);
        check_int("lost", m->nlost, 2);
        check_int("lost last", m->lost[0].rank, 2);
        check_int("lost first", m->lost[1].rank, 3);
    }
    lose_rank(&j, 4);
    job_step(&j);
    ranks_ok(&j.r);
    check_int("ranks before", j.members[0].nranks_before, 3);
    check_int("lost", j.members[0].nlost, 1);
    check_int("lost rank", j.members[0].lost[0].rank, 2);
    job_close(&j);
}

/* ---- no change */

static int grow_rank(ranks *r, int rank, void *context) {
    job *j = context;
    return j->lost[rank] ? TW_OK : tw_group_grow(r->groups[rank], &j->members[rank]);
}

/* Nobody leaves or joins: nothing is told of the change before. */
static void test_unchanged(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 4, &params, &n, 1);
    lose_rank(&j, 1);
    job_step(&j);
    ranks_ok(&j.r);
    check_int("lost", j.members[0].nlost, 1);
    ranks_run(&j.r, grow_rank, &j);
    ranks_ok(&j.r);
    check_int("ranks", j.members[0].nranks, 3);
    check_int("ranks before", j.members[0].nranks_before, 3);
    check_int("lost", j.members[0].nlost, 0);
    check_true(j.members[0].before == NULL && j.members[0].lost == NULL);
    job_close(&j);
}

/* ---- parameters that differ */

static int verify_rank(ranks *r, int rank, void *context) {
    job *j = context;
    uint64_t hash = rank == 1;
    return tw_group_verify(r->groups[rank], &hash, sizeof hash, &j->members[rank]);
}

static void test_verify(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 3, &params, &n, 1);
    double begin = check_seconds();
    ranks_run(&j.r, verify_rank, &j);
    double seconds = check_seconds() - begin;
    ranks_error(&j.r, TW_ERR_MISMATCH);
    ranks_say(&j.r, "rank 1 has other parameters than rank 0");
    for (int rank = 0; rank < 3; rank += 2) {
        check_int("ranks", j.members[rank].nranks, 2);
        check_int("lost rank", j.members[rank].lost[0].rank, 1);
        check_true(j.members[rank].seconds > 0.0 && j.members[rank].seconds <= seconds);
    }
    check_int("not told", j.members[1].nranks, 0);
    lose_rank(&j, 1);
    job_step(&j);
    ranks_ok(&j.r);
    job_close(&j);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info_meanwhile),
        cmocka_unit_test(test_lost_in_shrink),
        cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_verify),
    };
    elastic_begin(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
