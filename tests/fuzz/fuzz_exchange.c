/* fuzz_exchange.c - one honest rank among hostile ones: bytes become the messages of its peers
 *
 * A libFuzzer target; fuzz_main.c runs it on seeded random bytes where there is no libFuzzer. The
 * first bytes give P, the exchange and the sizes. All P ranks first run honestly, as threads, and
 * every message is recorded. Then one of them runs again, alone: its sends are dropped, and it
 * receives the recorded messages. From some receive on, a byte of the input says what the peer
 * sends instead: the message altered, cut or lengthened, another message, entries, counts, noise,
 * an empty message, an error, or none at all.
 *
 * Each call must end in time with TW_OK or a typed error, leave no request behind, and if it is
 * TW_OK, give a result in which indices ascend and numbers are finite. Sanitizers see to memory. A
 * violation prints a line and aborts.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"
#include "oracle.h"

enum { RANKS = 5, TAGS = 4, TENSORS = 2, STEPS = 3 };
#define HONEST_TIMEOUT 60.0
#define HOSTILE_TIMEOUT 0.01

/* ---- Recorded messages ----------------------------------------------------------------------- */

typedef struct message {
    char *data;
    size_t bytes;
} message;

/* All messages from one rank to another under one tag. */
typedef struct channel {
    message *messages; /* [room] */
    int sent, room;
} channel;

typedef struct recording {
    pthread_mutex_t mutex;
    channel channels[RANKS][RANKS][TAGS]; /* [from][to] */
} recording;

/* One rank's transport. */
typedef struct end {
    recording *recording;
    int rank;
    int received[RANKS][TAGS]; /* receives that were started */
    int requests;              /* in flight */
    input *in;                 /* NULL: honest */
    int honest_receives;       /* left, before the input decides */
    int64_t n;                 /* of all tensors */
    oracle_rng rng;
} end;

typedef struct request {
    int sending;
    int never; /* completes */
    int number;
    int peer, tag;
    char *data;
    size_t bytes; /* sent, or the capacity */
} request;

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    REQUIRE(memory != NULL);
    return memory;
}

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

static void recording_free(recording *r) {
    channel *first = &r->channels[0][0][0];
    for (channel *c = first; c < first + RANKS * RANKS * TAGS; c++) {
        for (int i = 0; i < c->sent; i++)
            free(c->messages[i].data);
        free(c->messages);
    }
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

/* The message of this number, if it was sent. */
static int find_message(end *e, const request *r, message *found) {
    channel *c = &e->recording->channels[r->peer][e->rank][r->tag];
    pthread_mutex_lock(&e->recording->mutex);
    const int sent = r->number < c->sent;
    if (sent)
        *found = c->messages[r->number];
    pthread_mutex_unlock(&e->recording->mutex);
    return sent;
}

/* ---- The calls of the transport -------------------------------------------------------------- */

static int end_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **handle) {
    end *e = context;
    REQUIRE(peer >= 0 && peer < RANKS && tag >= 0 && tag < TAGS && (data || bytes == 0));
    channel alone = {NULL, 0, 0}; /* copies what is sent, so that sanitizers see it read */
    channel *c = e->in ? &alone : &e->recording->channels[e->rank][peer][tag];
    pthread_mutex_lock(&e->recording->mutex);
    channel_add(c, data, bytes);
    pthread_mutex_unlock(&e->recording->mutex);
    if (e->in) {
        free(alone.messages[0].data);
        free(alone.messages);
    }
    request *r = allocate(1, sizeof *r);
    *r = (request){.sending = 1, .bytes = bytes};
    e->requests++;
    *handle = r;
    return 0;
}

