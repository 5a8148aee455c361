/* transport_sockets.c - over connected stream sockets, one to each other rank
 *
 * Each socket is a connection (connection.h). Only idle blocks: it waits for all sockets in one
 * poll(). */
#include "transport/connection.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Yields before idle sleeps: most messages arrive soon. As measured for MPI, see transport_mpi.c. */
#define YIELDS 32
/* After a failure: time for abort notices to arrive before the sockets are closed. */
#define LINGER (TW__SECOND / 5)

typedef struct sockets {
    int nranks, rank;
    int failed;          /* a request failed or was cancelled, or ranks checked for liveness */
    int idles;           /* in a row, without a request that was done */
    unsigned round;      /* of polling all sockets */
    struct pollfd *fds;  /* [nranks]; fd is negative for this rank, and once lost */
    tw__connection **to; /* [nranks]; NULL for this rank */
    tw__slab requests;
} sockets;

/* ---- the calls */

/* Polls all sockets until one is ready, for this long at most. Returns 0 if none was. */
static int poll_sockets(sockets *s, int milliseconds) {
    s->round++;
    if (poll(s->fds, (nfds_t)s->nranks, milliseconds) <= 0)
        return 0;
    for (int peer = 0; peer < s->nranks; peer++) {
        short ready = s->fds[peer].fd < 0 ? 0 : s->fds[peer].revents;
        if (ready & POLLNVAL)
            tw__connection_lose(s->to[peer], EBADF);
        if (ready & POLLOUT)
            tw__connection_flush(s->to[peer]);
        if (ready & (POLLIN | POLLHUP | POLLERR))
            tw__connection_read(s->to[peer]);
    }
    return 1;
}

/* Why nothing more can be received, or sent. */
static int explain_loss(const tw__connection *c) {
    if (c->damage[0] != '\0')
        return tw_transport_explain("%s", c->damage);
    assert(c->lost != 0);
    return tw_transport_explain("%s",
                                c->lost < 0 ? "it has closed its connection" : strerror(c->lost));
}

static tw__request *new_request(const sockets *s, tw__connection *c, int tag, void *data,
                                size_t bytes) {
    tw__request *r = tw__connection_request(c, tag, data, bytes);
    if (r == NULL)
        (void)tw_transport_explain("no memory for requests");
    else
        r->round = s->round;
    return r;
}

static int sockets_send(void *context, int peer, int tag, const void *data, size_t bytes,
                        void **handle) {
    sockets *s = context;
    tw__connection *to = s->to[peer];
    assert(peer != s->rank);
    if (to->lost != 0)
        return explain_loss(to);
    tw__request *r = new_request(s, to, tag, (void *)data, bytes);
    if (r == NULL)
        return TW_ERR_TRANSPORT;
    s->failed |= tag == TW__TAG_LIVENESS; /* used when a rank is late */
    *handle = r;
    tw__connection_send(to, r);
    return TW_OK;
}

static int sockets_recv(void *context, int peer, int tag, void *data, size_t capacity,
                        void **handle) {
    sockets *s = context;
    tw__connection *from = s->to[peer];
    assert(peer != s->rank);
    if ((from->lost != 0 || from->damage[0] != '\0') && !tw__connection_has(from, tag))
        return explain_loss(from);
    tw__request *r = new_request(s, from, tag, data, capacity);
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
    return explain_loss(r->connection);
}

/* Polls only if this request was tested since the last time: one poll serves all requests. */
static int sockets_test(void *context, void *handle, size_t *bytes) {
    sockets *s = context;
    tw__request *r = handle;
    if (r->outcome == TW__UNDER_WAY && r->round == s->round)
        (void)poll_sockets(s, 0);
    r->round = s->round;
    if (r->outcome == TW__UNDER_WAY)
        return 0;
    s->idles = 0;
    s->failed |= r->outcome == TW__FAILED;
    *bytes = r->bytes;
    int result = r->outcome == TW__DONE ? 1 : explain_failure(r);
    tw__slab_put(&s->requests, r);
    return result;
}

static void sockets_cancel(void *context, void *handle) {
    sockets *s = context;
    tw__request *r = handle;
    s->failed |= r->sending || r->frame.tag == TW__TAG_DATA;
    tw__connection_cancel(r->connection, r);
}

static void sockets_idle(void *context, int64_t microseconds) {
    sockets *s = context;
    if (s->idles < YIELDS) {
        s->idles++;
        if (!poll_sockets(s, 0))
            sched_yield();
        return;
    }
    int64_t milliseconds = (microseconds + 999) / 1000;
    (void)poll_sockets(s, milliseconds < 1000 ? (int)milliseconds : 1000);
}

static void sockets_checksum(void *context, int on) {
    sockets *s = context;
    for (int peer = 0; peer < s->nranks; peer++)
        if (peer != s->rank)
            s->to[peer]->checked = on;
}

/* ---- the ranks change */

static void sockets_begin_change(void *context) {
    sockets *s = context;
    for (int peer = 0; peer < s->nranks; peer++)
        if (peer != s->rank)
            tw__connection_begin_version(s->to[peer]);
}

static void close_socket(const struct pollfd *poll) {
    (void)close(poll->fd >= 0 ? poll->fd : -1 - poll->fd);
}

