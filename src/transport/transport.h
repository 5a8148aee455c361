/* transport.h - one rank's end of a set of ranks: messages, deadlines, counters
 *
 *   transport.c          create and free, single messages, waiting to a deadline
 *   roll_call.c          who is missing, when a deadline has passed
 *   transport_self.c     the rank that is alone
 *   transport_threads.c  ranks as threads of one process
 *   transport_sockets.c  over connected sockets, each a stream.c of messages
 *   clockwork.c          the time that messages between threads would take in a network
 *   transport_mpi.c      over MPI; a library of its own, made of the public calls alone
 *   transport_nccl.c     between GPUs by NCCL, beside another transport; likewise
 *   rotation.c           what all ranks do together: everyone to everyone, sums, shared records
 *
 * A transport is a table of calls (tw_transport_calls) with a context. Everything above it goes
 * through the functions here, which count bytes and keep deadlines. Nothing here knows what the
 * bytes mean. What a step needs is allocated when a transport is created; memory is taken later for
 * messages over sockets that come before they are expected, for more requests at a time than a step
 * has, and to send on what was given up half-way. */
#ifndef TW_TRANSPORT_TRANSPORT_H
#define TW_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "thinwire.h"

#define TW__MAX_RANKS 65536
#define TW__TAG_DATA 0
#define TW__TAG_LIVENESS 1
/* Sends of a rotation that are under way at a time (Ok-Topk, section 4.1: 4 serve). */
#define TW__WINDOW 4

/* What a message is counted as. */
typedef enum {
    TW__PAYLOAD = 0,
    TW__CONTROL = 1,
    TW__DEVICE = 2, /* payload in the memory of a GPU, moved by a carrier */
} tw__message_kind;

/* A message under way, or none. */
typedef struct tw__message {
    void *request; /* the transport's; NULL: nothing is under way */
    int peer;
    int sending;
    tw__message_kind cargo;
    size_t bytes; /* its length; of a received one once it is done */
    int taken;    /* of a rotation: tw__alltoalls_next has told of it */

    /* In a simulated network: see clockwork.h. */
    uint32_t number; /* among those of this pair */
    double when;     /* it was sent, or its first byte arrived; 0: nothing to wait for */
    double duration;
} tw__message;

/* Start a message; the buffer must stay until it is done or cancelled.
 * Errors: TW_ERR_TRANSPORT; in a simulated network, where a sender may have to wait until the
 * receiver is near enough, those of tw__transport_pause. */
int tw__transport_send(tw_transport *t, int peer, tw__message_kind cargo, const void *data,
                       size_t bytes, tw__message *message);
int tw__transport_recv(tw_transport *t, int peer, tw__message_kind cargo, void *data,
                       size_t capacity, tw__message *message);
/* Look whether a message is done; *done is 0 or 1. Done ones have request NULL; so has one that
 * failed. */
int tw__transport_test(tw_transport *t, tw__message *message, int *done);
/* Wait until all are done (those with request NULL are). On error all are cancelled.
 * Errors: TW_ERR_TRANSPORT; TW_ERR_TIMEOUT naming the missing ranks. */
int tw__transport_wait(tw_transport *t, tw__message *messages, int count);
/* All of these were waited for; wait calls it. */
void tw__transport_settle(tw_transport *t, tw__message *messages, int count);
/* Give up those that are not done. The transport can not be acquired again after that. */
void tw__transport_cancel(tw_transport *t, tw__message *messages, int count);

/* Tell the other ranks that this one cannot go on, so that they fail with the same status and
 * words instead of waiting: for errors that are found above the transport, as TW_ERR_PROTOCOL.
 * Waits that fail do it themselves. Returns status. */
int tw__transport_give_up(tw_transport *t, int status);
/* Whether this rank has given up, or given up messages: nothing more can be exchanged. */
int tw__transport_has_failed(const tw_transport *t);

/* Waiting in a loop of one's own: test, and pause when nothing is done.
 *   patience  zero when the wait begins
 *   awaited   a message that is not done, for the error text
 * Errors: those of tw__transport_wait; nothing is cancelled and nobody is told. */
