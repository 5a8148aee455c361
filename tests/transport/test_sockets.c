/* test_sockets.c - sockets that are none, peers that die or talk nonsense, messages that are given
 * up halfway; the rest of what a transport must do is in test_transport.c and test_roll_call.c,
 * which run over sockets too */
#include <string.h>
#include <unistd.h>

#include "crew.h"

/* ---- one rank with a transport; the test itself is the others, with bare sockets */

typedef struct line {
    tw_transport *transport;
    int other;           /* rank 1 */
    int silent;          /* rank 2 */
    tw__message nothing; /* from rank 2, which never comes */
    char room[64];
} line;

static void line_open(line *l) {
    int ends[2][2];
    for (int i = 0; i < 2; i++)
        check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]) == 0);
    const int sockets[3] = {-1, ends[0][0], ends[1][0]};
    check_ok(tw_transport_sockets(&l->transport, sockets, 0, 3));
    tw__transport_set_timeout(l->transport, 5.0);
    l->other = ends[0][1];
    l->silent = ends[1][1];
    check_ok(tw__transport_recv(l->transport, 2, TW__PAYLOAD, l->room, 1, &l->nothing));
}

static void line_close(line *l) {
    tw__transport_cancel(l->transport, &l->nothing, 1);
    (void)close(l->other);
    (void)close(l->silent);
    tw_transport_free(l->transport); /* does not linger, as nobody is left */
}

/* As transport_sockets.c writes it. */
typedef struct head {
    uint64_t bytes;
    uint32_t tag, magic;
} head;
enum { MAGIC = 0x54574d31 };

static void say(const line *l, const void *data, size_t bytes) {
    check_true(write(l->other, data, bytes) == (ssize_t)bytes);
}

/* Has the transport read what there is; whoever asks twice about a message wants the news. */
static void look(line *l) {
    int done = 0;
    for (int i = 0; i < 2; i++) {
        check_ok(tw__transport_test(l->transport, &l->nothing, &done));
        check_int("done", done, 0);
    }
}

/* A receive that was started before what is said, or after that was read. */
static void expect_failure(const void *said, size_t bytes, int early, const char *words) {
    line l;
    tw__message message;
    char room[64];
    int status = TW_OK;
    line_open(&l);
    if (early)
        status = tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message);
    check_ok(status);
    say(&l, said, bytes);
    check_true(shutdown(l.other, SHUT_WR) == 0);
    look(&l);
    if (!early)
        status = tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message);
    if (status == TW_OK)
        status = tw__transport_wait(l.transport, &message, 1);
    check_error(status, TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "sockets transport: cannot receive from rank 1: ");
    check_contains(tw_last_error(), words);
    line_close(&l);
}

static void test_nonsense(void **state) {
    (void)state;
    static const head wrong[] = {{0, 0, 0x54415247},
                                 {0, 4, MAGIC},
                                 {UINT64_MAX, 0, MAGIC},
                                 {((uint64_t)1 << 36) + 1, 0, MAGIC}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_scene("nonsense %zu", i);
        expect_failure(&wrong[i], sizeof wrong[i], 1, "Protocol error");
        expect_failure(&wrong[i], sizeof wrong[i], 0, "Protocol error");
    }
}

/* In the middle of a head, and of a body that is received, or that nobody waits for. */
static void test_death(void **state) {
    (void)state;
    struct {
        head head;
        char body[40];
    } said = {{sizeof said.body, 0, MAGIC}, ""};
    for (size_t cut = 1; cut < sizeof said; cut += 5) {
        check_scene("cut at %zu", cut);
        expect_failure(&said, cut, 1, "it has closed its connection");
        expect_failure(&said, cut, 0, "it has closed its connection");
    }
}

/* What was sent before the end is not lost, whether or not somebody waits for it, and although this
 * rank finds out by a message of its own that there is nobody any more. */
