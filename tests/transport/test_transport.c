/* test_transport.c - messages, alltoalls, allgathers and sums, from inside the library
 *
 * Runs over every transport whose row has `create`; with the argument `sockets`, over sockets. Every
 * byte is a function of sender, receiver and message number, so the receiver can check it. */
#include <sched.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "transport_ranks.h"

static unsigned char byte_of(int from, int to, int number, size_t i) {
    return (unsigned char)((size_t)(from * 31 + to * 7 + number * 3) + i * 13);
}

static void fill(unsigned char *data, size_t bytes, int from, int to, int number) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, to, number, i);
}

static int is_from(const unsigned char *data, size_t bytes, int from, int to, int number) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != byte_of(from, to, number, i))
            return 0;
    return 1;
}

/* ---- single messages */

enum { MANY = 40 };

static size_t length_of(int number) {
    return number % 7 == 0 ? 0 : (size_t)number * 97;
}

/* Rank 0 sends before or after rank 1 receives: the scheduler decides. */
static void run_order(test_rank *m) {
    static unsigned char data[2][MANY][MANY * 97];
    tw__message messages[MANY];
    for (int i = 0; i < MANY; i++) {
        if (m->rank == 0) {
            fill(data[0][i], length_of(i), 0, 1, i);
            rank_ok(m, tw__transport_send(m->transport, 1, TW__PAYLOAD, data[0][i], length_of(i),
                                          &messages[i]));
        } else {
            rank_ok(m, tw__transport_recv(m->transport, 0, TW__PAYLOAD, data[1][i],
                                          sizeof data[1][i], &messages[i]));
        }
    }
    rank_ok(m, tw__transport_wait(m->transport, messages, MANY));
    for (int i = 0; i < MANY && m->rank == 1; i++) {
        rank_check(m, messages[i].bytes == length_of(i));
        rank_check(m, is_from(data[1][i], length_of(i), 0, 1, i));
    }
}

static void test_order(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++)
        run_ranks(2, 0, run_order, NULL);
}

/* Both directions at once, 24 MB each. */
static void run_large(test_rank *m) {
    size_t bytes = (size_t)24 << 20;
    int other = 1 - m->rank;
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    tw__message both[2];
    fill(out, bytes, m->rank, other, 0);
    int status = tw__transport_recv(m->transport, other, TW__PAYLOAD, in, bytes, &both[0]);
    if (status == TW_OK)
        status = tw__transport_send(m->transport, other, TW__PAYLOAD, out, bytes, &both[1]);
    if (status == TW_OK)
        status = tw__transport_wait(m->transport, both, 2);
    if (status != TW_OK || both[0].bytes != bytes || !is_from(in, bytes, other, m->rank, 0))
        rank_fail(m, "24 MB arrive", __LINE__);
    free(out);
    free(in);
}

static void test_large(void **state) {
    (void)state;
    run_ranks(2, 0, run_large, NULL);
}

/* The receive fails and writes nothing. The sender gets an abort notice, or is done already. */
static void run_too_long(test_rank *m) {
    static const char text[20] = "nineteen characters";
    char room[12];
    tw__message message;
    memset(room, '.', sizeof room);
    if (m->rank == 0) {
        rank_ok(m, tw__transport_send(m->transport, 1, TW__PAYLOAD, text, 20, &message));
        (void)tw__transport_wait(m->transport, &message, 1);
        return;
    }
    rank_ok(m, tw__transport_recv(m->transport, 0, TW__PAYLOAD, room, 8, &message));
    rank_check(m, tw__transport_wait(m->transport, &message, 1) == TW_ERR_TRANSPORT);
    rank_check(m, strstr(tw_last_error(), "cannot receive from rank 0: the message of 20 bytes"));
    for (size_t i = 0; i < sizeof room; i++)
        rank_check(m, room[i] == '.');
    rank_check(m, message.request == NULL);
    rank_check(m, tw__transport_acquire(m->transport) == TW_ERR_STATE);
}

static void test_too_long(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        run_ranks(2, 0, run_too_long, NULL);
}

