/* test_join.c - processes that join a job over TCP: in, refused, or at the same time as others leave
 *
 * Processes are threads here, each with its own sockets. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "group/group.h"
#include "ranks.h"
#include "transport/transport.h"

enum { MOST = 8, N = 500, K = 64, STEPS = 400 };

typedef struct change {
    tw_members members; /* its arrays are these: */
    int before[MOST];
    tw_lost_rank lost[MOST];
} change;

typedef struct process {
    tw_tcp_params params;
    const char *exchange;
    int joins;         /* it comes when the job runs */
    double late;       /* seconds before it comes */
    int dies;          /* when it has joined; a rank: when it has seen that */
    int asks_nothing;  /* it gives no tw_members to tw_group_grow */
    int64_t k;         /* 0: K */
    int differs;       /* its parameters do */
    double pause;      /* seconds that it waits after its first step */
    const char *state; /* a file whose residuals it takes when it has joined */
    change changes[2]; /* of the ranks that it has seen first */
    int nchanges;
    int leaves_at;  /* step; 0: it stays */
    int until;      /* ranks with which it ends, once there have been so many */
    int64_t after;  /* and so many steps and one more */
    int only;       /* 1: ends when a change was made, whatever it was */
    double timeout; /* of the group; 0: 20 s */
    int status;
    char text[512];
    int rank, nranks;
    int joined; /* others have, since it began */
    int64_t steps, version;
    int refused;   /* newcomers that it has seen refused */
    int untouched; /* of these by tw_group_grow, which told of no change */
    uint64_t hash; /* of all results since all were there */
    pthread_t thread;
} process;

static char meet[64];
static int port;
static const char secret[] = "a secret of the tests";

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void choose_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0);
    check_true(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    (void)close(fd);
    port = ntohs(address.sin_port);
    snprintf(meet, sizeof meet, "127.0.0.1:%d", port);
}

/* A socket; -1: nobody listens. */
static int connect_to_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static int open_group(process *p, tw_transport *transport, tw_group **group) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.exchange = p->exchange;
    params.select.k = p->k > 0 ? p->k : K;
    params.select.threads = 1;
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = p->timeout > 0 ? p->timeout : 20;
    int status = tw_group_create(group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(*group, N, NULL, NULL);
    return status == TW_OK ? tw_group_open(*group) : status;
}

static void note_change(process *p, const tw_members *m) {
    change *c = &p->changes[p->nchanges];
    if (p->nchanges == 2)
        return;
    p->nchanges++;
    c->members = *m;
    for (int r = 0; r < m->nranks && m->before != NULL; r++)
        c->before[r] = m->before[r];
    for (int i = 0; i < m->nlost; i++)
        c->lost[i] = m->lost[i];
}

static int grow(const process *p, tw_transport *transport, tw_group *group, tw_members *members) {
    if (!p->asks_nothing)
        return tw_group_grow(group, members);
    int status = tw_group_grow(group, NULL);
    members->nranks_before = p->nranks;
    (void)tw_transport_info(transport, NULL, &members->rank, &members->nranks, NULL);
    return status;
}

