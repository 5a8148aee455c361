/* life.c - one process of the job: joins, steps, survives the deaths of others, leaves */
#include "churn.h"

#include "oracle.h"
#include "base/random.h"
#include "thinwire.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_PERIOD = 3 }; /* steps from one tw_group_grow to the next */

int life_sockets[MOST][MOST];

typedef struct worker {
    job *j;
    life *l;
    int number;
    tw_transport *transport;
    tw_group *group;
    int64_t step; /* completed by the group */
    uint64_t chain;
    float grad[N], out[N];
} worker;

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(void) {
    nanosleep(&(struct timespec){0, 500000}, NULL);
}

void life_gradient(int number, int64_t i, float *grad) {
    for (uint64_t at = 0; at < N; at++)
        grad[at] = (float)(int)(tw__random((uint64_t)number << 32 | (uint64_t)i, at) % 201) - 100;
}

/* _exit: kills may come at any time, and sanitizers must not wait for anything. */
__attribute__((noreturn)) static void end(worker *w, int code) {
    snprintf(w->l->text, sizeof w->l->text, "%s", tw_last_error());
    _exit(code);
}

static void end_on(worker *w, int status) {
    if (status != TW_OK)
        end(w, status == TW_ERR_EXCLUDED ? EXCLUDED : FAILED);
}

typedef struct place {
    uint32_t version;
    int rank, nranks;
} place;

static place place_now(const worker *w) {
    place p = {.version = tw__transport_version(w->transport)};
    (void)tw_transport_info(w->transport, NULL, &p.rank, &p.nranks, NULL);
    return p;
}

/* ---- the group */

static int64_t steps_of(worker *w) {
    tw_step_info info;
    end_on(w, tw_group_info(w->group, 0, &info));
    return info.step;
}

static int is_loss(int status) {
    return status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT;
}

static void shrink(worker *w) {
    int status;
    while (is_loss(status = tw_group_shrink(w->group, NULL)))
        ;
    end_on(w, status);
}

/* Whether the call has succeeded. After the loss of a rank the group goes on without it. */
static int survive(worker *w, int status) {
    if (is_loss(status))
        shrink(w);
    else
        end_on(w, status);
    return status == TW_OK;
}

static void connect_first(worker *w) {
    life *l = w->l;
    tw_tcp_params params = {.meet = w->j->meet, .rank = l->rank, .nranks = l->nranks};
    if (w->j->tcp)
        end_on(w, tw_transport_tcp(&w->transport, &params));
    else
        end_on(w, tw_transport_sockets(&w->transport, life_sockets[l->rank], l->rank, l->nranks));
}

tw_group_params life_params(const job *j) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.exchange = j->exchange;
    params.select.method =
        "exact"; /* selects the same whatever came before: the ledger has a twin */
    params.select.k = K;
    params.select.threads = 1;
    params.result = TW_SUM;
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = j->timeout;
    return params;
}

static int open_group(worker *w) {
    const tw_group_params params = life_params(w->j);
    end_on(w, tw_group_create(&w->group, w->transport, &params));
    end_on(w, tw_group_add(w->group, N, NULL, NULL));
    return tw_group_open(w->group);
}

/* Its replica must be that of the others: it takes the hash of the step after which it has joined. */
static void verify(worker *w) {
    (void)survive(w, tw_group_verify(w->group, &w->chain, sizeof w->chain, NULL));
}

static void join(worker *w) {
    tw_tcp_params params = {.meet = w->j->meet, .timeout = 30};
    int status = tw_transport_join(&w->transport, &params);
    if (status == TW_OK)
        status = open_group(w);
    if (status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT) {
        /* A rank was lost meanwhile. */
        end(w, NOT_ADMITTED);
    }
    end_on(w, status);
    w->step = steps_of(w);
    while (w->j->checked < w->step)
        nap();
    w->chain = w->j->chains[w->step % RING];
    verify(w);
}

/* ---- between steps */

static void leave(worker *w, place p) {
    int heir = (p.rank + 1) % p.nranks;
    w->l->heir = w->j->who[p.version % VERSIONS][heir];
    if (survive(w, tw_group_leave(w->group, heir)))
        end(w, LEFT);
}

/* All have stepped in the membership `last`, and so have said who they are. */
static void change_members(worker *w, uint32_t last) {
    tw_members members = {0};
    place p = place_now(w);
    if (w->l->leave && p.version == last && p.nranks > 1)
        leave(w, p);
    else if (survive(w, tw_group_grow(w->group, &members)) &&
             members.nranks > members.nranks_before - members.nlost)
        verify(w);
}

/* ---- steps */

/* The membership that has completed the step. It is the one before a loss if others had completed it. */
static place step(worker *w) {
    int64_t i = w->l->begun;
    life_gradient(w->number, i, w->grad);
    end_on(w, tw_group_get_residual(w->group, 0, w->l->before[i % RING]));
    w->l->begun = i + 1;
    for (;;) {
        place p = place_now(w);
        w->j->who[p.version % VERSIONS][p.rank] = w->number;
        int ok = survive(w, tw_allreduce(w->group, 0, w->grad, w->out));
        int completed = steps_of(w) > w->step;
        if (completed && !ok) /* returns at once */
            end_on(w, tw_allreduce(w->group, 0, w->grad, w->out));
        if (completed)
            return p;
    }
}

static void publish(worker *w, place p) {
    record *r = &w->l->records[w->l->done % RING];
    w->step++;
    w->chain = oracle_hash(w->chain, w->out, sizeof w->out);
    *r = (record){.step = steps_of(w),
                  .version = p.version,
                  .nranks = p.nranks,
                  .when = seconds_now(),
                  .chain = w->chain};
    memcpy(r->out, w->out, sizeof r->out);
    end_on(w, tw_group_get_residual(w->group, 0, r->residual));
    w->l->done++;
}

void life_run(job *j, int number) {
    static worker w;
    w = (worker){.j = j, .l = &j->lives[number], .number = number};
    place last = {.version = UINT32_MAX};
    if (w.l->joins) {
        join(&w);
    } else {
        connect_first(&w);
        end_on(&w, open_group(&w));
    }
    w.l->is_working = 1;
    for (int is_new = w.l->joins; w.step < j->stop_at; is_new = 0) {
        while (j->checked < w.step - AHEAD)
            nap();
        if (w.step % POLL_PERIOD == 0 && !is_new)
            change_members(&w, last.version);
        last = step(&w);
        publish(&w, last);
    }
    while (!j->finished)
        nap();
    tw_group_free(w.group);
    tw_transport_free(w.transport);
    end(&w, ENDED);
}
