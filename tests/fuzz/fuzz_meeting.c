/* fuzz_meeting.c - an honest process meets, admits or joins others that are hostile
 *
 * The first byte chooses what the process does: it is a rank that others register with, a rank that
 * registers, a rank of a job that admits newcomers, or a newcomer. The other bytes say what its peers do,
 * one after the other, whenever it looks at its sockets: open a connection, take the next step of a
 * handshake as an honest peer would who knows the secret, the same with a byte changed, send any bytes,
 * close, or let time pass. When the bytes are at their end, peers are honest, if the first byte says so.
 *
 * There is no network: what the library connects or accepts is one end of a pair of local sockets. Nothing
 * waits: time is that of a clock. A call must end before its deadline on that clock with TW_OK or a typed
 * error, and close all that it has opened; among honest peers alone with TW_OK. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "transport/handshake.h"
#include "transport/meeting.h"
#include "transport/transport_internal.h"

enum { CONNECTIONS = 8, LISTENERS = 4, RANKS = 3 };
enum { MAGIC = 0x54574d54, VERSION = 2 }; /* as handshake.c has them */
#define TIMEOUT 1.0

typedef enum { SERVES, REGISTERS, ADMITS, JOINS, ROLES } role;

typedef struct connection {
    int fd;     /* the peer's end; -1: none */
    int inner;  /* the process's end, until it is accepted; -1: it has it */
    int theirs; /* the process has connected; else the peer */
    int stage;
    tw__hello hello;
    tw__challenge challenge;
} connection;

static struct {
    input *in;
    role role;
    int nranks;
    int honest; /* peers are, once the input is at its end */
    int asked;  /* they have registered, or asked to join */
    int paired; /* they have connected to this rank */
    connection connections[CONNECTIONS];
    int listeners[LISTENERS], nlisteners;
    unsigned char id[TW__DIGEST]; /* of the meeting, from the table */
    unsigned char job[TW__DIGEST];
    uint32_t random;
} s;

static const char secret[] = "secret";

/* ---- what peers send */

static void prove(const connection *c, const char *who, unsigned char proof[TW__DIGEST]) {
    tw__hmac mac;
    tw__hmac_begin(&mac, secret, sizeof secret);
    tw__hmac_add(&mac, who, strlen(who));
    tw__hmac_add(&mac, &c->hello, sizeof c->hello);
    tw__hmac_add(&mac, c->challenge.nonce, sizeof c->challenge.nonce);
    tw__hmac_end(&mac, proof);
}

