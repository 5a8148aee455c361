/* join.c - processes join a job that runs, and ranks let them in
 *
 *   newcomer                        a rank that listens at `meet`           the other ranks
 *   asks to join              ->    notes it; tells at the next poll   ->   all hear of it
 *                             <-    invitation: rank, nranks, id       ->   id
 *   all of them, and the newcomers, hold a meeting of their own (meeting.h) under that id
 *   the ranks agree over their old connections (members.c): with the newcomers, or without
 *   waits for the decision    <-                                            tell it over the new ones
 *
 * Until that decision nothing has changed for the ranks. A newcomer that falls silent costs them the
 * timeout of the meeting, and no more. */
#include "transport/meeting.h"

#include "base/memory.h"
#include "transport/handshake.h"
#include "transport/transport_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL (TW__SECOND / 100) /* that a poll may take while somebody is about to ask */
#define INVITE TW__SECOND       /* to send invitations */
/* Seconds for the decision of the ranks, and those that a newcomer waits for it at least. */
#define DECISION 10.0
#define LEAST_WAIT 1.0

/* Numbers in network order. */
typedef struct invitation {
    unsigned char id[TW__DIGEST]; /* of the meeting */
    uint32_t rank, nranks;        /* in it */
    uint32_t version;             /* of the membership that ends */
    uint32_t milliseconds;        /* that the meeting may take */
} invitation;

struct tw__admission {
    tw__meeting meeting;
    tw_tcp_params params;
    int socket; /* of the meeting's one rank */
    invitation invitations[TW__MOST_NEW];
};

/* The name of the meeting to which an invitation leads. */
static void name_meeting(const unsigned char id[TW__DIGEST], char name[2 * TW__DIGEST + 1]) {
    for (int i = 0; i < TW__DIGEST; i++)
        snprintf(name + 2 * i, 3, "%02x", id[i]);
}

/* ---- ranks that listen */

static void end_admission(tw_transport *t) {
    if (t->admission != NULL)
        tw__meeting_close(&t->admission->meeting, TW_OK);
    free(t->admission);
    t->admission = NULL;
}

/* Unless no address of `meet` is this host's, or another process listens there. */
static void begin_admission(tw_transport *t) {
    tw__admission *a = calloc(1, sizeof *a);
    if (a == NULL)
        return;
    t->admission = a;
    a->params = *t->meet;
    a->params.rank = 0;
    a->params.nranks = 1;
    if (tw__meeting_init(&a->meeting, &a->params, &a->socket) == TW_OK)
        tw__meeting_serve(&a->meeting);
    a->meeting.running = 1;
    if (a->meeting.service < 0)
        end_admission(t);
}

/* How many handshakes are at this stage, or with REGISTERED: have asked to join. */
static int count_stage(const tw__meeting *m, tw__handshake_stage stage) {
    int count = 0;
    for (int i = 0; i < m->nhandshakes; i++)
        count += m->handshakes[i]->stage == stage && m->handshakes[i]->out_bytes == 0;
    return count;
}

static int has_pending(const tw__meeting *m) {
    for (int i = 0; i < m->nhandshakes; i++)
        if (m->handshakes[i]->stage != TW__REGISTERED || m->handshakes[i]->out_bytes > 0)
            return 1;
    return 0;
}

/* Invitations, or refusals, that are not sent yet. */
static int has_leaving(const tw__meeting *m) {
    for (int i = 0; i < m->nhandshakes; i++)
        if (m->handshakes[i]->stage == TW__LEAVING)
            return 1;
    return 0;
}

int tw__transport_newcomers(tw_transport *t, int may_listen) {
    if (t->meet == NULL)
        return 0;
    if (t->admission == NULL && may_listen)
        begin_admission(t);
    if (t->admission == NULL)
        return 0;
    tw__meeting *m = &t->admission->meeting;
    int64_t end = tw__clock() + POLL;
    do {
        tw__handshakes_wait(m, has_pending(m));
        tw__handshakes_serve(m);
    } while (has_pending(m) && tw__clock() < end);
    int count = count_stage(m, TW__REGISTERED);
    return count < TW__MOST_NEW ? count : TW__MOST_NEW;
}

