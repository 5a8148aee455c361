/* fuzz_exchange.c - one honest rank among hostile ones: bytes become the messages of its peers
 *
 * The first bytes choose a job (recording.h), the rank that is real, which of its sends fails, and
 * whether sends are slow. The rank then runs alone: what it sends is dropped, and it receives what
 * its peers sent in the honest run, unless the input says otherwise:
 *
 *     0 .. 127     this and as many more messages arrive as recorded
 *     128 .. 255   the next message is altered, cut or lengthened, replaced by another one or by
 *                  bytes of the input, arrives late, never, or as an error; see answer()
 *
 * Where the input ends, messages arrive as recorded again. Nothing waits: time is that of a clock
 * which each look at a message advances a little, and idling by as much as was asked.
 *
 * Each call must end before its deadline on that clock with TW_OK or a typed error, and leave no
 * request behind. TW_OK: indices ascend, numbers are finite, and with nothing altered the result is
 * that of the honest run. An error: residuals are as before the step. Sanitizers see to memory. A
 * violation prints a line and aborts.
 */
#include <math.h>

#include "fuzz.h"
#include "oracle.h"
#include "recording.h"
#include "transport/transport_internal.h"

enum { TAGS = 4 };
#define TIMEOUT 0.01
/* Waits of a call at most, each as long as the timeout. */
#define MOST_WAITS 64

/* ---- random numbers */

/* Groups that are replayed have the random numbers of those that were recorded. */
ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags);

ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags) {
    (void)flags;
    memset(bytes, 7, size);
    return (ssize_t)size;
}

/* ---- the transport of the real rank */

typedef struct end {
    const recording *recording;
    input *in;
    int rank;
    int received[RANKS]; /* receives of data that were started */
    int requests;        /* under way */
    int as_recorded;     /* messages that still arrive so */
    int altered;         /* messages that did not */
    int sends_left;      /* until one fails; negative: none does */
    int slow_sends;      /* are not done when first tested */
    int64_t n;           /* of all tensors */
    oracle_rng rng;
    output *trace; /* if not NULL: gets messages as they arrive */
    int untraced;  /* but for so many at the begin */
} end;

typedef struct request {
    int sending, peer, tag;
    int number;   /* among the receives from this peer */
    int decided;  /* what becomes of it */
    int never;    /* it is done */
    int tests;    /* that find it not done */
    char *data;   /* of exactly `bytes` */
    size_t bytes; /* sent, or the capacity */
} request;

static request *start(end *e, const request *what, void **handle) {
    request *r = malloc(sizeof *r);
    REQUIRE(r != NULL && what->peer >= 0 && what->peer < e->recording->plan.nranks);
    REQUIRE(what->peer != e->rank && what->tag >= 0 && what->tag < TAGS);
    REQUIRE(what->data != NULL || what->bytes == 0);
    *r = *what;
    e->requests++;
    *handle = r;
    return r;
}

static int end_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **handle) {
    end *e = context;
    if (e->sends_left-- == 0) {
        e->altered++;
        return tw_transport_explain("the fuzzer sends no more");
    }
    REQUIRE(bytes == 0 || memchr(data, -1, bytes) != (void *)-1); /* sanitizers see it read */
    request *r = start(e,
                       &(request){.sending = 1,
                                  .peer = peer,
                                  .tag = tag,
                                  .data = (char *)(uintptr_t)data,
                                  .bytes = bytes},
                       handle);
    r->tests = e->slow_sends;
    return 0;
}

static int end_recv(void *context, int peer, int tag, void *data, size_t capacity, void **handle) {
    end *e = context;
    request *r =
        start(e, &(request){.peer = peer, .tag = tag, .data = data, .bytes = capacity}, handle);
    r->number = tag == TW__TAG_DATA ? e->received[peer]++ : 0;
    return 0;
}

