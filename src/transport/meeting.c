/* meeting.c - see meeting.h */
#include "transport/meeting.h"

#include "base/error.h"
#include "transport/handshake.h"
#include "transport/transport_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESOLVE_AGAIN (5 * TW__SECOND)

static int fail_memory(void) {
    return tw__fail(TW_ERR_MEMORY, "no memory to connect the ranks");
}

/* ---- this rank connects */

static void begin_handshake(tw__meeting *m, const tw__address *to, uint32_t purpose, int peer) {
    int fd = tw__connect(to);
    tw__handshake *t = fd >= 0 ? tw__handshake_add(m, fd, TW__CONNECTING, peer) : NULL;
    if (fd < 0)
        m->why = strerror(errno);
    if (t != NULL) {
        t->to = *to;
        t->hello.purpose = htonl(purpose);
    }
    if (purpose != TW__PAIR) {
        m->registering = t != NULL;
        m->retry = tw__clock() + TW__MEET_PAUSE;
    } else {
        m->pair_retry[peer] = t != NULL ? INT64_MAX : tw__clock() + TW__MEET_PAUSE;
    }
}

static const tw__resolved *resolve(tw__meeting *m, int endpoint) {
    tw__resolved *r = &m->addresses[endpoint];
    if (tw__clock() >= r->until) {
        r->count = tw__endpoint_resolve(&m->endpoints[endpoint], r->at, TW__MEET_ADDRESSES);
        r->until = tw__clock() + RESOLVE_AGAIN;
    }
    return r;
}

/* Listens on the first address that is this host's and free. */
void tw__meeting_serve(tw__meeting *m) {
    for (m->serving = 0; m->serving < m->nendpoints; m->serving++) {
        const tw__endpoint *endpoint = &m->endpoints[m->serving];
        const tw__resolved *found = resolve(m, m->serving);
        for (int i = 0; i < found->count; i++) {
            tw__address at = found->at[i];
            if (tw__address_is_loopback(&at) && !tw__endpoint_is_local(endpoint))
                tw__address_set_wildcard(&at);
            m->service = tw__listen(&at, TW__MEET_BACKLOG);
            if (m->service >= 0)
                return;
            if (errno == EADDRINUSE) /* somebody serves there; its other addresses stay free */
                break;
        }
    }
}

/* Tries one address of the next endpoint: each name in turn, and all that a name stands for. */
void tw__meeting_register(tw__meeting *m, uint32_t purpose) {
    if (purpose == TW__REGISTER && m->serving == m->nendpoints && !m->registering && !m->known &&
        tw__clock() >= m->retry)
        tw__meeting_serve(m); /* once more: another job may have gone */
    int candidates = m->serving < m->nendpoints ? m->serving : m->nendpoints;
    if (m->known || m->registering || candidates == 0 || tw__clock() < m->retry)
        return;
    m->endpoint = m->attempt % candidates;
    const tw__resolved *found = resolve(m, m->endpoint);
    if (found->count > 0)
        begin_handshake(m, &found->at[m->attempt / candidates % found->count], purpose, -1);
    else
        m->why = "the host is not known", m->retry = tw__clock() + TW__MEET_PAUSE;
    m->attempt++;
}

