/* transport_ranks.h - ranks of a bare transport as threads, for tests of the transport itself
 *
 * cmocka fails by longjmp, which must not leave a thread other than the main one. So a rank records
 * the first check that fails and returns; the main thread fails with it after all have returned.
 */
#ifndef TRANSPORT_RANKS_H
#define TRANSPORT_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "check.h"
#include "transport/transport.h"

enum { RANKS_MAX = 64 };

typedef struct test_rank {
    tw_transport *transport;
    int rank, nranks;
    uint64_t seed;
    void (*run)(struct test_rank *);
    char failure[256]; /* the first check that failed; "": none */
    char text[512];    /* tw_last_error(), copied by tests that expect an error */
    pthread_t thread;
} test_rank;

/* In a rank's thread: record and return unless it holds. */
#define rank_check(r, condition)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            rank_fail((r), #condition, __LINE__);                                                  \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define rank_ok(r, call) rank_check((r), (call) == TW_OK)

static inline void rank_fail(test_rank *r, const char *what, int line) {
    if (r->failure[0] == '\0')
        snprintf(r->failure, sizeof r->failure, "rank %d of %d, line %d: %.120s; last error: %.90s",
                 r->rank, r->nranks, line, what, tw_last_error());
}

static inline void *rank_main(void *context) {
    test_rank *r = context;
    r->run(r);
    tw_transport_free(r->transport);
    return NULL;
}

/* Which transport the ranks have: pairs of sockets, or else what ranks_create makes. */
static int ranks_on_sockets;
static int (*ranks_create)(tw_transport **transports, int nranks) = tw_transport_threads;

static inline void connect_ranks(tw_transport **transports, int nranks) {
    static int ends[RANKS_MAX][RANKS_MAX];
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
            ends[a][b] = pair[0];
            ends[b][a] = pair[1];
        }
    for (int a = 0; a < nranks; a++)
        check_ok(tw_transport_sockets(&transports[a], ends[a], a, nranks));
}

/* Calls run() on all ranks and fails the test if a rank recorded a failure.
 *   ranks [nranks] keeps what each leaves behind; NULL: not wanted. */
static inline void run_ranks(int nranks, uint64_t seed, void (*run)(test_rank *),
                             test_rank *ranks) {
    static test_rank own[RANKS_MAX];
    tw_transport *transports[RANKS_MAX];
    ranks = ranks != NULL ? ranks : own;
    if (ranks_on_sockets)
        connect_ranks(transports, nranks);
    else
        check_ok(ranks_create(transports, nranks));
    for (int i = 0; i < nranks; i++) {
        ranks[i] = (test_rank){transports[i], i, nranks, seed, run, "", "", 0};
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
            abort(); /* the others would wait for it */
    }
    for (int i = 0; i < nranks; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < nranks; i++)
        if (ranks[i].failure[0] != '\0')
            check_fail("%s", ranks[i].failure);
}

#endif