/* After a cancel the buffers, then the transport can be freed at once. */
static void run_cancel(test_rank *m) {
    enum { REQUESTS = 200 };
    tw__message messages[2 * REQUESTS];
    size_t bytes = 1000;
    unsigned char *out = calloc(REQUESTS, bytes), *in = calloc(REQUESTS, bytes);
    int other = 1 - m->rank, status = TW_OK;
    memset(messages, 0, sizeof messages);
    for (size_t i = 0; i < REQUESTS && status == TW_OK; i++) {
        status = tw__transport_send(m->transport, other, TW__PAYLOAD, out + i * bytes, bytes,
                                    &messages[i]);
        if (status == TW_OK && (m->rank == 0 || i % 3 == 0))
            status = tw__transport_recv(m->transport, other, TW__PAYLOAD, in + i * bytes, bytes,
                                        &messages[REQUESTS + i]);
    }
    tw__transport_cancel(m->transport, messages, 2 * REQUESTS);
    free(out);
    free(in);
    rank_ok(m, status);
}

static void test_cancel(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++)
        run_ranks(2, 0, run_cancel, NULL);
}

/* ---- alltoalls */

enum { LONGEST = 3000 };

/* Random, one in four empty. Sender and receiver compute the same. */
static size_t random_length(uint64_t seed, int from, int to) {
    uint64_t draw = tw__random(seed, (uint64_t)from * 1000 + (uint64_t)to);
    return draw % 4 == 0 ? 0 : draw / 4 % LONGEST;
}

/* One rank's buffers of an alltoall. */
typedef struct buffers {
    tw__buffer out[RANKS_MAX], in[RANKS_MAX];
    tw__message recvs[RANKS_MAX];
    tw__alltoall alltoall;
    unsigned char *memory;
} buffers;

static buffers *buffers_create(const test_rank *m, uint64_t seed) {
    buffers *c = calloc(1, sizeof *c);
    c->memory = malloc((size_t)m->nranks * 2 * LONGEST);
    for (int i = 0; i < m->nranks; i++) {
        unsigned char *place = c->memory + (size_t)i * 2 * LONGEST;
        c->out[i] = (tw__buffer){.data = place, .bytes = random_length(seed, m->rank, i)};
        c->in[i] = (tw__buffer){.data = place + LONGEST, .capacity = LONGEST};
        fill(place, c->out[i].bytes, m->rank, i, (int)(seed % 100));
    }
    return c;
}

static int buffers_check(const buffers *c, const test_rank *m, uint64_t seed) {
    for (int i = 0; i < m->nranks; i++) {
        size_t bytes = random_length(seed, i, m->rank);
        if (i != m->rank && (c->in[i].bytes != bytes ||
                             !is_from(c->in[i].data, bytes, i, m->rank, (int)(seed % 100))))
            return 0;
    }
    return 1;
}

static void buffers_free(buffers *c) {
    free(c->memory);
    free(c);
}

static void run_alltoall(test_rank *m) {
    buffers *c = buffers_create(m, m->seed);
    if (tw__alltoall_run(m->transport, TW__PAYLOAD, c->out, c->in, c->recvs) != TW_OK)
        rank_fail(m, "the alltoall ends", __LINE__);
    else if (!buffers_check(c, m, m->seed))
        rank_fail(m, "all messages arrive", __LINE__);
    buffers_free(c);
}

/* The second begins after the first was flushed, and before the first ends. */
static void run_two_alltoalls(test_rank *m) {
    buffers *a = buffers_create(m, m->seed), *b = buffers_create(m, m->seed + 1);
    int status =
        tw__alltoall_begin(&a->alltoall, m->transport, TW__PAYLOAD, a->out, a->in, a->recvs);
    if (status == TW_OK)
        status = tw__alltoall_flush(&a->alltoall);
    if (status == TW_OK)
        status =
            tw__alltoall_begin(&b->alltoall, m->transport, TW__PAYLOAD, b->out, b->in, b->recvs);
    if (status == TW_OK)
        status = tw__alltoall_end(&a->alltoall);
    if (status == TW_OK)
        status = tw__alltoall_end(&b->alltoall);
    if (status != TW_OK || !buffers_check(a, m, m->seed) || !buffers_check(b, m, m->seed + 1))
        rank_fail(m, "both alltoalls arrive", __LINE__);
    buffers_free(a);
    buffers_free(b);
}

/* Skips one message in five. Returns how many this rank will receive. */
static int skip_some(buffers *c, const test_rank *m, int round) {
    int coming = 0;
    for (int i = 0; i < m->nranks; i++) {
        c->out[i].data = (m->rank + 2 * i + round) % 5 == 0 ? NULL : c->out[i].data;
        c->in[i].data = (i + 2 * m->rank + round) % 5 == 0 ? NULL : c->in[i].data;
        coming += i != m->rank && c->in[i].data != NULL;
    }
    return coming;
}

