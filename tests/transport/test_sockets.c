/* test_sockets.c - bad sockets, peers that die, damaged messages, messages cancelled halfway
 *
 * test_transport.c, test_liveness.c and test_deadline.c test the rest; they run over sockets too. */
#include <netinet/in.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "transport/frame.h"
#include "transport_ranks.h"

/* ---- rank 0 has a transport; the test plays ranks 1 and 2 with bare sockets */

typedef struct setup {
    tw_transport *transport;
    int other;           /* rank 1 */
    int silent;          /* rank 2 */
    tw__message nothing; /* a receive from rank 2, which is never done */
    char room[64];
} setup;

static void setup_open(setup *l) {
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

static void setup_close(setup *l) {
    tw__transport_cancel(l->transport, &l->nothing, 1);
    (void)close(l->other);
    (void)close(l->silent);
    tw_transport_free(l->transport); /* returns at once: no peer is left */
}

/* As connection.c writes it: the message of this number. */
static tw__frame frame_of(const void *data, size_t bytes, uint32_t number) {
    tw__frame frame = tw__frame_open(data, bytes, 0, 1);
    frame.number = number;
    tw__frame_seal(&frame);
    return frame;
}

typedef struct sample {
    tw__frame frame;
    char body[40];
} sample;

static sample make_sample(void) {
    sample s = {.body = "forty bytes"};
    s.frame = frame_of(s.body, sizeof s.body, 0);
    return s;
}

static void write_raw(const setup *l, const void *data, size_t bytes) {
    check_true(write(l->other, data, bytes) == (ssize_t)bytes);
}

/* Makes the transport poll: the second test of a request does. */
static void poll_once(setup *l) {
    int done = 0;
    for (int i = 0; i < 2; i++) {
        check_ok(tw__transport_test(l->transport, &l->nothing, &done));
        check_int("done", done, 0);
    }
}

/* The receive starts before the bytes are sent, or after they were read. */
static void expect_failure(const void *bytes_sent, size_t bytes, int early, const char *text) {
    setup l;
    tw__message message;
    char room[64];
    int status = TW_OK;
    setup_open(&l);
    if (early)
        status = tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message);
    check_ok(status);
    write_raw(&l, bytes_sent, bytes);
    check_true(shutdown(l.other, SHUT_WR) == 0);
    poll_once(&l);
    if (!early)
        status = tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message);
    if (status == TW_OK)
        status = tw__transport_wait(l.transport, &message, 1);
    check_error(status, TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "sockets transport: cannot receive from rank 1: ");
    check_contains(tw_last_error(), text);
    setup_close(&l);
}

/* Whole frames that no rank sends. */
static void test_bad_frames(void **state) {
    (void)state;
    const struct {
        tw__frame frame;
        const char *text;
    } wrong[] = {{{.tag = 4}, "tag 4 and 0 bytes"},
                 {{.bytes = UINT64_MAX}, "which cannot be"},
                 {{.bytes = ((uint64_t)1 << 36) + 1}, "which cannot be"},
                 {{.number = 1}, "message 1 came, message 0 was due"},
                 {{.number = UINT32_MAX}, "message 4294967295 came, message 0 was due"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tw__frame frame = wrong[i].frame;
        check_scene("frame %zu", i);
        tw__frame_seal(&frame);
        expect_failure(&frame, sizeof frame, 1, wrong[i].text);
        expect_failure(&frame, sizeof frame, 0, wrong[i].text);
    }
    tw__frame other = {0}; /* of another version: its CRC begins with another number */
    other.crc = tw__crc32c(0, &other, offsetof(tw__frame, crc));
    expect_failure(&other, sizeof other, 1, "do ranks run different versions?");
}

/* Every bit of a message, frame and body. */
static void test_flipped_bits(void **state) {
    (void)state;
    for (size_t bit = 0; bit < 8 * sizeof(sample); bit++) {
        sample sent = make_sample();
        ((char *)&sent)[bit / 8] ^= (char)(1 << bit % 8);
        check_scene("bit %zu", bit);
        expect_failure(&sent, sizeof sent, (int)bit % 2,
                       bit < 8 * sizeof sent.frame
                           ? "the header of message 0 is damaged: its CRC32C does not match"
                           : "message 0 of 40 bytes is damaged: its CRC32C is ");
    }
}

/* The same message twice, and one that is missing. */
static void test_repeated(void **state) {
    (void)state;
    for (uint32_t next = 0; next <= 2; next += 2) {
        setup l;
        tw__message messages[2];
        char room[2][40];
        sample sent = make_sample();
        setup_open(&l);
        for (int i = 0; i < 2; i++) {
            check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room[i], 40, &messages[i]));
            write_raw(&l, &sent, sizeof sent);
            sent.frame = frame_of(sent.body, sizeof sent.body, next);
        }
        check_ok(tw__transport_wait(l.transport, messages, 1));
        check_error(tw__transport_wait(l.transport, &messages[1], 1), TW_ERR_TRANSPORT);
        check_contains(tw_last_error(), next == 0 ? "message 0 came, message 1 was due"
                                                  : "message 2 came, message 1 was due");
        setup_close(&l);
    }
}

