/* clockwork.c - see clockwork.h
 *
 * The k-th message from rank a to rank b is the k-th that b receives from a: its times wait in a
 * small ring for each pair, at place k. */
#include "transport/simulated_clock.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Seconds of CPU time between two calls that are no computing: a loop that waits. */
#define TRIFLE 5e-6
/* Messages of a pair that may be sent and not yet looked at: those of a few rotations. */
#define RING 8

typedef struct stamp {
    _Atomic int full;
    double arrival;  /* of the first byte */
    double duration; /* of receiving it, on an idle link */
} stamp;

/* A message that has come. */
typedef struct arrival {
    double when, duration; /* of its stamp */
    int peer;
} arrival;

/* All messages from one rank to another. */
typedef struct lane {
    uint32_t sent, expected; /* by either end */
    stamp ring[RING];
} lane;

typedef struct net {
    tw_network model;
    int nranks;
    _Atomic int open; /* clocks that were not freed */
    lane *lanes;      /* [nranks][nranks]: from, to */
    arrival *arrived; /* [nranks][nranks]: of all clocks */
} net;

struct tw__sim_clock {
    net *net;
    int rank;
    double now;
    double out_free, in_free; /* when the link can take the next message */
    pthread_t thread;         /* that left last, */
    double left;              /* at this CPU time of its own */
    arrival *arrived;         /* [nranks]: scratch */
};

static lane *lane_of(const net *n, int from, int to) {
    return &n->lanes[(size_t)from * (size_t)n->nranks + (size_t)to];
}

/* ---- the model */

static int same_host(const net *n, int a, int b) {
    return a / n->model.host_ranks == b / n->model.host_ranks;
}

/* The ranks of a host share its link evenly. */
static double seconds_on_link(const net *n, int from, const tw__message *message) {
    const tw_network *m = &n->model;
    int to = message->peer;
    double bytes = (double)message->bytes;
    if (message->cargo == TW__PAYLOAD)
        bytes *= m->payload_scale;
    if (same_host(n, from, to))
        return bytes / m->local_bandwidth;
    double slow = from == m->straggler || to == m->straggler ? m->slowdown : 1.0;
    return slow * bytes * (double)m->host_ranks / m->bandwidth;
}

/* Between 1 - jitter and 1 + jitter times what the model says, by chance but always the same. */
static double latency_of(const net *n, int from, int to, uint32_t number) {
    const tw_network *m = &n->model;
    double latency = same_host(n, from, to) ? m->local_latency : m->latency;
    uint64_t pair = (uint64_t)from * (uint64_t)n->nranks + (uint64_t)to;
    double chance = (double)(tw__random(m->seed ^ pair, number) >> 11) * 0x1p-53;
    return latency * (1.0 + m->jitter * (2.0 * chance - 1.0));
}

/* ---- messages */

int tw__sim_clock_has_room(const tw__sim_clock *c, int peer) {
    lane *l = lane_of(c->net, c->rank, peer);
    return !atomic_load_explicit(&l->ring[l->sent % RING].full, memory_order_acquire);
}

void tw__sim_clock_send(tw__sim_clock *c, tw__message *message) {
    lane *l = lane_of(c->net, c->rank, message->peer);
    stamp *s = &l->ring[l->sent % RING];
    double duration = seconds_on_link(c->net, c->rank, message);
    c->now += c->net->model.overhead;
    double start = c->now > c->out_free ? c->now : c->out_free;
    s->arrival = start + latency_of(c->net, c->rank, message->peer, l->sent);
    s->duration = duration;
    atomic_store_explicit(&s->full, 1, memory_order_release);
    l->sent++;
    c->out_free = message->when = start + duration;
}

void tw__sim_clock_expect(tw__sim_clock *c, tw__message *message) {
    message->number = lane_of(c->net, message->peer, c->rank)->expected++;
}

void tw__sim_clock_receive(tw__sim_clock *c, tw__message *message) {
    stamp *s = &lane_of(c->net, message->peer, c->rank)->ring[message->number % RING];
    message->when = s->arrival;
    message->duration = s->duration;
    atomic_store_explicit(&s->full, 0, memory_order_release);
}

static int by_arrival(const void *left, const void *right) {
    const arrival *a = left, *b = right;
    if (a->when != b->when)
        return a->when < b->when ? -1 : 1;
    return (a->peer > b->peer) - (a->peer < b->peer);
}

/* The link takes what has come in the order of arrival, whatever the order of looking, and so does
 * the rank. */