typedef struct tw__deadline {
    int64_t deadline; /* ns */
    int64_t look;     /* when to look at the roll call */
} tw__deadline;
int tw__transport_pause(tw_transport *t, tw__deadline *patience, const tw__message *awaited);
/* Work that can be done while payload travels, a little at each call: once a wait has lasted a
 * millisecond it is called instead of idling, until it returns 0, which says that nothing is left.
 * NULL takes it away. */
typedef int tw__overlap(void *context);
void tw__transport_set_overlap(tw_transport *t, tw__overlap *chore, void *context);
/* Test all. *pending, when NULL, becomes the first one that is not done, if any. */
int tw__transport_test_all(tw_transport *t, tw__message *messages, int count,
                           const tw__message **pending);
/* What a negative result of one of the calls means: sets the text, returns TW_ERR_TRANSPORT. */
int tw__transport_failed(const tw_transport_calls *calls, const char *what, int peer, int error);
/* Before a call: what an earlier one said is not about it. */
void tw__transport_forget_failure(void);
/* What a call that failed has said since then, or that it has not. */
const char *tw__transport_words(int error);

/* Errors: TW_ERR_PARAM. */
int tw__transport_check_ranks(int rank, int nranks);

/* The transport keeps this clock, and frees it. */
struct tw__sim_clock;
void tw__transport_set_clock(tw_transport *t, struct tw__sim_clock *clock);
/* Its ranks are threads of this process, and see each other's memory. */
void tw__transport_set_shared(tw_transport *t);
int tw__transport_is_shared(const tw_transport *t);

/* From any thread: waits that are under way and all later ones fail with TW_ERR_STATE. */
void tw__transport_abandon(tw_transport *t);
/* Seconds that each wait lasts at most. */
void tw__transport_set_timeout(tw_transport *t, double seconds);
/* A group takes hold of the transport, or lets go. Errors: TW_ERR_STATE when it has one. */
int tw__transport_acquire(tw_transport *t);
void tw__transport_release(tw_transport *t);

/* Seconds on the clock that messages take time of: the simulated one, or else the real one. And what
 * a second of computing takes on it. */
double tw__transport_seconds(const tw_transport *t);
double tw__transport_computing(const tw_transport *t);
/* In a simulated network: what this rank has computed since it last used the transport is not counted
 * now, but when it says so. Elsewhere 0, and nothing. */
double tw__transport_spent(const tw_transport *t);
void tw__transport_spend(const tw_transport *t, double seconds);
int tw__transport_is_simulated(const tw_transport *t);

int tw__transport_rank(const tw_transport *t);
int tw__transport_nranks(const tw_transport *t);
tw_traffic tw__transport_traffic(const tw_transport *t);
/* How many ranks each host has, 1 where hosts are unknown, differ in that, or there is but one.
 * order[nranks] gets the ranks: the first of every host, the second of every host, and so on.
 * scratch: [2 nranks]. */
int tw__transport_hosts(const tw_transport *t, int *order, int *scratch);

/* ---- entries in the memory of GPUs
 *
 * The transport itself moves the host's memory. A group on a GPU lends it a carrier, which moves
 * all messages of a rank that belong together at once, and returns when they have arrived: what
 * waits for others in a GPU's stream must not stand before what they wait for. */

typedef struct tw__buffer {
    void *data;
    size_t bytes;    /* to send; or received, once it has arrived */
    size_t capacity; /* to receive at most; unused when sending */
} tw__buffer;

/* What goes to a peer, and what comes from it; a parcel whose data is NULL does not travel. */
typedef struct tw__transfer {
    int peer;
    tw__buffer out, in;
} tw__transfer;

typedef struct tw__device_calls {
    int (*carry)(void *context, tw__transfer *shipments, int count);
    void *context;
    tw__transfer *shipments; /* [nranks]: for rotations */
} tw__device_calls;

/* Until the next call; NULL takes it away. */
void tw__transport_set_device_calls(tw_transport *t, const tw__device_calls *carrier);
/* Errors: as tw__transport_wait; TW_ERR_DEVICE. */
int tw__transport_transfer(tw_transport *t, tw__transfer *shipments, int count);
/* For carriers: these have travelled, and not as messages of this transport. */
void tw__transport_count(tw_transport *t, const tw__transfer *shipments, int count);
/* Room for shipments to all ranks. */
tw__transfer *tw__transport_transfers(const tw_transport *t);
/* The caller's way between GPUs, NULL if none; see tw_transport_set_device. */
tw_device_exchange *tw__transport_device(const tw_transport *t, void **context);

