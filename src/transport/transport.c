/* transport.c - messages of one rank, counted and with deadlines; see transport.h
 *
 * A thin layer over the table of calls that a transport is. Its loop is always the same: test what
 * is under way, and when nothing has happened, pause. The pause idles, looks at the roll call now
 * and then, and ends in it when the deadline has passed. */
#include "base/clock.h"
#include "transport/simulated_clock.h"
#include "transport/liveness.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT (300 * TW__SECOND)
/* A wait that lasts so long is one for a slow network, in which chores are done. */
#define LONG_WAIT (TW__SECOND / 1000)
/* 30 years are for ever, and do not overflow. */
#define MOST_SECONDS 1e9

struct tw_transport {
    tw_transport_calls calls;
    void *context;
    int rank;
    int nranks;
    int acquired;    /* a group has it */
    int failed;      /* messages were given up: what arrives now may answer nothing that is asked */
    int64_t timeout; /* ns */
    _Atomic int abandoned;
    tw_traffic traffic;
    tw__sim_clock *clock;     /* NULL unless the network is simulated */
    int shared;               /* ranks see each other's memory */
    tw__device_calls carrier; /* of entries on a GPU; carry is NULL without */
    tw__overlap *chore;       /* NULL if there is none */
    void *chore_context;
    tw__alltoall *rotations; /* under way */
    tw_device_exchange *device;
    void *device_context;
    tw__liveness roll;
    char name[]; /* calls.name */
};

/* ---- errors of the calls */

static _Thread_local char explanation[256];

int tw_transport_explain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(explanation, sizeof explanation, format, args);
    va_end(args);
    return tw__fail(TW_ERR_TRANSPORT, "%s", explanation);
}

void tw__transport_forget_failure(void) {
    explanation[0] = '\0';
}

const char *tw__transport_words(int error) {
    if (explanation[0] == '\0')
        snprintf(explanation, sizeof explanation, "error %d, not explained", error);
    return explanation;
}

int tw__transport_failed(const tw_transport_calls *calls, const char *what, int peer, int error) {
    return tw__fail(TW_ERR_TRANSPORT, "%s transport: cannot %s rank %d: %s", calls->name, what,
                    peer, tw__transport_words(error));
}

/* ---- create and free */

static int check_calls(const tw_transport_calls *calls) {
    TW_REQUIRE(calls, "calls");
    TW_REQUIRE(calls->name, "calls.name");
    /* A function pointer is no object pointer: compare, do not convert. */
    if (calls->send == NULL || calls->recv == NULL || calls->test == NULL || calls->cancel == NULL)
        return tw__fail(TW_ERR_NULL,
                        "calls: send, recv, test and cancel are required, but %s is "
                        "NULL",
                        calls->send == NULL   ? "send"
                        : calls->recv == NULL ? "recv"
                        : calls->test == NULL ? "test"
                                              : "cancel");
    return TW_OK;
}