/* Polls, then makes a step, until as many are there as it waits for. */
static int work(process *p, tw_transport *transport, tw_group *group) {
    float grad[N], out[N];
    int status = TW_OK, verified = !p->joins;
    for (int step = 0; step < STEPS && status == TW_OK; step++) {
        tw_members members = {0};
        tw_step_info info;
        nap(0.002);
        if (verified) { /* a newcomer is past this call */
            (void)tw_group_info(group, 0, &info);
            if (p->leaves_at > 0 && info.step >= p->leaves_at)
                return tw_group_leave(group, TW_ANY_RANK);
            status = grow(p, transport, group, &members);
            if (status == TW_ERR_MISMATCH) {
                p->refused++;
                p->untouched += members.nlost == 0 && members.nranks == members.nranks_before &&
                                members.rank == members.rank_before;
                status = TW_OK;
            }
            p->nranks = members.nranks;
            p->rank = members.rank;
            p->version = members.version;
            if (status == TW_OK && (members.nlost > 0 || members.nranks > members.nranks_before))
                note_change(p, &members);
        }
        if (status == TW_OK &&
            (!verified || members.nranks > members.nranks_before - members.nlost)) {
            uint64_t parameters = p->differs ? 7 : 6;
            p->joined = 1;
            status = tw_group_verify(group, &parameters, sizeof parameters, &members);
            if (status == TW_ERR_MISMATCH && !p->differs) {
                p->refused++;
                p->nranks = members.nranks;
                status = TW_OK;
            }
            verified = 1;
            p->hash = 0;
        }
        for (int i = 0; i < N; i++)
            grad[i] = (float)((i * 7919 + p->rank * 31 + step) % 211);
        if (status == TW_OK)
            status = tw_allreduce(group, 0, grad, out);
        if (status == TW_OK)
            status = tw_group_info(group, 0, &info);
        p->steps = info.step;
        p->hash = oracle_hash(p->hash, out, sizeof out);
        if (step == 0 && !p->joins)
            nap(p->pause);
        int waits = p->pause > 0.0 && !p->joined;
        int ends = p->nranks == p->until && p->steps > p->after;
        if ((ends && !waits) || (p->only && p->refused > 0))
            return status;
    }
    return status;
}

/* What a rank saved is what it has then. A file that cannot be taken changes nothing. */
static float saved[N];

static int take_state(const process *p, tw_group *group) {
    float residual[N];
    tw_step_info before, after;
    int status = tw_group_info(group, 0, &before);
    if (tw_group_load_residuals(group, "/nowhere/state") != TW_ERR_FILE)
        return TW_ERR_DAMAGED;
    if (status == TW_OK)
        status = tw_group_get_residual(group, 0, residual);
    for (int i = 0; i < N && status == TW_OK; i++)
        status = residual[i] == 0.0f ? TW_OK : TW_ERR_DAMAGED;
    if (status == TW_OK)
        status = tw_group_load_residuals(group, p->state);
    if (status == TW_OK)
        status = tw_group_get_residual(group, 0, residual);
    if (status == TW_OK)
        status = tw_group_info(group, 0, &after);
    if (status == TW_OK &&
        (oracle_difference(residual, saved, N) >= 0 || after.step != before.step))
        status = TW_ERR_DAMAGED;
    return status;
}

static void *process_main(void *context) {
    process *p = context;
    tw_transport *transport = NULL;
    tw_group *group = NULL;
    nap(p->late);
    p->status = p->joins ? tw_transport_join(&transport, &p->params)
                         : tw_transport_tcp(&transport, &p->params);
    if (p->status == TW_OK) {
        (void)tw_transport_info(transport, NULL, &p->rank, &p->nranks, NULL);
        p->status = open_group(p, transport, &group);
    }
    if (p->status == TW_OK && p->state != NULL)
        p->status = take_state(p, group);
    if (p->status == TW_OK)
        p->status = work(p, transport, group);
    if (p->status != TW_OK)
        snprintf(p->text, sizeof p->text, "%s", tw_last_error());
    tw_group_free(group);
    tw_transport_free(transport);
    return NULL;
}

/* Ranks 0 .. members-1 begin; the others join. */
static void begin(process *all, int members, int count, const char *exchange) {
    choose_port();
    memset(all, 0, (size_t)count * sizeof *all);
    for (int i = 0; i < count; i++) {
        all[i].exchange = exchange;
        all[i].joins = i >= members;
        all[i].until = count;
        all[i].params = (tw_tcp_params){.meet = meet,
                                        .rank = i < members ? i : 0,
                                        .nranks = i < members ? members : 0,
                                        .secret = secret,
                                        .secret_bytes = sizeof secret,
                                        .timeout = 15};
    }
}

