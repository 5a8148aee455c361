/* roll_call.h - who is there, when a wait has lasted too long
 *
 *   rank 0 waits for 1          1 waits for 2                2 is stopped
 *   deadline: "are you there?" -> all
 *                               "here" -> 0                  (silence)
 *   TW_ERR_TIMEOUT names 2,
 *   "I give up, because" -> all fails with the same words
 *
 * So the rank that is named is the one that is missing, not the one that waits for it, and nobody
 * waits for a rank that has given up. Whoever has waited for some 50 ms looks whether it was asked
 * or told something; calls that end sooner pay nothing for it. A rank outside of the library's
 * calls does not answer, and counts as missing.
 *
 * All this travels under a tag of its own. It is not counted as traffic: it is sent when the
 * exchange has failed already. */
#ifndef TW_TRANSPORT_ROLL_CALL_H
#define TW_TRANSPORT_ROLL_CALL_H

#include "transport/transport.h"

/* How often a waiting rank looks whether it was asked. */
#define TW__LIVENESS_PERIOD (TW__SECOND / 20)

typedef struct tw__notice {
    int32_t kind;
    int32_t status; /* of one that gives up */
    char text[248]; /* its tw_last_error(), not terminated; sent as far as it goes */
} tw__notice;

typedef struct tw__liveness_peer {
    void *listen, *question, *answer, *farewell; /* requests, NULL when none is under way */
    tw__notice heard;                            /* what `listen` receives */
    int present;                                 /* it answered, or gave up: it is alive */
    int owed;                                    /* it asked while an answer was under way */
} tw__liveness_peer;

typedef struct tw__liveness {
    const tw_transport_calls *calls;
    void *context;
    int rank;
    int nranks;
    int listening;            /* 1 once peers are set up */
    tw__liveness_peer *peers; /* [nranks], untouched until somebody waits for long */
    tw__notice farewell;      /* what this rank says when it gives up */
    size_t farewell_bytes;    /* 0: it has not */
} tw__liveness;

/* Errors: TW_ERR_MEMORY. calls must outlive it. */
int tw__liveness_create(tw__liveness *roll, const tw_transport_calls *calls, void *context,
                        int rank, int nranks);
void tw__liveness_free(tw__liveness *roll);

/* Answer those who asked. Errors: TW_ERR_PROTOCOL; that of a rank which gave up. */
int tw__liveness_look(tw__liveness *roll);

/* After a wait of `timeout` nanoseconds for `awaited`: ask all ranks and wait for their answers.
 * Always fails: TW_ERR_TIMEOUT, or another rank's reason. */
int tw__liveness_ask(tw__liveness *roll, int64_t timeout, const tw__message *awaited);

/* Tell the others that this rank has failed with `status`, in the words of tw_last_error(). Only
 * the first time counts. */
void tw__liveness_abort(tw__liveness *roll, int status);

/* The transport's idle, or a yield. */
void tw__liveness_idle(const tw__liveness *roll, int64_t nanoseconds);

#endif
