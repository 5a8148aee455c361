/* transport.h - one rank's access to the other ranks: messages, deadlines, counters, collectives
 *
 *   transport.c            the table of transports; create, free, ask
 *   messages.c             send, receive, test, wait until a deadline
 *   liveness.c             which ranks are alive when a deadline is near; abort notices
 *   members.c              the ranks change to those that go on; paxos.c: they agree on who does
 *   collectives.c          alltoall, ring, allgather, sums of counts
 *   transport_self.c       the only rank of a job of one
 *   transport_threads.c    ranks are threads of one process
 *   transport_simulated.c  the same over a simulated network, with a clock for each rank
 *   transport_sockets.c    over connected sockets; connection.c: messages over one socket
 *   transport_mpi.c        over MPI, in libthinwire_mpi
 *   frame.c                the header of every message over sockets or MPI, and its checksums
 *   transport_tcp.c        ranks that meet at host:port (meeting.h, handshake.h), then sockets
 *   join.c                 processes that join them later
 *
 * A transport is a table of calls (tw_transport_calls) with a context. The rest of the library uses
 * the functions below, which count bytes and keep deadlines. Transports move bytes and do not know
 * what they mean. All that a step needs is allocated at creation. Later allocations are rare: for
 * messages over sockets that arrive before their receive, for more requests at a time than a step
 * has, and for the rest of a message that was cancelled while it was sent.
 *
 * A new transport touches four files:
 *   src/transport/transport_NAME.c  its calls and its create function; transport_self.c is a template
 *   src/transport/transport.c       its row; tests/transport runs every row that has `create`
 *   include/thinwire.h              the declaration of its create function
 *   src/CMakeLists.txt              its build line
 * One that needs another library has a header of its own in include/, and its build line is in
 * cmake/companions.cmake. */
#ifndef TW_TRANSPORT_TRANSPORT_H
#define TW_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "thinwire.h"

#define TW__MAX_RANKS 65536
/* Sends of an alltoall that are under way at a time (Ok-Topk, section 4.1: 4 suffice). */
#define TW__WINDOW 4

typedef struct tw__transport_row {
    const char *name, *description;
    /* All ranks in this process: transports[nranks]. NULL: creation needs more than nranks. */
    int (*create)(tw_transport **transports, int nranks);
} tw__transport_row;

/* Rows by position from 0; NULL past the last. */
const tw__transport_row *tw__transport_row_at(int position);

/* ---- the transport of a group */

/* Errors: TW_ERR_PARAM. */
int tw__transport_check_ranks(int rank, int nranks);
tw_traffic tw__transport_traffic(const tw_transport *t);

/* A transport has one group at a time. Errors: TW_ERR_STATE if it has one, or has failed. */
int tw__transport_acquire(tw_transport *t);
void tw__transport_release(tw_transport *t);
/* Seconds until a wait fails, the question who is missing included. 0: the default. */
void tw__transport_set_timeout(tw_transport *t, double seconds);
/* Whether messages carry a checksum, on transports that have one. */
void tw__transport_set_checksum(tw_transport *t, int on);
/* From any thread: all waits fail with TW_ERR_STATE, now and later. */
void tw__transport_interrupt(tw_transport *t);

/* Tell the other ranks that this one cannot go on: an abort notice. They fail with the same status
 * and text instead of waiting. For errors that are found above the transport, such as
 * TW_ERR_PROTOCOL; waits that fail do it themselves. Returns status, or that of the rank that
 * aborted first. */
int tw__transport_abort(tw_transport *t, int status);
/* Whether this rank has aborted or cancelled messages. Nothing can be exchanged then. */
int tw__transport_has_failed(const tw_transport *t);

/* ---- membership: members.c */

/* What the ranks have agreed on. */
typedef struct tw__membership {
    int *ranks; /* [nranks] that stay, ascending, by their numbers before; the caller frees it */
    int nranks;
    int before, nbefore; /* this rank, and how many there were */
    int joined;          /* ranks that come behind these */
    int64_t step;        /* that all must have completed */
    int inherited;       /* the heir of this rank, which leaves, has what it hands over */
} tw__membership;

/* What a rank brings to it. */
typedef struct tw__intent {
    int64_t step; /* that it has completed, or can complete */
    int leaving;  /* it is to go; its transport stays as it is and can only be freed */
    int heir;     /* of a rank that leaves */
    int inherits; /* it has what those that leave hand over */
    int joining;  /* ranks that it is connected to, and that may join */
} tw__intent;

