/* test_device_transport.c - device memory from rank to rank, where there is no device
 *
 * The transport is plain C over a few calls of a backend: here those work on the host's memory, so
 * that its protocol is tested everywhere. What arrived is compared byte by byte, for lent, direct and
 * staged transfers. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "thinwire_sim.h"

/* ---- a device in the host's memory: copies happen at once, events have always been reached */

#define CHUNK ((size_t)4096)
#define tw__device_transport_create fake_transport_create
#define tw__device_transport_free fake_transport_free
#define tw__device_transport_memory fake_transport_memory
#include "backend/device_transport.c" // NOLINT(bugprone-suspicious-include): with shorter chunks

static int fake_copy(tw__stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
    return TW_OK;
}

static int fake_wait(tw__stream *stream) {
    (void)stream;
    return TW_OK;
}

static void *fake_native(const tw__stream *stream) {
    (void)stream;
    return NULL;
}

static void *fake_host_alloc(tw__stream *stream, size_t bytes) {
    (void)stream;
    return malloc(bytes);
}

static int fake_record(tw__stream *stream, void *native, void **event) {
    (void)stream, (void)native;
    *event = event;
    return TW_OK;
}

static int fake_reached(void *event) {
    return event != NULL;
}

static void fake_event_free(void *event) {
    (void)event;
}

static const tw__backend fake_backend = {.stream_native = fake_native,
                                         .stream_wait = fake_wait,
                                         .event_record = fake_record,
                                         .event_reached = fake_reached,
                                         .event_free = fake_event_free,
                                         .host_alloc = fake_host_alloc,
                                         .host_free = free,
                                         .copy = fake_copy};

/* ---- transfers to lend: senders leave addresses, receivers copy */

enum { MOST = 8, TURNS = 12 };
static const tw_device_message *slots[MOST][MOST];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int numbers[MOST] = {0, 1, 2, 3, 4, 5, 6, 7};

static void await_slot(int sender, int receiver, int filled) {
    while ((slots[sender][receiver] != NULL) != filled)
        pthread_cond_wait(&changed, &mutex);
}

static int lent_exchange(void *context, const tw_device_message *messages, int count,
                         void *stream) {
    int rank = *(int *)context, error = TW_OK;
    (void)stream;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < count; i++)
        if (messages[i].sending)
            slots[rank][messages[i].peer] = &messages[i];
    pthread_cond_broadcast(&changed);
    for (int i = 0; i < count; i++) {
        int peer = messages[i].peer;
        if (messages[i].sending)
            continue;
        await_slot(peer, rank, 1);
        if (slots[peer][rank]->bytes != messages[i].bytes) {
            error = tw_transport_explain("%zu bytes, not %zu", slots[peer][rank]->bytes,
                                         messages[i].bytes);
        } else {
            memcpy(messages[i].data, slots[peer][rank]->data, messages[i].bytes);
        }
        slots[peer][rank] = NULL;
        pthread_cond_broadcast(&changed);
    }
    for (int i = 0; i < count; i++)
        if (messages[i].sending)
            await_slot(rank, messages[i].peer, 0);
    pthread_mutex_unlock(&mutex);
    return error;
}

/* ---- what ranks send each other, known to both ends by its formula */

typedef enum { DIRECT, LENT, STAGED, TRANSFERS } transfer_kind;
typedef enum { DIFFERENT, ALIKE } plan; /* to all ranks */

#define LONGEST (10 * CHUNK) /* more than a simulated pair has under way */

static size_t size_of(plan what, int from, int to, int turn) {
    static const size_t sizes[] = {0, 1, 40, 3 * CHUNK, CHUNK - 1, CHUNK + 1, CHUNK, 2};
    if (turn == 3 && from < 2)
        return LONGEST;
    return sizes[(size_t)(from * 3 + (what == ALIKE ? 0 : to * 5) + turn) % 8];
}

/* Every fifth pair does not talk in a turn; both ends know. */
static int is_silent(plan what, int from, int to, int turn) {
    return what == DIFFERENT && (from + 2 * to + turn) % 5 == 0;
}

