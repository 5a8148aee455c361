/* rotation.c - what all ranks do together; see transport.h
 *
 * Receives are all started at once, so that a message finds its place when it comes; sends are
 * started in turn, TW__WINDOW at a time. With P = 4, one row per turn, sender -> receiver:
 *
 *     turn 1:  0->1  1->2  2->3  3->0
 *     turn 2:  0->2  1->3  2->0  3->1
 *     turn 3:  0->3  1->0  2->1  3->2
 *
 * tw__sum_counts is two rotations: rank j gets everybody's slice j of the counts, adds them up, and sends
 * the sum to everybody. */
#include "transport/transport.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

size_t tw__alltoall_memory(int nranks) {
    return (size_t)nranks * sizeof(tw__message);
}

static int done_sending(const tw__alltoall *r) {
    return r->started == tw__transport_nranks(r->transport) - 1;
}

static void enlist(tw__alltoall *r) {
    tw__alltoall **first = tw__transport_alltoalls(r->transport);
    r->next = *first;
    *first = r;
}

static void delist(tw__alltoall *r) {
    tw__alltoall **at = tw__transport_alltoalls(r->transport);
    while (*at != NULL && *at != r)
        at = &(*at)->next;
    if (*at != NULL)
        *at = r->next;
}

void tw__alltoall_cancel(tw__alltoall *r) {
    if (r->transport == NULL)
        return;
    delist(r);
    tw__transport_cancel(r->transport, r->sends, TW__WINDOW);
    tw__transport_cancel(r->transport, r->recvs, tw__transport_nranks(r->transport));
}

/* A rotation that fails is cancelled, and the others are told. */
static int fail_with(tw__alltoall *r, int status) {
    tw__alltoall_cancel(r);
    return tw__transport_give_up(r->transport, status);
}

static int start_receives(tw__alltoall *r) {
    int rank = tw__transport_rank(r->transport), nranks = tw__transport_nranks(r->transport);
    for (int turn = 1; turn < nranks; turn++) {
        int from = (rank - turn + nranks) % nranks;
        if (r->in[from].data == NULL)
            continue;
        TW_TRY(tw__transport_recv(r->transport, from, r->cargo, r->in[from].data,
                                  r->in[from].capacity, &r->recvs[from]));
    }
    return TW_OK;
}

static int start_sends(tw__alltoall *r) {
    int rank = tw__transport_rank(r->transport), nranks = tw__transport_nranks(r->transport);
    for (int i = 0; i < TW__WINDOW && !done_sending(r); i++) {
        if (r->sends[i].request != NULL)
            continue;
        int to = (rank + ++r->started) % nranks;
        if (r->out[to].data == NULL)
            continue;
        TW_TRY(tw__transport_send(r->transport, to, r->cargo, r->out[to].data, r->out[to].bytes,
                                  &r->sends[i]));
    }
    return TW_OK;
}

/* A transport may move only what it is asked about, and ranks that do not receive would stop each
 * other's sends: whoever waits for one rotation asks about all that are under way. */
static int test_others(const tw__alltoall *r) {
    int nranks = tw__transport_nranks(r->transport);
    const tw__message *ignored = NULL;
    for (tw__alltoall *o = *tw__transport_alltoalls(r->transport); o != NULL; o = o->next)
        if (o != r) {
            TW_TRY(tw__transport_test_all(r->transport, o->sends, TW__WINDOW, &ignored));
            TW_TRY(tw__transport_test_all(r->transport, o->recvs, nranks, &ignored));
        }
    return TW_OK;
}

/* Likewise receives are tested while sends are waited for, and the other way round. */
static int progress(tw__alltoall *r, const tw__message **receiving, const tw__message **sending) {
    int before = 0;
    *receiving = NULL;
    do { /* what was just started may be done already: nothing rings for that */
        before = r->started;
        *sending = NULL;
        TW_TRY(tw__transport_test_all(r->transport, r->sends, TW__WINDOW, sending));
        TW_TRY(start_sends(r));
    } while (r->started != before);
    return tw__transport_test_all(r->transport, r->recvs, tw__transport_nranks(r->transport),
                                  receiving);
}

/* All at once, where a carrier moves them. */
static int carry(tw__alltoall *r) {
    int rank = tw__transport_rank(r->transport), nranks = tw__transport_nranks(r->transport);
    tw__transfer *shipments = tw__transport_transfers(r->transport);
    for (int turn = 1; turn < nranks; turn++) { /* what goes out in a turn, comes in in another */
        int peer = (rank + turn) % nranks;
        shipments[turn - 1] = (tw__transfer){.peer = peer, .out = r->out[peer], .in = r->in[peer]};
    }
    r->started = nranks - 1;
    TW_TRY(tw__transport_transfer(r->transport, shipments, nranks - 1));
    for (int i = 0; i < nranks - 1; i++)
        if (shipments[i].in.data != NULL)
            r->recvs[shipments[i].peer].bytes = shipments[i].in.bytes;
    return TW_OK;
}

