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
enum { SAVE_STEP = 4 };

int life_sockets[MOST][MOST];

typedef struct worker {
    life *l;
    int number;
    tw_transport *transport;
    tw_group *group;
    int64_t step; /* completed by the group */
    uint64_t chain;
    int is_late; /* tw_group_shrink has completed the last step, or opened the group */
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
    w->l->gave_up = 1;
    _exit(code);
}

static void enter(worker *w, phase p) {
    w->l->phase = p;
}

static void end_on(worker *w, int status) {
    if (status == TW_ERR_EXCLUDED || (status == TW_ERR_QUORUM && w->l->leaving))
        end(w, EXCLUDED);
    if (status != TW_OK)
        end(w, status == TW_ERR_QUORUM ? NO_QUORUM : FAILED);
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

/* An error must name one that was lost, or that gave up: connections close before a process says that it
 * has. Nobody knows who has a rank that was given just now. */
static void check_name(worker *w) {
    const char *text = tw_last_error(), *at = strstr(text, "rank ");
    int rank = at != NULL ? (int)strtol(at + 5, NULL, 10) : MOST;
    uint32_t version = tw__transport_version(w->transport);
    const life *blamed = rank >= 0 && rank < MOST && j->who[version % VERSIONS][rank] > 0
                             ? &j->lives[j->who[version % VERSIONS][rank] - 1]
                             : NULL;
    if (j->faults && w->l->die_at == 0 && !w->l->leaving && strstr(text, "ranks ") == NULL &&
        blamed != NULL && blamed->die_at == 0 && blamed->die_after == 0 && !blamed->gave_up) {
        snprintf(w->l->misnamed, sizeof w->l->misnamed, "%s", text);
        w->l->blamed = (int)(blamed - j->lives);
    }
}

static void shrink(worker *w) {
    int status;
    tw_members now = {0};
    check_name(w);
    enter(w, IN_shrink);
    while (is_loss(status = tw_group_shrink(w->group, &now)))
        ;
    end_on(w, status);
    w->is_late = now.completed;
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
    tw_tcp_params params = {.meet = j->meet, .rank = l->rank, .nranks = l->nranks};
    enter(w, IN_meet);
    params.timeout = j->faults ? j->timeout : 60;
    if (j->tcp && tw_transport_tcp(&w->transport, &params) != TW_OK)
        end(w, NOT_MET);
    else if (!j->tcp)
        end_on(w, tw_transport_sockets(&w->transport, life_sockets[l->rank], l->rank, l->nranks));
}

tw_group_params life_params(void) {
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
    const tw_group_params params = life_params();
    end_on(w, tw_group_create(&w->group, w->transport, &params));
    end_on(w, tw_group_add(w->group, N, NULL, NULL));
    enter(w, IN_open);
    return tw_group_open(w->group);
}

/* Its replica must be that of the others: it takes the hash of the step after which it has joined. */
static void verify(worker *w) {
    enter(w, IN_verify);
    (void)survive(w, tw_group_verify(w->group, &w->chain, sizeof w->chain, NULL));
}

static void join(worker *w) {
    tw_tcp_params params = {.meet = j->meet, .timeout = 30};
    enter(w, IN_join);
    int status = tw_transport_join(&w->transport, &params);
    if (status == TW_OK)
        status = open_group(w);
    if (status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT) {
        /* A rank was lost meanwhile. */
        end(w, NOT_ADMITTED);
    }
    end_on(w, status);
    w->step = steps_of(w);
    while (j->checked < w->step)
        nap();
    w->chain = j->chains[w->step % RING];
    verify(w);
}

/* ---- between steps
 *
 * A rank may be lost while some are in such a call, others past it, and others still in the step before.
 * So nobody repeats it, and those whose step was completed late leave it out: all go on with the next
 * step. */

static void leave(worker *w, place p) {
    int heir = (p.rank + 1) % p.nranks;
    w->l->heir = j->who[p.version % VERSIONS][heir] - 1;
    enter(w, IN_leave);
    w->l->leaving = 1;
    if (survive(w, tw_group_leave(w->group, heir)))
        end(w, LEFT);
    w->l->leaving = 0;
}

static void change_members(worker *w) {
    tw_members now = {0};
    place p = place_now(w);
    if (w->l->leave && p.nranks > 1 && w->step > 0) {
        leave(w, p);
        return;
    }
    enter(w, IN_grow);
    if (survive(w, tw_group_grow(w->group, &now)) && now.nranks > now.nranks_before - now.nlost)
        verify(w);
}

/* What was just saved is loaded: nothing changes, even if only some come to it. */
static void save_and_load(worker *w) {
    char path[64];
    const char *paths[] = {path};
    snprintf(path, sizeof path, "%s/%d", j->folder, w->number);
    enter(w, IN_save);
    end_on(w, tw_group_save(w->group, path));
    enter(w, IN_load);
    (void)survive(w, tw_group_load(w->group, paths, 1));
}

/* ---- steps */

/* The membership that has completed the step. It is the one before a loss if others had completed it. */
static place step(worker *w) {
    int64_t i = w->l->begun;
    life_gradient(w->number, i, w->grad);
    w->is_late = 0;
    end_on(w, tw_group_get_residual(w->group, 0, w->l->before[i % RING]));
    w->l->begun = i + 1;
    for (;;) {
        place p = place_now(w);
        j->who[p.version % VERSIONS][p.rank] = w->number + 1;
        enter(w, IN_step);
        int ok = survive(w, tw_allreduce(w->group, 0, w->grad, w->out));
        if (ok || w->is_late) {
            if (!ok) /* returns at once */
                end_on(w, tw_allreduce(w->group, 0, w->grad, w->out));
            return p;
        }
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

void life_run(int number) {
    static worker w;
    fault_life = &j->lives[number];
    w = (worker){.l = &j->lives[number], .number = number};
    if (w.l->joins) {
        join(&w);
    } else {
        j->who[0][w.l->rank] = number + 1;
        connect_first(&w);
        w.is_late = !survive(&w, open_group(&w));
    }
    for (int is_new = w.l->joins; w.step < j->stop_at; is_new = 0) {
        while (j->checked < w.step - AHEAD)
            nap();
        if (w.step % POLL_PERIOD == 0 && !is_new && !w.is_late)
            change_members(&w);
        if (w.step == SAVE_STEP && j->faults && !w.is_late)
            save_and_load(&w);
        if (w.l->die_after > 0 && w.l->done == w.l->die_after)
            fault_die(KILL);
        publish(&w, step(&w));
    }
    enter(&w, IN_end);
    while (!j->finished)
        nap();
    tw_group_free(w.group);
    tw_transport_free(w.transport);
    end(&w, ENDED);
}