static int end_recv(void *context, int peer, int tag, void *data, size_t capacity, void **handle) {
    end *e = context;
    REQUIRE(peer >= 0 && peer < RANKS && tag >= 0 && tag < TAGS && (data || capacity == 0));
    request *r = allocate(1, sizeof *r);
    *r = (request){.peer = peer, .tag = tag, .data = data, .bytes = capacity};
    r->number = e->received[peer][tag]++;
    e->requests++;
    *handle = r;
    return 0;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t deliver(const request *r, const message *m) {
    const size_t bytes = smaller(m->bytes, r->bytes);
    if (bytes > 0)
        memcpy(r->data, m->data, bytes);
    return bytes;
}

/* ---- What a peer may send -------------------------------------------------------------------- */

static size_t alter(end *e, const request *r, size_t bytes) {
    for (uint32_t changes = 1 + take(e->in, 1) % 4; changes > 0 && bytes > 0; changes--)
        r->data[take(e->in, 2) % bytes] = (char)take(e->in, 1);
    return bytes;
}

/* A number of 4 bytes becomes a little larger or smaller. */
static size_t nudge(end *e, const request *r, size_t bytes) {
    for (uint32_t changes = 1 + take(e->in, 1) % 4; changes > 0 && bytes >= 4; changes--) {
        const size_t at = take(e->in, 2) % (bytes / 4) * 4;
        uint32_t number;
        memcpy(&number, r->data + at, sizeof number);
        number += take(e->in, 1) % 16 - 8;
        memcpy(r->data + at, &number, sizeof number);
    }
    return bytes;
}

static size_t fill_up(const request *r, size_t bytes) {
    if (r->bytes > bytes)
        memset(r->data + bytes, 0, r->bytes - bytes);
    return r->bytes;
}

static size_t another_message(end *e, const request *r) {
    const channel *c = &e->recording->channels[r->peer][e->rank][0];
    return c->sent ? deliver(r, &c->messages[take(e->in, 1) % (uint32_t)c->sent]) : 0;
}

/* Entries as an honest peer might send them: indices ascend within n. */
static size_t entries(end *e, const request *r) {
    const size_t most = smaller(r->bytes / 8, take(e->in, 1));
    int64_t at = oracle_below(&e->rng, 8);
    size_t count = 0;
    for (; count < most && at < e->n; count++) {
        const int32_t idx = (int32_t)at;
        const float val = (float)oracle_gauss(&e->rng);
        memcpy(r->data + 8 * count, &idx, sizeof idx);
        memcpy(r->data + 8 * count + 4, &val, sizeof val);
        at += 1 + oracle_below(&e->rng, 1 + e->n / 32);
    }
    return 8 * count;
}

/* NaN, infinity and extremes as values of entries. */
static size_t wild_values(end *e, const request *r, size_t bytes) {
    const float wild[] = {NAN, INFINITY, 3e38f, -3e38f, 0.0f, -0.0f, 1e-45f};
    for (size_t at = 4; at + 4 <= bytes; at += 8)
        if (oracle_below(&e->rng, 3) == 0)
            memcpy(r->data + at, &wild[oracle_below(&e->rng, 7)], sizeof(float));
    return bytes;
}

static size_t noise(end *e, const request *r, int full) {
    const size_t bytes = full || r->bytes == 0 ? r->bytes : take(e->in, 2) % (r->bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        r->data[i] = (char)oracle_next(&e->rng);
    return bytes;
}

/* Small numbers of 4 bytes: counts that look like counts. */
static size_t counts(end *e, const request *r) {
    const uint32_t most = 1 + take(e->in, 1);
    for (size_t at = 0; at + 4 <= r->bytes; at += 4) {
        const uint32_t count = (uint32_t)oracle_below(&e->rng, most);
        memcpy(r->data + at, &count, sizeof count);
    }
    return r->bytes - r->bytes % 4;
}

/* Answers a receive unlike the honest peer; returns as tw_transport_calls.test does. */
static int answer(end *e, request *r, const message *honest, uint32_t dice, size_t *bytes) {
    const size_t given = deliver(r, honest);
    switch (dice % 16) {
    case 0:
    case 1:
    case 2:
        *bytes = alter(e, r, given);
        return 1;
    case 3:
    case 4:
    case 5:
        *bytes = nudge(e, r, given);
        return 1;
    case 6:
        *bytes = wild_values(e, r, given);
        return 1;
    case 7:
        *bytes = given ? take(e->in, 2) % given : 0;
        return 1;
    case 8:
        *bytes = fill_up(r, given);
        return 1;
    case 9:
        *bytes = another_message(e, r);
        return 1;
    case 10:
        *bytes = entries(e, r);
        return 1;
    case 11:
        *bytes = nudge(e, r, wild_values(e, r, entries(e, r)));
        return 1;
    case 12:
        *bytes = counts(e, r);
        return 1;
    case 13:
        *bytes = noise(e, r, dice & 16);
        return 1;
    case 14:
        *bytes = 0;
        return 1;
    default:
        if (dice & 16)
            return tw_transport_explain("the fuzzer says no");
        r->never = dice & 32 ? 1 : 0; /* seldom: waiting takes long */
        *bytes = given;
        return !r->never;
    }
}

static int receive(end *e, request *r, size_t *bytes) {
    message honest = {NULL, 0};
    const int sent = find_message(e, r, &honest);
    if (r->never || (!sent && (!e->in || r->tag != 0)))
        return 0;
    const uint32_t dice = !e->in || e->honest_receives-- > 0 ? 0 : take(e->in, 1);
    if (dice >= 128)
        return answer(e, r, &honest, dice, bytes);
    REQUIRE(e->in || honest.bytes <= r->bytes);
    *bytes = deliver(r, &honest);
    return 1;
}

static int end_test(void *context, void *handle, size_t *bytes) {
    end *e = context;
    request *r = handle;
    *bytes = r->bytes;
    const int done = r->sending ? 1 : receive(e, r, bytes);
    if (done != 0) {
        free(r);
        e->requests--;
    }
    return done;
}

static void end_cancel(void *context, void *handle) {
    free(handle);
    ((end *)context)->requests--;
}

static void end_idle(void *context, int64_t microseconds) {
    (void)context;
    const struct timespec pause = {0, microseconds > 50 ? 50000 : 1000 * (long)microseconds};
    nanosleep(&pause, NULL);
}

static const tw_transport_calls calls = {.name = "fuzz",
                                         .send = end_send,
                                         .recv = end_recv,
                                         .test = end_test,
                                         .cancel = end_cancel,
                                         .idle = end_idle};

/* ---- A rank ---------------------------------------------------------------------------------- */

/* What all ranks do. */
typedef struct plan {
    tw_group_params params;
    int nranks, tensors, dense;
    int64_t n[TENSORS];
    uint32_t how[STEPS];
} plan;

typedef struct test_rank {
    const plan *plan;
    end end;
    tw_transport *transport;
    tw_group *group;
    float *grad[TENSORS], *out[TENSORS]; /* [n] each, of their exact size */
} test_rank;

static void read_plan(plan *p, input *in) {
    tw_group_params *params = &p->params;
    const uint32_t flags = take(in, 1);
    const uint32_t many = take(in, 1) % 8;
    p->nranks = many < 4 ? 2 : many < 6 ? 3 : (int)many - 2;
    REQUIRE(tw_exchange(take_row(in, count_exchanges()), &params->exchange, NULL) == TW_OK);
    if (flags & 64)
        params->exchange = "oktopk";
    REQUIRE(tw_select_method(take_row(in, count_methods()), &params->select.method, NULL) == TW_OK);
    if (tw_wire(take_row(in, 2 * count_wires()), &params->wire, NULL) != TW_OK)
        params->wire = "raw"; /* half of the inputs */
    p->dense = strcmp(params->exchange, "dense") == 0;
    params->scheme = p->dense ? "dense" : "topka";
    params->global = flags & 1 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
    params->select.momentum = flags & 2 ? 0.5f : 0.0f;
    params->select.threads = 1;
    params->select.k = 1 + take(in, 1) % 100 + (flags & 8 ? 40 : 0);
    params->bucket = flags & 4 ? 1 : 0;
    p->tensors = flags & 16 ? 2 : 1;
    for (int i = 0; i < p->tensors; i++)
        p->n[i] = params->select.k + take(in, 2) % (flags & 32 ? 2000 : 20);
    for (int step = 0; step < STEPS; step++)
        p->how[step] = take(in, 1);
}

static void rank_open(test_rank *s) {
    const plan *p = s->plan;
    REQUIRE(tw_transport_custom(&s->transport, &calls, &s->end, s->end.rank, p->nranks) == TW_OK);
    REQUIRE(tw_group_create(&s->group, s->transport, &p->params) == TW_OK);
    for (int i = 0; i < p->tensors && i < TENSORS; i++) {
        s->end.n += p->n[i];
        s->grad[i] = allocate((size_t)p->n[i], sizeof(float));
        s->out[i] = allocate((size_t)p->n[i], sizeof(float));
        REQUIRE(tw_group_add(s->group, p->n[i], NULL, NULL) == TW_OK);
    }
}

static void rank_close(test_rank *s) {
    tw_group_free(s->group);
    tw_transport_free(s->transport);
    REQUIRE(s->end.requests == 0);
    for (int i = 0; i < TENSORS; i++) {
        free(s->grad[i]);
        free(s->out[i]);
    }
}

static int run_background(test_rank *s) {
    int status = TW_OK;
    for (int i = s->plan->tensors - 1; i >= 0 && status == TW_OK; i--)
        status = tw_allreduce_start(s->group, i, s->grad[i], s->out[i]);
    return status == TW_OK ? tw_allreduce_wait(s->group, TW_ALL) : status;
}

static int run_foreground(test_rank *s) {
    int status = TW_OK;
    for (int i = 0; i < s->plan->tensors && status == TW_OK; i++)
        status = tw_allreduce(s->group, i, s->grad[i], s->out[i]);
    return status;
}

static int run_step(test_rank *s, int step) {
    const uint32_t how = s->plan->how[step];
    for (int i = 0; i < s->plan->tensors; i++)
        oracle_fill(s->grad[i], s->plan->n[i], (oracle_data)(how / 2 % DATA_KINDS),
                    (uint64_t)(step * RANKS + s->end.rank));
    return how & 1 ? run_background(s) : run_foreground(s);
}

/* ---- The honest run -------------------------------------------------------------------------- */

static void *run_honestly(void *context) {
    test_rank *s = context;
    rank_open(s);
    REQUIRE(tw_group_open(s->group) == TW_OK);
    for (int step = 0; step < STEPS; step++)
        REQUIRE(run_step(s, step) == TW_OK);
    rank_close(s);
    return NULL;
}

static void record(plan *p, recording *recorded) {
    pthread_t threads[RANKS];
    test_rank ranks[RANKS];
    p->params.timeout = HONEST_TIMEOUT;
    for (int rank = 0; rank < p->nranks; rank++) {
        ranks[rank] = (test_rank){.plan = p, .end = {.recording = recorded, .rank = rank}};
        REQUIRE(pthread_create(&threads[rank], NULL, run_honestly, &ranks[rank]) == 0);
    }
    for (int rank = 0; rank < p->nranks; rank++)
        pthread_join(threads[rank], NULL);
}

/* ---- The hostile run ------------------------------------------------------------------------- */

static int is_known(int status) {
    return status <= TW_OK && status >= TW_ERR_DAMAGED;
}

/* The result of a step that was TW_OK. */
static void check_result(test_rank *s, int tensor) {
    const int64_t n = s->plan->n[tensor];
    tw_sparse sparse;
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(s->out[tensor][i]));
    if (s->plan->dense)
        return;
    REQUIRE(tw_group_result(s->group, tensor, &sparse) == TW_OK);
    REQUIRE(sparse.count >= 0 && sparse.count <= n);
    for (int64_t j = 0; j < sparse.count; j++) {
        REQUIRE(sparse.idx[j] >= (j ? sparse.idx[j - 1] + 1 : 0) && sparse.idx[j] < n);
        REQUIRE(oracle_bits(sparse.val[j]) == oracle_bits(s->out[tensor][sparse.idx[j]]));
    }
}

static void check_residual(test_rank *s, int tensor) {
    const int64_t n = s->plan->n[tensor];
    float *residual = allocate((size_t)n, sizeof *residual);
    REQUIRE(tw_group_get_residual(s->group, tensor, residual) == TW_OK);
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(residual[i]));
    free(residual);
}

