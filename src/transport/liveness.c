/* roll_call.c - who is there, when a wait has lasted too long; see roll_call.h
 *
 * Every rank listens to every other with one receive, renewed when something was heard. What it
 * says is either the same to all and for ever, the two constants below, or its last words: so
 * nothing that is under way is ever overwritten. */
#include "transport/liveness.h"
#include "base/clock.h"
#include "base/memory.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTION = 1, ANSWER = 2, FAREWELL = 3 };
#define HEAD offsetof(tw__notice, text)

static const tw__notice question = {.kind = QUESTION};
static const tw__notice answer = {.kind = ANSWER};

/* Answers are waited for as long as for the messages themselves, but not for ever, and long enough
 * for ranks that look every TW__LIVENESS_PERIOD on a busy machine. */
#define GRACE_LEAST (TW__SECOND / 2)
#define GRACE_MOST (2 * TW__SECOND)
/* Ranks that are named; the rest is counted. */
#define NAMED 16

int tw__liveness_create(tw__liveness *roll, const tw_transport_calls *calls, void *context,
                        int rank, int nranks) {
    *roll = (tw__liveness){.calls = calls, .context = context, .rank = rank, .nranks = nranks};
    size_t bytes = (size_t)nranks * sizeof *roll->peers;
    roll->peers = tw__reserve(bytes);
    if (roll->peers == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had; lower nranks", bytes);
    return TW_OK;
}

void tw__liveness_idle(const tw__liveness *roll, int64_t nanoseconds) {
    if (roll->calls->idle != NULL)
        roll->calls->idle(roll->context, nanoseconds / 1000 + 1);
    else
        sched_yield();
}

/* ---- saying and hearing */

/* Starts a message if none is under way in *request. */
static int say(tw__liveness *roll, int to, const tw__notice *words, size_t bytes, void **request) {
    if (*request != NULL)
        return TW_OK;
    tw__transport_forget_failure();
    int error = roll->calls->send(roll->context, to, TW__TAG_LIVENESS, words, bytes, request);
    if (error >= 0)
        return TW_OK;
    *request = NULL;
    return tw__transport_failed(roll->calls, "send to", to, error);
}

/* A rank that is done may have closed its end: it has nothing to say then. Whoever waits for one
 * that has gone too early learns it from what it waits for. */
static void listen_to(tw__liveness *roll, int from) {
    tw__liveness_peer *peer = &roll->peers[from];
    if (roll->calls->recv(roll->context, from, TW__TAG_LIVENESS, &peer->heard, sizeof peer->heard,
                          &peer->listen) < 0)
        peer->listen = NULL;
}

static void listen_to_all(tw__liveness *roll) {
    if (roll->listening)
        return;
    roll->listening = 1;
    memset(roll->peers, 0, (size_t)roll->nranks * sizeof *roll->peers);
    for (int i = 0; i < roll->nranks; i++)
        if (i != roll->rank)
            listen_to(roll, i);
}

/* Whether a send is still under way. A failed one is over too: silence will tell. */
static int speaking(const tw__liveness *roll, void **request) {
    size_t bytes = 0;
    if (*request != NULL && roll->calls->test(roll->context, *request, &bytes) != 0)
        *request = NULL;
    return *request != NULL;
}

/* Another rank's reason becomes ours: what it waited for will not come for us either. */
static int hear_farewell(const tw__notice *words, size_t bytes, int from) {
    return tw__fail(tw__known_error(words->status), "%.*s (says rank %d)", (int)(bytes - HEAD),
                    words->text, from);
}

static int hear(tw__liveness *roll, size_t bytes, int from) {
    tw__liveness_peer *peer = &roll->peers[from];
    int kind = bytes >= HEAD && bytes <= sizeof peer->heard ? peer->heard.kind : 0;
    if (kind == QUESTION)
        peer->owed = 1;
    else if (kind == ANSWER || kind == FAREWELL)
        peer->present = 1;
    else
        return tw__fail(TW_ERR_PROTOCOL,
                        "roll call: rank %d sent %zu bytes of kind %d; do all "
                        "ranks run the same version?",
                        from, bytes, kind);
    return kind == FAREWELL ? hear_farewell(&peer->heard, bytes, from) : TW_OK;
}

static int look_at(tw__liveness *roll, int from) {
    tw__liveness_peer *peer = &roll->peers[from];
    size_t bytes = 0;
    int status = TW_OK;
    int done = peer->listen == NULL ? 0 : roll->calls->test(roll->context, peer->listen, &bytes);
    if (done != 0)
        peer->listen = NULL;
    if (done > 0) {
        status = hear(roll, bytes, from);
        if (status == TW_OK)
            listen_to(roll, from);
    }
    if (peer->owed && !speaking(roll, &peer->answer)) {
        peer->owed = 0;
        (void)say(roll, from, &answer, HEAD, &peer->answer);
    }
    return status;
}

int tw__liveness_look(tw__liveness *roll) {
    int status = TW_OK;
    listen_to_all(roll);
    for (int i = 0; i < roll->nranks && status == TW_OK; i++)
        if (i != roll->rank)
            status = look_at(roll, i);
    return status;
}

/* ---- asking */

static int count_absent(const tw__liveness *roll) {
    int absent = 0;
    for (int i = 0; i < roll->nranks; i++)
        absent += i != roll->rank && !roll->peers[i].present;
    return absent;
}

/* "rank 3", "ranks 3, 5", "ranks 3, 5, ... and 9 more" */
static void name_absent(const tw__liveness *roll, int absent, char *text, size_t size) {
    int named = 0;
    size_t used = (size_t)snprintf(text, size, absent == 1 ? "rank" : "ranks");
    for (int i = 0; i < roll->nranks && named < NAMED; i++)
        if (i != roll->rank && !roll->peers[i].present)
            used += (size_t)snprintf(text + used, size - used, named++ == 0 ? " %d" : ", %d", i);
    if (absent > named)
        snprintf(text + used, size - used, " and %d more", absent - named);
}

static int verdict(const tw__liveness *roll, double seconds, const tw__message *awaited) {
    char names[NAMED * 8 + 32];
    int absent = count_absent(roll);
    if (absent > 0) {
        name_absent(roll, absent, names, sizeof names);
        return tw__fail(TW_ERR_TIMEOUT, "no answer within %g s from %s; %s stopped or dead?",
                        seconds, names, absent == 1 ? "is it" : "are they");
    }
    return tw__fail(TW_ERR_TIMEOUT,
                    "all ranks answer, but within %g s rank %d has not %s rank %d %s: are the "
                    "calls in the same order on all ranks?",
                    seconds, awaited->peer, awaited->sending ? "received what" : "sent what",
                    roll->rank, awaited->sending ? "sends" : "waits for");
}

/* What a single rank fails with means here that it is not there. */
static void ask_all(tw__liveness *roll) {
    listen_to_all(roll);
    for (int i = 0; i < roll->nranks; i++) {
        tw__liveness_peer *peer = &roll->peers[i];
        peer->present = 0;
        if (i != roll->rank && !speaking(roll, &peer->question))
            (void)say(roll, i, &question, HEAD, &peer->question);
    }
}

int tw__liveness_ask(tw__liveness *roll, int64_t timeout, const tw__message *awaited) {
    int64_t grace = timeout < GRACE_LEAST ? GRACE_LEAST : timeout;
    int64_t deadline = tw__clock() + (grace < GRACE_MOST ? grace : GRACE_MOST);
    ask_all(roll);
    do {
        tw__liveness_idle(roll, TW__LIVENESS_PERIOD / 10);
        TW_TRY(tw__liveness_look(roll));
    } while (count_absent(roll) > 0 && tw__clock() < deadline);
    return verdict(roll, (double)timeout / (double)TW__SECOND, awaited);
}

/* ---- leaving */

/* What the calls may say about others that are gone is not why this rank leaves. */
static void say_farewell(tw__liveness *roll) {
    listen_to_all(roll);
    for (int i = 0; i < roll->nranks; i++)
        if (i != roll->rank)
            (void)say(roll, i, &roll->farewell, roll->farewell_bytes, &roll->peers[i].farewell);
}

void tw__liveness_abort(tw__liveness *roll, int status) {
    if (roll->farewell_bytes > 0)
        return;
    char reason[512];
    snprintf(reason, sizeof reason, "%s", tw_last_error());
    tw__notice *words = &roll->farewell;
    *words = (tw__notice){.kind = FAREWELL, .status = status};
    size_t length = strnlen(reason, sizeof words->text);
    memcpy(words->text, reason, length);
    roll->farewell_bytes = HEAD + length;
    say_farewell(roll);
    (void)tw__fail(status, "%s", reason);
}

/* Last words get the time in which those who wait look twice. */
static void linger(tw__liveness *roll) {
    int64_t deadline = tw__clock() + 2 * TW__LIVENESS_PERIOD;
    int left = 1;
    while (left > 0 && tw__clock() < deadline) {
        left = 0;
        for (int i = 0; i < roll->nranks; i++)
            left += speaking(roll, &roll->peers[i].farewell);
        if (left > 0)
            tw__liveness_idle(roll, TW__LIVENESS_PERIOD / 10);
    }
}

static void give_up(const tw__liveness *roll, void **request) {
    if (*request != NULL && speaking(roll, request))
        roll->calls->cancel(roll->context, *request);
    *request = NULL;
}

void tw__liveness_free(tw__liveness *roll) {
    if (roll->farewell_bytes > 0)
        linger(roll);
    for (int i = 0; roll->listening && i < roll->nranks; i++) {
        give_up(roll, &roll->peers[i].listen);
        give_up(roll, &roll->peers[i].question);
        give_up(roll, &roll->peers[i].answer);
        give_up(roll, &roll->peers[i].farewell);
    }
    free(roll->peers);
    roll->peers = NULL;
}
