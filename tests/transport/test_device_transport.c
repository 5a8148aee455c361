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

/* ---- a device in the host's memory: copies happen at once, and events have been reached, unless a
 * test's stream is slow or stuck */

#define CHUNK ((size_t)4096)
#define tw__device_transport_create fake_transport_create
#define tw__device_transport_free fake_transport_free
#define tw__device_transport_memory fake_transport_memory
#include "backend/device_transport.c" // NOLINT(bugprone-suspicious-include): with shorter chunks

struct tw__stream {
    double ends;    /* check_seconds() at which its events are reached; 0: always, < 0: never */
    int recorded;   /* events */
    int given_up;   /* 1: while it is at work, 2: for good */
    int unfinished; /* times that the caller's functions are still to say "not yet"; < 0: always */
    int fails;      /* they fail instead */
    int refuses;    /* they queue nothing, and fail at once */
    int waited;     /* times that a stream which never ends was waited for */
};

static int fake_copy(tw__stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
    return TW_OK;
}

static int fake_wait(tw__stream *stream) {
    if (stream != NULL)
        stream->waited += stream->ends < 0.0 && !stream->given_up;
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
    (void)native;
    if (stream != NULL)
        stream->recorded++;
    *event = event;
    return TW_OK;
}

static int fake_reached(const tw__stream *stream, void *event) {
    double ends = stream != NULL ? stream->ends : 0.0;
    return event != NULL && ends >= 0.0 && check_seconds() >= ends;
}

static void fake_event_free(tw__stream *stream, void *event) {
    (void)stream, (void)event;
}

static void fake_free(tw__stream *stream, void *memory) {
    (void)stream;
    free(memory);
}

static void fake_give_up(tw__stream *stream, int for_good) {
    if (stream != NULL)
        stream->given_up = 1 + for_good;
}

