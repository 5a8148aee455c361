/* connection.c - see connection.h */
#include "transport/connection.h"

#include "base/crc32c.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Reads in one look at a socket: 1 MB of short messages. */
#define READS 16
/* Reads after a write has failed, for what the peer sent before it closed: more than sockets hold. */
#define LAST_READS 4096

/* A message that arrived before its receive was started. */
typedef struct tw__unexpected {
    struct tw__unexpected *next;
    size_t bytes;
    uint16_t version;
    char body[];
} unexpected;

/* ---- requests and queues */

tw__request *tw__connection_request(tw__connection *c, int tag, void *data, size_t bytes) {
    tw__request *r = tw__slab_take(c->requests);
    assert(tag >= 0 && tag < TW__FRAME_TAGS);
    if (r != NULL)
        *r = (tw__request){
            .connection = c, .frame = {.tag = (uint8_t)tag}, .data = data, .bytes = bytes};
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

static void fail_receives(tw__connection *c) {
    for (int tag = 0; tag < TW__FRAME_TAGS; tag++)
        while (c->receives[tag].first != NULL)
            finish(c, pop(&c->receives[tag]), TW__FAILED);
    if (c->receive != NULL)
        finish(c, c->receive, TW__FAILED);
    c->receive = NULL;
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
    fail_receives(c);
}

static int is_damaged(const tw__connection *c) {
    return c->damage[0] != '\0';
}

static void set_events(const tw__connection *c) {
    int reading = !c->held && !is_damaged(c);
    if (c->lost == 0)
        c->poll->events = (short)((reading ? POLLIN : 0) | (c->sends.first != NULL ? POLLOUT : 0));
}

static int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static size_t size_of(size_t bytes) {
    return sizeof(unexpected) + bytes;
}

/* ---- versions of the membership */

/* Whether a message was sent before, in, or after this version. */
static int compare_version(const tw__connection *c, int tag, uint16_t version) {
    return tag == TW__TAG_MEMBERS ? 0 : (int16_t)(uint16_t)(version - c->version);
}

static void drop_older(tw__connection *c, int tag) {
    tw__unexpected_list *list = &c->unexpected[tag];
    while (list->first != NULL && compare_version(c, tag, list->first->version) < 0) {
        unexpected *u = list->first;
        list->first = u->next;
        c->unexpected_bytes -= size_of(u->bytes);
        free(u);
    }
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
    tw__unexpected_list *list = &c->unexpected[c->frame.tag];
    *(list->first == NULL ? &list->first : &list->last->next) = u;
    list->last = u;
}

/* Returns 0 if it is damaged. */
static int read_frame(tw__connection *c) {
    memcpy(&c->frame, c->buffer + c->begin, sizeof c->frame);
    c->begin += sizeof c->frame;
    return tw__frame_check(&c->frame, c->received++, c->damage);
}

/* What has arrived and was not used: no more than a socket holds. */
static size_t unread_bytes(const tw__connection *c) {
    int waiting = 0;
    (void)ioctl(c->poll->fd, FIONREAD, &waiting);
    return c->end - c->begin + (size_t)waiting;
}

/* The frame was read: decide where the body goes. 0, an errno, or -1 as in tw__connection.lost. */
static int open_message(tw__connection *c) {
    tw__queue *waiting = &c->receives[c->frame.tag];
    size_t size = size_of(c->frame.bytes);
    int age = compare_version(c, c->frame.tag, c->frame.version);
    int expected = age == 0 && waiting->first != NULL, dropped = age < 0;
    assert(c->receive == NULL && c->keep == NULL);
    int kept = !expected && !dropped;
    if (kept && c->hung && c->frame.bytes > unread_bytes(c))
        return -1; /* will never be complete */
    c->held = kept && !c->hung && size > TW__CONNECTION_UNEXPECTED - c->unexpected_bytes;
    c->in_body = !c->held;
    c->got = 0;
    c->crc = 0;
    if (c->held || dropped)
        return 0;
    if (expected) {
        tw__request *r = pop(waiting);
        c->receive = fits(r, c->frame.bytes) ? r : NULL;
        return 0;
    }
    c->keep = malloc(size);
    if (c->keep == NULL)
        return ENOMEM;
    c->keep->next = NULL;
    c->keep->bytes = c->frame.bytes;
    c->keep->version = c->frame.version;
    c->unexpected_bytes += size;
    return 0;
}

/* All of the body is there, and undamaged. */
static void close_message(tw__connection *c) {
    tw__queue *waiting = &c->receives[c->frame.tag];
    unexpected *u = c->keep;
    assert(c->in_body && c->got == c->frame.bytes);
    c->in_body = 0;
    c->keep = NULL;
    if (c->receive != NULL) {
        c->receive->bytes = c->frame.bytes;
        c->receive->outcome = TW__DONE;
    }
    c->receive = NULL;
    if (u == NULL)
        return;
    int age = compare_version(c, c->frame.tag, u->version);
    if (age < 0) { /* a version began meanwhile */
        c->unexpected_bytes -= size_of(u->bytes);
        free(u);
    } else if (waiting->first != NULL && age == 0) { /* its receive was started meanwhile */
        take_unexpected(c, u, pop(waiting));
    } else {
        keep_unexpected(c, u);
    }
}

static char *body_of(const tw__connection *c) {
    return c->receive != NULL ? c->receive->data : c->keep != NULL ? c->keep->body : NULL;
}

/* A part of the body is where it goes. A body that is dropped has no CRC. */
static void add_to_body(tw__connection *c, size_t part) {
    if (c->frame.checked && body_of(c) != NULL)
        c->crc = tw__crc32c(c->crc, body_of(c) + c->got, part);
    c->got += part;
}

static int body_is_whole(tw__connection *c) {
    return body_of(c) == NULL || tw__frame_check_body(&c->frame, c->crc, c->damage);
}

/* Begins the next message, if its frame is there. 0, or an errno. */
static int parse_frame(tw__connection *c) {
    if (!c->held && c->end - c->begin < sizeof c->frame)
        return 0;
    return c->held || read_frame(c) ? open_message(c) : 0;
}

/* Whether the body is complete. */
static int parse_body(tw__connection *c) {
    size_t available = c->end - c->begin, rest = c->frame.bytes - c->got;
    size_t part = available < rest ? available : rest;
    if (body_of(c) != NULL && part > 0)
        memcpy(body_of(c) + c->got, c->buffer + c->begin, part);
    c->begin += part;
    add_to_body(c, part);
    return c->got == c->frame.bytes;
}

/* Uses the bytes in the buffer, up to a message that is held or damaged. 0, or an errno. */
static int parse(tw__connection *c) {
    for (;;) {
        assert(c->begin <= c->end && c->end <= TW__CONNECTION_BUFFER);
        if (!c->in_body) {
            int error = parse_frame(c);
            if (error != 0 || !c->in_body)
                return error;
        }
        if (!parse_body(c) || !body_is_whole(c))
            return 0;
        close_message(c);
    }
}

/* One read: into the body if its rest is long, else into the buffer. */
static ssize_t read_some(tw__connection *c) {
    int fd = c->poll->fd;
    size_t rest = c->in_body ? c->frame.bytes - c->got : 0;
    if (rest >= TW__CONNECTION_BUFFER && body_of(c) != NULL) {
        assert(c->begin == c->end); /* parse has used the buffer */
        ssize_t got = recv(fd, body_of(c) + c->got, rest, MSG_DONTWAIT);
        add_to_body(c, got > 0 ? (size_t)got : 0);
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
    else if (is_damaged(c))
        fail_receives(c);
}

static void read_up_to(tw__connection *c, int reads) {
    if (is_damaged(c)) /* not polled for reading: the peer has hung up */
        tw__connection_lose(c, -1);
    if (c->held) { /* likewise; what it sent before is still there */
        c->hung = 1;
        reads = LAST_READS;
        use_buffer(c);
    }
    for (int i = 0; i < reads && c->lost == 0 && !c->held && !is_damaged(c); i++) {
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
    size_t of_frame = r->moved < sizeof r->frame ? sizeof r->frame - r->moved : 0;
    size_t done = r->moved + of_frame - sizeof r->frame; /* of the body */
    assert(done <= r->bytes);
    struct iovec parts[2] = {
        {(char *)&r->frame + (sizeof r->frame - of_frame), of_frame},
        {r->data + done, r->bytes - done},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Numbered when the first byte leaves: a request that is cancelled before leaves no gap. */
static void number_frame(const tw__connection *c, tw__frame *frame) {
    frame->number = c->sent;
    tw__frame_seal(frame);
}

void tw__connection_flush(tw__connection *c) {
    while (c->lost == 0 && c->sends.first != NULL) {
        tw__request *r = c->sends.first;
        if (r->moved == 0)
            number_frame(c, &r->frame);
        ssize_t sent = write_some(c->poll->fd, r);
        if (sent < 0 && !would_block()) {
            int why = errno;
            read_up_to(c, LAST_READS);
            tw__connection_lose(c, why);
        }
        if (sent < 0)
            break;
        c->sent += r->moved == 0;
        r->moved += (size_t)sent;
        if (r->moved == sizeof r->frame + r->bytes)
            finish(c, pop(&c->sends), TW__DONE);
    }
    set_events(c);
}

void tw__connection_send(tw__connection *c, tw__request *r) {
    r->sending = 1;
    r->frame = tw__frame_open(r->data, r->bytes, r->frame.tag, c->checked);
    r->frame.version = c->version;
    push(&c->sends, r);
    if (c->sends.first == r)
        tw__connection_flush(c);
}

/* ---- receive and cancel */

int tw__connection_has(const tw__connection *c, int tag) {
    const unexpected *first = c->unexpected[tag].first;
    return first != NULL && compare_version(c, tag, first->version) == 0;
}

void tw__connection_receive(tw__connection *c, tw__request *r) {
    tw__unexpected_list *list = &c->unexpected[r->frame.tag];
    unexpected *first = list->first;
    if (tw__connection_has(c, r->frame.tag)) {
        list->first = first->next;
        take_unexpected(c, first, r);
    } else {
        push(&c->receives[r->frame.tag], r);
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
    leave_queue(r->sending ? &c->sends : &c->receives[r->frame.tag], r);
    if (c->receive == r)
        c->receive = NULL; /* the rest of the message is dropped */
    tw__slab_put(c->requests, r);
}

/* A message that is being read into memory of its own is kept, and dropped when it is complete. */
void tw__connection_begin_version(tw__connection *c) {
    assert(c->receives[TW__TAG_DATA].first == NULL);
    c->version++;
    for (int tag = 0; tag < TW__FRAME_TAGS; tag++)
        drop_older(c, tag);
    if (c->held && c->lost == 0) {
        use_buffer(c);
        set_events(c);
    }
}

/* ---- create and free */

tw__connection *tw__connection_create(tw__slab *requests, struct pollfd *poll) {
    tw__connection *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->requests = requests;
        c->poll = poll;
        c->checked = 1;
    }
    return c;
}

void tw__connection_free(tw__connection *c) {
    if (c == NULL)
        return;
    while (c->sends.first != NULL)
        finish(c, pop(&c->sends), TW__FAILED);
    for (int tag = 0; tag < TW__FRAME_TAGS; tag++)
        for (unexpected *u = c->unexpected[tag].first, *next = NULL; u != NULL; u = next) {
            next = u->next;
            free(u);
        }
    free(c->keep);
    free(c);
}
