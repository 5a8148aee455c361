/* probe.h - what messages take between the ranks of a transport, measured */
#ifndef TW_PROBE_H
#define TW_PROBE_H

#include "transport/transport.h"

/* The same on all ranks: of each measurement the slowest rank's. A rank that sends m messages of b
 * bytes, and waits r times for one under way, takes r * latency + m * overhead + m * b * byte. */
typedef struct tw__probe {
    double latency;  /* seconds */
    double overhead; /* seconds that each further message takes of a rank */
    double byte;     /* seconds per byte of payload, when all ranks send at once */
} tw__probe;

/* Collective; takes some ten milliseconds, or twenty latencies.
 * Errors: TW_ERR_MEMORY; those of tw__transport_wait. */
int tw__probe_measure(tw_transport *t, tw__probe *probe);

#endif