int tw__transport_check_ranks(int rank, int nranks) {
    if (nranks < 1 || nranks > TW__MAX_RANKS)
        return tw__fail(TW_ERR_PARAM, "nranks: %d; accepted are 1 .. %d", nranks, TW__MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return tw__fail(TW_ERR_PARAM, "rank: %d; accepted are 0 .. nranks-1 = %d", rank,
                        nranks - 1);
    return TW_OK;
}

int tw_transport_custom(tw_transport **transport, const tw_transport_calls *calls, void *context,
                        int rank, int nranks) {
    TW_REQUIRE(transport, "transport");
    *transport = NULL;
    TW_TRY(check_calls(calls));
    TW_TRY(tw__transport_check_ranks(rank, nranks));
    size_t length = strlen(calls->name) + 1;
    tw_transport *t = calloc(1, sizeof *t + length);
    if (t == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *t + length);
    t->calls = *calls;
    t->calls.name = memcpy(t->name, calls->name, length);
    t->context = context;
    t->rank = rank;
    t->nranks = nranks;
    t->timeout = DEFAULT_TIMEOUT;
    int status = tw__liveness_create(&t->roll, &t->calls, context, rank, nranks);
    if (status == TW_OK)
        *transport = t;
    else
        free(t);
    return status;
}

void tw_transport_free(tw_transport *transport) {
    if (transport == NULL)
        return;
    tw__liveness_free(&transport->roll);
    if (transport->calls.close != NULL)
        transport->calls.close(transport->context);
    tw__sim_clock_free(transport->clock);
    free(transport);
}

int tw_transport_info(const tw_transport *transport, const char **name, int *rank, int *nranks,
                      tw_traffic *traffic) {
    TW_REQUIRE(transport, "transport");
    if (name != NULL)
        *name = transport->name;
    if (rank != NULL)
        *rank = transport->rank;
    if (nranks != NULL)
        *nranks = transport->nranks;
    if (traffic != NULL)
        *traffic = transport->traffic;
    return TW_OK;
}

void tw__transport_set_timeout(tw_transport *t, double seconds) {
    if (!(seconds > 0.0))
        t->timeout = DEFAULT_TIMEOUT;
    else
        t->timeout = (int64_t)((seconds < MOST_SECONDS ? seconds : MOST_SECONDS) * 1e9);
}

void tw__transport_abandon(tw_transport *t) {
    t->abandoned = 1;
}

int tw__transport_acquire(tw_transport *t) {
    if (t->acquired)
        return tw__fail(TW_ERR_STATE, "transport: has a group already; free that one first");
    if (t->failed)
        return tw__fail(TW_ERR_STATE, "transport: failed before; make a new one");
    t->acquired = 1;
    t->abandoned = 0; /* the group before, when nothing of it was on its way */
    return TW_OK;
}

void tw__transport_release(tw_transport *t) {
    t->acquired = 0;
}

int tw__transport_rank(const tw_transport *t) {
    return t->rank;
}

int tw__transport_nranks(const tw_transport *t) {
    return t->nranks;
}

tw_traffic tw__transport_traffic(const tw_transport *t) {
    return t->traffic;
}

/* ---- hosts */

static int lowest_there(const tw_transport *t, int rank) {
    int lowest = t->calls.host != NULL ? t->calls.host(t->context, rank) : rank;
    return lowest >= 0 && lowest < rank ? lowest : rank;
}

/* number[rank] of its host, filled[] by how many ranks. Returns how many hosts there are. */
static int count_hosts(const tw_transport *t, int *number, int *filled) {
    int hosts = 0;
    for (int r = 0; r < t->nranks; r++) {
        int lowest = lowest_there(t, r);
        number[r] = lowest == r ? hosts++ : number[lowest];
        filled[number[r]] = lowest == r ? 1 : filled[number[r]] + 1;
    }
    return hosts;
}

int tw__transport_hosts(const tw_transport *t, int *order, int *scratch) {
    int *number = scratch, *filled = scratch + t->nranks;
    int hosts = count_hosts(t, number, filled), ranks = hosts > 1 ? filled[0] : 1;
    for (int i = 1; i < hosts; i++)
        ranks = filled[i] == ranks ? ranks : 1;
    for (int i = 0; i < hosts; i++)
        filled[i] = 0;
    for (int r = 0; r < t->nranks; r++)
        order[ranks > 1 ? filled[number[r]]++ * hosts + number[r] : r] = r;
    return ranks;
}

/* ---- simulated time */

void tw__transport_set_clock(tw_transport *t, tw__sim_clock *clock) {
    t->clock = clock;
}

/* Whatever may come after computing begins and ends with these. */
static void enter(const tw_transport *t) {
    if (t->clock != NULL)
        tw__sim_clock_enter(t->clock);
}

static int leave(const tw_transport *t, int status) {
    if (t->clock != NULL)
        tw__sim_clock_leave(t->clock);
    return status;
}

double tw__transport_spent(const tw_transport *t) {
    return t->clock != NULL ? tw__sim_clock_spent(t->clock) : 0.0;
}

void tw__transport_spend(const tw_transport *t, double seconds) {
    if (t->clock != NULL)
        tw__sim_clock_elapse(t->clock, seconds);
}

void tw__transport_settle(tw_transport *t, tw__message *messages, int count) {
    enter(t);
    if (t->clock != NULL)
        tw__sim_clock_settle(t->clock, messages, count);
    (void)leave(t, TW_OK);
}

double tw_transport_clock(const tw_transport *transport) {
    return transport != NULL && transport->clock != NULL ? tw__transport_seconds(transport) : 0.0;
}

int tw__transport_is_simulated(const tw_transport *t) {
    return t->clock != NULL;
}

double tw__transport_computing(const tw_transport *t) {
    return t->clock != NULL ? tw__sim_clock_computing(t->clock) : 1.0;
}

double tw__transport_seconds(const tw_transport *t) {
    enter(t);
    (void)leave(t, TW_OK);
    return t->clock != NULL ? tw__sim_clock_now(t->clock) : tw__seconds();
}

int tw_transport_elapse(tw_transport *transport, double seconds) {
    TW_REQUIRE(transport, "transport");
    if (transport->clock == NULL)
        return tw__fail(TW_ERR_STATE, "transport: its network is not simulated");
    if (!(seconds >= 0.0 && seconds <= MOST_SECONDS))
        return tw__fail(TW_ERR_PARAM, "seconds: %g; accepted is 0 .. %g", seconds, MOST_SECONDS);
    tw__sim_clock_elapse(transport->clock, seconds);
    return leave(transport, TW_OK);
}

/* ---- entries in the memory of GPUs */

void tw__transport_set_shared(tw_transport *t) {
    t->shared = 1;
}

int tw__transport_is_shared(const tw_transport *t) {
    return t->shared;
}

void tw__transport_set_device_calls(tw_transport *t, const tw__device_calls *carrier) {
    t->carrier = carrier != NULL ? *carrier : (tw__device_calls){0};
}

tw__transfer *tw__transport_transfers(const tw_transport *t) {
    return t->carrier.shipments;
}

tw__alltoall **tw__transport_alltoalls(tw_transport *t) {
    return &t->rotations;
}

int tw__transport_transfer(tw_transport *t, tw__transfer *shipments, int many) {
    return t->carrier.carry(t->carrier.context, shipments, many);
}

void tw__transport_count(tw_transport *t, const tw__transfer *shipments, int many) {
    for (int i = 0; i < many; i++) {
        if (shipments[i].out.data != NULL) {
            t->traffic.payload_sent += (int64_t)shipments[i].out.bytes;
            t->traffic.messages_sent++;
        }
        if (shipments[i].in.data != NULL)
            t->traffic.payload_received += (int64_t)shipments[i].in.bytes;
    }
}

int tw_transport_set_device(tw_transport *transport, tw_device_exchange *exchange, void *context) {
    TW_REQUIRE(transport, "transport");
    if (transport->acquired)
        return tw__fail(TW_ERR_STATE, "transport: has a group already; set this before");
    transport->device = exchange;
    transport->device_context = context;
    return TW_OK;
}

tw_device_exchange *tw__transport_device(const tw_transport *t, void **context) {
    *context = t->device_context;
    return t->device;
}

/* A message on its own: done when this returns. */
static int carry_one(tw_transport *t, tw__message *message, tw__transfer shipment) {
    TW_TRY(tw__transport_transfer(t, &shipment, 1));
    message->bytes = message->sending ? shipment.out.bytes : shipment.in.bytes;
    return TW_OK;
}

/* ---- single messages */

/* Whether to wait any longer. */
static int keep_patience(tw_transport *t, tw__deadline *patience, const tw__message *awaited,
                         int64_t now) {
    if (patience->deadline == 0) {
        patience->deadline = now + t->timeout;
        patience->look = now + TW__LIVENESS_PERIOD;
    }
    if (t->abandoned)
        return tw__fail(TW_ERR_STATE, "the group was freed while tensors were under way");
    if (now >= patience->look) {
        TW_TRY(tw__liveness_look(&t->roll));
        patience->look = now + TW__LIVENESS_PERIOD;
    }
    return now < patience->deadline ? TW_OK : tw__liveness_ask(&t->roll, t->timeout, awaited);
}

/* A receiver that looks does not ring: the sender yields to it instead of falling asleep. */
static int clock_send(tw_transport *t, tw__message *message) {
    tw__deadline patience = {0};
    while (!tw__sim_clock_has_room(t->clock, message->peer)) {
        TW_TRY(keep_patience(t, &patience, message, tw__clock()));
        sched_yield();
    }
    tw__sim_clock_send(t->clock, message);
    return TW_OK;
}

static int start_send(tw_transport *t, int peer, tw__message_kind cargo, const void *data,
                      size_t bytes, tw__message *message) {
    *message = (tw__message){.peer = peer, .sending = 1, .cargo = cargo, .bytes = bytes};
    if (cargo == TW__DEVICE)
        return carry_one(
            t, message,
            (tw__transfer){.peer = peer, .out = {.data = (void *)data, .bytes = bytes}});
    if (t->clock != NULL)
        TW_TRY(clock_send(t, message));
    tw__transport_forget_failure();
    int error = t->calls.send(t->context, peer, TW__TAG_DATA, data, bytes, &message->request);
    if (error >= 0)
        return TW_OK;
    message->request = NULL;
    return tw__transport_failed(&t->calls, "send to", peer, error);
}

int tw__transport_send(tw_transport *t, int peer, tw__message_kind cargo, const void *data,
                       size_t bytes, tw__message *message) {
    enter(t);
    return leave(t, start_send(t, peer, cargo, data, bytes, message));
}

static int start_recv(tw_transport *t, int peer, tw__message_kind cargo, void *data,
                      size_t capacity, tw__message *message) {
    *message = (tw__message){.peer = peer, .cargo = cargo};
    if (cargo == TW__DEVICE)
        return carry_one(t, message,
                         (tw__transfer){.peer = peer, .in = {.data = data, .capacity = capacity}});
    if (t->clock != NULL)
        tw__sim_clock_expect(t->clock, message);
    tw__transport_forget_failure();
    int error = t->calls.recv(t->context, peer, TW__TAG_DATA, data, capacity, &message->request);
    if (error >= 0)
        return TW_OK;
    message->request = NULL;
    return tw__transport_failed(&t->calls, "receive from", peer, error);
}

int tw__transport_recv(tw_transport *t, int peer, tw__message_kind cargo, void *data,
                       size_t capacity, tw__message *message) {
    enter(t);
    return leave(t, start_recv(t, peer, cargo, data, capacity, message));
}

static void count(tw_traffic *traffic, const tw__message *message) {
    int64_t bytes = (int64_t)message->bytes;
    if (message->sending)
        *(message->cargo == TW__PAYLOAD ? &traffic->payload_sent : &traffic->control_sent) += bytes;
    else
        *(message->cargo == TW__PAYLOAD ? &traffic->payload_received
                                        : &traffic->control_received) += bytes;
    traffic->messages_sent += message->sending;
}

static int look_at(tw_transport *t, tw__message *message, int *done) {
    size_t bytes = message->bytes;
    *done = 1;
    if (message->request == NULL)
        return TW_OK;
    tw__transport_forget_failure();
    int result = t->calls.test(t->context, message->request, &bytes);
    *done = result != 0;
    if (result == 0)
        return TW_OK;
    message->request = NULL;
    if (result < 0)
        return tw__transport_failed(&t->calls, message->sending ? "send to" : "receive from",
                                    message->peer, result);
    if (!message->sending)
        message->bytes = bytes;
    if (!message->sending && t->clock != NULL)
        tw__sim_clock_receive(t->clock, message);
    count(&t->traffic, message);
    return TW_OK;
}

int tw__transport_test(tw_transport *t, tw__message *message, int *done) {
    enter(t);
    return leave(t, look_at(t, message, done));
}

void tw__transport_cancel(tw_transport *t, tw__message *messages, int many) {
    for (int i = 0; i < many; i++) {
        if (messages[i].request == NULL)
            continue;
        t->calls.cancel(t->context, messages[i].request);
        messages[i].request = NULL;
        t->failed = 1;
    }
}

/* ---- waiting */

/* A rank that gave up has said why before it closed its end: its reason goes before what became of
 * its messages. */
static int reason_of(tw_transport *t, int status) {
    char words[512];
    if (status != TW_ERR_TRANSPORT)
        return status;
    snprintf(words, sizeof words, "%s", tw_last_error());
    int told = tw__liveness_look(&t->roll);
    return told != TW_OK ? told : tw__fail(status, "%s", words);
}

int tw__transport_give_up(tw_transport *t, int status) {
    t->failed = 1;
    status = reason_of(t, status);
    tw__liveness_abort(&t->roll, status);
    return status;
}

int tw__transport_has_failed(const tw_transport *t) {
    return t->failed;
}

void tw__transport_set_overlap(tw_transport *t, tw__overlap *chore, void *context) {
    t->chore = chore;
    t->chore_context = context;
}

static int wait_a_moment(tw_transport *t, tw__deadline *patience, const tw__message *awaited) {
    int64_t now = tw__clock();
    TW_TRY(keep_patience(t, patience, awaited, now));
    int64_t waited = now - (patience->deadline - t->timeout);
    if (t->chore != NULL && awaited->cargo != TW__CONTROL && waited >= LONG_WAIT) {
        t->chore = t->chore(t->chore_context) ? t->chore : NULL;
        return TW_OK;
    }
    int64_t until = patience->look < patience->deadline ? patience->look : patience->deadline;
    tw__liveness_idle(&t->roll, until - now);
    return TW_OK;
}

int tw__transport_pause(tw_transport *t, tw__deadline *patience, const tw__message *awaited) {
    enter(t);
    return leave(t, wait_a_moment(t, patience, awaited));
}

int tw__transport_test_all(tw_transport *t, tw__message *messages, int many,
                           const tw__message **pending) {
    int done = 0;
    for (int i = 0; i < many; i++) {
        TW_TRY(tw__transport_test(t, &messages[i], &done));
        if (!done && *pending == NULL)
            *pending = &messages[i];
    }
    return TW_OK;
}

int tw__transport_wait(tw_transport *t, tw__message *messages, int many) {
    tw__deadline patience = {0};
    for (;;) {
        const tw__message *pending = NULL;
        int status = tw__transport_test_all(t, messages, many, &pending);
        if (status == TW_OK && pending == NULL) {
            tw__transport_settle(t, messages, many);
            return TW_OK;
        }
        if (status == TW_OK)
            status = tw__transport_pause(t, &patience, pending);
        if (status != TW_OK) {
            tw__transport_cancel(t, messages, many);
            return tw__transport_give_up(t, status);
        }
    }
}
