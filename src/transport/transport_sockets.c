/* transport_sockets.c - over connected stream sockets, one to each other rank
 *
 *   send   -> queue of the peer -> socket          at once, as far as the socket takes it
 *   socket -> buffer of the peer -> receive        or kept, where none waits for it yet
 *
 * A message is a head and its body; long bodies go past the buffer. Nothing blocks but idle, which
 * waits for all sockets in one poll(). Requests come from a pool: a step allocates nothing but room
 * for messages that come before they are expected. */
#include "transport/transport.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define TAGS 4
#define MAGIC 0x54574d31u /* of a head: what follows is ours */
#define BUFFER ((size_t)64 << 10)
/* No message is longer: all of 2^31 elements as entries, four times over. */
#define LONGEST (SIZE_MAX / 2 < (uint64_t)1 << 36 ? SIZE_MAX / 2 : (uint64_t)1 << 36)
/* A message mostly comes soon: so often others may run before this rank sleeps. As measured for
 * MPI, see transport_mpi.c. */
#define YIELDS 32
/* After a failure: for the last words to arrive, before the socket is closed under them. */
#define LINGER (TW__SECOND / 5)

typedef struct head {
    uint64_t bytes;
    uint32_t tag, magic;
} head;

typedef enum { UNDER_WAY, DONE, FAILED } outcome;

typedef struct request {
    struct request *next; /* in the queue it is in */
    int peer, sending;
    outcome outcome;
    unsigned round; /* in which it was last asked about */
    head head;
    char *data;
    size_t bytes; /* to send; or received, and before that the room */
    size_t moved; /* of head and body, when sending */
    char *copy;   /* of a cancelled one's data, which goes on without its owner; else NULL */
} request;

typedef struct queue {
    request *first, *last;
} queue;

/* A message that came before it was expected. */
typedef struct letter {
    struct letter *next;
    size_t bytes;
    char body[];
} letter;

typedef struct peer {
    int gone; /* errno of what went wrong, or -1: the other end was closed; else 0 */
    queue sends, receives[TAGS];
    letter *letters[TAGS]; /* in the order of arrival */

    /* The message that is coming in: at most one of these has its body, none when it is dropped. */
    int inside; /* its head was read */
    head head;
    size_t got; /* of the body */
    request *to;
    letter *letter;

    size_t from, till; /* of the buffer: not yet used */
    char buffer[BUFFER];
} peer;

typedef struct block {
    struct block *next;
    int count;
    request requests[];
} block;

typedef struct sockets {
    int nranks, rank;
    int failed;         /* something was given up */
    int quiet;          /* idles in a row in which nothing was done */
    unsigned round;     /* of looking at all sockets */
    struct pollfd *fds; /* [nranks]; fd is negative for this rank, and for one that is gone */
    peer **peers;       /* [nranks]; NULL for this rank */
    request *unused;
    block *blocks;
} sockets;

/* ---- requests and queues */