/* how: 0 as it is, 1 with a byte changed, 2 cut */
static void transmit(const connection *c, const void *data, size_t bytes, int how) {
    unsigned char copy[256];
    REQUIRE(bytes <= sizeof copy);
    memcpy(copy, data, bytes);
    if (how == 1)
        copy[take(s.in, 1) % bytes] ^= (unsigned char)(1 + take(s.in, 1) % 255);
    if (how == 2)
        bytes = take(s.in, 1) % bytes;
    if (bytes > 0)
        (void)send(c->fd, copy, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Whether all of it was there. */
static int fetch(const connection *c, void *data, size_t bytes) {
    return recv(c->fd, data, bytes, MSG_DONTWAIT | MSG_PEEK) == (ssize_t)bytes &&
           recv(c->fd, data, bytes, MSG_DONTWAIT) == (ssize_t)bytes;
}

static size_t table_bytes(void) {
    return TW__DIGEST + (size_t)s.nranks * sizeof(tw__listen_address);
}

/* After the handshake: the table, or an invitation. */
static void send_table(connection *c, int how) {
    unsigned char table[TW__DIGEST + RANKS * sizeof(tw__listen_address)] = {0};
    uint32_t numbers[] = {htonl((uint32_t)s.nranks - 1), htonl((uint32_t)s.nranks), htonl(3),
                          htonl(500)};
    memset(table, 9, TW__DIGEST);
    if (ntohl(c->hello.purpose) == TW__JOIN) {
        memcpy(table + TW__DIGEST, numbers, sizeof numbers);
        transmit(c, table, TW__DIGEST + sizeof numbers, how);
    } else {
        transmit(c, table, table_bytes(), how);
    }
}

static void answer(connection *c, int how) {
    unsigned char proof[TW__DIGEST];
    tw__reply reply = {0};
    if (c->stage == 0 && fetch(c, &c->hello, sizeof c->hello)) {
        c->challenge = (tw__challenge){.magic = htonl(MAGIC), .version = htonl(VERSION)};
        transmit(c, &c->challenge, sizeof c->challenge, how);
        c->stage = 1;
    } else if (c->stage == 1 && fetch(c, proof, sizeof proof)) {
        prove(c, "acceptor", reply.proof);
        transmit(c, &reply, sizeof reply, how);
        c->stage = 2;
    } else if (c->stage == 2 && ntohl(c->hello.purpose) != TW__PAIR) {
        send_table(c, how);
        c->stage = 3;
    }
}

static void ask(connection *c, int how) {
    unsigned char proof[TW__DIGEST], table[256];
    tw__reply reply;
    if (c->stage == 0) {
        transmit(c, &c->hello, sizeof c->hello, how);
        c->stage = 1;
    } else if (c->stage == 1 && fetch(c, &c->challenge, sizeof c->challenge)) {
        prove(c, "opener", proof);
        transmit(c, proof, sizeof proof, how);
        c->stage = 2;
    } else if (c->stage == 2 && fetch(c, &reply, sizeof reply)) {
        c->stage = 3;
    } else if (c->stage == 3 && ntohl(c->hello.purpose) == TW__REGISTER &&
               fetch(c, table, table_bytes())) {
        memcpy(s.id, table, sizeof s.id);
        c->stage = 4;
    }
}

static connection *free_connection(void) {
    for (int i = 0; i < CONNECTIONS; i++)
        if (s.connections[i].fd < 0)
            return &s.connections[i];
    return NULL;
}

static connection *add_connection(int theirs, int *inner) {
    connection *c = free_connection();
    int ends[2];
    if (c == NULL)
        return NULL;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    *c = (connection){.fd = ends[0], .inner = -1, .theirs = theirs};
    *inner = ends[1];
    return c;
}

static void open_connection(uint32_t purpose, uint32_t rank) {
    int inner;
    connection *c = add_connection(0, &inner);
    if (c == NULL)
        return;
    c->inner = inner;
    c->hello = (tw__hello){.magic = htonl(MAGIC),
                           .version = htonl(VERSION),
                           .purpose = htonl(purpose),
                           .rank = htonl(rank),
                           .nranks = htonl((uint32_t)s.nranks),
                           .port = htonl(7)};
    memcpy(c->hello.id, purpose == TW__PAIR ? s.id : s.job, TW__DIGEST);
}

static void close_connection(connection *c) {
    if (c->fd >= 0)
        REQUIRE(close(c->fd) == 0);
    if (c->inner >= 0)
        REQUIRE(close(c->inner) == 0);
    *c = (connection){.fd = -1, .inner = -1};
}

static void go_on(connection *c, int how) {
    if (c->theirs)
        answer(c, how);
    else
        ask(c, how);
}

enum { STEP, CHANGED = 4, CUT, OPEN, RAW = 9, CLOSE, TIME, OPERATIONS = 12 };

static void operate(void) {
    const uint32_t byte = take(s.in, 1);
    connection *c = &s.connections[byte % CONNECTIONS];
    const uint32_t operation = byte / CONNECTIONS % OPERATIONS;
    if (operation >= OPEN && operation < OPEN + 3) {
        open_connection(TW__REGISTER + operation - OPEN, take(s.in, 1));
    } else if (operation == TIME) {
        fuzz_now += TW__SECOND / 2;
    } else if (c->fd >= 0 && operation == RAW) {
        const input part = take_part(s.in);
        if (part.left > 0)
            (void)send(c->fd, part.data, part.left, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (c->fd >= 0 && operation == CLOSE) {
        close_connection(c);
    } else if (c->fd >= 0) {
        const int how = operation == CHANGED ? 1 : operation == CUT ? 2 : 0;
        go_on(c, how);
    }
}

/* What honest peers do next. */
static void play(void) {
    char byte;
    for (uint32_t r = 1; r < (uint32_t)s.nranks && !s.asked && s.role != REGISTERS; r++)
        open_connection(s.role == ADMITS ? TW__JOIN : TW__REGISTER, r);
    s.asked = 1;
    int known = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        connection *c = &s.connections[i];
        if (c->fd >= 0)
            go_on(c, 0);
        known |= c->fd >= 0 && !c->theirs && c->stage == 4;
        if (c->fd >= 0 && c->inner < 0 && recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
            close_connection(c);
    }
    for (uint32_t r = 1; r < (uint32_t)s.nranks && known && !s.paired; r++)
        open_connection(TW__PAIR, r);
    s.paired |= known;
}

/* ---- what the process sees in place of a network */

int __wrap_poll(struct pollfd *polls, nfds_t count, int milliseconds);
int __real_poll(struct pollfd *polls, nfds_t count, int milliseconds);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_listen(int fd, int backlog);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *size, int flags);
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *size);
int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *size);
ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags);

