/* relay.c - a thread that forwards bytes, later; see relay.h */
#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { CHUNK = 64 << 10, HELD_MS = 3 };

/* One way between two ranks, with one chunk under way at a time. */
typedef struct lane {
    int from, to; /* the relay's ends */
    int ended;    /* nothing more will come */
    size_t begin, end;
    int64_t due; /* ms: when the chunk may go on */
    char chunk[CHUNK];
} lane;

struct relay {
    pthread_t thread;
    int count;
    lane *lanes;        /* [count] */
    struct pollfd *fds; /* [count]: what each lane waits for */
};

static int64_t now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void take_chunk(lane *l) {
    ssize_t bytes = recv(l->from, l->chunk, CHUNK, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    l->ended = bytes <= 0;
    l->begin = 0;
    l->end = l->ended ? 0 : (size_t)bytes;
    l->due = now_ms() + HELD_MS;
    if (l->ended) /* the other rank learns that this one has gone */
        (void)shutdown(l->to, SHUT_WR);
}

/* As much as the socket takes; what nobody will read is dropped. */
static void pass_chunk(lane *l) {
    ssize_t bytes =
        send(l->to, l->chunk + l->begin, l->end - l->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0)
        l->begin += (size_t)bytes;
    else if (errno != EAGAIN && errno != EINTR)
        l->begin = l->end;
}

static struct pollfd wish_of(const lane *l) {
    if (l->ended || (l->begin < l->end && now_ms() < l->due))
        return (struct pollfd){.fd = -1};
    return l->begin < l->end ? (struct pollfd){.fd = l->to, .events = POLLOUT}
                             : (struct pollfd){.fd = l->from, .events = POLLIN};
}

static int all_ended(const relay *r) {
    int ended = 1;
    for (int i = 0; i < r->count; i++)
        ended &= r->lanes[i].ended;
    return ended;
}

static void *forward(void *context) {
    relay *r = context;
    while (!all_ended(r)) {
        for (int i = 0; i < r->count; i++)
            r->fds[i] = wish_of(&r->lanes[i]);
        (void)poll(r->fds, (nfds_t)r->count, 1);
        for (int i = 0; i < r->count; i++) {
            if (r->fds[i].fd < 0 || r->fds[i].revents == 0)
                continue;
            if (r->lanes[i].begin < r->lanes[i].end)
                pass_chunk(&r->lanes[i]);
            else
                take_chunk(&r->lanes[i]);
        }
    }
    return NULL;
}

/* Lanes both ways; a and b are the ends of the ranks. */
static void join_ranks(lane *lanes, int *a, int *b) {
    int pairs[2][2];
    for (int i = 0; i < 2; i++)
        check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
    *a = pairs[0][0];
    *b = pairs[1][0];
    for (int i = 0; i < 2; i++) {
        lanes[i].from = pairs[i][1];
        lanes[i].to = pairs[1 - i][1];
        lanes[i].ended = 0;
        lanes[i].begin = lanes[i].end = 0;
    }
}

relay *relay_open(tw_transport **transports, int nranks) {
    relay *r = check_alloc(1, sizeof *r);
    int *ends = check_alloc((int64_t)nranks * nranks, sizeof *ends), at = 0;
    r->count = nranks * (nranks - 1);
    r->lanes = check_alloc(r->count, sizeof *r->lanes);
    r->fds = check_alloc(r->count, sizeof *r->fds);
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++, at += 2)
            join_ranks(r->lanes + at, &ends[a * nranks + b], &ends[b * nranks + a]);
    for (int a = 0; a < nranks; a++)
        check_ok(tw_transport_sockets(&transports[a], ends + (ptrdiff_t)a * nranks, a, nranks));
    free(ends);
    check_true(pthread_create(&r->thread, NULL, forward, r) == 0);
    return r;
}

void relay_close(relay *r) {
    (void)pthread_join(r->thread, NULL);
    for (int i = 0; i < r->count; i++)
        (void)close(r->lanes[i].from); /* of each pair of lanes one's `to` is the other's `from` */
    free(r->lanes);
    free(r->fds);
    free(r);
}
