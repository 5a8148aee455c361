/* transport_threads.c - ranks as threads of one process
 *
 * The hub has an endpoint for each rank. An endpoint has one queue per source rank and tag. The queue
 * holds sends without a receive, or receives without a send, never both:
 *
 *     rank 0 sends to 2:  hub.endpoints[2].queues[0][tag 0] -> [send] -> [send]
 *                         hub.endpoints[2].queues[0][tag 1] -> [recv]
 *
 * Whichever of send and receive comes second takes the first out of the queue under the endpoint's
 * mutex, and copies once, without the mutex, from the sender's buffer to the receiver's. Messages are
 * taken at the head, so they stay in order, and however many wait, the next one costs the same.
 *
 * A request is WAITING in a queue, then COPYING, then DONE. Only its owner gives it back, and the
 * copying thread does not touch it after DONE. A request that waits for a rank which has freed its
 * transport fails when it is tested. So does one between a rank and another that goes on without it
 * (tw__member_calls): ranks are renumbered then, endpoints are not. Endpoints live as long as the hub, which is freed with the last
 * of them, so any thread may wake any endpoint. */
#include "base/memory.h"
#include "transport/transport_internal.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WAITING, COPYING, DONE, TOO_LONG };
enum { TAGS = 3 }; /* TW__TAG_DATA, TW__TAG_LIVENESS and TW__TAG_MEMBERS */

typedef struct request {
    struct request *prev, *next; /* in its queue */
    struct endpoint *owner;      /* of the rank that started it */
    struct endpoint *to;         /* of the receiving rank, in whose queue it waits */
    int source;                  /* which queue */
    int tag;
    int sending;
    void *data;   /* [bytes]; only read when sending */
    size_t bytes; /* length, or capacity; after a receive its length */
    _Atomic int state;
} request;

typedef struct queue {
    request *head, *tail;
} queue;

typedef struct endpoint {
    struct hub *hub;
    int rank;                /* when the hub was made */
    int *peers;              /* [hub->nranks]: the endpoint of each rank, as ranks are now */
    _Atomic int excluded;    /* others go on without this rank */
    unsigned char *kept;     /* [hub->nranks] scratch */
    pthread_mutex_t mutex;   /* guards queues and `changed` */
    pthread_cond_t changed;  /* a request of this rank is done */
    _Atomic int64_t changes; /* how often */
    int64_t seen;            /* of these; used by the rank alone */
    _Atomic int closed;      /* the rank has freed its transport */
    queue (*queues)[TAGS];   /* [nranks] by source, then by tag */
    tw__slab requests;       /* used by the rank alone */
} endpoint;

typedef struct hub {
    _Atomic int users; /* transports, and the function that creates them */
    int nranks;
    int host_ranks; /* of a simulated host; else nranks */
    endpoint endpoints[];
} hub;

/* ---- queues; the mutex of the receiving endpoint is held */

static void append(queue *q, request *r) {
    r->prev = q->tail;
    r->next = NULL;
    *(q->tail != NULL ? &q->tail->next : &q->head) = r;
    q->tail = r;
}

static void unlink_request(queue *q, request *r) {
    assert(r->prev != NULL ? r->prev->next == r : q->head == r);
    assert(r->next != NULL ? r->next->prev == r : q->tail == r);
    *(r->prev != NULL ? &r->prev->next : &q->head) = r->next;
    *(r->next != NULL ? &r->next->prev : &q->tail) = r->prev;
}

static queue *queue_of(const request *r) {
    assert(r->tag >= 0 && r->tag < TAGS);
    return &r->to->queues[r->source][r->tag];
}

/* ---- moving bytes */

