/* collectives.c - alltoall, ring, allgather and sums of counts; see transport.h
 *
 * An alltoall starts all receives at once, so that every message finds its buffer, and the sends in
 * turns, TW__WINDOW at a time. With P = 4, sender -> receiver:
 *
 *     turn 1:  0->1  1->2  2->3  3->0
 *     turn 2:  0->2  1->3  2->0  3->1
 *     turn 3:  0->3  1->0  2->1  3->2
 *
 * tw__sum_counts is two alltoalls: rank j receives slice j of all ranks' counts, adds them up, and
 * sends the sum to all ranks. */
#include "base/memory.h"
#include "transport/transport_internal.h"

#include <assert.h>
#include <string.h>

size_t tw__alltoall_memory(int nranks) {
    return (size_t)nranks * sizeof(tw__message);
}

/* The peers of this rank in a turn. */
static int receiver_in(const tw_transport *t, int turn) {
    return (t->rank + turn) % t->nranks;
}

static int sender_in(const tw_transport *t, int turn) {
    return (t->rank - turn + t->nranks) % t->nranks;
}

static int all_started(const tw__alltoall *a) {
    assert(a->started >= 0 && a->started < a->transport->nranks);
    return a->started == a->transport->nranks - 1;
}

/* Removes it from the list of those under way; device transfers are not on it. */
static void unlist(tw__alltoall *a) {
    tw__alltoall **at = &a->transport->alltoalls;
    while (*at != NULL && *at != a)
        at = &(*at)->next;
    if (*at != NULL)
        *at = a->next;
}

void tw__alltoall_cancel(tw__alltoall *a) {
    if (a->transport == NULL)
        return;
    unlist(a);
    tw__transport_cancel(a->transport, a->sends, TW__WINDOW);
    tw__transport_cancel(a->transport, a->recvs, a->transport->nranks);
}

/* Cancels and sends an abort notice. */
static int fail_with(tw__alltoall *a, int status) {
    tw__alltoall_cancel(a);
    return tw__transport_abort(a->transport, status);
}

static int start_receives(tw__alltoall *a) {
    for (int turn = 1; turn < a->transport->nranks; turn++) {
        int from = sender_in(a->transport, turn);
        const tw__buffer *in = &a->in[from];
        if (in->data != NULL)
            TW_TRY(tw__transport_recv(a->transport, from, a->kind, in->data, in->capacity,
                                      &a->recvs[from]));
    }
    return TW_OK;
}

static int start_sends(tw__alltoall *a) {
    for (int i = 0; i < TW__WINDOW && !all_started(a); i++) {
        if (a->sends[i].request != NULL)
            continue;
        int to = receiver_in(a->transport, ++a->started);
        const tw__buffer *out = &a->out[to];
        if (out->data != NULL)
            TW_TRY(
                tw__transport_send(a->transport, to, a->kind, out->data, out->bytes, &a->sends[i]));
    }
    return TW_OK;
}

/* A transport may move only the messages that it is asked about, and ranks that do not receive hold
 * up each other's sends. So a wait for one alltoall tests all that are under way. */
static int test_others(const tw__alltoall *a) {
    tw_transport *t = a->transport;
    const tw__message *ignored = NULL;
    for (tw__alltoall *o = t->alltoalls; o != NULL; o = o->next)
        if (o != a) {
            TW_TRY(tw__transport_test_all(t, o->sends, TW__WINDOW, &ignored));
            TW_TRY(tw__transport_test_all(t, o->recvs, t->nranks, &ignored));
        }
    return TW_OK;
}

/* For the same reason, a wait for sends tests receives, and the other way round. */
static int progress(tw__alltoall *a, const tw__message **receiving, const tw__message **sending) {
    int before = 0;
    *receiving = NULL;
    do { /* a send may be done as soon as it is started; no event tells */
        before = a->started;
        *sending = NULL;
        TW_TRY(tw__transport_test_all(a->transport, a->sends, TW__WINDOW, sending));
        TW_TRY(start_sends(a));
    } while (a->started != before);
    return tw__transport_test_all(a->transport, a->recvs, a->transport->nranks, receiving);
}