static const tw__backend fake_backend = {.stream_native = fake_native,
                                         .stream_wait = fake_wait,
                                         .stream_give_up = fake_give_up,
                                         .event_record = fake_record,
                                         .event_reached = fake_reached,
                                         .event_free = fake_event_free,
                                         .host_alloc = fake_host_alloc,
                                         .host_free = fake_free,
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

static const tw_device_calls lent = {.exchange = lent_exchange};

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
            check_ok(tw_transport_set_device(r->transports[i], &lent, &numbers[i]));
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
    static const tw_device_calls refusing = {.exchange = refuse_quietly};
    ranks r;
    check_scene("a lent transfer that fails quietly");
    ranks_init(&r, 2);
    for (int i = 0; i < 2; i++)
        check_ok(tw_transport_set_device(r.transports[i], &refusing, NULL));
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

/* ---- lent transfers that take their time, or do not end */

static int queue_nothing(void *context, const tw_device_message *messages, int count,
                         void *stream) {
    (void)messages, (void)count, (void)stream;
    if (((const tw__stream *)context)->refuses)
        return tw_transport_explain("the network is gone");
    return TW_OK;
}

static int slow_progress(void *context) {
    tw__stream *stream = context;
    if (stream->fails)
        return tw_transport_explain("the network is gone");
    if (stream->unfinished > 0)
        return stream->unfinished-- > 0;
    return stream->unfinished < 0;
}

typedef struct slow {
    tw__stream streams[2];
    double timeout, began, took[2];
} slow;

static int swap_slowly(ranks *r, int rank, void *context) {
    slow *s = context;
    char memory[16] = {0};
    tw__device_transport *device = NULL;
    tw__transfer transfer = {.peer = 1 - rank,
                             .out = {.data = memory, .bytes = 8},
                             .in = {.data = memory + 8, .capacity = 8}};
    tw__transport_set_timeout(r->transports[rank], s->timeout);
    int error =
        fake_transport_create(&device, r->transports[rank], &fake_backend, &s->streams[rank], 1000);
    if (error == TW_OK)
        error = tw__transport_transfer(r->transports[rank], &transfer, 1);
    s->took[rank] = check_seconds() - s->began;
    fake_transport_free(device);
    return error;
}

/* Both ranks' streams are like this one. */
static void run_slowly(slow *s, const tw__stream *both, double timeout, int want) {
    static const tw_device_calls calls = {.exchange = queue_nothing, .progress = slow_progress};
    ranks r;
    *s = (slow){.timeout = timeout, .began = check_seconds()};
    ranks_init(&r, 2);
    for (int i = 0; i < 2; i++) {
        s->streams[i] = *both;
        check_ok(tw_transport_set_device(r.transports[i], &calls, &s->streams[i]));
    }
    ranks_run(&r, swap_slowly, s);
    ranks_error(&r, want);
    if (both->fails || both->refuses)
        ranks_say(&r, "the exchange between devices failed: the network is gone");
    ranks_close(&r);
}

static void check_took(const slow *s, double least, double most) {
    for (int i = 0; i < 2; i++)
        if (s->took[i] < least || s->took[i] > most)
            check_fail("rank %d: took %g s, not %g .. %g", i, s->took[i], least, most);
}

/* Seconds of the slower rank, in the best of some tries: the machine may be busy. */
static double least_seconds(double work) {
    double least = RANKS_TIMEOUT;
    for (int i = 0; i < 20; i++) {
        slow s;
        double begin = check_seconds();
        run_slowly(&s, &(tw__stream){.ends = begin + work}, RANKS_TIMEOUT, TW_OK);
        double took = (s.took[0] > s.took[1] ? s.took[0] : s.took[1]) + s.began - begin;
        least = took < least ? took : least;
    }
    return least;
}

/* Nobody sends a message when the device is done: the wait for it does not sleep until one comes. */
static void test_lent_is_noticed(void **state) {
    (void)state;
    slow s;
    for (int milliseconds = 1; milliseconds < 10; milliseconds += 4) {
        double work = 1e-3 * milliseconds, least = least_seconds(work);
        check_scene("events are reached after %g s", work);
        if (least < work - 1e-9 || least > work + 0.002)
            check_fail("took %g s", least);
    }
    check_scene("queued at the 50th question");
    run_slowly(&s, &(tw__stream){.unfinished = 50}, RANKS_TIMEOUT, TW_OK);
    for (int i = 0; i < 2; i++) {
        check_int("times still to ask", s.streams[i].unfinished, 0);
        check_int("events", s.streams[i].recorded, 1);
        check_int("given up", s.streams[i].given_up, 0);
    }
}

static void test_lent_is_stuck(void **state) {
    (void)state;
    slow s;
    check_scene("queued, but never done");
    run_slowly(&s, &(tw__stream){.ends = -1.0}, 0.4, TW_ERR_TIMEOUT);
    check_took(&s, 0.0, 1.1 * 0.4 + 0.1);
    check_int("given up", s.streams[0].given_up, 1);
    check_int("given up", s.streams[1].given_up, 1);
    check_scene("never queued");
    run_slowly(&s, &(tw__stream){.unfinished = -1}, 0.4, TW_ERR_TIMEOUT);
    check_took(&s, 0.0, 1.1 * 0.4 + 0.1);
    check_int("events", s.streams[0].recorded + s.streams[1].recorded, 0);
    check_int("given up", s.streams[0].given_up, 2);
    check_int("given up", s.streams[1].given_up, 2);
}

/* What goes wrong later, as ncclCommGetAsyncError tells it. */
static void test_lent_fails_later(void **state) {
    (void)state;
    slow s;
    check_scene("a failure after it was queued");
    run_slowly(&s, &(tw__stream){.ends = -1.0, .fails = 1}, RANKS_TIMEOUT, TW_ERR_TRANSPORT);
    check_took(&s, 0.0, 1.0);
    check_true(s.streams[0].given_up > 0 && s.streams[1].given_up > 0);
    check_scene("a failure after a part may have been queued");
    run_slowly(&s, &(tw__stream){.ends = -1.0, .refuses = 1}, RANKS_TIMEOUT, TW_ERR_TRANSPORT);
    check_int("given up", s.streams[0].given_up, 2);
    check_int("given up", s.streams[1].given_up, 2);
}

/* A copy to the host that never ends: the deadline is waited for once. */
static void test_staged_is_stuck(void **state) {
    (void)state;
    slow s = {.timeout = 0.4, .began = check_seconds()};
    ranks r;
    open_ranks(&r, 2, STAGED);
    for (int i = 0; i < 2; i++)
        s.streams[i].ends = -1.0;
    ranks_run(&r, swap_slowly, &s);
    ranks_error(&r, TW_ERR_TIMEOUT);
    ranks_say(&r, "is a stream stuck?");
    check_took(&s, 0.0, 1.1 * 0.4 + 0.1);
    for (int i = 0; i < 2; i++) {
        check_int("given up", s.streams[i].given_up, 1);
        check_int("waited for again", s.streams[i].waited, 0);
    }
    ranks_close(&r);
}

/* ---- waits for the own device, which does not end */

typedef struct lonely {
    int alone;     /* failures of others no longer matter */
    int fails;     /* rank 1 aborts */
    int interrupt; /* rank 0's group is freed */
    double took;
    int failed; /* rank 0's transport cannot be used any more */
} lonely;

static int wait_for_own(ranks *r, int rank, void *context) {
    lonely *l = context;
    tw__deadline deadline = {0};
    double begin = check_seconds();
    int error = TW_OK;
    tw__transport_set_timeout(r->transports[rank], 0.8);
    if (rank == 1 && l->fails)
        (void)tw__transport_abort(r->transports[1], tw__fail(TW_ERR_NUMBER, "rank 1 has failed"));
    if (rank == 1)
        return TW_OK;
    if (l->interrupt)
        tw__transport_interrupt(r->transports[0]);
    while (error == TW_OK)
        error = tw__transport_check_device(r->transports[0], &deadline, l->alone);
    l->took = check_seconds() - begin;
    l->failed = tw__transport_has_failed(r->transports[0]);
    return error;
}

static void check_own(lonely l, int want, const char *text, double least, double most, int failed) {
    ranks r;
    check_scene("alone=%d fails=%d interrupt=%d", l.alone, l.fails, l.interrupt);
    ranks_init(&r, 2);
    ranks_run(&r, wait_for_own, &l);
    check_int("status", r.status[0], want);
    check_contains(r.text[0], text);
    if (l.took < least || l.took > most)
        check_fail("took %g s, not %g .. %g", l.took, least, most);
    check_int("failed", l.failed, failed);
    ranks_close(&r);
}

/* At half of the timeout the others would ask: until then this rank must have told them. */
static void test_own_device(void **state) {
    (void)state;
    const char *stuck = "the device has not ended within 0.4 s";
    check_own((lonely){0}, TW_ERR_TIMEOUT, stuck, 0.4, 0.6, 0);
    check_own((lonely){.fails = 1}, TW_ERR_NUMBER, "says rank 1", 0.0, 0.3, 1);
    check_own((lonely){.fails = 1, .alone = 1}, TW_ERR_TIMEOUT, stuck, 0.4, 0.6, 0);
    check_own((lonely){.interrupt = 1}, TW_ERR_STATE, "was freed", 0.0, 0.3, 1);
    check_own((lonely){.interrupt = 1, .alone = 1}, TW_ERR_STATE, "was freed", 0.0, 0.3, 1);
}

static void unknown(void) {
}

static void test_lent_is_checked(void **state) {
    (void)state;
    static const tw_device_calls none,
        newer = {.exchange = lent_exchange, .reserved = {[3] = unknown}};
    tw_transport *transport;
    check_ok(tw_transport_self(&transport));
    check_error(tw_transport_set_device(transport, &none, NULL), TW_ERR_NULL);
    check_error(tw_transport_set_device(transport, &newer, NULL), TW_ERR_PARAM);
    check_ok(tw_transport_set_device(transport, &lent, NULL));
    check_true(tw__transport_lent(transport) != NULL);
    check_ok(tw_transport_set_device(transport, NULL, NULL));
    check_true(tw__transport_lent(transport) == NULL);
    tw_transport_free(transport);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_quiet_refusal),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_lent_is_noticed),
        cmocka_unit_test(test_lent_is_stuck),
        cmocka_unit_test(test_staged_is_stuck),
        cmocka_unit_test(test_lent_fails_later),
        cmocka_unit_test(test_lent_is_checked),
        cmocka_unit_test(test_own_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
