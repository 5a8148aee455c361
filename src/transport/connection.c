/* connection.c - see connection.h */
#include "transport/connection.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define MAGIC 0x54574d31u /* of every header */
/* No message is longer: 2^31 entries, four times over. */
#define LONGEST (SIZE_MAX / 2 < (uint64_t)1 << 36 ? SIZE_MAX / 2 : (uint64_t)1 << 36)

/* Reads in one look at a socket: 1 MB of short messages. */
#define READS 16
/* Reads after a write has failed, for what the peer sent before it closed: more than sockets hold. */
#define LAST_READS 4096

/* A message that arrived before its receive was started. */
typedef struct tw__unexpected {
    struct tw__unexpected *next;
    size_t bytes;
    char body[];
} unexpected;

/* ---- requests and queues */

tw__request *tw__connection_request(tw__connection *c, int tag, void *data, size_t bytes) {
    tw__request *r = tw__slab_take(c->requests);
    assert(tag >= 0 && tag < TW__CONNECTION_TAGS);
    if (r != NULL)
        *r = (tw__request){
            .connection = c, .header = {bytes, (uint32_t)tag, MAGIC}, .data = data, .bytes = bytes};
    return r;
}

static void push(tw__queue *q, tw__request *r) {
    r->next = NULL;
    if (q->first == NULL)
        q->first = r;
    else
        q->last->next = r;
    q->last = r;
}

static tw__request *pop(tw__queue *q) {
    tw__request *r = q->first;
    assert(r != NULL && r->outcome == TW__UNDER_WAY);
    q->first = r->next;
    return r;
}

static void leave_queue(tw__queue *q, const tw__request *r) {
    tw__request *before = NULL;
    for (tw__request *at = q->first; at != NULL; before = at, at = at->next) {
        if (at != r)
            continue;
        *(before != NULL ? &before->next : &q->first) = at->next;
        if (q->last == at)
            q->last = before;
        return;
    }
}

/* A cancelled request has no owner that would give it back. */
static void finish(tw__connection *c, tw__request *r, tw__outcome outcome) {
    r->outcome = outcome;
    if (r->copy == NULL)
        return;
    free(r->copy);
    tw__slab_put(c->requests, r);
}

void tw__connection_lose(tw__connection *c, int why) {
    assert(why != 0);
    if (c->lost != 0)
        return;
    c->lost = why;
    c->poll->events = 0;
    c->poll->fd = -1 - c->poll->fd; /* poll ignores it; it is still to be closed */
    while (c->sends.first != NULL)
        finish(c, pop(&c->sends), TW__FAILED);
    for (int tag = 0; tag < TW__CONNECTION_TAGS; tag++)
        while (c->receives[tag].first != NULL)
            finish(c, pop(&c->receives[tag]), TW__FAILED);
    if (c->receive != NULL)
        finish(c, c->receive, TW__FAILED);
    c->receive = NULL;
}

static void set_events(const tw__connection *c) {
    if (c->lost == 0)
        c->poll->events = (short)((c->held ? 0 : POLLIN) | (c->sends.first != NULL ? POLLOUT : 0));
}

static int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* ---- reading */

/* If the message is too long, the receive fails and the body is dropped. */
static int fits(tw__request *r, size_t bytes) {
    if (bytes <= r->bytes)
        return 1;
    r->outcome = TW__FAILED;
    r->moved = bytes; /* for the error text */
    return 0;
}

static size_t size_of(size_t bytes) {
    return sizeof(unexpected) + bytes;
}

static void take_unexpected(tw__connection *c, unexpected *u, tw__request *r) {
    assert(c->unexpected_bytes >= size_of(u->bytes));
    c->unexpected_bytes -= size_of(u->bytes);
    if (fits(r, u->bytes)) {
        memcpy(r->data, u->body, u->bytes);
        r->bytes = u->bytes;
        r->outcome = TW__DONE;
    }
    free(u);
}