static int is_listener(int fd) {
    for (int i = 0; i < s.nlisteners; i++)
        if (s.listeners[i] == fd)
            return 1;
    return 0;
}

static connection *waiting_connection(void) {
    for (int i = 0; i < CONNECTIONS; i++)
        if (s.connections[i].inner >= 0)
            return &s.connections[i];
    return NULL;
}

int __wrap_poll(struct pollfd *polls, nfds_t count, int milliseconds) {
    REQUIRE(milliseconds >= 0);
    if (s.in->left > 0)
        operate();
    else if (s.honest)
        play();
    else
        fuzz_now += TW__SECOND / 10;
    fuzz_now += 1000000 * (int64_t)milliseconds / 2;
    int ready = 0;
    for (nfds_t i = 0; i < count; i++) {
        if (is_listener(polls[i].fd))
            polls[i].revents = waiting_connection() != NULL ? POLLIN : 0;
        else if (__real_poll(&polls[i], 1, 0) <= 0)
            polls[i].revents = 0;
        ready += polls[i].revents != 0;
    }
    return ready;
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size) {
    REQUIRE(address != NULL && size > 0);
    int inner;
    if (add_connection(1, &inner) == NULL) {
        errno = ECONNREFUSED;
        return -1;
    }
    REQUIRE(dup3(inner, fd, O_CLOEXEC) == fd && close(inner) == 0);
    return 0;
}

/* One that registers cannot listen at the address where all meet. */
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size) {
    REQUIRE(fd >= 0 && size > 0);
    const struct sockaddr_in *at = (const struct sockaddr_in *)(const void *)address;
    if (at->sin_port == 0 || s.role == SERVES || s.role == ADMITS)
        return 0;
    errno = EADDRINUSE;
    return -1;
}

int __wrap_listen(int fd, int backlog) {
    REQUIRE(backlog > 0);
    s.listeners[s.nlisteners++ % LISTENERS] = fd;
    s.nlisteners = s.nlisteners < LISTENERS ? s.nlisteners : LISTENERS;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    connection *c = waiting_connection();
    REQUIRE(is_listener(fd) && address == NULL && size == NULL && flags != 0);
    if (c == NULL) {
        errno = EAGAIN;
        return -1;
    }
    const int inner = c->inner;
    c->inner = -1;
    return inner;
}

/* Some peers come from another host. */
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *size) {
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons(5),
                                   .sin_addr.s_addr = htonl(fd % 2 ? 0x7f000001 : 0x0a000001)};
    REQUIRE(*size >= sizeof at);
    memcpy(address, &at, sizeof at);
    *size = sizeof at;
    return 0;
}

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *size) {
    return __wrap_getsockname(fd, address, size);
}

ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags) {
    REQUIRE(flags == 0);
    memset(bytes, (int)++s.random, size);
    return (ssize_t)size;
}

/* ---- the process */

static int in_time(int status, int64_t begin) {
    REQUIRE(status <= TW_OK && status >= TW_ERR_EXCLUDED);
    REQUIRE(status == TW_OK || tw_last_error()[0] != '\0');
    REQUIRE(fuzz_now - begin < 120 * TW__SECOND);
    return status;
}

static int meet_all(const tw_tcp_params *params) {
    tw_transport *t;
    const int status = in_time(tw_transport_tcp(&t, params), TW__SECOND);
    REQUIRE((status == TW_OK) == (t != NULL));
    tw_transport_free(t);
    return status;
}

