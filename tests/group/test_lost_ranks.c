/* test_lost_ranks.c - ranks that are lost: the others agree, repeat the step, and go on
 *
 * The repeated step must be bit for bit that of a fresh group with the same residuals. With the
 * argument "sockets" ranks are joined by sockets instead of queues. */
#include <stdio.h>
#include <sys/socket.h>

#include "elastic_job.h"

/* ---- the repeated step */

static void check_members(const job *j, int nranks, int lost) {
    for (int rank = 0, next = 0; rank < nranks; rank++) {
        const tw_members *m = &j->members[rank];
        if (rank == lost)
            continue;
        check_int("version", m->version, 1);
        check_int("rank", m->rank, next);
        check_int("nranks", m->nranks, nranks - 1);
        check_int("rank before", m->rank_before, rank);
        check_int("before", m->before[next], rank);
        check_int("lost", m->nlost, 1);
        check_int("lost rank", m->lost[0].rank, lost);
        next++;
    }
}

static void check_repeated(const char *exchange, int nranks, int lost) {
    static job j;
    static fresh f;
    const int64_t n = N;
    const tw_group_params params = elastic_params(exchange);
    check_scene("%s, rank %d of %d is lost", exchange, lost, nranks);
    job_open(&j, nranks, &params, &n, 1);
    for (int i = 0; i < 3; i++) {
        job_step(&j);
        ranks_ok(&j.r);
    }
    lose_rank(&j, lost);
    fresh_open(&f, &j, &params, 3);
    for (int i = 0; i < 3; i++) {
        job_step(&j);
        ranks_ok(&j.r);
        fresh_step(&f, &j);
    }
    check_members(&j, nranks, lost);
    job_close(&f.job);
    job_close(&j);
}

static void test_repeated(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        for (int nranks = 2; nranks <= MOST; nranks++)
            check_repeated(check_exchange(e), nranks, nranks == 2 ? 1 : (e + nranks) % nranks);
}

/* ---- parts of a job */

static void cut_apart(const int *part, int nranks) {
    for (int a = 0; a < nranks; a++)
        for (int b = 0; b < nranks; b++)
            if (part[a] != part[b])
                (void)shutdown(ends[a][b], SHUT_RDWR);
}

static void check_split(const int *part, int goes_on) {
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    int left = 0;
    job_open(&j, 8, &params, &n, 1);
    job_step(&j);
    ranks_ok(&j.r);
    cut_apart(part, 8);
    job_step(&j);
    for (int rank = 0; rank < 8; rank++)
        left += part[rank] == goes_on;
    for (int rank = 0; rank < 8; rank++) {
        check_int("status", j.r.status[rank], part[rank] == goes_on ? TW_OK : TW_ERR_QUORUM);
        if (part[rank] == goes_on) {
            check_int("ranks", j.members[rank].nranks, left);
        } else {
            char here[64];
            snprintf(here, sizeof here, "%d of 8 ranks are here, missing is rank", 8 - left);
            check_contains(j.r.text[rank], here);
            check_contains(j.r.text[rank], "half of it with its rank 0");
        }
    }
    job_close(&j);
}

static void test_split(void **state) {
    (void)state;
    if (!on_sockets)
        skip();
    check_split((const int[8]){0, 0, 0, 0, 0, 1, 1, 1}, 0);
    check_split((const int[8]){1, 0, 0, 1, 0, 1, 0, 0}, 0); /* without rank 0 */
    check_split((const int[8]){0, 1, 0, 1, 0, 1, 0, 1}, 0); /* halves */
}

/* Two ranks that cannot reach each other, while all others can: the lower one stays. */
static void test_broken_pair(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("allgather");
    if (!on_sockets)
        skip();
    job_open(&j, 5, &params, &n, 1);
    job_step(&j);
    ranks_ok(&j.r);
    (void)shutdown(ends[1][3], SHUT_RDWR);
    job_step(&j);
    for (int rank = 0; rank < 5; rank++)
        check_int("status", j.r.status[rank], rank == 3 ? TW_ERR_EXCLUDED : TW_OK);
    job_close(&j);
}

/* ---- silence */

static int late_rank(ranks *r, int rank, void *context) {
    return rank == 2 ? step_rank(r, rank, context) : TW_OK;
}

static int step_others(ranks *r, int rank, void *context) {
    return rank == 2 ? TW_OK : step_rank(r, rank, context);
}

static void test_silent(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    tw_group_params params = elastic_params("oktopk");
    params.timeout = 0.6;
    job_open(&j, 4, &params, &n, 1);
    double begin = check_seconds();
    ranks_run(&j.r, step_others, &j);
    ranks_ok(&j.r);
    check_true(check_seconds() - begin < 2.5);
    for (int i = 0; i < 3; i++) {
        ranks_run(&j.r, step_others, &j);
        ranks_ok(&j.r);
    }
    check_int("ranks", j.members[3].nranks, 3);
    check_int("rank", j.members[3].rank, 2);
    /* It comes back, and learns that it is out. */
    ranks_run(&j.r, late_rank, &j);
    check_int("status of the late rank", j.r.status[2], TW_ERR_EXCLUDED);
    check_contains(j.r.text[2], "go on without this one");
    ranks_run(&j.r, step_others, &j);
    ranks_ok(&j.r);
    check_int("no other change", j.members[0].version, 1);
    job_close(&j);
}

/* A rank that is slow, but within the timeout, is waited for. */
static void test_slow(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 5, &params, &n, 1);
    lose_rank(&j, 1);
    j.late[3] = 0.7;
    job_step(&j);
    ranks_ok(&j.r);
    check_int("ranks", j.members[0].nranks, 4);
    job_close(&j);
}

