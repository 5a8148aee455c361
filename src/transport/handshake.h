/* handshake.h - the handshake of one connection between ranks that meet, and the loop over all of them
 *
 *   opener                                    acceptor
 *   hello: what for, rank, job, nonce   ->
 *                                       <-    challenge: nonce
 *   proof                               ->
 *                                       <-    reply: accepted or why not, proof
 *
 * A proof is an HMAC of both messages under the job's secret: it is never sent itself. The opener proves
 * first, so that strangers who connect get nothing that a guess of the secret could be compared with.
 * meeting.c uses this to bring ranks together, join.c to let others into a job that runs. */
#ifndef TW_TRANSPORT_HANDSHAKE_H
#define TW_TRANSPORT_HANDSHAKE_H

#include "base/clock.h"
#include "base/sha256.h"
#include "thinwire.h"
#include "transport/address.h"

#include <poll.h>

#define TW__MEET_PAUSE (TW__SECOND / 20) /* before an attempt is repeated */
#define TW__MEET_STRANGERS 64 /* handshakes beside those of ranks; the oldest gives way */
#define TW__MEET_ADDRESSES 8  /* of one name */
#define TW__MEET_BACKLOG 1024 /* strangers must not fill it while ranks come */

enum { TW__REGISTER = 1, TW__PAIR, TW__JOIN };

/* ---- what is sent; numbers in network order */

typedef struct tw__hello {
    uint32_t magic, version;
    uint32_t purpose, rank, nranks;
    uint32_t to;                  /* TW__PAIR: the rank that should answer */
    uint32_t port;                /* TW__REGISTER: where the rank listens */
    unsigned char id[TW__DIGEST]; /* of the job's name; TW__PAIR: of the meeting */
    unsigned char nonce[TW__DIGEST];
} tw__hello;

typedef struct tw__challenge {
    uint32_t magic, version;
    unsigned char nonce[TW__DIGEST];
} tw__challenge;

typedef struct tw__reply {
    uint32_t status;
    unsigned char proof[TW__DIGEST]; /* zeros unless the opener's proof was right */
} tw__reply;

/* Where a rank listens. family 0: on the host of the meeting point. */
typedef struct tw__listen_address {
    uint16_t family, port;
    unsigned char host[16];
} tw__listen_address;

/* ---- state */

typedef enum {
    TW__CONNECTING,      /* then sends hello */
    TW__WAITS_HELLO,     /* then sends challenge */
    TW__WAITS_CHALLENGE, /* then sends proof */
    TW__WAITS_PROOF,     /* then sends reply */
    TW__WAITS_REPLY,
    TW__WAITS_TABLE, /* this rank has registered */
    TW__REGISTERED,  /* the peer has registered here */
    TW__LEAVING,     /* closed once all is sent */
} tw__handshake_stage;

/* A connection until its handshake is over. */
typedef struct tw__handshake {
    int fd;
    tw__handshake_stage stage;
    int peer; /* TW__PAIR: the rank wanted, then its claim; TW__REGISTER: its claim */
    int64_t begun, deadline;
    tw__address to; /* where this rank has connected */
    tw__hello hello;
    tw__challenge challenge;
    unsigned char proof[TW__DIGEST];
    tw__reply reply;
    const unsigned char *out; /* still to be sent */
    size_t out_bytes;
    unsigned char *in; /* still to be read */
    size_t in_bytes;
} tw__handshake;

/* What the resolver said of an endpoint. It may block, so it is not asked often. */
typedef struct tw__resolved {
    tw__address at[TW__MEET_ADDRESSES];
    int count;
    int64_t until; /* then it is asked again */
} tw__resolved;

typedef struct tw__meeting {
    const tw_tcp_params *params;
    int rank, nranks;
    int64_t deadline;
    tw__endpoint *endpoints;
    tw__resolved *addresses; /* [nendpoints] */
    int nendpoints;
    unsigned char job[TW__DIGEST], id[TW__DIGEST];

    int service;     /* listens at an endpoint of `meet`; -1: this process cannot */
    int serving;     /* which endpoint that is; nendpoints: none */
    int listener;    /* for pairs, beside the way to the meeting point; -1: not yet */
    int port;        /* where pairs find this rank */
    int endpoint;    /* that is tried next, or where this rank is registered */
    int attempt;     /* of registering */
    int registering; /* a handshake is under way */
    int registered;  /* elsewhere */
    int known;       /* the table is */
    int running;     /* the job runs: this rank admits those that join it */
    int refused;     /* an error that trying again cannot mend */
    const char *why; /* the last attempt to register has failed */
    int64_t retry, accept_again;

    tw__address meeting_point; /* as this rank has reached it */
    tw__address *seen;         /* [nranks] of those that came here; family 0: none */
    unsigned char *table;      /* id, tw__listen_address[nranks]; or an invitation */
    size_t table_bytes;
    int64_t *pair_retry; /* [nranks] */
    int *sockets;        /* [nranks]; -1: not yet */

    tw__handshake **handshakes;
    int nhandshakes, capacity;
    struct pollfd *polls; /* [2 + capacity]: service, listener, handshakes */
} tw__meeting;

/* ---- handshake.c */

/* A connection that begins its handshake. NULL: there are too many, or no memory; fd is closed. */
tw__handshake *tw__handshake_add(tw__meeting *m, int fd, tw__handshake_stage stage, int peer);
/* Take it out. Closes its socket unless that has become one of the transport's. */
void tw__handshake_end(tw__meeting *m, int at);
void tw__handshake_send(tw__handshake *t, const void *data, size_t bytes);
/* Who has registered as this rank; NULL: nobody. */
tw__handshake *tw__handshake_registered(const tw__meeting *m, int rank);
/* Random bytes; without them m->refused is set. */
void tw__handshake_random(tw__meeting *m, unsigned char bytes[TW__DIGEST]);
/* Wait until a socket is ready; then serve all that are. */
void tw__handshakes_wait(tw__meeting *m, int milliseconds);
void tw__handshakes_serve(tw__meeting *m);

/* ---- meeting.c */

/* Errors: TW_ERR_PARAM; TW_ERR_MEMORY. */
int tw__meeting_init(tw__meeting *m, const tw_tcp_params *params, int *sockets);
void tw__meeting_close(tw__meeting *m, int status);
/* Listen on the first address that is this host's and free. */
void tw__meeting_serve(tw__meeting *m);
/* Find somebody who serves, and say what for: TW__REGISTER or TW__JOIN. */
void tw__meeting_register(tw__meeting *m, uint32_t purpose);

#endif
