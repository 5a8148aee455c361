/* test_transport.c - messages, rotations and sums over threads, or with `sockets` over these, seen
 * from inside the library
 *
 * What is sent is a function of sender, receiver and number, so that every byte that arrives can
 * be checked by the one who gets it. */
#include <sched.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "crew.h"

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

/* Rank 0 sends before rank 1 receives, or after, as the scheduler likes. */
static void play_order(member *m) {
    static unsigned char data[2][MANY][MANY * 97];
    tw__message messages[MANY];
    for (int i = 0; i < MANY; i++) {
        if (m->rank == 0) {
            fill(data[0][i], length_of(i), 0, 1, i);
            crew_ok(m, tw__transport_send(m->transport, 1, TW__PAYLOAD, data[0][i], length_of(i),
                                          &messages[i]));
        } else {
            crew_ok(m, tw__transport_recv(m->transport, 0, TW__PAYLOAD, data[1][i],
                                          sizeof data[1][i], &messages[i]));
        }
    }
    crew_ok(m, tw__transport_wait(m->transport, messages, MANY));
    for (int i = 0; i < MANY && m->rank == 1; i++) {
        crew_true(m, messages[i].bytes == length_of(i));
        crew_true(m, is_from(data[1][i], length_of(i), 0, 1, i));
    }
}

static void test_order(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++)
        crew_run(2, 0, play_order, NULL);
}

/* Both directions at once, 24 MB each. */
static void play_large(member *m) {
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
        crew_note(m, "24 MB arrive", __LINE__);
    free(out);
    free(in);
}

static void test_large(void **state) {
    (void)state;
    crew_run(2, 0, play_large, NULL);
}

/* The receiver fails and its memory is whole; the sender is told, or is done already. */
static void play_too_long(member *m) {
    static const char words[20] = "nineteen characters";
    char room[12];
    tw__message message;
    memset(room, '.', sizeof room);
    if (m->rank == 0) {
        crew_ok(m, tw__transport_send(m->transport, 1, TW__PAYLOAD, words, 20, &message));
        (void)tw__transport_wait(m->transport, &message, 1);
        return;
    }
    crew_ok(m, tw__transport_recv(m->transport, 0, TW__PAYLOAD, room, 8, &message));
    crew_true(m, tw__transport_wait(m->transport, &message, 1) == TW_ERR_TRANSPORT);
    crew_true(m, strstr(tw_last_error(), "cannot receive from rank 0: the message of 20 bytes"));
    for (size_t i = 0; i < sizeof room; i++)
        crew_true(m, room[i] == '.');
    crew_true(m, message.request == NULL);
    crew_true(m, tw__transport_acquire(m->transport) == TW_ERR_STATE);
}

static void test_too_long(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        crew_run(2, 0, play_too_long, NULL);
}

/* Cancelled requests leave nothing behind: their buffers go at once, then the transport. */
static void play_cancel(member *m) {
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
    crew_ok(m, status);
}

static void test_cancel(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++)
        crew_run(2, 0, play_cancel, NULL);
}

/* ---- rotations */

enum { LONGEST = 3000 };

/* Random, one in four empty; both sides know it. */
static size_t random_length(uint64_t seed, int from, int to) {
    uint64_t draw = tw__random(seed, (uint64_t)from * 1000 + (uint64_t)to);
    return draw % 4 == 0 ? 0 : draw / 4 % LONGEST;
}

/* One rank's parcels of a rotation. */
typedef struct cargo {
    tw__buffer out[CREW_MOST], in[CREW_MOST];
    tw__message recvs[CREW_MOST];
    tw__alltoall rotation;
    unsigned char *memory;
} cargo;

