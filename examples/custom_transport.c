/* custom_transport.c - Thinwire over a network of your own: socket pairs between four processes
 *
 *     cc custom_transport.c $(pkg-config --cflags --libs thinwire) -o custom_transport
 *
 * A transport is five short functions: start to send, start to receive, test a request, cancel a
 * request, and wait. Here every pair of ranks has one socket pair per tag, so that messages of one
 * tag never wait for those of another. A message on the socket is 8 bytes of length, then bytes.
 * Each direction of a socket has a queue of requests. Only the oldest request makes progress: that
 * keeps messages in order.
 *
 * main forks the ranks. They sum a few gradients over these sockets. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thinwire.h>

enum { RANKS = 4, TAGS = 4 };

/* ---- the transport */

typedef struct request {
    struct request *next; /* in its queue */
    struct channel *channel;
    int sending;
    char *data;
    size_t capacity; /* a received message may have this many bytes */
    size_t length;   /* of the message; a receiver knows it after 8 bytes */
    size_t moved;    /* bytes sent or received so far, with the 8 of the length */
    int error;       /* errno if the request failed, else 0 */
    int done;
} request;

typedef struct channel {
    int fd;
    request *queues[2]; /* receives, sends; the oldest first */
} channel;

typedef struct wires {
    int rank;
    channel channels[RANKS][TAGS]; /* [rank] is not used */
} wires;

static void finish(channel *c, request *r, int error) {
    c->queues[r->sending] = r->next;
    r->error = error;
    r->done = 1;
}

/* Advances the oldest request as far as the socket allows without blocking. */
static void advance(channel *c, request *r) {
    size_t head = sizeof r->length;
    while (!r->done) {
        int in_head = r->moved < head;
        char *piece = in_head ? (char *)&r->length + r->moved : r->data + (r->moved - head);
        size_t bytes = in_head ? head - r->moved : head + r->length - r->moved;
        ssize_t moved = 0;
        if (!in_head && r->length > r->capacity)
            finish(c, r, EMSGSIZE);
        else if (bytes == 0)
            finish(c, r, 0);
        else if (r->sending)
            moved = send(c->fd, piece, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        else
            moved = recv(c->fd, piece, bytes, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (!r->done && moved <= 0)
            finish(c, r, moved < 0 ? errno : ECONNRESET);
        r->moved += moved > 0 ? (size_t)moved : 0;
    }
}

static void advance_all(channel *c, int sending) {
    request *r = c->queues[sending];
    while (r != NULL) {
        advance(c, r);
        r = r->done ? c->queues[sending] : NULL;
    }
}

static int start(channel *c, request what, void **handle) {
    request *r = malloc(sizeof *r), **last = &c->queues[what.sending];
    if (r == NULL)
        return tw_transport_explain("out of memory");
    while (*last != NULL)
        last = &(*last)->next;
    *r = what;
    r->channel = c;
    *last = r;
    *handle = r;
    advance_all(c, what.sending);
    return 0;
}

static int wires_send(void *context, int peer, int tag, const void *data, size_t bytes,
                      void **handle) {
    wires *w = context;
    request what = {.sending = 1, .data = (char *)data, .length = bytes, .capacity = bytes};
    return start(&w->channels[peer][tag], what, handle);
}

static int wires_recv(void *context, int peer, int tag, void *data, size_t capacity,
                      void **handle) {
    wires *w = context;
    request what = {.sending = 0, .data = data, .capacity = capacity};
    return start(&w->channels[peer][tag], what, handle);
}

static int wires_test(void *context, void *handle, size_t *bytes) {
    (void)context;
    request *r = handle;
    advance_all(r->channel, 0); /* both directions: a peer may be blocked until we receive */
    advance_all(r->channel, 1);
    if (!r->done)
        return 0;
    int error = r->error;
    *bytes = r->length;
    free(r);
    return error == 0 ? 1 : tw_transport_explain("%s", strerror(error));
}

/* A message that was sent or received in part cannot be cancelled: the socket is shut down. */
static void wires_cancel(void *context, void *handle) {
    (void)context;
    request *r = handle, **link = &r->channel->queues[r->sending];
    if (r->moved > 0)
        shutdown(r->channel->fd, SHUT_RDWR);
    while (*link != NULL && *link != r)
        link = &(*link)->next;
    if (*link == r)
        *link = r->next;
    free(r);
}

/* Sleeps until a request can make progress, or the time is over. */
static void wires_idle(void *context, int64_t microseconds) {
    wires *w = context;
    struct pollfd fds[RANKS * TAGS];
    nfds_t count = 0;
    for (int i = 0; i < RANKS * TAGS; i++) {
        const channel *c = &w->channels[i / TAGS][i % TAGS];
        short events = (short)((c->queues[0] ? POLLIN : 0) | (c->queues[1] ? POLLOUT : 0));
        if (events != 0)
            fds[count++] = (struct pollfd){.fd = c->fd, .events = events};
    }
    poll(fds, count, (int)(microseconds / 1000));
}

static void wires_close(void *context) {
    wires *w = context;
    for (int i = 0; i < RANKS * TAGS; i++)
        if (i / TAGS != w->rank)
            close(w->channels[i / TAGS][i % TAGS].fd);
}

static const tw_transport_calls wires_calls = {
    .name = "wires",
    .send = wires_send,
    .recv = wires_recv,
    .test = wires_test,
    .cancel = wires_cancel,
    .idle = wires_idle,
    .close = wires_close,
};

/* ---- a group over this transport */

enum { N = 1000, K = 10, STEPS = 3 };

static int failed(int rank, const char *what) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, tw_last_error());
    return 1;
}