/* Device memory: all messages at once. */
static int transfer_all(tw__alltoall *a) {
    tw_transport *t = a->transport;
    tw__transfer *transfers = t->device.transfers;
    int count = t->nranks - 1;
    for (int turn = 1; turn < t->nranks; turn++) {
        int peer = receiver_in(t, turn);
        transfers[turn - 1] = (tw__transfer){.peer = peer, .out = a->out[peer], .in = a->in[peer]};
    }
    a->started = count;
    TW_TRY(tw__transport_transfer(t, transfers, count));
    for (int i = 0; i < count; i++)
        if (transfers[i].in.data != NULL)
            a->recvs[transfers[i].peer].bytes = transfers[i].in.bytes;
    return TW_OK;
}

int tw__alltoall_begin(tw__alltoall *a, tw_transport *t, tw__message_kind kind,
                       const tw__buffer *out, tw__buffer *in, void *recvs) {
    assert(t->alltoalls == NULL || all_started(t->alltoalls));
    *a = (tw__alltoall){.transport = t, .kind = kind, .out = out, .in = in, .recvs = recvs};
    memset(recvs, 0, tw__alltoall_memory(t->nranks));
    if (kind == TW__DEVICE)
        return transfer_all(a);
    a->next = t->alltoalls;
    t->alltoalls = a;
    int status = start_receives(a);
    if (status == TW_OK)
        status = start_sends(a);
    return status == TW_OK ? TW_OK : fail_with(a, status);
}

/* Until all is done, or only until all sends are started. */
static int wait_for(tw__alltoall *a, int all) {
    tw__deadline deadline = {0};
    for (;;) {
        const tw__message *receiving = NULL, *sending = NULL;
        int status = progress(a, &receiving, &sending);
        if (status == TW_OK && all_started(a) && (!all || (!sending && !receiving)))
            return TW_OK;
        if (status == TW_OK)
            status = test_others(a);
        if (status == TW_OK)
            status = tw__transport_pause(a->transport, &deadline,
                                         all && receiving ? receiving : sending);
        if (status != TW_OK)
            return fail_with(a, status);
    }
}

int tw__alltoall_flush(tw__alltoall *a) {
    return wait_for(a, 0);
}

/* Whether the first `count` alltoalls have no message of this sender to return. */
static int is_returned(const tw__alltoall *all, int count, int from) {
    int returned = 1;
    for (int at = 0; at < count; at++)
        returned &= all[at].in[from].data == NULL || all[at].recvs[from].returned;
    return returned;
}

/* Returns the sender of a message of alltoall `at` that has arrived and is next to be returned, or
 * -1. Earlier alltoalls' messages of the same sender come first. */
static int take_next(tw__alltoall *all, int at) {
    tw__alltoall *a = &all[at];
    for (int turn = 1; turn < a->transport->nranks; turn++) {
        int from = sender_in(a->transport, turn);
        tw__message *message = &a->recvs[from];
        if (is_returned(a, 1, from) || message->request != NULL || !is_returned(all, at, from))
            continue;
        message->returned = 1;
        a->in[from].bytes = message->bytes;
        return from;
    }
    return -1;
}

static int progress_all(tw__alltoall *all, int count, const tw__message **receiving) {
    *receiving = NULL;
    for (int at = 0; at < count; at++) {
        const tw__message *its = NULL, *sending = NULL;
        TW_TRY(progress(&all[at], &its, &sending));
        *receiving = *receiving != NULL ? *receiving : its;
    }
    return TW_OK;
}

/* In a simulated network the messages of an alltoall arrive with the last one. Computation on them
 * counts after that. */
static int end_all(tw__alltoall *all, int count) {
    for (int at = 0; at < count; at++) {
        TW_TRY(tw__alltoall_end(&all[at]));
        tw__sim_clock_add(all->transport->clock, all[at].computing);
    }
    return TW_OK;
}

