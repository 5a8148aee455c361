/* recording.c - see recording.h
 *
 * Ranks are threads over tw_transport_threads. Each has a transport in front of it that copies what
 * is sent. */
#include "recording.h"

#include <pthread.h>

#include "fuzz.h"
#include "oracle.h"
#include "transport/transport_internal.h"

#define TIMEOUT 60.0
enum { VARIANTS = 4 };
static const int rank_counts[] = {2, 3, 4, 5, 6, 8};
enum { RANK_COUNTS = sizeof rank_counts / sizeof *rank_counts };

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    REQUIRE(memory != NULL);
    return memory;
}

/* ---- plans */

int plan_count(void) {
    return count_exchanges() * count_wires() * RANK_COUNTS * VARIANTS;
}

/* oktopk needs 8P entries, and falls back with fewer. */
static void choose_sizes(plan *p, oracle_rng *rng) {
    const int64_t least = oracle_below(rng, 4) > 0 ? 8 * p->nranks : 1;
    const int64_t spare = oracle_below(rng, 2) ? 10 : 300;
    p->params.select.k = least + oracle_below(rng, 20);
    p->tensors = 1 + (int)oracle_below(rng, 2);
    for (int i = 0; i < p->tensors; i++)
        p->n[i] = p->params.select.k + oracle_below(rng, spare);
}

static void choose_plan(plan *p, int number) {
    tw_group_params *params = &p->params;
    oracle_rng rng = {.key = (uint64_t)number};
    REQUIRE(tw_exchange(number % count_exchanges(), &params->exchange, NULL) == TW_OK);
    number /= count_exchanges();
    REQUIRE(tw_wire(number % count_wires(), &params->wire, NULL) == TW_OK);
    number /= count_wires();
    p->nranks = rank_counts[number % RANK_COUNTS];
    p->host_ranks = 1 + (int)oracle_below(&rng, p->nranks);
    p->dense = strcmp(params->exchange, "dense") == 0;
    params->scheme = p->dense ? "dense" : "topka";
    const int method = (int)oracle_below(&rng, 2 * count_methods());
    if (tw_select_method(method, &params->select.method, NULL) != TW_OK)
        params->select.method = method % 2 ? "exact" : "reuse";
    params->global = (int)oracle_below(&rng, 2) ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
    params->select.momentum = oracle_below(&rng, 4) == 0 ? 0.5f : 0.0f;
    params->select.threads = 1;
    params->bucket = oracle_below(&rng, 4) == 0;
    params->timeout = TIMEOUT;
    choose_sizes(p, &rng);
    for (int step = 0; step < STEPS; step++) {
        p->background[step] = oracle_below(&rng, 16) == 0;
        p->data[step] = (int)oracle_below(&rng, DATA_KINDS);
    }
    p->reloads = oracle_below(&rng, 16) == 0;
}

/* ---- one rank */

void member_create(member *m, const plan *p, tw_transport *transport, int rank) {
    *m = (member){.plan = p, .rank = rank};
    REQUIRE(tw_group_create(&m->group, transport, &p->params) == TW_OK);
    for (int i = 0; i < p->tensors && i < TENSORS; i++) {
        m->grad[i] = allocate((size_t)p->n[i], sizeof(float));
        m->out[i] = allocate((size_t)p->n[i], sizeof(float));
        REQUIRE(tw_group_add(m->group, p->n[i], NULL, NULL) == TW_OK);
    }
}

static int run_background(member *m) {
    int status = TW_OK;
    for (int i = m->plan->tensors - 1; i >= 0 && status == TW_OK; i--)
        status = tw_allreduce_start(m->group, i, m->grad[i], m->out[i]);
    return status == TW_OK ? tw_allreduce_wait(m->group, TW_ALL) : status;
}

static int run_foreground(member *m) {
    int status = TW_OK;
    for (int i = 0; i < m->plan->tensors && status == TW_OK; i++)
        status = tw_allreduce(m->group, i, m->grad[i], m->out[i]);
    return status;
}

static int reload(member *m) {
    char path[FUZZ_PATH], name[32];
    const char *paths[] = {path};
    snprintf(name, sizeof name, "rank-%d", m->rank);
    REQUIRE(tw_group_save(m->group, fuzz_path(path, name)) == TW_OK);
    return tw_group_load(m->group, paths, 1);
}

int member_step(member *m, int step) {
    const int status = m->plan->reloads && step == STEPS - 1 ? reload(m) : TW_OK;
    if (status != TW_OK)
        return status;
    for (int i = 0; i < m->plan->tensors; i++)
        oracle_fill(m->grad[i], m->plan->n[i], (oracle_data)m->plan->data[step],
                    (uint64_t)(step * RANKS + m->rank));
    return m->plan->background[step] ? run_background(m) : run_foreground(m);
}