static void wake(endpoint *e) {
    pthread_mutex_lock(&e->mutex);
    e->changes++;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

static void copy(request *send, request *recv) {
    int fits = send->bytes <= recv->bytes;
    assert(send->sending && !recv->sending && send->tag == recv->tag);
    if (fits && send->bytes > 0)
        memcpy(recv->data, send->data, send->bytes);
    recv->bytes = send->bytes;
    atomic_store_explicit(&recv->state, fits ? DONE : TOO_LONG, memory_order_release);
    atomic_store_explicit(&send->state, DONE, memory_order_release);
}

/* Matches a request with the one that waits for it, or queues it. */
static void match(request *r) {
    queue *q = queue_of(r);
    atomic_store_explicit(&r->state, WAITING, memory_order_relaxed);
    pthread_mutex_lock(&r->to->mutex);
    request *other = q->head != NULL && q->head->sending != r->sending ? q->head : NULL;
    if (other != NULL) {
        assert(other->state == WAITING && other->owner != r->owner);
        unlink_request(q, other);
        atomic_store_explicit(&other->state, COPYING, memory_order_relaxed);
    } else {
        append(q, r);
    }
    pthread_mutex_unlock(&r->to->mutex);
    if (other == NULL)
        return;
    endpoint *owner = other->owner; /* which may reuse `other` once it is done */
    copy(r->sending ? r : other, r->sending ? other : r);
    wake(owner);
}

/* ---- the calls */

static int start(endpoint *e, const request *what, void **handle) {
    request *r = tw__slab_take(&e->requests);
    if (r == NULL)
        return tw_transport_explain("no memory for requests");
    *r = *what;
    r->owner = e;
    *handle = r;
    match(r);
    return TW_OK;
}

static int threads_send(void *context, int peer, int tag, const void *data, size_t bytes,
                        void **handle) {
    endpoint *e = context;
    peer = e->peers[peer];
    assert(peer != e->rank && peer < e->hub->nranks);
    request what = {.to = &e->hub->endpoints[peer],
                    .source = e->rank,
                    .tag = tag,
                    .sending = 1,
                    .data = (void *)(uintptr_t)data,
                    .bytes = bytes};
    return start(e, &what, handle);
}

static int threads_recv(void *context, int peer, int tag, void *data, size_t capacity,
                        void **handle) {
    endpoint *e = context;
    peer = e->peers[peer];
    assert(peer != e->rank && peer < e->hub->nranks);
    request what = {.to = e, .source = peer, .tag = tag, .data = data, .bytes = capacity};
    return start(e, &what, handle);
}

/* Takes a request out of its queue, if it is still there. */
static int withdraw(request *r) {
    pthread_mutex_lock(&r->to->mutex);
    int waiting = atomic_load_explicit(&r->state, memory_order_relaxed) == WAITING;
    if (waiting)
        unlink_request(queue_of(r), r);
    pthread_mutex_unlock(&r->to->mutex);
    return waiting;
}

static int test_waiting(endpoint *e, request *r) {
    const endpoint *peer = r->sending ? r->to : &e->hub->endpoints[r->source];
    int closed = atomic_load_explicit(&peer->closed, memory_order_acquire);
    if ((!closed && peer->excluded == e->excluded) || !withdraw(r))
        return 0;
    tw__slab_put(&e->requests, r);
    if (closed || !e->excluded)
        return tw_transport_explain(closed ? "it has freed its transport"
                                           : "the others go on without it");
    (void)tw_transport_explain("it goes on without this rank");
    return TW_ERR_EXCLUDED;
}

static int threads_test(void *context, void *handle, size_t *bytes) {
    endpoint *e = context;
    request *r = handle;
    assert(r->owner == e);
    int state = atomic_load_explicit(&r->state, memory_order_acquire);
    if (state == WAITING)
        return test_waiting(e, r);
    if (state == COPYING)
        return 0;
    *bytes = r->bytes;
    tw__slab_put(&e->requests, r);
    if (state == TOO_LONG)
        return tw_transport_explain("the message of %zu bytes is longer than expected", *bytes);
    return 1;
}

/* Until a request is done, or was since the last call. Yields first: often another rank then sends
 * what this one waits for, and sleeping costs more. With 2 yields an alltoall of 64 bytes takes 21 us
 * with 8 ranks on 2 cores and 0.65 ms with 64 ranks; without, 56 us and 3.3 ms; with 16, no less. */
static void threads_idle(void *context, int64_t microseconds) {
    endpoint *e = context;
    for (int i = 0; i < 2 && e->changes == e->seen; i++)
        sched_yield();
    int64_t until = tw__clock() + microseconds * 1000;
    struct timespec at = {.tv_sec = (time_t)(until / TW__SECOND),
                          .tv_nsec = (long)(until % TW__SECOND)};
    int timed_out = 0;
    pthread_mutex_lock(&e->mutex);
    while (e->changes == e->seen && !timed_out)
        timed_out = pthread_cond_timedwait(&e->changed, &e->mutex, &at) != 0;
    e->seen = e->changes;
    pthread_mutex_unlock(&e->mutex);
}

/* A copy that has begun is short; wait for its end. */
static void threads_cancel(void *context, void *handle) {
    endpoint *e = context;
    request *r = handle;
    size_t bytes = 0;
    if (withdraw(r))
        tw__slab_put(&e->requests, r);
    else
        while (threads_test(e, r, &bytes) == 0)
            threads_idle(e, 10000);
}

/* ---- create and free */

static void free_hub(hub *h) {
    for (int i = 0; i < h->nranks; i++) {
        endpoint *e = &h->endpoints[i];
        tw__slab_free(&e->requests);
        free(e->queues);
        free(e->peers);
        free(e->kept);
        pthread_cond_destroy(&e->changed);
        pthread_mutex_destroy(&e->mutex);
    }
    free(h);
}

static void release_hub(hub *h) {
    int before = atomic_fetch_sub_explicit(&h->users, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        free_hub(h);
}

/* Ranks that wait for this one notice when they next look, TW__LIVENESS_PERIOD later at most. */
static void threads_close(void *context) {
    endpoint *e = context;
    atomic_store_explicit(&e->closed, 1, memory_order_release);
    release_hub(e->hub);
}

static int threads_host(void *context, int rank) {
    const hub *h = ((endpoint *)context)->hub;
    return rank - rank % h->host_ranks;
}

/* Requests are cancelled by the ranks that started them: none of an earlier membership is left. */
static void threads_begin_change(void *context) {
    (void)context;
}

static void threads_keep(void *context, const int *ranks, int nranks) {
    endpoint *e = context;
    unsigned char *kept = e->kept;
    memset(kept, 0, (size_t)e->hub->nranks);
    for (int i = 0; i < nranks; i++) {
        e->peers[i] = e->peers[ranks[i]];
        kept[e->peers[i]] = 1;
    }
    for (int i = 0; i < e->hub->nranks; i++)
        if (!kept[i])
            e->hub->endpoints[i].excluded = 1;
}

static const tw__member_calls threads_member_calls = {threads_begin_change, threads_keep, NULL,
                                                      NULL};

static const tw_transport_calls threads_calls = {
    .name = "threads",
    .send = threads_send,
    .recv = threads_recv,
    .test = threads_test,
    .cancel = threads_cancel,
    .idle = threads_idle,
    .close = threads_close,
    .host = threads_host,
};

/* Returns 0 when memory is out. */
static int init_endpoint(endpoint *e, hub *h, int rank) {
    e->hub = h;
    e->rank = rank;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&e->mutex, NULL);
    /* calloc: pages of large arrays are zero and not touched before they are used. */
    e->queues = calloc((size_t)h->nranks, sizeof *e->queues);
    /* The receives of three alltoalls, their sends, and a liveness check. */
    e->peers = malloc((size_t)h->nranks * sizeof *e->peers);
    e->kept = malloc((size_t)h->nranks);
    for (int i = 0; i < h->nranks && e->peers != NULL; i++)
        e->peers[i] = i;
    return e->queues != NULL && e->peers != NULL && e->kept != NULL &&
           tw__slab_init(&e->requests, sizeof(request), 7 * (size_t)h->nranks + 64);
}

/* NULL when memory is out. */
static hub *create_hub(int nranks, int host_ranks) {
    hub *h = calloc(1, sizeof(hub) + (size_t)nranks * sizeof(endpoint));
    int complete = 1;
    if (h == NULL)
        return NULL;
    h->nranks = nranks;
    h->host_ranks = host_ranks;
    atomic_init(&h->users, 1);
    for (int i = 0; i < nranks; i++)
        complete &= init_endpoint(&h->endpoints[i], h, i);
    if (!complete)
        free_hub(h);
    return complete ? h : NULL;
}

int tw__transport_threads_create(tw_transport **transports, int nranks, int host_ranks) {
    int status = TW_OK;
    TW_REQUIRE(transports, "transports");
    TW_TRY(tw__transport_check_ranks(0, nranks));
    assert(host_ranks > 0);
    memset(transports, 0, (size_t)nranks * sizeof(tw_transport *));
    hub *h = create_hub(nranks, host_ranks);
    if (h == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks; lower nranks", nranks);
    for (int i = 0; i < nranks && status == TW_OK; i++) {
        status = tw_transport_custom(&transports[i], &threads_calls, &h->endpoints[i], i, nranks);
        if (status == TW_OK) {
            transports[i]->shared = 1;
            transports[i]->member_calls = &threads_member_calls;
            h->users++;
        }
    }
    for (int i = 0; i < nranks && status != TW_OK; i++) {
        tw_transport_free(transports[i]);
        transports[i] = NULL;
    }
    release_hub(h);
    return status;
}

int tw_transport_threads(tw_transport **transports, int nranks) {
    TW_TRY(tw__transport_check_ranks(0, nranks));
    return tw__transport_threads_create(transports, nranks, nranks);
}