/* ---- rotation.c: every rank sends to every other
 *
 * Turn 1 sends to rank+1 and receives from rank-1, turn 2 to rank+2 and from rank-2, and so on:
 * every turn is a permutation, so no rank is flooded, and no two ranks exchange with each other
 * head-on but in the turn nranks/2. A parcel whose data is NULL is skipped, which both ends must
 * know; one of 0 bytes is not. */

typedef struct tw__alltoall {
    tw_transport *transport;
    tw__message_kind cargo;
    const tw__buffer *out; /* [nranks]; the one for this rank itself is not looked at */
    tw__buffer *in;        /* [nranks]; likewise */
    int started;           /* sends that were started */
    double worked;         /* simulated seconds that were computed on what has come */
    tw__message sends[TW__WINDOW];
    tw__message *recvs;        /* [nranks] */
    struct tw__alltoall *next; /* of those under way */
} tw__alltoall;

/* The first of those under way. */
tw__alltoall **tw__transport_alltoalls(tw_transport *t);

/* Bytes of recvs for so many ranks. */
size_t tw__alltoall_memory(int nranks);
/* Start: all receives and the first sends. `recvs` is memory of tw__alltoall_memory bytes, kept
 * until the end, as are out and in. Several rotations may be under way when all ranks begin them
 * in the same order; a rotation begun earlier must have started all its sends first, which
 * tw__alltoall_flush sees to.
 * Errors: TW_ERR_TRANSPORT. */
int tw__alltoall_begin(tw__alltoall *r, tw_transport *t, tw__message_kind cargo,
                       const tw__buffer *out, tw__buffer *in, void *recvs);
/* Wait until all sends were started. Errors: as tw__transport_wait; the rotation is cancelled. */
int tw__alltoall_flush(tw__alltoall *r);
/* Wait for what comes next in any of `count` rotations: *which one, to be passed as it was, at first
 * 0, and *from, its sender; each once, and those of one sender in the order of rotations. *from is -1
 * when everything has come and gone, as after tw__alltoall_end.
 * Errors: as tw__transport_wait; cancel all then. */
int tw__alltoalls_next(tw__alltoall *all, int count, int *which, int *from);
/* Wait for everything. Errors: as tw__transport_wait; the rotation is cancelled. */
int tw__alltoall_end(tw__alltoall *r);
/* Give it up; a rotation of zeros was never begun. */
void tw__alltoall_cancel(tw__alltoall *r);

/* The same at once. `scratch` is memory of tw__alltoall_memory bytes. */
int tw__alltoall_run(tw_transport *t, tw__message_kind cargo, const tw__buffer *out, tw__buffer *in,
                     void *scratch);

/* The same parcel of each rank to all others, from rank to rank: r sends to r+1 its own, then what
 * it got last. in[nranks] as in a rotation. Takes P-1 latencies, but no two senders share a link:
 * on TCP long messages of everyone to everyone crowd out each other's handshakes and
 * acknowledgements.
 * Errors: as tw__transport_wait. */
int tw__allgather_ring(tw_transport *t, tw__message_kind cargo, const tw__buffer *own,
                       tw__buffer *in);
/* From this length on it is faster than a rotation. P = 8, 100 Mbit/s: 1.2 MB take 0.75 s instead
 * of 1.16, the line itself 0.66. On simulated networks, which know of no crowding, it costs 5 %
 * (1gbe). */
#define TW__LONG_BUFFER ((int64_t)1 << 20)

/* Every rank puts its record at records[rank * bytes]; afterwards all have all. Control.
 * Errors: as tw__transport_wait; TW_ERR_PROTOCOL for a record of another size. */
int tw__allgather(tw_transport *t, void *records, size_t bytes, void *scratch);
size_t tw__allgather_memory(int nranks);

/* counts[count] becomes the sum over ranks (modulo 2^32), in 8 * count bytes per rank. Control.
 * scratch: tw__sum_counts_memory(nranks, count) bytes, aligned to TW__ALIGNMENT.
 * Errors: as tw__allgather. */
int tw__sum_counts(tw_transport *t, uint32_t *counts, int64_t count, void *scratch);
size_t tw__sum_counts_memory(int nranks, int64_t count);

#endif