static int has_arrived(const buffers *c, const test_rank *m, uint64_t seed, int from) {
    size_t bytes = random_length(seed, from, m->rank);
    return from != m->rank && c->in[from].bytes == bytes &&
           is_from(c->in[from].data, bytes, from, m->rank, (int)(seed % 100));
}

/* tw__alltoalls_next returns every message once, after it has arrived, and those of one sender in
 * the order of alltoalls. */
static void run_one_by_one(test_rank *m) {
    enum { ROUNDS = 3 };
    tw__alltoall alltoalls[ROUNDS] = {{0}};
    buffers *c[ROUNDS];
    int status = TW_OK, coming = 0, next[RANKS_MAX] = {0}, from = 0, which = 0, good = 1;
    for (int i = 0; i < ROUNDS; i++) {
        c[i] = buffers_create(m, m->seed + (uint64_t)i);
        coming += skip_some(c[i], m, i);
        if (status == TW_OK)
            status = tw__alltoall_begin(&alltoalls[i], m->transport, TW__PAYLOAD, c[i]->out,
                                        c[i]->in, c[i]->recvs);
        if (status == TW_OK)
            status = tw__alltoall_flush(&alltoalls[i]);
    }
    for (; status == TW_OK && from >= 0; coming--) {
        status = tw__alltoalls_next(alltoalls, ROUNDS, &which, &from);
        if (status != TW_OK || from < 0)
            break;
        good &= which >= next[from] && has_arrived(c[which], m, m->seed + (uint64_t)which, from);
        next[from] = which + 1;
    }
    for (int i = 0; i < ROUNDS; i++)
        buffers_free(c[i]);
    rank_ok(m, status);
    rank_check(m, good && coming == 0);
}

/* Overlapping work is called in waits for payload until it returns 0, and never in waits for control.
 * Rank 1 sends each message when rank 0 waits for it, the second one after the work has ended. */
static _Atomic int worked, waiting;

static int overlap(void *context) {
    (void)context;
    return ++worked < 3;
}

static void receive_one(test_rank *m, tw__message_kind kind) {
    char byte = 0;
    tw__message message;
    rank_ok(m, tw__transport_recv(m->transport, 1, kind, &byte, 1, &message));
    waiting++;
    rank_ok(m, tw__transport_wait(m->transport, &message, 1));
}

static void send_one(test_rank *m, tw__message_kind kind, int round, int work) {
    char byte = 0;
    tw__message message;
    while (waiting < round || worked < work)
        sched_yield();
    rank_ok(m, tw__transport_send(m->transport, 0, kind, &byte, 1, &message));
    rank_ok(m, tw__transport_wait(m->transport, &message, 1));
}

static void run_overlap(test_rank *m) {
    if (m->rank == 1) {
        send_one(m, TW__CONTROL, 1, 0);
        send_one(m, TW__PAYLOAD, 2, 3);
        send_one(m, TW__PAYLOAD, 3, 3);
        return;
    }
    tw__transport_set_overlap(m->transport, overlap, NULL);
    receive_one(m, TW__CONTROL);
    rank_check(m, worked == 0);
    receive_one(m, TW__PAYLOAD);
    receive_one(m, TW__PAYLOAD);
    rank_check(m, worked == 3);
}

static void test_overlap(void **state) {
    (void)state;
    worked = waiting = 0;
    run_ranks(2, 0, run_overlap, NULL);
}

static const int rank_counts[] = {1, 2, 3, 5, 8, 16};

static void test_alltoall(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            check_scene("%d ranks, seed %d", rank_counts[i], (int)seed);
            run_ranks(rank_counts[i], seed, run_alltoall, NULL);
            run_ranks(rank_counts[i], seed, run_two_alltoalls, NULL);
            run_ranks(rank_counts[i], seed, run_one_by_one, NULL);
        }
}

static void test_many_ranks(void **state) {
    (void)state;
    run_ranks(RANKS_MAX, 7, run_two_alltoalls, NULL);
}

/* ---- sums and records; the seed is the number of counts */

static uint32_t count_of(int rank, int64_t i) {
    return (uint32_t)tw__random((uint64_t)rank, (uint64_t)i);
}

static uint32_t sum_of(int nranks, int64_t i) {
    uint32_t sum = 0;
    for (int rank = 0; rank < nranks; rank++)
        sum += count_of(rank, i);
    return sum;
}

