/* cuda_exchange.h - transfers between ranks to lend to groups: as NCCL between GPUs, on one
 *
 * Ranks are threads. Whoever receives copies, on its stream, and waits for that: so a message is
 * what it was when it was sent, or what a test made of it. */
#ifndef CUDA_EXCHANGE_H
#define CUDA_EXCHANGE_H

#include "thinwire.h"

enum { MOST_RANKS = 8 };

/* For tw_transport_set_device: lent_exchange. */
extern const tw_device_calls lent_calls;
int lent_exchange(void *context, const tw_device_message *messages, int count, void *stream);
/* Their context: each rank's own number. */
int *lent_rank(int rank);
/* What a step that failed has left is gone. */
void lent_clear(void);

/* Called for each message once it has arrived, with the post to itself. NULL: nobody looks. */
extern void (*lent_tamper)(const tw_device_message *m, int from, int to);

#endif
