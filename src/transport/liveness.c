/* liveness.c - which ranks are alive when a deadline is near, and abort notices
 *
 *   rank 0 waits for 1              rank 1 waits for 2          rank 2 is stopped
 *   half of the timeout, or 2 s before the deadline:
 *   "alive?" -> 1, 2
 *                                   "alive" -> 0                (no reply)
 *   deadline: TW_ERR_TIMEOUT
 *   names rank 2
 *   abort notice -> 1, 2            fails with the same text
 *
 * The error names the rank that is missing, not one that waits for it, and no rank waits for one
 * that has aborted. If the message arrives after all, the replies are read later and ignored. A rank
 * that has waited for 50 ms (an eighth of the timeout, if that is shorter) looks for queries and
 * notices; shorter waits pay nothing. A rank that is not in a call of the library does not reply and
 * counts as missing. These messages have a tag of their own and are not counted as traffic: they are
 * sent only when a rank is late.
 *
 * A rank has one receive under way from every other rank and renews it after each notice. Notices are
 * written once for each membership: no buffer changes while it is being sent. */
#include "base/memory.h"
#include "transport/transport_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERY = 1, REPLY = 2, ABORT = 3 };
#define HEAD offsetof(tw__notice, text)

/* Missing ranks that are named; the others are counted. */
#define NAMED 16