int tw__alltoall_begin(tw__alltoall *r, tw_transport *t, tw__message_kind cargo,
                       const tw__buffer *out, tw__buffer *in, void *recvs) {
    *r = (tw__alltoall){.transport = t, .cargo = cargo, .out = out, .in = in, .recvs = recvs};
    memset(recvs, 0, tw__alltoall_memory(tw__transport_nranks(t)));
    if (cargo == TW__DEVICE)
        return carry(r);
    enlist(r);
    int status = start_receives(r);
    if (status == TW_OK)
        status = start_sends(r);
    return status == TW_OK ? TW_OK : fail_with(r, status);
}

/* Until all is done, or only until all sends were started. */
static int wait_for(tw__alltoall *r, int all) {
    tw__deadline patience = {0};
    for (;;) {
        const tw__message *receiving = NULL, *sending = NULL;
        int status = progress(r, &receiving, &sending);
        if (status == TW_OK && done_sending(r) && (!all || (!sending && !receiving)))
            return TW_OK;
        if (status == TW_OK)
            status = test_others(r);
        if (status == TW_OK)
            status = tw__transport_pause(r->transport, &patience,
                                         all && receiving ? receiving : sending);
        if (status != TW_OK)
            return fail_with(r, status);
    }
}

int tw__alltoall_flush(tw__alltoall *r) {
    return wait_for(r, 0);
}

/* Nothing more of this sender is to be told in the first `count` rotations: one of them may be without
 * a message of his. */
static int is_told(const tw__alltoall *all, int count, int from) {
    int told = 1;
    for (int at = 0; at < count; at++)
        told &= all[at].in[from].data == NULL || all[at].recvs[from].taken;
    return told;
}

/* The sender of the first message that has come and that nobody was told of, and whose earlier ones
 * were told of, in rotation `at` of all; -1 if there is none. */
static int take_one(tw__alltoall *all, int at) {
    tw__alltoall *r = &all[at];
    int rank = tw__transport_rank(r->transport), nranks = tw__transport_nranks(r->transport);
    for (int turn = 1; turn < nranks; turn++) {
        int from = (rank - turn + nranks) % nranks;
        tw__message *message = &r->recvs[from];
        if (is_told(r, 1, from) || message->request != NULL || !is_told(all, at, from))
            continue;
        message->taken = 1;
        r->in[from].bytes = message->bytes;
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

/* In a simulated network messages of a rotation have come when its last has: what was computed on them
 * comes after that. */
static int end_all(tw__alltoall *all, int count) {
    int status = TW_OK;
    for (int at = 0; at < count && status == TW_OK; at++) {
        status = tw__alltoall_end(&all[at]);
        tw__transport_spend(all->transport, all[at].worked);
    }
    return status;
}

int tw__alltoalls_next(tw__alltoall *all, int count, int *which, int *from) {
    tw__deadline patience = {0};
    all[*which].worked += tw__transport_spent(all->transport);
    for (;;) {
        const tw__message *receiving = NULL;
        int status = progress_all(all, count, &receiving);
        for (*which = 0, *from = -1; *which < count && status == TW_OK; ++*which) {
            *from = take_one(all, *which);
            if (*from >= 0)
                return TW_OK;
        }
        if (status == TW_OK && receiving == NULL)
            return end_all(all, count);
        if (status == TW_OK)
            status = tw__transport_pause(all->transport, &patience, receiving);
        if (status != TW_OK)
            return fail_with(all, status);
    }
}

int tw__alltoall_end(tw__alltoall *r) {
    int rank = tw__transport_rank(r->transport), nranks = tw__transport_nranks(r->transport);
    TW_TRY(wait_for(r, 1));
    delist(r);
    tw__transport_settle(r->transport, r->sends, TW__WINDOW);
    tw__transport_settle(r->transport, r->recvs, nranks);
    for (int i = 0; i < nranks; i++)
        if (i != rank)
            r->in[i].bytes = r->recvs[i].bytes;
    return TW_OK;
}

int tw__alltoall_run(tw_transport *t, tw__message_kind cargo, const tw__buffer *out, tw__buffer *in,
                     void *scratch) {
    tw__alltoall r;
    TW_TRY(tw__alltoall_begin(&r, t, cargo, out, in, scratch));
    return tw__alltoall_end(&r);
}

/* ---- from rank to rank */

static int pass_on(tw_transport *t, tw__message_kind cargo, const tw__buffer *out, tw__buffer *in) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    tw__message messages[2] = {{0}};
    int status = tw__transport_recv(t, (rank - 1 + nranks) % nranks, cargo, in->data, in->capacity,
                                    &messages[0]);
    if (status == TW_OK)
        status =
            tw__transport_send(t, (rank + 1) % nranks, cargo, out->data, out->bytes, &messages[1]);
    if (status != TW_OK) {
        tw__transport_cancel(t, messages, 2);
        return tw__transport_give_up(t, status);
    }
    TW_TRY(tw__transport_wait(t, messages, 2));
    in->bytes = messages[0].bytes;
    return TW_OK;
}

int tw__allgather_ring(tw_transport *t, tw__message_kind cargo, const tw__buffer *own,
                       tw__buffer *in) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    for (int turn = 1; turn < nranks; turn++) {
        const tw__buffer *out = turn == 1 ? own : &in[(rank - turn + 1 + nranks) % nranks];
        TW_TRY(pass_on(t, cargo, out, &in[(rank - turn + nranks) % nranks]));
    }
    return TW_OK;
}

