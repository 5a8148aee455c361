/* device_transport.c - device memory from rank to rank; see backend.h */
#include "backend/backend.h"
#include "transport/transport.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <assert.h>
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

/* A part of a transfer on its way through the host. */
typedef struct chunk {
    int peer;
    char *device; /* where it lies on the device */
    char *host;   /* and in host memory */
    size_t bytes;
    int event; /* sending: which copy must be over */
    int gone;  /* sent, or received and copied up */
    tw__message message;
} chunk;

enum { OUT, IN };

struct tw__device_transport {
    tw_transport *transport;
    const tw__backend *backend;
    tw__stream *stream;
    int nranks;
    offer *offers[2];           /* [nranks]: made, taken */
    tw__message *messages;      /* [2 * nranks] */
    tw_device_message *grouped; /* [2 * nranks] */
    tw__transfer *transfers;    /* [nranks] */
    char *staging[2];           /* [most] host memory: out, in */
    chunk *chunks[2];           /* [nchunks] */
    void **events;              /* [nchunks] */
    void *done;                 /* the event that ends a lent exchange */
    int64_t nchunks;            /* 0: nothing is staged */
    void *memory;               /* of all arrays but staging */
};

/* ---- offers */

/* For the messages that were started, unless starting them failed. */
static int wait_for(tw__device_transport *d, int error, int started) {
    if (error == TW_OK)
        return tw__transport_wait(d->transport, d->messages, started);
    tw__transport_cancel(d->transport, d->messages, started);
    return error;
}

static int start_offers(tw__device_transport *d, tw__transfer *transfers, int count, int *many) {
    for (int i = 0; i < count; i++) {
        tw__transfer *s = &transfers[i];
        if (s->in.data != NULL)
            TW_TRY(tw__transport_recv(d->transport, s->peer, TW__CONTROL, &d->offers[IN][i],
                                      sizeof(offer), &d->messages[(*many)++]));
        if (s->out.data == NULL)
            continue;
        d->offers[OUT][i] = (offer){s->out.bytes, (uint64_t)(uintptr_t)s->out.data};
        TW_TRY(tw__transport_send(d->transport, s->peer, TW__CONTROL, &d->offers[OUT][i],
                                  sizeof(offer), &d->messages[(*many)++]));
    }
    return TW_OK;
}

/* Afterwards in.bytes is known. */
static int exchange_offers(tw__device_transport *d, tw__transfer *transfers, int count) {
    int many = 0, at = 0;
    int error = start_offers(d, transfers, count, &many);
    TW_TRY(wait_for(d, error, many));
    for (int i = 0; i < count; i++) {
        tw__buffer *in = &transfers[i].in;
        const offer *o = &d->offers[IN][i];
        if (in->data != NULL && (d->messages[at].bytes != sizeof *o || o->bytes > in->capacity))
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: offers %llu bytes; possible are %zu",
                            transfers[i].peer, (unsigned long long)o->bytes, in->capacity);
        if (in->data != NULL)
            in->bytes = (size_t)o->bytes;
        at += (in->data != NULL) + (transfers[i].out.data != NULL);
    }
    return TW_OK;
}

/* ---- direct */

/* Whoever has copied says so, since the sender goes on to use its memory for other things. */
static int start_receipts(tw__device_transport *d, const tw__transfer *transfers, int count,
                          int *many) {
    for (int i = 0; i < count; i++) {
        const tw__transfer *s = &transfers[i];
        if (s->out.data != NULL)
            TW_TRY(tw__transport_recv(d->transport, s->peer, TW__CONTROL, &d->offers[IN][i],
                                      sizeof(offer), &d->messages[(*many)++]));
        if (s->in.data != NULL)
            TW_TRY(tw__transport_send(d->transport, s->peer, TW__CONTROL, &d->offers[OUT][i], 0,
                                      &d->messages[(*many)++]));
    }
    return TW_OK;
}

static int transfer_direct(void *context, tw__transfer *transfers, int count) {
    tw__device_transport *d = context;
    int many = 0;
    TW_TRY(exchange_offers(d, transfers, count));
    int copied = TW_OK;
    for (int i = 0; i < count && copied == TW_OK; i++)
        if (transfers[i].in.data != NULL && transfers[i].in.bytes > 0)
            copied = d->backend->copy(d->stream, transfers[i].in.data,
                                      (const void *)(uintptr_t)d->offers[IN][i].address,
                                      transfers[i].in.bytes);
    int waited = d->backend->stream_wait(
        d->stream); /* also after a failure: peers' memory is not read any more */
    TW_TRY(copied);
    TW_TRY(waited);
    tw__transport_count(d->transport, transfers, count);
    int error = start_receipts(d, transfers, count, &many);
    return wait_for(d, error, many);
}

