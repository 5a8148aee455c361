/* meeting.c - see meeting.h */
#include "transport/meeting.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "transport/address.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAGIC 0x54574d54 /* "TWMT" */
#define VERSION 1
#define HANDSHAKE (5 * TW__SECOND) /* that one handshake may take */
#define PAUSE (TW__SECOND / 20) /* before an attempt is repeated, or after a lack of descriptors */
#define STRANGERS 64            /* handshakes beside those of ranks; the oldest gives way */
#define ADDRESSES 8             /* of one name */
#define BACKLOG 1024            /* strangers must not fill it while ranks come */
#define RESOLVE_AGAIN (5 * TW__SECOND)

enum { REGISTER = 1, PAIR };
enum { ACCEPTED, OTHER_RANKS, NO_SUCH_RANK, TAKEN, OTHER_JOB, MOVED };

/* ---- what is sent; numbers in network order */

typedef struct hello {
    uint32_t magic, version;
    uint32_t purpose, rank, nranks;
    uint32_t to;                  /* PAIR: the rank that should answer */
    uint32_t port;                /* REGISTER: where the rank listens */
    unsigned char id[TW__DIGEST]; /* of the job's name; PAIR: of the meeting */
    unsigned char nonce[TW__DIGEST];
} hello;

typedef struct challenge {
    uint32_t magic, version;
    unsigned char nonce[TW__DIGEST];
    unsigned char proof[TW__DIGEST];
} challenge;

/* Where a rank listens. family 0: on the host of the meeting point. */
typedef struct place {
    uint16_t family, port;
    unsigned char host[16];
} place;

/* ---- state */

typedef enum {
    CONNECTING,   /* then sends hello */
    WAITS_HELLO,  /* then sends challenge */
    WAITS_ANSWER, /* challenge; then sends proof */
    WAITS_PROOF,  /* then sends verdict */
    WAITS_VERDICT,
    WAITS_TABLE, /* this rank has registered */
    REGISTERED,  /* the peer has registered here */
    LEAVING,     /* closed once all is sent */
} talk_stage;

/* A connection until its handshake is over. */
typedef struct talk {
    int fd;
    talk_stage stage;
    int peer; /* PAIR: the rank wanted, then its claim; REGISTER: its claim */
    int64_t begun, deadline;
    tw__address to; /* where this rank has connected */
    hello hello;
    challenge challenge;
    unsigned char proof[TW__DIGEST];
    uint32_t verdict;
    const unsigned char *out; /* still to be sent */
    size_t out_bytes;
    unsigned char *in; /* still to be read */
    size_t in_bytes;
} talk;

/* What the resolver said of an endpoint. It may block, so it is not asked often. */
typedef struct resolved {
    tw__address at[ADDRESSES];
    int count;
    int64_t until; /* then it is asked again */
} resolved;

typedef struct meeting {
    const tw_tcp_params *params;
    int rank, nranks;
    int64_t deadline;
    tw__endpoint *endpoints;
    resolved *addresses; /* [nendpoints] */
    int nendpoints;
    unsigned char job[TW__DIGEST], id[TW__DIGEST];

    int service;     /* listens at an endpoint of `meet`; -1: this process cannot */
    int serving;     /* which endpoint that is; nendpoints: none */
    int listener;    /* for pairs, beside the way to the meeting point; -1: not yet */
    int port;        /* where pairs find this rank */
    int endpoint;    /* that is tried next, or where this rank is registered */
    int attempt;     /* of registering */
    int registering; /* a talk is under way */
    int registered;  /* elsewhere */
    int known;       /* the table is */
    int refused;     /* an error that trying again cannot mend */
    const char *why; /* the last attempt to register has failed */
    int64_t retry, accept_again;

    tw__address meeting_point; /* as this rank has reached it */
    tw__address *seen;         /* [nranks] of those that came here; family 0: none */
    unsigned char *table;      /* id, place[nranks] */
    size_t table_bytes;
    int64_t *pair_retry; /* [nranks] */
    int *sockets;        /* [nranks]; -1: not yet */

    talk **talks;
    int ntalks, capacity;
    struct pollfd *polls; /* [2 + capacity]: service, listener, talks */
} meeting;