static void play_last_words(int send_first) {
    static const head known = {5, 0, MAGIC};
    char first[8] = "", second[8] = "";
    tw__message messages[3] = {0};
    line l;
    line_open(&l);
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]));
    for (int i = 0; i < 2; i++) {
        say(&l, &known, sizeof known);
        say(&l, i == 0 ? "first" : "later", 5);
    }
    (void)close(l.other);
    l.other = -1;
    if (send_first)
        check_ok(tw__transport_send(l.transport, 1, TW__PAYLOAD, "hello", 5, &messages[2]));
    check_ok(tw__transport_wait(l.transport, messages, 1));
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, second, 8, &messages[1]));
    check_ok(tw__transport_wait(l.transport, &messages[1], 1));
    check_true(strcmp(first, "first") == 0 && strcmp(second, "later") == 0);
    check_true(messages[0].bytes == 5 && messages[1].bytes == 5);
    check_error(tw__transport_wait(l.transport, &messages[2], send_first),
                send_first ? TW_ERR_TRANSPORT : TW_OK);
    check_error(tw__transport_recv(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]),
                TW_ERR_TRANSPORT);
    check_error(tw__transport_send(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]),
                TW_ERR_TRANSPORT);
    line_close(&l);
}

static void test_last_words(void **state) {
    (void)state;
    play_last_words(0);
    play_last_words(1);
}

/* Byte by byte: messages may be cut anywhere. */
static void test_drip(void **state) {
    (void)state;
    enum { MESSAGES = 3, BYTES = 9 };
    char sent[MESSAGES * (sizeof(head) + BYTES)], room[MESSAGES][BYTES];
    tw__message messages[MESSAGES];
    line l;
    line_open(&l);
    for (size_t i = 0; i < MESSAGES; i++) {
        const head h = {BYTES, 0, MAGIC};
        memcpy(sent + i * (sizeof h + BYTES), &h, sizeof h);
        memset(sent + i * (sizeof h + BYTES) + sizeof h, 'a' + (int)i, BYTES);
        check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room[i], BYTES, &messages[i]));
    }
    for (size_t at = 0; at < sizeof sent; at++) {
        const tw__message *pending = NULL;
        say(&l, sent + at, 1);
        check_ok(tw__transport_test_all(l.transport, messages, MESSAGES, &pending));
        check_int("all have come", pending == NULL, at + 1 == sizeof sent);
    }
    for (int i = 0; i < MESSAGES * BYTES; i++)
        check_int("byte", room[i / BYTES][i % BYTES], 'a' + i / BYTES);
    line_close(&l);
}

/* ---- two ranks */

/* Both ranks send more than the sockets hold, and only then receive. */
static void play_flood(member *m) {
    enum { MESSAGES = 6 };
    size_t bytes = (size_t)3 << 20;
    unsigned char *out = malloc(bytes), *in = calloc(MESSAGES, bytes);
    tw__message sends[MESSAGES], receives[MESSAGES];
    int other = 1 - m->rank, status = TW_OK;
    memset(out, 17 + m->rank, bytes);
    for (int i = 0; i < MESSAGES && status == TW_OK; i++)
        status = tw__transport_send(m->transport, other, TW__PAYLOAD, out, bytes, &sends[i]);
    if (status == TW_OK)
        status = tw__transport_wait(m->transport, sends, MESSAGES);
    for (size_t i = 0; i < MESSAGES && status == TW_OK; i++) {
        status = tw__transport_recv(m->transport, other, TW__PAYLOAD, in + i * bytes, bytes,
                                    &receives[i]);
    }
    if (status == TW_OK)
        status = tw__transport_wait(m->transport, receives, MESSAGES);
    int wrong = status != TW_OK;
    for (size_t i = 0; i < MESSAGES * bytes && !wrong; i++)
        wrong = in[i] != 17 + other;
    free(out);
    free(in);
    crew_true(m, !wrong);
}

static void test_flood(void **state) {
    (void)state;
    crew_on_sockets = 1;
    crew_run(2, 0, play_flood, NULL);
}

