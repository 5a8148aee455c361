/* churn_worker.c - one process of bench/churn_peers.py: steps in an elastic group until it is killed
 *
 *   churn_worker MEET RANK NRANKS NUMBER N SCHEME      RANK -1: joins the job that runs
 *
 * NUMBER tells its gradient. Prints a line for each step: the number of the step, when the attempt that
 * succeeded began and when it ended (CLOCK_MONOTONIC), a hash of the result. Exit status 1 if it cannot
 * go on. */
#include "base/clock.h"
#include "thinwire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROW_PERIOD = 10 }; /* steps from one tw_group_grow to the next */

typedef struct worker {
    tw_transport *transport;
    tw_group *group;
    int64_t n;
    float *grad, *out; /* [n] each */
    int is_late;       /* tw_group_shrink has completed the last step, or opened the group */
} worker;

static void require_ok(int error) {
    if (error == TW_OK)
        return;
    fprintf(stderr, "churn_worker: %s\n", tw_last_error());
    _exit(1);
}

static int is_loss(int error) {
    return error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT;
}

/* FNV-1a over words. */
static uint64_t hash(const float *values, int64_t n) {
    uint64_t h = 14695981039346656037u;
    uint32_t word;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&word, values + i, sizeof word);
        h = (h ^ word) * 1099511628211u;
    }
    return h;
}

/* Whether the call has succeeded. After the loss of a rank the group goes on without it. */
static int survive(worker *w, int error) {
    tw_members members = {0};
    if (!is_loss(error)) {
        require_ok(error);
        return 1;
    }
    while (is_loss(error = tw_group_shrink(w->group, &members)))
        ;
    require_ok(error);
    w->is_late = members.completed;
    return 0;
}

static int open_group(worker *w, const char *scheme) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.01;
    params.select.threads = 1;
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 5;
    require_ok(tw_group_create(&w->group, w->transport, &params));
    require_ok(tw_group_add(w->group, w->n, NULL, NULL));
    return tw_group_open(w->group);
}

/* Until it is a member: the ranks may have lost one meanwhile, and gone on without this one. */
static void join(worker *w, tw_tcp_params tcp, const char *scheme) {
    int error;
    tcp.rank = tcp.nranks = 0;
    do {
        tw_group_free(w->group);
        tw_transport_free(w->transport);
        w->group = NULL;
        w->transport = NULL;
        error = tw_transport_join(&w->transport, &tcp);
        if (error == TW_OK)
            error = open_group(w, scheme);
    } while (is_loss(error));
    require_ok(error);
}

static void step(worker *w) {
    tw_step_info info;
    double begin = 0;
    do {
        if (!w->is_late)
            begin = tw__seconds();
    } while (!survive(w, tw_allreduce(w->group, 0, w->grad, w->out)));
    require_ok(tw_group_info(w->group, 0, &info));
    printf("%lld %.6f %.6f %llx\n", (long long)info.step, begin, tw__seconds(),
           (unsigned long long)hash(w->out, w->n));
    if (info.step % GROW_PERIOD == 0 && !w->is_late)
        (void)survive(w, tw_group_grow(w->group, NULL));
    w->is_late = 0;
}

int main(int argc, char **argv) {
    worker w = {0};
    if (argc != 7)
        return 2;
    tw_tcp_params tcp = {.meet = argv[1], .rank = atoi(argv[2]), .nranks = atoi(argv[3])};
    tcp.timeout = 30;
    w.n = atoll(argv[5]);
    w.grad = malloc((size_t)w.n * sizeof *w.grad);
    w.out = malloc((size_t)w.n * sizeof *w.out);
    require_ok(w.grad == NULL || w.out == NULL ? TW_ERR_MEMORY : TW_OK);
    srand((unsigned)atoi(argv[4]));
    for (int64_t i = 0; i < w.n; i++)
        w.grad[i] = (float)rand() / (float)RAND_MAX - 0.5F;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (tcp.rank < 0) {
        join(&w, tcp, argv[6]);
    } else {
        require_ok(tw_transport_tcp(&w.transport, &tcp));
        (void)survive(&w, open_group(&w, argv[6]));
    }
    for (;;)
        step(&w);
}