static cargo *cargo_create(const member *m, uint64_t seed) {
    cargo *c = calloc(1, sizeof *c);
    c->memory = malloc((size_t)m->nranks * 2 * LONGEST);
    for (int i = 0; i < m->nranks; i++) {
        unsigned char *place = c->memory + (size_t)i * 2 * LONGEST;
        c->out[i] = (tw__buffer){.data = place, .bytes = random_length(seed, m->rank, i)};
        c->in[i] = (tw__buffer){.data = place + LONGEST, .capacity = LONGEST};
        fill(place, c->out[i].bytes, m->rank, i, (int)(seed % 100));
    }
    return c;
}

static int cargo_check(const cargo *c, const member *m, uint64_t seed) {
    for (int i = 0; i < m->nranks; i++) {
        size_t bytes = random_length(seed, i, m->rank);
        if (i != m->rank && (c->in[i].bytes != bytes ||
                             !is_from(c->in[i].data, bytes, i, m->rank, (int)(seed % 100))))
            return 0;
    }
    return 1;
}

static void cargo_free(cargo *c) {
    free(c->memory);
    free(c);
}

static void play_rotation(member *m) {
    cargo *c = cargo_create(m, m->seed);
    if (tw__alltoall_run(m->transport, TW__PAYLOAD, c->out, c->in, c->recvs) != TW_OK)
        crew_note(m, "the rotation ends", __LINE__);
    else if (!cargo_check(c, m, m->seed))
        crew_note(m, "all parcels arrive", __LINE__);
    cargo_free(c);
}

/* The second begins when the first has started its sends, the first ends after that. */
static void play_two_rotations(member *m) {
    cargo *a = cargo_create(m, m->seed), *b = cargo_create(m, m->seed + 1);
    int status =
        tw__alltoall_begin(&a->rotation, m->transport, TW__PAYLOAD, a->out, a->in, a->recvs);
    if (status == TW_OK)
        status = tw__alltoall_flush(&a->rotation);
    if (status == TW_OK)
        status =
            tw__alltoall_begin(&b->rotation, m->transport, TW__PAYLOAD, b->out, b->in, b->recvs);
    if (status == TW_OK)
        status = tw__alltoall_end(&a->rotation);
    if (status == TW_OK)
        status = tw__alltoall_end(&b->rotation);
    if (status != TW_OK || !cargo_check(a, m, m->seed) || !cargo_check(b, m, m->seed + 1))
        crew_note(m, "both rotations arrive", __LINE__);
    cargo_free(a);
    cargo_free(b);
}

/* One parcel in five, by its ranks, does not travel. Returns how many will come. */
static int leave_some(cargo *c, const member *m, int round) {
    int coming = 0;
    for (int i = 0; i < m->nranks; i++) {
        c->out[i].data = (m->rank + 2 * i + round) % 5 == 0 ? NULL : c->out[i].data;
        c->in[i].data = (i + 2 * m->rank + round) % 5 == 0 ? NULL : c->in[i].data;
        coming += i != m->rank && c->in[i].data != NULL;
    }
    return coming;
}

static int is_there(const cargo *c, const member *m, uint64_t seed, int from) {
    size_t bytes = random_length(seed, from, m->rank);
    return from != m->rank && c->in[from].bytes == bytes &&
           is_from(c->in[from].data, bytes, from, m->rank, (int)(seed % 100));
}

/* What came in several rotations is told once each, and is there then; a sender's in their order. */
static void play_one_by_one(member *m) {
    enum { ROUNDS = 3 };
    tw__alltoall rotations[ROUNDS] = {{0}};
    cargo *c[ROUNDS];
    int status = TW_OK, coming = 0, next[CREW_MOST] = {0}, from = 0, which = 0, good = 1;
    for (int i = 0; i < ROUNDS; i++) {
        c[i] = cargo_create(m, m->seed + (uint64_t)i);
        coming += leave_some(c[i], m, i);
        if (status == TW_OK)
            status = tw__alltoall_begin(&rotations[i], m->transport, TW__PAYLOAD, c[i]->out,
                                        c[i]->in, c[i]->recvs);
        if (status == TW_OK)
            status = tw__alltoall_flush(&rotations[i]);
    }
    for (; status == TW_OK && from >= 0; coming--) {
        status = tw__alltoalls_next(rotations, ROUNDS, &which, &from);
        if (status != TW_OK || from < 0)
            break;
        good &= which >= next[from] && is_there(c[which], m, m->seed + (uint64_t)which, from);
        next[from] = which + 1;
    }
    for (int i = 0; i < ROUNDS; i++)
        cargo_free(c[i]);
    crew_ok(m, status);
    crew_true(m, good && coming == 0);
}