static unsigned char byte_of(plan what, int from, int to, int turn, size_t at) {
    return (unsigned char)((size_t)(from * 31 + (what == ALIKE ? 0 : to * 17) + turn * 7) +
                           at * 13);
}

typedef struct job {
    plan what;
    int64_t wrong[MOST]; /* bytes, or lengths */
    tw_traffic traffic[MOST];
} job;

typedef struct bags {
    tw__device_transport *device;
    tw__transfer transfers[MOST];
    unsigned char *out, *in; /* [MOST][LONGEST] */
} bags;

static void pack(const ranks *r, int rank, plan what, int turn, bags *b) {
    for (int i = 0; i + 1 < r->nranks; i++) {
        int peer = (rank + i + 1) % r->nranks;
        unsigned char *out = b->out + (what == ALIKE ? 0 : (size_t)peer * LONGEST);
        size_t bytes = size_of(what, rank, peer, turn);
        for (size_t at = 0; at < bytes; at++)
            out[at] = byte_of(what, rank, peer, turn, at);
        b->transfers[i] = (tw__transfer){.peer = peer};
        if (!is_silent(what, rank, peer, turn))
            b->transfers[i].out = (tw__buffer){.data = out, .bytes = bytes};
        if (!is_silent(what, peer, rank, turn)) {
            b->transfers[i].in =
                (tw__buffer){.data = b->in + (size_t)peer * LONGEST, .capacity = LONGEST};
        }
    }
}

static int64_t unpack(const ranks *r, int rank, plan what, int turn, const bags *b) {
    int64_t wrong = 0;
    for (int i = 0; i + 1 < r->nranks; i++) {
        const tw__transfer *s = &b->transfers[i];
        if (s->in.data == NULL)
            continue;
        wrong += s->in.bytes != size_of(what, s->peer, rank, turn);
        const unsigned char *in = s->in.data;
        for (size_t at = 0; at < s->in.bytes; at++)
            wrong += in[at] != byte_of(what, s->peer, rank, turn, at);
    }
    return wrong;
}

static int talk(ranks *r, int rank, void *context) {
    job *j = context;
    bags b = {.out = malloc((size_t)MOST * LONGEST), .in = malloc((size_t)MOST * LONGEST)};
    int error = fake_transport_create(&b.device, r->transports[rank], &fake_backend, NULL,
                                      (size_t)MOST * LONGEST);
    for (int turn = 0; turn < TURNS && error == TW_OK; turn++) {
        pack(r, rank, j->what, turn, &b);
        error = tw__transport_transfer(r->transports[rank], b.transfers, r->nranks - 1);
        j->wrong[rank] += error == TW_OK ? unpack(r, rank, j->what, turn, &b) : 0;
    }
    j->traffic[rank] = tw__transport_traffic(r->transports[rank]);
    fake_transport_free(b.device);
    free(b.out);
    free(b.in);
    return error;
}

static void open_ranks(ranks *r, int nranks, transfer_kind how) {
    const tw_network network = {.latency = 1e-6, .bandwidth = 1e9};
    ranks_init(r, nranks);
    for (int i = 0; i < nranks; i++) {
        tw__transport_set_timeout(r->transports[i], RANKS_TIMEOUT);
        if (how == LENT)
            check_ok(tw_transport_set_device(r->transports[i], lent_exchange, &numbers[i]));
        if (how == STAGED)
            tw_transport_free(r->transports[i]);
    }
    if (how == STAGED)
        check_ok(tw_transport_simulated(r->transports, nranks, &network));
}

static void test_ways(void **state) {
    (void)state;
    static const int counts[] = {2, 3, 5, 8};
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < 2 * TRANSFERS; i++) {
            job j = {.what = i % 2 ? ALIKE : DIFFERENT};
            ranks r;
            check_scene("P=%d transfer=%d plan=%d", counts[c], i / 2, i % 2);
            open_ranks(&r, counts[c], (transfer_kind)(i / 2));
            ranks_run(&r, talk, &j);
            ranks_ok(&r);
            int64_t sent = 0, received = 0;
            for (int rank = 0; rank < counts[c]; rank++) {
                check_int("wrong", j.wrong[rank], 0);
                sent += j.traffic[rank].payload_sent;
                received += j.traffic[rank].payload_received;
            }
            check_int("payload", received, sent);
            ranks_close(&r);
        }
    }
}

