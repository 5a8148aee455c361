/* relay.h - slow sockets between ranks, as on a real network
 *
 *   rank a ==socket pair== [relay] ==socket pair== rank b
 *
 * One thread forwards the bytes of all pairs in both directions and delays each chunk by some
 * milliseconds. It ends when all ranks have closed their sockets.
 */
#ifndef RELAY_H
#define RELAY_H

#include "thinwire.h"

typedef struct relay relay;

/* A sockets transport for each rank, and the relay between them. */
relay *relay_open(tw_transport **transports, int nranks);
/* Free the transports first. */
void relay_close(relay *r);

#endif
