/* handshake.c - see handshake.h */
#include "transport/handshake.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAGIC 0x54574d54 /* "TWMT" */
#define VERSION 2
#define HANDSHAKE (5 * TW__SECOND) /* that one handshake may take */

enum { ACCEPTED, OTHER_RANKS, NO_SUCH_RANK, TAKEN, OTHER_JOB, MOVED, OTHER_SECRET };

/* ---- proofs */

/* Without random numbers a recorded handshake could be repeated. */
void tw__handshake_random(tw__meeting *m, unsigned char bytes[TW__DIGEST]) {
    if (getrandom(bytes, TW__DIGEST, 0) != TW__DIGEST)
        m->refused = tw__fail(TW_ERR_TRANSPORT, "meet: the system gives no random numbers: %s",
                              strerror(errno));
}

static void prove(const tw__meeting *m, const tw__handshake *t, const char *who,
                  unsigned char proof[TW__DIGEST]) {
    tw__hmac mac;
    tw__hmac_begin(&mac, m->params->secret, m->params->secret_bytes);
    tw__hmac_add(&mac, who, strlen(who));
    tw__hmac_add(&mac, &t->hello, sizeof t->hello);
    tw__hmac_add(&mac, t->challenge.nonce, sizeof t->challenge.nonce);
    tw__hmac_end(&mac, proof);
}

static int is_proved(const tw__meeting *m, const tw__handshake *t, const char *who,
                     const unsigned char proof[TW__DIGEST]) {
    unsigned char expected[TW__DIGEST];
    prove(m, t, who, expected);
    return tw__digest_equal(expected, proof);
}

tw__handshake *tw__handshake_add(tw__meeting *m, int fd, tw__handshake_stage stage, int peer) {
    tw__handshake *t = calloc(1, sizeof *t);
    if (t == NULL || m->nhandshakes == m->capacity) {
        free(t);
        (void)close(fd);
        return NULL;
    }
    t->fd = fd;
    t->stage = stage;
    t->peer = peer;
    t->begun = tw__clock();
    t->deadline = t->begun + HANDSHAKE;
    m->handshakes[m->nhandshakes++] = t;
    return t;
}

/* Talks of this rank's own, which it repeats when they fail. */
static int is_own(const tw__handshake *t) {
    return t->stage == TW__CONNECTING || t->stage == TW__WAITS_CHALLENGE ||
           t->stage == TW__WAITS_REPLY || t->stage == TW__WAITS_TABLE;
}

/* Takes it out. Closes its socket unless that has become one of the transport's. */
void tw__handshake_end(tw__meeting *m, int at) {
    tw__handshake *t = m->handshakes[at];
    if (is_own(t) && ntohl(t->hello.purpose) != TW__PAIR) {
        m->registering = m->registered = 0;
        m->retry = tw__clock() + TW__MEET_PAUSE;
    }
    if (is_own(t) && ntohl(t->hello.purpose) == TW__PAIR)
        m->pair_retry[t->peer] = tw__clock() + TW__MEET_PAUSE;
    if (t->fd >= 0)
        (void)close(t->fd);
    free(t);
    m->handshakes[at] = m->handshakes[--m->nhandshakes];
}

void tw__handshake_send(tw__handshake *t, const void *data, size_t bytes) {
    assert(t->out_bytes == 0);
    t->out = data;
    t->out_bytes = bytes;
}

static void read_next(tw__handshake *t, tw__handshake_stage stage, void *data, size_t bytes) {
    t->stage = stage;
    t->in = data;
    t->in_bytes = bytes;
}

static void say_hello(tw__meeting *m, tw__handshake *t, uint32_t purpose) {
    t->hello = (tw__hello){.magic = htonl(MAGIC),
                           .version = htonl(VERSION),
                           .purpose = htonl(purpose),
                           .rank = htonl((uint32_t)m->rank),
                           .nranks = htonl((uint32_t)m->nranks),
                           .to = htonl((uint32_t)t->peer),
                           .port = htonl((uint32_t)m->port)};
    memcpy(t->hello.id, purpose == TW__PAIR ? m->id : m->job, TW__DIGEST);
    tw__handshake_random(m, t->hello.nonce);
}

/* Listens on the interface that leads to the meeting point. If that is on this host, the others find
 * this rank by the address of the meeting point; on a host whose own name is a loopback address they
 * come from anywhere. */
static int listen_beside(tw__meeting *m, const tw__handshake *t) {
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
    m->listener = tw__listen(&own, TW__MEET_BACKLOG);
    size = sizeof own;
    if (m->listener < 0 || getsockname(m->listener, &own.any, &size) != 0)
        return 0;
    m->port = tw__address_port(&own);
    return 1;
}

