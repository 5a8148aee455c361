/* transport_simulated.c - threads over a simulated network, with a clock for each rank
 *
 * Messages move at once, between threads; the time of their arrival is computed. A rank's link sends
 * one message at a time and receives one at a time, each at its bandwidth. The first byte travels
 * for the latency:
 *
 *     sender    now, overhead .. [== bytes / bandwidth ==]            in the order of starting
 *     receiver                   latency .. [== bytes / bandwidth ==] in the order of arrival
 *
 * A rank's clock advances by the overhead when it starts a message. When it has waited, the clock
 * advances to the end of the last of these messages, and by the overhead of each that it received.
 * The order in which threads really ran does not matter: the same job always takes the same time.
 *
 * Computation takes no time, or a multiple of the CPU time that a rank's thread uses between two
 * calls of the transport. Computation during a wait is hidden, as in a real network.
 *
 * The k-th message from rank a to rank b is the k-th that b receives from a. Its times are kept in a
 * small ring of each pair, at position k. */
#include "base/random.h"
#include "thinwire_sim.h"
#include "transport/transport_internal.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* CPU seconds between two calls that count as waiting in a loop, not as computation. */
#define TRIFLE 5e-6
/* Messages of a pair that may be sent and not yet received: those of a few alltoalls. */
#define RING 8
#define MOST_SECONDS 1e9
#define NEVER HUGE_VAL

typedef struct timing {
    _Atomic int full;
    double arrival;  /* of the first byte */
    double duration; /* of receiving it over an idle link */
} timing;

/* A message that was received. */
typedef struct arrival {
    double when, duration;
    int peer;
} arrival;

/* All messages from one rank to another. */
typedef struct channel {
    uint32_t sent, expected; /* counted by the sender, and by the receiver */
    timing ring[RING];
} channel;

typedef struct sim_network {
    tw_network model;
    int nranks;
    _Atomic int open;      /* clocks that were not freed */
    tw__sim_clock *clocks; /* [nranks] */
    channel *channels;     /* [nranks][nranks]: from, to */
    arrival *arrivals;     /* [nranks][nranks]: scratch of all clocks */
} sim_network;

struct tw__sim_clock {
    sim_network *network;
    int rank;
    double now;
    double out_free, in_free; /* when the link can take the next message */
    pthread_t thread;         /* that left the transport last, */
    double left;              /* at this CPU time, or NEVER: what it computes next is not counted */
    arrival *arrivals;        /* [nranks]: scratch */
};

static channel *channel_of(const sim_network *n, int from, int to) {
    assert(from >= 0 && from < n->nranks && to >= 0 && to < n->nranks);
    return &n->channels[(size_t)from * (size_t)n->nranks + (size_t)to];
}

/* ---- the model */

static int same_host(const sim_network *n, int a, int b) {
    return a / n->model.host_ranks == b / n->model.host_ranks;
}

/* The ranks of a host share its link evenly. */
static double seconds_on_link(const sim_network *n, int from, const tw__message *message) {
    const tw_network *m = &n->model;
    int to = message->peer;
    double bytes = (double)message->bytes;
    if (message->kind == TW__PAYLOAD)
        bytes *= m->payload_scale;
    if (same_host(n, from, to))
        return bytes / m->local_bandwidth;
    double slow = from == m->straggler || to == m->straggler ? m->slowdown : 1.0;
    return slow * bytes * (double)m->host_ranks / m->bandwidth;
}

/* Between 1 - jitter and 1 + jitter times the model's latency. Random, but the same in every run. */
static double latency_of(const sim_network *n, int from, int to, uint32_t number) {
    const tw_network *m = &n->model;
    double latency = same_host(n, from, to) ? m->local_latency : m->latency;
    uint64_t pair = (uint64_t)from * (uint64_t)n->nranks + (uint64_t)to;
    double chance = (double)(tw__random(m->seed ^ pair, number) >> 11) * 0x1p-53;
    return latency * (1.0 + m->jitter * (2.0 * chance - 1.0));
}

/* ---- messages */

