/* relay.h - sockets between ranks that take their time: messages are slow, as on a real network
 *
 *   rank a ==socket pair== [relay] ==socket pair== rank b
 *
 * One thread forwards the bytes of all pairs, both ways, and holds each chunk back for some
 * milliseconds. It ends when all ranks have closed their ends.
 */
#ifndef RELAY_H
#define RELAY_H

#include "thinwire.h"

typedef struct relay relay;

/* A sockets transport for each rank, and the relay between them. */
relay *relay_open(tw_transport **transports, int nranks);
/* The transports were freed. */
void relay_close(relay *r);

#endif
