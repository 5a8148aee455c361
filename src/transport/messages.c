/* messages.c - messages of one rank, counted, and waits until a deadline; see transport.h
 *
 * Every wait is the same loop: test what is under way, and when nothing has changed, pause. A pause
 * idles or does the overlapping work, looks for abort notices every 50 ms, and asks who is alive
 * shortly before the deadline, so that the wait ends at the deadline and not later.
 *
 * In a simulated network each function that may follow a computation enters the clock, which adds
 * the computation's time, and leaves it at the end. */
#include "transport/transport_internal.h"

#include <assert.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Waits longer than this are for a slow network; shorter ones do not start overlapping work. */
#define LONG_WAIT (TW__SECOND / 1000)
/* Replies get half of the timeout, and no more than this. */
#define REPLY_MOST (2 * TW__SECOND)

/* ---- errors of the calls */

static _Thread_local char explanation[256];

int tw_transport_explain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(explanation, sizeof explanation, format, args);
    va_end(args);
    return tw__fail(TW_ERR_TRANSPORT, "%s", explanation);
}

void tw__transport_clear_error(void) {
    explanation[0] = '\0';
}

const char *tw__transport_error_text(int error) {
    if (explanation[0] == '\0')
        snprintf(explanation, sizeof explanation, "error %d, not explained", error);
    return explanation;
}

static int fail_message(const tw_transport *t, const tw__message *message, int error) {
    assert(error < 0);
    return tw__fail(TW_ERR_TRANSPORT, "%s transport: cannot %s rank %d: %s", t->name,
                    message->sending ? "send to" : "receive from", message->peer,
                    tw__transport_error_text(error));
}

/* ---- deadlines */

/* The last part of a wait, in which the others reply. Their machine may be busy, and they look for
 * queries every period. */
int64_t tw__transport_reply_time(const tw_transport *t) {
    return t->timeout / 2 < REPLY_MOST ? t->timeout / 2 : REPLY_MOST;
}

/* With a short timeout ranks look more often: their replies must arrive before it. */
static int64_t check_period(const tw_transport *t, const tw__deadline *deadline) {
    int64_t period = tw__transport_reply_time(t) / 4 < TW__LIVENESS_PERIOD
                         ? tw__transport_reply_time(t) / 4
                         : TW__LIVENESS_PERIOD;
    return deadline->asked ? period / 10 : period;
}

static void begin_wait(const tw_transport *t, tw__deadline *deadline, int64_t now) {
    *deadline = (tw__deadline){.begin = now, .end = now + t->timeout};
    deadline->ask = deadline->end - tw__transport_reply_time(t);
    deadline->next_check = now + check_period(t, deadline);
}

/* A rank that was stopped asks late. The others still get their time to reply. */
static void ask(tw_transport *t, tw__deadline *deadline, int64_t now) {
    tw__liveness_ask(t);
    deadline->asked = 1;
    deadline->end = now + tw__transport_reply_time(t);
}

/* Begins the wait at the first call. Fails if it must end. */
static int check_deadline(tw_transport *t, tw__deadline *deadline, const tw__message *awaited,
                          int64_t now) {
    if (deadline->begin == 0)
        begin_wait(t, deadline, now);
    assert(deadline->next_check > 0 && t->timeout >= 0);
    if (t->interrupted)
        return tw__fail(TW_ERR_STATE, "the group was freed while tensors were under way");
    if (now >= deadline->ask && !deadline->asked)
        ask(t, deadline, now);
    if (now >= deadline->next_check || now >= deadline->end) {
        TW_TRY(tw__liveness_check(t));
        deadline->next_check = now + check_period(t, deadline);
    }
    return now < deadline->end ? TW_OK : tw__liveness_fail(t, awaited);
}

void tw__transport_idle(const tw_transport *t, int64_t nanoseconds) {
    if (t->calls.idle != NULL)
        t->calls.idle(t->context, nanoseconds / 1000 + 1);
    else
        sched_yield();
}