static int fail_memory(void) {
    return tw__fail(TW_ERR_MEMORY, "no memory to connect the ranks");
}

/* ---- proofs */

/* Without random numbers a recorded handshake could be repeated. */
static void fill_random(meeting *m, unsigned char bytes[TW__DIGEST]) {
    if (getrandom(bytes, TW__DIGEST, 0) != TW__DIGEST)
        m->refused = tw__fail(TW_ERR_TRANSPORT, "meet: the system gives no random numbers: %s",
                              strerror(errno));
}

static void prove(const meeting *m, const talk *t, const char *who,
                  unsigned char proof[TW__DIGEST]) {
    tw__hmac mac;
    tw__hmac_begin(&mac, m->params->secret, m->params->secret_bytes);
    tw__hmac_add(&mac, who, strlen(who));
    tw__hmac_add(&mac, &t->hello, sizeof t->hello);
    tw__hmac_add(&mac, t->challenge.nonce, sizeof t->challenge.nonce);
    tw__hmac_end(&mac, proof);
}

static int is_proved(const meeting *m, const talk *t, const char *who,
                     const unsigned char proof[TW__DIGEST]) {
    unsigned char expected[TW__DIGEST];
    prove(m, t, who, expected);
    return tw__digest_equal(expected, proof);
}

/* ---- talks */

static talk *add_talk(meeting *m, int fd, talk_stage stage, int peer) {
    talk *t = calloc(1, sizeof *t);
    if (t == NULL || m->ntalks == m->capacity) {
        free(t);
        (void)close(fd);
        return NULL;
    }
    t->fd = fd;
    t->stage = stage;
    t->peer = peer;
    t->begun = tw__clock();
    t->deadline = t->begun + HANDSHAKE;
    m->talks[m->ntalks++] = t;
    return t;
}

/* Talks of this rank's own, which it repeats when they fail. */
static int is_own(const talk *t) {
    return t->stage == CONNECTING || t->stage == WAITS_ANSWER || t->stage == WAITS_VERDICT ||
           t->stage == WAITS_TABLE;
}

/* Takes it out. Closes its socket unless that has become one of the transport's. */
static void end_talk(meeting *m, int at) {
    talk *t = m->talks[at];
    if (is_own(t) && ntohl(t->hello.purpose) == REGISTER) {
        m->registering = m->registered = 0;
        m->retry = tw__clock() + PAUSE;
    }
    if (is_own(t) && ntohl(t->hello.purpose) == PAIR)
        m->pair_retry[t->peer] = tw__clock() + PAUSE;
    if (t->fd >= 0)
        (void)close(t->fd);
    free(t);
    m->talks[at] = m->talks[--m->ntalks];
}

static void send_next(talk *t, const void *data, size_t bytes) {
    assert(t->out_bytes == 0);
    t->out = data;
    t->out_bytes = bytes;
}

static void read_next(talk *t, talk_stage stage, void *data, size_t bytes) {
    t->stage = stage;
    t->in = data;
    t->in_bytes = bytes;
}

/* ---- this rank connects */

static void say_hello(meeting *m, talk *t, uint32_t purpose) {
    t->hello = (hello){.magic = htonl(MAGIC),
                       .version = htonl(VERSION),
                       .purpose = htonl(purpose),
                       .rank = htonl((uint32_t)m->rank),
                       .nranks = htonl((uint32_t)m->nranks),
                       .to = htonl((uint32_t)t->peer),
                       .port = htonl((uint32_t)m->port)};
    memcpy(t->hello.id, purpose == PAIR ? m->id : m->job, TW__DIGEST);
    fill_random(m, t->hello.nonce);
}

/* Listens on the interface that leads to the meeting point. If that is on this host, the others find
 * this rank by the address of the meeting point; on a host whose own name is a loopback address they
 * come from anywhere. */
