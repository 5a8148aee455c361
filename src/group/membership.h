/* membership.h - what the files about changing ranks share
 *
 *   membership.c  shrink, leave, grow
 *   handover.c    a rank that leaves hands its residuals to another */
#ifndef TW_GROUP_MEMBERSHIP_H
#define TW_GROUP_MEMBERSHIP_H

#include "group/group.h"

typedef struct tw__handover {
    const struct tw__kernels *kernels;
    int heir;             /* to whom this rank hands over in this turn; -1: to nobody */
    int from;             /* the rank whose vectors it receives; -1: none */
    int received;         /* ranks whose vectors it has received */
    float *buffer;        /* a message */
    float *sum;           /* of an heir: its vectors and those that it received */
    tw__buffer *out, *in; /* [nranks] messages of a round */
    void *recvs;
} tw__handover;

/* heirs[nranks]: to whom each rank hands over; -1: it stays. Collective. The group is as before until
 * tw__handover_apply. Errors: TW_ERR_MEMORY, TW_ERR_NUMBER, TW_ERR_DEVICE, the same on all ranks; those
 * of tw__transport_wait. */
int tw__handover_run(tw_group *g, const int *heirs, tw__handover *h);
/* Errors: TW_ERR_DEVICE. */
int tw__handover_apply(tw_group *g, tw__handover *h);
/* One of zeros is fine. */
void tw__handover_free(tw__handover *h);

#endif