void tw__transport_set_overlap(tw_transport *t, tw__overlap *overlap, void *context) {
    t->overlap = overlap;
    t->overlap_context = context;
}

static int pause_once(tw_transport *t, tw__deadline *deadline, const tw__message *awaited) {
    int64_t now = tw__clock();
    TW_TRY(check_deadline(t, deadline, awaited, now));
    if (t->overlap != NULL && awaited->kind != TW__CONTROL && now - deadline->begin >= LONG_WAIT) {
        t->overlap = t->overlap(t->overlap_context) ? t->overlap : NULL;
        return TW_OK;
    }
    int64_t event = deadline->asked ? deadline->end : deadline->ask;
    tw__transport_idle(t, (deadline->next_check < event ? deadline->next_check : event) - now);
    return TW_OK;
}

int tw__transport_pause(tw_transport *t, tw__deadline *deadline, const tw__message *awaited) {
    assert(awaited != NULL && awaited->peer >= 0 && awaited->peer < t->nranks);
    tw__sim_clock_enter(t->clock);
    int status = pause_once(t, deadline, awaited);
    tw__sim_clock_leave(t->clock);
    return status;
}

int tw__transport_check(tw_transport *t, tw__deadline *deadline, const tw__message *awaited) {
    tw__sim_clock_enter(t->clock);
    int status = check_deadline(t, deadline, awaited, tw__clock());
    tw__sim_clock_leave(t->clock);
    return status;
}

int tw__transport_check_device(tw_transport *t, tw__deadline *deadline, int alone) {
    int64_t now = tw__clock();
    if (deadline->begin == 0)
        begin_wait(t, deadline, now);
    if (now >= deadline->ask)
        return tw__fail(
            TW_ERR_TIMEOUT,
            "the device has not ended within %g s what was queued before this step or in "
            "it; is a stream stuck?",
            (double)(deadline->ask - deadline->begin) / (double)TW__SECOND);
    if (alone && !t->interrupted)
        return TW_OK;
    int status = tw__transport_check(t, deadline, NULL);
    return status == TW_OK ? TW_OK : tw__transport_abort(t, status);
}

/* ---- start */

/* Done when it returns. */
static int transfer_one(tw_transport *t, tw__message *m, void *data, size_t size) {
    tw__transfer transfer = {.peer = m->peer};
    if (m->sending)
        transfer.out = (tw__buffer){.data = data, .bytes = size};
    else
        transfer.in = (tw__buffer){.data = data, .capacity = size};
    TW_TRY(tw__transport_transfer(t, &transfer, 1));
    m->bytes = m->sending ? size : transfer.in.bytes;
    return TW_OK;
}

/* A simulated network has room for a few messages of a pair. The receiver does not wake the sender
 * when it takes one, so the sender yields instead of sleeping. */
static int start_on_clock(tw_transport *t, tw__message *m) {
    tw__deadline deadline = {0};
    if (t->clock == NULL)
        return TW_OK;
    while (m->sending && !tw__sim_clock_has_room(t->clock, m->peer)) {
        TW_TRY(check_deadline(t, &deadline, m, tw__clock()));
        sched_yield();
    }
    tw__sim_clock_start(t->clock, m);
    return TW_OK;
}

static int start(tw_transport *t, tw__message *m, void *data, size_t size) {
    if (m->kind == TW__DEVICE)
        return transfer_one(t, m, data, size);
    TW_TRY(start_on_clock(t, m));
    tw__transport_clear_error();
    int error = m->sending
                    ? t->calls.send(t->context, m->peer, TW__TAG_DATA, data, size, &m->request)
                    : t->calls.recv(t->context, m->peer, TW__TAG_DATA, data, size, &m->request);
    if (error >= 0)
        return TW_OK;
    m->request = NULL;
    return fail_message(t, m, error);
}

static int start_at(tw_transport *t, tw__message *message, void *data, size_t size) {
    assert(message->peer >= 0 && message->peer < t->nranks);
    assert(message->kind >= TW__PAYLOAD && message->kind <= TW__DEVICE);
    tw__sim_clock_enter(t->clock);
    int status = start(t, message, data, size);
    tw__sim_clock_leave(t->clock);
    return status;
}