static int listen_beside(meeting *m, const talk *t) {
    tw__address own;
    socklen_t size = sizeof own;
    if (getsockname(t->fd, &own.any, &size) != 0)
        return 0;
    if (tw__address_is_loopback(&own)) {
        own = t->to;
        if (!tw__endpoint_is_local(&m->endpoints[m->endpoint]))
            tw__address_set_wildcard(&own);
    }
    tw__address_set_port(&own, 0);
    if (m->listener >= 0)
        (void)close(m->listener);
    m->listener = tw__listen(&own, BACKLOG);
    size = sizeof own;
    if (m->listener < 0 || getsockname(m->listener, &own.any, &size) != 0)
        return 0;
    m->port = tw__address_port(&own);
    return 1;
}

/* The socket is connected, or has failed. Returns 0 if it has. */
static int on_connected(meeting *m, talk *t) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        m->why = strerror(error);
        return 0;
    }
    uint32_t purpose = ntohl(t->hello.purpose);
    if (purpose == REGISTER && !listen_beside(m, t))
        return 0;
    say_hello(m, t, purpose);
    send_next(t, &t->hello, sizeof t->hello);
    read_next(t, WAITS_ANSWER, &t->challenge, sizeof t->challenge);
    return 1;
}

static int refuse_for_good(meeting *m, const talk *t, int error, const char *why) {
    char at[TW__ADDRESS_TEXT];
    tw__address_text(&t->to, at, sizeof at);
    m->refused = tw__fail(error, "meet: %s: %s", at, why);
    return 0;
}

static int on_answer(meeting *m, talk *t) {
    if (ntohl(t->challenge.magic) != MAGIC)
        return refuse_for_good(m, t, TW_ERR_TRANSPORT, "another program listens there");
    if (ntohl(t->challenge.version) != VERSION)
        return refuse_for_good(
            m, t, TW_ERR_MISMATCH,
            "another version of thinwire listens there; use the same on all ranks");
    if (!is_proved(m, t, "acceptor", t->challenge.proof))
        return refuse_for_good(m, t, TW_ERR_MISMATCH,
                               "has another secret; give the same to all ranks");
    prove(m, t, "opener", t->proof);
    send_next(t, t->proof, sizeof t->proof);
    t->deadline = INT64_MAX; /* once it is accepted the peer does not accept it again */
    read_next(t, WAITS_VERDICT, &t->verdict, sizeof t->verdict);
    return 1;
}

static int on_verdict(meeting *m, talk *t) {
    switch (ntohl(t->verdict)) {
    case ACCEPTED:
        break;
    case OTHER_RANKS:
        return refuse_for_good(m, t, TW_ERR_MISMATCH,
                               "nranks: has another number; give the same to all ranks");
    case NO_SUCH_RANK:
        return refuse_for_good(m, t, TW_ERR_MISMATCH, "rank: is not one of the job's");
    case TAKEN:
        return refuse_for_good(m, t, TW_ERR_MISMATCH,
                               "rank: another process has this one; give each a rank of its own");
    default: /* the meeting point has moved; or serves a job that may be over soon */
        m->why = "it serves another job";
        return 0;
    }
    if (ntohl(t->hello.purpose) == REGISTER) {
        m->registered = 1;
        m->meeting_point = t->to;
        read_next(t, WAITS_TABLE, m->table, m->table_bytes);
        return 1;
    }
    m->sockets[t->peer] = t->fd;
    t->fd = -1;
    return 0;
}

static int on_table(meeting *m) {
    memset(m->seen, 0, (size_t)m->nranks * sizeof *m->seen); /* of a time when this rank served */
    memcpy(m->id, m->table, TW__DIGEST);
    m->known = 1;
    return 0;
}

static void begin_talk(meeting *m, const tw__address *to, uint32_t purpose, int peer) {
    int fd = tw__connect(to);
    talk *t = fd >= 0 ? add_talk(m, fd, CONNECTING, peer) : NULL;
    if (fd < 0)
        m->why = strerror(errno);
    if (t != NULL) {
        t->to = *to;
        t->hello.purpose = htonl(purpose);
    }
    if (purpose == REGISTER) {
        m->registering = t != NULL;
        m->retry = tw__clock() + PAUSE;
    } else {
        m->pair_retry[peer] = t != NULL ? INT64_MAX : tw__clock() + PAUSE;
    }
}

