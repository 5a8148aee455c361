/* carrier.c - entries from GPU to GPU; see carrier.h */
#include "backend/cuda/device_transport.h"

#include <stdlib.h>

/* Long enough that a message's own cost does not show, short enough that copying and sending
 * overlap: 1 MiB takes a PCIe link 20 us and 25 Gbit/s 330. */
#ifndef CHUNK /* tests have shorter ones */
#define CHUNK ((size_t)1 << 20)
#endif

/* What a sender tells the receiver. */
typedef struct offer {
    uint64_t bytes;
    uint64_t address;
} offer;

/* A part of a shipment on its way through the host. */
typedef struct chunk {
    int peer;
    char *there; /* on the GPU */
    char *here;  /* pinned */
    size_t bytes;
    int event; /* sending: which copy must be over */
    int gone;  /* sent, or received and copied up */
    tw__message message;
} chunk;

struct tw__device_transport {
    tw_transport *transport;
    tw__device_stream *lane;
    int nranks;
    offer *offers[2];           /* [nranks]: made, taken */
    tw__message *messages;      /* [2 * nranks] */
    tw_device_message *grouped; /* [2 * nranks] */
    tw__transfer *shipments;    /* [nranks] */
    char *pinned[2];            /* [most]: on the way out, on the way in */
    chunk *chunks[2];           /* [nchunks] */
    void **events;              /* [nchunks] */
    void *done;                 /* the event that ends a lent exchange */
    int64_t nchunks;
};

/* ---- offers */

/* For the messages that were started, unless starting them failed. */
static int wait_for(tw__device_transport *c, int error, int started) {
    if (error == TW_OK)
        return tw__transport_wait(c->transport, c->messages, started);
    tw__transport_cancel(c->transport, c->messages, started);
    return error;
}

static int start_offers(tw__device_transport *c, tw__transfer *shipments, int count, int *many) {
    for (int i = 0; i < count; i++) {
        tw__transfer *s = &shipments[i];
        if (s->in.data != NULL)
            TW_TRY(tw__transport_recv(c->transport, s->peer, TW__CONTROL, &c->offers[1][i],
                                      sizeof(offer), &c->messages[(*many)++]));
        if (s->out.data == NULL)
            continue;
        c->offers[0][i] = (offer){s->out.bytes, (uint64_t)(uintptr_t)s->out.data};
        TW_TRY(tw__transport_send(c->transport, s->peer, TW__CONTROL, &c->offers[0][i],
                                  sizeof(offer), &c->messages[(*many)++]));
    }
    return TW_OK;
}

static int check_offer(const tw__message *message, const offer *o, const tw__transfer *s) {
    if (message->bytes != sizeof *o || o->bytes > s->in.capacity)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: offers %llu bytes; possible are %zu", s->peer,
                        (unsigned long long)o->bytes, s->in.capacity);
    return TW_OK;
}

/* Afterwards in.bytes is known. */
static int exchange_offers(tw__device_transport *c, tw__transfer *shipments, int count) {
    int many = 0, at = 0;
    int error = start_offers(c, shipments, count, &many);
    TW_TRY(wait_for(c, error, many));
    for (int i = 0; i < count; i++) {
        if (shipments[i].in.data != NULL) {
            TW_TRY(check_offer(&c->messages[at], &c->offers[1][i], &shipments[i]));
            shipments[i].in.bytes = (size_t)c->offers[1][i].bytes;
        }
        at += (shipments[i].in.data != NULL) + (shipments[i].out.data != NULL);
    }
    return TW_OK;
}

/* ---- direct */

/* Whoever has copied says so, since the sender goes on to use its memory for other things. */
static int start_receipts(tw__device_transport *c, const tw__transfer *shipments, int count,
                          int *many) {
    for (int i = 0; i < count; i++) {
        const tw__transfer *s = &shipments[i];
        if (s->out.data != NULL)
            TW_TRY(tw__transport_recv(c->transport, s->peer, TW__CONTROL, &c->offers[1][i],
                                      sizeof(offer), &c->messages[(*many)++]));
        if (s->in.data != NULL)
            TW_TRY(tw__transport_send(c->transport, s->peer, TW__CONTROL, &c->offers[0][i], 0,
                                      &c->messages[(*many)++]));
    }
    return TW_OK;
}