/* For the receives of three rotations, their sends, and a roll call. Errors: TW_ERR_MEMORY. */
static int add_block(sockets *s) {
    int count = 7 * s->nranks + 64;
    block *b = calloc(1, sizeof *b + (size_t)count * sizeof(request));
    if (b == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d requests", count);
    b->next = s->blocks;
    b->count = count;
    s->blocks = b;
    for (int i = 0; i < count; i++) {
        b->requests[i].next = s->unused;
        s->unused = &b->requests[i];
    }
    return TW_OK;
}

/* NULL: there is no memory for more of them. */
static request *take(sockets *s) {
    if (s->unused == NULL)
        add_block(s);
    request *taken = s->unused;
    if (taken != NULL)
        s->unused = taken->next;
    return taken;
}

static void give_back(sockets *s, request *r) {
    free(r->copy);
    r->copy = NULL;
    r->next = s->unused;
    s->unused = r;
}

static void push(queue *q, request *r) {
    r->next = NULL;
    if (q->first == NULL)
        q->first = r;
    else
        q->last->next = r;
    q->last = r;
}

static request *pop(queue *q) {
    request *r = q->first;
    q->first = r->next;
    return r;
}

static void leave_queue(queue *q, const request *r) {
    request *before = NULL;
    for (request *at = q->first; at != NULL; before = at, at = at->next) {
        if (at != r)
            continue;
        *(before != NULL ? &before->next : &q->first) = at->next;
        if (q->last == at)
            q->last = before;
        return;
    }
}

static void finish(sockets *s, request *r, outcome how) {
    r->outcome = how;
    if (r->copy != NULL) /* nobody asks for it any more */
        give_back(s, r);
}

/* Nothing comes from there any more, and nothing goes there. */
static void lose(sockets *s, int number, int why) {
    peer *p = s->peers[number];
    if (p->gone != 0)
        return;
    p->gone = why;
    s->fds[number].events = 0;
    s->fds[number].fd = -1 - s->fds[number].fd; /* passed over by poll; still to be closed */
    while (p->sends.first != NULL)
        finish(s, pop(&p->sends), FAILED);
    for (int tag = 0; tag < TAGS; tag++)
        while (p->receives[tag].first != NULL)
            finish(s, pop(&p->receives[tag]), FAILED);
    if (p->to != NULL)
        finish(s, p->to, FAILED);
    p->to = NULL;
}

static int explain_loss(int why) {
    return tw_transport_explain("%s", why < 0 ? "it has closed its connection" : strerror(why));
}

static int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* ---- in */

/* A longer message than there is room for: the receive fails, the rest of the message is dropped. */
static int fits(request *r, size_t bytes) {
    if (bytes <= r->bytes)
        return 1;
    r->outcome = FAILED;
    r->moved = bytes; /* for the error's text */
    return 0;
}

static void receive_letter(letter *l, request *r) {
    if (fits(r, l->bytes)) {
        memcpy(r->data, l->body, l->bytes);
        r->bytes = l->bytes;
        r->outcome = DONE;
    }
    free(l);
}

static void keep(peer *p, letter *l) {
    letter **end = &p->letters[p->head.tag];
    while (*end != NULL)
        end = &(*end)->next;
    *end = l;
}

/* The head was read: where does the body go? */
static int open_message(peer *p) {
    if (p->head.magic != MAGIC || p->head.tag >= TAGS || p->head.bytes > LONGEST)
        return EPROTO;
    queue *waiting = &p->receives[p->head.tag];
    p->inside = 1;
    p->got = 0;
    if (waiting->first != NULL) {
        request *r = pop(waiting);
        p->to = fits(r, p->head.bytes) ? r : NULL;
        return 0;
    }
    p->letter = malloc(sizeof *p->letter + p->head.bytes);
    if (p->letter == NULL)
        return ENOMEM;
    p->letter->next = NULL;
    p->letter->bytes = p->head.bytes;
    return 0;
}

static void close_message(peer *p) {
    queue *waiting = &p->receives[p->head.tag];
    letter *l = p->letter;
    p->inside = 0;
    p->letter = NULL;
    if (p->to != NULL) {
        p->to->bytes = p->head.bytes;
        p->to->outcome = DONE;
    }
    p->to = NULL;
    if (l != NULL && waiting->first != NULL) /* it has come meanwhile */
        receive_letter(l, pop(waiting));
    else if (l != NULL)
        keep(p, l);
}

static char *body_of(const peer *p) {
    return p->to != NULL ? p->to->data : p->letter != NULL ? p->letter->body : NULL;
}

/* Uses what the buffer has. 0, or an errno. */
static int digest(peer *p) {
    for (;;) {
        size_t there = p->till - p->from;
        if (!p->inside) {
            if (there < sizeof p->head)
                return 0;
            memcpy(&p->head, p->buffer + p->from, sizeof p->head);
            p->from += sizeof p->head;
            int error = open_message(p);
            if (error != 0)
                return error;
            continue;
        }
        size_t rest = p->head.bytes - p->got, part = there < rest ? there : rest;
        if (body_of(p) != NULL && part > 0)
            memcpy(body_of(p) + p->got, p->buffer + p->from, part);
        p->from += part;
        p->got += part;
        if (p->got < p->head.bytes)
            return 0;
        close_message(p);
    }
}

/* One read: straight into the body where that is long, else into the buffer. */
static ssize_t read_some(int fd, peer *p) {
    size_t rest = p->inside ? p->head.bytes - p->got : 0;
    if (rest >= BUFFER && body_of(p) != NULL) { /* the buffer is empty then */
        ssize_t got = recv(fd, body_of(p) + p->got, rest, MSG_DONTWAIT);
        p->got += got > 0 ? (size_t)got : 0;
        return got;
    }
    memmove(p->buffer, p->buffer + p->from, p->till - p->from);
    p->till -= p->from;
    p->from = 0;
    ssize_t got = recv(fd, p->buffer + p->till, BUFFER - p->till, MSG_DONTWAIT);
    p->till += got > 0 ? (size_t)got : 0;
    return got;
}

static void drink(sockets *s, int number) {
    peer *p = s->peers[number];
    while (p->gone == 0) {
        ssize_t got = read_some(s->fds[number].fd, p);
        if (got < 0 && would_block())
            return;
        int error = got < 0 ? errno : got == 0 ? -1 : digest(p);
        if (error != 0)
            lose(s, number, error);
    }
}

/* ---- out */

static ssize_t write_some(int fd, request *r) {
    size_t of_head = r->moved < sizeof r->head ? sizeof r->head - r->moved : 0;
    size_t done = r->moved + of_head - sizeof r->head; /* of the body */
    struct iovec parts[2] = {
        {(char *)&r->head + (sizeof r->head - of_head), of_head},
        {r->data + done, r->bytes - done},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What the peer has said before it went is heard first. */
static void break_off(sockets *s, int number, int why) {
    drink(s, number);
    lose(s, number, why);
}

static void flush(sockets *s, int number) {
    peer *p = s->peers[number];
    struct pollfd *at = &s->fds[number];
    while (p->gone == 0 && p->sends.first != NULL) {
        request *r = p->sends.first;
        ssize_t sent = write_some(at->fd, r);
        if (sent < 0 && !would_block())
            break_off(s, number, errno);
        if (sent < 0)
            break;
        r->moved += (size_t)sent;
        if (r->moved == sizeof r->head + r->bytes)
            finish(s, pop(&p->sends), DONE);
    }
    if (p->gone == 0)
        at->events = (short)(POLLIN | (p->sends.first != NULL ? POLLOUT : 0));
}

/* ---- the calls */

/* Looks at all sockets; waits so long at most until there is something to see. */
static int look(sockets *s, int milliseconds) {
    s->round++;
    if (poll(s->fds, (nfds_t)s->nranks, milliseconds) <= 0)
        return 0;
    for (int number = 0; number < s->nranks; number++) {
        short seen = s->fds[number].fd < 0 ? 0 : s->fds[number].revents;
        if (seen & POLLNVAL)
            lose(s, number, EBADF);
        if (seen & POLLOUT)
            flush(s, number);
        if (seen & (POLLIN | POLLHUP | POLLERR))
            drink(s, number);
    }
    return 1;
}

static request *start(sockets *s, int number, int tag, void *data, size_t bytes) {
    request *r = take(s);
    if (r == NULL)
        (void)tw_transport_explain("no memory for more requests");
    else
        *r = (request){.peer = number,
                       .round = s->round,
                       .head = {bytes, (uint32_t)tag, MAGIC},
                       .data = data,
                       .bytes = bytes};
    return r;
}

static int sockets_send(void *context, int number, int tag, const void *data, size_t bytes,
                        void **handle) {
    sockets *s = context;
    peer *p = s->peers[number];
    if (p->gone != 0)
        return explain_loss(p->gone);
    request *r = start(s, number, tag, (void *)data, bytes);
    if (r == NULL)
        return TW_ERR_TRANSPORT;
    r->sending = 1;
    s->failed |= tag == TW__TAG_ROLL_CALL; /* whoever speaks there is in trouble */
    *handle = r;
    push(&p->sends, r);
    if (p->sends.first == r)
        flush(s, number);
    return TW_OK;
}

static int sockets_recv(void *context, int number, int tag, void *data, size_t capacity,
                        void **handle) {
    sockets *s = context;
    peer *p = s->peers[number];
    letter *l = p->letters[tag];
    if (l == NULL && p->gone != 0)
        return explain_loss(p->gone);
    request *r = start(s, number, tag, data, capacity);
    if (r == NULL)
        return TW_ERR_TRANSPORT;
    *handle = r;
    if (l == NULL) {
        push(&p->receives[tag], r);
    } else {
        p->letters[tag] = l->next;
        receive_letter(l, r);
    }
    return TW_OK;
}

static int explain_failure(const sockets *s, const request *r) {
    if (!r->sending && r->moved > r->bytes)
        return tw_transport_explain("the message of %zu bytes is longer than the %zu expected",
                                    r->moved, r->bytes);
    return explain_loss(s->peers[r->peer]->gone);
}

/* A request that is asked about again wants to know what has happened since. */
static int sockets_test(void *context, void *handle, size_t *bytes) {
    sockets *s = context;
    request *r = handle;
    if (r->outcome == UNDER_WAY && r->round == s->round)
        (void)look(s, 0);
    r->round = s->round;
    if (r->outcome == UNDER_WAY)
        return 0;
    s->quiet = 0;
    s->failed |= r->outcome == FAILED;
    *bytes = r->bytes;
    int result = r->outcome == DONE ? 1 : explain_failure(s, r);
    give_back(s, r);
    return result;
}

/* A message of which the peer has a part already must go on, and does so from a copy. */
static int send_on(request *r) {
    r->copy = malloc(r->bytes + 1); /* never NULL for nothing */
    if (r->copy == NULL)
        return 0;
    memcpy(r->copy, r->data, r->bytes);
    r->data = r->copy;
    return 1;
}

static void sockets_cancel(void *context, void *handle) {
    sockets *s = context;
    request *r = handle;
    peer *p = s->peers[r->peer];
    int tag = (int)r->head.tag;
    s->failed |= r->sending || tag == 0;
    if (r->outcome == UNDER_WAY && r->sending && r->moved > 0) {
        if (send_on(r))
            return;
        lose(s, r->peer, ENOMEM);
    }
    leave_queue(r->sending ? &p->sends : &p->receives[tag], r);
    if (p->to == r)
        p->to = NULL; /* the rest of the message is dropped */
    give_back(s, r);
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
        if (s->peers[number]->sends.first == NULL)
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

static void free_letters(letter *l) {
    while (l != NULL) {
        letter *next = l->next;
        free(l);
        l = next;
    }
}

static void free_peer(peer *p) {
    for (int tag = 0; tag < TAGS; tag++)
        free_letters(p->letters[tag]);
    free(p->letter);
    free(p);
}

static void free_context(sockets *s) {
    for (int number = 0; number < s->nranks && s->peers != NULL; number++)
        if (s->peers[number] != NULL)
            free_peer(s->peers[number]);
    while (s->blocks != NULL) {
        block *b = s->blocks;
        s->blocks = b->next;
        for (int i = 0; i < b->count; i++)
            free(b->requests[i].copy);
        free(b);
    }
    free(s->peers);
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
    s->peers[number] = calloc(1, sizeof *s->peers[number]);
    if (s->peers[number] == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof(peer));
    /* Short messages must not wait for more. Sockets other than TCP's do not, and refuse this. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    s->fds[number] = (struct pollfd){.fd = fd, .events = POLLIN};
    return TW_OK;
}

static int fill(sockets *s, const int *fds, int rank, int nranks) {
    s->fds = calloc((size_t)nranks, sizeof *s->fds);
    s->peers = calloc((size_t)nranks, sizeof(peer *));
    if (s->fds == NULL || s->peers == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", nranks);
    s->nranks = nranks;
    s->rank = rank;
    TW_TRY(add_block(s));
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