/* Ten non-zero values at the same indices on all ranks. With k = 10 all of them are sent, so the
 * mean is known. */
static int check_step(tw_group *group, int rank, int step) {
    float grad[N] = {0};
    for (int j = 0; j < K; j++)
        grad[j * 97] = (float)((j + 1) * (rank + 1) + step);
    if (tw_allreduce(group, 0, grad, grad) != TW_OK) /* grad becomes the mean */
        return failed(rank, "allreduce");
    for (int j = 0; j < K; j++)
        if (grad[j * 97] != (float)(j + 1) * (RANKS + 1) / 2 + (float)step)
            return 1;
    return 0;
}

static int play(wires *w) {
    tw_transport *transport = NULL;
    tw_group *group = NULL;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.k = K;
    params.timeout = 10;
    if (tw_transport_custom(&transport, &wires_calls, w, w->rank, RANKS) != TW_OK)
        return failed(w->rank, "transport");
    if (tw_group_create(&group, transport, &params) != TW_OK ||
        tw_group_add(group, N, NULL, NULL) != TW_OK || tw_group_open(group) != TW_OK)
        return failed(w->rank, "group");
    int wrong = 0;
    for (int step = 0; step < STEPS && !wrong; step++)
        wrong = check_step(group, w->rank, step);
    tw_traffic traffic;
    tw_transport_info(transport, NULL, NULL, NULL, &traffic);
    printf("rank %d: %d steps, %s; %d bytes of entries sent, %d of control\n", w->rank, STEPS,
           wrong ? "WRONG" : "means exact", (int)traffic.payload_sent, (int)traffic.control_sent);
    tw_group_free(group);
    tw_transport_free(transport);
    return wrong;
}

/* Closes the ends of the other ranks, so that they notice when this rank ends. */
static int play_rank(wires all[RANKS], int rank) {
    for (int i = 0; i < RANKS; i++)
        if (i != rank)
            wires_close(&all[i]);
    return play(&all[rank]);
}

int main(void) {
    static wires all[RANKS];
    int wrong = 0, status = 0;
    for (int i = 0; i < RANKS; i++) {
        all[i].rank = i;
        for (int j = 0; j < i; j++)
            for (int tag = 0; tag < TAGS; tag++) {
                int ends[2];
                if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
                    return perror("socketpair"), 1;
                all[i].channels[j][tag].fd = ends[0];
                all[j].channels[i][tag].fd = ends[1];
            }
    }
    for (int rank = 0; rank < RANKS; rank++)
        if (fork() == 0)
            exit(play_rank(all, rank));
    for (int rank = 0; rank < RANKS; rank++)
        wires_close(&all[rank]);
    while (wait(&status) > 0)
        wrong |= status != 0;
    return wrong;
}