int tw__alltoalls_next(tw__alltoall *all, int count, int *which, int *from) {
    tw__deadline deadline = {0};
    assert(*which >= 0 && *which < count);
    all[*which].computing += tw__sim_clock_take_computing(all->transport->clock);
    for (;;) {
        const tw__message *receiving = NULL;
        int status = progress_all(all, count, &receiving);
        for (*which = 0, *from = -1; *which < count && status == TW_OK; ++*which) {
            *from = take_next(all, *which);
            if (*from >= 0)
                return TW_OK;
        }
        if (status == TW_OK && receiving == NULL)
            return end_all(all, count);
        if (status == TW_OK)
            status = tw__transport_pause(all->transport, &deadline, receiving);
        if (status != TW_OK)
            return fail_with(all, status);
    }
}

int tw__alltoall_end(tw__alltoall *a) {
    tw_transport *t = a->transport;
    TW_TRY(wait_for(a, 1));
    unlist(a);
    tw__transport_advance_clock(t, a->sends, TW__WINDOW);
    tw__transport_advance_clock(t, a->recvs, t->nranks);
    for (int i = 0; i < t->nranks; i++)
        if (i != t->rank)
            a->in[i].bytes = a->recvs[i].bytes;
    return TW_OK;
}

int tw__alltoall_run(tw_transport *t, tw__message_kind kind, const tw__buffer *out, tw__buffer *in,
                     void *recvs) {
    tw__alltoall a;
    TW_TRY(tw__alltoall_begin(&a, t, kind, out, in, recvs));
    return tw__alltoall_end(&a);
}

/* ---- ring
 *
 * In its turn i a piece of every rank travels to the i-th rank after it. A slot has the messages of one
 * turn of several pieces, and each piece (or `abreast` of them) begins a slot after the one before. So
 * pieces become complete one after the other, and a link carries others while one is passed on. P = 3
 * and three pieces, one abreast; rank 0 sends, as piece and owner:
 *
 *     slot         1   |    2     |    3     |  4
 *     number       0   |  1    2  |  3    4  |  5
 *     message     0,0  | 0,2  1,0 | 1,2  2,0 | 2,2
 *
 * Message 1 is sent as soon as it has been received: it was message 0 of rank 2. */

static int ring_messages(const tw__ring *r) {
    return r->pieces * (r->transport->nranks - 1);
}

static int slot_of(const tw__ring *r, int piece, int turn) {
    return piece / r->abreast + turn;
}

/* The pieces of a slot are in order, so their turns fall. */
static void advance(const tw__ring *r, tw__ring_place *at) {
    const int turns = r->transport->nranks - 1, slot = slot_of(r, at->piece, at->turn);
    at->number++;
    at->piece++;
    if (at->piece % r->abreast == 0 && at->piece < r->pieces)
        at->turn--;
    if (at->piece < r->pieces && at->turn > 0)
        return;
    const int first = slot + 1 > turns ? slot + 1 - turns : 0;
    at->piece = first * r->abreast;
    at->turn = slot + 1 - first;
}

static int was_received(const tw__ring *r, int piece, int turn) {
    const tw__ring_place *next = &r->received;
    const int slot = slot_of(r, piece, turn), slot_of_next = slot_of(r, next->piece, next->turn);
    return slot < slot_of_next || (slot == slot_of_next && piece < next->piece);
}

/* Where the piece of this turn's owner arrives. */
static tw__buffer *arrival_in(const tw__ring *r, int piece, int turn) {
    return &r->in[piece * r->transport->nranks + sender_in(r->transport, turn)];
}

void tw__ring_cancel(tw__ring *r) {
    tw__transport_cancel(r->transport, r->sends, TW__RING_SENDS);
    tw__transport_cancel(r->transport, r->recvs, TW__RING_RECVS);
}

/* Until this message of the ring is done. All others are tested too: some transports move only what
 * they are asked about. */
