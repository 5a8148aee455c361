/* elastic_job.c - elastic groups whose ranks are lost; see elastic_job.h */
#include "elastic_job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { K = 68 }; /* entries to select */

int on_sockets;
int ends[MOST][MOST];
struct elastic_cut cut;

void elastic_begin(int argc, char **argv) {
    on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
}

void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- ranks, some of them lost */

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

void job_open(job *j, int nranks, const tw_group_params *params, const int64_t *sizes,
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

void job_close(job *j) {
    rows_free(j->grads);
    rows_free(j->outs);
    for (int rank = 0; rank < j->r.nranks; rank++)
        if (j->lost[rank])
            j->r.transports[rank] = NULL;
    ranks_close(&j->r);
}

void lose_rank(job *j, int rank) {
    tw_group_free(j->r.groups[rank]);
    tw_transport_free(j->r.transports[rank]);
    j->r.groups[rank] = NULL;
    j->lost[rank] = 1;
}

tw_group_params elastic_params(const char *exchange) {
    tw_group_params params = ranks_params(exchange, K);
    if (strcmp(exchange, "dense") != 0)
        params.select.method = "reuse"; /* has a threshold to forget */
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 20;
    return params;
}

int is_broken(int error) {
    return error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT || error == TW_ERR_STATE;
}

int step_rank(ranks *r, int rank, void *context) {
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

void job_step(job *j) {
    for (int rank = 0; rank < j->r.nranks; rank++)
        oracle_fill(j->grads[rank], N, DATA_SUMMABLE, (uint64_t)(1000 * j->steps + rank));
    j->steps++;
    ranks_run(&j->r, step_rank, j);
}

void check_equal_outs(const job *j, int first, const float *want) {
    for (int rank = first; rank < j->r.nranks; rank++)
        if (!j->lost[rank])
            check_bits("out", j->outs[rank], want, N);
}

int agree_and_die(job *j, const tw__intent *intent) {
    tw__membership m;
    int error = tw__transport_agree_members(j->r.transports[2], intent, &m);
    free(m.ranks);
    nap(0.05);
    lose_rank(j, 2);
    return error;
}

/* ---- a fresh group with the residuals of those that are left */

void fresh_open(fresh *f, job *j, const tw_group_params *params, int64_t steps) {
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

void fresh_step(fresh *f, job *j) {
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

/* ---- a rank that does not send all that it should */

static int cut_test(void *context, void *request, size_t *bytes) {
    return request == &cut.nothing ? 1 : cut.test(context, request, bytes);
}

void cut_off(job *j, int rank, int told, int64_t step, send_call *send) {
    tw_transport *t = j->r.transports[rank];
    cut.send = t->calls.send;
    cut.test = t->calls.test;
    cut.told = told;
    cut.step = step;
    t->calls.send = send;
    t->calls.test = cut_test;
}
