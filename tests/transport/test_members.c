/* test_members.c - a rank agrees with others that the test plays, message by message
 *
 * What they send is what ranks may send, in orders that are hard to get by chance. With the argument
 * "sockets" ranks are joined by sockets instead of queues. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "transport/paxos.h"
#include "transport_ranks.h"

enum { ROUND = 1 << 16, BYTES = 1024 };

static _Atomic int phase; /* set by the rank that is real */

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void await_phase(int wanted) {
    while (phase < wanted)
        nap(0.001);
}

/* ---- ranks that the test plays */

typedef union state {
    tw__member_state head;
    char bytes[BYTES];
} state;

static state state_of(int nranks, int64_t step) {
    state s = {.bytes = {0}};
    s.head.nranks = (uint64_t)nranks;
    s.head.step = step;
    return s;
}

static void set_ranks(state *s, int which, uint64_t ranks) {
    *tw__member_set(&s->head, which) = ranks;
}

static void decide(state *s, uint64_t ranks, uint64_t joining) {
    s->head.decided_version = s->head.version + 1;
    s->head.decided_nranks = s->head.nranks;
    s->head.decided_step = s->head.step;
    s->head.decided_joining = joining;
    set_ranks(s, TW__DECIDED, ranks);
}

/* Whether the request ends well within 10 s. */
static int ends_well(const test_rank *r, void *request, size_t *bytes) {
    int done = 0;
    for (int64_t end = tw__clock() + 10 * TW__SECOND; done == 0 && tw__clock() < end;) {
        done = r->transport->calls.test(r->transport->context, request, bytes);
        tw__transport_idle(r->transport, TW__SECOND / 1000);
    }
    return done > 0;
}

static int send_bytes(const test_rank *r, int to, int tag, const void *data, size_t bytes) {
    void *request = NULL;
    return r->transport->calls.send(r->transport->context, to, tag, data, bytes, &request) ==
               TW_OK &&
           ends_well(r, request, &bytes);
}

static int send_state(const test_rank *r, int to, const state *s) {
    return send_bytes(r, to, TW__TAG_MEMBERS, s, tw__member_state_bytes(&s->head));
}

static int receive_state(const test_rank *r, int from, state *s) {
    void *request = NULL;
    size_t bytes = 0;
    return r->transport->calls.recv(r->transport->context, from, TW__TAG_MEMBERS, s, sizeof *s,
                                    &request) == TW_OK &&
           ends_well(r, request, &bytes) && tw__member_state_is_whole(&s->head, bytes, sizeof *s);
}

static int agree(test_rank *r, tw__membership *m) {
    const tw__intent intent = {.step = 5};
    int status = tw__transport_agree_members(r->transport, &intent, m);
    snprintf(r->text, sizeof r->text, "%s", tw_last_error());
    free(m->ranks);
    return status;
}

/* ---- what was accepted is kept when the call fails and is made again */

/* Rank 2 accepts a value of rank 0, which then falls silent. */
static void accept_twice(test_rank *r) {
    tw__membership m;
    rank_check(r, agree(r, &m) == TW_ERR_QUORUM);
    phase = 1;
    rank_check(r, agree(r, &m) == TW_OK);
    rank_check(r, m.nranks == 2 && m.step == 5 && r->transport->version == 1);
    phase = 2;
}

/* Rank 0: a ballot whose value rank 2 accepts, and in the second call another, which must learn of it. */
static void propose_twice(test_rank *r) {
    state own = state_of(3, 5), got = state_of(3, 0);
    own.head.ballot = own.head.promised = ROUND;
    own.head.accepting = 1;
    own.head.proposed_step = 5;
    set_ranks(&own, TW__PROPOSED, 5);
    rank_check(r, send_state(r, 2, &own));
    while (got.head.accepted != ROUND)
        rank_check(r, receive_state(r, 2, &got));
    await_phase(1);
    own.head.ballot = own.head.promised = 2 * ROUND;
    own.head.accepting = 0;
    rank_check(r, send_state(r, 2, &own));
    while (got.head.promised != 2 * ROUND)
        rank_check(r, receive_state(r, 2, &got));
    rank_check(r, got.head.accepted == ROUND && got.head.accepted_step == 5);
    rank_check(r, *tw__member_set(&got.head, TW__ACCEPTED) == 5);
    decide(&own, 5, 0);
    rank_check(r, send_state(r, 2, &own));
    await_phase(2);
}

static void run_accepted(test_rank *r) {
    tw__transport_set_timeout(r->transport, 0.2);
    if (r->rank == 0)
        propose_twice(r);
    if (r->rank == 2)
        accept_twice(r);
    phase = r->failure[0] != '\0' ? 9 : phase; /* nobody waits in vain */
}