static tw__address address_of(const tw__meeting *m, int peer) {
    tw__listen_address where;
    tw__address address = m->meeting_point;
    assert(m->known && peer >= 0 && peer < m->nranks);
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

static void connect_pairs(tw__meeting *m) {
    for (int peer = 0; m->known && peer < m->rank; peer++) {
        if (m->sockets[peer] < 0 && tw__clock() >= m->pair_retry[peer]) {
            tw__address to = address_of(m, peer);
            begin_handshake(m, &to, TW__PAIR, peer);
        }
    }
}

/* ---- others connect to this rank */

static tw__listen_address listen_address_of(const tw__address *address) {
    tw__listen_address where = {.port = htons((uint16_t)tw__address_port(address))};
    if (tw__address_is_loopback(address))
        return where; /* family 0 */
    int v4 = address->any.sa_family == AF_INET;
    where.family = htons(v4 ? 4 : 6);
    memcpy(where.host, v4 ? (const void *)&address->v4.sin_addr : &address->v6.sin6_addr,
           v4 ? sizeof address->v4.sin_addr : sizeof address->v6.sin6_addr);
    return where;
}

/* The meeting point, once all have registered: everybody gets the table. */
static void serve_table(tw__meeting *m) {
    int present = 1;
    for (int i = 0; i < m->nhandshakes; i++)
        present += m->handshakes[i]->stage == TW__REGISTERED && m->handshakes[i]->out_bytes == 0;
    if (m->serving == m->nendpoints || m->known || m->registered || present < m->nranks)
        return;
    tw__handshake_random(m, m->id);
    memcpy(m->table, m->id, sizeof m->id);
    for (int r = 0; r < m->nranks; r++) {
        tw__listen_address where = {
            .port = htons((uint16_t)atoi(m->endpoints[m->serving].port))}; /* this rank */
        if (r != m->rank)
            where = listen_address_of(&m->seen[r]);
        memcpy(m->table + TW__DIGEST + (size_t)r * sizeof where, &where, sizeof where);
    }
    m->known = 1;
    for (int i = 0; i < m->nhandshakes; i++) {
        if (m->handshakes[i]->stage == TW__REGISTERED) {
            tw__handshake_send(m->handshakes[i], m->table, m->table_bytes);
            m->handshakes[i]->stage = TW__LEAVING;
        }
    }
}

/* Whoever registered here must go where this rank has gone. */
static void dismiss_registered(tw__meeting *m) {
    for (int i = m->nhandshakes - 1; i >= 0 && m->registered; i--)
        if (m->handshakes[i]->stage == TW__REGISTERED)
            tw__handshake_end(m, i);
}

/* ---- the loop */

/* Ranks without a socket, and tables that are not sent. */
static int count_missing(const tw__meeting *m) {
    int missing = 0;
    for (int r = 0; r < m->nranks; r++)
        missing += r != m->rank && m->sockets[r] < 0;
    for (int i = 0; i < m->nhandshakes; i++)
        missing += m->handshakes[i]->out_bytes > 0;
    return missing;
}

/* "2, 5": the ranks that have not come here, or have no socket. */
static void list_missing(const tw__meeting *m, char *text, size_t size) {
    size_t used = 0;
    for (int r = 0; r < m->nranks && used < size; r++) {
        if (r == m->rank || m->sockets[r] >= 0 ||
            (!m->known && tw__handshake_registered(m, r) != NULL))
            continue;
        int wrote = snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : "", r);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int fail_timeout(const tw__meeting *m) {
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

static int wait_milliseconds(const tw__meeting *m) {
    int64_t left = m->deadline - tw__clock();
    left = left > 0 ? left : 0; /* poll takes a negative time for no limit */
    return (int)((left < TW__MEET_PAUSE ? left : TW__MEET_PAUSE) / 1000000) + 1;
}

static int run(tw__meeting *m, const tw_transport *ranks) {
    while (count_missing(m) > 0) {
        if (ranks != NULL && !ranks->member_calls->is_whole(ranks->context))
            return tw__fail(TW_ERR_TRANSPORT, "a rank was lost while others joined");
        if (m->refused != TW_OK)
            return m->refused;
        if (tw__clock() >= m->deadline)
            return fail_timeout(m);
        tw__meeting_register(m, TW__REGISTER);
        connect_pairs(m);
        tw__handshakes_wait(m, wait_milliseconds(m));
        tw__handshakes_serve(m);
        dismiss_registered(m);
        serve_table(m);
    }
    return TW_OK;
}

int tw__meeting_init(tw__meeting *m, const tw_tcp_params *params, int *sockets) {
    *m = (tw__meeting){.params = params,
                       .rank = params->rank,
                       .nranks = params->nranks,
                       .deadline = tw__clock() + (int64_t)(params->timeout * (double)TW__SECOND),
                       .service = -1,
                       .listener = -1,
                       .sockets = sockets};
    assert(m->nranks >= 1 && m->rank >= 0 && m->rank < m->nranks);
    for (int r = 0; r < m->nranks; r++)
        sockets[r] = -1;
    size_t ranks = (size_t)m->nranks;
    m->capacity = 2 * TW__MEET_STRANGERS + 4 * m->nranks; /* more than there can be at a time */
    m->table_bytes = TW__DIGEST + ranks * sizeof(tw__listen_address);
    m->table = malloc(m->table_bytes);
    m->seen = calloc(ranks, sizeof *m->seen);
    m->pair_retry = calloc(ranks, sizeof *m->pair_retry);
    m->handshakes = calloc((size_t)m->capacity, sizeof(tw__handshake *));
    m->polls = calloc((size_t)m->capacity + 2, sizeof *m->polls);
    if (m->table == NULL || m->seen == NULL || m->pair_retry == NULL || m->handshakes == NULL ||
        m->polls == NULL)
        return fail_memory();
    const char *name = m->params->job != NULL ? m->params->job : "";
    tw__sha256 hash;
    tw__sha256_begin(&hash);
    tw__sha256_add(&hash, name, strlen(name));
    tw__sha256_end(&hash, m->job);
    TW_TRY(tw__endpoints_parse("meet", m->params->meet, &m->endpoints, &m->nendpoints));
    m->serving = m->nendpoints;
    m->addresses = calloc((size_t)m->nendpoints, sizeof *m->addresses);
    return m->addresses != NULL ? TW_OK : fail_memory();
}

void tw__meeting_close(tw__meeting *m, int status) {
    while (m->nhandshakes > 0)
        tw__handshake_end(m, m->nhandshakes - 1);
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
    free(m->handshakes);
    free(m->polls);
}

int tw__meet(const tw_tcp_params *params, int *sockets, const tw_transport *ranks) {
    tw__meeting m;
    int status = tw__meeting_init(&m, params, sockets);
    if (status == TW_OK)
        status = run(&m, ranks);
    tw__meeting_close(&m, status);
    return status;
}