/* Errors: TW_ERR_TRANSPORT if the ranks of this transport cannot change. */
int tw__transport_check_elastic(const tw_transport *t);
/* Take the memory for that, which fails for nothing else afterwards. Errors: TW_ERR_MEMORY. */
int tw__transport_reserve_change(tw_transport *t);
/* Agree with the ranks that are left on who goes on, and change the transport to these. All its
 * messages must be done or cancelled.
 * Errors: TW_ERR_QUORUM; TW_ERR_EXCLUDED; TW_ERR_TIMEOUT; TW_ERR_MEMORY. Nothing has changed then. */
int tw__transport_agree_members(tw_transport *t, const tw__intent *intent, tw__membership *m);
/* Ranks that may join at a time. */
#define TW__MOST_NEW 16
/* Processes that have asked this rank to join, TW__MOST_NEW at most. If it does not listen for them,
 * and `may_listen`, it begins to. */
int tw__transport_newcomers(tw_transport *t, int may_listen);
int tw__transport_listens(const tw_transport *t);
/* Invite `count` of them to a meeting with all ranks. id[32] names it. Errors: TW_ERR_TRANSPORT. */
int tw__transport_invite(tw_transport *t, int count, double timeout, unsigned char *id);
/* Hold it. Errors: those of tw_transport_tcp. */
int tw__transport_meet_newcomers(tw_transport *t, int count, double timeout,
                                 const unsigned char *id);
/* They do not join after all. */
void tw__transport_drop_newcomers(tw_transport *t);
/* The next agreement does not wait for this rank. */
void tw__transport_suspect(tw_transport *t, int rank);
/* Whether this rank has joined a job that ran, and its group has not been told of it. */
int tw__transport_is_new(const tw_transport *t);
void tw__transport_set_known(tw_transport *t);
/* Changes of the membership so far. */
uint32_t tw__transport_version(const tw_transport *t);

/* The number of ranks on each host. 1 if hosts are unknown, differ in it, or there is only one.
 *   order [nranks] gets the ranks: the first of every host, then the second of every host, ...
 *   scratch [2 nranks] */
int tw__transport_hosts(const tw_transport *t, int *order, int *scratch);
/* Ranks are threads of this process and may read each other's memory: the network is real. */
int tw__transport_is_shared(const tw_transport *t);

/* ---- time: that of the simulated clock, if the network is simulated */

/* Seconds on the clock by which messages take time. */
double tw__transport_seconds(const tw_transport *t);
/* Seconds on that clock per second of CPU time. */
double tw__transport_computing(const tw_transport *t);
/* A step in the background: the clock counts what its thread computes between these two calls. It
 * does not count what this thread computes before, or after until it reads the clock. */
void tw__transport_begin_computing(tw_transport *t);
void tw__transport_end_computing(tw_transport *t);

/* ---- messages */

/* What a message is counted as. */
typedef enum {
    TW__PAYLOAD = 0,
    TW__CONTROL = 1,
    TW__DEVICE = 2, /* payload in device memory, moved by the device calls of a backend */
} tw__message_kind;

/* A message under way, or none. */
typedef struct tw__message {
    void *request; /* the transport's; NULL: nothing is under way */
    int peer;
    int sending;
    tw__message_kind kind;
    size_t bytes; /* its length; of a receive: once it is done */
    int returned; /* in an alltoall: tw__alltoalls_next has returned it */

    /* In a simulated network, see transport_simulated.c. */
    uint32_t number; /* among the messages of this pair */
    double when;     /* seconds: sent, or first byte received; 0: nothing to wait for */
    double duration;
} tw__message;

/* Start a message. The buffer must stay valid until the message is done or cancelled.
 * Errors: TW_ERR_TRANSPORT. In a simulated network a sender may have to wait until the receiver
 * has taken earlier messages; then also those of tw__transport_pause. */
int tw__transport_send(tw_transport *t, int peer, tw__message_kind kind, const void *data,
                       size_t bytes, tw__message *message);
int tw__transport_recv(tw_transport *t, int peer, tw__message_kind kind, void *data,
                       size_t capacity, tw__message *message);
/* *done: 0 or 1. A message that is done or has failed has request NULL. */
int tw__transport_test(tw_transport *t, tw__message *message, int *done);
/* Test all. If *pending is NULL it becomes the first message that is not done, if any. */
int tw__transport_test_all(tw_transport *t, tw__message *messages, int count,
                           const tw__message **pending);
/* Wait until all are done. On error all are cancelled, and the other ranks get an abort notice.
 * Errors: TW_ERR_TRANSPORT; TW_ERR_TIMEOUT naming the missing ranks; that of a rank that aborted. */
int tw__transport_wait(tw_transport *t, tw__message *messages, int count);
/* Cancel the messages that are not done. The transport can have no other group after that. */
void tw__transport_cancel(tw_transport *t, tw__message *messages, int count);

