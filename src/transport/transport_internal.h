/* transport_internal.h - the state of a transport, for the files of this folder */
#ifndef TW_TRANSPORT_TRANSPORT_INTERNAL_H
#define TW_TRANSPORT_TRANSPORT_INTERNAL_H

#include "base/clock.h"
#include "transport/transport.h"

#include <stdatomic.h>

#define TW__TAG_DATA 0
#define TW__TAG_LIVENESS 1
#define TW__TAG_MEMBERS 2 /* who is left: paxos.c */
/* How often a waiting rank looks for queries and abort notices, at least. */
#define TW__LIVENESS_PERIOD (TW__SECOND / 20)

/* ---- state */

typedef struct tw__notice {
    int32_t kind;
    int32_t status;   /* of an abort notice */
    uint32_t version; /* of the membership; notices of others are ignored */
    char text[248];   /* of an abort notice: tw_last_error(), not terminated; sent up to its end */
} tw__notice;

typedef struct tw__liveness_peer {
    void *receive, *query, *reply, *abort; /* requests, NULL when none is under way */
    tw__notice notice;                     /* the buffer of `receive` */
    int alive;                             /* it has replied or aborted since the last query */
    int reply_due;                         /* it has asked and has no reply yet */
    int missing;                           /* it did not reply: a wait has failed for it */
} tw__liveness_peer;

typedef struct tw__liveness {
    int started;              /* peers are initialised and their receives started */
    tw__liveness_peer *peers; /* [nranks], not touched before a long wait */
    tw__notice abort;         /* this rank's abort notice */
    tw__notice query, reply;  /* of this version */
    size_t abort_bytes;       /* 0: it has not aborted */
} tw__liveness;

/* tw_traffic while it is counted. The thread that moves messages writes, any thread reads. */
typedef struct tw__counters {
    _Atomic int64_t payload_sent, payload_received;
    _Atomic int64_t control_sent, control_received;
    _Atomic int64_t messages_sent;
} tw__counters;

static inline void tw__counter_add(_Atomic int64_t *counter, int64_t by) {
    int64_t before = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, before + by, memory_order_relaxed);
}

typedef struct tw__sim_clock tw__sim_clock;
typedef struct tw__members tw__members;
typedef struct tw__admission tw__admission;

/* How a transport changes its ranks. */
typedef struct tw__member_calls {
    /* The agreement on a change begins: messages that were sent before are dropped, now and later. */
    void (*begin)(void *context);
    /* Keep ranks[nranks], ascending, renumber them 0, 1, ..., and close the connections to others. */
    void (*keep)(void *context, const int *ranks, int nranks);
    /* A context with these connections in place of an older one. NULL: others cannot join. */
    int (*renew)(void **context, const int *sockets, int rank, int nranks);
    /* Whether no connection is closed. NULL as renew. */
    int (*is_whole)(void *context);
} tw__member_calls;

struct tw_transport {
    tw_transport_calls calls;
    void *context;
    _Atomic int rank, nranks; /* changed by the group's thread, read by any: tw_transport_info */
    int acquired;             /* a group has it */
    int failed;               /* aborted, or messages were cancelled: later ones may not match */
    int shared;               /* ranks can read each other's memory */
    int64_t timeout;          /* ns */
    _Atomic int interrupted;  /* set by any thread */
    tw__counters counters;
    tw__sim_clock *clock; /* NULL: the network is real */
    tw__overlap *overlap; /* NULL: no work */
    void *overlap_context;
    tw__alltoall *alltoalls; /* under way */
    tw__device_calls device; /* of the backend; .transfer is NULL without */
    tw__lent lent;           /* by tw_transport_set_device; .calls.exchange is NULL without */
    tw__liveness liveness;
    const tw__member_calls *member_calls; /* NULL: its ranks cannot change */
    tw__members *members;                 /* NULL: they have not changed yet */
    uint32_t version;                     /* of the membership: changes so far */
    tw_tcp_params *meet;          /* where ranks have met and others may join; NULL: nowhere */
    tw__admission *admission;     /* this rank listens there; NULL: it does not */
    void *new_context;            /* `context` if ranks join that have been met; NULL: none have */
    tw__liveness_peer *new_peers; /* [new_count] of liveness, likewise */
    int new_count;
    int joined;  /* this rank has joined a job that ran, and knows nothing of its group yet */
    char name[]; /* calls.name */
};

