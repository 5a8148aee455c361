/* transport_sockets.c - over connected stream sockets, one to each other rank
 *
 * Each is a stream of messages (stream.h). Nothing blocks but idle, which waits for all sockets in one
 * poll(). */
#include "base/clock.h"
#include "transport/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A message mostly comes soon: so often others may run before this rank sleeps. As measured for
 * MPI, see transport_mpi.c. */
#define YIELDS 32
/* After a failure: for the last words to arrive, before the socket is closed under them. */
#define LINGER (TW__SECOND / 5)

typedef struct sockets {
    int nranks, rank;
    int failed;               /* something was given up */
    int quiet;                /* idles in a row in which nothing was done */
    unsigned round;           /* of looking at all sockets */
    struct pollfd *fds;       /* [nranks]; fd is negative for this rank, and for one that is gone */
    tw__connection **streams; /* [nranks]; NULL for this rank */
    tw__store store;
} sockets;

/* ---- the calls */

/* Looks at all sockets; waits so long at most until there is something to see. */
static int look(sockets *s, int milliseconds) {
    s->round++;
    if (poll(s->fds, (nfds_t)s->nranks, milliseconds) <= 0)
        return 0;
    for (int number = 0; number < s->nranks; number++) {
        short seen = s->fds[number].fd < 0 ? 0 : s->fds[number].revents;
        if (seen & POLLNVAL)
            tw__connection_lose(s->streams[number], EBADF);
        if (seen & POLLOUT)
            tw__connection_flush(s->streams[number]);
        if (seen & (POLLIN | POLLHUP | POLLERR))
            tw__connection_read(s->streams[number]);
    }
    return 1;
}

static int explain_loss(int why) {
    return tw_transport_explain("%s", why < 0 ? "it has closed its connection" : strerror(why));
}

static tw__request *start(const sockets *s, tw__connection *to, int tag, void *data, size_t bytes) {
    tw__request *r = tw__connection_request(to, tag, data, bytes);
    if (r == NULL)
        (void)tw_transport_explain("no memory for more requests");
    else
        r->round = s->round;
    return r;
}

static int sockets_send(void *context, int number, int tag, const void *data, size_t bytes,
                        void **handle) {
    sockets *s = context;
    tw__connection *to = s->streams[number];
    if (to->gone != 0)
        return explain_loss(to->gone);
    tw__request *r = start(s, to, tag, (void *)data, bytes);
    if (r == NULL)
        return TW_ERR_TRANSPORT;
    s->failed |= tag == TW__TAG_LIVENESS; /* whoever speaks there is in trouble */
    *handle = r;
    tw__connection_send(to, r);
    return TW_OK;
}

static int sockets_recv(void *context, int number, int tag, void *data, size_t capacity,
                        void **handle) {
    sockets *s = context;
    tw__connection *from = s->streams[number];
    if (from->gone != 0 && !tw__connection_has(from, tag))
        return explain_loss(from->gone);
    tw__request *r = start(s, from, tag, data, capacity);
    if (r == NULL)
        return TW_ERR_TRANSPORT;
    *handle = r;
    tw__connection_receive(from, r);
    return TW_OK;
}

static int explain_failure(const tw__request *r) {
    if (!r->sending && r->moved > r->bytes)
        return tw_transport_explain("the message of %zu bytes is longer than the %zu expected",
                                    r->moved, r->bytes);
    return explain_loss(r->stream->gone);
}

/* A request that is asked about again wants to know what has happened since. */
static int sockets_test(void *context, void *handle, size_t *bytes) {
    sockets *s = context;
    tw__request *r = handle;
    if (r->outcome == TW__UNDER_WAY && r->round == s->round)
        (void)look(s, 0);
    r->round = s->round;
    if (r->outcome == TW__UNDER_WAY)
        return 0;
    s->quiet = 0;
    s->failed |= r->outcome == TW__FAILED;
    *bytes = r->bytes;
    int result = r->outcome == TW__DONE ? 1 : explain_failure(r);
    tw__store_put(&s->store, r);
    return result;
}

static void sockets_cancel(void *context, void *handle) {
    sockets *s = context;
    tw__request *r = handle;
    s->failed |= r->sending || r->head.tag == 0;
    tw__connection_cancel(r->stream, r);
}