static void keep_unexpected(tw__connection *c, unexpected *u) {
    tw__unexpected_list *list = &c->unexpected[c->header.tag];
    *(list->first == NULL ? &list->first : &list->last->next) = u;
    list->last = u;
}

/* 0, or an errno. */
static int read_header(tw__connection *c) {
    memcpy(&c->header, c->buffer + c->begin, sizeof c->header);
    c->begin += sizeof c->header;
    return c->header.magic == MAGIC && c->header.tag < TW__CONNECTION_TAGS &&
                   c->header.bytes <= LONGEST
               ? 0
               : EPROTO;
}

/* The header was read: decide where the body goes. 0, or an errno. */
static int open_message(tw__connection *c) {
    tw__queue *waiting = &c->receives[c->header.tag];
    size_t size = size_of(c->header.bytes);
    assert(c->receive == NULL && c->keep == NULL);
    c->held = waiting->first == NULL && size > TW__CONNECTION_UNEXPECTED - c->unexpected_bytes;
    c->in_body = !c->held;
    c->got = 0;
    if (c->held)
        return 0;
    if (waiting->first != NULL) {
        tw__request *r = pop(waiting);
        c->receive = fits(r, c->header.bytes) ? r : NULL;
        return 0;
    }
    c->keep = malloc(size);
    if (c->keep == NULL)
        return ENOMEM;
    c->keep->next = NULL;
    c->keep->bytes = c->header.bytes;
    c->unexpected_bytes += size;
    return 0;
}

static void close_message(tw__connection *c) {
    tw__queue *waiting = &c->receives[c->header.tag];
    unexpected *u = c->keep;
    assert(c->in_body && c->got == c->header.bytes);
    c->in_body = 0;
    c->keep = NULL;
    if (c->receive != NULL) {
        c->receive->bytes = c->header.bytes;
        c->receive->outcome = TW__DONE;
    }
    c->receive = NULL;
    if (u != NULL && waiting->first != NULL) /* its receive was started meanwhile */
        take_unexpected(c, u, pop(waiting));
    else if (u != NULL)
        keep_unexpected(c, u);
}

static char *body_of(const tw__connection *c) {
    return c->receive != NULL ? c->receive->data : c->keep != NULL ? c->keep->body : NULL;
}

/* Uses the bytes in the buffer, up to a message that is held. 0, or an errno. */
static int parse(tw__connection *c) {
    for (;;) {
        assert(c->begin <= c->end && c->end <= TW__CONNECTION_BUFFER);
        size_t available = c->end - c->begin;
        if (!c->in_body) {
            if (!c->held && available < sizeof c->header)
                return 0;
            int error = c->held ? 0 : read_header(c);
            error = error != 0 ? error : open_message(c);
            if (error != 0 || c->held)
                return error;
            continue;
        }
        size_t rest = c->header.bytes - c->got, part = available < rest ? available : rest;
        if (body_of(c) != NULL && part > 0)
            memcpy(body_of(c) + c->got, c->buffer + c->begin, part);
        c->begin += part;
        c->got += part;
        if (c->got < c->header.bytes)
            return 0;
        close_message(c);
    }
}

/* One read: into the body if its rest is long, else into the buffer. */
static ssize_t read_some(tw__connection *c) {
    int fd = c->poll->fd;
    size_t rest = c->in_body ? c->header.bytes - c->got : 0;
    if (rest >= TW__CONNECTION_BUFFER && body_of(c) != NULL) {
        assert(c->begin == c->end); /* parse has used the buffer */
        ssize_t got = recv(fd, body_of(c) + c->got, rest, MSG_DONTWAIT);
        c->got += got > 0 ? (size_t)got : 0;
        return got;
    }
    memmove(c->buffer, c->buffer + c->begin, c->end - c->begin);
    c->end -= c->begin;
    c->begin = 0;
    ssize_t got = recv(fd, c->buffer + c->end, TW__CONNECTION_BUFFER - c->end, MSG_DONTWAIT);
    c->end += got > 0 ? (size_t)got : 0;
    return got;
}

