/* test_sockets.c - sockets that are none, peers that die or talk nonsense; the rest of what a
 * transport must do is in test_transport.c and test_roll_call.c, which run over sockets too */
#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

#include "crew.h"

/* One rank with a transport; the test itself is the other, with a bare socket. */
typedef struct line {
    tw_transport *transport;
    int other;
} line;

static line connect_line(void) {
    line l = {0};
    int ends[2];
    check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const int sockets[2] = {-1, ends[0]};
    check_ok(tw_transport_sockets(&l.transport, sockets, 0, 2));
    tw__transport_set_timeout(l.transport, 5.0);
    l.other = ends[1];
    return l;
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

static void expect_failure(line *l, const char *words) {
    char room[64];
    tw__message message;
    int status = tw__transport_recv(l->transport, 1, TW__PAYLOAD, room, sizeof room, &message);
    if (status == TW_OK) {
        status = tw__transport_wait(l->transport, &message, 1);
    }
    check_error(status, TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "sockets transport: cannot receive from rank 1: ");
    check_contains(tw_last_error(), words);
    tw_transport_free(l->transport);
    (void)close(l->other);
}

static void test_nonsense(void **state) {
    (void)state;
    static const head wrong[] = {
        {0, 0, 0x54415247}, {0, 4, MAGIC}, {UINT64_MAX, 0, MAGIC}, {UINT64_MAX / 2, 0, MAGIC}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        line l = connect_line();
        check_scene("nonsense %zu", i);
        say(&l, &wrong[i], sizeof wrong[i]);
        expect_failure(&l, i < 2 ? "Protocol error" : "");
    }
}

/* In the middle of a head, and of a body that is received, or that nobody waits for. */
static void test_death(void **state) {
    (void)state;
    const char body[40] = {0};
    const head known = {sizeof body, 0, MAGIC};
    for (size_t cut = 0; cut < sizeof known + sizeof body; cut += 7) {
        line l = connect_line();
        check_scene("cut at %zu", cut);
        say(&l, &known, cut < sizeof known ? cut : sizeof known);
        if (cut > sizeof known) {
            say(&l, body, cut - sizeof known);
        }
        check_true(shutdown(l.other, SHUT_RDWR) == 0);
        expect_failure(&l, "it has closed its connection");
    }
}

/* What was sent before the end is not lost, whether or not somebody waits for it. */
static void test_last_words(void **state) {
    (void)state;
    line l = connect_line();
    const head known = {5, 0, MAGIC};
    char first[8] = "", second[8] = "";
    tw__message messages[2];
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]));
    for (int i = 0; i < 2; i++) {
        say(&l, &known, sizeof known);
        say(&l, i == 0 ? "first" : "later", 5);
    }
    (void)close(l.other);
    check_ok(tw__transport_wait(l.transport, messages, 1));
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, second, 8, &messages[1]));
    check_ok(tw__transport_wait(l.transport, &messages[1], 1));
    check_true(strcmp(first, "first") == 0 && strcmp(second, "later") == 0);
    check_true(messages[0].bytes == 5 && messages[1].bytes == 5);
    check_error(tw__transport_recv(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]),
                TW_ERR_TRANSPORT);
    check_error(tw__transport_send(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]),
                TW_ERR_TRANSPORT);
    tw_transport_free(l.transport);
}

/* Byte by byte: messages may be cut anywhere. */
static void test_drip(void **state) {
    (void)state;
    line l = connect_line();
    char sent[3 * (sizeof(head) + 9)], room[3][9];
    tw__message messages[3];
    for (size_t i = 0; i < 3; i++) {
        const head h = {9, 0, MAGIC};
        memcpy(sent + i * (sizeof h + 9), &h, sizeof h);
        memset(sent + i * (sizeof h + 9) + sizeof h, 'a' + (int)i, 9);
        check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room[i], 9, &messages[i]));
    }
    for (size_t at = 0; at < sizeof sent; at++) {
        const tw__message *pending = NULL;
        say(&l, sent + at, 1);
        check_ok(tw__transport_test_all(l.transport, messages, 3, &pending));
        check_int("done early", pending == NULL, at + 1 == sizeof sent);
    }
    for (int i = 0; i < 27; i++) {
        check_int("byte", room[i / 9][i % 9], 'a' + i / 9);
    }
    tw_transport_free(l.transport);
    (void)close(l.other);
}

/* Both ranks send more than the sockets hold, and only then receive. */
static void play_flood(member *m) {
    enum { MESSAGES = 6 };
    size_t bytes = (size_t)3 << 20;
    unsigned char *out = malloc(bytes), *in = calloc(MESSAGES, bytes);
    tw__message sends[MESSAGES], receives[MESSAGES];
    int other = 1 - m->rank, status = TW_OK;
    memset(out, 17 + m->rank, bytes);
    for (int i = 0; i < MESSAGES && status == TW_OK; i++) {
        status = tw__transport_send(m->transport, other, TW__PAYLOAD, out, bytes, &sends[i]);
    }
    if (status == TW_OK) {
        status = tw__transport_wait(m->transport, sends, MESSAGES);
    }
    for (size_t i = 0; i < MESSAGES && status == TW_OK; i++) {
        status = tw__transport_recv(m->transport, other, TW__PAYLOAD, in + i * bytes, bytes,
                                    &receives[i]);
    }
    if (status == TW_OK) {
        status = tw__transport_wait(m->transport, receives, MESSAGES);
    }
    int wrong = status != TW_OK;
    for (size_t i = 0; i < MESSAGES * bytes && !wrong; i++) {
        wrong = in[i] != 17 + other;
    }
    free(out);
    free(in);
    crew_true(m, !wrong);
}

static void test_flood(void **state) {
    (void)state;
    crew_on_sockets = 1;
    crew_run(2, 0, play_flood, NULL);
}

static void test_bad_sockets(void **state) {
    (void)state;
    tw_transport *t = NULL;
    int ends[2], lone = socket(AF_INET, SOCK_STREAM, 0), packets = socket(AF_INET, SOCK_DGRAM, 0);
    check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const int bad[] = {-1, 9999, lone, packets, STDIN_FILENO};
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
        cmocka_unit_test(test_nonsense),   cmocka_unit_test(test_death),
        cmocka_unit_test(test_last_words), cmocka_unit_test(test_drip),
        cmocka_unit_test(test_flood),      cmocka_unit_test(test_bad_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
