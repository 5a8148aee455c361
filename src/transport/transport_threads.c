/* transport_threads.c - ranks as threads of one process
 *
 * The hub has an end for each rank. An end's inbox has one queue per source, of sends that nobody
 * received yet and of receives for which nothing was sent yet:
 *
 *     rank 0 sends to 2:  hub.ends[2].queues[0] -> [send tag 0] -> [send tag 0] -> [recv tag 1]
 *
 * Whoever comes second finds the first one's request in the queue, takes it out under the inbox's
 * lock and copies without it, once, from the sender's buffer to the receiver's. Under one tag a
 * queue holds sends or receives, never both, and is searched from its head: so messages stay in
 * order.
 *
 * A request is waiting in a queue, then being copied, then done. Only its owner gives it back, and
 * after `done` the copying thread does not touch it any more. Ends live as long as the hub, which
 * goes with the last of them: so a bell can be rung whenever. */
#include "base/clock.h"
#include "base/memory.h"
#include "transport/simulated_clock.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WAITING, COPYING, DONE, TOO_LONG };

typedef struct request {
    struct request *prev, *next; /* in its queue; next also among the free ones */
    struct end *owner;           /* whose rank started it */
    struct end *inbox;           /* whose queue it is in */
    int source;                  /* which queue */
    int tag;
    int sending;
    void *data;   /* [bytes]; only read when sending */
    size_t bytes; /* length, or capacity; of a received one its length */
    _Atomic int state;
} request;

typedef struct queue {
    request *head, *tail;
} queue;

/* Requests are made by the block; those that were never used were never touched. */
typedef struct block {
    struct block *next;
    int used, size;
    request requests[];
} block;

typedef struct end {
    struct hub *hub;
    int rank;
    pthread_mutex_t mutex; /* guards queues and the bell */
    pthread_cond_t bell;   /* something of this rank is done */
    _Atomic int64_t rung;  /* how often */
    int64_t heard;         /* how often the rank knows of */
    queue *queues;         /* [nranks] by source */
    block *blocks;         /* newest first; these two are the owner's alone */
    request *unused;
} end;

typedef struct hub {
    _Atomic int open; /* ends that were not freed */
    int nranks;
    int host_ranks; /* simulated hosts; else all ranks are on one */
    end ends[];
} hub;

/* ---- requests */

/* Room for the receives of three rotations, their sends, and a roll call. */
static int generous(int nranks) {
    return 7 * nranks + 64;
}