static void test_accepted(void **unused) {
    (void)unused;
    phase = 0;
    run_ranks(3, 0, run_accepted, NULL);
}

/* ---- a peer that is ahead aborts: its notice waits until this rank has changed too */

static void abort_ahead(test_rank *r) {
    state got = state_of(2, 0), own = state_of(2, 5);
    tw__notice notice = {
        .kind = 3, .status = TW_ERR_DAMAGED, .version = 1, .text = "a broken disk"};
    rank_check(r, receive_state(r, 1, &got));
    r->transport->member_calls->begin(r->transport->context);
    void *request = NULL;
    rank_ok(r, r->transport->calls.send(r->transport->context, 1, TW__TAG_LIVENESS, &notice,
                                        sizeof notice, &request));
    decide(&own, 3, 0);
    rank_check(r, send_state(r, 1, &own));
    size_t bytes = 0;
    rank_check(r, ends_well(r, request, &bytes));
    await_phase(1);
}

static void run_ahead(test_rank *r) {
    tw__membership m;
    if (r->rank == 0) {
        abort_ahead(r);
        return;
    }
    rank_ok(r, tw__liveness_check(r->transport)); /* it receives notices from now on */
    rank_check(r, agree(r, &m) == TW_OK && m.nranks == 2);
    int status = TW_OK;
    for (int i = 0; i < 200 && status == TW_OK; i++, nap(0.001))
        status = tw__liveness_check(r->transport);
    phase = 1;
    rank_check(r, status == TW_ERR_DAMAGED);
}

static void test_ahead(void **unused) {
    (void)unused;
    phase = 0;
    run_ranks(2, 0, run_ahead, NULL);
}

/* ---- a rank that was stopped does not take its own silence for that of others */

static void (*idle)(void *context, int64_t microseconds);

static void idle_or_stop(void *context, int64_t microseconds) {
    static int calls;
    idle(context, microseconds);
    if (phase == 1 && ++calls == 3) { /* what was sent by then has been read */
        nap(1.5);
        phase = 2;
    }
}

static void run_stopped(test_rank *r) {
    tw__membership m;
    state own = state_of(2, 5);
    tw__transport_set_timeout(r->transport, 0.2);
    if (r->rank == 1) {
        idle = r->transport->calls.idle;
        r->transport->calls.idle = idle_or_stop;
        int status = agree(r, &m);
        phase = 3;
        rank_check(r, status == TW_OK && m.nranks == 2);
        return;
    }
    rank_check(r, send_state(r, 1, &own));
    phase = 1;
    await_phase(2);
    nap(0.3); /* it must not have given up meanwhile */
    decide(&own, 3, 0);
    rank_check(r, send_state(r, 1, &own));
    await_phase(3);
}

static void test_stopped(void **unused) {
    (void)unused;
    phase = 0;
    run_ranks(2, 0, run_stopped, NULL);
}

/* ---- ranks that come as late as their own wait for a lost one lets them */

/* Rank 2 was lost when it had sent the message of a round to 3 and 4, which are here, but not to 0 and 1. */
static void run_late(test_rank *r) {
    tw__membership m;
    tw__transport_set_timeout(r->transport, 0.4);
    if (r->rank == 2)
        return;
    if (r->rank < 2) {
        nap(0.6);
        tw__transport_suspect(r->transport, 2);
    }
    rank_check(r, agree(r, &m) == TW_OK && m.nranks == 4);
}

static void test_late(void **unused) {
    (void)unused;
    run_ranks(5, 0, run_late, NULL);
}

/* ---- decisions that this rank cannot follow */

static void decide_joining(test_rank *r) {
    state got = state_of(2, 0), own = state_of(2, 5);
    rank_check(r, receive_state(r, 1, &got));
    decide(&own, 3, r->seed);
    rank_check(r, send_state(r, 1, &own));
    await_phase(1);
}

static void run_joining(test_rank *r) {
    tw__membership m;
    if (r->rank == 0) {
        decide_joining(r);
        return;
    }
    int status = agree(r, &m);
    phase = 1;
    rank_check(r, status == TW_ERR_EXCLUDED && r->transport->version == 0);
}

/* It has met no newcomers, since its first call has failed, or nobody could have. */
static void test_joining(void **unused) {
    (void)unused;
    const uint64_t counts[] = {1, TW__MOST_NEW + 1, UINT64_C(1) << 32 | 1, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        phase = 0;
        run_ranks(2, counts[i], run_joining, NULL);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted), cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_stopped),  cmocka_unit_test(test_late),
        cmocka_unit_test(test_joining),
    };
    ranks_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