static int carry_direct(void *context, tw__transfer *shipments, int count) {
    tw__device_transport *c = context;
    int many = 0;
    TW_TRY(exchange_offers(c, shipments, count));
    int copied = TW_OK;
    for (int i = 0; i < count && copied == TW_OK; i++)
        if (shipments[i].in.data != NULL && shipments[i].in.bytes > 0)
            copied = tw__stream_copy(c->lane, shipments[i].in.data,
                                     (const void *)(uintptr_t)c->offers[1][i].address,
                                     shipments[i].in.bytes);
    int waited =
        tw__stream_wait(c->lane); /* also after a failure: peers' memory is not read any more */
    TW_TRY(copied);
    TW_TRY(waited);
    tw__transport_count(c->transport, shipments, count);
    int error = start_receipts(c, shipments, count, &many);
    return wait_for(c, error, many);
}

/* ---- lent */

/* The stream comes to its end, or the deadline does: a peer that is gone would hold it for ever. */
static int await_stream(tw__device_transport *c, int peer) {
    const tw__message awaited = {.peer = peer};
    tw__deadline patience = {0};
    TW_TRY(tw__stream_mark(c->lane, tw__stream_native(c->lane), &c->done));
    for (;;) {
        int reached = tw__stream_reached(c->done);
        if (reached != 0)
            return reached < 0 ? reached : TW_OK;
        int error = tw__transport_pause(c->transport, &patience, &awaited);
        if (error != TW_OK)
            return tw__transport_give_up(c->transport, error);
    }
}

static int carry_lent(void *context, tw__transfer *shipments, int count) {
    tw__device_transport *c = context;
    void *lent;
    tw_device_exchange *exchange = tw__transport_device(c->transport, &lent);
    int many = 0;
    TW_TRY(exchange_offers(c, shipments, count));
    for (int i = 0; i < count; i++) {
        const tw__transfer *s = &shipments[i];
        if (s->out.data != NULL && s->out.bytes > 0)
            c->grouped[many++] = (tw_device_message){s->peer, 1, s->out.data, s->out.bytes};
        if (s->in.data != NULL && s->in.bytes > 0)
            c->grouped[many++] = (tw_device_message){s->peer, 0, s->in.data, s->in.bytes};
    }
    tw__transport_count(c->transport, shipments, count);
    if (many == 0)
        return TW_OK;
    tw__transport_forget_failure();
    int error = exchange(lent, c->grouped, many, tw__stream_native(c->lane));
    if (error < 0)
        return tw__fail(TW_ERR_TRANSPORT, "the exchange between GPUs failed: %s",
                        tw__transport_words(error));
    return await_stream(c, c->grouped[0].peer);
}

/* ---- staged */

/* The chunks of a parcel, from `here` on. */
static int64_t cut(chunk *to, int peer, const tw__buffer *parcel, char *here, int64_t event) {
    int64_t many = 0;
    for (size_t done = 0; done < parcel->bytes; done += CHUNK, many++) {
        size_t rest = parcel->bytes - done;
        to[many] = (chunk){.peer = peer,
                           .there = (char *)parcel->data + done,
                           .here = here + done,
                           .bytes = rest < CHUNK ? rest : CHUNK,
                           .event = (int)(event + many)};
    }
    return many;
}

/* What all get alike is copied once. */
static int64_t cut_sends(tw__device_transport *c, const tw__transfer *shipments, int count) {
    int64_t many = 0, events = 0, first = 0;
    size_t used = 0, start = 0;
    const tw__buffer *last = NULL;
    for (int i = 0; i < count; i++) {
        const tw__buffer *out = &shipments[i].out;
        if (out->data == NULL)
            continue;
        if (last == NULL || out->data != last->data || out->bytes != last->bytes) {
            start = used;
            first = events;
            used += out->bytes;
            events += (int64_t)((out->bytes + CHUNK - 1) / CHUNK);
        }
        many += cut(c->chunks[0] + many, shipments[i].peer, out, c->pinned[0] + start, first);
        last = out;
    }
    return many;
}