/* ---- one after the other */

static void test_down_to_one(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        static job j;
        const int64_t n = N;
        const tw_group_params params = elastic_params(check_exchange(e));
        const int order[] = {2, 4, 1, 3};
        check_scene("%s", check_exchange(e));
        job_open(&j, 5, &params, &n, 1);
        job_step(&j);
        for (int i = 0; i < 4; i++) {
            lose_rank(&j, order[i]);
            job_step(&j);
            ranks_ok(&j.r);
            check_equal_outs(&j, 0, j.outs[0]);
            check_int("ranks", j.members[0].nranks, 4 - i);
            check_int("changes", j.members[0].version, i + 1);
            check_int("ranks before", j.members[0].nranks_before, 5 - i);
            check_int("lost", j.members[0].nlost, 1);
        }
        job_close(&j);
    }
}

static void test_two_at_once(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("dsa");
    job_open(&j, 6, &params, &n, 1);
    job_step(&j);
    job_step(&j); /* with which ranks tell the norms after the first */
    lose_rank(&j, 0);
    lose_rank(&j, 4);
    job_step(&j);
    ranks_ok(&j.r);
    check_int("ranks", j.members[1].nranks, 4);
    check_int("lost", j.members[1].nlost, 2);
    check_true(j.members[1].lost[0].norm > 0.0);
    check_int("norm's step", j.members[1].lost[1].step, 1);
    job_close(&j);
}

/* ---- a loss while the group opens */

static int open_or_shrink(ranks *r, int rank, void *context) {
    job *j = context;
    const tw_group_params params = elastic_params("oktopk");
    if (j->lost[rank])
        return TW_OK;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &params);
    if (error == TW_OK)
        error = tw_group_add(r->groups[rank], N, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(r->groups[rank]);
    while (is_broken(error))
        error = tw_group_shrink(r->groups[rank], &j->members[rank]);
    return error;
}

static void test_lost_at_open(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    job_open(&j, 5, &params, &n, 1);
    ranks_free_groups(&j.r);
    lose_rank(&j, 1);
    ranks_run(&j.r, open_or_shrink, &j);
    ranks_ok(&j.r);
    check_int("ranks", j.members[0].nranks, 4);
    job_step(&j);
    ranks_ok(&j.r);
    check_equal_outs(&j, 0, j.outs[0]);
    job_close(&j);
}

/* ---- refused */

static int no_exchange(void *context, const tw_device_message *messages, int count, void *stream) {
    (void)context, (void)messages, (void)count, (void)stream;
    return TW_ERR_TRANSPORT;
}

/* The functions would go on with the numbers that ranks had before a change. */
static void test_device_refused(void **state) {
    (void)state;
    const tw_device_calls calls = {.exchange = no_exchange};
    tw_group_params params = elastic_params("oktopk");
    tw_transport *transports[2];
    tw_group *g;
    check_ok(tw_transport_threads(transports, 2));
    check_ok(tw_transport_set_device(transports[0], &calls, NULL));
    check_error(tw_group_create(&g, transports[0], &params), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "tw_transport_set_device");
    params.membership = TW_MEMBERSHIP_FIXED;
    check_ok(tw_group_create(&g, transports[0], &params));
    tw_group_free(g);
    check_ok(tw_transport_set_device(transports[0], NULL, NULL));
    params.membership = TW_MEMBERSHIP_ELASTIC;
    check_ok(tw_group_create(&g, transports[0], &params));
    tw_group_free(g);
    for (int rank = 0; rank < 2; rank++)
        tw_transport_free(transports[rank]);
}

static void test_refused(void **state) {
    (void)state;
    static job j;
    tw_transport *self;
    tw_group *g;
    const int64_t n = N;
    tw_group_params params = elastic_params("oktopk");
    job_open(&j, 2, &params, &n, 1);
    check_error(tw_group_shrink(NULL, NULL), TW_ERR_NULL);
    check_error(tw_group_shrink(j.r.groups[0], NULL), TW_ERR_STATE);
    check_contains(tw_last_error(), "whole");
    lose_rank(&j, 0);
    job_step(&j); /* half of the ranks, and not with rank 0 */
    check_int("status", j.r.status[1], TW_ERR_QUORUM);
    check_error(tw_allreduce(j.r.groups[1], 0, j.grads[1], j.outs[1]), TW_ERR_QUORUM);
    job_close(&j);
    params.membership = TW_MEMBERSHIP_FIXED;
    job_open(&j, 2, &params, &n, 1);
    check_error(tw_group_shrink(j.r.groups[0], NULL), TW_ERR_STATE);
    check_contains(tw_last_error(), "TW_MEMBERSHIP_ELASTIC");
    job_close(&j);
    params.membership = TW_MEMBERSHIP_ELASTIC;
    check_ok(tw_transport_self(&self));
    check_error(tw_group_create(&g, self, &params), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "MPIX_Comm_shrink");
    params.count = TW_COUNT_PER_RANK;
    check_error(tw_group_create(&g, self, &params), TW_ERR_PARAM);
    params.membership = 2;
    check_error(tw_group_create(&g, self, &params), TW_ERR_PARAM);
    tw_transport_free(self);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeated),    cmocka_unit_test(test_split),
        cmocka_unit_test(test_broken_pair), cmocka_unit_test(test_silent),
        cmocka_unit_test(test_slow),        cmocka_unit_test(test_down_to_one),
        cmocka_unit_test(test_two_at_once), cmocka_unit_test(test_lost_at_open),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_device_refused),
    };
    elastic_begin(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
