/* stream.h - messages over one connected stream socket, as transport_sockets.c has one to each rank
 *
 *   send   -> queue -> socket                at once, as far as the socket takes it
 *   socket -> buffer -> receive, or letter   kept, where no receive waits for it yet
 *
 * A message is a head and its body; long bodies go past the buffer. Nothing here blocks. Requests come
 * from a store that all streams of a transport share: a step allocates nothing but room for messages
 * that come before they are expected. */
#ifndef TW_TRANSPORT_STREAM_H
#define TW_TRANSPORT_STREAM_H

#include "transport/transport.h"

#include <poll.h>

#define TW__CONNECTION_TAGS 4
#define TW__CONNECTION_BUFFER ((size_t)64 << 10)

typedef struct tw__head {
    uint64_t bytes;
    uint32_t tag, magic;
} tw__head;

typedef enum { TW__UNDER_WAY, TW__DONE, TW__FAILED } tw__outcome;

typedef struct tw__request {
    struct tw__request *next; /* in the queue it is in */
    struct tw__connection *stream;
    int sending;
    tw__outcome outcome;
    unsigned round; /* of the transport, in which it was last asked about */
    tw__head head;
    char *data;
    size_t bytes; /* to send; or received, and before that the room */
    size_t moved; /* of head and body, when sending; of a message that is too long, its bytes */
    char *copy;   /* of a cancelled one's data, which goes on without its owner; else NULL */
} tw__request;

/* Requests that are not in use, and the blocks in which all of them lie. */
typedef struct tw__store {
    tw__request *unused;
    struct tw__block *blocks;
} tw__store;

/* Errors: TW_ERR_MEMORY. */
int tw__store_add(tw__store *s, int count);
void tw__store_free(tw__store *s);
void tw__store_put(tw__store *s, tw__request *r);

typedef struct tw__queue {
    tw__request *first, *last;
} tw__queue;

typedef struct tw__connection {
    tw__store *store;
    struct pollfd
        *poll; /* what to look for; fd is -1 - fd once it is lost, and still to be closed */
    int gone;  /* errno of what went wrong, or -1: the other end was closed; else 0 */
    tw__queue sends, receives[TW__CONNECTION_TAGS];
    struct tw__early
        *early[TW__CONNECTION_TAGS]; /* came before they were expected, in their order */

    /* The message that is coming in: at most one of these has its body, none when it is dropped. */
    int inside; /* its head was read */
    tw__head head;
    size_t got; /* of the body */
    tw__request *to;
    struct tw__early *to_keep;

    size_t from, till; /* of the buffer: not yet used */
    char buffer[TW__CONNECTION_BUFFER];
} tw__connection;

/* NULL: no memory. */
tw__connection *tw__connection_create(tw__store *store, struct pollfd *poll);
void tw__connection_free(tw__connection *s);

/* A request from the store, of this tag. NULL: no memory for more of them. */
tw__request *tw__connection_request(tw__connection *s, int tag, void *data, size_t bytes);
/* Send, or receive: done when its outcome says so. */
void tw__connection_send(tw__connection *s, tw__request *r);
void tw__connection_receive(tw__connection *s, tw__request *r);
/* Whether there is something to receive at once, also from one that is gone. */
int tw__connection_has(const tw__connection *s, int tag);
/* Its data are not touched any more. */
void tw__connection_cancel(tw__connection *s, tw__request *r);

/* The socket can be written to, or read from. */
void tw__connection_flush(tw__connection *s);
void tw__connection_read(tw__connection *s);
/* Nothing comes from there any more, and nothing goes there. */
void tw__connection_lose(tw__connection *s, int why);

#endif