static int64_t cut_receives(tw__device_transport *c, const tw__transfer *shipments, int count) {
    int64_t many = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        const tw__buffer *in = &shipments[i].in;
        if (in->data == NULL)
            continue;
        many += cut(c->chunks[1] + many, shipments[i].peer, in, c->pinned[1] + used, 0);
        used += in->bytes;
    }
    return many;
}

/* Queues the copies to the host, each with an event behind it. */
static int start_copies(tw__device_transport *c, int64_t many) {
    int events = 0;
    for (int64_t i = 0; i < many; i++) {
        const chunk *k = &c->chunks[0][i];
        if (k->event < events)
            continue;
        TW_TRY(tw__stream_copy(c->lane, k->here, k->there, k->bytes));
        TW_TRY(tw__stream_mark(c->lane, tw__stream_native(c->lane), &c->events[k->event]));
        events = k->event + 1;
    }
    return TW_OK;
}

static int start_receives(tw__device_transport *c, int64_t many) {
    for (int64_t i = 0; i < many; i++) {
        chunk *k = &c->chunks[1][i];
        TW_TRY(
            tw__transport_recv(c->transport, k->peer, TW__PAYLOAD, k->here, k->bytes, &k->message));
    }
    return TW_OK;
}

/* Starts the next send, if its copy is over. One at a time, so that receives are looked at in
 * between: ranks that only sent would fill each other's queues. *next is the first that is not
 * started. */
static int start_send(tw__device_transport *c, int64_t many, int64_t *next) {
    if (*next == many)
        return TW_OK;
    chunk *k = &c->chunks[0][*next];
    int reached = tw__stream_reached(c->events[k->event]);
    if (reached <= 0)
        return reached;
    ++*next;
    return tw__transport_send(c->transport, k->peer, TW__PAYLOAD, k->here, k->bytes, &k->message);
}

/* Looks at all that are under way; received ones go up to the GPU. */
static int progress(tw__device_transport *c, int side, int64_t many, const tw__message **pending) {
    for (int64_t i = 0; i < many; i++) {
        chunk *k = &c->chunks[side][i];
        int done;
        if (k->gone)
            continue;
        TW_TRY(tw__transport_test(c->transport, &k->message, &done));
        if (!done) {
            *pending = &k->message;
            continue;
        }
        if (side == 1 && k->message.bytes != k->bytes)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, offered were %zu", k->peer,
                            k->message.bytes, k->bytes);
        if (side == 1)
            TW_TRY(tw__stream_copy(c->lane, k->there, k->here, k->bytes));
        k->gone = 1;
    }
    return TW_OK;
}

static int move_chunks(tw__device_transport *c, int64_t sends, int64_t receives) {
    tw__deadline patience = {0};
    int64_t next = 0;
    for (;;) {
        const tw__message *pending = NULL;
        TW_TRY(start_send(c, sends, &next));
        TW_TRY(progress(c, 0, next, &pending));
        TW_TRY(progress(c, 1, receives, &pending));
        if (next == sends && pending == NULL)
            return tw__stream_wait(c->lane);
        if (next == sends) /* no copy is awaited, so nothing is lost by sleeping */
            TW_TRY(tw__transport_pause(c->transport, &patience, pending));
    }
}

static void cancel_chunks(tw__device_transport *c, int64_t sends, int64_t receives) {
    for (int64_t i = 0; i < sends; i++)
        tw__transport_cancel(c->transport, &c->chunks[0][i].message, 1);
    for (int64_t i = 0; i < receives; i++)
        tw__transport_cancel(c->transport, &c->chunks[1][i].message, 1);
}

/* In a simulated network, time has passed. */
static void settle_chunks(tw__device_transport *c, int side, int64_t many) {
    for (int64_t i = 0; i < many; i++)
        tw__transport_settle(c->transport, &c->chunks[side][i].message, 1);
}