static const channel *channel_of(const end *e, const request *r) {
    return &e->recording->channels[r->peer][e->rank];
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t deliver(const request *r, const message *m) {
    const size_t bytes = smaller(m->bytes, r->bytes);
    if (bytes > 0)
        memcpy(r->data, m->data, bytes);
    return bytes;
}

/* ---- what a peer may send */

static size_t alter(end *e, const request *r, size_t bytes) {
    for (uint32_t changes = 1 + take(e->in, 1) % 4; changes > 0 && bytes > 0; changes--)
        r->data[take(e->in, 2) % bytes] = (char)take(e->in, 1);
    return bytes;
}

/* A number of 4 bytes becomes a little larger or smaller. */
static size_t nudge(end *e, const request *r, size_t bytes) {
    for (uint32_t changes = 1 + take(e->in, 1) % 4; changes > 0 && bytes >= 4; changes--) {
        const size_t at = take(e->in, 2) % (bytes / 4) * 4;
        uint32_t number;
        memcpy(&number, r->data + at, sizeof number);
        number += take(e->in, 1) % 16 - 8;
        memcpy(r->data + at, &number, sizeof number);
    }
    return bytes;
}

static size_t fill_up(const request *r, size_t bytes) {
    if (r->bytes > bytes)
        memset(r->data + bytes, 0, r->bytes - bytes);
    return r->bytes;
}

static size_t another_message(end *e, const request *r) {
    const channel *c = channel_of(e, r);
    return c->sent ? deliver(r, &c->messages[take(e->in, 1) % (uint32_t)c->sent]) : 0;
}

/* Entries as an honest peer might send them: indices ascend within n. */
static size_t entries(end *e, const request *r) {
    const size_t most = smaller(r->bytes / 8, take(e->in, 1));
    int64_t at = oracle_below(&e->rng, 8);
    size_t count = 0;
    for (; count < most && at < e->n; count++) {
        const int32_t idx = (int32_t)at;
        const float val = (float)oracle_gauss(&e->rng);
        memcpy(r->data + 8 * count, &idx, sizeof idx);
        memcpy(r->data + 8 * count + 4, &val, sizeof val);
        at += 1 + oracle_below(&e->rng, 1 + e->n / 32);
    }
    return 8 * count;
}

/* NaN, infinity and extremes as values of entries. */
static size_t wild_values(end *e, const request *r, size_t bytes) {
    const float wild[] = {NAN, INFINITY, 3e38f, -3e38f, 0.0f, -0.0f, 1e-45f};
    for (size_t at = 4; at + 4 <= bytes; at += 8)
        if (oracle_below(&e->rng, 3) == 0)
            memcpy(r->data + at, &wild[oracle_below(&e->rng, 7)], sizeof(float));
    return bytes;
}

/* Small numbers of 4 bytes: counts that look like counts. */
static size_t counts(end *e, const request *r) {
    const uint32_t most = 1 + take(e->in, 1);
    for (size_t at = 0; at + 4 <= r->bytes; at += 4) {
        const uint32_t count = (uint32_t)oracle_below(&e->rng, most);
        memcpy(r->data + at, &count, sizeof count);
    }
    return r->bytes - r->bytes % 4;
}

static size_t bytes_of_input(end *e, const request *r) {
    const input part = take_part(e->in);
    const size_t bytes = smaller(part.left, r->bytes);
    if (bytes > 0)
        memcpy(r->data, part.data, bytes);
    return bytes;
}

enum { FAILS = -1, LATE = 0, ARRIVES = 1 }; /* as tw_transport_calls.test returns */

/* Answers a receive unlike the honest peer. The cases that seeds use have names. */
enum { CASES = 16, CASE_INPUT = 7, CASE_LATE = 14 };

static int answer(end *e, request *r, const message *honest, uint32_t how, size_t *bytes) {
    const size_t given = deliver(r, honest);
    switch (how % CASES) {
    case 0:
    case 1:
        *bytes = alter(e, r, given);
        return ARRIVES;
    case 2:
    case 3:
        *bytes = nudge(e, r, given);
        return ARRIVES;
    case 4:
        *bytes = wild_values(e, r, given);
        return ARRIVES;
    case 5:
        *bytes = given ? take(e->in, 2) % given : 0;
        return ARRIVES;
    case 6:
        *bytes = fill_up(r, given);
        return ARRIVES;
    case CASE_INPUT:
    case CASE_INPUT + 1:
        *bytes = bytes_of_input(e, r);
        return ARRIVES;
    case 9:
        *bytes = another_message(e, r);
        return ARRIVES;
    case 10:
        *bytes = entries(e, r);
        return ARRIVES;
    case 11:
        *bytes = nudge(e, r, wild_values(e, r, entries(e, r)));
        return ARRIVES;
    case 12:
        *bytes = counts(e, r);
        return ARRIVES;
    case 13:
        return tw_transport_explain("the fuzzer says no");
    case CASE_LATE:
        r->tests = (int)take(e->in, 1);
        return LATE;
    default:
        r->never = 1;
        return LATE;
    }
}

/* For a seed: the message as bytes of an input, unless it is one of the first. */
static void trace(end *e, const request *r, size_t bytes) {
    enum { MOST = 4000 };
    if (e->trace == NULL || e->untraced-- > 0 || e->trace->size + bytes > MOST)
        return;
    put(e->trace, 128 + CASE_INPUT, 1);
    put_part(e->trace, r->data, bytes);
}

static int receive(end *e, request *r, size_t *bytes) {
    const channel *c = channel_of(e, r);
    const message none = {NULL, 0};
    const message *honest = r->number < c->sent ? &c->messages[r->number] : &none;
    uint32_t how = 0;
    if (!r->decided && e->as_recorded-- <= 0 && e->in->left > 0) {
        how = take(e->in, 1);
        e->as_recorded = how < 128 ? (int)how : 0;
    }
    r->decided = 1;
    if (how >= 128) {
        e->altered++;
        return answer(e, r, honest, how, bytes);
    }
    if (honest == &none)
        return LATE;
    if (honest->bytes > r->bytes)
        return tw_transport_explain("the message is longer than expected");
    *bytes = deliver(r, honest);
    trace(e, r, *bytes);
    return ARRIVES;
}

/* Peers send notices if the input says so. */
static int receive_notice(end *e, const request *r, size_t *bytes) {
    tw__notice notice = {.kind = 0};
    const uint32_t how = e->in->left > 0 ? take(e->in, 1) % 8 : 0;
    if (how < 4)
        return LATE;
    e->altered++;
    *bytes = offsetof(tw__notice, text);
    notice.kind = (int32_t)how - 3; /* query, reply, abort notice, none of them */
    if (notice.kind == 3)
        notice.status = (int32_t)take(e->in, 1) - 64;
    REQUIRE(r->bytes == sizeof notice);
    memcpy(r->data, &notice, *bytes);
    if (notice.kind >= 3) {
        const input text = take_part(e->in);
        const size_t most = smaller(text.left, r->bytes - *bytes);
        memcpy(r->data + *bytes, text.data, most);
        *bytes += most;
    }
    return ARRIVES;
}

static int end_test(void *context, void *handle, size_t *bytes) {
    end *e = context;
    request *r = handle;
    fuzz_now += 100;
    *bytes = r->bytes;
    if (r->never || r->tests-- > 0)
        return LATE;
    const int done = r->sending                   ? ARRIVES
                     : r->tag == TW__TAG_LIVENESS ? receive_notice(e, r, bytes)
                                                  : receive(e, r, bytes);
    if (done != LATE) {
        free(r);
        e->requests--;
    }
    return done;
}

static void end_cancel(void *context, void *handle) {
    free(handle);
    ((end *)context)->requests--;
}

static void end_idle(void *context, int64_t microseconds) {
    (void)context;
    REQUIRE(microseconds > 0);
    fuzz_now += 1000 * microseconds;
}

static int end_host(void *context, int rank) {
    return rank - rank % ((end *)context)->recording->plan.host_ranks;
}

static const tw_transport_calls calls = {.name = "fuzz",
                                         .send = end_send,
                                         .recv = end_recv,
                                         .test = end_test,
                                         .cancel = end_cancel,
                                         .idle = end_idle,
                                         .host = end_host};

/* ---- the run */

static int is_known(int status) {
    return status <= TW_OK && status >= TW_ERR_EXCLUDED;
}

static void check_result(const member *m, int tensor) {
    const int64_t n = m->plan->n[tensor];
    tw_sparse sparse;
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(m->out[tensor][i]));
    if (m->plan->dense)
        return;
    REQUIRE(tw_group_result(m->group, tensor, &sparse) == TW_OK);
    REQUIRE(sparse.count >= 0 && sparse.count <= n);
    for (int64_t j = 0; j < sparse.count; j++) {
        REQUIRE(sparse.idx[j] >= (j ? sparse.idx[j - 1] + 1 : 0) && sparse.idx[j] < n);
        REQUIRE(oracle_bits(sparse.val[j]) == oracle_bits(m->out[tensor][sparse.idx[j]]));
    }
}