static void run_sum(test_rank *m) {
    int64_t count = (int64_t)m->seed;
    uint32_t *counts = calloc((size_t)count + 1, sizeof *counts);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, count));
    for (int64_t i = 0; i < count; i++)
        counts[i] = count_of(m->rank, i);
    counts[count] = 12345;
    if (tw__sum_counts(m->transport, counts, count, scratch) != TW_OK)
        rank_fail(m, "the sum ends", __LINE__);
    for (int64_t i = 0; i < count; i++)
        if (counts[i] != sum_of(m->nranks, i))
            rank_fail(m, "sums are right", __LINE__);
    if (counts[count] != 12345)
        rank_fail(m, "nothing is written behind the counts", __LINE__);
    free(counts);
    free(scratch);
}

static void test_sum(void **state) {
    (void)state;
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 15, 256, 4097};
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            check_scene("%d ranks, %d counts", rank_counts[i], (int)counts[j]);
            run_ranks(rank_counts[i], counts[j], run_sum, NULL);
        }
}

static void run_allgather(test_rank *m) {
    size_t bytes = (size_t)m->seed;
    unsigned char *records = calloc((size_t)m->nranks + 1, bytes + 1);
    void *scratch = malloc(tw__allgather_memory(m->nranks));
    fill(records + (size_t)m->rank * bytes, bytes, m->rank, 0, 9);
    if (tw__allgather(m->transport, records, bytes, scratch) != TW_OK)
        rank_fail(m, "the allgather ends", __LINE__);
    for (int i = 0; i < m->nranks; i++)
        if (!is_from(records + (size_t)i * bytes, bytes, i, 0, 9))
            rank_fail(m, "all records arrive", __LINE__);
    free(records);
    free(scratch);
}

static void test_allgather(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++)
        for (uint64_t bytes = 0; bytes < 100; bytes += 33)
            run_ranks(rank_counts[i], bytes, run_allgather, NULL);
}

/* Rank 2 has shorter records than the others. All ranks fail. */
static void run_bad_allgather(test_rank *m) {
    char records[3 * 16] = {0};
    void *scratch = malloc(tw__allgather_memory(m->nranks));
    int status = tw__allgather(m->transport, records, m->rank == 2 ? 8 : 16, scratch);
    free(scratch);
    rank_check(m, status == TW_ERR_PROTOCOL || (m->rank == 2 && status == TW_ERR_TRANSPORT));
    rank_check(m, m->rank == 2 || strstr(tw_last_error(), "rank 2 sent 8 bytes, 16 were expected"));
}

static void test_bad_allgather(void **state) {
    (void)state;
    run_ranks(3, 0, run_bad_allgather, NULL);
}

/* ---- counters */

static void run_counters(test_rank *m) {
    int rank = m->rank, nranks = m->nranks;
    int64_t sent = 0, received = 0, count = 1000;
    tw_traffic traffic;
    run_alltoall(m);
    for (int i = 0; i < nranks; i++) {
        sent += i != rank ? (int64_t)random_length(m->seed, rank, i) : 0;
        received += i != rank ? (int64_t)random_length(m->seed, i, rank) : 0;
    }
    rank_ok(m, tw_transport_info(m->transport, NULL, NULL, NULL, &traffic));
    rank_check(m, traffic.payload_sent == sent && traffic.payload_received == received);
    rank_check(m, traffic.control_sent == 0 && traffic.control_received == 0);
    rank_check(m, traffic.messages_sent == nranks - 1);

    uint32_t *counts = calloc((size_t)count, sizeof *counts);
    void *scratch = tw__alloc(tw__sum_counts_memory(nranks, count));
    int status = tw__sum_counts(m->transport, counts, count, scratch);
    free(counts);
    free(scratch);
    rank_ok(m, status);
    tw_traffic after = tw__transport_traffic(m->transport);
    int64_t own = 4 * (count * (rank + 1) / nranks - count * rank / nranks);
    int64_t both = 4 * count - own + (nranks - 1) * own;
    rank_check(m, after.payload_sent == sent && after.payload_received == received);
    rank_check(m, after.control_sent == both && after.control_received == both);
    rank_check(m, after.messages_sent == 3 * (nranks - 1));
}

static void test_counters(void **state) {
    (void)state;
    run_ranks(1, 3, run_counters, NULL);
    run_ranks(7, 3, run_counters, NULL);
}

/* ---- creation */