int tw__transport_listens(const tw_transport *t) {
    return t->admission != NULL;
}

int tw__transport_invite(tw_transport *t, int count, double timeout, unsigned char *id) {
    tw__admission *a = t->admission;
    tw__meeting *m = &a->meeting;
    assert(a->meeting.running && count > 0 && count <= TW__MOST_NEW);
    tw__handshake_random(m, a->invitations[0].id);
    if (m->refused != TW_OK)
        return m->refused;
    memcpy(id, a->invitations[0].id, TW__DIGEST);
    for (int i = 0, next = 0; i < m->nhandshakes && next < count; i++) {
        tw__handshake *h = m->handshakes[i];
        if (h->stage != TW__REGISTERED || h->out_bytes > 0)
            continue;
        invitation *to = &a->invitations[next];
        *to = (invitation){.rank = htonl((uint32_t)(t->nranks + next)),
                           .nranks = htonl((uint32_t)(t->nranks + count)),
                           .version = htonl(t->version),
                           .milliseconds = htonl((uint32_t)(timeout * 1000))};
        memcpy(to->id, id, TW__DIGEST);
        tw__handshake_send(h, to, sizeof *to);
        h->stage = TW__LEAVING;
        next++;
    }
    for (int64_t end = tw__clock() + INVITE; has_leaving(m) && tw__clock() < end;) {
        tw__handshakes_wait(m, 1);
        tw__handshakes_serve(m);
    }
    end_admission(t);
    return TW_OK;
}

/* ---- the meeting of all */