/* One step; returns whether another one can follow. */
static int hostile_step(test_rank *s, int step) {
    const int status = run_step(s, step);
    REQUIRE(is_known(status));
    REQUIRE(status == TW_OK || tw_last_error()[0] != '\0');
    for (int i = 0; i < s->plan->tensors; i++) {
        if (status == TW_OK)
            check_result(s, i);
        check_residual(s, i);
    }
    return status == TW_OK || status == TW_ERR_NUMBER;
}

static void replay(plan *p, recording *recorded, input *in) {
    test_rank s = {.plan = p, .end = {.recording = recorded, .in = in}};
    s.end.rank = (int)(take(in, 1) % (uint32_t)p->nranks);
    s.end.honest_receives = (int)(take(in, 1) % 64);
    s.end.rng.key = take(in, 2);
    p->params.timeout = HOSTILE_TIMEOUT;
    rank_open(&s);
    const int status = tw_group_open(s.group);
    REQUIRE(is_known(status));
    for (int step = 0; step < STEPS && status == TW_OK; step++)
        if (!hostile_step(&s, step))
            break;
    rank_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    plan p = {.params = TW_GROUP_PARAMS_INIT};
    recording *recorded = allocate(1, sizeof *recorded);
    pthread_mutex_init(&recorded->mutex, NULL);
    read_plan(&p, &in);
    record(&p, recorded);
    replay(&p, recorded, &in);
    recording_free(recorded);
    return 0;
}
