/* fuzz_sockets.c - a rank over sockets, and a peer that sends any bytes
 *
 * The input is a list of operations: the rank starts a receive or a send, tests or cancels one, or
 * idles; the peer sends a message as a real rank would, the same with a byte changed, raw bytes,
 * reads what it got, or closes its end. Messages of the peer are framed by a second transport, so
 * nothing here knows the frame.
 *
 * A message that was not changed must arrive whole and in order until something was; no request may
 * be lost; freeing must not block.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "transport/transport_internal.h"

enum { REQUESTS = 8, TAGS = 4, MESSAGES = 32, LONGEST = 5000, OPERATIONS = 64 };

typedef struct pending {
    void *request; /* NULL: none */
    int receiving, tag;
    char *data; /* [size], of exactly this size */
    size_t size;
} pending;

typedef struct scene {
    tw_transport *rank;  /* that is tested */
    tw_transport *forge; /* frames messages */
    int peer, frames;    /* the other ends of their sockets; peer -1: closed */
    int damaged;         /* the peer has sent something else than messages */
    pending pending[REQUESTS];
    size_t sent[TAGS][MESSAGES]; /* lengths of the peer's messages */
    int nsent[TAGS], nreceived[TAGS];
} scene;

/* The socket holds few bytes: a message is often sent in parts. */
static void open_pair(tw_transport **transport, int rank, int *other) {
    const int few = 4096;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const int sockets[2] = {ends[0], ends[0]};
    if (rank == 0)
        REQUIRE(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &few, sizeof few) == 0);
    REQUIRE(tw_transport_sockets(transport, sockets, rank, 2) == TW_OK);
    *other = ends[1];
}

static void close_peer(scene *s) {
    if (s->peer >= 0)
        REQUIRE(close(s->peer) == 0);
    s->peer = -1;
}

/* ---- the peer */

/* What a message looks like depends on tag, number and position alone. */
static char byte_of(int tag, int number, size_t at) {
    return (char)(7 * tag + 31 * number + (int)at);
}