static void run_as(void *(*main)(void *), process *all, int count) {
    for (int i = 0; i < count; i++)
        if (pthread_create(&all[i].thread, NULL, main, &all[i]) != 0)
            abort();
    for (int i = 0; i < count; i++)
        pthread_join(all[i].thread, NULL);
}

static void run(process *all, int count) {
    run_as(process_main, all, count);
}

static void check_process(const process *p, int status, const char *text) {
    if (p->status != status)
        check_fail("a process has status %d, not %d: %s", p->status, status, p->text);
    if (text != NULL)
        check_contains(p->text, text);
}

static void test_join(void **state) {
    (void)state;
    process all[MOST];
    for (int e = 0; e < check_exchanges(); e++)
        for (int members = 1; members <= 3; members += 2) {
            check_scene("%s, one joins %d", check_exchange(e), members);
            begin(all, members, members + 1, check_exchange(e));
            run(all, members + 1);
            for (int i = 0; i <= members; i++) {
                check_process(&all[i], TW_OK, NULL);
                check_int("ranks", all[i].nranks, members + 1);
                check_int("rank", all[i].rank, i);
                check_int("steps", all[i].steps, all[0].steps);
                check_true(all[i].hash == all[0].hash);
            }
        }
}

static void test_several_join(void **state) {
    (void)state;
    process all[MOST];
    begin(all, 2, 6, "oktopk");
    run(all, 6);
    for (int i = 0; i < 6; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("ranks", all[i].nranks, 6);
        check_int("steps", all[i].steps, all[0].steps);
    }
}

/* Rank 0, which may be the one that listens, leaves; others join. */
static void test_leave_and_join(void **state) {
    (void)state;
    process all[MOST];
    begin(all, 3, 5, "oktopk");
    all[0].leaves_at = 3;
    for (int i = 0; i < 5; i++) {
        all[i].until = 4;
        all[i].after = 3; /* one may join before rank 0 has left */
    }
    all[0].until = 0;
    run(all, 5);
    for (int i = 0; i < 5; i++)
        check_process(&all[i], TW_OK, NULL);
    for (int i = 1; i < 5; i++) {
        check_int("ranks", all[i].nranks, 4);
        check_int("steps", all[i].steps, all[1].steps);
    }
}

/* A rank that was lost comes back with what it had saved. */
static void test_join_with_state(void **state) {
    (void)state;
    process all[4];
    process first = {.exchange = "oktopk"};
    tw_transport *alone;
    tw_group *group;
    float grad[N], out[N];
    char path[] = "/tmp/thinwire-join-XXXXXX";
    int fd = mkstemp(path);
    check_true(fd >= 0 && close(fd) == 0);
    check_ok(tw_transport_threads(&alone, 1));
    check_ok(open_group(&first, alone, &group));
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < N; i++)
            grad[i] = (float)((i * 7919 + step) % 211);
        check_ok(tw_allreduce(group, 0, grad, out));
    }
    check_ok(tw_group_get_residual(group, 0, saved));
    check_ok(tw_group_save(group, path));
    tw_group_free(group);
    tw_transport_free(alone);
    begin(all, 3, 4, "oktopk");
    all[3].state = path;
    run(all, 4);
    (void)unlink(path);
    for (int i = 0; i < 4; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("ranks", all[i].nranks, 4);
        check_true(all[i].hash == all[0].hash);
    }
}

/* Whether rank 1 has left while another process waited to join: while the others were idle after their
 * first step, it came to the meeting point. */
static int run_at_once(process *all, double pause) {
    begin(all, 4, 5, "oktopk");
    for (int i = 0; i < 5; i++) {
        all[i].pause = pause;
        all[i].until = 4;
    }
    all[1].leaves_at = 1;
    all[3].asks_nothing = 1;
    all[4].late = pause / 2;
    run(all, 5);
    return all[0].nchanges == 2 &&
           all[0].changes[1].members.step == all[0].changes[0].members.step + 1;
}