/* The socket is connected, or has failed. Returns 0 if it has. */
static int on_connected(tw__meeting *m, tw__handshake *t) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        m->why = strerror(error);
        return 0;
    }
    uint32_t purpose = ntohl(t->hello.purpose);
    if (purpose == TW__REGISTER && !listen_beside(m, t))
        return 0;
    say_hello(m, t, purpose);
    tw__handshake_send(t, &t->hello, sizeof t->hello);
    read_next(t, TW__WAITS_CHALLENGE, &t->challenge, sizeof t->challenge);
    return 1;
}

static int refuse_for_good(tw__meeting *m, const tw__handshake *t, int error, const char *why) {
    char at[TW__ADDRESS_TEXT];
    tw__address_text(&t->to, at, sizeof at);
    m->refused = tw__fail(error, "meet: %s: %s", at, why);
    return 0;
}

static int on_challenge(tw__meeting *m, tw__handshake *t) {
    if (ntohl(t->challenge.magic) != MAGIC)
        return refuse_for_good(m, t, TW_ERR_TRANSPORT, "another program listens there");
    if (ntohl(t->challenge.version) != VERSION)
        return refuse_for_good(
            m, t, TW_ERR_MISMATCH,
            "another version of thinwire listens there; use the same on all ranks");
    prove(m, t, "opener", t->proof);
    tw__handshake_send(t, t->proof, sizeof t->proof);
    t->deadline = INT64_MAX; /* once it is accepted the peer does not accept it again */
    read_next(t, TW__WAITS_REPLY, &t->reply, sizeof t->reply);
    return 1;
}

static int on_reply(tw__meeting *m, tw__handshake *t) {
    uint32_t status = ntohl(t->reply.status);
    if (status == OTHER_SECRET || !is_proved(m, t, "acceptor", t->reply.proof))
        return refuse_for_good(m, t, TW_ERR_MISMATCH,
                               "has another secret; give the same to all ranks");
    switch (status) {
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
    if (ntohl(t->hello.purpose) != TW__PAIR) {
        m->registered = 1;
        m->meeting_point = t->to;
        read_next(t, TW__WAITS_TABLE, m->table, m->table_bytes);
        return 1;
    }
    assert(t->peer >= 0 && t->peer < m->rank && m->sockets[t->peer] < 0);
    m->sockets[t->peer] = t->fd;
    t->fd = -1;
    return 0;
}

static int on_table(tw__meeting *m) {
    memset(m->seen, 0, (size_t)m->nranks * sizeof *m->seen); /* of a time when this rank served */
    memcpy(m->id, m->table, TW__DIGEST);
    m->known = 1;
    return 0;
}

static int on_hello(tw__meeting *m, tw__handshake *t) {
    if (ntohl(t->hello.magic) != MAGIC)
        return 0;
    t->challenge = (tw__challenge){.magic = htonl(MAGIC), .version = htonl(VERSION)};
    tw__handshake_random(m, t->challenge.nonce);
    tw__handshake_send(t, &t->challenge, sizeof t->challenge);
    read_next(t, TW__WAITS_PROOF, t->proof, sizeof t->proof);
    return 1;
}

tw__handshake *tw__handshake_registered(const tw__meeting *m, int rank) {
    for (int i = 0; i < m->nhandshakes; i++)
        if (m->handshakes[i]->stage == TW__REGISTERED && m->handshakes[i]->peer == rank)
            return m->handshakes[i];
    return NULL;
}

static uint32_t check_claim(const tw__meeting *m, const tw__handshake *t) {
    uint32_t rank = ntohl(t->hello.rank), purpose = ntohl(t->hello.purpose);
    if (memcmp(t->hello.id, purpose == TW__PAIR ? m->id : m->job, TW__DIGEST) != 0)
        return OTHER_JOB;
    if (m->running ||
        purpose == TW__JOIN) /* before a job runs nobody can join it, and later all must */
        return m->running && purpose == TW__JOIN ? ACCEPTED : MOVED;
    if (ntohl(t->hello.nranks) != (uint32_t)m->nranks)
        return OTHER_RANKS;
    if (rank >= (uint32_t)m->nranks)
        return NO_SUCH_RANK;
    if ((int)rank == m->rank)
        return TAKEN;
    if (purpose == TW__PAIR && ntohl(t->hello.to) != (uint32_t)m->rank)
        return OTHER_JOB; /* the address is not that rank's any more */
    if (purpose == TW__PAIR)
        return m->sockets[rank] >= 0 ? TAKEN : (int)rank > m->rank ? ACCEPTED : NO_SUCH_RANK;
    if (m->serving == m->nendpoints || m->registered || m->known)
        return MOVED;
    return tw__handshake_registered(m, (int)rank) != NULL ? TAKEN : ACCEPTED;
}

/* Where a rank that has registered listens: see listen_beside. */
static int find_listener(const tw__handshake *t, tw__address *peer) {
    socklen_t size = sizeof *peer, own_size = sizeof *peer;
    if (getpeername(t->fd, &peer->any, &size) != 0 ||
        (tw__address_is_loopback(peer) && getsockname(t->fd, &peer->any, &own_size) != 0))
        return 0;
    tw__address_set_port(peer, (int)(ntohl(t->hello.port) & 0xffff));
    return 1;
}

static int on_proof(tw__meeting *m, tw__handshake *t) {
    int proved = is_proved(m, t, "opener", t->proof);
    uint32_t status = proved ? check_claim(m, t) : OTHER_SECRET, purpose = ntohl(t->hello.purpose);
    t->reply.status = htonl(status);
    if (proved)
        prove(m, t, "acceptor", t->reply.proof);
    t->peer = (int)ntohl(t->hello.rank);
    t->stage = TW__LEAVING;
    tw__handshake_send(t, &t->reply, sizeof t->reply);
    if (status == ACCEPTED && purpose != TW__PAIR) {
        if (purpose == TW__REGISTER && !find_listener(t, &m->seen[t->peer]))
            return 0;
        t->deadline = INT64_MAX;
        read_next(t, TW__REGISTERED, t->proof, 1); /* nothing comes, but the end if the rank ends */
    }
    return 1;
}

/* The reply is sent: the socket now belongs to the pair. */
static int on_sent(tw__meeting *m, tw__handshake *t) {
    if (t->stage != TW__LEAVING)
        return 1;
    if (ntohl(t->reply.status) == ACCEPTED && ntohl(t->hello.purpose) == TW__PAIR) {
        if (m->sockets[t->peer] >= 0) /* two handshakes were accepted before either ended */
            return 0;
        m->sockets[t->peer] = t->fd;
        t->fd = -1;
    }
    return 0;
}

static void accept_connections(tw__meeting *m, int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                m->accept_again = tw__clock() + TW__MEET_PAUSE;
            return;
        }
        int strangers = 0, oldest = -1;
        for (int i = 0; i < m->nhandshakes; i++) {
            if (m->handshakes[i]->stage != TW__WAITS_HELLO &&
                m->handshakes[i]->stage != TW__WAITS_PROOF)
                continue;
            strangers++;
            if (oldest < 0 || m->handshakes[i]->begun < m->handshakes[oldest]->begun)
                oldest = i;
        }
        if (strangers >= TW__MEET_STRANGERS + m->nranks)
            tw__handshake_end(m, oldest);
        tw__handshake *t = tw__handshake_add(m, fd, TW__WAITS_HELLO, -1);
        if (t != NULL)
            read_next(t, TW__WAITS_HELLO, &t->hello, sizeof t->hello);
    }
}

