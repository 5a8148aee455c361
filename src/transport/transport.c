/* transport.c - the table of transports; create, free and ask one; see transport.h */
#include "transport/transport_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT (300 * TW__SECOND)
#define MOST_SECONDS 1e9 /* 30 years: does not overflow in nanoseconds */

/* ---- the table */

static const tw__transport_row rows[] = {
    {"self", "the only rank of a job of one", NULL},
    {"threads", "ranks as threads of one process", tw_transport_threads},
    {"simulated", "threads over a simulated network", NULL},
    {"sockets", "ranks as processes with connected sockets between them", NULL},
    {"tcp", "ranks as processes that meet at host:port", NULL},
    {"mpi", "ranks of an MPI communicator (libthinwire_mpi)", NULL},
    {"nccl", "device memory by NCCL, with another transport (libthinwire_nccl)", NULL},
    {"custom", "functions of the caller", NULL},
};

const tw__transport_row *tw__transport_row_at(int position) {
    const int count = (int)(sizeof rows / sizeof *rows);
    return position >= 0 && position < count ? &rows[position] : NULL;
}

int tw_transport_kind(int position, const char **name, const char **description) {
    const tw__transport_row *row = tw__transport_row_at(position);
    if (row == NULL)
        return TW_ERR_NAME;
    tw__tell(name, row->name);
    tw__tell(description, row->description);
    return TW_OK;
}

/* ---- create and free */

static int check_reserved(void (*const *reserved)(void), size_t count) {
    for (size_t i = 0; i < count; i++)
        if (reserved[i] != NULL)
            return tw__fail(TW_ERR_PARAM, "calls.reserved: not NULL; set unused fields to NULL");
    return TW_OK;
}

static int check_calls(const tw_transport_calls *calls) {
    TW_REQUIRE(calls, "calls");
    TW_REQUIRE(calls->name, "calls.name");
    /* A function pointer is no object pointer: compare, do not convert. */
    const char *missing = calls->send == NULL     ? "send"
                          : calls->recv == NULL   ? "recv"
                          : calls->test == NULL   ? "test"
                          : calls->cancel == NULL ? "cancel"
                                                  : NULL;
    if (missing != NULL)
        return tw__fail(TW_ERR_NULL,
                        "calls: send, recv, test and cancel are required, but %s is NULL", missing);
    return check_reserved(calls->reserved, sizeof calls->reserved / sizeof calls->reserved[0]);
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
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", sizeof *t + length);
    t->calls = *calls;
    t->calls.name = memcpy(t->name, calls->name, length);
    t->context = context;
    t->rank = rank;
    t->nranks = nranks;
    t->timeout = DEFAULT_TIMEOUT;
    int status = tw__liveness_create(t);
    if (status == TW_OK)
        *transport = t;
    else
        free(t);
    return status;
}

void tw_transport_free(tw_transport *transport) {
    if (transport == NULL)
        return;
    assert(transport->alltoalls == NULL);
    tw__liveness_free(transport);
    tw__members_free(transport);
    tw__transport_forget_meet(transport);
    if (transport->calls.close != NULL)
        transport->calls.close(transport->context);
    tw__sim_clock_free(transport->clock);
    free(transport);
}

int tw_transport_info(const tw_transport *transport, const char **name, int *rank, int *nranks,
                      tw_traffic *traffic) {
    TW_REQUIRE(transport, "transport");
    tw__tell(name, transport->name);
    if (rank != NULL)
        *rank = transport->rank;
    if (nranks != NULL)
        *nranks = transport->nranks;
    if (traffic != NULL)
        *traffic = tw__transport_traffic(transport);
    return TW_OK;
}

tw_traffic tw__transport_traffic(const tw_transport *t) {
    const tw__counters *c = &t->counters;
    const _Atomic int64_t *const all[] = {&c->payload_sent, &c->payload_received, &c->control_sent,
                                          &c->control_received, &c->messages_sent};
    int64_t now[5];
    for (int i = 0; i < 5; i++)
        now[i] = atomic_load_explicit(all[i], memory_order_relaxed);
    return (tw_traffic){.payload_sent = now[0],
                        .payload_received = now[1],
                        .control_sent = now[2],
                        .control_received = now[3],
                        .messages_sent = now[4]};
}

/* ---- the transport of a group */