static void check_change(const change *c, int rank_before, int rank, int nranks_before, int nranks,
                         const int *before) {
    check_int("ranks before", c->members.nranks_before, nranks_before);
    check_int("ranks", c->members.nranks, nranks);
    check_int("its own number before", c->members.rank_before, rank_before);
    check_int("its own number", c->members.rank, rank);
    for (int r = 0; r < nranks; r++)
        check_int("number before", c->before[r], before[r]);
}

/* In the call in which a rank leaves nobody joins; in the next one those that wait do. */
static void test_at_once(void **state) {
    (void)state;
    process all[5];
    double pause = 0.3;
    while (!run_at_once(all, pause) && pause < 10.0)
        pause *= 2.0;
    for (int i = 0; i < 5; i++)
        check_process(&all[i], TW_OK, NULL);
    for (int i = 0; i <= 2; i += 2) {
        const change *left = &all[i].changes[0], *joined = &all[i].changes[1];
        int rank = i == 0 ? 0 : 1;
        check_int("changes", all[i].nchanges, 2);
        check_change(left, i, rank, 4, 3, (const int[]){0, 2, 3});
        check_int("ranks that left", left->members.nlost, 1);
        check_int("who left", left->lost[0].rank, 1);
        check_true(left->lost[0].heir >= 0);
        check_change(joined, rank, rank, 3, 4, (const int[]){0, 1, 2, -1});
        check_int("ranks that left", joined->members.nlost, 0);
        check_int("a grow later", joined->members.step, left->members.step + 1);
    }
    for (int i = 0; i < 4; i++)
        check_true(i == 1 || all[i].hash == all[4].hash);
}

/* ---- the meeting point */

/* Two ranks listen, each at an address of its own. During the pause a newcomer asks at the first one for
 * 5 s, then at the second one: that is left for the meeting, and so must the first one be. */
static void test_two_addresses(void **state) {
    (void)state;
    process all[3];
    begin(all, 2, 3, "oktopk");
    snprintf(meet, sizeof meet, "127.0.0.1:%d,127.0.0.2:%d", port, port);
    for (int i = 0; i < 3; i++)
        all[i].timeout = 8;
    all[0].pause = all[1].pause = 6.2;
    all[2].late = 0.5;
    run(all, 3);
    for (int i = 0; i < 3; i++)
        check_process(&all[i], TW_OK, NULL);
    for (int i = 0; i < 2; i++) {
        check_int("ranks", all[i].nranks, 3);
        check_int("changes, of meetings that failed too", all[i].version, 1);
    }
}

static _Atomic int strangers_end;

/* Connects and says nothing, again and again: the ranks close what is silent. */
static void *stranger_main(void *context) {
    (void)context;
    while (!strangers_end) {
        struct pollfd closed = {.fd = connect_to_port(), .events = POLLIN};
        while (closed.fd >= 0 && !strangers_end && poll(&closed, 1, 5) == 0)
            ;
        if (closed.fd >= 0)
            (void)close(closed.fd);
        nap(0.001);
    }
    return NULL;
}

/* It delays no invitation: with half of this timeout the meeting would be over. */
static void test_stranger(void **state) {
    (void)state;
    process all[3];
    pthread_t stranger;
    begin(all, 2, 3, "oktopk");
    for (int i = 0; i < 3; i++)
        all[i].timeout = 1.5;
    all[2].late = 0.2;
    all[2].params.timeout = 5;
    strangers_end = 0;
    check_true(pthread_create(&stranger, NULL, stranger_main, NULL) == 0);
    run(all, 3);
    strangers_end = 1;
    pthread_join(stranger, NULL);
    for (int i = 0; i < 3; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("ranks", all[i].nranks, 3);
    }
}