static const resolved *resolve(meeting *m, int endpoint) {
    resolved *r = &m->addresses[endpoint];
    if (tw__clock() >= r->until) {
        r->count = tw__endpoint_resolve(&m->endpoints[endpoint], r->at, ADDRESSES);
        r->until = tw__clock() + RESOLVE_AGAIN;
    }
    return r;
}

/* Listens on the first address that is this host's and free. */
static void try_to_serve(meeting *m) {
    for (m->serving = 0; m->serving < m->nendpoints; m->serving++) {
        const tw__endpoint *endpoint = &m->endpoints[m->serving];
        const resolved *found = resolve(m, m->serving);
        for (int i = 0; i < found->count; i++) {
            tw__address at = found->at[i];
            if (tw__address_is_loopback(&at) && !tw__endpoint_is_local(endpoint))
                tw__address_set_wildcard(&at);
            m->service = tw__listen(&at, BACKLOG);
            if (m->service >= 0)
                return;
            if (errno == EADDRINUSE) /* somebody serves there; its other addresses stay free */
                break;
        }
    }
}

/* Tries one address of the next endpoint: each name in turn, and all that a name stands for. */
static void register_somewhere(meeting *m) {
    if (m->serving == m->nendpoints && !m->registering && !m->known && tw__clock() >= m->retry)
        try_to_serve(m); /* once more: another job may have gone */
    int candidates = m->serving < m->nendpoints ? m->serving : m->nendpoints;
    if (m->known || m->registering || candidates == 0 || tw__clock() < m->retry)
        return;
    m->endpoint = m->attempt % candidates;
    const resolved *found = resolve(m, m->endpoint);
    if (found->count > 0)
        begin_talk(m, &found->at[m->attempt / candidates % found->count], REGISTER, -1);
    else
        m->why = "the host is not known", m->retry = tw__clock() + PAUSE;
    m->attempt++;
}

static tw__address address_of(const meeting *m, int peer) {
    place where;
    tw__address address = m->meeting_point;
    memcpy(&where, m->table + TW__DIGEST + (size_t)peer * sizeof where, sizeof where);
    if (m->seen[peer].any.sa_family != 0) /* registered here */
        address = m->seen[peer];
    else if (ntohs(where.family) == 4)
        memcpy(&address.v4.sin_addr, where.host, sizeof address.v4.sin_addr);
    else if (ntohs(where.family) == 6)
        memcpy(&address.v6.sin6_addr, where.host, sizeof address.v6.sin6_addr);
    if (m->seen[peer].any.sa_family == 0 && where.family != 0)
        address.any.sa_family = ntohs(where.family) == 4 ? AF_INET : AF_INET6;
    tw__address_set_port(&address, ntohs(where.port));
    return address;
}

static void connect_pairs(meeting *m) {
    for (int peer = 0; m->known && peer < m->rank; peer++) {
        if (m->sockets[peer] < 0 && tw__clock() >= m->pair_retry[peer]) {
            tw__address to = address_of(m, peer);
            begin_talk(m, &to, PAIR, peer);
        }
    }
}

/* ---- others connect to this rank */

static int on_hello(meeting *m, talk *t) {
    if (ntohl(t->hello.magic) != MAGIC)
        return 0;
    t->challenge = (challenge){.magic = htonl(MAGIC), .version = htonl(VERSION)};
    fill_random(m, t->challenge.nonce);
    prove(m, t, "acceptor", t->challenge.proof);
    send_next(t, &t->challenge, sizeof t->challenge);
    read_next(t, WAITS_PROOF, t->proof, sizeof t->proof);
    return 1;
}

static talk *registered_as(const meeting *m, int rank) {
    for (int i = 0; i < m->ntalks; i++)
        if (m->talks[i]->stage == REGISTERED && m->talks[i]->peer == rank)
            return m->talks[i];
    return NULL;
}