/* Residuals of all tensors, end to end: [n of all]. */
static void get_residuals(const member *m, float *residuals) {
    for (int i = 0; i < m->plan->tensors; residuals += m->plan->n[i++]) {
        REQUIRE(tw_group_get_residual(m->group, i, residuals) == TW_OK);
        for (int64_t j = 0; j < m->plan->n[i]; j++)
            REQUIRE(isfinite(residuals[j]));
    }
}

/* A call fails at its deadline, which each of its waits has. */
static int in_time(int status, int64_t begin) {
    REQUIRE(is_known(status));
    REQUIRE(status == TW_OK || tw_last_error()[0] != '\0');
    REQUIRE((double)(fuzz_now - begin) < MOST_WAITS * TIMEOUT * 1e9);
    return status;
}

/* Returns whether another step can follow. A step of two tensors may have ended for one of them. */
static int run_step(end *e, member *m, int step) {
    const size_t bytes = (size_t)e->n * sizeof(float);
    float *before = malloc(2 * bytes), *after = before + e->n;
    REQUIRE(before != NULL);
    get_residuals(m, before);
    const int64_t begin = fuzz_now;
    const int status = in_time(member_step(m, step), begin);
    get_residuals(m, after);
    for (int i = 0; i < m->plan->tensors && status == TW_OK; i++)
        check_result(m, i);
    if (status != TW_OK && m->plan->tensors == 1)
        REQUIRE(memcmp(before, after, bytes) == 0);
    if (e->altered == 0)
        REQUIRE(status == TW_OK && member_hash(m) == e->recording->results[step]);
    free(before);
    return status == TW_OK || status == TW_ERR_NUMBER;
}