static int meet_rank(ranks *r, int rank, void *context) {
    const tw_tcp_params params = {.meet = meet, .rank = rank, .nranks = r->nranks, .timeout = 15};
    (void)context;
    return tw_transport_tcp(&r->transports[rank], &params);
}

/* *context: the rank that leaves, or has left; -1: none. */
static int leave_or_grow(ranks *r, int rank, void *context) {
    if (r->groups[rank] == NULL)
        return TW_OK;
    return rank == *(int *)context ? tw_group_leave(r->groups[rank], TW_ANY_RANK)
                                   : tw_group_grow(r->groups[rank], NULL);
}

/* The rank that listens leaves: another one takes its place in the next call. */
static void test_listener_leaves(void **state) {
    (void)state;
    ranks r;
    tw_group_params params = ranks_params("oktopk", K);
    const int64_t n = N;
    int leaver = -1, fd;
    choose_port();
    params.membership = TW_MEMBERSHIP_ELASTIC;
    ranks_init(&r, 3);
    for (int rank = 0; rank < 3; rank++)
        tw_transport_free(r.transports[rank]);
    ranks_run(&r, meet_rank, NULL);
    ranks_ok(&r);
    ranks_try_open(&r, &params, &n, 1);
    ranks_ok(&r);
    ranks_run(&r, leave_or_grow, &leaver);
    ranks_ok(&r);
    for (int rank = 0; rank < 3; rank++)
        leaver = tw__transport_listens(r.transports[rank]) ? rank : leaver;
    check_true(leaver >= 0);
    ranks_run(&r, leave_or_grow, &leaver);
    ranks_ok(&r);
    tw_group_free(r.groups[leaver]);
    tw_transport_free(r.transports[leaver]);
    r.groups[leaver] = NULL;
    r.transports[leaver] = NULL;
    check_true(connect_to_port() < 0);
    ranks_run(&r, leave_or_grow, &leaver);
    ranks_ok(&r);
    check_true((fd = connect_to_port()) >= 0);
    (void)close(fd);
    ranks_close(&r);
}

typedef struct invited {
    int status;
    double seconds;
} invited;

static void *accept_main(void *context) {
    invited *i = context;
    tw_transport *transport;
    const tw_tcp_params params = {.meet = meet, .timeout = 0.7};
    double begin = check_seconds();
    i->status = tw_transport_join(&transport, &params);
    i->seconds = check_seconds() - begin;
    return NULL;
}

/* A rank that invites to a long meeting and does not come: the newcomer waits no longer than it meant to. */
static void test_no_meeting(void **state) {
    (void)state;
    const tw_tcp_params params = {.rank = 0, .nranks = 1, .timeout = 5};
    tw_tcp_params own = params;
    tw_transport *transport;
    pthread_t newcomer;
    unsigned char id[32];
    invited i = {0};
    int asked = 0;
    choose_port();
    own.meet = meet;
    check_ok(tw_transport_tcp(&transport, &own));
    check_int("nobody yet", tw__transport_newcomers(transport, 1), 0);
    check_true(pthread_create(&newcomer, NULL, accept_main, &i) == 0);
    for (int tries = 0; tries < 600 && asked == 0; tries++) {
        asked = tw__transport_newcomers(transport, 1);
        nap(0.001);
    }
    if (asked > 0)
        asked = tw__transport_invite(transport, 1, 60.0, id) == TW_OK;
    pthread_join(newcomer, NULL);
    check_int("invited", asked, 1);
    check_int("status", i.status, TW_ERR_TIMEOUT);
    check_true(i.seconds < 3.0);
    tw_transport_free(transport);
}

/* ---- lost before newcomers are in */