/* What was sent to a rank that is not kept, it can still read before it sees the end. */
static void sockets_keep(void *context, const int *ranks, int nranks) {
    sockets *s = context;
    int next = 0, rank = s->rank;
    for (int peer = 0; peer < s->nranks; peer++) {
        if (next == nranks || ranks[next] != peer) {
            close_socket(&s->fds[peer]);
            tw__connection_free(s->to[peer]);
            continue;
        }
        if (peer == s->rank)
            rank = next;
        s->to[next] = s->to[peer];
        s->fds[next] = s->fds[peer];
        if (s->to[next] != NULL)
            s->to[next]->poll = &s->fds[next];
        next++;
    }
    assert(next == nranks);
    s->rank = rank;
    s->nranks = nranks;
    s->failed = 0;
}

/* ---- create and free */

/* Shuts down the connections that have nothing to send. Returns how many peers are still open. */
static int shut_down(const sockets *s) {
    int open = 0;
    for (int peer = 0; peer < s->nranks; peer++) {
        if (s->fds[peer].fd < 0)
            continue;
        open++;
        if (s->to[peer]->sends.first == NULL)
            (void)shutdown(s->fds[peer].fd, SHUT_WR);
    }
    return open;
}

static void free_context(sockets *s) {
    for (int peer = 0; peer < s->nranks && s->to != NULL; peer++)
        tw__connection_free(s->to[peer]);
    tw__slab_free(&s->requests);
    free(s->to);
    free(s->fds);
    free(s);
}

/* After a failure peers may still have to read abort notices: waits until they close too. */
static void sockets_close(void *context) {
    sockets *s = context;
    int64_t deadline = tw__clock() + LINGER;
    while (s->failed && shut_down(s) > 0 && tw__clock() < deadline)
        (void)poll_sockets(s, 1);
    for (int peer = 0; peer < s->nranks; peer++)
        if (peer != s->rank)
            close_socket(&s->fds[peer]);
    free_context(s);
}

/* A peer that has died meanwhile is found when it is needed: what it sent can still be read. */
static int is_connected(int fd) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    char byte;
    return getpeername(fd, (struct sockaddr *)&name, &length) == 0 ||
           recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno == ECONNRESET;
}

static int check_socket(int fd, int peer) {
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
        !is_connected(fd))
        return tw__fail(TW_ERR_PARAM,
                        "sockets[%d]: %d is not a connected stream socket; connect it first", peer,
                        fd);
    return TW_OK;
}

static int add_peer(sockets *s, int peer, int fd) {
    const int yes = 1;
    s->fds[peer] = (struct pollfd){.fd = -1};
    if (peer == s->rank)
        return TW_OK;
    TW_TRY(check_socket(fd, peer));
    for (int before = 0; before < peer; before++)
        if (s->fds[before].fd == fd)
            return tw__fail(TW_ERR_PARAM,
                            "sockets[%d]: %d is also that of rank %d; connect another", peer, fd,
                            before);
    s->to[peer] = tw__connection_create(&s->requests, &s->fds[peer]);
    if (s->to[peer] == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", sizeof(tw__connection));
    /* TCP must not hold back short messages. Other sockets do not, and refuse the option. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    s->fds[peer] = (struct pollfd){.fd = fd, .events = POLLIN};
    return TW_OK;
}

static int init(sockets *s, const int *fds, int rank, int nranks) {
    size_t ranks = (size_t)nranks;
    s->nranks = nranks;
    s->rank = rank;
    s->fds = calloc(ranks, sizeof *s->fds);
    s->to = calloc(ranks, sizeof(tw__connection *));
    /* Requests: the receives of four alltoalls, their sends, and a liveness check. */
    if (s->fds == NULL || s->to == NULL ||
        !tw__slab_init(&s->requests, sizeof(tw__request), 8 * ranks + 64))
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", nranks);
    for (int peer = 0; peer < nranks; peer++)
        TW_TRY(add_peer(s, peer, fds[peer]));
    return TW_OK;
}

static int sockets_is_whole(void *context) {
    const sockets *s = context;
    for (int peer = 0; peer < s->nranks; peer++) {
        struct pollfd at = {.fd = s->fds[peer].fd, .events = POLLRDHUP};
        if (peer != s->rank && (at.fd < 0 || poll(&at, 1, 0) > 0))
            return 0;
    }
    return 1;
}

static int create(void **context, const int *fds, int rank, int nranks) {
    sockets *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", sizeof *s);
    int status = init(s, fds, rank, nranks);
    if (status == TW_OK)
        *context = s;
    else
        free_context(s);
    return status;
}

static const tw__member_calls sockets_member_calls = {sockets_begin_change, sockets_keep, create,
                                                      sockets_is_whole};

static const tw_transport_calls sockets_calls = {
    .name = "sockets",
    .send = sockets_send,
    .recv = sockets_recv,
    .test = sockets_test,
    .cancel = sockets_cancel,
    .idle = sockets_idle,
    .close = sockets_close,
    .checksum = sockets_checksum,
};

int tw_transport_sockets(tw_transport **transport, const int *fds, int rank, int nranks) {
    TW_REQUIRE(transport, "transport");
    *transport = NULL;
    TW_REQUIRE(fds, "sockets");
    TW_TRY(tw__transport_check_ranks(rank, nranks));
    void *context = NULL;
    int status = create(&context, fds, rank, nranks);
    if (context == NULL)
        return status;
    status = tw_transport_custom(transport, &sockets_calls, context, rank, nranks);
    if (status != TW_OK)
        free_context(context);
    else
        (*transport)->member_calls = &sockets_member_calls;
    return status;
}
