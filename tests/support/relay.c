/* relay.c - a thread that forwards bytes with a delay; see relay.h */
#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"

enum { CHUNK = 64 << 10 };

#define DELAY (3 * TW__SECOND / 1000)

/* One direction between two ranks, with one chunk in flight. */
typedef struct direction {
    int from, to; /* the relay's sockets */
    int ended;    /* nothing more will come */
    size_t begin, end;
    int64_t due; /* tw__clock(): when the chunk may go on */
    char chunk[CHUNK];
} direction;

struct relay {
    pthread_t thread;
    int count;
    direction *directions; /* [count] */
    struct pollfd *fds;    /* [count]: what each direction waits for */
};

static void take_chunk(direction *d) {
    ssize_t bytes = recv(d->from, d->chunk, CHUNK, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    d->ended = bytes <= 0;
    d->begin = 0;
    d->end = d->ended ? 0 : (size_t)bytes;
    d->due = tw__clock() + DELAY;
    if (d->ended) /* the other rank learns that this one has gone */
        (void)shutdown(d->to, SHUT_WR);
}

/* As much as the socket takes. Drops the chunk if nobody will read it. */
static void pass_chunk(direction *d) {
    ssize_t bytes =
        send(d->to, d->chunk + d->begin, d->end - d->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0)
        d->begin += (size_t)bytes;
    else if (errno != EAGAIN && errno != EINTR)
        d->begin = d->end;
}

static struct pollfd poll_of(const direction *d) {
    if (d->ended || (d->begin < d->end && tw__clock() < d->due))
        return (struct pollfd){.fd = -1};
    return d->begin < d->end ? (struct pollfd){.fd = d->to, .events = POLLOUT}
                             : (struct pollfd){.fd = d->from, .events = POLLIN};
}

static int all_ended(const relay *r) {
    int ended = 1;
    for (int i = 0; i < r->count; i++)
        ended &= r->directions[i].ended;
    return ended;
}

static void *forward(void *context) {
    relay *r = context;
    while (!all_ended(r)) {
        for (int i = 0; i < r->count; i++)
            r->fds[i] = poll_of(&r->directions[i]);
        (void)poll(r->fds, (nfds_t)r->count, 1);
        for (int i = 0; i < r->count; i++) {
            if (r->fds[i].fd < 0 || r->fds[i].revents == 0)
                continue;
            if (r->directions[i].begin < r->directions[i].end)
                pass_chunk(&r->directions[i]);
            else
                take_chunk(&r->directions[i]);
        }
    }
    return NULL;
}

/* Both directions; a and b are the sockets of the ranks. */
static void join_ranks(direction *directions, int *a, int *b) {
    int pairs[2][2];
    for (int i = 0; i < 2; i++)
        check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
    *a = pairs[0][0];
    *b = pairs[1][0];
    for (int i = 0; i < 2; i++) {
        directions[i].from = pairs[i][1];
        directions[i].to = pairs[1 - i][1];
        directions[i].ended = 0;
        directions[i].begin = directions[i].end = 0;
    }
}

relay *relay_open(tw_transport **transports, int nranks) {
    relay *r = check_alloc(1, sizeof *r);
    int *ends = check_alloc((int64_t)nranks * nranks, sizeof *ends), at = 0;
    r->count = nranks * (nranks - 1);
    r->directions = check_alloc(r->count, sizeof *r->directions);
    r->fds = check_alloc(r->count, sizeof *r->fds);
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++, at += 2)
            join_ranks(r->directions + at, &ends[a * nranks + b], &ends[b * nranks + a]);
    for (int a = 0; a < nranks; a++)
        check_ok(tw_transport_sockets(&transports[a], ends + (ptrdiff_t)a * nranks, a, nranks));
    free(ends);
    check_true(pthread_create(&r->thread, NULL, forward, r) == 0);
    return r;
}

void relay_close(relay *r) {
    (void)pthread_join(r->thread, NULL);
    for (int i = 0; i < r->count; i++)
        (void)close(r->directions[i].from); /* one's `from` is the other's `to` */
    free(r->directions);
    free(r->fds);
    free(r);
}