/* A newcomer is lost when it has joined, and then a rank. */
static void *losing_main(void *context) {
    process *p = context;
    tw_transport *transport = NULL;
    tw_group *group = NULL;
    tw_members members = {0};
    nap(p->late);
    p->status = p->joins ? tw_transport_join(&transport, &p->params)
                         : tw_transport_tcp(&transport, &p->params);
    if (p->status == TW_OK && !(p->joins && p->dies))
        p->status = open_group(p, transport, &group);
    if (p->status == TW_OK && !p->joins)
        p->status = tw_group_grow(group, &members); /* listens */
    nap(p->pause);
    if (p->status == TW_OK && !p->joins)
        p->status = tw_group_grow(group, &members);
    if (transport != NULL)
        (void)tw_transport_info(transport, NULL, &p->rank, &p->nranks, NULL);
    snprintf(p->text, sizeof p->text, "%s", tw_last_error());
    if (p->status != TW_OK && !p->joins && !p->dies) {
        p->status = tw_group_shrink(group, &members);
        note_change(p, &members);
    }
    tw_group_free(group);
    tw_transport_free(transport);
    return NULL;
}

static int run_losing(process *all, double pause) {
    begin(all, 3, 6, "oktopk");
    for (int i = 0; i < 6; i++) {
        all[i].timeout = 5;
        all[i].pause = i < 3 ? pause : 0.0;
        all[i].late = i < 3 ? 0.0 : pause / 4;
        all[i].dies = i == 2 || i == 5;
    }
    run_as(losing_main, all, 6);
    return all[0].nranks == 6;
}

/* 2 of 3 ranks and 2 of 3 newcomers are a quorum of 6, though the newcomers do not stay. */
static void test_newcomers_vote(void **state) {
    (void)state;
    process all[6];
    double pause = 0.4;
    while (!run_losing(all, pause) && pause < 10.0)
        pause *= 2.0;
    check_int("ranks with the newcomers", all[0].nranks, 6);
    for (int i = 0; i < 2; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("ranks that go on", all[i].changes[0].members.nranks, 2);
    }
    for (int i = 3; i < 5; i++)
        check_process(&all[i], TW_ERR_TRANSPORT, NULL);
}

/* ---- step counters that a newcomer is told */

static int share_steps(ranks *r, int rank, void *context) {
    (void)context;
    return tw__group_share_steps(r->groups[rank], rank == 1);
}

/* Rank 0 tells of steps that nobody can have made: rank 1, which is new, takes none of its counters. */
static void test_impossible_steps(void **state) {
    (void)state;
    const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2};
    const int64_t sizes[] = {N, N};
    const tw_group_params params = ranks_params("oktopk", K);
    ranks r;
    ranks_open(&r, 2, &params, sizes, 2);
    tw_group *told = r.groups[1];
    int64_t *const counters[] = {&r.groups[0]->elastic.step, &r.groups[0]->tensors[0].steps,
                                 &r.groups[0]->tensors[1].steps};
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 4; i++) {
            check_scene("counter %d is %lld", c, (long long)bad[i]);
            for (int good = 0; good < 3; good++)
                *counters[good] = 5 + good;
            *counters[c] = bad[i];
            ranks_run(&r, share_steps, NULL);
            ranks_error(&r, TW_ERR_PROTOCOL);
            ranks_say(&r, "rank 0 tells of a step that cannot be");
            check_int("step", told->elastic.step, 0);
            check_int("steps of tensor 0", told->tensors[0].steps, 0);
            check_int("steps of tensor 1", told->tensors[1].steps, 0);
        }
    *counters[2] = 7;
    ranks_run(&r, share_steps, NULL);
    ranks_ok(&r);
    check_int("step", told->elastic.step, 5);
    check_int("steps of tensor 0", told->tensors[0].steps, 6);
    check_int("steps of tensor 1", told->tensors[1].steps, 7);
    ranks_close(&r);
}

/* ---- refused: the job goes on */

static void check_refused(process *all, int status, const char *text) {
    all[0].until = all[1].until = 0;
    all[0].only = all[1].only = 1;
    run(all, 3);
    check_process(&all[2], status, text);
    for (int i = 0; i < 2; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("ranks that stay", all[i].nranks, 2);
    }
}