static int carry_staged(void *context, tw__transfer *shipments, int count) {
    tw__device_transport *c = context;
    TW_TRY(exchange_offers(c, shipments, count));
    int64_t sends = cut_sends(c, shipments, count);
    int64_t receives = cut_receives(c, shipments, count);
    int error = start_copies(c, sends);
    if (error == TW_OK)
        error = start_receives(c, receives);
    if (error == TW_OK)
        error = move_chunks(c, sends, receives);
    if (error != TW_OK) {
        (void)tw__stream_wait(c->lane); /* pinned memory is not touched any more */
        cancel_chunks(c, sends, receives);
        return tw__transport_give_up(c->transport, error);
    }
    settle_chunks(c, 0, sends);
    settle_chunks(c, 1, receives);
    return TW_OK;
}

/* ---- create and free */

typedef int carry_call(void *context, tw__transfer *shipments, int count);

static carry_call *way_of(const tw_transport *t) {
    void *lent;
    if (tw__transport_device(t, &lent) != NULL)
        return carry_lent;
    int direct = tw__transport_is_shared(t) && !tw__transport_is_simulated(t);
    return direct ? carry_direct : carry_staged;
}

/* Chunks of `most` bytes, each rank's last one not full; what all get alike is as many for each. */
static int64_t chunks_of(int nranks, size_t most) {
    return (int64_t)(most / CHUNK + 1) * nranks;
}

size_t tw__device_transport_memory(const tw_transport *transport, size_t most) {
    int alone = tw__transport_nranks(transport) == 1;
    return way_of(transport) == carry_staged && !alone ? 2 * most : 0;
}

static int open_staging(tw__device_transport *c, size_t most) {
    c->nchunks = chunks_of(c->nranks, most);
    c->events = calloc((size_t)c->nchunks, sizeof *c->events);
    for (int side = 0; side < 2; side++) {
        c->chunks[side] = calloc((size_t)c->nchunks, sizeof *c->chunks[side]);
        c->pinned[side] = tw__stream_pinned(c->lane, most);
    }
    if (c->events == NULL || c->chunks[0] == NULL || c->chunks[1] == NULL || c->pinned[0] == NULL ||
        c->pinned[1] == NULL)
        return tw__fail(TW_ERR_MEMORY, "2 x %zu bytes of pinned memory are not to be had", most);
    return TW_OK;
}

int tw__device_transport_create(tw__device_transport **carrier, tw_transport *transport,
                                tw__device_stream *lane, size_t most) {
    tw__device_transport *c = calloc(1, sizeof *c);
    if (c == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *c);
    *carrier = c;
    c->transport = transport;
    c->lane = lane;
    c->nranks = tw__transport_nranks(transport);
    size_t nranks = (size_t)c->nranks;
    c->offers[0] = calloc(nranks, sizeof(offer));
    c->offers[1] = calloc(nranks, sizeof(offer));
    c->messages = calloc(2 * nranks, sizeof *c->messages);
    c->grouped = calloc(2 * nranks, sizeof *c->grouped);
    c->shipments = calloc(nranks, sizeof *c->shipments);
    if (c->offers[0] == NULL || c->offers[1] == NULL || c->messages == NULL || c->grouped == NULL ||
        c->shipments == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for messages to %d ranks", c->nranks);
    carry_call *way = way_of(transport);
    if (way == carry_staged && c->nranks > 1)
        TW_TRY(open_staging(c, most));
    const tw__device_calls lends = {way, c, c->shipments};
    tw__transport_set_device_calls(transport, &lends);
    return TW_OK;
}

void tw__device_transport_free(tw__device_transport *c) {
    if (c == NULL)
        return;
    tw__transport_set_device_calls(c->transport, NULL);
    for (int64_t i = 0; i < c->nchunks && c->events != NULL; i++)
        tw__stream_forget(c->events[i]);
    tw__stream_forget(c->done);
    for (int side = 0; side < 2; side++) {
        if (c->pinned[side] != NULL)
            tw__stream_unpin(c->pinned[side]);
        free(c->chunks[side]);
        free(c->offers[side]);
    }
    free(c->events);
    free(c->messages);
    free(c->grouped);
    free(c->shipments);
    free(c);
}