/* ---- liveness.c */

/* Errors: TW_ERR_MEMORY. */
int tw__liveness_create(tw_transport *t);
void tw__liveness_free(tw_transport *t);
/* Reply to queries. Errors: TW_ERR_PROTOCOL; that of a rank that has aborted. */
int tw__liveness_check(tw_transport *t);
/* Ask all ranks whether they are alive. tw__liveness_check receives the replies. */
void tw__liveness_ask(tw_transport *t);
/* The wait for `awaited` has reached its deadline. Fails with TW_ERR_TIMEOUT and the ranks that have
 * not replied. */
int tw__liveness_fail(tw_transport *t, const tw__message *awaited);
/* Send all ranks an abort notice with this status and tw_last_error(). Only the first call does. */
void tw__liveness_abort(tw_transport *t, int status);

/* The ranks are about to change: receive no notices until they have. */
void tw__liveness_suspend(tw_transport *t);
/* The ranks change: cancel and forget all notices. */
void tw__liveness_stop(tw_transport *t);

/* ---- members.c */

void tw__members_free(tw_transport *t);
/* A rank that joins: until the others have decided that it does. version: of the membership that
 * ends. Errors: TW_ERR_TRANSPORT; TW_ERR_TIMEOUT; TW_ERR_MEMORY. */
int tw__transport_await_members(tw_transport *t, uint32_t version, double seconds);

/* ---- join.c, transport_tcp.c */

/* Copy what is needed to meet again. Errors: TW_ERR_MEMORY. */
int tw__transport_keep_meet(tw_transport *t, const tw_tcp_params *params);
void tw__transport_forget_meet(tw_transport *t);
/* Prepare for ranks that may join. sockets [nranks] are theirs and those of the ranks, -1 for this one;
 * the call takes them. Errors: TW_ERR_MEMORY. */
int tw__transport_take_newcomers(tw_transport *t, const int *sockets, int nranks);
/* Check parameters and fill in defaults. Errors: those of tw_transport_tcp. */
int tw__tcp_check(tw_tcp_params *params);

/* ---- messages.c, transport_threads.c */

/* Nanoseconds that the others get to reply to a query. */
int64_t tw__transport_reply_time(const tw_transport *t);
/* The transport's idle call, or a yield. */
void tw__transport_idle(const tw_transport *t, int64_t nanoseconds);
/* One transport for each rank. In a simulated network host_ranks share a host. */
int tw__transport_threads_create(tw_transport **transports, int nranks, int host_ranks);

/* ---- transport_simulated.c: NULL is the clock of a real network, for which most calls do nothing */

/* NULL is fine. */
void tw__sim_clock_free(tw__sim_clock *c);
/* Whether the network has room for another message to this peer. */
int tw__sim_clock_has_room(const tw__sim_clock *c, int peer);
/* A message starts; for a send there must be room. */
void tw__sim_clock_start(tw__sim_clock *c, tw__message *message);
/* A receive is done. NULL is fine. */
void tw__sim_clock_receive(tw__sim_clock *c, tw__message *message);
/* The rank enters the transport after a computation, and leaves it. NULL is fine. */
void tw__sim_clock_enter(tw__sim_clock *c);
void tw__sim_clock_leave(tw__sim_clock *c);
/* Seconds of computation since the rank left. enter does not count them any more; add does. NULL is
 * fine. */
double tw__sim_clock_take_computing(tw__sim_clock *c);
void tw__sim_clock_add(tw__sim_clock *c, double seconds);

#endif
