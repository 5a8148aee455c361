/* fuzz_exchange.c - one honest rank among hostile ones: bytes become the messages of its peers
 *
 * A libFuzzer target; fuzz_main.c runs it on seeded random bytes where libFuzzer is missing. The
 * first bytes say P, the exchange and the sizes. All P ranks then run honestly, as threads over
 * mailboxes that keep every letter. Next one of them runs again, alone: its sends are swallowed, and
 * it receives the kept letters, but from some receive on each takes a byte that says what the peer
 * sends instead: the letter altered, cut or lengthened, another letter, entries, counts, noise,
 * nothing, an error, or never anything.
 *
 * Whatever comes, each call must end in time with TW_OK or an error of the list, touch nothing that
 * is not its own (the sanitizers see to that), leave no request behind, and if it says TW_OK, give
 * a result in which indices ascend and numbers are finite. On a violation: a line, and abort().
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"
#include "oracle.h"

enum { RANKS = 5, TAGS = 4, TENSORS = 2, STEPS = 3 };
#define HONEST_TIMEOUT 60.0
#define HOSTILE_TIMEOUT 0.01

/* ---- Mailboxes ----------------------------------------------------------------------------------- */

typedef struct letter {
    char *data;
    size_t bytes;
} letter;

/* All letters from one rank to another under one tag. */
typedef struct box {
    letter *letters; /* [room] */
    int sent, room;
} box;

typedef struct post {
    pthread_mutex_t mutex;
    box boxes[RANKS][RANKS][TAGS]; /* [from][to] */
} post;

/* One rank's end. */
typedef struct end {
    post *post;
    int rank;
    int received[RANKS][TAGS]; /* receives that were started */
    int requests;              /* that are under way */
    input *in;                 /* NULL: honest */
    int patience;              /* receives that are still honest */
    int64_t n;                 /* of all tensors */
    oracle_rng rng;
} end;

typedef struct request {
    int sending;
    int never; /* it will not come */
    int number;
    int peer, tag;
    char *data;
    size_t bytes; /* sent, or the capacity */
} request;

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    REQUIRE(memory != NULL);
    return memory;
}

static void box_add(box *b, const void *data, size_t bytes) {
    if (b->sent == b->room) {
        b->room = 2 * b->room + 8;
        b->letters = realloc(b->letters, (size_t)b->room * sizeof *b->letters);
        REQUIRE(b->letters != NULL);
    }
    letter *l = &b->letters[b->sent++];
    *l = (letter){allocate(bytes + 1, 1), bytes};
    if (bytes > 0)
        memcpy(l->data, data, bytes);
}

static void post_free(post *p) {
    for (box *b = &p->boxes[0][0][0]; b < &p->boxes[0][0][0] + RANKS * RANKS * TAGS; b++) {
        for (int i = 0; i < b->sent; i++)
            free(b->letters[i].data);
        free(b->letters);
    }
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* The letter of this number, if it is there. */
static int find_letter(end *e, const request *r, letter *found) {
    box *b = &e->post->boxes[r->peer][e->rank][r->tag];
    pthread_mutex_lock(&e->post->mutex);
    const int there = r->number < b->sent;
    if (there)
        *found = b->letters[r->number];
    pthread_mutex_unlock(&e->post->mutex);
    return there;
}

/* ---- The calls of the transport -------------------------------------------------------------------- */

static int end_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **handle) {
    end *e = context;
    REQUIRE(peer >= 0 && peer < RANKS && tag >= 0 && tag < TAGS && (data || bytes == 0));
    box alone = {NULL, 0, 0}; /* all of it is read, for the sanitizers */
    box *b = e->in ? &alone : &e->post->boxes[e->rank][peer][tag];
    pthread_mutex_lock(&e->post->mutex);
    box_add(b, data, bytes);
    pthread_mutex_unlock(&e->post->mutex);
    if (e->in) {
        free(alone.letters[0].data);
        free(alone.letters);
    }
    request *r = allocate(1, sizeof *r);
    *r = (request){.sending = 1, .bytes = bytes};
    e->requests++;
    *handle = r;
    return 0;
}