/* A chore is called while payload is waited for, until nothing of it is left, and not for control.
 * Rank 1 sends each message when rank 0 must wait for it: the second one when the chore is over. */
static _Atomic int worked, waiting;

static int work_off(void *context) {
    (void)context;
    return ++worked < 3;
}

static void receive_one(member *m, tw__message_kind kind) {
    char byte = 0;
    tw__message message;
    crew_ok(m, tw__transport_recv(m->transport, 1, kind, &byte, 1, &message));
    waiting++;
    crew_ok(m, tw__transport_wait(m->transport, &message, 1));
}

static void send_one(member *m, tw__message_kind kind, int round, int work) {
    char byte = 0;
    tw__message message;
    while (waiting < round || worked < work)
        sched_yield();
    crew_ok(m, tw__transport_send(m->transport, 0, kind, &byte, 1, &message));
    crew_ok(m, tw__transport_wait(m->transport, &message, 1));
}

static void play_chore(member *m) {
    if (m->rank == 1) {
        send_one(m, TW__CONTROL, 1, 0);
        send_one(m, TW__PAYLOAD, 2, 3);
        send_one(m, TW__PAYLOAD, 3, 3);
        return;
    }
    tw__transport_set_overlap(m->transport, work_off, NULL);
    receive_one(m, TW__CONTROL);
    crew_true(m, worked == 0);
    receive_one(m, TW__PAYLOAD);
    receive_one(m, TW__PAYLOAD);
    crew_true(m, worked == 3);
}

static void test_chore(void **state) {
    (void)state;
    worked = waiting = 0;
    crew_run(2, 0, play_chore, NULL);
}

static const int crews[] = {1, 2, 3, 5, 8, 16};

static void test_rotation(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            check_scene("%d ranks, seed %d", crews[i], (int)seed);
            crew_run(crews[i], seed, play_rotation, NULL);
            crew_run(crews[i], seed, play_two_rotations, NULL);
            crew_run(crews[i], seed, play_one_by_one, NULL);
        }
}

static void test_many_ranks(void **state) {
    (void)state;
    crew_run(CREW_MOST, 7, play_two_rotations, NULL);
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

static void play_sum(member *m) {
    int64_t count = (int64_t)m->seed;
    uint32_t *counts = calloc((size_t)count + 1, sizeof *counts);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, count));
    for (int64_t i = 0; i < count; i++)
        counts[i] = count_of(m->rank, i);
    counts[count] = 12345;
    if (tw__sum_counts(m->transport, counts, count, scratch) != TW_OK)
        crew_note(m, "the sum ends", __LINE__);
    for (int64_t i = 0; i < count; i++)
        if (counts[i] != sum_of(m->nranks, i))
            crew_note(m, "sums are right", __LINE__);
    if (counts[count] != 12345)
        crew_note(m, "nothing is written behind the counts", __LINE__);
    free(counts);
    free(scratch);
}

static void test_sum(void **state) {
    (void)state;
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 15, 256, 4097};
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            check_scene("%d ranks, %d counts", crews[i], (int)counts[j]);
            crew_run(crews[i], counts[j], play_sum, NULL);
        }
}

static void play_share(member *m) {
    size_t bytes = (size_t)m->seed;
    unsigned char *records = calloc((size_t)m->nranks + 1, bytes + 1);
    void *scratch = malloc(tw__allgather_memory(m->nranks));
    fill(records + (size_t)m->rank * bytes, bytes, m->rank, 0, 9);
    if (tw__allgather(m->transport, records, bytes, scratch) != TW_OK)
        crew_note(m, "the share ends", __LINE__);
    for (int i = 0; i < m->nranks; i++)
        if (!is_from(records + (size_t)i * bytes, bytes, i, 0, 9))
            crew_note(m, "all records arrive", __LINE__);
    free(records);
    free(scratch);
}