static int add_block(end *e, int size) {
    size_t bytes = sizeof(block) + (size_t)size * sizeof(request);
    block *b = tw__reserve(bytes);
    if (b == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had; lower nranks", bytes);
    b->next = e->blocks;
    b->used = 0;
    b->size = size;
    e->blocks = b;
    return TW_OK;
}

static request *take(end *e) {
    request *r = e->unused;
    if (r != NULL) {
        e->unused = r->next;
        return r;
    }
    if (e->blocks->used == e->blocks->size && add_block(e, generous(e->hub->nranks)) != TW_OK)
        return NULL;
    return &e->blocks->requests[e->blocks->used++];
}

static void give_back(request *r) {
    r->next = r->owner->unused;
    r->owner->unused = r;
}

/* ---- queues; the inbox's mutex is held */

static void append(queue *q, request *r) {
    r->prev = q->tail;
    r->next = NULL;
    *(q->tail != NULL ? &q->tail->next : &q->head) = r;
    q->tail = r;
}

static void unlink_request(queue *q, request *r) {
    *(r->prev != NULL ? &r->prev->next : &q->head) = r->next;
    *(r->next != NULL ? &r->next->prev : &q->tail) = r->prev;
}

static request *find_match(const queue *q, const request *r) {
    request *other = q->head;
    while (other != NULL && (other->tag != r->tag || other->sending == r->sending))
        other = other->next;
    return other;
}

/* ---- moving bytes */

static void ring(end *e) {
    pthread_mutex_lock(&e->mutex);
    e->rung++;
    pthread_cond_signal(&e->bell);
    pthread_mutex_unlock(&e->mutex);
}

static void copy(request *send, request *recv) {
    int fits = send->bytes <= recv->bytes;
    if (fits && send->bytes > 0)
        memcpy(recv->data, send->data, send->bytes);
    recv->bytes = send->bytes;
    atomic_store_explicit(&recv->state, fits ? DONE : TOO_LONG, memory_order_release);
    atomic_store_explicit(&send->state, DONE, memory_order_release);
}

/* Puts a request into its queue, or meets the one that waits for it there. */
static void post(request *r) {
    queue *q = &r->inbox->queues[r->source];
    atomic_store_explicit(&r->state, WAITING, memory_order_relaxed);
    pthread_mutex_lock(&r->inbox->mutex);
    request *other = find_match(q, r);
    if (other != NULL) {
        unlink_request(q, other);
        atomic_store_explicit(&other->state, COPYING, memory_order_relaxed);
    } else {
        append(q, r);
    }
    pthread_mutex_unlock(&r->inbox->mutex);
    if (other == NULL)
        return;
    end *woken = other->owner;
    copy(r->sending ? r : other, r->sending ? other : r);
    ring(woken);
}

/* ---- the calls */

static int start(end *e, const request *what, void **handle) {
    request *r = take(e);
    if (r == NULL)
        return tw_transport_explain("out of memory for requests");
    r->owner = e;
    r->inbox = what->inbox;
    r->source = what->source;
    r->tag = what->tag;
    r->sending = what->sending;
    r->data = what->data;
    r->bytes = what->bytes;
    *handle = r;
    post(r);
    return TW_OK;
}

static int threads_send(void *context, int peer, int tag, const void *data, size_t bytes,
                        void **handle) {
    end *e = context;
    request what = {.inbox = &e->hub->ends[peer],
                    .source = e->rank,
                    .tag = tag,
                    .sending = 1,
                    .data = (void *)(uintptr_t)data,
                    .bytes = bytes};
    return start(e, &what, handle);
}

static int threads_recv(void *context, int peer, int tag, void *data, size_t capacity,
                        void **handle) {
    end *e = context;
    request what = {.inbox = e, .source = peer, .tag = tag, .data = data, .bytes = capacity};
    return start(e, &what, handle);
}

static int threads_test(void *context, void *handle, size_t *bytes) {
    (void)context;
    request *r = handle;
    int state = atomic_load_explicit(&r->state, memory_order_acquire);
    if (state == WAITING || state == COPYING)
        return 0;
    *bytes = r->bytes;
    give_back(r);
    if (state == TOO_LONG)
        return tw_transport_explain("the message of %zu bytes is longer than expected", *bytes);
    return 1;
}

/* Until the bell rings, or has rung since the last time. Other ranks get the core first: often
 * enough they have something for this one, and falling asleep costs more. With 2 yields 64 bytes
 * to all take 8 ranks on 2 cores 21 us and 64 ranks 0.65 ms, without 56 us and 3.3 ms, and with 16
 * no less. */
static void threads_idle(void *context, int64_t microseconds) {
    end *e = context;
    for (int i = 0; i < 2 && e->rung == e->heard; i++)
        sched_yield();
    int64_t until = tw__clock() + microseconds * 1000;
    struct timespec at = {.tv_sec = (time_t)(until / TW__SECOND),
                          .tv_nsec = (long)(until % TW__SECOND)};
    int timed_out = 0;
    pthread_mutex_lock(&e->mutex);
    while (e->rung == e->heard && !timed_out)
        timed_out = pthread_cond_timedwait(&e->bell, &e->mutex, &at) != 0;
    e->heard = e->rung;
    pthread_mutex_unlock(&e->mutex);
}

/* A copy that has begun is short and goes to its end. */
static void threads_cancel(void *context, void *handle) {
    request *r = handle;
    size_t bytes = 0;
    pthread_mutex_lock(&r->inbox->mutex);
    int waiting = atomic_load_explicit(&r->state, memory_order_relaxed) == WAITING;
    if (waiting)
        unlink_request(&r->inbox->queues[r->source], r);
    pthread_mutex_unlock(&r->inbox->mutex);
    if (waiting)
        give_back(r);
    else
        while (threads_test(context, r, &bytes) == 0)
            threads_idle(context, 10000);
}

/* ---- create and free */

static void free_end(end *e) {
    while (e->blocks != NULL) {
        block *b = e->blocks;
        e->blocks = b->next;
        free(b);
    }
    free(e->queues);
    pthread_cond_destroy(&e->bell);
    pthread_mutex_destroy(&e->mutex);
}

static void free_hub(hub *h, int ends) {
    for (int i = 0; i < ends; i++)
        free_end(&h->ends[i]);
    free(h);
}

static void threads_close(void *context) {
    hub *h = ((end *)context)->hub;
    if (atomic_fetch_sub_explicit(&h->open, 1, memory_order_acq_rel) == 1)
        free_hub(h, h->nranks);
}

static int threads_host(void *context, int rank) {
    const hub *h = ((end *)context)->hub;
    return rank - rank % h->host_ranks;
}

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

static void init_bell(end *e) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->bell, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&e->mutex, NULL);
}