int tw__liveness_create(tw_transport *t) {
    size_t bytes = (size_t)t->nranks * sizeof *t->liveness.peers;
    t->liveness.peers = tw__reserve(bytes);
    if (t->liveness.peers == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes; lower nranks", bytes);
    return TW_OK;
}

/* ---- send and receive */

/* Unless one is under way in *request. A send that fails is no error: the peer is gone. */
static void send_notice(const tw_transport *t, int to, const tw__notice *notice, size_t bytes,
                        void **request) {
    assert(to != t->rank && bytes >= HEAD && bytes <= sizeof *notice);
    if (*request == NULL &&
        t->calls.send(t->context, to, TW__TAG_LIVENESS, notice, bytes, request) < 0)
        *request = NULL;
}

/* A peer that has finished may have closed its transport. If this rank still needs it, the messages
 * that it waits for fail. */
static void start_receive(tw_transport *t, int from) {
    tw__liveness_peer *peer = &t->liveness.peers[from];
    assert(peer->receive == NULL);
    if (t->calls.recv(t->context, from, TW__TAG_LIVENESS, &peer->notice, sizeof peer->notice,
                      &peer->receive) < 0)
        peer->receive = NULL;
}

static void start_receives(tw_transport *t) {
    if (t->liveness.started)
        return;
    t->liveness.started = 1;
    memset(t->liveness.peers, 0, (size_t)t->nranks * sizeof *t->liveness.peers);
    t->liveness.query = (tw__notice){.kind = QUERY, .version = t->version};
    t->liveness.reply = (tw__notice){.kind = REPLY, .version = t->version};
    for (int i = 0; i < t->nranks; i++)
        if (i != t->rank)
            start_receive(t, i);
}

/* Whether a request is under way. One that failed is not. */
static int is_active(const tw_transport *t, void **request) {
    size_t bytes = 0;
    if (*request != NULL && t->calls.test(t->context, *request, &bytes) != 0)
        *request = NULL;
    return *request != NULL;
}

/* Another rank's reason is also this rank's: both wait in vain. */
static int take_notice(tw_transport *t, size_t bytes, int from) {
    tw__liveness_peer *peer = &t->liveness.peers[from];
    const tw__notice *n = &peer->notice;
    int kind = bytes >= HEAD && bytes <= sizeof *n ? n->kind : 0;
    if (kind != QUERY && kind != REPLY && kind != ABORT)
        return tw__fail(TW_ERR_PROTOCOL,
                        "liveness check: rank %d sent %zu bytes of kind %d; do all ranks run the "
                        "same version?",
                        from, bytes, kind);
    if (n->version != t->version) /* its sender has not changed its ranks yet, or this one */
        return TW_OK;
    peer->reply_due |= kind == QUERY;
    peer->alive |= kind != QUERY;
    return kind != ABORT ? TW_OK
                         : tw__fail(tw__known_error(n->status), "%.*s (says rank %d)",
                                    (int)(bytes - HEAD), n->text, from);
}

static int check_peer(tw_transport *t, int from) {
    tw__liveness_peer *peer = &t->liveness.peers[from];
    size_t bytes = 0;
    int done = peer->receive == NULL ? 0 : t->calls.test(t->context, peer->receive, &bytes);
    if (done != 0)
        peer->receive = NULL;
    if (done > 0) {
        TW_TRY(take_notice(t, bytes, from));
        start_receive(t, from);
    }
    if (peer->reply_due && !is_active(t, &peer->reply)) {
        peer->reply_due = 0;
        send_notice(t, from, &t->liveness.reply, HEAD, &peer->reply);
    }
    return TW_OK;
}

int tw__liveness_check(tw_transport *t) {
    start_receives(t);
    for (int i = 0; i < t->nranks; i++)
        if (i != t->rank)
            TW_TRY(check_peer(t, i));
    return TW_OK;
}

/* ---- query */

static int count_missing(const tw_transport *t) {
    int missing = 0;
    for (int i = 0; i < t->nranks; i++)
        missing += i != t->rank && !t->liveness.peers[i].alive;
    return missing;
}

/* "rank 3", "ranks 3, 5", "ranks 3, 5, ... and 9 more" */
static void name_missing(const tw_transport *t, int missing, char *text, size_t size) {
    int named = 0;
    size_t used = (size_t)snprintf(text, size, missing == 1 ? "rank" : "ranks");
    for (int i = 0; i < t->nranks && named < NAMED; i++)
        if (i != t->rank && !t->liveness.peers[i].alive)
            used += (size_t)snprintf(text + used, size - used, named++ == 0 ? " %d" : ", %d", i);
    assert(used < size);
    if (missing > named)
        snprintf(text + used, size - used, " and %d more", missing - named);
}

int tw__liveness_fail(tw_transport *t, const tw__message *awaited) {
    char names[NAMED * 8 + 32];
    double seconds = (double)t->timeout / (double)TW__SECOND;
    int missing = count_missing(t);
    for (int i = 0; i < t->nranks; i++)
        t->liveness.peers[i].missing = i != t->rank && !t->liveness.peers[i].alive;
    if (missing > 0) {
        name_missing(t, missing, names, sizeof names);
        return tw__fail(TW_ERR_TIMEOUT, "no answer within %g s from %s; %s stopped or dead?",
                        seconds, names, missing == 1 ? "is it" : "are they");
    }
    return tw__fail(TW_ERR_TIMEOUT,
                    "all ranks answer, but within %g s rank %d has not %s rank %d %s: are the "
                    "calls in the same order on all ranks?",
                    seconds, awaited->peer, awaited->sending ? "received what" : "sent what",
                    t->rank, awaited->sending ? "sends" : "waits for");
}

void tw__liveness_ask(tw_transport *t) {
    start_receives(t);
    for (int i = 0; i < t->nranks; i++) {
        tw__liveness_peer *peer = &t->liveness.peers[i];
        peer->alive = 0;
        if (i != t->rank && !is_active(t, &peer->query))
            send_notice(t, i, &t->liveness.query, HEAD, &peer->query);
    }
}

void tw__transport_suspect(tw_transport *t, int rank) {
    start_receives(t);
    t->liveness.peers[rank].missing = 1;
}

/* ---- abort */

void tw__liveness_abort(tw_transport *t, int status) {
    tw__liveness *l = &t->liveness;
    char reason[512];
    assert(status != TW_OK);
    if (l->abort_bytes > 0)
        return;
    snprintf(reason, sizeof reason, "%s", tw_last_error());
    size_t length = strnlen(reason, sizeof l->abort.text);
    l->abort = (tw__notice){.kind = ABORT, .status = status, .version = t->version};
    memcpy(l->abort.text, reason, length);
    l->abort_bytes = HEAD + length;
    start_receives(t);
    for (int i = 0; i < t->nranks; i++)
        if (i != t->rank)
            send_notice(t, i, &l->abort, l->abort_bytes, &l->peers[i].abort);
    (void)tw__fail(status, "%s", reason); /* sends may have changed it */
}

/* Peers that wait check twice in this time. */
static void wait_for_notices(tw_transport *t) {
    int64_t deadline = tw__clock() + 2 * TW__LIVENESS_PERIOD;
    int left = 1;
    while (left > 0 && tw__clock() < deadline) {
        left = 0;
        for (int i = 0; i < t->nranks; i++)
            left += is_active(t, &t->liveness.peers[i].abort);
        if (left > 0)
            tw__transport_idle(t, TW__LIVENESS_PERIOD / 10);
    }
}

/* A peer that has changed its ranks already may send notices of the next membership: they wait until this
 * rank has changed too. */
void tw__liveness_suspend(tw_transport *t) {
    for (int i = 0; t->liveness.started && i < t->nranks; i++) {
        tw__liveness_peer *peer = &t->liveness.peers[i];
        if (is_active(t, &peer->receive))
            t->calls.cancel(t->context, peer->receive);
        peer->receive = NULL;
    }
}

static void cancel_all(tw_transport *t) {
    for (int i = 0; t->liveness.started && i < t->nranks; i++) {
        tw__liveness_peer *peer = &t->liveness.peers[i];
        void *requests[] = {peer->receive, peer->query, peer->reply, peer->abort};
        for (int r = 0; r < 4; r++)
            if (is_active(t, &requests[r]))
                t->calls.cancel(t->context, requests[r]);
    }
    t->liveness.started = 0;
}

void tw__liveness_stop(tw_transport *t) {
    cancel_all(t);
    t->liveness.abort_bytes = 0;
}

void tw__liveness_free(tw_transport *t) {
    tw__liveness *l = &t->liveness;
    if (l->abort_bytes > 0)
        wait_for_notices(t);
    cancel_all(t);
    free(l->peers);
}