uint64_t member_hash(const member *m) {
    uint64_t hash = 0;
    for (int i = 0; i < m->plan->tensors; i++)
        hash = oracle_hash(hash, m->out[i], m->plan->n[i] * (int64_t)sizeof(float));
    return hash;
}

void member_free(member *m) {
    tw_group_free(m->group);
    for (int i = 0; i < TENSORS; i++) {
        free(m->grad[i]);
        free(m->out[i]);
    }
}

/* ---- the transport that records */

typedef struct recorder {
    recording *recording;
    int rank;
    tw_transport *inner; /* which moves the messages */
} recorder;

static void channel_add(channel *c, const void *data, size_t bytes) {
    if (c->sent == c->room) {
        c->room = 2 * c->room + 8;
        c->messages = realloc(c->messages, (size_t)c->room * sizeof *c->messages);
        REQUIRE(c->messages != NULL);
    }
    message *m = &c->messages[c->sent++];
    *m = (message){allocate(bytes + 1, 1), bytes};
    if (bytes > 0)
        memcpy(m->data, data, bytes);
}

/* Only the thread of the sending rank writes to its channels. */
static int record_send(void *context, int peer, int tag, const void *data, size_t bytes,
                       void **request) {
    const recorder *r = context;
    if (tag == TW__TAG_DATA)
        channel_add(&r->recording->channels[r->rank][peer], data, bytes);
    return r->inner->calls.send(r->inner->context, peer, tag, data, bytes, request);
}

static int record_recv(void *context, int peer, int tag, void *data, size_t capacity,
                       void **request) {
    const tw_transport *inner = ((recorder *)context)->inner;
    return inner->calls.recv(inner->context, peer, tag, data, capacity, request);
}

static int record_test(void *context, void *request, size_t *bytes) {
    const tw_transport *inner = ((recorder *)context)->inner;
    return inner->calls.test(inner->context, request, bytes);
}

static void record_cancel(void *context, void *request) {
    const tw_transport *inner = ((recorder *)context)->inner;
    inner->calls.cancel(inner->context, request);
}

static void record_idle(void *context, int64_t microseconds) {
    const tw_transport *inner = ((recorder *)context)->inner;
    inner->calls.idle(inner->context, microseconds);
}

static int record_host(void *context, int rank) {
    return rank - rank % ((recorder *)context)->recording->plan.host_ranks;
}

static const tw_transport_calls calls = {.name = "recorder",
                                         .send = record_send,
                                         .recv = record_recv,
                                         .test = record_test,
                                         .cancel = record_cancel,
                                         .idle = record_idle,
                                         .host = record_host};

/* ---- the honest run */

static void *run_honestly(void *context) {
    recorder *r = context;
    tw_transport *transport;
    member m;
    REQUIRE(tw_transport_custom(&transport, &calls, r, r->rank, r->recording->plan.nranks) ==
            TW_OK);
    member_create(&m, &r->recording->plan, transport, r->rank);
    REQUIRE(tw_group_open(m.group) == TW_OK);
    for (int step = 0; step < STEPS; step++) {
        REQUIRE(member_step(&m, step) == TW_OK);
        if (r->rank == 0)
            r->recording->results[step] = member_hash(&m);
    }
    member_free(&m);
    tw_transport_free(transport);
    return NULL;
}

static recording *record(int number) {
    pthread_t threads[RANKS];
    tw_transport *inner[RANKS];
    recorder recorders[RANKS];
    recording *made = allocate(1, sizeof *made);
    choose_plan(&made->plan, number);
    (void)fuzz_directory(); /* before there are threads */
    const int nranks = made->plan.nranks;
    REQUIRE(tw_transport_threads(inner, nranks) == TW_OK);
    for (int rank = 0; rank < nranks; rank++) {
        recorders[rank] = (recorder){made, rank, inner[rank]};
        REQUIRE(pthread_create(&threads[rank], NULL, run_honestly, &recorders[rank]) == 0);
    }
    for (int rank = 0; rank < nranks; rank++)
        REQUIRE(pthread_join(threads[rank], NULL) == 0);
    for (int rank = 0; rank < nranks; rank++)
        tw_transport_free(inner[rank]);
    return made;
}

const recording *recording_of(int number) {
    static recording **made; /* [plan_count()] */
    if (made == NULL)
        made = allocate((size_t)plan_count(), sizeof(recording *));
    REQUIRE(number >= 0 && number < plan_count());
    if (made[number] == NULL)
        made[number] = record(number);
    return made[number];
}