static int wait_in_ring(tw__ring *r, tw__message *awaited) {
    tw__deadline deadline = {0};
    for (;;) {
        const tw__message *ignored = NULL;
        TW_TRY(tw__transport_test_all(r->transport, r->sends, TW__RING_SENDS, &ignored));
        TW_TRY(tw__transport_test_all(r->transport, r->recvs, TW__RING_RECVS, &ignored));
        if (awaited->request == NULL)
            break;
        TW_TRY(tw__transport_pause(r->transport, &deadline, awaited));
    }
    tw__transport_advance_clock(r->transport, awaited, 1);
    return TW_OK;
}

static int receive_next(tw__ring *r) {
    tw__message *message = &r->recvs[r->expected.number % TW__RING_RECVS];
    if (r->expected.number == ring_messages(r))
        return TW_OK;
    const tw__buffer *in = arrival_in(r, r->expected.piece, r->expected.turn);
    assert(in->data != NULL && message->request == NULL);
    advance(r, &r->expected);
    return tw__transport_recv(r->transport, sender_in(r->transport, 1), r->kind, in->data,
                              in->capacity, message);
}

static int send_one(tw__ring *r, const tw__buffer *out) {
    tw__message *message = &r->sends[r->sent.number % TW__RING_SENDS];
    TW_TRY(wait_in_ring(r, message));
    advance(r, &r->sent);
    return tw__transport_send(r->transport, receiver_in(r->transport, 1), r->kind, out->data,
                              out->bytes, message);
}

/* Sends what can be sent, in order: others' pieces as soon as they are here, and not more in advance
 * than the next rank expects. */
static int send_ready(tw__ring *r) {
    while (r->sent.number < ring_messages(r) &&
           r->sent.number < r->received.number + TW__RING_RECVS) {
        const int piece = r->sent.piece, before = r->sent.turn - 1;
        if (before > 0 && !was_received(r, piece, before))
            return TW_OK;
        TW_TRY(send_one(r, before > 0 ? arrival_in(r, piece, before) : &r->own[piece]));
    }
    return TW_OK;
}

static int fail_ring(tw__ring *r, int status) {
    if (status == TW_OK)
        return TW_OK;
    tw__ring_cancel(r);
    return tw__transport_abort(r->transport, status);
}

static int begin_ring(tw__ring *r) {
    for (int i = 0; i < TW__RING_RECVS; i++)
        TW_TRY(receive_next(r));
    return send_ready(r);
}

int tw__ring_begin(tw__ring *r, tw_transport *t, tw__message_kind kind, const tw__buffer *own,
                   tw__buffer *in, int pieces) {
    assert(kind != TW__DEVICE && t->nranks > 1 && pieces >= 1);
    const tw__ring_place first = {.turn = 1};
    *r = (tw__ring){.transport = t,
                    .kind = kind,
                    .own = own,
                    .in = in,
                    .pieces = pieces,
                    .abreast = tw__ring_abreast(t->nranks),
                    .expected = first,
                    .received = first,
                    .sent = first};
    return fail_ring(r, begin_ring(r));
}

static int take_from_ring(tw__ring *r, int *piece, int *from) {
    tw__message *message = &r->recvs[r->received.number % TW__RING_RECVS];
    TW_TRY(wait_in_ring(r, message));
    *piece = r->received.piece;
    *from = sender_in(r->transport, r->received.turn);
    arrival_in(r, *piece, r->received.turn)->bytes = message->bytes;
    advance(r, &r->received);
    TW_TRY(receive_next(r));
    return send_ready(r);
}

static int end_ring(tw__ring *r) {
    for (int i = 0; i < TW__RING_SENDS; i++)
        TW_TRY(wait_in_ring(r, &r->sends[i]));
    return TW_OK;
}

int tw__ring_next(tw__ring *r, int *piece, int *from) {
    *from = -1;
    int more = r->received.number < ring_messages(r);
    return fail_ring(r, more ? take_from_ring(r, piece, from) : end_ring(r));
}

/* ---- messages of known length */

/* Scratch of an alltoall. */
typedef struct table {
    tw__buffer *out; /* [nranks] */
    tw__buffer *in;  /* [nranks] */
    void *recvs;
} table;