int tw__transport_send(tw_transport *t, int peer, tw__message_kind kind, const void *data,
                       size_t bytes, tw__message *message) {
    *message = (tw__message){.peer = peer, .sending = 1, .kind = kind, .bytes = bytes};
    return start_at(t, message, (void *)data, bytes);
}

int tw__transport_recv(tw_transport *t, int peer, tw__message_kind kind, void *data,
                       size_t capacity, tw__message *message) {
    *message = (tw__message){.peer = peer, .kind = kind};
    return start_at(t, message, data, capacity);
}

/* ---- test, cancel, wait */

static void count(tw__counters *c, const tw__message *message) {
    int payload = message->kind == TW__PAYLOAD;
    int64_t bytes = (int64_t)message->bytes;
    assert(message->kind != TW__DEVICE && bytes >= 0);
    if (message->sending)
        tw__counter_add(payload ? &c->payload_sent : &c->control_sent, bytes);
    else
        tw__counter_add(payload ? &c->payload_received : &c->control_received, bytes);
    tw__counter_add(&c->messages_sent, message->sending);
}

static int test(tw_transport *t, tw__message *message, int *done) {
    size_t bytes = message->bytes;
    *done = 1;
    if (message->request == NULL)
        return TW_OK;
    tw__transport_clear_error();
    int result = t->calls.test(t->context, message->request, &bytes);
    *done = result != 0;
    if (result == 0)
        return TW_OK;
    message->request = NULL;
    if (result < 0)
        return fail_message(t, message, result);
    if (!message->sending) {
        message->bytes = bytes;
        tw__sim_clock_receive(t->clock, message);
    }
    count(&t->counters, message);
    return TW_OK;
}

int tw__transport_test(tw_transport *t, tw__message *message, int *done) {
    tw__sim_clock_enter(t->clock);
    int status = test(t, message, done);
    tw__sim_clock_leave(t->clock);
    return status;
}

int tw__transport_test_all(tw_transport *t, tw__message *messages, int many,
                           const tw__message **pending) {
    int done = 0;
    for (int i = 0; i < many; i++) {
        TW_TRY(tw__transport_test(t, &messages[i], &done));
        if (!done && *pending == NULL)
            *pending = &messages[i];
    }
    return TW_OK;
}

void tw__transport_cancel(tw_transport *t, tw__message *messages, int many) {
    for (int i = 0; i < many; i++) {
        if (messages[i].request == NULL)
            continue;
        t->calls.cancel(t->context, messages[i].request);
        messages[i].request = NULL;
        t->failed = 1;
    }
}

/* A rank that aborts sends a notice before it closes its connections. If messages fail because of
 * that, the notice is the better reason. */
static int reason_of(tw_transport *t, int status) {
    char text[512];
    if (status != TW_ERR_TRANSPORT)
        return status;
    snprintf(text, sizeof text, "%s", tw_last_error());
    int aborted = tw__liveness_check(t);
    return aborted != TW_OK ? aborted : tw__fail(status, "%s", text);
}

int tw__transport_abort(tw_transport *t, int status) {
    assert(status != TW_OK);
    t->failed = 1;
    status = reason_of(t, status);
    tw__liveness_abort(t, status);
    return status;
}

int tw__transport_wait(tw_transport *t, tw__message *messages, int many) {
    tw__deadline deadline = {0};
    for (;;) {
        const tw__message *pending = NULL;
        int status = tw__transport_test_all(t, messages, many, &pending);
        if (status == TW_OK && pending == NULL) {
            tw__transport_advance_clock(t, messages, many);
            return TW_OK;
        }
        if (status == TW_OK)
            status = tw__transport_pause(t, &deadline, pending);
        if (status != TW_OK) {
            tw__transport_cancel(t, messages, many);
            return tw__transport_abort(t, status);
        }
    }
}