/* A rank that received a damaged message can still send: the peer learns what has happened. */
static void test_notice_after_damage(void **state) {
    (void)state;
    setup l;
    tw__message message;
    char room[40], got[512] = "";
    sample sent = make_sample();
    sent.body[7] ^= 1;
    setup_open(&l);
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message));
    write_raw(&l, &sent, sizeof sent);
    check_error(tw__transport_wait(l.transport, &message, 1), TW_ERR_TRANSPORT);
    ssize_t bytes = recv(l.other, got, sizeof got - 1, MSG_DONTWAIT);
    check_true(bytes > (ssize_t)sizeof(tw__frame) + 12);
    check_contains(got + sizeof(tw__frame) + 12,
                   "cannot receive from rank 1: message 0 of 40 bytes");
    setup_close(&l);
}

/* Without a checksum the body is not looked at. The peer may have one all the same. */
static void test_without_checksum(void **state) {
    (void)state;
    setup l;
    tw__message message;
    char room[40];
    sample sent = make_sample();
    setup_open(&l);
    tw__transport_set_checksum(l.transport, 0);
    sent.frame.checked = 0;
    tw__frame_seal(&sent.frame);
    sent.body[7] ^= 1;
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message));
    write_raw(&l, &sent, sizeof sent);
    check_ok(tw__transport_wait(l.transport, &message, 1));
    check_ok(tw__transport_send(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message));
    check_true(recv(l.other, &sent, sizeof sent, 0) == (ssize_t)sizeof sent);
    check_int("checked", sent.frame.checked, 0);
    check_ok(tw__transport_wait(l.transport, &message, 1));
    setup_close(&l);
}

/* In the middle of a frame, of a body that is received, and of an unexpected one. */
static void test_closed_midway(void **state) {
    (void)state;
    const sample bytes_sent = make_sample();
    for (size_t cut = 1; cut < sizeof bytes_sent; cut += 5) {
        check_scene("cut at %zu", cut);
        expect_failure(&bytes_sent, cut, 1, "it has closed its connection");
        expect_failure(&bytes_sent, cut, 0, "it has closed its connection");
    }
}

/* Messages that the peer sent before it closed are received, expected or not, even if a send of this
 * rank is the first to notice. */
static void run_sent_before_close(int send_first) {
    char first[8] = "", second[8] = "";
    tw__message messages[3] = {0};
    setup l;
    setup_open(&l);
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, first, 8, &messages[0]));
    for (int i = 0; i < 2; i++) {
        const char *text = i == 0 ? "first" : "later";
        const tw__frame frame = frame_of(text, 5, (uint32_t)i);
        write_raw(&l, &frame, sizeof frame);
        write_raw(&l, text, 5);
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
    setup_close(&l);
}

static void test_sent_before_close(void **state) {
    (void)state;
    run_sent_before_close(0);
    run_sent_before_close(1);
}

/* Messages may arrive in parts of any size. */
static void test_byte_by_byte(void **state) {
    (void)state;
    enum { MESSAGES = 3, BYTES = 9 };
    char sent[MESSAGES * (sizeof(tw__frame) + BYTES)], room[MESSAGES][BYTES];
    tw__message messages[MESSAGES];
    setup l;
    setup_open(&l);
    for (size_t i = 0; i < MESSAGES; i++) {
        char *message = sent + i * (sizeof(tw__frame) + BYTES), *body = message + sizeof(tw__frame);
        memset(body, 'a' + (int)i, BYTES);
        const tw__frame frame = frame_of(body, BYTES, (uint32_t)i);
        memcpy(message, &frame, sizeof frame);
        check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room[i], BYTES, &messages[i]));
    }
    for (size_t at = 0; at < sizeof sent; at++) {
        const tw__message *pending = NULL;
        write_raw(&l, sent + at, 1);
        check_ok(tw__transport_test_all(l.transport, messages, MESSAGES, &pending));
        check_int("all have come", pending == NULL, at + 1 == sizeof sent);
    }
    for (int i = 0; i < MESSAGES * BYTES; i++)
        check_int("byte", room[i / BYTES][i % BYTES], 'a' + i / BYTES);
    setup_close(&l);
}