static void receive_in_order(tw__sim_clock *c, int count) {
    qsort(c->arrived, (size_t)count, sizeof *c->arrived, by_arrival);
    for (int i = 0; i < count; i++) {
        const arrival *a = &c->arrived[i];
        double start = a->when > c->in_free ? a->when : c->in_free;
        c->in_free = start + a->duration;
        c->now = (c->in_free > c->now ? c->in_free : c->now) + c->net->model.overhead;
    }
}

void tw__sim_clock_settle(tw__sim_clock *c, tw__message *messages, int count) {
    int narrived = 0;
    for (int i = 0; i < count; i++) {
        tw__message *m = &messages[i];
        if (m->when == 0.0)
            continue;
        assert(m->sending || narrived < c->net->nranks);
        if (!m->sending)
            c->arrived[narrived++] = (arrival){m->when, m->duration, m->peer};
        else if (m->when > c->now)
            c->now = m->when;
        m->when = 0.0;
    }
    receive_in_order(c, narrived);
}

/* ---- computing */

double tw__sim_clock_spent(tw__sim_clock *c) {
    const tw_network *m = &c->net->model;
    if (m->computing == 0.0 || !pthread_equal(c->thread, pthread_self()))
        return 0.0;
    double now = tw__cpu_seconds(), spent = now - c->left;
    c->left = now;
    return spent > TRIFLE ? spent * m->computing * m->payload_scale : 0.0;
}

void tw__sim_clock_enter(tw__sim_clock *c) {
    c->now += tw__sim_clock_spent(c);
}

void tw__sim_clock_leave(tw__sim_clock *c) {
    if (c->net->model.computing == 0.0)
        return;
    c->thread = pthread_self();
    c->left = tw__cpu_seconds();
}

double tw__sim_clock_computing(const tw__sim_clock *c) {
    return c->net->model.computing;
}

double tw__sim_clock_now(const tw__sim_clock *c) {
    return c->now;
}

void tw__sim_clock_elapse(tw__sim_clock *c, double seconds) {
    c->now += seconds;
}

/* ---- create and free */

static tw_network with_defaults(const tw_network *network) {
    tw_network m = *network;
    if (m.host_ranks == 0)
        m.host_ranks = 1;
    if (m.local_bandwidth == 0.0)
        m.local_bandwidth = m.bandwidth;
    if (m.payload_scale == 0.0)
        m.payload_scale = 1.0;
    if (m.local_latency == 0.0)
        m.local_latency = m.latency;
    if (m.slowdown == 0.0) {
        m.slowdown = 1.0;
        m.straggler = -1;
    }
    return m;
}

int tw__sim_clock_create(tw__sim_clock **first, int nranks, const tw_network *network) {
    net *n = calloc(1, sizeof *n);
    tw__sim_clock *all = calloc((size_t)nranks, sizeof *all);
    lane *lanes = calloc((size_t)nranks * (size_t)nranks, sizeof *lanes);
    arrival *arrived = calloc((size_t)nranks * (size_t)nranks, sizeof *arrived);
    if (n == NULL || all == NULL || lanes == NULL || arrived == NULL) {
        free(n);
        free(all);
        free(lanes);
        free(arrived);
        return tw__fail(TW_ERR_MEMORY, "no memory to simulate %d ranks", nranks);
    }
    n->model = with_defaults(network);
    n->nranks = nranks;
    n->lanes = lanes;
    n->arrived = arrived;
    atomic_init(&n->open, nranks);
    for (int r = 0; r < nranks; r++)
        all[r] = (tw__sim_clock){.net = n,
                                 .rank = r,
                                 .now = 1e-30, /* 0 means: no time */
                                 .thread = pthread_self(),
                                 .left = HUGE_VAL,
                                 .arrived = arrived + (size_t)r * (size_t)nranks};
    *first = all;
    return TW_OK;
}

tw__sim_clock *tw__sim_clock_of(tw__sim_clock *first, int rank) {
    return first + rank;
}

/* The last one takes all along: clocks lie in one array, which starts with that of rank 0. */
void tw__sim_clock_free(tw__sim_clock *c) {
    if (c == NULL)
        return;
    net *n = c->net;
    tw__sim_clock *all = c - c->rank;
    if (atomic_fetch_sub_explicit(&n->open, 1, memory_order_acq_rel) > 1)
        return;
    free(n->lanes);
    free(n->arrived);
    free(n);
    free(all);
}