/* For loops that test and wait themselves: call pause when no message is done.
 *   deadline  zeros at the begin of the wait
 *   awaited   a message that is not done, for the error text
 * Errors: those of tw__transport_wait, but nothing is cancelled and no rank is told. */
typedef struct tw__deadline {
    int64_t begin;      /* ns; 0: the wait has not begun */
    int64_t ask;        /* ns: when to ask who is alive */
    int64_t end;        /* ns */
    int64_t next_check; /* ns: when to look for queries and abort notices */
    int asked;
} tw__deadline;
int tw__transport_pause(tw_transport *t, tw__deadline *deadline, const tw__message *awaited);
/* For loops that cannot sleep, since they wait for a device: pause without idling. */
int tw__transport_check(tw_transport *t, tw__deadline *deadline, const tw__message *awaited);
/* The same for work of this rank's own device, which no other rank delays. Fails when the others would
 * ask who is alive, early enough to tell them the reason; any other error is an abort.
 *   alone  failures of other ranks no longer matter */
int tw__transport_check_device(tw_transport *t, tw__deadline *deadline, int alone);
/* After such a loop: the simulated clock advances to the end of these messages. */
void tw__transport_advance_clock(tw_transport *t, tw__message *messages, int count);

/* The hook for work that overlaps with communication. This is the only one: whatever is done while
 * entries travel is done here. Once a wait for payload has lasted a millisecond, pause calls it
 * instead of idling, until it returns 0: nothing is left. Each call should do a small part, because
 * messages are tested between calls. It runs in the waiting thread and must not use the transport.
 * NULL: no work. */
typedef int tw__overlap(void *context);
void tw__transport_set_overlap(tw_transport *t, tw__overlap *overlap, void *context);

/* The text of a failed call of the caller's: clear it before the call, ask for it afterwards. */
void tw__transport_clear_error(void);
const char *tw__transport_error_text(int error);

/* ---- device memory
 *
 * Transports move host memory. The backend of a group in device memory lends device calls, which
 * move all messages of a rank that belong together at once and return when they have arrived. One
 * call for all of them cannot deadlock: in a stream, a message that waits for a peer would hold up
 * the message that the peer waits for. */

typedef struct tw__buffer {
    void *data;      /* NULL: there is no message */
    size_t bytes;    /* to send; or received, once it has arrived */
    size_t capacity; /* to receive at most; unused when sending */
} tw__buffer;

/* The messages to and from one peer. */
typedef struct tw__transfer {
    int peer;
    tw__buffer out, in;
} tw__transfer;

typedef struct tw__device_calls {
    int (*transfer)(void *context, tw__transfer *transfers, int count);
    void *context;
    tw__transfer *transfers; /* [nranks]: for alltoalls */
} tw__device_calls;

/* NULL: none. */
void tw__transport_set_device_calls(tw_transport *t, const tw__device_calls *calls);
/* Errors: as tw__transport_wait; TW_ERR_DEVICE. */
int tw__transport_transfer(tw_transport *t, tw__transfer *transfers, int count);
/* For device calls: count transfers that were not sent as messages of this transport. */
void tw__transport_count(tw_transport *t, const tw__transfer *transfers, int count);
/* What tw_transport_set_device has set, or NULL. */
typedef struct tw__lent {
    tw_device_calls calls;
    void *context;
} tw__lent;
const tw__lent *tw__transport_lent(const tw_transport *t);

/* ---- collectives
 *
 * Alltoall: every rank sends a message to every other rank. In turn 1 to rank+1 and from rank-1, in
 * turn 2 to rank+2 and from rank-2, and so on. Each turn is a permutation, so no receiver gets two
 * messages at a time, and two ranks send to each other in the same turn only in turn nranks/2.
 * A buffer whose data is NULL is skipped; sender and receiver must agree on that. A message of 0
 * bytes is sent. */

typedef struct tw__alltoall {
    tw_transport *transport; /* NULL: not begun */
    tw__message_kind kind;
    const tw__buffer *out; /* [nranks]; this rank's own is ignored */
    tw__buffer *in;        /* [nranks]; the same */
    int started;           /* turns whose send was started */
    double computing;      /* simulated seconds spent on received messages before the end */
    tw__message sends[TW__WINDOW];
    tw__message *recvs;        /* [nranks] */
    struct tw__alltoall *next; /* of those under way */
} tw__alltoall;