static int init_end(end *e, hub *h, int rank) {
    e->hub = h;
    e->rank = rank;
    init_bell(e);
    /* calloc: large ones come as zero pages that are not touched before they are used. */
    e->queues = calloc((size_t)h->nranks, sizeof *e->queues);
    if (e->queues == NULL)
        return tw__fail(TW_ERR_MEMORY, "queues of %d ranks are not to be had; lower nranks",
                        h->nranks);
    return add_block(e, generous(h->nranks));
}

/* NULL when memory is out, which is then explained. */
static hub *create_hub(int nranks, int host_ranks) {
    size_t bytes = sizeof(hub) + (size_t)nranks * sizeof(end);
    hub *h = calloc(1, bytes);
    if (h == NULL) {
        (void)tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had; lower nranks", bytes);
        return NULL;
    }
    h->nranks = nranks;
    h->host_ranks = host_ranks;
    atomic_init(&h->open, nranks);
    for (int i = 0; i < nranks; i++)
        if (init_end(&h->ends[i], h, i) != TW_OK) {
            free_hub(h, i + 1);
            return NULL;
        }
    return h;
}

/* Ends that cannot be made count as freed; the hub goes with the last one that was. */
static int make_ends(tw_transport **transports, hub *h) {
    int made = 0, status = TW_OK;
    for (; made < h->nranks && status == TW_OK; made += status == TW_OK)
        status =
            tw_transport_custom(&transports[made], &threads_calls, &h->ends[made], made, h->nranks);
    for (int i = 0; i < h->nranks && status == TW_OK; i++)
        tw__transport_set_shared(transports[i]);
    if (status == TW_OK)
        return TW_OK;
    if (made == 0)
        free_hub(h, h->nranks);
    else
        atomic_fetch_sub_explicit(&h->open, h->nranks - made, memory_order_relaxed);
    while (made-- > 0) {
        tw_transport_free(transports[made]);
        transports[made] = NULL;
    }
    return status;
}

static int create(tw_transport **transports, int nranks, int host_ranks) {
    TW_REQUIRE(transports, "transports");
    if (nranks < 1 || nranks > TW__MAX_RANKS)
        return tw__fail(TW_ERR_PARAM, "nranks: %d; accepted are 1 .. %d", nranks, TW__MAX_RANKS);
    memset(transports, 0, (size_t)nranks * sizeof(tw_transport *));
    hub *h = create_hub(nranks, host_ranks);
    return h == NULL ? TW_ERR_MEMORY : make_ends(transports, h);
}

int tw_transport_threads(tw_transport **transports, int nranks) {
    return create(transports, nranks, nranks);
}

/* ---- the same with clocks */

static int check_positive(const char *field, double value, int may_be_zero) {
    if (isfinite(value) && (value > 0.0 || (may_be_zero && value == 0.0)))
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "%s: %g; accepted is %s", field, value,
                    may_be_zero ? "0 and more" : "more than 0");
}

static int check_network(const tw_network *m, int nranks) {
    TW_TRY(check_positive("latency", m->latency, 1));
    TW_TRY(check_positive("bandwidth", m->bandwidth, 0));
    TW_TRY(check_positive("local_latency", m->local_latency, 1));
    TW_TRY(check_positive("local_bandwidth", m->local_bandwidth, 1));
    TW_TRY(check_positive("slowdown", m->slowdown, 1));
    TW_TRY(check_positive("overhead", m->overhead, 1));
    TW_TRY(check_positive("payload_scale", m->payload_scale, 1));
    TW_TRY(check_positive("computing", m->computing, 1));
    if (!(m->jitter >= 0.0 && m->jitter <= 1.0))
        return tw__fail(TW_ERR_PARAM, "jitter: %g; accepted is 0 .. 1", m->jitter);
    if (m->host_ranks < 0)
        return tw__fail(TW_ERR_PARAM, "host_ranks: %d; accepted is 0 and more", m->host_ranks);
    if (m->slowdown != 0.0 && (m->straggler < 0 || m->straggler >= nranks))
        return tw__fail(TW_ERR_PARAM, "straggler: %d; accepted is 0 .. %d", m->straggler,
                        nranks - 1);
    return TW_OK;
}

int tw_transport_simulated(tw_transport **transports, int nranks, const tw_network *network) {
    TW_REQUIRE(network, "network");
    TW_TRY(check_network(network, nranks));
    TW_TRY(create(transports, nranks, network->host_ranks > 0 ? network->host_ranks : 1));
    tw__sim_clock *first = NULL;
    int status = tw__sim_clock_create(&first, nranks, network);
    for (int r = 0; r < nranks; r++) {
        if (status == TW_OK) {
            tw__transport_set_clock(transports[r], tw__sim_clock_of(first, r));
        } else {
            tw_transport_free(transports[r]);
            transports[r] = NULL;
        }
    }
    return status;
}