static void test_self(void **state) {
    (void)state;
    tw_transport *t = NULL;
    const char *name = NULL;
    int rank = -1, nranks = -1;
    uint32_t counts[3] = {1, 2, 3};
    tw__message message;
    check_ok(tw_transport_self(&t));
    check_ok(tw_transport_info(t, &name, &rank, &nranks, NULL));
    assert_string_equal(name, "self");
    check_int("rank", rank, 0);
    check_int("nranks", nranks, 1);
    check_ok(tw__sum_counts(t, counts, 3, NULL));
    check_int("counts[2]", counts[2], 3);
    check_error(tw__transport_send(t, 0, TW__CONTROL, counts, 4, &message), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "self transport: cannot send to rank 0: this is the only rank");
    check_ok(tw__transport_acquire(t));
    check_error(tw__transport_acquire(t), TW_ERR_STATE);
    tw__transport_release(t);
    check_ok(tw__transport_acquire(t));
    tw_transport_free(t);
    tw_transport_free(NULL);
}

static int fail_quietly(void *context, void *request, size_t *bytes) {
    (void)context, (void)request, (void)bytes;
    return -77;
}

static int send_nothing(void *context, int peer, int tag, const void *data, size_t bytes,
                        void **request) {
    (void)peer, (void)tag, (void)data, (void)bytes;
    *request = context;
    return 0;
}

static int recv_explained(void *context, int peer, int tag, void *data, size_t capacity,
                          void **request) {
    (void)context, (void)peer, (void)tag, (void)data, (void)capacity, (void)request;
    return tw_transport_explain("cable %d is unplugged", 3);
}

static void cancel_nothing(void *context, void *request) {
    (void)request;
    ++*(int *)context;
}

static void test_custom(void **state) {
    (void)state;
    int closed = 0;
    tw_transport *t = NULL;
    tw__message message;
    tw_transport_calls calls = {.name = "bad",
                                .send = send_nothing,
                                .recv = recv_explained,
                                .test = fail_quietly,
                                .cancel = cancel_nothing};
    check_error(tw_transport_custom(NULL, &calls, NULL, 0, 1), TW_ERR_NULL);
    check_error(tw_transport_custom(&t, NULL, NULL, 0, 1), TW_ERR_NULL);
    check_error(tw_transport_custom(&t, &calls, NULL, 2, 2), TW_ERR_PARAM);
    check_error(tw_transport_custom(&t, &calls, NULL, 0, 0), TW_ERR_PARAM);
    calls.test = NULL;
    check_error(tw_transport_custom(&t, &calls, NULL, 0, 2), TW_ERR_NULL);
    check_contains(tw_last_error(), "test is NULL");
    calls.test = fail_quietly;
    calls.reserved[3] = (void (*)(void))cancel_nothing;
    check_error(tw_transport_custom(&t, &calls, NULL, 0, 2), TW_ERR_PARAM);
    check_contains(tw_last_error(), "calls.reserved");
    calls.reserved[3] = NULL;
    check_ok(tw_transport_custom(&t, &calls, &closed, 0, 2));
    check_error(tw__transport_recv(t, 1, TW__CONTROL, NULL, 0, &message), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "bad transport: cannot receive from rank 1: cable 3 is unpl");
    (void)tw_transport_explain("an older error");
    check_ok(tw__transport_send(t, 1, TW__CONTROL, NULL, 0, &message));
    check_error(tw__transport_wait(t, &message, 1), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "bad transport: cannot send to rank 1: error -77");
    tw_transport_free(t);
}

/* A transport of rank 0 of 2 whose receives end in the reverse order of their start. */
typedef struct reversed {
    int sends;
    int starts[2]; /* requests: what was received first, and second */
    int started, looks;
} reversed;

static int reversed_send(void *context, int peer, int tag, const void *data, size_t bytes,
                         void **request) {
    (void)peer, (void)tag, (void)data, (void)bytes;
    *request = &((reversed *)context)->sends;
    return 0;
}

static int reversed_recv(void *context, int peer, int tag, void *data, size_t capacity,
                         void **request) {
    reversed *r = context;
    (void)peer, (void)tag, (void)data, (void)capacity;
    check_true(r->started < 2);
    *request = &r->starts[r->started++];
    return 0;
}

static int reversed_test(void *context, void *request, size_t *bytes) {
    reversed *r = context;
    if (request == &r->starts[0] && r->looks++ < 3)
        return 0;
    *bytes = 0;
    return 1;
}

static void reversed_cancel(void *context, void *request) {
    (void)context, (void)request;
}

/* A sender's messages are returned in the order of alltoalls, also where a later one is complete
 * first. */