/* ---- lent */

/* What the caller's functions say: 1: they have queued the exchange, 0: not yet, or an error. */
static int lent_progress(const tw__lent *lent) {
    if (lent->calls.progress == NULL)
        return 1;
    tw__transport_clear_error();
    int state = lent->calls.progress(lent->context);
    if (state < 0)
        return tw__fail(TW_ERR_TRANSPORT, "the exchange between devices failed: %s",
                        tw__transport_error_text(state));
    return state == 0;
}

/* The exchange was queued, and the stream has come to its end: 1, 0, or an error. */
static int lent_reached(tw__device_transport *d, const tw__lent *lent, int *queued) {
    int state = lent_progress(lent);
    if (state <= 0)
        return state;
    if (!*queued)
        TW_TRY(d->backend->event_record(d->stream, d->backend->stream_native(d->stream), &d->done));
    *queued = 1;
    return d->backend->event_reached(d->stream, d->done);
}

/* The stream comes to its end, or the deadline does: a peer that is gone would hold it for ever. */
static int await_lent(tw__device_transport *d, const tw__lent *lent, int peer) {
    const tw__message awaited = {.peer = peer};
    tw__deadline deadline = {0};
    int queued = 0;
    for (;;) {
        int error = lent_reached(d, lent, &queued);
        if (error > 0)
            return TW_OK;
        if (error == 0)
            error = tw__transport_check(d->transport, &deadline, &awaited);
        if (error != TW_OK) {
            d->backend->stream_give_up(d->stream, !queued);
            return tw__transport_abort(d->transport, error);
        }
        tw__relax(tw__clock() - deadline.begin);
    }
}

static int transfer_lent(void *context, tw__transfer *transfers, int count) {
    tw__device_transport *d = context;
    const tw__lent *lent = tw__transport_lent(d->transport);
    int many = 0;
    TW_TRY(exchange_offers(d, transfers, count));
    for (int i = 0; i < count; i++) {
        const tw__transfer *s = &transfers[i];
        if (s->out.data != NULL && s->out.bytes > 0)
            d->grouped[many++] = (tw_device_message){
                .peer = s->peer, .sending = 1, .data = s->out.data, .bytes = s->out.bytes};
        if (s->in.data != NULL && s->in.bytes > 0)
            d->grouped[many++] = (tw_device_message){
                .peer = s->peer, .sending = 0, .data = s->in.data, .bytes = s->in.bytes};
    }
    tw__transport_count(d->transport, transfers, count);
    if (many == 0)
        return TW_OK;
    tw__transport_clear_error();
    int error =
        lent->calls.exchange(lent->context, d->grouped, many, d->backend->stream_native(d->stream));
    if (error < 0) {
        error = tw__fail(TW_ERR_TRANSPORT, "the exchange between devices failed: %s",
                         tw__transport_error_text(error));
        /* a part may be queued, and wait for a peer for ever */
        d->backend->stream_give_up(d->stream, lent->calls.progress != NULL);
        return tw__transport_abort(d->transport, error);
    }
    return await_lent(d, lent, d->grouped[0].peer);
}

/* ---- staged */

/* The chunks of a buffer, staged from `host` on. */
static int64_t cut(chunk *to, int peer, const tw__buffer *buffer, char *host, int64_t event) {
    int64_t many = 0;
    for (size_t done = 0; done < buffer->bytes; done += CHUNK, many++) {
        size_t rest = buffer->bytes - done;
        to[many] = (chunk){.peer = peer,
                           .device = (char *)buffer->data + done,
                           .host = host + done,
                           .bytes = rest < CHUNK ? rest : CHUNK,
                           .event = (int)(event + many)};
    }
    return many;
}