static int end_recv(void *context, int peer, int tag, void *data, size_t capacity, void **handle) {
    end *e = context;
    REQUIRE(peer >= 0 && peer < RANKS && tag >= 0 && tag < TAGS && (data || capacity == 0));
    request *r = allocate(1, sizeof *r);
    *r = (request){.peer = peer, .tag = tag, .data = data, .bytes = capacity};
    r->number = e->received[peer][tag]++;
    e->requests++;
    *handle = r;
    return 0;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t deliver(const request *r, const letter *l) {
    const size_t bytes = smaller(l->bytes, r->bytes);
    if (bytes > 0)
        memcpy(r->data, l->data, bytes);
    return bytes;
}

/* ---- What a peer may send ----------------------------------------------------------------------------- */

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

static size_t another_letter(end *e, const request *r) {
    const box *b = &e->post->boxes[r->peer][e->rank][0];
    return b->sent ? deliver(r, &b->letters[take(e->in, 1) % (uint32_t)b->sent]) : 0;
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

/* Values that are none in what may be entries. */
static size_t wild_values(end *e, const request *r, size_t bytes) {
    const float wild[] = {NAN, INFINITY, 3e38f, -3e38f, 0.0f, -0.0f, 1e-45f};
    for (size_t at = 4; at + 4 <= bytes; at += 8)
        if (oracle_below(&e->rng, 3) == 0)
            memcpy(r->data + at, &wild[oracle_below(&e->rng, 7)], sizeof(float));
    return bytes;
}

static size_t noise(end *e, const request *r, int full) {
    const size_t bytes = full || r->bytes == 0 ? r->bytes : take(e->in, 2) % (r->bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        r->data[i] = (char)oracle_next(&e->rng);
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

/* Answer a receive otherwise than the honest peer did; returns as test does. */
static int answer(end *e, request *r, const letter *honest, uint32_t dice, size_t *bytes) {
    const size_t given = deliver(r, honest);
    switch (dice % 16) {
    case 0:
    case 1:
    case 2:
        *bytes = alter(e, r, given);
        return 1;
    case 3:
    case 4:
    case 5:
        *bytes = nudge(e, r, given);
        return 1;
    case 6:
        *bytes = wild_values(e, r, given);
        return 1;
    case 7:
        *bytes = given ? take(e->in, 2) % given : 0;
        return 1;
    case 8:
        *bytes = fill_up(r, given);
        return 1;
    case 9:
        *bytes = another_letter(e, r);
        return 1;
    case 10:
        *bytes = entries(e, r);
        return 1;
    case 11:
        *bytes = nudge(e, r, wild_values(e, r, entries(e, r)));
        return 1;
    case 12:
        *bytes = counts(e, r);
        return 1;
    case 13:
        *bytes = noise(e, r, dice & 16);
        return 1;
    case 14:
        *bytes = 0;
        return 1;
    default:
        if (dice & 16)
            return tw_transport_explain("the fuzzer says no");
        r->never = dice & 32 ? 1 : 0; /* waiting takes long: not often */
        *bytes = given;
        return !r->never;
    }
}

static int receive(end *e, request *r, size_t *bytes) {
    letter honest = {NULL, 0};
    const int there = find_letter(e, r, &honest);
    if (r->never || (!there && (!e->in || r->tag != 0)))
        return 0;
    const uint32_t dice = !e->in || e->patience-- > 0 ? 0 : take(e->in, 1);
    if (dice >= 128)
        return answer(e, r, &honest, dice, bytes);
    REQUIRE(e->in || honest.bytes <= r->bytes);
    *bytes = deliver(r, &honest);
    return 1;
}

static int end_test(void *context, void *handle, size_t *bytes) {
    end *e = context;
    request *r = handle;
    *bytes = r->bytes;
    const int done = r->sending ? 1 : receive(e, r, bytes);
    if (done != 0) {
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
    const struct timespec pause = {0, microseconds > 50 ? 50000 : 1000 * (long)microseconds};
    nanosleep(&pause, NULL);
}

static const tw_transport_calls calls = {.name = "fuzz",
                                         .send = end_send,
                                         .recv = end_recv,
                                         .test = end_test,
                                         .cancel = end_cancel,
                                         .idle = end_idle};

/* ---- A rank ------------------------------------------------------------------------------------------- */

/* What all ranks do. */
typedef struct plan {
    tw_group_params params;
    int nranks, tensors, dense;
    int64_t n[TENSORS];
    uint32_t how[STEPS];
} plan;

typedef struct subject {
    const plan *plan;
    end end;
    tw_transport *transport;
    tw_group *group;
    float *grad[TENSORS], *out[TENSORS]; /* [n] each, of their exact size */
} subject;

static void read_plan(plan *p, input *in) {
    tw_group_params *params = &p->params;
    const uint32_t flags = take(in, 1);
    const uint32_t many = take(in, 1) % 8;
    p->nranks = many < 4 ? 2 : many < 6 ? 3 : (int)many - 2;
    REQUIRE(tw_exchange((int)(take(in, 1) % 7), &params->exchange, NULL) == TW_OK);
    if (flags & 64)
        params->exchange = "oktopk";
    REQUIRE(tw_select_method((int)(take(in, 1) % 6), &params->select.method, NULL) == TW_OK);
    if (tw_wire((int)(take(in, 1) % 14), &params->wire, NULL) != TW_OK)
        params->wire = "raw"; /* half of them */
    p->dense = strcmp(params->exchange, "dense") == 0;
    params->scheme = p->dense ? "dense" : "topka";
    params->global = flags & 1 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
    params->select.momentum = flags & 2 ? 0.5f : 0.0f;
    params->select.threads = 1;
    params->select.k = 1 + take(in, 1) % 100 + (flags & 8 ? 40 : 0);
    params->bucket = flags & 4 ? 1 : 0;
    p->tensors = flags & 16 ? 2 : 1;
    for (int i = 0; i < p->tensors; i++)
        p->n[i] = params->select.k + take(in, 2) % (flags & 32 ? 2000 : 20);
    for (int step = 0; step < STEPS; step++)
        p->how[step] = take(in, 1);
}

static void subject_open(subject *s) {
    const plan *p = s->plan;
    REQUIRE(tw_transport_custom(&s->transport, &calls, &s->end, s->end.rank, p->nranks) == TW_OK);
    REQUIRE(tw_group_create(&s->group, s->transport, &p->params) == TW_OK);
    for (int i = 0; i < p->tensors && i < TENSORS; i++) {
        s->end.n += p->n[i];
        s->grad[i] = allocate((size_t)p->n[i], sizeof(float));
        s->out[i] = allocate((size_t)p->n[i], sizeof(float));
        REQUIRE(tw_group_add(s->group, p->n[i], NULL, NULL) == TW_OK);
    }
}

static void subject_close(subject *s) {
    tw_group_free(s->group);
    tw_transport_free(s->transport);
    REQUIRE(s->end.requests == 0);
    for (int i = 0; i < TENSORS; i++) {
        free(s->grad[i]);
        free(s->out[i]);
    }
}

static int run_background(subject *s) {
    int status = TW_OK;
    for (int i = s->plan->tensors - 1; i >= 0 && status == TW_OK; i--)
        status = tw_allreduce_start(s->group, i, s->grad[i], s->out[i]);
    return status == TW_OK ? tw_allreduce_wait(s->group, TW_ALL) : status;
}

static int run_foreground(subject *s) {
    int status = TW_OK;
    for (int i = 0; i < s->plan->tensors && status == TW_OK; i++)
        status = tw_allreduce(s->group, i, s->grad[i], s->out[i]);
    return status;
}

static int run_step(subject *s, int step) {
    const uint32_t how = s->plan->how[step];
    for (int i = 0; i < s->plan->tensors; i++)
        oracle_fill(s->grad[i], s->plan->n[i], (oracle_data)(how / 2 % DATA_KINDS),
                    (uint64_t)(step * RANKS + s->end.rank));
    return how & 1 ? run_background(s) : run_foreground(s);
}

/* ---- The honest run ----------------------------------------------------------------------------------- */

static void *run_honestly(void *context) {
    subject *s = context;
    subject_open(s);
    REQUIRE(tw_group_open(s->group) == TW_OK);
    for (int step = 0; step < STEPS; step++)
        REQUIRE(run_step(s, step) == TW_OK);
    subject_close(s);
    return NULL;
}

static void record(plan *p, post *mail) {
    pthread_t threads[RANKS];
    subject subjects[RANKS];
    p->params.timeout = HONEST_TIMEOUT;
    for (int rank = 0; rank < p->nranks; rank++) {
        subjects[rank] = (subject){.plan = p, .end = {.post = mail, .rank = rank}};
        REQUIRE(pthread_create(&threads[rank], NULL, run_honestly, &subjects[rank]) == 0);
    }
    for (int rank = 0; rank < p->nranks; rank++)
        pthread_join(threads[rank], NULL);
}

/* ---- The hostile run ---------------------------------------------------------------------------------- */

static int is_known(int status) {
    return status <= TW_OK && status >= TW_ERR_DAMAGED;
}

/* A result that TW_OK vouches for. */
static void check_result(subject *s, int tensor) {
    const int64_t n = s->plan->n[tensor];
    tw_sparse sparse;
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(s->out[tensor][i]));
    if (s->plan->dense)
        return;
    REQUIRE(tw_group_result(s->group, tensor, &sparse) == TW_OK);
    REQUIRE(sparse.count >= 0 && sparse.count <= n);
    for (int64_t j = 0; j < sparse.count; j++) {
        REQUIRE(sparse.idx[j] >= (j ? sparse.idx[j - 1] + 1 : 0) && sparse.idx[j] < n);
        REQUIRE(oracle_bits(sparse.val[j]) == oracle_bits(s->out[tensor][sparse.idx[j]]));
    }
}

static void check_residual(subject *s, int tensor) {
    const int64_t n = s->plan->n[tensor];
    float *residual = allocate((size_t)n, sizeof *residual);
    REQUIRE(tw_group_get_residual(s->group, tensor, residual) == TW_OK);
    for (int64_t i = 0; i < n; i++)
        REQUIRE(isfinite(residual[i]));
    free(residual);
}

/* One step; returns whether another one can follow. */
static int hostile_step(subject *s, int step) {
    const int status = run_step(s, step);
    REQUIRE(is_known(status));
    REQUIRE(status == TW_OK || tw_last_error()[0] != '\0');
    for (int i = 0; i < s->plan->tensors; i++) {
        if (status == TW_OK)
            check_result(s, i);
        check_residual(s, i);
    }
    return status == TW_OK || status == TW_ERR_NUMBER;
}

static void replay(plan *p, post *mail, input *in) {
    subject s = {.plan = p, .end = {.post = mail, .in = in}};
    s.end.rank = (int)(take(in, 1) % (uint32_t)p->nranks);
    s.end.patience = (int)(take(in, 1) % 64);
    s.end.rng.state = take(in, 2);
    p->params.timeout = HOSTILE_TIMEOUT;
    subject_open(&s);
    const int status = tw_group_open(s.group);
    REQUIRE(is_known(status));
    for (int step = 0; step < STEPS && status == TW_OK; step++)
        if (!hostile_step(&s, step))
            break;
    subject_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    plan p = {.params = TW_GROUP_PARAMS_INIT};
    post *mail = allocate(1, sizeof *mail);
    pthread_mutex_init(&mail->mutex, NULL);
    read_plan(&p, &in);
    record(&p, mail);
    replay(&p, mail, &in);
    post_free(mail);
    return 0;
}
