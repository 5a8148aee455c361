/* crew.h - P threads that play the ranks of a bare transport, for tests of the transport itself
 *
 * cmocka fails by longjmp, which must not leave another thread: members of the crew note the first
 * thing that is wrong, and the main thread fails with it once all have come back. */
#ifndef CREW_H
#define CREW_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "check.h"
#include "transport/transport.h"

enum { CREW_MOST = 64 };

typedef struct member {
    tw_transport *transport;
    int rank, nranks;
    uint64_t seed;
    void (*play)(struct member *);
    char wrong[256]; /* "" when all is well */
    char text[512];  /* what tw_last_error() said, for tests that want an error */
    pthread_t thread;
} member;

/* In a member's thread: note and leave unless it holds. */
#define crew_true(m, condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            crew_note((m), #condition, __LINE__);                                                  \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define crew_ok(m, call) crew_true((m), (call) == TW_OK)

static inline void crew_note(member *m, const char *what, int line) {
    if (m->wrong[0] == '\0')
        snprintf(m->wrong, sizeof m->wrong, "rank %d of %d, line %d: %.120s; last error: %.90s",
                 m->rank, m->nranks, line, what, tw_last_error());
}

static inline void *crew_main(void *context) {
    member *m = context;
    m->play(m);
    tw_transport_free(m->transport);
    return NULL;
}

/* Which transport members have: pairs of sockets between all of them, or else threads. */
static int crew_on_sockets;

static inline void crew_connect(tw_transport **transports, int nranks) {
    static int ends[CREW_MOST][CREW_MOST];
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

/* Plays all ranks and fails the test if one found something wrong. members may be NULL. */
static inline void crew_run(int nranks, uint64_t seed, void (*play)(member *), member *members) {
    static member own[CREW_MOST];
    tw_transport *transports[CREW_MOST];
    members = members != NULL ? members : own;
    if (crew_on_sockets)
        crew_connect(transports, nranks);
    else
        check_ok(tw_transport_threads(transports, nranks));
    for (int i = 0; i < nranks; i++) {
        members[i] = (member){transports[i], i, nranks, seed, play, "", "", 0};
        if (pthread_create(&members[i].thread, NULL, crew_main, &members[i]) != 0)
            abort(); /* the others would wait for it */
    }
    for (int i = 0; i < nranks; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < nranks; i++)
        if (members[i].wrong[0] != '\0')
            check_fail("%s", members[i].wrong);
}

#endif
