/* test_leave.c - ranks that leave hand over their residuals, also if others are lost meanwhile
 *
 * All residuals together are as before: the inputs sum exactly. With the argument "sockets" ranks are
 * joined by sockets instead of queues. */
#include <string.h>

#include "elastic_job.h"

/* ---- leaving */

typedef struct departure {
    job *j;
    int heirs[MOST]; /* TW_ANY_RANK, a rank, or STAYS */
} departure;

enum { STAYS = -2 };

static int leave_rank(ranks *r, int rank, void *context) {
    departure *d = context;
    if (d->j->lost[rank])
        return TW_OK;
    if (d->heirs[rank] != STAYS)
        return tw_group_leave(r->groups[rank], d->heirs[rank]);
    return tw_group_grow(r->groups[rank], &d->j->members[rank]);
}

static void add_residual(tw_group *g, double *sum) {
    float residual[N];
    check_ok(tw_group_get_residual(g, 0, residual));
    for (int i = 0; i < N; i++)
        sum[i] += residual[i];
}

/* All residuals together are as before: these inputs sum exactly. */
static void check_leave(const char *exchange, const int *heirs, int nranks, float momentum) {
    static job j;
    static fresh f;
    const int64_t n = N;
    double before[N] = {0}, after[N] = {0};
    tw_group_params params = elastic_params(exchange);
    params.select.momentum = momentum;
    departure d = {.j = &j};
    int left = 0;
    check_scene("%s, %d ranks, some leave", exchange, nranks);
    job_open(&j, nranks, &params, &n, 1);
    job_step(&j);
    job_step(&j);
    for (int rank = 0; rank < nranks; rank++) {
        add_residual(j.r.groups[rank], before);
        d.heirs[rank] = heirs[rank];
        left += heirs[rank] == STAYS;
    }
    ranks_run(&j.r, leave_rank, &d);
    ranks_ok(&j.r);
    for (int rank = 0; rank < nranks; rank++) {
        if (heirs[rank] == STAYS) {
            add_residual(j.r.groups[rank], after);
            check_int("ranks", j.members[rank].nranks, left);
            check_int("left", j.members[rank].nlost, nranks - left);
            for (int i = 0; i < nranks - left; i++)
                check_true(j.members[rank].lost[i].heir >= 0);
        } else {
            check_error(tw_allreduce(j.r.groups[rank], 0, j.grads[rank], j.outs[rank]),
                        TW_ERR_STATE);
            lose_rank(&j, rank);
        }
    }
    for (int i = 0; i < N; i++)
        check_true(before[i] == after[i]);
    if (momentum == 0.0f)
        fresh_open(&f, &j, &params, 2);
    for (int i = 0; i < 2; i++) {
        job_step(&j);
        ranks_ok(&j.r);
        if (momentum == 0.0f)
            fresh_step(&f, &j);
    }
    if (momentum == 0.0f)
        job_close(&f.job);
    job_close(&j);
}

static void test_leave(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        check_leave(check_exchange(e), (const int[]){STAYS, 3, STAYS, STAYS}, 4, 0.0f);
    check_leave("oktopk", (const int[]){TW_ANY_RANK, STAYS}, 2, 0.0f);
    check_leave("oktopk", (const int[]){1, STAYS, 1, TW_ANY_RANK, TW_ANY_RANK, STAYS}, 6, 0.0f);
    check_leave("allgather", (const int[]){TW_ANY_RANK, STAYS, STAYS}, 3, 0.5f);
}