static void sockets_idle(void *context, int64_t microseconds) {
    sockets *s = context;
    if (s->quiet < YIELDS) {
        s->quiet++;
        if (!look(s, 0))
            sched_yield();
        return;
    }
    int64_t milliseconds = (microseconds + 999) / 1000;
    (void)look(s, milliseconds < 1000 ? (int)milliseconds : 1000);
}

/* ---- create and free */

/* To those to whom all was sent. Returns how many have not closed their end yet. */
static int say_goodbye(sockets *s) {
    int there = 0;
    for (int number = 0; number < s->nranks; number++) {
        if (s->fds[number].fd < 0)
            continue;
        there++;
        if (s->streams[number]->sends.first == NULL)
            (void)shutdown(s->fds[number].fd, SHUT_WR);
    }
    return there;
}

/* After a failure others may be told of it yet: until they close, too, or a moment has passed. */
static void linger(sockets *s) {
    int64_t deadline = tw__clock() + LINGER;
    while (say_goodbye(s) > 0 && tw__clock() < deadline)
        (void)look(s, 1);
}

static void free_context(sockets *s) {
    for (int number = 0; number < s->nranks && s->streams != NULL; number++)
        tw__connection_free(s->streams[number]);
    tw__store_free(&s->store);
    free(s->streams);
    free(s->fds);
    free(s);
}

static void sockets_close(void *context) {
    sockets *s = context;
    if (s->failed)
        linger(s);
    for (int number = 0; number < s->nranks; number++)
        if (number != s->rank)
            (void)close(s->fds[number].fd >= 0 ? s->fds[number].fd : -1 - s->fds[number].fd);
    free_context(s);
}

static int check_socket(int fd, int number) {
    int type = 0;
    socklen_t size = sizeof type;
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
        getpeername(fd, (struct sockaddr *)&name, &length) != 0)
        return tw__fail(TW_ERR_PARAM,
                        "sockets[%d]: %d is not a connected stream socket; connect it first",
                        number, fd);
    return TW_OK;
}

static int add_peer(sockets *s, int number, int fd) {
    const int yes = 1;
    s->fds[number] = (struct pollfd){.fd = -1};
    if (number == s->rank)
        return TW_OK;
    TW_TRY(check_socket(fd, number));
    for (int before = 0; before < number; before++)
        if (s->fds[before].fd == fd)
            return tw__fail(TW_ERR_PARAM, "sockets[%d]: %d is that of rank %d too; connect another",
                            number, fd, before);
    s->streams[number] = tw__connection_create(&s->store, &s->fds[number]);
    if (s->streams[number] == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof(tw__connection));
    /* Short messages must not wait for more. Sockets other than TCP's do not, and refuse this. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    s->fds[number] = (struct pollfd){.fd = fd, .events = POLLIN};
    return TW_OK;
}

static int fill(sockets *s, const int *fds, int rank, int nranks) {
    s->fds = calloc((size_t)nranks, sizeof *s->fds);
    s->streams = calloc((size_t)nranks, sizeof(tw__connection *));
    if (s->fds == NULL || s->streams == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", nranks);
    s->nranks = nranks;
    s->rank = rank;
    /* For the receives of four rotations, their sends, and a roll call. */
    TW_TRY(tw__store_add(&s->store, 8 * nranks + 64));
    for (int number = 0; number < nranks; number++)
        TW_TRY(add_peer(s, number, fds[number]));
    return TW_OK;
}

static const tw_transport_calls sockets_calls = {
    .name = "sockets",
    .send = sockets_send,
    .recv = sockets_recv,
    .test = sockets_test,
    .cancel = sockets_cancel,
    .idle = sockets_idle,
    .close = sockets_close,
};

int tw_transport_sockets(tw_transport **transport, const int *fds, int rank, int nranks) {
    TW_REQUIRE(transport, "transport");
    *transport = NULL;
    TW_REQUIRE(fds, "sockets");
    TW_TRY(tw__transport_check_ranks(rank, nranks));
    sockets *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *s);
    int status = fill(s, fds, rank, nranks);
    if (status == TW_OK)
        status = tw_transport_custom(transport, &sockets_calls, s, rank, nranks);
    if (status != TW_OK)
        free_context(s);
    return status;
}
