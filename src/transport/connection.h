/* connection.h - messages over one connected stream socket; transport_sockets.c has one to each rank
 *
 *   send   -> queue -> socket                        as far as the socket accepts
 *   socket -> buffer -> receive, or unexpected list  if no receive has been started for it
 *
 * A message is a frame (frame.h) and a body; long bodies bypass the buffer. Nothing here blocks.
 * Requests come from a slab that all connections of a transport share. A step allocates nothing but
 * memory for unexpected messages.
 *
 * After a message that is damaged nothing more is read: all receives fail with its description. But
 * this rank can still send, so that the others learn what has happened.
 *
 * A peer that keeps sending must not hold up this rank nor fill its memory. So a look at the socket
 * reads a limited number of times, and unexpected messages take TW__CONNECTION_UNEXPECTED bytes at
 * most: one that has no room is held. Its frame was read, and the connection reads no further until
 * a receive for it is started or room is made. A held message also holds up replies to queries that
 * come after it. */
#ifndef TW_TRANSPORT_CONNECTION_H
#define TW_TRANSPORT_CONNECTION_H

#include "base/memory.h"
#include "transport/frame.h"
#include "transport/transport_internal.h"

#include <poll.h>

#define TW__CONNECTION_BUFFER ((size_t)64 << 10)
#define TW__CONNECTION_UNEXPECTED ((size_t)64 << 20)

typedef enum { TW__UNDER_WAY, TW__DONE, TW__FAILED } tw__outcome;

typedef struct tw__request {
    struct tw__request *next; /* in its queue */
    struct tw__connection *connection;
    int sending;
    tw__outcome outcome;
    unsigned round;  /* of polling, when it was last tested */
    tw__frame frame; /* when receiving: the tag alone */
    char *data;
    size_t bytes; /* to send; or capacity, then received */
    size_t moved; /* of frame and body, when sending; of a message that is too long, its length */
    char *copy;   /* of the data, if it was cancelled while it was sent; else NULL */
} tw__request;

typedef struct tw__queue {
    tw__request *first, *last;
} tw__queue;

/* Messages in the order of arrival. */
typedef struct tw__unexpected_list {
    struct tw__unexpected *first, *last;
} tw__unexpected_list;

typedef struct tw__connection {
    tw__slab *requests;
    struct pollfd *poll; /* events to poll for; fd is -1 - fd once lost, and still to be closed */
    int lost;            /* 0; or an errno, or -1: the peer has closed the connection */
    int checked;         /* bodies are sent with their CRC */
    uint16_t version;    /* of the membership: messages of older ones are dropped, those of newer
                            ones wait. Messages about the membership have none */
    uint32_t sent, received;     /* messages: the number of the next one */
    char damage[TW__FRAME_TEXT]; /* of a message from the peer; "": none */
    tw__queue sends, receives[TW__FRAME_TAGS];
    tw__unexpected_list unexpected[TW__FRAME_TAGS];
    size_t unexpected_bytes; /* of all of them, and of `keep` */

    /* The message that is being read. Its body goes to `receive` or to `keep`; if both are NULL it
     * is dropped. */
    int in_body; /* the frame was read, and it is known where the body goes */
    int held;    /* the frame was read, and there is no room for the body */
    int hung;    /* the peer has hung up while a message was held: the rest is read all the same */
    tw__frame frame;
    size_t got;   /* bytes of the body */
    uint32_t crc; /* of these */
    tw__request *receive;
    struct tw__unexpected *keep;

    size_t begin, end; /* of the buffer: read but not used */
    char buffer[TW__CONNECTION_BUFFER];
} tw__connection;

/* NULL: no memory. */
tw__connection *tw__connection_create(tw__slab *requests, struct pollfd *poll);
void tw__connection_free(tw__connection *c);

/* A new request. NULL: no memory. */
tw__request *tw__connection_request(tw__connection *c, int tag, void *data, size_t bytes);
/* Start it. It ends when its outcome changes. A send computes the CRC of its data at once. */
void tw__connection_send(tw__connection *c, tw__request *r);
void tw__connection_receive(tw__connection *c, tw__request *r);
/* Whether a receive would be done at once, also after the connection is lost. */
int tw__connection_has(const tw__connection *c, int tag);
/* Its data are not touched any more. */
void tw__connection_cancel(tw__connection *c, tw__request *r);

/* The ranks change: messages that were sent before count no more. Receives of them must have been
 * cancelled. */
void tw__connection_begin_version(tw__connection *c);

/* The socket is ready for writing, or for reading. */
void tw__connection_flush(tw__connection *c);
void tw__connection_read(tw__connection *c);
/* All requests fail. */
void tw__connection_lose(tw__connection *c, int why);

#endif