static void test_leave_refused(void **state) {
    (void)state;
    static job j;
    const int64_t n = N;
    const tw_group_params params = elastic_params("oktopk");
    const struct {
        int heirs[3];
        const char *says;
    } wrong[] = {{{1, 2, STAYS}, "rank 0 names 1"},
                 {{3, STAYS, STAYS}, "rank 0 names 3"},
                 {{0, STAYS, STAYS}, "rank 0 names 0"},
                 {{TW_ANY_RANK, TW_ANY_RANK, 0}, "all ranks leave"}};
    departure d = {.j = &j};
    job_open(&j, 3, &params, &n, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(d.heirs, wrong[i].heirs, sizeof wrong[i].heirs);
        ranks_run(&j.r, leave_rank, &d);
        ranks_error(&j.r, TW_ERR_PARAM);
        ranks_say(&j.r, "%s", wrong[i].says);
        job_step(&j);
        ranks_ok(&j.r);
    }
    memcpy(d.heirs, (const int[]){STAYS, STAYS, STAYS}, sizeof(int) * 3);
    ranks_run(&j.r, leave_rank, &d);
    ranks_ok(&j.r);
    check_int("nobody has left", j.members[0].nranks, 3);
    check_int("no change", j.members[0].version, 0);
    /* A rank is lost while another leaves: the call fails, and nobody has left. */
    lose_rank(&j, 1);
    memcpy(d.heirs, (const int[]){STAYS, STAYS, 0}, sizeof(int) * 3);
    ranks_run(&j.r, leave_rank, &d);
    check_true(is_broken(j.r.status[0]) && is_broken(j.r.status[2]));
    job_step(&j);
    ranks_ok(&j.r);
    check_int("ranks", j.members[0].nranks, 2);
    job_close(&j);
}

/* ---- a rank is lost at the last moment of another's leave */

typedef struct last_moment {
    job *j;
    int newcomers; /* that the rank which is lost says have asked it to join */
    int agrees;    /* that rank agrees that rank 1 leaves */
} last_moment;

/* What every rank says first: step, heir, newcomers ... */
enum { CHANGE_WORDS = 5 };

static int (*send_as_it_is)(void *, int, int, const void *, size_t, void **);

/* Says that one has asked it to join. */
static int send_newcomer(void *context, int peer, int tag, const void *data, size_t bytes,
                         void **request) {
    static int64_t records[MOST][CHANGE_WORDS];
    if (tag == TW__TAG_DATA && bytes == sizeof records[peer]) {
        memcpy(records[peer], data, bytes);
        records[peer][2] = 1;
        data = records[peer];
    }
    return send_as_it_is(context, peer, tag, data, bytes, request);
}

static const int last_heirs[4] = {-1, 0, -1, -1}; /* rank 1 leaves, rank 2 is lost */

/* The second record of errors, with which the handover ends, does not reach rank 1. */
static int cut_last(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **request) {
    static int records;
    if (tag == TW__TAG_DATA && bytes == TW__TEXT && peer == 1 && ++records % 2 == 0) {
        *request = &cut.nothing;
        return TW_OK;
    }
    return cut.send(context, peer, tag, data, bytes, request);
}

/* Takes part in the handover, and in no more. */
static int hand_over(tw_group *g, int newcomers) {
    const int64_t record[CHANGE_WORDS] = {g->elastic.step, STAYS, newcomers, newcomers > 0};
    const void *all = NULL;
    tw__handover h = {0};
    int error = tw__agree_share(g, record, sizeof record, &all);
    if (error == TW_OK)
        error = tw__handover_run(g, last_heirs, &h);
    tw__handover_free(&h);
    return error;
}

static int leave_at_last_moment(ranks *r, int rank, void *context) {
    last_moment *l = context;
    job *j = l->j;
    tw_group *g = r->groups[rank];
    if (rank == 2) {
        int error = hand_over(g, l->newcomers);
        if (error == TW_OK && l->agrees)
            return agree_and_die(j, &(tw__intent){.step = g->elastic.step, .inherits = 1});
        lose_rank(j, 2);
        return error;
    }
    if (rank != 1) {
        int error = tw_group_grow(g, &j->members[rank]);
        return l->agrees && is_broken(error) ? tw_group_shrink(g, &j->members[rank]) : error;
    }
    j->shrinks[1] = tw_group_leave(g, 0);
    return is_broken(j->shrinks[1]) ? tw_group_shrink(g, &j->members[1]) : j->shrinks[1];
}