/* ---- two ranks */

/* Both ranks send more than the sockets hold, and only then receive. */
static void run_flood(test_rank *m) {
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
    rank_check(m, !wrong);
}

static void test_flood(void **state) {
    (void)state;
    ranks_on_sockets = 1;
    run_ranks(2, 0, run_flood, NULL);
}

/* Rank 0 sends more than rank 1 keeps of unexpected messages, and one message that is longer than that
 * alone. The sends end only when rank 1 receives, and all arrives in order. */
enum { MANY = 20, LONG_BYTES = 65 << 20 };

static size_t length_of(int message) {
    return message == 10 ? LONG_BYTES : message % 3 == 0 ? 0 : (size_t)8 << 20;
}

/* Both ranks look at their messages. */
static const tw__message *look(tw_transport **ends, tw__message *sends, tw__message *receive) {
    const tw__message *pending = NULL, *ignored = NULL;
    check_ok(tw__transport_test_all(ends[1], receive, 1, &ignored));
    check_ok(tw__transport_test_all(ends[0], sends, MANY, &pending));
    return pending;
}

static void receive_message(tw_transport **ends, tw__message *sends, int number, char *in) {
    tw__message receive;
    check_ok(tw__transport_recv(ends[1], 0, TW__PAYLOAD, in, LONG_BYTES, &receive));
    while (receive.request != NULL)
        (void)look(ends, sends, &receive);
    check_true(receive.bytes == length_of(number));
    for (size_t i = 0; i < receive.bytes; i += 997)
        check_int("byte", in[i], (int)((i + (size_t)number) % 101));
}

static void test_bounded(void **state) {
    tw_transport *ends[3];
    tw__message sends[MANY], nothing;
    char *out = malloc(LONG_BYTES + MANY), *in = malloc(LONG_BYTES), byte = 0;
    const tw__message *pending = NULL;
    (void)state;
    for (int i = 0; i < LONG_BYTES + MANY; i++)
        out[i] = (char)(i % 101);
    connect_ranks(ends, 3);
    check_ok(tw__transport_recv(ends[1], 2, TW__PAYLOAD, &byte, 1, &nothing));
    for (int i = 0; i < MANY; i++)
        check_ok(tw__transport_send(ends[0], 1, TW__PAYLOAD, out + i, length_of(i), &sends[i]));
    for (int i = 0; i < 5000; i++)
        pending = look(ends, sends, &nothing);
    check_true(pending != NULL && pending > sends);
    for (int i = 0; i < MANY; i++)
        receive_message(ends, sends, i, in);
    check_true(look(ends, sends, &nothing) == NULL);
    tw__transport_cancel(ends[1], &nothing, 1);
    for (int i = 0; i < 3; i++)
        tw_transport_free(ends[i]);
    free(out);
    free(in);
}

/* A peer announces more than is kept of unexpected messages, and closes. The rank that waits for
 * another message of it learns that at once. */
static void test_closed_while_held(void **state) {
    setup l;
    tw__message message;
    char room[64];
    (void)state;
    setup_open(&l);
    tw__frame frame = frame_of("", 0, 0);
    frame.bytes = (uint64_t)1 << 30;
    frame.tag = 3; /* which this rank does not receive */
    tw__frame_seal(&frame);
    check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, sizeof room, &message));
    write_raw(&l, &frame, sizeof frame);
    poll_once(&l);
    (void)close(l.other);
    int64_t begin = tw__clock();
    check_error(tw__transport_wait(l.transport, &message, 1), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "cannot receive from rank 1: it has closed its connection");
    check_true(tw__clock() - begin < TW__SECOND);
    l.other = -1;
    setup_close(&l);
}

/* A peer fills the room for unexpected messages, sends two more, which wait in the socket, and closes.
 * All of them are received. */
enum { FILLERS = 64, FILLER = (1 << 20) - 64, HELD = 100000 };