static uint32_t judge(const meeting *m, const talk *t) {
    uint32_t rank = ntohl(t->hello.rank), purpose = ntohl(t->hello.purpose);
    if (memcmp(t->hello.id, purpose == PAIR ? m->id : m->job, TW__DIGEST) != 0)
        return OTHER_JOB;
    if (ntohl(t->hello.nranks) != (uint32_t)m->nranks)
        return OTHER_RANKS;
    if (rank >= (uint32_t)m->nranks)
        return NO_SUCH_RANK;
    if ((int)rank == m->rank)
        return TAKEN;
    if (purpose == PAIR && ntohl(t->hello.to) != (uint32_t)m->rank)
        return OTHER_JOB; /* the address is not that rank's any more */
    if (purpose == PAIR)
        return m->sockets[rank] >= 0 ? TAKEN : (int)rank > m->rank ? ACCEPTED : NO_SUCH_RANK;
    if (m->serving == m->nendpoints || m->registered || m->known)
        return MOVED;
    return registered_as(m, (int)rank) != NULL ? TAKEN : ACCEPTED;
}

/* Where a rank that has registered listens: see listen_beside. */
static int look_at_peer(const talk *t, tw__address *peer) {
    socklen_t size = sizeof *peer, own_size = sizeof *peer;
    if (getpeername(t->fd, &peer->any, &size) != 0 ||
        (tw__address_is_loopback(peer) && getsockname(t->fd, &peer->any, &own_size) != 0))
        return 0;
    tw__address_set_port(peer, (int)(ntohl(t->hello.port) & 0xffff));
    return 1;
}

static int on_proof(meeting *m, talk *t) {
    if (!is_proved(m, t, "opener", t->proof))
        return 0;
    uint32_t verdict = judge(m, t), purpose = ntohl(t->hello.purpose);
    t->verdict = htonl(verdict);
    t->peer = (int)ntohl(t->hello.rank);
    t->stage = LEAVING;
    send_next(t, &t->verdict, sizeof t->verdict);
    if (verdict == ACCEPTED && purpose == REGISTER) {
        if (!look_at_peer(t, &m->seen[t->peer]))
            return 0;
        t->deadline = INT64_MAX;
        read_next(t, REGISTERED, t->proof, 1); /* nothing comes, but the end if the rank ends */
    }
    return 1;
}

/* The verdict is sent: the socket now belongs to the pair. */
static int on_sent(meeting *m, talk *t) {
    if (t->stage != LEAVING)
        return 1;
    if (ntohl(t->verdict) == ACCEPTED && ntohl(t->hello.purpose) == PAIR) {
        if (m->sockets[t->peer] >= 0) /* two talks were accepted before either ended */
            return 0;
        m->sockets[t->peer] = t->fd;
        t->fd = -1;
    }
    return 0;
}

static place place_of(const tw__address *address) {
    place where = {.port = htons((uint16_t)tw__address_port(address))};
    if (tw__address_is_loopback(address))
        return where; /* family 0 */
    int v4 = address->any.sa_family == AF_INET;
    where.family = htons(v4 ? 4 : 6);
    memcpy(where.host, v4 ? (const void *)&address->v4.sin_addr : &address->v6.sin6_addr,
           v4 ? sizeof address->v4.sin_addr : sizeof address->v6.sin6_addr);
    return where;
}

/* The meeting point, once all have registered: everybody gets the table. */
static void serve_table(meeting *m) {
    int present = 1;
    for (int i = 0; i < m->ntalks; i++)
        present += m->talks[i]->stage == REGISTERED && m->talks[i]->out_bytes == 0;
    if (m->serving == m->nendpoints || m->known || m->registered || present < m->nranks)
        return;
    fill_random(m, m->id);
    memcpy(m->table, m->id, sizeof m->id);
    for (int r = 0; r < m->nranks; r++) {
        place where = {.port =
                           htons((uint16_t)atoi(m->endpoints[m->serving].port))}; /* this rank */
        if (r != m->rank)
            where = place_of(&m->seen[r]);
        memcpy(m->table + TW__DIGEST + (size_t)r * sizeof where, &where, sizeof where);
    }
    m->known = 1;
    for (int i = 0; i < m->ntalks; i++) {
        if (m->talks[i]->stage == REGISTERED) {
            send_next(m->talks[i], m->table, m->table_bytes);
            m->talks[i]->stage = LEAVING;
        }
    }
}

/* Whoever registered here must go where this rank has gone. */
static void send_away(meeting *m) {
    for (int i = m->ntalks - 1; i >= 0 && m->registered; i--)
        if (m->talks[i]->stage == REGISTERED)
            end_talk(m, i);
}

