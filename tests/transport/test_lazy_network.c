/* test_lazy_network.c - all exchanges over a transport that moves a message only when it is tested
 *
 * A send is done when the receiver has tested its receive, not before: nothing is buffered, and nothing
 * moves in the background. A custom transport may do as little. A rank that waits for one message
 * without testing the others that it has started would stop all ranks. Results and residuals must
 * equal those of ranks that are threads.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranks.h"

enum { RANKS = 9, TAGS = 4, STEPS = 3 };

/* ---- The network ----------------------------------------------------------------------------------- */

typedef struct request {
    struct request *next;
    struct channel *channel; /* of a receive; NULL: it is a send */
    void *data;
    size_t bytes; /* to send, or room */
    int done;     /* of a send */
} request;

/* From one rank to another under one tag: requests without a match. */
typedef struct channel {
    request *sends, *recvs;
} channel;

typedef struct port {
    struct network *network;
    int rank;
} port;

typedef struct network {
    pthread_mutex_t lock;
    channel channels[RANKS][RANKS][TAGS]; /* by sender, receiver, tag */
    port ports[RANKS];
} network;

static void append(request **list, request *r) {
    while (*list != NULL)
        list = &(*list)->next;
    *list = r;
}

static void remove_request(request **list, const request *r) {
    while (*list != NULL && *list != r)
        list = &(*list)->next;
    if (*list != NULL)
        *list = r->next;
}

static int start(network *net, request **list, request r, void **handle) {
    request *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return tw_transport_explain("out of memory");
    *copy = r;
    pthread_mutex_lock(&net->lock);
    append(list, copy);
    pthread_mutex_unlock(&net->lock);
    *handle = copy;
    return 0;
}

/* Rank 1 is slow: the others wait for the next batch before its messages of this batch arrive. */
static void delay(const port *p) {
    const struct timespec a_while = {.tv_nsec = 600000};
    if (p->rank == 1)
        nanosleep(&a_while, NULL);
}

static int lazy_send(void *context, int peer, int tag, const void *data, size_t bytes,
                     void **handle) {
    port *p = context;
    delay(p);
    request r = {.data = (void *)(uintptr_t)data, .bytes = bytes};
    return start(p->network, &p->network->channels[p->rank][peer][tag].sends, r, handle);
}

static int lazy_recv(void *context, int peer, int tag, void *data, size_t room, void **handle) {
    port *p = context;
    channel *c = &p->network->channels[peer][p->rank][tag];
    request r = {.channel = c, .data = data, .bytes = room};
    return start(p->network, &c->recvs, r, handle);
}

/* Takes the first message if this is the first receive. */
static int meet(request *r, size_t *bytes) {
    channel *c = r->channel;
    request *send = c->sends;
    if (c->recvs != r || send == NULL)
        return 0;
    if (send->bytes > r->bytes)
        return tw_transport_explain("the message is too long");
    c->sends = send->next;
    c->recvs = r->next;
    *bytes = send->bytes;
    memcpy(r->data, send->data, send->bytes);
    send->done = 1;
    return 1;
}

static int lazy_test(void *context, void *handle, size_t *bytes) {
    network *net = ((port *)context)->network;
    request *r = handle;
    pthread_mutex_lock(&net->lock);
    int done = r->channel != NULL ? meet(r, bytes) : r->done;
    pthread_mutex_unlock(&net->lock);
    if (done == 0)
        return 0;
    if (r->channel == NULL)
        *bytes = r->bytes;
    free(r);
    return done;
}

static void lazy_cancel(void *context, void *handle) {
    network *net = ((port *)context)->network;
    pthread_mutex_lock(&net->lock);
    for (channel *c = &net->channels[0][0][0], *end = c + RANKS * RANKS * TAGS; c < end; c++) {
        remove_request(&c->sends, handle);
        remove_request(&c->recvs, handle);
    }
    pthread_mutex_unlock(&net->lock);
    free(handle);
}

static const tw_transport_calls lazy_calls = {
    .name = "lazy", .send = lazy_send, .recv = lazy_recv, .test = lazy_test, .cancel = lazy_cancel};

static void network_open(network *net, tw_transport **transports) {
    *net = (network){.lock = PTHREAD_MUTEX_INITIALIZER};
    for (int r = 0; r < RANKS; r++) {
        net->ports[r] = (port){net, r};
        check_ok(tw_transport_custom(&transports[r], &lazy_calls, &net->ports[r], r, RANKS));
    }
}

/* ---- The same steps over it, and between threads --------------------------------------------------- */

static void check_same(ranks *lazy, ranks *plain, int64_t n) {
    float **grads = rows_alloc(RANKS, n), **residuals = rows_alloc(RANKS, n);
    float **got = rows_alloc(RANKS, n), **want = rows_alloc(RANKS, n);
    for (int step = 0; step < STEPS; step++) {
        rows_fill(grads, RANKS, n, DATA_GAUSS, step);
        ranks_allreduce(lazy, 0, (void *const *)grads, got);
        ranks_ok(lazy);
        ranks_allreduce(plain, 0, (void *const *)grads, want);
        ranks_ok(plain);
        for (int r = 0; r < RANKS; r++)
            check_bits("out", got[r], want[r], n);
    }
    ranks_get_residuals(plain, 0, residuals, n);
    ranks_check_residuals(lazy, 0, residuals, n);
    rows_free(grads);
    rows_free(residuals);
    rows_free(got);
    rows_free(want);
}

static void compare_exchange(const char *exchange, const char *wire, int64_t n) {
    static network net;
    tw_transport *transports[RANKS];
    tw_group_params params = ranks_params(exchange, n / 3);
    ranks lazy, plain;
    params.wire = wire;
    check_scene("exchange=%s wire=%s n=%lld", exchange, wire != NULL ? wire : "raw", (long long)n);
    network_open(&net, transports);
    ranks_adopt(&lazy, RANKS, transports);
    ranks_try_open(&lazy, &params, &n, 1);
    ranks_ok(&lazy);
    ranks_open(&plain, RANKS, &params, &n, 1);
    check_same(&lazy, &plain, n);
    ranks_close(&lazy);
    ranks_close(&plain);
}

/* More ranks than TW__WINDOW. k is large enough for oktopk to send its regions in batches, n for dense
 * to have several pieces. */
static void test_all_exchanges(void **state) {
    (void)state;
    const char *name = NULL;
    for (int i = 0; tw_exchange(i, &name, NULL) == TW_OK; i++) {
        int dense = strcmp(name, "dense") == 0;
        compare_exchange(name, NULL, dense ? 600000 : 100000);
        if (!dense)
            compare_exchange(name, "bf16", 100000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_exchanges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