/* A long message, of which a part has gone when its sender gives it up, or its receiver: the memory
 * of those may go at once, and the next message arrives all the same. */
static void give_up_halfway(int expected, int sender_leaves, int receiver_leaves) {
    enum { BYTES = 3000000 };
    tw_transport *ends[2];
    char *out = malloc(BYTES), *in = malloc(BYTES), last[5] = "";
    tw__message sends[2], receives[2];
    int done = 0, all = 0;
    memset(out, 7, BYTES);
    crew_connect(ends, 2);
    if (expected)
        check_ok(tw__transport_recv(ends[1], 0, TW__PAYLOAD, in, BYTES, &receives[0]));
    check_ok(tw__transport_send(ends[0], 1, TW__PAYLOAD, out, BYTES, &sends[0]));
    if (expected)
        check_ok(tw__transport_test(ends[1], &receives[0], &done));
    check_int("done at once", done, 0);
    if (sender_leaves) {
        tw__transport_cancel(ends[0], sends, 1);
        memset(out, 9, BYTES);
    }
    if (receiver_leaves) {
        tw__transport_cancel(ends[1], receives, 1);
        free(in);
        in = NULL;
    }
    check_ok(tw__transport_send(ends[0], 1, TW__PAYLOAD, "last", 5, &sends[1]));
    if (!expected)
        check_ok(tw__transport_recv(ends[1], 0, TW__PAYLOAD, in, BYTES, &receives[0]));
    check_ok(tw__transport_recv(ends[1], 0, TW__PAYLOAD, last, 5, &receives[1]));
    for (int i = 0; i < 100000 && !all; i++) {
        const tw__message *pending = NULL;
        check_ok(tw__transport_test_all(ends[0], sends, 2, &pending));
        check_ok(tw__transport_test_all(ends[1], receives, 2, &pending));
        all = pending == NULL;
    }
    check_true(all && strcmp(last, "last") == 0);
    for (int i = 0; i < BYTES && in != NULL; i++)
        check_int("byte", in[i], 7);
    tw_transport_free(ends[0]);
    tw_transport_free(ends[1]);
    free(out);
    free(in);
}

static void test_halfway(void **state) {
    (void)state;
    for (int expected = 0; expected <= 1; expected++) {
        for (int leaves = 0; leaves <= 1; leaves++) {
            check_scene("expected %d, sender leaves %d", expected, leaves);
            give_up_halfway(expected, leaves, 0);
        }
    }
    give_up_halfway(1, 0, 1);
    give_up_halfway(1, 1, 1);
}

/* ---- creation */

static void test_bad_sockets(void **state) {
    (void)state;
    tw_transport *t = NULL;
    int ends[2], lone = socket(AF_INET, SOCK_STREAM, 0), packets = socket(AF_INET, SOCK_DGRAM, 0);
    check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const int bad[] = {-1, 9999, lone, packets, ends[0]};
    check_error(tw_transport_sockets(NULL, ends, 0, 2), TW_ERR_NULL);
    check_error(tw_transport_sockets(&t, NULL, 0, 2), TW_ERR_NULL);
    check_error(tw_transport_sockets(&t, ends, 2, 2), TW_ERR_PARAM);
    check_error(tw_transport_sockets(&t, ends, 0, 0), TW_ERR_PARAM);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int sockets[] = {-1, ends[0], bad[i]};
        check_error(tw_transport_sockets(&t, sockets, 0, 3), TW_ERR_PARAM);
        check_contains(tw_last_error(), "sockets[2]: ");
    }
    check_true(write(ends[0], "x", 1) == 1); /* they are still the caller's */
    (void)close(ends[0]), (void)close(ends[1]), (void)close(lone), (void)close(packets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nonsense),    cmocka_unit_test(test_death),
        cmocka_unit_test(test_last_words),  cmocka_unit_test(test_drip),
        cmocka_unit_test(test_flood),       cmocka_unit_test(test_halfway),
        cmocka_unit_test(test_bad_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