static void accept_talks(meeting *m, int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                m->accept_again = tw__clock() + PAUSE;
            return;
        }
        int strangers = 0, oldest = -1;
        for (int i = 0; i < m->ntalks; i++) {
            if (m->talks[i]->stage != WAITS_HELLO && m->talks[i]->stage != WAITS_PROOF)
                continue;
            strangers++;
            if (oldest < 0 || m->talks[i]->begun < m->talks[oldest]->begun)
                oldest = i;
        }
        if (strangers >= STRANGERS + m->nranks)
            end_talk(m, oldest);
        talk *t = add_talk(m, fd, WAITS_HELLO, -1);
        if (t != NULL)
            read_next(t, WAITS_HELLO, &t->hello, sizeof t->hello);
    }
}

/* ---- the loop */

/* All that was to be read has been. Returns 0 if the talk ends. */
static int on_read(meeting *m, talk *t) {
    switch (t->stage) {
    case WAITS_HELLO:
        return on_hello(m, t);
    case WAITS_ANSWER:
        return on_answer(m, t);
    case WAITS_PROOF:
        return on_proof(m, t);
    case WAITS_VERDICT:
        return on_verdict(m, t);
    case WAITS_TABLE:
        return on_table(m);
    default: /* a registered rank has said something */
        return 0;
    }
}

static int has_failed(ssize_t moved) {
    return moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR);
}