/* What all get alike is copied once. */
static int64_t cut_sends(tw__device_transport *d, const tw__transfer *transfers, int count) {
    int64_t many = 0, events = 0, first = 0;
    size_t used = 0, start = 0;
    const tw__buffer *last = NULL;
    for (int i = 0; i < count; i++) {
        const tw__buffer *out = &transfers[i].out;
        if (out->data == NULL)
            continue;
        if (last == NULL || out->data != last->data || out->bytes != last->bytes) {
            start = used;
            first = events;
            used += out->bytes;
            events += (int64_t)((out->bytes + CHUNK - 1) / CHUNK);
        }
        many += cut(d->chunks[OUT] + many, transfers[i].peer, out, d->staging[OUT] + start, first);
        last = out;
    }
    return many;
}

static int64_t cut_receives(tw__device_transport *d, const tw__transfer *transfers, int count) {
    int64_t many = 0;
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        const tw__buffer *in = &transfers[i].in;
        if (in->data == NULL)
            continue;
        many += cut(d->chunks[IN] + many, transfers[i].peer, in, d->staging[IN] + used, 0);
        used += in->bytes;
    }
    return many;
}

/* Queues the copies to the host, each with an event behind it. */
static int start_copies(tw__device_transport *d, int64_t many) {
    int events = 0;
    for (int64_t i = 0; i < many; i++) {
        const chunk *k = &d->chunks[OUT][i];
        if (k->event < events)
            continue;
        TW_TRY(d->backend->copy(d->stream, k->host, k->device, k->bytes));
        TW_TRY(d->backend->event_record(d->stream, d->backend->stream_native(d->stream),
                                        &d->events[k->event]));
        events = k->event + 1;
    }
    return TW_OK;
}

static int start_receives(tw__device_transport *d, int64_t many) {
    for (int64_t i = 0; i < many; i++) {
        chunk *k = &d->chunks[IN][i];
        TW_TRY(
            tw__transport_recv(d->transport, k->peer, TW__PAYLOAD, k->host, k->bytes, &k->message));
    }
    return TW_OK;
}

/* Starts the next send, if its copy is over. One at a time, so that receives are looked at in
 * between: ranks that only sent would fill each other's queues. *next is the first that is not
 * started. */
static int start_send(tw__device_transport *d, int64_t many, int64_t *next) {
    if (*next == many)
        return TW_OK;
    chunk *k = &d->chunks[OUT][*next];
    int reached = d->backend->event_reached(d->stream, d->events[k->event]);
    if (reached <= 0)
        return reached;
    ++*next;
    return tw__transport_send(d->transport, k->peer, TW__PAYLOAD, k->host, k->bytes, &k->message);
}

/* Looks at all that are under way; received ones go up to the GPU. */
static int progress(tw__device_transport *d, int direction, int64_t many,
                    const tw__message **pending) {
    for (int64_t i = 0; i < many; i++) {
        chunk *k = &d->chunks[direction][i];
        int done;
        if (k->gone)
            continue;
        TW_TRY(tw__transport_test(d->transport, &k->message, &done));
        if (!done) {
            *pending = &k->message;
            continue;
        }
        if (direction == IN && k->message.bytes != k->bytes)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, offered were %zu", k->peer,
                            k->message.bytes, k->bytes);
        if (direction == IN)
            TW_TRY(d->backend->copy(d->stream, k->device, k->host, k->bytes));
        k->gone = 1;
    }
    return TW_OK;
}

/* A copy is awaited. If it has not ended in time, nothing waits for it again. */
static int check_copy(tw__device_transport *d, tw__deadline *copying) {
    int error = tw__transport_check_device(d->transport, copying, 0);
    if (error != TW_OK)
        d->backend->stream_give_up(d->stream, 0);
    return error;
}

static int move_chunks(tw__device_transport *d, int64_t sends, int64_t receives) {
    tw__deadline deadline = {0}, copying = {0};
    int64_t next = 0;
    for (;;) {
        const tw__message *pending = NULL;
        int64_t before = next;
        TW_TRY(start_send(d, sends, &next));
        TW_TRY(progress(d, OUT, next, &pending));
        TW_TRY(progress(d, IN, receives, &pending));
        if (next == sends && pending == NULL)
            return d->backend->stream_wait(d->stream);
        if (next == sends) /* no copy is awaited, so nothing is lost by sleeping */
            TW_TRY(tw__transport_pause(d->transport, &deadline, pending));
        else if (next == before)
            TW_TRY(check_copy(d, &copying));
        else
            copying = (tw__deadline){0};
    }
}