static void use_buffer(tw__connection *c) {
    int error = parse(c);
    if (error != 0)
        tw__connection_lose(c, error);
}

static void read_up_to(tw__connection *c, int reads) {
    for (int i = 0; i < reads && c->lost == 0 && !c->held; i++) {
        ssize_t got = read_some(c);
        if (got < 0 && would_block())
            break;
        if (got > 0)
            use_buffer(c);
        else
            tw__connection_lose(c, got < 0 ? errno : -1);
    }
    set_events(c);
}

void tw__connection_read(tw__connection *c) {
    read_up_to(c, READS);
}

/* ---- writing */

static ssize_t write_some(int fd, tw__request *r) {
    size_t of_header = r->moved < sizeof r->header ? sizeof r->header - r->moved : 0;
    size_t done = r->moved + of_header - sizeof r->header; /* of the body */
    assert(done <= r->bytes);
    struct iovec parts[2] = {
        {(char *)&r->header + (sizeof r->header - of_header), of_header},
        {r->data + done, r->bytes - done},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void tw__connection_flush(tw__connection *c) {
    while (c->lost == 0 && c->sends.first != NULL) {
        tw__request *r = c->sends.first;
        ssize_t sent = write_some(c->poll->fd, r);
        if (sent < 0 && !would_block()) {
            int why = errno;
            read_up_to(c, LAST_READS);
            tw__connection_lose(c, why);
        }
        if (sent < 0)
            break;
        r->moved += (size_t)sent;
        if (r->moved == sizeof r->header + r->bytes)
            finish(c, pop(&c->sends), TW__DONE);
    }
    set_events(c);
}

void tw__connection_send(tw__connection *c, tw__request *r) {
    r->sending = 1;
    push(&c->sends, r);
    if (c->sends.first == r)
        tw__connection_flush(c);
}

/* ---- receive and cancel */

int tw__connection_has(const tw__connection *c, int tag) {
    return c->unexpected[tag].first != NULL;
}

void tw__connection_receive(tw__connection *c, tw__request *r) {
    tw__unexpected_list *list = &c->unexpected[r->header.tag];
    unexpected *first = list->first;
    if (first != NULL) {
        list->first = first->next;
        take_unexpected(c, first, r);
    } else {
        push(&c->receives[r->header.tag], r);
    }
    if (c->held && c->lost == 0) {
        use_buffer(c);
        set_events(c);
    }
}

/* If the peer has a part of a message, the rest must follow. It is sent from a copy. */
static int send_rest(tw__request *r) {
    r->copy = malloc(r->bytes + 1); /* not NULL for 0 bytes */
    if (r->copy == NULL)
        return 0;
    memcpy(r->copy, r->data, r->bytes);
    r->data = r->copy;
    return 1;
}

void tw__connection_cancel(tw__connection *c, tw__request *r) {
    assert(r->connection == c && r->copy == NULL);
    if (r->outcome == TW__UNDER_WAY && r->sending && r->moved > 0) {
        if (send_rest(r))
            return;
        tw__connection_lose(c, ENOMEM);
    }
    leave_queue(r->sending ? &c->sends : &c->receives[r->header.tag], r);
    if (c->receive == r)
        c->receive = NULL; /* the rest of the message is dropped */
    tw__slab_put(c->requests, r);
}

/* ---- create and free */

tw__connection *tw__connection_create(tw__slab *requests, struct pollfd *poll) {
    tw__connection *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->requests = requests;
        c->poll = poll;
    }
    return c;
}

void tw__connection_free(tw__connection *c) {
    if (c == NULL)
        return;
    for (tw__request *r = c->sends.first; r != NULL; r = r->next)
        free(r->copy);
    for (int tag = 0; tag < TW__CONNECTION_TAGS; tag++)
        for (unexpected *u = c->unexpected[tag].first, *next = NULL; u != NULL; u = next) {
            next = u->next;
            free(u);
        }
    free(c->keep);
    free(c);
}
