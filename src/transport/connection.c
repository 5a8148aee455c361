/* stream.c - see stream.h */
#include "transport/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define MAGIC 0x54574d31u /* of a head: what follows is ours */
/* No message is longer: all of 2^31 elements as entries, four times over. */
#define LONGEST (SIZE_MAX / 2 < (uint64_t)1 << 36 ? SIZE_MAX / 2 : (uint64_t)1 << 36)
/* Requests that are added when all are in use. */
#define MORE 64

/* A message that came before it was expected. */
typedef struct tw__early {
    struct tw__early *next;
    size_t bytes;
    char body[];
} early;

/* ---- requests and queues */

typedef struct tw__block {
    struct tw__block *next;
    int count;
    tw__request requests[];
} block;

int tw__store_add(tw__store *s, int count) {
    block *b = calloc(1, sizeof *b + (size_t)count * sizeof(tw__request));
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

void tw__store_free(tw__store *s) {
    while (s->blocks != NULL) {
        block *b = s->blocks;
        s->blocks = b->next;
        for (int i = 0; i < b->count; i++)
            free(b->requests[i].copy);
        free(b);
    }
}

void tw__store_put(tw__store *s, tw__request *r) {
    free(r->copy);
    r->copy = NULL;
    r->next = s->unused;
    s->unused = r;
}

tw__request *tw__connection_request(tw__connection *s, int tag, void *data, size_t bytes) {
    tw__store *store = s->store;
    if (store->unused == NULL)
        (void)tw__store_add(store, MORE);
    tw__request *r = store->unused;
    if (r == NULL)
        return NULL;
    store->unused = r->next;
    *r = (tw__request){
        .stream = s, .head = {bytes, (uint32_t)tag, MAGIC}, .data = data, .bytes = bytes};
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

static void finish(tw__connection *s, tw__request *r, tw__outcome how) {
    r->outcome = how;
    if (r->copy != NULL) /* nobody asks for it any more */
        tw__store_put(s->store, r);
}

void tw__connection_lose(tw__connection *s, int why) {
    if (s->gone != 0)
        return;
    s->gone = why;
    s->poll->events = 0;
    s->poll->fd = -1 - s->poll->fd; /* passed over by poll; still to be closed */
    while (s->sends.first != NULL)
        finish(s, pop(&s->sends), TW__FAILED);
    for (int tag = 0; tag < TW__CONNECTION_TAGS; tag++)
        while (s->receives[tag].first != NULL)
            finish(s, pop(&s->receives[tag]), TW__FAILED);
    if (s->to != NULL)
        finish(s, s->to, TW__FAILED);
    s->to = NULL;
}

static int would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* ---- in */

/* A longer message than there is room for: the receive fails, the rest of the message is dropped. */
static int fits(tw__request *r, size_t bytes) {
    if (bytes <= r->bytes)
        return 1;
    r->outcome = TW__FAILED;
    r->moved = bytes; /* for the error's text */
    return 0;
}

static void receive_early(early *l, tw__request *r) {
    if (fits(r, l->bytes)) {
        memcpy(r->data, l->body, l->bytes);
        r->bytes = l->bytes;
        r->outcome = TW__DONE;
    }
    free(l);
}

static void keep(tw__connection *s, early *l) {
    early **end = &s->early[s->head.tag];
    while (*end != NULL)
        end = &(*end)->next;
    *end = l;
}

/* The head was read: where does the body go? */
static int open_message(tw__connection *s) {
    if (s->head.magic != MAGIC || s->head.tag >= TW__CONNECTION_TAGS || s->head.bytes > LONGEST)
        return EPROTO;
    tw__queue *waiting = &s->receives[s->head.tag];
    s->inside = 1;
    s->got = 0;
    if (waiting->first != NULL) {
        tw__request *r = pop(waiting);
        s->to = fits(r, s->head.bytes) ? r : NULL;
        return 0;
    }
    s->to_keep = malloc(sizeof *s->to_keep + s->head.bytes);
    if (s->to_keep == NULL)
        return ENOMEM;
    s->to_keep->next = NULL;
    s->to_keep->bytes = s->head.bytes;
    return 0;
}

static void close_message(tw__connection *s) {
    tw__queue *waiting = &s->receives[s->head.tag];
    early *l = s->to_keep;
    s->inside = 0;
    s->to_keep = NULL;
    if (s->to != NULL) {
        s->to->bytes = s->head.bytes;
        s->to->outcome = TW__DONE;
    }
    s->to = NULL;
    if (l != NULL && waiting->first != NULL) /* it has come meanwhile */
        receive_early(l, pop(waiting));
    else if (l != NULL)
        keep(s, l);
}

static char *body_of(const tw__connection *s) {
    return s->to != NULL ? s->to->data : s->to_keep != NULL ? s->to_keep->body : NULL;
}

/* Uses what the buffer has. 0, or an errno. */
static int digest(tw__connection *s) {
    for (;;) {
        size_t there = s->till - s->from;
        if (!s->inside) {
            if (there < sizeof s->head)
                return 0;
            memcpy(&s->head, s->buffer + s->from, sizeof s->head);
            s->from += sizeof s->head;
            int error = open_message(s);
            if (error != 0)
                return error;
            continue;
        }
        size_t rest = s->head.bytes - s->got, part = there < rest ? there : rest;
        if (body_of(s) != NULL && part > 0)
            memcpy(body_of(s) + s->got, s->buffer + s->from, part);
        s->from += part;
        s->got += part;
        if (s->got < s->head.bytes)
            return 0;
        close_message(s);
    }
}

/* One read: straight into the body where that is long, else into the buffer. */
static ssize_t read_some(tw__connection *s) {
    int fd = s->poll->fd;
    size_t rest = s->inside ? s->head.bytes - s->got : 0;
    if (rest >= TW__CONNECTION_BUFFER && body_of(s) != NULL) { /* the buffer is empty then */
        ssize_t got = recv(fd, body_of(s) + s->got, rest, MSG_DONTWAIT);
        s->got += got > 0 ? (size_t)got : 0;
        return got;
    }
    memmove(s->buffer, s->buffer + s->from, s->till - s->from);
    s->till -= s->from;
    s->from = 0;
    ssize_t got = recv(fd, s->buffer + s->till, TW__CONNECTION_BUFFER - s->till, MSG_DONTWAIT);
    s->till += got > 0 ? (size_t)got : 0;
    return got;
}

void tw__connection_read(tw__connection *s) {
    while (s->gone == 0) {
        ssize_t got = read_some(s);
        if (got < 0 && would_block())
            return;
        int error = got < 0 ? errno : got == 0 ? -1 : digest(s);
        if (error != 0)
            tw__connection_lose(s, error);
    }
}

/* ---- out */

static ssize_t write_some(int fd, tw__request *r) {
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
static void break_off(tw__connection *s, int why) {
    tw__connection_read(s);
    tw__connection_lose(s, why);
}

void tw__connection_flush(tw__connection *s) {
    struct pollfd *at = s->poll;
    while (s->gone == 0 && s->sends.first != NULL) {
        tw__request *r = s->sends.first;
        ssize_t sent = write_some(at->fd, r);
        if (sent < 0 && !would_block())
            break_off(s, errno);
        if (sent < 0)
            break;
        r->moved += (size_t)sent;
        if (r->moved == sizeof r->head + r->bytes)
            finish(s, pop(&s->sends), TW__DONE);
    }
    if (s->gone == 0)
        at->events = (short)(POLLIN | (s->sends.first != NULL ? POLLOUT : 0));
}

void tw__connection_send(tw__connection *s, tw__request *r) {
    r->sending = 1;
    push(&s->sends, r);
    if (s->sends.first == r)
        tw__connection_flush(s);
}

/* ---- from outside */

int tw__connection_has(const tw__connection *s, int tag) {
    return s->early[tag] != NULL;
}

void tw__connection_receive(tw__connection *s, tw__request *r) {
    early *first = s->early[r->head.tag];
    if (first == NULL) {
        push(&s->receives[r->head.tag], r);
        return;
    }
    s->early[r->head.tag] = first->next;
    receive_early(first, r);
}

/* A message of which the peer has a part already must go on, and does so from a copy. */
static int send_on(tw__request *r) {
    r->copy = malloc(r->bytes + 1); /* never NULL for nothing */
    if (r->copy == NULL)
        return 0;
    memcpy(r->copy, r->data, r->bytes);
    r->data = r->copy;
    return 1;
}

void tw__connection_cancel(tw__connection *s, tw__request *r) {
    if (r->outcome == TW__UNDER_WAY && r->sending && r->moved > 0) {
        if (send_on(r))
            return;
        tw__connection_lose(s, ENOMEM);
    }
    leave_queue(r->sending ? &s->sends : &s->receives[r->head.tag], r);
    if (s->to == r)
        s->to = NULL; /* the rest of the message is dropped */
    tw__store_put(s->store, r);
}

/* ---- create and free */

tw__connection *tw__connection_create(tw__store *store, struct pollfd *poll) {
    tw__connection *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->store = store;
        s->poll = poll;
    }
    return s;
}

static void free_early(early *l) {
    while (l != NULL) {
        early *next = l->next;
        free(l);
        l = next;
    }
}

void tw__connection_free(tw__connection *s) {
    if (s == NULL)
        return;
    for (int tag = 0; tag < TW__CONNECTION_TAGS; tag++)
        free_early(s->early[tag]);
    free(s->to_keep);
    free(s);
}