static void run(end *e) {
    plan p = e->recording->plan;
    tw_transport *transport;
    member m;
    p.params.timeout = TIMEOUT;
    fuzz_now = TW__SECOND;
    for (int i = 0; i < p.tensors; i++)
        e->n += p.n[i];
    REQUIRE(tw_transport_custom(&transport, &calls, e, e->rank, p.nranks) == TW_OK);
    member_create(&m, &p, transport, e->rank);
    int more = in_time(tw_group_open(m.group), TW__SECOND) == TW_OK;
    for (int step = 0; step < STEPS && more; step++)
        more = run_step(e, &m, step);
    member_free(&m);
    tw_transport_free(transport);
    REQUIRE(e->requests == 0);
    fuzz_now = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    end e = {.in = &in};
    e.recording = recording_of((int)(take(&in, 2) % (uint32_t)plan_count()));
    e.rank = (int)(take(&in, 1) % (uint32_t)e.recording->plan.nranks);
    const uint32_t sends = take(&in, 1);
    e.sends_left = sends % 4 == 3 ? (int)(sends / 4) : -1;
    e.slow_sends = sends % 4 == 2 ? (int)(sends / 4) : 0;
    e.altered = e.slow_sends > 0; /* they may take too long */
    e.rng.key = take(&in, 1);
    run(&e);
    return 0;
}

/* Even seeds: some messages as recorded, then one case of answer(). Odd ones: after some, all others
 * are bytes of the input, which libFuzzer can change and combine. Every exchange, format and P; some
 * of the variants. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    const int plan_number = 3 * number, first = number / 2 % 64;
    output out = {data, 0, room};
    input nothing = {data, 0};
    oracle_rng rng = {.key = (uint64_t)number};
    if (plan_number >= plan_count())
        return 0;
    end e = {.recording = recording_of(plan_number), .in = &nothing, .sends_left = -1};
    e.rank = number % e.recording->plan.nranks;
    put(&out, (uint32_t)plan_number, 2);
    put(&out, (uint32_t)e.rank, 1);
    put(&out, 0, 2);
    if (first > 0)
        put(&out, (uint32_t)first - 1, 1);
    if (number % 2 == 0) {
        put(&out, 128 + (uint32_t)oracle_below(&rng, CASES), 1);
        put(&out, (uint32_t)oracle_next(&rng), 4);
        put(&out, (uint32_t)oracle_next(&rng), 4);
    } else {
        e.trace = &out;
        e.untraced = first;
        run(&e);
    }
    return out.size;
}