int tw__transport_meet_newcomers(tw_transport *t, int count, double timeout,
                                 const unsigned char *id) {
    char name[2 * TW__DIGEST + 1];
    assert(t->meet != NULL && t->new_context == NULL && count > 0);
    end_admission(t); /* nobody would answer there: the meeting needs all addresses */
    tw_tcp_params params = *t->meet;
    name_meeting(id, name);
    params.job = name;
    params.rank = t->rank;
    params.nranks = t->nranks + count;
    params.timeout = timeout;
    int *sockets = malloc((size_t)params.nranks * sizeof *sockets);
    if (sockets == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", params.nranks);
    int status = tw__meet(&params, sockets, t);
    if (status == TW_OK)
        status = tw__transport_take_newcomers(t, sockets, params.nranks);
    free(sockets);
    return status;
}

int tw__transport_take_newcomers(tw_transport *t, const int *sockets, int nranks) {
    size_t bytes = (size_t)nranks * sizeof *t->new_peers;
    assert(t->new_context == NULL && t->new_peers == NULL && nranks > t->nranks);
    t->new_peers = tw__reserve(bytes);
    t->new_count = nranks;
    int status = t->new_peers == NULL
                     ? tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", bytes)
                     : t->member_calls->renew(&t->new_context, sockets, t->rank, nranks);
    if (status == TW_OK)
        return TW_OK;
    for (int r = 0; r < nranks; r++)
        if (sockets[r] >= 0)
            (void)close(sockets[r]);
    t->new_context = NULL;
    tw__transport_drop_newcomers(t);
    return status;
}

void tw__transport_drop_newcomers(tw_transport *t) {
    if (t->new_context != NULL)
        t->calls.close(t->new_context);
    free(t->new_peers);
    t->new_context = NULL;
    t->new_peers = NULL;
}

/* ---- a process that joins */

static int fail_join(const tw__meeting *m) {
    return tw__fail(TW_ERR_TIMEOUT, "join: nobody admits this process at %s within %g s: %s",
                    m->params->meet, m->params->timeout,
                    m->registered    ? "the job's ranks do not call tw_group_grow"
                    : m->why != NULL ? m->why
                                     : "no answer");
}

static int ask_to_join(const tw_tcp_params *params, invitation *got) {
    tw__meeting m;
    tw_tcp_params own = *params;
    int socket = -1;
    own.rank = 0;
    own.nranks = 1;
    int status = tw__meeting_init(&m, &own, &socket);
    free(m.table);
    m.table = (unsigned char *)got;
    m.table_bytes = sizeof *got;
    while (status == TW_OK && !m.known) {
        tw__meeting_register(&m, TW__JOIN);
        tw__handshakes_wait(&m, (int)(TW__MEET_PAUSE / 1000000));
        tw__handshakes_serve(&m);
        status = m.refused != TW_OK                      ? m.refused
                 : !m.known && tw__clock() >= m.deadline ? fail_join(&m)
                                                         : TW_OK;
    }
    m.table = NULL;
    tw__meeting_close(&m, TW_OK);
    return status;
}

static double seconds_until(int64_t end) {
    return 1e-9 * (double)(end - tw__clock());
}

/* The meeting takes no longer than the ranks give it, nor than this process has: until `end`. Whoever has
 * met all of them hears within moments whether it is in; if it gave up then, it would be lost to them. */
static int accept_invitation(tw_transport **transport, const tw_tcp_params *params,
                             const invitation *i, int64_t end) {
    char name[2 * TW__DIGEST + 1];
    tw_tcp_params own = *params;
    name_meeting(i->id, name);
    own.job = name;
    own.rank = (int)ntohl(i->rank);
    own.nranks = (int)ntohl(i->nranks);
    double given = 1e-3 * ntohl(i->milliseconds);
    own.timeout = fmax(fmin(given, seconds_until(end)), 1e-3);
    TW_TRY(tw_transport_tcp(transport, &own));
    int status = tw__transport_keep_meet(*transport, params);
    if (status == TW_OK)
        status = tw__transport_await_members(
            *transport, ntohl(i->version),
            fmin(given + DECISION, fmax(seconds_until(end), LEAST_WAIT)));
    if (status != TW_OK) {
        tw_transport_free(*transport);
        *transport = NULL;
    }
    return status;
}

int tw_transport_join(tw_transport **transport, const tw_tcp_params *params) {
    TW_REQUIRE(transport, "transport");
    *transport = NULL;
    TW_REQUIRE(params, "params");
    tw_tcp_params own = *params;
    if (own.rank != 0 || own.nranks != 0)
        return tw__fail(TW_ERR_PARAM, "rank, nranks: leave them 0; the job gives them");
    own.nranks = 1;
    TW_TRY(tw__tcp_check(&own));
    int64_t end = tw__clock() + (int64_t)(own.timeout * (double)TW__SECOND);
    for (;;) {
        invitation i = {0};
        TW_TRY(ask_to_join(&own, &i));
        int status = accept_invitation(transport, &own, &i, end);
        own.timeout = seconds_until(end);
        if (status == TW_OK || own.timeout <= 0)
            return status;
        /* The ranks have gone on without it: once more. */
    }
}

/* ---- what the transport remembers of the meeting point */

int tw__transport_keep_meet(tw_transport *t, const tw_tcp_params *params) {
    const char *job = params->job != NULL ? params->job : "";
    size_t meet = strlen(params->meet) + 1, name = strlen(job) + 1;
    tw_tcp_params *kept = calloc(1, sizeof *kept + meet + name + params->secret_bytes);
    if (kept == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the meeting point");
    char *at = (char *)(kept + 1);
    *kept = *params;
    kept->meet = memcpy(at, params->meet, meet);
    kept->job = memcpy(at + meet, job, name);
    if (params->secret != NULL)
        kept->secret = memcpy(at + meet + name, params->secret, params->secret_bytes);
    free(t->meet);
    t->meet = kept;
    return TW_OK;
}

void tw__transport_forget_meet(tw_transport *t) {
    end_admission(t);
    tw__transport_drop_newcomers(t);
    free(t->meet);
    t->meet = NULL;
}