/* Bytes of recvs. */
size_t tw__alltoall_memory(int nranks);
/* Start all receives and the first sends. recvs: tw__alltoall_memory bytes. recvs, out and in must
 * stay valid until the end. Several may be under way if all ranks begin them in the same order and
 * flush each before they begin the next.
 * Errors: TW_ERR_TRANSPORT. */
int tw__alltoall_begin(tw__alltoall *a, tw_transport *t, tw__message_kind kind,
                       const tw__buffer *out, tw__buffer *in, void *recvs);
/* Wait until all sends are started. Errors: as tw__transport_wait; the alltoall is cancelled. */
int tw__alltoall_flush(tw__alltoall *a);
/* Wait for the next message of any of `count` alltoalls. *which gets the alltoall; it is 0 at the
 * first call and must not be changed between calls. *from gets the sender. Each message is returned
 * once, and those of one sender in the order of alltoalls. *from is -1 when all have ended, as after
 * tw__alltoall_end.
 * Errors: as tw__transport_wait; the caller must cancel all. */
int tw__alltoalls_next(tw__alltoall *all, int count, int *which, int *from);
/* Wait for all messages. Errors: as tw__transport_wait; the alltoall is cancelled. */
int tw__alltoall_end(tw__alltoall *a);
/* One of zeros is fine. */
void tw__alltoall_cancel(tw__alltoall *a);
/* Begin and end. */
int tw__alltoall_run(tw_transport *t, tw__message_kind kind, const tw__buffer *out, tw__buffer *in,
                     void *recvs);

/* Every rank's pieces to all others, around a ring: a rank sends its own to the next, then what it
 * received last. No two senders share a link: over TCP, long messages of an alltoall delay each other's
 * handshakes and acknowledgements. What has arrived can be read while others travel. */
#define TW__RING_SENDS 4 /* a slot is reused after this many sends */
/* Receives begin early: the rank before may be 2(P-1) messages ahead. What comes before its receive
 * begins is copied once more. */
#define TW__RING_RECVS 16

/* Pieces begin so many at a time, the next ones a turn later. So about eight are under way, and links are
 * busy meanwhile: pieces of 13 ms (160 kB at 100 Mbit/s) hide a latency of 90 ms. */
static inline int tw__ring_abreast(int nranks) {
    return nranks > 9 ? 1 : 8 / (nranks - 1);
}

typedef struct tw__ring_place {
    int number; /* of the message */
    int piece;
    int turn; /* 1: a rank's own piece; turn i: that of the rank i-1 places before it */
} tw__ring_place;

typedef struct tw__ring {
    tw_transport *transport;
    tw__message_kind kind;
    const tw__buffer *own; /* [pieces] */
    tw__buffer *in;        /* [pieces][nranks]; this rank's own are ignored */
    int pieces;
    int abreast;
    tw__ring_place expected, received, sent; /* the next message */
    tw__message sends[TW__RING_SENDS];
    tw__message recvs[TW__RING_RECVS];
} tw__ring;

/* own and in must stay valid until the end. There are two ranks at least, and no device memory.
 * Errors: as tw__transport_wait. */
int tw__ring_begin(tw__ring *r, tw_transport *t, tw__message_kind kind, const tw__buffer *own,
                   tw__buffer *in, int pieces);
/* Wait for the next piece. A sender's pieces come in order. The last of a piece's senders is the next
 * rank. *from is -1 when all have arrived and all was sent.
 * Errors: as tw__transport_wait; the ring is cancelled. */
int tw__ring_next(tw__ring *r, int *piece, int *from);
/* For callers that cannot go on. */
void tw__ring_cancel(tw__ring *r);
/* From this length on the ring is faster than an alltoall. P = 8, 100 Mbit/s: 1.2 MB take 0.75 s
 * instead of 1.16 s; the line alone takes 0.66 s. A simulated network has no such delays; there the
 * ring costs 5 % (1gbe). */
#define TW__LONG_BUFFER ((int64_t)1 << 20)

/* Every rank has filled records[rank * bytes]; afterwards all ranks have all records. Control.
 * scratch: tw__allgather_memory(nranks) bytes.
 * Errors: as tw__transport_wait; TW_ERR_PROTOCOL for a record of another size. */
int tw__allgather(tw_transport *t, void *records, size_t bytes, void *scratch);
size_t tw__allgather_memory(int nranks);

/* counts[count] become their sums over all ranks, modulo 2^32. Costs 8 * count bytes per rank.
 * Control. scratch: tw__sum_counts_memory(nranks, count) bytes, aligned to TW__ALIGNMENT.
 * Errors: as tw__allgather. */
int tw__sum_counts(tw_transport *t, uint32_t *counts, int64_t count, void *scratch);
size_t tw__sum_counts_memory(int nranks, int64_t count);

#endif