static void open_last_moment(job *j, int nranks, double *residuals) {
    const int64_t n = N;
    const tw_group_params params = elastic_params("allgather");
    memset(residuals, 0, N * sizeof *residuals);
    job_open(j, nranks, &params, &n, 1);
    job_step(j);
    ranks_ok(&j->r);
    for (int rank = 0; rank < nranks; rank++)
        if (rank != 2)
            add_residual(j->r.groups[rank], residuals);
}

static void check_last_moment(job *j, const double *before) {
    double after[N] = {0};
    for (int rank = 0; rank < j->r.nranks; rank++)
        if (!j->lost[rank])
            add_residual(j->r.groups[rank], after);
    for (int i = 0; i < N; i++)
        check_true(before[i] == after[i]);
    job_step(j);
    ranks_ok(&j->r);
    check_equal_outs(j, 1, j->outs[0]);
    job_close(j);
}

/* The heir has all that it was given. But the rank that was to leave does not know it, and stays: its
 * residual must not be there twice. It steps on while the others end the call: they have nothing else to
 * do in it, also if rank 3 says that somebody has asked it to join. */
static void test_leave_undone(void **state) {
    (void)state;
    static job j;
    double before[N];
    open_last_moment(&j, 4, before);
    send_as_it_is = j.r.transports[3]->calls.send;
    j.r.transports[3]->calls.send = send_newcomer;
    cut_off(&j, 2, 0, 0, cut_last);
    ranks_run(&j.r, leave_at_last_moment, &(last_moment){.j = &j});
    ranks_ok(&j.r);
    check_true(is_broken(j.shrinks[1]));
    check_int("ranks", j.members[0].nranks, 3);
    check_int("lost", j.members[0].nlost, 1);
    check_int("lost rank", j.members[0].lost[0].rank, 2);
    check_last_moment(&j, before);
}

/* Those that have asked the rank that is lost to join are not waited for. */
static void test_leave_without_host(void **state) {
    (void)state;
    static job j;
    double before[N];
    open_last_moment(&j, 4, before);
    ranks_run(&j.r, leave_at_last_moment, &(last_moment){.j = &j, .newcomers = 1});
    ranks_ok(&j.r);
    check_int("rank 1 has left", j.shrinks[1], TW_OK);
    lose_rank(&j, 1);
    check_int("ranks", j.members[3].nranks, 2);
    check_int("heir of rank 1", j.members[3].lost[0].heir, 0);
    check_int("heir of rank 2", j.members[3].lost[1].heir, -1);
    check_last_moment(&j, before);
}

/* The call fails for those that stay, after rank 1 has left: they are told with the next change. */
static void test_leave_then_lost(void **state) {
    (void)state;
    static job j;
    double before[N];
    open_last_moment(&j, 4, before);
    ranks_run(&j.r, leave_at_last_moment, &(last_moment){.j = &j, .agrees = 1});
    ranks_ok(&j.r);
    check_int("rank 1 has left", j.shrinks[1], TW_OK);
    lose_rank(&j, 1);
    for (int rank = 0; rank < 4; rank += 3) {
        const tw_members *m = &j.members[rank];
        check_int("ranks", m->nranks, 2);
        check_int("ranks before", m->nranks_before, 4);
        check_int("rank before", m->rank_before, rank);
        check_int("before", m->before[1], 3);
        check_int("lost", m->nlost, 2);
        check_int("who left", m->lost[0].rank, 1);
        check_int("heir of rank 1", m->lost[0].heir, 0);
        check_int("who was lost", m->lost[1].rank, 2);
        check_int("heir of rank 2", m->lost[1].heir, -1);
    }
    check_last_moment(&j, before);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave),           cmocka_unit_test(test_leave_refused),
        cmocka_unit_test(test_leave_undone),    cmocka_unit_test(test_leave_without_host),
        cmocka_unit_test(test_leave_then_lost),
    };
    elastic_begin(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
