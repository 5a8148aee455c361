/* test_membership.c - ranks that are lost: the others agree, repeat the step, and go on
 *
 * The repeated step must be bit for bit that of a fresh group with the same residuals. With the
 * argument "sockets" ranks are joined by sockets instead of queues. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "group/membership.h"
#include "ranks.h"
#include "transport/transport_internal.h"

enum { MOST = 9, N = 1201, K = 68 };

static int on_sockets;
static int ends[MOST][MOST];

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- ranks, some of them lost */

typedef struct job {
    ranks r;
    int lost[MOST];
    float **grads, **outs; /* [nranks][N] */
    int shrinks[MOST];     /* statuses of tw_group_shrink */
    tw_members members[MOST];
    int steps;
    double late[MOST];                             /* seconds before a rank makes its call */
    float first_outs[MOST][N], residuals[MOST][N]; /* after the first of two steps */
} job;

static void connect_ranks(tw_transport **transports, int nranks) {
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
            ends[a][b] = pair[0];
            ends[b][a] = pair[1];
        }
    for (int a = 0; a < nranks; a++)
        check_ok(tw_transport_sockets(&transports[a], ends[a], a, nranks));
}

static void job_open(job *j, int nranks, const tw_group_params *params, const int64_t *sizes,
                     int tensors) {
    tw_transport *transports[MOST];
    memset(j, 0, sizeof *j);
    if (on_sockets)
        connect_ranks(transports, nranks);
    else
        check_ok(tw_transport_threads(transports, nranks));
    ranks_adopt(&j->r, nranks, transports);
    ranks_try_open(&j->r, params, sizes, tensors);
    ranks_ok(&j->r);
    j->grads = rows_alloc(nranks, N);
    j->outs = rows_alloc(nranks, N);
}

static void job_close(job *j) {
    rows_free(j->grads);
    rows_free(j->outs);
    for (int rank = 0; rank < j->r.nranks; rank++)
        if (j->lost[rank])
            j->r.transports[rank] = NULL;
    ranks_close(&j->r);
}

static void lose_rank(job *j, int rank) {
    tw_group_free(j->r.groups[rank]);
    tw_transport_free(j->r.transports[rank]);
    j->r.groups[rank] = NULL;
    j->lost[rank] = 1;
}

static tw_group_params elastic_params(const char *exchange) {
    tw_group_params params = ranks_params(exchange, K);
    if (strcmp(exchange, "dense") != 0)
        params.select.method = "reuse"; /* has a threshold to forget */
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 20;
    return params;
}

static int is_broken(int error) {
    return error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT || error == TW_ERR_STATE;
}

/* One step; after a loss shrinks and repeats it. */
static int step_rank(ranks *r, int rank, void *context) {
    job *j = context;
    if (j->lost[rank])
        return TW_OK;
    nap(j->late[rank]);
    tw_group *g = r->groups[rank];
    int error;
    while (is_broken(error = tw_allreduce(g, 0, j->grads[rank], j->outs[rank]))) {
        error = j->shrinks[rank] = tw_group_shrink(g, &j->members[rank]);
        if (error != TW_OK && !is_broken(error))
            return error;
    }
    return error;
}

static void job_step(job *j) {
    for (int rank = 0; rank < j->r.nranks; rank++)
        oracle_fill(j->grads[rank], N, DATA_SUMMABLE, (uint64_t)(1000 * j->steps + rank));
    j->steps++;
    ranks_run(&j->r, step_rank, j);
}

static void check_equal_outs(const job *j, int first, const float *want) {
    for (int rank = first; rank < j->r.nranks; rank++)
        if (!j->lost[rank])
            check_bits("out", j->outs[rank], want, N);
}

/* ---- a fresh group with the residuals of those that are left */

typedef struct fresh {
    job job;
    int ranks[MOST]; /* of the job that it follows */
} fresh;

static void fresh_open(fresh *f, job *j, const tw_group_params *params, int64_t steps) {
    const int64_t n = N;
    int left = 0;
    for (int rank = 0; rank < j->r.nranks; rank++)
        if (!j->lost[rank])
            f->ranks[left++] = rank;
    job_open(&f->job, left, params, &n, 1);
    for (int i = 0; i < left; i++) {
        tw__tensor *t = &f->job.r.groups[i]->tensors[0];
        float residual[N];
        check_ok(tw_group_get_residual(j->r.groups[f->ranks[i]], 0, residual));
        t->steps = steps;
        if (t->selector == NULL)
            continue;
        check_ok(tw__selector_reset(t->selector, steps));
        check_ok(tw_selector_set_residual(t->selector, residual));
    }
}

/* The same gradients in both, and the same results. */
static void fresh_step(fresh *f, job *j) {
    for (int i = 0; i < f->job.r.nranks; i++)
        memcpy(f->job.grads[i], j->grads[f->ranks[i]], N * sizeof(float));
    ranks_run(&f->job.r, step_rank, &f->job);
    ranks_ok(&f->job.r);
    for (int i = 0; i < f->job.r.nranks; i++) {
        float a[N], b[N];
        check_bits("out", j->outs[f->ranks[i]], f->job.outs[i], N);
        check_ok(tw_group_get_residual(j->r.groups[f->ranks[i]], 0, a));
        check_ok(tw_group_get_residual(f->job.r.groups[i], 0, b));
        check_bits("residual", a, b, N);
    }
}

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

/* ---- a step that some have completed */

/* The rank that will be lost tells only some of the others, or none, that it has its result. It has
 * applied the step itself: so must the others. */
static struct {
    int (*send)(void *, int, int, const void *, size_t, void **);
    int (*test)(void *, void *, size_t *);
    int told; /* ranks below it */
    int64_t step;
    char nothing;
} cut;

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

static int cut_test(void *context, void *request, size_t *bytes) {
    return request == &cut.nothing ? 1 : cut.test(context, request, bytes);
}

typedef int send_call(void *, int, int, const void *, size_t, void **);

/* step: whose end is told to `told` ranks only */
static void cut_off(job *j, int rank, int told, int64_t step, send_call *send) {
    tw_transport *t = j->r.transports[rank];
    cut.send = t->calls.send;
    cut.test = t->calls.test;
    cut.told = told;
    cut.step = step;
    t->calls.send = send;
    t->calls.test = cut_test;
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

/* Rank 2 agrees on the ranks that are left, and is lost before the group opens with them. */
static int agree_and_die(job *j, const tw__intent *intent) {
    tw__membership m;
    int error = tw__transport_agree_members(j->r.transports[2], intent, &m);
    free(m.ranks);
    nap(0.05);
    lose_rank(j, 2);
    return error;
}

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
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_doubt),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_broken_pair),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_down_to_one),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_info_meanwhile),
        cmocka_unit_test(test_lost_in_shrink),
        cmocka_unit_test(test_background),
        cmocka_unit_test(test_doubt_of_buckets),
        cmocka_unit_test(test_half_completed),
        cmocka_unit_test(test_lost_at_open),
        cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_leave_refused),
        cmocka_unit_test(test_leave_undone),
        cmocka_unit_test(test_leave_without_host),
        cmocka_unit_test(test_leave_then_lost),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_device_refused),
    };
    on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