/* Moves bytes as far as it can without waiting. Returns 0 if the talk ends. */
static int advance(meeting *m, talk *t) {
    if (t->stage == CONNECTING && !on_connected(m, t))
        return 0;
    while (t->out_bytes > 0) {
        ssize_t sent = send(t->fd, t->out, t->out_bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return !has_failed(sent);
        t->out += sent;
        t->out_bytes -= (size_t)sent;
        if (t->out_bytes == 0 && !on_sent(m, t))
            return 0;
    }
    while (t->in_bytes > 0) {
        ssize_t got = recv(t->fd, t->in, t->in_bytes, 0);
        if (got <= 0)
            return !has_failed(got);
        t->in += got;
        t->in_bytes -= (size_t)got;
        if (t->in_bytes == 0) {
            int goes_on = on_read(m, t);
            return goes_on && t->out_bytes > 0 ? advance(m, t) : goes_on;
        }
    }
    return 1;
}

static void wait_for_sockets(meeting *m) {
    int64_t left = m->deadline - tw__clock();
    left = left > 0 ? left : 0; /* poll takes a negative time for no limit */
    int milliseconds = left < PAUSE ? (int)(left / 1000000) + 1 : (int)(PAUSE / 1000000);
    int accepts = tw__clock() >= m->accept_again;
    m->polls[0] = (struct pollfd){.fd = accepts ? m->service : -1, .events = POLLIN};
    m->polls[1] = (struct pollfd){.fd = accepts ? m->listener : -1, .events = POLLIN};
    for (int i = 0; i < m->ntalks; i++) {
        const talk *t = m->talks[i];
        int writes = t->stage == CONNECTING || t->out_bytes > 0;
        m->polls[i + 2] = (struct pollfd){.fd = t->fd, .events = writes ? POLLOUT : POLLIN};
    }
    (void)poll(m->polls, (nfds_t)m->ntalks + 2, milliseconds);
}

static void serve_sockets(meeting *m) {
    for (int i = m->ntalks - 1; i >= 0; i--) { /* end_talk moves the last one here */
        int ready = m->polls[i + 2].revents != 0;
        if ((ready && !advance(m, m->talks[i])) || tw__clock() >= m->talks[i]->deadline)
            end_talk(m, i);
    }
    if (m->polls[0].revents != 0)
        accept_talks(m, m->service);
    if (m->polls[1].revents != 0)
        accept_talks(m, m->listener);
}

/* Ranks without a socket, and tables that are not sent. */
static int count_missing(const meeting *m) {
    int missing = 0;
    for (int r = 0; r < m->nranks; r++)
        missing += r != m->rank && m->sockets[r] < 0;
    for (int i = 0; i < m->ntalks; i++)
        missing += m->talks[i]->out_bytes > 0;
    return missing;
}

/* "2, 5": the ranks that have not come here, or have no socket. */
static void list_missing(const meeting *m, char *text, size_t size) {
    size_t used = 0;
    for (int r = 0; r < m->nranks && used < size; r++) {
        if (r == m->rank || m->sockets[r] >= 0 || (!m->known && registered_as(m, r) != NULL))
            continue;
        int wrote = snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : "", r);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int fail_timeout(const meeting *m) {
    char missing[100] = "";
    const char *at = m->endpoints[m->serving < m->nendpoints ? m->serving : m->endpoint].text;
    double seconds = m->params->timeout;
    list_missing(m, missing, sizeof missing);
    if (!m->known && m->registered)
        return tw__fail(TW_ERR_TIMEOUT,
                        "meet: ranks did not come to %s within %g s; its own error names them", at,
                        seconds);
    if (!m->known && m->serving == m->nendpoints)
        return tw__fail(TW_ERR_TIMEOUT, "meet: nobody accepts this rank at %s within %g s: %s", at,
                        seconds, m->why != NULL ? m->why : "no answer");
    return tw__fail(TW_ERR_TIMEOUT, "meet: no answer at %s within %g s from rank %s", at, seconds,
                    missing);
}

static int run(meeting *m) {
    m->serving = m->nendpoints;
    while (count_missing(m) > 0) {
        if (m->refused != TW_OK)
            return m->refused;
        if (tw__clock() >= m->deadline)
            return fail_timeout(m);
        register_somewhere(m);
        connect_pairs(m);
        wait_for_sockets(m);
        serve_sockets(m);
        send_away(m);
        serve_table(m);
    }
    return TW_OK;
}

static int init(meeting *m) {
    size_t ranks = (size_t)m->nranks;
    m->capacity = 2 * STRANGERS + 4 * m->nranks; /* more than there can be at a time */
    m->table_bytes = TW__DIGEST + ranks * sizeof(place);
    m->table = malloc(m->table_bytes);
    m->seen = calloc(ranks, sizeof *m->seen);
    m->pair_retry = calloc(ranks, sizeof *m->pair_retry);
    m->talks = calloc((size_t)m->capacity, sizeof(talk *));
    m->polls = calloc((size_t)m->capacity + 2, sizeof *m->polls);
    if (m->table == NULL || m->seen == NULL || m->pair_retry == NULL || m->talks == NULL ||
        m->polls == NULL)
        return fail_memory();
    const char *name = m->params->job != NULL ? m->params->job : "";
    tw__sha256 hash;
    tw__sha256_begin(&hash);
    tw__sha256_add(&hash, name, strlen(name));
    tw__sha256_end(&hash, m->job);
    TW_TRY(tw__endpoints_parse("meet", m->params->meet, &m->endpoints, &m->nendpoints));
    m->addresses = calloc((size_t)m->nendpoints, sizeof *m->addresses);
    return m->addresses != NULL ? TW_OK : fail_memory();
}

static void close_all(meeting *m, int status) {
    while (m->ntalks > 0)
        end_talk(m, m->ntalks - 1);
    if (m->listener >= 0)
        (void)close(m->listener);
    if (m->service >= 0)
        (void)close(m->service);
    for (int r = 0; r < m->nranks && status != TW_OK; r++)
        if (m->sockets[r] >= 0)
            (void)close(m->sockets[r]);
    free(m->endpoints);
    free(m->addresses);
    free(m->table);
    free(m->seen);
    free(m->pair_retry);
    free(m->talks);
    free(m->polls);
}

int tw__meet(const tw_tcp_params *params, int *sockets) {
    meeting m = {.params = params,
                 .rank = params->rank,
                 .nranks = params->nranks,
                 .deadline = tw__clock() + (int64_t)(params->timeout * (double)TW__SECOND),
                 .service = -1,
                 .listener = -1,
                 .sockets = sockets};
    for (int r = 0; r < m.nranks; r++)
        sockets[r] = -1;
    int status = init(&m);
    if (status == TW_OK)
        status = run(&m);
    close_all(&m, status);
    return status;
}