int tw__transport_acquire(tw_transport *t) {
    if (t->acquired)
        return tw__fail(TW_ERR_STATE, "transport: already has a group; free that group first");
    if (t->failed)
        return tw__fail(TW_ERR_STATE, "transport: has failed; create a new one");
    assert(t->alltoalls == NULL && t->device.transfer == NULL && t->overlap == NULL);
    t->acquired = 1;
    t->interrupted = 0; /* by the group before, which had no message under way */
    return TW_OK;
}

void tw__transport_release(tw_transport *t) {
    assert(t->acquired);
    t->acquired = 0;
}

void tw__transport_set_timeout(tw_transport *t, double seconds) {
    t->timeout = seconds > 0.0 ? (int64_t)((seconds < MOST_SECONDS ? seconds : MOST_SECONDS) * 1e9)
                               : DEFAULT_TIMEOUT;
}

void tw__transport_set_checksum(tw_transport *t, int on) {
    if (t->calls.checksum != NULL)
        t->calls.checksum(t->context, on);
}

void tw__transport_interrupt(tw_transport *t) {
    t->interrupted = 1;
}

int tw__transport_is_new(const tw_transport *t) {
    return t->joined;
}

void tw__transport_set_known(tw_transport *t) {
    t->joined = 0;
}

uint32_t tw__transport_version(const tw_transport *t) {
    return t->version;
}

int tw__transport_has_failed(const tw_transport *t) {
    return t->failed;
}

/* ---- hosts */

/* The lowest rank on the host of this one. */
static int first_on_host(const tw_transport *t, int rank) {
    int first = t->calls.host != NULL ? t->calls.host(t->context, rank) : rank;
    return first >= 0 && first < rank ? first : rank;
}

/* host[rank] gets its host's number, counts[host] the host's ranks. Returns the number of hosts. */
static int count_hosts(const tw_transport *t, int *host, int *counts) {
    int hosts = 0;
    for (int r = 0; r < t->nranks; r++) {
        int first = first_on_host(t, r);
        host[r] = first == r ? hosts++ : host[first];
        counts[host[r]] = first == r ? 1 : counts[host[r]] + 1;
    }
    return hosts;
}

int tw__transport_hosts(const tw_transport *t, int *order, int *scratch) {
    int *host = scratch, *counts = scratch + t->nranks;
    int hosts = count_hosts(t, host, counts), ranks = hosts > 1 ? counts[0] : 1;
    for (int i = 1; i < hosts; i++)
        ranks = counts[i] == ranks ? ranks : 1;
    for (int i = 0; i < hosts; i++)
        counts[i] = 0;
    for (int r = 0; r < t->nranks; r++)
        order[ranks > 1 ? counts[host[r]]++ * hosts + host[r] : r] = r;
    return ranks;
}

int tw__transport_is_shared(const tw_transport *t) {
    return t->shared && t->clock == NULL;
}

/* ---- device memory */

void tw__transport_set_device_calls(tw_transport *t, const tw__device_calls *calls) {
    assert(calls == NULL || (calls->transfer != NULL && calls->transfers != NULL));
    t->device = calls != NULL ? *calls : (tw__device_calls){0};
}

int tw__transport_transfer(tw_transport *t, tw__transfer *transfers, int count) {
    assert(t->device.transfer != NULL && count >= 0 && count < t->nranks);
    return t->device.transfer(t->device.context, transfers, count);
}

void tw__transport_count(tw_transport *t, const tw__transfer *transfers, int count) {
    for (int i = 0; i < count; i++) {
        const tw__buffer *out = &transfers[i].out, *in = &transfers[i].in;
        tw__counter_add(&t->counters.payload_sent, out->data != NULL ? (int64_t)out->bytes : 0);
        tw__counter_add(&t->counters.messages_sent, out->data != NULL);
        tw__counter_add(&t->counters.payload_received, in->data != NULL ? (int64_t)in->bytes : 0);
    }
}

int tw_transport_set_device(tw_transport *transport, const tw_device_calls *calls, void *context) {
    TW_REQUIRE(transport, "transport");
    if (transport->acquired)
        return tw__fail(TW_ERR_STATE, "transport: already has a group; call this before");
    if (calls != NULL && calls->exchange == NULL)
        return tw__fail(TW_ERR_NULL, "calls: exchange is NULL");
    if (calls != NULL)
        TW_TRY(check_reserved(calls->reserved, sizeof calls->reserved / sizeof calls->reserved[0]));
    transport->lent = calls != NULL ? (tw__lent){*calls, context} : (tw__lent){0};
    return TW_OK;
}

const tw__lent *tw__transport_lent(const tw_transport *t) {
    return t->lent.calls.exchange != NULL ? &t->lent : NULL;
}
