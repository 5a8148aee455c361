/* cuda_post.h - a way from GPU memory to GPU memory to lend to groups: as NCCL between cards, on one
 *
 * Ranks are threads. Whoever receives copies, on its stream, and waits for that: so a message is
 * what it was when it was sent, or what a test made of it. */
#ifndef CUDA_POST_H
#define CUDA_POST_H

#include "thinwire.h"

enum { MOST_RANKS = 8 };

/* For tw_transport_set_device. */
tw_device_exchange post_exchange;
/* Its context: each rank's own number. */
int *post_seat(int rank);
/* What a step that failed has left is gone. */
void post_clear(void);

/* Called for each message once it has arrived, with the post to itself. NULL: nobody looks. */
extern void (*post_tamper)(const tw_device_message *m, int from, int to);

#endif