int tw__sim_clock_has_room(const tw__sim_clock *c, int peer) {
    channel *to = channel_of(c->network, c->rank, peer);
    return !atomic_load_explicit(&to->ring[to->sent % RING].full, memory_order_acquire);
}

static void start_send(tw__sim_clock *c, tw__message *message) {
    channel *to = channel_of(c->network, c->rank, message->peer);
    timing *s = &to->ring[to->sent % RING];
    double duration = seconds_on_link(c->network, c->rank, message);
    assert(!s->full);
    c->now += c->network->model.overhead;
    double start = c->now > c->out_free ? c->now : c->out_free;
    s->arrival = start + latency_of(c->network, c->rank, message->peer, to->sent);
    s->duration = duration;
    atomic_store_explicit(&s->full, 1, memory_order_release);
    to->sent++;
    c->out_free = message->when = start + duration;
}

void tw__sim_clock_start(tw__sim_clock *c, tw__message *message) {
    if (message->sending)
        start_send(c, message);
    else
        message->number = channel_of(c->network, message->peer, c->rank)->expected++;
}

void tw__sim_clock_receive(tw__sim_clock *c, tw__message *message) {
    if (c == NULL)
        return;
    timing *s = &channel_of(c->network, message->peer, c->rank)->ring[message->number % RING];
    assert(!message->sending && message->request == NULL);
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

/* The link receives messages in the order of arrival, whatever the order of testing, and so does
 * the rank. */
static void receive_in_order(tw__sim_clock *c, int count) {
    qsort(c->arrivals, (size_t)count, sizeof *c->arrivals, by_arrival);
    for (int i = 0; i < count; i++) {
        const arrival *a = &c->arrivals[i];
        double start = a->when > c->in_free ? a->when : c->in_free;
        c->in_free = start + a->duration;
        c->now = (c->in_free > c->now ? c->in_free : c->now) + c->network->model.overhead;
    }
}

static void advance(tw__sim_clock *c, tw__message *messages, int count) {
    int received = 0;
    for (int i = 0; i < count; i++) {
        tw__message *m = &messages[i];
        if (m->when == 0.0)
            continue;
        assert(m->sending || received < c->network->nranks);
        if (!m->sending)
            c->arrivals[received++] = (arrival){m->when, m->duration, m->peer};
        else if (m->when > c->now)
            c->now = m->when;
        m->when = 0.0;
    }
    receive_in_order(c, received);
}

void tw__transport_advance_clock(tw_transport *t, tw__message *messages, int count) {
    if (t->clock == NULL)
        return;
    tw__sim_clock_enter(t->clock);
    advance(t->clock, messages, count);
    tw__sim_clock_leave(t->clock);
}

/* ---- computation */

double tw__sim_clock_take_computing(tw__sim_clock *c) {
    const tw_network *m = c != NULL ? &c->network->model : NULL;
    if (m == NULL || m->computing == 0.0 || !pthread_equal(c->thread, pthread_self()))
        return 0.0;
    double now = tw__cpu_seconds(), spent = now - c->left;
    c->left = now;
    return spent > TRIFLE ? spent * m->computing * m->payload_scale : 0.0;
}

void tw__sim_clock_add(tw__sim_clock *c, double seconds) {
    assert(seconds >= 0.0);
    if (c != NULL)
        c->now += seconds;
}

void tw__sim_clock_enter(tw__sim_clock *c) {
    tw__sim_clock_add(c, tw__sim_clock_take_computing(c));
}

void tw__sim_clock_leave(tw__sim_clock *c) {
    if (c == NULL || c->network->model.computing == 0.0)
        return;
    c->thread = pthread_self();
    c->left = tw__cpu_seconds();
}

double tw__transport_computing(const tw_transport *t) {
    return t->clock != NULL ? t->clock->network->model.computing : 1.0;
}

void tw__transport_begin_computing(tw_transport *t) {
    tw__sim_clock_leave(t->clock);
}

void tw__transport_end_computing(tw_transport *t) {
    tw__sim_clock_enter(t->clock);
    if (t->clock != NULL)
        t->clock->left = NEVER;
}

double tw__transport_seconds(const tw_transport *t) {
    tw__sim_clock_enter(t->clock);
    tw__sim_clock_leave(t->clock);
    return t->clock != NULL ? t->clock->now : tw__seconds();
}

double tw_transport_clock(const tw_transport *transport) {
    return transport != NULL && transport->clock != NULL ? tw__transport_seconds(transport) : 0.0;
}

int tw_transport_elapse(tw_transport *transport, double seconds) {
    TW_REQUIRE(transport, "transport");
    if (transport->clock == NULL)
        return tw__fail(TW_ERR_STATE, "transport: its network is not simulated");
    if (!(seconds >= 0.0 && seconds <= MOST_SECONDS))
        return tw__fail(TW_ERR_PARAM, "seconds: %g; accepted is 0 .. %g", seconds, MOST_SECONDS);
    tw__sim_clock_add(transport->clock, seconds);
    tw__sim_clock_leave(transport->clock);
    return TW_OK;
}

/* ---- create and free */

static tw_network with_defaults(const tw_network *given) {
    tw_network m = *given;
    m.host_ranks = m.host_ranks != 0 ? m.host_ranks : 1;
    m.local_bandwidth = m.local_bandwidth != 0.0 ? m.local_bandwidth : m.bandwidth;
    m.payload_scale = m.payload_scale != 0.0 ? m.payload_scale : 1.0;
    m.local_latency = m.local_latency != 0.0 ? m.local_latency : m.latency;
    m.straggler = m.slowdown != 0.0 ? m.straggler : -1;
    m.slowdown = m.slowdown != 0.0 ? m.slowdown : 1.0;
    return m;
}

/* The network and all clocks, in one block of zero pages. NULL when memory is out. */
static sim_network *create_network(int nranks, const tw_network *model) {
    size_t ranks = (size_t)nranks, pairs = ranks * ranks;
    sim_network *n = calloc(1, sizeof *n + ranks * sizeof *n->clocks + pairs * sizeof *n->channels +
                                   pairs * sizeof *n->arrivals);
    if (n == NULL)
        return NULL;
    n->model = with_defaults(model);
    n->nranks = nranks;
    atomic_init(&n->open, nranks);
    n->clocks = (tw__sim_clock *)(n + 1);
    n->channels = (channel *)(n->clocks + ranks);
    n->arrivals = (arrival *)(n->channels + pairs);
    for (size_t r = 0; r < ranks; r++)
        n->clocks[r] = (tw__sim_clock){.network = n,
                                       .rank = (int)r,
                                       .now = 1e-30, /* not 0, which means no time */
                                       .thread = pthread_self(),
                                       .left = NEVER,
                                       .arrivals = n->arrivals + r * ranks};
    return n;
}

/* The last one frees the network. */
void tw__sim_clock_free(tw__sim_clock *c) {
    if (c == NULL)
        return;
    int before = atomic_fetch_sub_explicit(&c->network->open, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        free(c->network);
}

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
    for (size_t i = 0; i < sizeof m->reserved / sizeof m->reserved[0]; i++)
        if (m->reserved[i] != 0)
            return tw__fail(TW_ERR_PARAM, "reserved: not zero; set unused fields to 0");
    return TW_OK;
}

int tw_transport_simulated(tw_transport **transports, int nranks, const tw_network *network) {
    TW_REQUIRE(network, "network");
    TW_TRY(check_network(network, nranks));
    int host_ranks = network->host_ranks > 0 ? network->host_ranks : 1;
    TW_TRY(tw__transport_threads_create(transports, nranks, host_ranks));
    sim_network *n = create_network(nranks, network);
    for (int r = 0; r < nranks && n != NULL; r++) {
        transports[r]->clock = &n->clocks[r];
        transports[r]->member_calls = NULL; /* the network has clocks for these ranks */
    }
    for (int r = 0; r < nranks && n == NULL; r++) {
        tw_transport_free(transports[r]);
        transports[r] = NULL;
    }
    return n != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory to simulate %d ranks", nranks);
}