static void *write_fillers(void *context) {
    const setup *l = context;
    char *body = calloc(1, FILLER);
    for (uint32_t i = 0; i < FILLERS + 2; i++) {
        size_t bytes = i < FILLERS ? FILLER : HELD;
        body[0] = (char)i;
        const tw__frame frame = frame_of(body, bytes, i);
        for (size_t done = 0; done < sizeof frame;)
            done += (size_t)write(l->other, (const char *)&frame + done, sizeof frame - done);
        for (size_t done = 0; done < bytes;) {
            ssize_t wrote = write(l->other, body + done, bytes - done);
            done += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    (void)close(l->other);
    free(body);
    return NULL;
}

static void test_held_then_closed(void **state) {
    setup l;
    pthread_t writer;
    char *room = malloc(FILLER);
    (void)state;
    setup_open(&l);
    const int size = 2 * HELD; /* both fit into the socket */
    check_true(setsockopt(l.other, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    check_true(pthread_create(&writer, NULL, write_fillers, &l) == 0);
    struct timespec nap = {0, 1000000};
    for (int i = 0; i < 2000; i++) { /* reads until a message is held, and sees that it hung up */
        poll_once(&l);
        nanosleep(&nap, NULL);
        if (pthread_tryjoin_np(writer, NULL) == 0)
            break;
    }
    poll_once(&l);
    poll_once(&l);
    for (int i = 0; i < FILLERS + 2; i++) {
        tw__message message;
        check_scene("message %d", i);
        check_ok(tw__transport_recv(l.transport, 1, TW__PAYLOAD, room, FILLER, &message));
        check_ok(tw__transport_wait(l.transport, &message, 1));
        check_int("its first byte", room[0], i);
        check_int("its length", (int64_t)message.bytes, i < FILLERS ? FILLER : HELD);
    }
    l.other = -1;
    setup_close(&l);
    free(room);
}

/* Cancels a long message of which a part was sent, at the sender, at the receiver, or at both. Its
 * buffers can be freed at once, and the next message arrives. */
static void cancel_halfway(int expected, int cancel_send, int cancel_recv) {
    enum { BYTES = 3000000 };
    tw_transport *ends[2];
    char *out = malloc(BYTES), *in = malloc(BYTES), last[5] = "";
    tw__message sends[2], receives[2];
    int done = 0, all = 0;
    memset(out, 7, BYTES);
    connect_ranks(ends, 2);
    if (expected)
        check_ok(tw__transport_recv(ends[1], 0, TW__PAYLOAD, in, BYTES, &receives[0]));
    check_ok(tw__transport_send(ends[0], 1, TW__PAYLOAD, out, BYTES, &sends[0]));
    if (expected)
        check_ok(tw__transport_test(ends[1], &receives[0], &done));
    check_int("done at once", done, 0);
    if (cancel_send) {
        tw__transport_cancel(ends[0], sends, 1);
        memset(out, 9, BYTES);
    }
    if (cancel_recv) {
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

static void test_cancel_halfway(void **state) {
    (void)state;
    for (int expected = 0; expected <= 1; expected++) {
        for (int cancelled = 0; cancelled <= 1; cancelled++) {
            check_scene("expected %d, sender cancelled %d", expected, cancelled);
            cancel_halfway(expected, cancelled, 0);
        }
    }
    cancel_halfway(1, 0, 1);
    cancel_halfway(1, 1, 1);
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
    check_true(write(ends[0], "x", 1) == 1); /* they still belong to the caller */
    (void)close(ends[0]), (void)close(ends[1]), (void)close(lone), (void)close(packets);
}

/* A peer that died after it was connected, and whose connection was reset, is one that is lost. */
static void test_reset(void **state) {
    (void)state;
    tw_transport *t = NULL;
    tw__message message;
    char byte;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    const struct linger at_once = {1, 0};
    int listener = socket(AF_INET, SOCK_STREAM, 0), peer = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check_true(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    check_true(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    check_true(connect(peer, (struct sockaddr *)&address, size) == 0);
    const int sockets[] = {-1, accept(listener, NULL, NULL)};
    check_true(setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    (void)close(peer), (void)close(listener);
    check_ok(tw_transport_sockets(&t, sockets, 0, 2));
    tw__transport_set_timeout(t, 5.0);
    int status = tw__transport_recv(t, 1, TW__PAYLOAD, &byte, 1, &message);
    if (status == TW_OK)
        status = tw__transport_wait(t, &message, 1);
    check_int("status", status, TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "rank 1");
    tw_transport_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_notice_after_damage),
        cmocka_unit_test(test_without_checksum),
        cmocka_unit_test(test_closed_midway),
        cmocka_unit_test(test_sent_before_close),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_closed_while_held),
        cmocka_unit_test(test_held_then_closed),
        cmocka_unit_test(test_cancel_halfway),
        cmocka_unit_test(test_bad_sockets),
        cmocka_unit_test(test_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