static int join(const tw_tcp_params *params) {
    tw_tcp_params own = *params;
    tw_transport *t;
    own.rank = own.nranks = 0;
    const int status = in_time(tw_transport_join(&t, &own), TW__SECOND);
    REQUIRE((status == TW_OK) == (t != NULL));
    tw_transport_free(t);
    return status;
}

/* Rank 0 of a job of two. */
static int admit(const tw_tcp_params *params) {
    int ends[2], status = TW_ERR_TIMEOUT;
    unsigned char id[TW__DIGEST];
    tw_transport *t;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    REQUIRE(tw_transport_sockets(&t, (int[]){-1, ends[0]}, 0, 2) == TW_OK);
    REQUIRE(tw__transport_keep_meet(t, params) == TW_OK);
    int count = 0;
    for (int polls = 0; (s.in->left > 0 || polls < 20) && count == 0; polls++) {
        const int64_t begin = fuzz_now;
        count = tw__transport_newcomers(t, 1);
        REQUIRE(count >= 0 && count <= TW__MOST_NEW && fuzz_now - begin < 2 * TW__SECOND);
    }
    if (count > 0) {
        const int64_t begin = fuzz_now;
        status = in_time(tw__transport_invite(t, count, 0.5, id), begin);
        REQUIRE(status == TW_OK && !tw__transport_listens(t));
        (void)in_time(tw__transport_meet_newcomers(t, count, 0.5, id), begin);
        tw__transport_drop_newcomers(t);
    }
    tw_transport_free(t);
    REQUIRE(close(ends[1]) == 0);
    return status;
}

/* The lowest descriptor that is free: higher once some were not closed. */
static int free_descriptor(void) {
    const int fd = dup(0);
    REQUIRE(fd >= 0 && close(fd) == 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    tw__sha256 hash;
    memset(&s, 0, sizeof s);
    const uint32_t first = take(&in, 1);
    s.in = &in;
    s.role = (role)(first % ROLES);
    s.nranks = 2 + (int)(first / ROLES % (RANKS - 1));
    s.honest = (first & 128) != 0;
    fuzz_now = TW__SECOND;
    tw__sha256_begin(&hash);
    tw__sha256_end(&hash, s.job);
    for (int i = 0; i < CONNECTIONS; i++)
        s.connections[i] = (connection){.fd = -1, .inner = -1};
    const tw_tcp_params params = {.meet = "127.0.0.1:9",
                                  .rank = s.role == REGISTERS ? s.nranks - 1 : 0,
                                  .nranks = s.nranks,
                                  .secret = secret,
                                  .secret_bytes = sizeof secret,
                                  .timeout = TIMEOUT};
    const int before = free_descriptor();
    const int status = s.role == ADMITS  ? admit(&params)
                       : s.role == JOINS ? join(&params)
                                         : meet_all(&params);
    if (s.honest && size == 1 && s.role != JOINS) /* nobody decides that a newcomer is in */
        REQUIRE(status == TW_OK);
    for (int i = 0; i < CONNECTIONS; i++)
        close_connection(&s.connections[i]);
    REQUIRE(free_descriptor() == before);
    fuzz_now = 0;
    return 0;
}

/* Honest peers; a step of theirs that is changed or cut; strangers that send anything, then honest ones. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    output out = {data, 0, room};
    const uint32_t first = (uint32_t)number % (2 * ROLES), variant = (uint32_t)number / (2 * ROLES);
    const int opens = first % ROLES == SERVES || first % ROLES == ADMITS;
    if (variant >= 16)
        return 0;
    put(&out, 128 + first, 1);
    for (uint32_t i = 0; i < variant; i++) {
        const uint32_t operation = i + 1 < variant   ? (uint32_t)STEP
                                   : variant % 2 > 0 ? (uint32_t)CHANGED
                                                     : (uint32_t)CUT;
        if (opens && i == 0) {
            put(&out, CONNECTIONS * (first % ROLES == ADMITS ? OPEN + 2 : OPEN), 1);
            put(&out, 1, 1);
        }
        put(&out, CONNECTIONS * operation, 1);
        if (operation != STEP)
            put(&out, 5, 1);
        if (operation == CHANGED)
            put(&out, 1, 1);
    }
    return out.size;
}