static table table_in(void *scratch, int nranks) {
    tw__buffer *buffers = scratch;
    return (table){buffers, buffers + nranks, buffers + 2 * (size_t)nranks};
}

/* Every message must fill its buffer. */
static int run_exact(tw_transport *t, const table *all) {
    TW_TRY(tw__alltoall_run(t, TW__CONTROL, all->out, all->in, all->recvs));
    for (int i = 0; i < t->nranks; i++)
        if (i != t->rank && all->in[i].bytes != all->in[i].capacity)
            return tw__transport_abort(
                t, tw__fail(TW_ERR_PROTOCOL,
                            "rank %d sent %zu bytes, %zu were expected; are the calls in the same "
                            "order on all ranks?",
                            i, all->in[i].bytes, all->in[i].capacity));
    return TW_OK;
}

size_t tw__allgather_memory(int nranks) {
    return 2 * (size_t)nranks * sizeof(tw__buffer) + tw__alltoall_memory(nranks);
}

int tw__allgather(tw_transport *t, void *records, size_t bytes, void *scratch) {
    char *record = records;
    if (t->nranks == 1)
        return TW_OK;
    table all = table_in(scratch, t->nranks);
    for (int i = 0; i < t->nranks; i++) {
        all.out[i] = (tw__buffer){.data = record + (size_t)t->rank * bytes, .bytes = bytes};
        all.in[i] = (tw__buffer){.data = record + (size_t)i * bytes, .capacity = bytes};
    }
    return run_exact(t, &all);
}

/* ---- sums */

/* Slice j of the counts, which rank j adds up. */
static tw__buffer slice_of(uint32_t *counts, int64_t count, int j, int nranks) {
    int64_t begin = count * j / nranks, end = count * (j + 1) / nranks;
    size_t bytes = (size_t)(end - begin) * sizeof *counts;
    return (tw__buffer){.data = counts + begin, .bytes = bytes, .capacity = bytes};
}

/* Bytes of the largest slice. */
static size_t most_bytes(int64_t count, int nranks) {
    return (size_t)((count + nranks - 1) / nranks) * sizeof(uint32_t);
}

/* Bytes of the table, before the slices that are received. */
static size_t table_bytes(int nranks) {
    return (tw__allgather_memory(nranks) + TW__ALIGNMENT - 1) / TW__ALIGNMENT * TW__ALIGNMENT;
}

size_t tw__sum_counts_memory(int nranks, int64_t count) {
    return table_bytes(nranks) + (size_t)nranks * most_bytes(count, nranks);
}

static void add_slice(const tw__buffer *own, const tw__buffer *other) {
    uint32_t *sums = own->data;
    const uint32_t *counts = other->data;
    for (size_t i = 0; i < own->bytes / sizeof *sums; i++)
        sums[i] += counts[i];
}

int tw__sum_counts(tw_transport *t, uint32_t *counts, int64_t count, void *scratch) {
    int nranks = t->nranks;
    if (nranks == 1 || count == 0)
        return TW_OK;
    assert((uintptr_t)scratch % TW__ALIGNMENT == 0 && count > 0 && count <= INT64_MAX / nranks);
    table all = table_in(scratch, nranks);
    tw__buffer own = slice_of(counts, count, t->rank, nranks);
    char *received = (char *)scratch + table_bytes(nranks);
    size_t stride = most_bytes(count, nranks);
    assert(own.bytes <= stride);
    for (int i = 0; i < nranks; i++) {
        all.out[i] = slice_of(counts, count, i, nranks);
        all.in[i] = (tw__buffer){.data = received + (size_t)i * stride, .capacity = own.bytes};
    }
    TW_TRY(run_exact(t, &all));
    for (int i = 0; i < nranks; i++) {
        if (i != t->rank)
            add_slice(&own, &all.in[i]);
        all.out[i] = own;
        all.in[i] = slice_of(counts, count, i, nranks);
    }
    return run_exact(t, &all);
}
