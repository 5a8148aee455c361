/* recording.h - small jobs that all ranks run honestly once, with every message that they send
 *
 * A plan is what all ranks of a job do: exchange, wire format, P, sizes, three steps. Plans are
 * numbered. Every exchange, format and P meets; the rest is drawn at random. A job runs when its
 * recording is first asked for, and the recording is kept: later inputs cost no threads. */
#ifndef FUZZ_RECORDING_H
#define FUZZ_RECORDING_H

#include <stddef.h>
#include <stdint.h>

#include "thinwire.h"

enum { RANKS = 8, TENSORS = 2, STEPS = 3 };

typedef struct plan {
    tw_group_params params;
    int nranks, tensors, dense;
    int host_ranks; /* on each host */
    int64_t n[TENSORS];
    int background[STEPS]; /* the step is started, then waited for */
    int data[STEPS];       /* oracle_data */
    int reloads;           /* before the last step ranks save their states and load them */
} plan;

/* One rank of a job. */
typedef struct member {
    const plan *plan;
    int rank;
    tw_group *group;
    float *grad[TENSORS], *out[TENSORS]; /* [n] each, of their exact size */
} member;

/* Creates group and tensors; tw_group_open is left to do. */
void member_create(member *m, const plan *p, tw_transport *transport, int rank);
/* One step, after a reload if it is the last one. */
int member_step(member *m, int step);
/* Of all results of a step that was TW_OK. */
uint64_t member_hash(const member *m);
void member_free(member *m);

typedef struct message {
    char *data;
    size_t bytes;
} message;

/* All messages from one rank to another, in their order. */
typedef struct channel {
    message *messages; /* [room] */
    int sent, room;
} channel;

typedef struct recording {
    plan plan;
    channel channels[RANKS][RANKS]; /* [from][to] */
    uint64_t results[STEPS];        /* the same on all ranks */
} recording;

int plan_count(void);
/* Of plan `number`; never freed. */
const recording *recording_of(int number);

#endif