static void test_complete_out_of_order(void **state) {
    (void)state;
    reversed r = {0};
    const tw_transport_calls calls = {.name = "reversed",
                                      .send = reversed_send,
                                      .recv = reversed_recv,
                                      .test = reversed_test,
                                      .cancel = reversed_cancel};
    char byte[2] = {0};
    tw__buffer out[2][2] = {{{0}}}, in[2][2] = {{{0}}};
    tw__message recvs[2][2] = {{{0}}};
    tw__alltoall alltoalls[2] = {{0}};
    tw_transport *t;
    int which = 0, from = 0;
    check_ok(tw_transport_custom(&t, &calls, &r, 0, 2));
    for (int i = 0; i < 2; i++) {
        out[i][1] = (tw__buffer){.data = byte, .bytes = 1};
        in[i][1] = (tw__buffer){.data = byte + i, .capacity = 1};
        check_ok(tw__alltoall_begin(&alltoalls[i], t, TW__PAYLOAD, out[i], in[i], recvs[i]));
    }
    for (int i = 0; i < 2; i++) {
        check_ok(tw__alltoalls_next(alltoalls, 2, &which, &from));
        check_int("alltoall", which, i);
        check_int("from", from, 1);
    }
    check_ok(tw__alltoalls_next(alltoalls, 2, &(int){0}, &from));
    check_int("no more", from, -1);
    tw_transport_free(t);
}

/* The caller's function gives the lowest rank of each host. A rank above the one asked for cannot be:
 * that one is the first of its host then. */
static int odd_host(void *context, int rank) {
    const int *lowest = context;
    return lowest[rank];
}

static void test_custom_hosts(void **state) {
    (void)state;
    int lowest[4] = {2, -1, 0, 1}, order[4], scratch[8] = {0};
    const tw_transport_calls calls = {.name = "odd",
                                      .send = send_nothing,
                                      .recv = recv_explained,
                                      .test = fail_quietly,
                                      .cancel = cancel_nothing,
                                      .host = odd_host};
    tw_transport *t;
    check_ok(tw_transport_custom(&t, &calls, lowest, 0, 4));
    check_int("ranks of a host", tw__transport_hosts(t, order, scratch), 2);
    for (int i = 0; i < 4; i++)
        check_int("order", order[i], i);
    tw_transport_free(t);
}

static void test_bad_threads(void **state) {
    (void)state;
    tw_transport *transports[2] = {0};
    check_error(tw_transport_threads(NULL, 2), TW_ERR_NULL);
    check_error(tw_transport_threads(transports, 0), TW_ERR_PARAM);
    check_error(tw_transport_threads(transports, 65537), TW_ERR_PARAM);
    check_error(tw_transport_self(NULL), TW_ERR_NULL);
    check_error(tw_transport_info(NULL, NULL, NULL, NULL, NULL), TW_ERR_NULL);
}

/* Every row has a name of its own and a description. */
static void test_kinds(void **state) {
    (void)state;
    const char *name, *description, *other;
    int count = 0;
    for (; tw_transport_kind(count, &name, &description) == TW_OK; count++) {
        check_true(name[0] != '\0' && description[0] != '\0');
        for (int i = 0; i < count; i++) {
            check_ok(tw_transport_kind(i, &other, NULL));
            check_true(strcmp(name, other) != 0);
        }
    }
    check_true(count > 0);
    check_error(tw_transport_kind(count, NULL, NULL), TW_ERR_NAME);
    check_error(tw_transport_kind(-1, NULL, NULL), TW_ERR_NAME);
}

int main(int argc, char **argv) {
    ranks_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    int failed = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_large),
        cmocka_unit_test(test_too_long),      cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_alltoall),      cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_sum),           cmocka_unit_test(test_allgather),
        cmocka_unit_test(test_bad_allgather), cmocka_unit_test(test_counters),
        cmocka_unit_test(test_self),          cmocka_unit_test(test_complete_out_of_order),
        cmocka_unit_test(test_custom_hosts),  cmocka_unit_test(test_custom),
        cmocka_unit_test(test_bad_threads),   cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_kinds),
    };
    for (int i = 0; tw__transport_row_at(i) != NULL && !failed; i++) {
        const tw__transport_row *row = tw__transport_row_at(i);
        if (row->create == NULL)
            continue;
        ranks_create = row->create;
        failed = cmocka_run_group_tests_name(ranks_on_sockets ? "sockets" : row->name, tests, NULL,
                                             NULL);
        if (ranks_on_sockets)
            break;
    }
    return failed;
}