/* What is to be done with the message of each chunk. */
static void each_message(tw__device_transport *d, int64_t sends, int64_t receives,
                         void (*act)(tw_transport *t, tw__message *messages, int count)) {
    for (int64_t i = 0; i < sends; i++)
        act(d->transport, &d->chunks[OUT][i].message, 1);
    for (int64_t i = 0; i < receives; i++)
        act(d->transport, &d->chunks[IN][i].message, 1);
}

static int transfer_staged(void *context, tw__transfer *transfers, int count) {
    tw__device_transport *d = context;
    TW_TRY(exchange_offers(d, transfers, count));
    int64_t sends = cut_sends(d, transfers, count);
    int64_t receives = cut_receives(d, transfers, count);
    int error = start_copies(d, sends);
    if (error == TW_OK)
        error = start_receives(d, receives);
    if (error == TW_OK)
        error = move_chunks(d, sends, receives);
    if (error != TW_OK) {
        (void)d->backend->stream_wait(d->stream); /* staging memory is not touched any more */
        each_message(d, sends, receives, tw__transport_cancel);
        return tw__transport_abort(d->transport, error);
    }
    each_message(d, sends, receives, tw__transport_advance_clock);
    return TW_OK;
}

/* ---- create and free */

typedef int transfer_call(void *context, tw__transfer *transfers, int count);

static transfer_call *transfer_of(const tw_transport *t) {
    if (tw__transport_lent(t) != NULL)
        return transfer_lent;
    return tw__transport_is_shared(t) ? transfer_direct : transfer_staged;
}

size_t tw__device_transport_memory(const tw_transport *transport, size_t most) {
    int nranks = 0;
    (void)tw_transport_info(transport, NULL, NULL, &nranks, NULL);
    return transfer_of(transport) == transfer_staged && nranks > 1 ? 2 * most : 0;
}

static void layout(tw__device_transport *d, tw__arena *arena) {
    for (int direction = 0; direction < 2; direction++) {
        d->offers[direction] = tw__arena_take(arena, d->nranks, sizeof(offer));
        d->chunks[direction] = tw__arena_take(arena, d->nchunks, sizeof(chunk));
    }
    d->messages = tw__arena_take(arena, 2 * (int64_t)d->nranks, sizeof *d->messages);
    d->grouped = tw__arena_take(arena, 2 * (int64_t)d->nranks, sizeof *d->grouped);
    d->transfers = tw__arena_take(arena, d->nranks, sizeof *d->transfers);
    d->events = tw__arena_take(arena, d->nchunks, sizeof(void *));
}

int tw__device_transport_create(tw__device_transport **device, tw_transport *transport,
                                const tw__backend *backend, tw__stream *stream, size_t most) {
    tw__device_transport *d = calloc(1, sizeof *d);
    if (d == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for transfers between devices");
    *device = d;
    d->transport = transport;
    d->backend = backend;
    d->stream = stream;
    (void)tw_transport_info(transport, NULL, NULL, &d->nranks, NULL);
    transfer_call *transfer = transfer_of(transport);
    /* Each rank's last chunk may not be full; what all get alike is as many for each. */
    if (tw__device_transport_memory(transport, most) > 0)
        d->nchunks = (int64_t)(most / CHUNK + 1) * d->nranks;
    tw__arena counting = {0};
    layout(d, &counting);
    d->memory = tw__alloc(counting.used);
    if (d->memory == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for messages to %d ranks", d->nranks);
    layout(d, &(tw__arena){d->memory, 0});
    for (int direction = 0; direction < 2 && d->nchunks > 0; direction++) {
        d->staging[direction] = d->backend->host_alloc(d->stream, most);
        if (d->staging[direction] == NULL)
            return tw__fail(TW_ERR_MEMORY, "no host memory for 2 x %zu bytes of staging", most);
    }
    const tw__device_calls calls = {transfer, d, d->transfers};
    tw__transport_set_device_calls(transport, &calls);
    return TW_OK;
}

void tw__device_transport_free(tw__device_transport *d) {
    if (d == NULL)
        return;
    tw__transport_set_device_calls(d->transport, NULL);
    for (int64_t i = 0; i < d->nchunks && d->memory != NULL; i++)
        d->backend->event_free(d->stream, d->events[i]);
    d->backend->event_free(d->stream, d->done);
    for (int direction = 0; direction < 2; direction++)
        if (d->staging[direction] != NULL)
            d->backend->host_free(d->stream, d->staging[direction]);
    free(d->memory);
    free(d);
}