/* All that was to be read has been. Returns 0 if the handshake ends. */
static int on_read(tw__meeting *m, tw__handshake *t) {
    switch (t->stage) {
    case TW__WAITS_HELLO:
        return on_hello(m, t);
    case TW__WAITS_CHALLENGE:
        return on_challenge(m, t);
    case TW__WAITS_PROOF:
        return on_proof(m, t);
    case TW__WAITS_REPLY:
        return on_reply(m, t);
    case TW__WAITS_TABLE:
        return on_table(m);
    default: /* a registered rank has said something */
        return 0;
    }
}

static int has_failed(ssize_t moved) {
    return moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR);
}

/* Moves bytes as far as it can without waiting. Returns 0 if the handshake ends. */
static int advance(tw__meeting *m, tw__handshake *t) {
    if (t->stage == TW__CONNECTING && !on_connected(m, t))
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

void tw__handshakes_wait(tw__meeting *m, int milliseconds) {
    int accepts = tw__clock() >= m->accept_again;
    m->polls[0] = (struct pollfd){.fd = accepts ? m->service : -1, .events = POLLIN};
    m->polls[1] = (struct pollfd){.fd = accepts ? m->listener : -1, .events = POLLIN};
    for (int i = 0; i < m->nhandshakes; i++) {
        const tw__handshake *t = m->handshakes[i];
        int writes = t->stage == TW__CONNECTING || t->out_bytes > 0;
        m->polls[i + 2] = (struct pollfd){.fd = t->fd, .events = writes ? POLLOUT : POLLIN};
    }
    (void)poll(m->polls, (nfds_t)m->nhandshakes + 2, milliseconds);
}

void tw__handshakes_serve(tw__meeting *m) {
    for (int i = m->nhandshakes - 1; i >= 0; i--) { /* tw__handshake_end moves the last one here */
        int ready = m->polls[i + 2].revents != 0;
        if ((ready && !advance(m, m->handshakes[i])) || tw__clock() >= m->handshakes[i]->deadline)
            tw__handshake_end(m, i);
    }
    if (m->polls[0].revents != 0)
        accept_connections(m, m->service);
    if (m->polls[1].revents != 0)
        accept_connections(m, m->listener);
}