static void peer_write(scene *s, const char *bytes, size_t size) {
    if (s->peer >= 0 && send(s->peer, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
        s->damaged = 1;
}

/* Frames a message; returns its size. */
static size_t frame(const scene *s, int tag, const char *body, size_t size, char *framed,
                    size_t room) {
    void *request = NULL;
    size_t bytes = 0;
    REQUIRE(s->forge->calls.send(s->forge->context, 0, tag, body, size, &request) == 0);
    const ssize_t got = recv(s->frames, framed, room, MSG_DONTWAIT);
    REQUIRE(got > 0 && (size_t)got >= size);
    REQUIRE(s->forge->calls.test(s->forge->context, request, &bytes) == 1);
    return (size_t)got;
}

static void peer_sends(scene *s, input *in, int change) {
    char body[LONGEST], framed[LONGEST + 256];
    const int tag = (int)(take(in, 1) % TAGS);
    const size_t size = take(in, 2) % (LONGEST + 1);
    if (s->nsent[tag] == MESSAGES)
        return;
    for (size_t i = 0; i < size; i++)
        body[i] = byte_of(tag, s->nsent[tag], i);
    size_t bytes = frame(s, tag, body, size, framed, sizeof framed);
    if (change) {
        framed[take(in, 2) % bytes] ^= (char)(1 + take(in, 1));
        s->damaged = 1;
        if (take(in, 1) & 1)
            bytes = take(in, 2) % bytes;
    } else if (!s->damaged && s->peer >= 0)
        s->sent[tag][s->nsent[tag]++] = size;
    peer_write(s, framed, bytes);
}

static void peer_sends_raw(scene *s, input *in) {
    const input part = take_part(in);
    s->damaged |= part.left > 0;
    peer_write(s, (const char *)part.data, part.left);
}

static void peer_reads(const scene *s) {
    char bytes[1 << 14];
    if (s->peer >= 0)
        (void)recv(s->peer, bytes, sizeof bytes, MSG_DONTWAIT);
}

/* ---- the rank */

static void forget(pending *p) {
    free(p->data);
    *p = (pending){0};
}

static void start(scene *s, input *in, int receiving) {
    const tw_transport *t = s->rank;
    pending *p = &s->pending[take(in, 1) % REQUESTS];
    const int tag = (int)(take(in, 1) % TAGS);
    const size_t size = take(in, 2) % (LONGEST + 1);
    if (p->request != NULL)
        return;
    *p = (pending){.receiving = receiving, .tag = tag, .size = size, .data = malloc(size + 1)};
    REQUIRE(p->data != NULL);
    memset(p->data, 0, size);
    const int status = receiving ? t->calls.recv(t->context, 1, tag, p->data, size, &p->request)
                                 : t->calls.send(t->context, 1, tag, p->data, size, &p->request);
    if (status < 0)
        forget(p);
    else
        REQUIRE(p->request != NULL);
}

/* Receives of a tag may be tested in any order, and a cancelled one may have taken a message: only
 * the content of one that is the next in any case is known. */
static void check_received(scene *s, const pending *p, size_t bytes) {
    REQUIRE(bytes <= p->size);
    const int number = s->nreceived[p->tag]++;
    if (s->damaged || number >= s->nsent[p->tag])
        return;
    REQUIRE(bytes == s->sent[p->tag][number]);
    for (size_t i = 0; i < bytes; i++)
        REQUIRE(p->data[i] == byte_of(p->tag, number, i));
}

static void test(scene *s, input *in) {
    const tw_transport *t = s->rank;
    pending *p = &s->pending[take(in, 1) % REQUESTS];
    size_t bytes = p->size;
    int others = 0;
    if (p->request == NULL)
        return;
    for (int i = 0; i < REQUESTS; i++)
        others += &s->pending[i] != p && s->pending[i].request != NULL &&
                  s->pending[i].receiving == p->receiving && s->pending[i].tag == p->tag;
    const int done = t->calls.test(t->context, p->request, &bytes);
    if (done == 0)
        return;
    p->request = NULL;
    s->damaged |= others > 0 || done < 0; /* from here on the order is not known */
    if (p->receiving && done > 0)
        check_received(s, p, bytes);
    forget(p);
}

static void cancel(scene *s, pending *p) {
    if (p->request == NULL)
        return;
    s->rank->calls.cancel(s->rank->context, p->request);
    s->damaged = 1;
    forget(p);
}

static void operate(scene *s, input *in) {
    switch (take(in, 1) % 16) {
    case 0:
    case 1:
    case 2:
        peer_sends(s, in, 0);
        break;
    case 3:
        peer_sends(s, in, 1);
        break;
    case 4:
        peer_sends_raw(s, in);
        break;
    case 5:
        peer_reads(s);
        break;
    case 6:
    case 7:
    case 8:
        start(s, in, 1);
        break;
    case 9:
        start(s, in, 0);
        break;
    case 10:
        cancel(s, &s->pending[take(in, 1) % REQUESTS]);
        break;
    case 11:
        s->rank->calls.idle(s->rank->context, 0);
        break;
    case 12:
        if (take(in, 1) == 0)
            close_peer(s);
        break;
    default:
        test(s, in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    scene s = {.damaged = 0};
    open_pair(&s.rank, 0, &s.peer);
    open_pair(&s.forge, 1, &s.frames);
    for (int i = 0; i < OPERATIONS && in.left > 0; i++)
        operate(&s, &in);
    for (int i = 0; i < REQUESTS; i++)
        cancel(&s, &s.pending[i]);
    close_peer(&s);
    tw_transport_free(s.rank);
    REQUIRE(close(s.frames) == 0);
    tw_transport_free(s.forge);
    return 0;
}

/* Messages that arrive before and after their receive, too long ones, and damage. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    output out = {data, 0, room};
    const uint32_t sizes[] = {0, 1, 100, LONGEST};
    if (number >= 16)
        return 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t size = sizes[(i + (uint32_t)number) % 4], early = (uint32_t)number & 4;
        for (uint32_t turn = 0; turn < 2; turn++) {
            const int receive = (turn == 0) != (early != 0);
            put(&out, receive ? 6 : number == 13 && i == 2 ? 3 : 0, 1);
            if (receive)
                put(&out, i, 1);
            put(&out, i % 2, 1);
            put(&out, receive && number & 8 ? size / 2 : size, 2);
            put(&out, 11, 1);
        }
        put(&out, 13, 1);
        put(&out, i, 1);
    }
    for (uint32_t i = 0; i < 3; i++) { /* what the rank sends */
        put(&out, 9, 1);
        put(&out, i, 1);
        put(&out, i, 1);
        put(&out, 1000 * i, 2);
        put(&out, 5, 1);
        put(&out, 13, 1);
        put(&out, i, 1);
    }
    put(&out, 12, 1);
    put(&out, (uint32_t)number % 3, 1);
    return out.size;
}