/* ---- records and counts, all of which have a length that is known */

typedef struct table {
    tw__buffer *out; /* [nranks] */
    tw__buffer *in;  /* [nranks] */
    void *recvs;
} table;

static table table_in(void *scratch, int nranks) {
    tw__buffer *parcels = scratch;
    return (table){parcels, parcels + nranks, parcels + 2 * (size_t)nranks};
}

/* Rotates, and sees to it that every message fills its place. */
static int rotate_exactly(tw_transport *t, const table *all) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    TW_TRY(tw__alltoall_run(t, TW__CONTROL, all->out, all->in, all->recvs));
    for (int i = 0; i < nranks; i++)
        if (i != rank && all->in[i].bytes != all->in[i].capacity)
            return tw__transport_give_up(
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
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    char *record = records;
    if (nranks == 1)
        return TW_OK;
    table all = table_in(scratch, nranks);
    for (int i = 0; i < nranks; i++) {
        all.out[i] = (tw__buffer){.data = record + (size_t)rank * bytes, .bytes = bytes};
        all.in[i] = (tw__buffer){.data = record + (size_t)i * bytes, .capacity = bytes};
    }
    return rotate_exactly(t, &all);
}

/* ---- sums */

/* Slice j of the counts, which rank j adds up. */
typedef struct slice {
    uint32_t *counts;
    size_t bytes;
} slice;

static slice slice_of(uint32_t *counts, int64_t count, int j, int nranks) {
    int64_t begin = count * j / nranks, end = count * (j + 1) / nranks;
    return (slice){counts + begin, (size_t)(end - begin) * sizeof *counts};
}

/* Bytes of the largest slice. */
static size_t most_bytes(int64_t count, int nranks) {
    return (size_t)((count + nranks - 1) / nranks) * sizeof(uint32_t);
}

/* What comes before the other ranks' slices, in whole lines. */
static size_t table_bytes(int nranks) {
    return (tw__allgather_memory(nranks) + TW__ALIGNMENT - 1) / TW__ALIGNMENT * TW__ALIGNMENT;
}

size_t tw__sum_counts_memory(int nranks, int64_t count) {
    return table_bytes(nranks) + (size_t)nranks * most_bytes(count, nranks);
}

static int gather_slice(tw_transport *t, uint32_t *counts, int64_t count, const table *all,
                        char *room) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    slice own = slice_of(counts, count, rank, nranks);
    for (int i = 0; i < nranks; i++) {
        slice its = slice_of(counts, count, i, nranks);
        all->out[i] = (tw__buffer){.data = its.counts, .bytes = its.bytes};
        all->in[i] = (tw__buffer){.data = room + (size_t)i * most_bytes(count, nranks),
                                  .capacity = own.bytes};
    }
    return rotate_exactly(t, all);
}

static void add_up(slice own, int rank, int nranks, const tw__buffer *in) {
    size_t length = own.bytes / sizeof *own.counts;
    for (int i = 0; i < nranks; i++) {
        const uint32_t *theirs = in[i].data;
        for (size_t c = 0; i != rank && c < length; c++)
            own.counts[c] += theirs[c];
    }
}

static int spread_slice(tw_transport *t, uint32_t *counts, int64_t count, const table *all) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    slice own = slice_of(counts, count, rank, nranks);
    for (int i = 0; i < nranks; i++) {
        slice its = slice_of(counts, count, i, nranks);
        all->out[i] = (tw__buffer){.data = own.counts, .bytes = own.bytes};
        all->in[i] = (tw__buffer){.data = its.counts, .capacity = its.bytes};
    }
    return rotate_exactly(t, all);
}

int tw__sum_counts(tw_transport *t, uint32_t *counts, int64_t count, void *scratch) {
    int rank = tw__transport_rank(t), nranks = tw__transport_nranks(t);
    if (nranks == 1 || count == 0)
        return TW_OK;
    assert((uintptr_t)scratch % TW__ALIGNMENT == 0);
    table all = table_in(scratch, nranks);
    TW_TRY(gather_slice(t, counts, count, &all, (char *)scratch + table_bytes(nranks)));
    add_up(slice_of(counts, count, rank, nranks), rank, nranks, all.in);
    return spread_slice(t, counts, count, &all);
}