static void test_other_parameters(void **state) {
    (void)state;
    process all[3];
    begin(all, 2, 3, "oktopk");
    all[2].differs = 1;
    check_refused(all, TW_ERR_MISMATCH, "rank 2 has other parameters than rank 0");
}

static void test_other_group(void **state) {
    (void)state;
    process all[3];
    begin(all, 2, 3, "oktopk");
    all[2].k = K + 1;
    check_refused(all, TW_ERR_MISMATCH, "k: rank 2 has 65, rank 0 has 64");
    for (int i = 0; i < 2; i++)
        check_int("told of no change", all[i].untouched, 1);
}

/* They are more than the ranks that they ask: those go on all the same. */
static void test_many_other_groups(void **state) {
    (void)state;
    process all[4];
    begin(all, 1, 4, "oktopk");
    for (int i = 1; i < 4; i++)
        all[i].k = K + 1;
    all[0].until = 0; /* makes all its steps */
    run(all, 4);
    for (int i = 1; i < 4; i++)
        check_process(&all[i], TW_ERR_MISMATCH, "k: rank 1 has 65, rank 0 has 64");
    check_process(&all[0], TW_OK, NULL);
    check_int("refused", all[0].refused, 3);
    check_int("ranks that stay", all[0].nranks, 1);
}

static void test_other_secret(void **state) {
    (void)state;
    process all[3];
    begin(all, 2, 3, "oktopk");
    all[2].params.secret = "another one of 21 byt";
    all[0].until = all[1].until = 0; /* they make all their steps */
    run(all, 3);
    check_process(&all[2], TW_ERR_MISMATCH, "has another secret");
    for (int i = 0; i < 2; i++) {
        check_process(&all[i], TW_OK, NULL);
        check_int("steps", all[i].steps, STEPS);
    }
}

/* It is not let in, nor does it disturb. */
static void test_other_job(void **state) {
    (void)state;
    process all[3];
    begin(all, 2, 3, "oktopk");
    all[2].params.job = "another";
    all[2].params.timeout = 0.5;
    all[0].until = all[1].until = 0;
    run(all, 3);
    check_process(&all[2], TW_ERR_TIMEOUT, "nobody admits this process");
    check_process(&all[0], TW_OK, NULL);
    check_int("steps", all[0].steps, STEPS);
}

static void test_wrong_calls(void **state) {
    (void)state;
    tw_transport *transport;
    tw_tcp_params params = {.meet = "127.0.0.1:1", .rank = 1, .nranks = 2, .timeout = 0.2};
    check_error(tw_transport_join(NULL, &params), TW_ERR_NULL);
    check_error(tw_transport_join(&transport, NULL), TW_ERR_NULL);
    check_error(tw_transport_join(&transport, &params), TW_ERR_PARAM);
    params.rank = params.nranks = 0;
    check_error(tw_transport_join(&transport, &params), TW_ERR_TIMEOUT);
    check_contains(tw_last_error(), "127.0.0.1:1");
    check_error(tw_group_verify(NULL, "x", 1, NULL), TW_ERR_NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_several_join),
        cmocka_unit_test(test_leave_and_join),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_join_with_state),
        cmocka_unit_test(test_two_addresses),
        cmocka_unit_test(test_stranger),
        cmocka_unit_test(test_listener_leaves),
        cmocka_unit_test(test_no_meeting),
        cmocka_unit_test(test_newcomers_vote),
        cmocka_unit_test(test_impossible_steps),
        cmocka_unit_test(test_other_parameters),
        cmocka_unit_test(test_other_group),
        cmocka_unit_test(test_other_secret),
        cmocka_unit_test(test_other_job),
        cmocka_unit_test(test_many_other_groups),
        cmocka_unit_test(test_wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