static void test_share(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++)
        for (uint64_t bytes = 0; bytes < 100; bytes += 33)
            crew_run(crews[i], bytes, play_share, NULL);
}

/* Rank 2 has shorter records than the others. It fails, and so do they. */
static void play_bad_share(member *m) {
    char records[3 * 16] = {0};
    void *scratch = malloc(tw__allgather_memory(m->nranks));
    int status = tw__allgather(m->transport, records, m->rank == 2 ? 8 : 16, scratch);
    free(scratch);
    crew_true(m, status == TW_ERR_PROTOCOL || (m->rank == 2 && status == TW_ERR_TRANSPORT));
    crew_true(m, m->rank == 2 || strstr(tw_last_error(), "rank 2 sent 8 bytes, 16 were expected"));
}

static void test_bad_share(void **state) {
    (void)state;
    crew_run(3, 0, play_bad_share, NULL);
}

/* ---- counters */

static void play_counters(member *m) {
    int rank = m->rank, nranks = m->nranks;
    int64_t sent = 0, received = 0, count = 1000;
    tw_traffic traffic;
    play_rotation(m);
    for (int i = 0; i < nranks; i++) {
        sent += i != rank ? (int64_t)random_length(m->seed, rank, i) : 0;
        received += i != rank ? (int64_t)random_length(m->seed, i, rank) : 0;
    }
    crew_ok(m, tw_transport_info(m->transport, NULL, NULL, NULL, &traffic));
    crew_true(m, traffic.payload_sent == sent && traffic.payload_received == received);
    crew_true(m, traffic.control_sent == 0 && traffic.control_received == 0);
    crew_true(m, traffic.messages_sent == nranks - 1);

    uint32_t *counts = calloc((size_t)count, sizeof *counts);
    void *scratch = tw__alloc(tw__sum_counts_memory(nranks, count));
    int status = tw__sum_counts(m->transport, counts, count, scratch);
    free(counts);
    free(scratch);
    crew_ok(m, status);
    tw_traffic after = tw__transport_traffic(m->transport);
    int64_t own = 4 * (count * (rank + 1) / nranks - count * rank / nranks);
    int64_t both = 4 * count - own + (nranks - 1) * own;
    crew_true(m, after.payload_sent == sent && after.payload_received == received);
    crew_true(m, after.control_sent == both && after.control_received == both);
    crew_true(m, after.messages_sent == 3 * (nranks - 1));
}

static void test_counters(void **state) {
    (void)state;
    crew_run(1, 3, play_counters, NULL);
    crew_run(7, 3, play_counters, NULL);
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
    check_contains(tw_last_error(), "self transport: cannot send to rank 0: a rank that is alone");
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
    check_ok(tw_transport_custom(&t, &calls, &closed, 0, 2));
    check_error(tw__transport_recv(t, 1, TW__CONTROL, NULL, 0, &message), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "bad transport: cannot receive from rank 1: cable 3 is unpl");
    (void)tw_transport_explain("of something else, long ago");
    check_ok(tw__transport_send(t, 1, TW__CONTROL, NULL, 0, &message));
    check_error(tw__transport_wait(t, &message, 1), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "bad transport: cannot send to rank 1: error -77");
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

int main(int argc, char **argv) {
    crew_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_large),
        cmocka_unit_test(test_too_long),    cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_rotation),    cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_sum),         cmocka_unit_test(test_share),
        cmocka_unit_test(test_bad_share),   cmocka_unit_test(test_counters),
        cmocka_unit_test(test_self),        cmocka_unit_test(test_custom),
        cmocka_unit_test(test_bad_threads), cmocka_unit_test(test_chore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