/* Rank 1 offers more than rank 0 can take: an error that says so, not a write beyond. */
static int offer_too_much(ranks *r, int rank, void *context) {
    char memory[64] = {0};
    tw__device_transport *device = NULL;
    tw__transfer s = {.peer = 1 - rank};
    (void)context;
    if (rank == 0)
        s.in = (tw__buffer){.data = memory, .capacity = 40};
    else
        s.out = (tw__buffer){.data = memory, .bytes = 41};
    int error = fake_transport_create(&device, r->transports[rank], &fake_backend, NULL, 1000);
    if (error == TW_OK)
        error = tw__transport_transfer(r->transports[rank], &s, 1);
    if (error != TW_OK)
        (void)tw__transport_abort(r->transports[rank], error);
    fake_transport_free(device);
    return error;
}

static void test_too_much(void **state) {
    (void)state;
    for (transfer_kind how = DIRECT; how < TRANSFERS; how += 2) {
        ranks r;
        check_scene("transfer=%d", how);
        open_ranks(&r, 2, how);
        ranks_run(&r, offer_too_much, NULL);
        ranks_error(&r, TW_ERR_PROTOCOL);
        ranks_say(&r, "offers 41 bytes; possible are 40");
        ranks_close(&r);
    }
}

/* A lent transfer that fails and does not say why: an older error is not the reason. */
static int refuse_quietly(void *context, const tw_device_message *messages, int count,
                          void *stream) {
    (void)context, (void)messages, (void)count, (void)stream;
    return -5;
}

static int lend_refusal(ranks *r, int rank, void *context) {
    char memory[8] = {0};
    tw__device_transport *device = NULL;
    tw__buffer buffer = {.data = memory, .bytes = sizeof memory, .capacity = sizeof memory};
    tw__transfer s = {.peer = 1 - rank};
    (void)context;
    *(rank == 0 ? &s.in : &s.out) = buffer;
    (void)tw_transport_explain("long ago");
    int error = fake_transport_create(&device, r->transports[rank], &fake_backend, NULL, 1000);
    if (error == TW_OK)
        error = tw__transport_transfer(r->transports[rank], &s, 1);
    fake_transport_free(device);
    return error;
}

static void test_quiet_refusal(void **state) {
    (void)state;
    ranks r;
    check_scene("a lent transfer that fails quietly");
    ranks_init(&r, 2);
    for (int i = 0; i < 2; i++)
        check_ok(tw_transport_set_device(r.transports[i], refuse_quietly, NULL));
    ranks_run(&r, lend_refusal, NULL);
    ranks_error(&r, TW_ERR_TRANSPORT);
    ranks_say(&r, "failed: error -5, not explained");
    ranks_close(&r);
}

/* Rank 1 does not come: the deadline ends it, and names it. */
static int come_alone(ranks *r, int rank, void *context) {
    char memory[64] = {0};
    tw__device_transport *device = NULL;
    tw__transfer s = {.peer = 1, .in = {.data = memory, .capacity = 40}};
    (void)context;
    if (rank == 1)
        return TW_OK;
    tw__transport_set_timeout(r->transports[0], 0.2);
    int error = fake_transport_create(&device, r->transports[0], &fake_backend, NULL, 1000);
    if (error == TW_OK)
        error = tw__transport_transfer(r->transports[0], &s, 1);
    fake_transport_free(device);
    return error;
}

static void test_absent(void **state) {
    (void)state;
    ranks r;
    open_ranks(&r, 2, DIRECT);
    ranks_run(&r, come_alone, NULL);
    check_int("status", r.status[0], TW_ERR_TIMEOUT);
    check_contains(r.text[0], "rank 1");
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_quiet_refusal),
        cmocka_unit_test(test_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
