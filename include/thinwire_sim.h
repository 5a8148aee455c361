/* thinwire_sim.h - simulated networks: how long would this job take elsewhere?
 *
 * Ranks are threads of one process, as in tw_transport_threads. Messages move at once. Each rank
 * has a simulated clock, which advances by the time that its messages would have taken on the
 * network. The same job takes the same simulated time in every run, unless the time of computation
 * is simulated too (`computing`). `thinwire simulate` is built on this header.
 *
 *     tw_network network = {.latency = 50e-6, .bandwidth = 125e6};    // 1 Gbit/s Ethernet
 *     tw_transport_simulated(transports, nranks, &network);
 *     ...                                                             // each rank in its thread
 *     double seconds = tw_transport_clock(transports[rank]); */
#ifndef THINWIRE_SIM_H
#define THINWIRE_SIM_H

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A model of a network. bandwidth is required; 0 is the default of the other fields.
 *
 * A host has one link, which its ranks share evenly. A link sends one message after the other, and
 * receives one after the other. Each latency is multiplied by a random factor, which is at least
 * 1 - jitter and at most 1 + jitter, and depends on the seed only. */
typedef struct tw_network {
    double latency;         /* seconds from sending a byte to receiving it, between hosts */
    double bandwidth;       /* bytes per second of a host's link, in each direction */
    int host_ranks;         /* ranks per host; 0: 1 */
    double local_latency;   /* latency within a host; 0: as between hosts */
    double local_bandwidth; /* bytes per second of a rank within a host; 0: `bandwidth` */
    double jitter;          /* 0 .. 1 */
    double slowdown;        /* between hosts, bytes from and to rank `straggler` take this many
                               times longer; 0: no rank is slow */
    int straggler;          /* a rank; ignored if slowdown is 0 */
    uint64_t seed;          /* of the jitter */
    double overhead;        /* seconds that a rank is busy with a message it sends or receives */
    double payload_scale;   /* each byte of payload counts as this many bytes, so that a short
                               vector can stand for a long one; 0: 1 */
    double computing;       /* simulated seconds per second of CPU time, multiplied by
                               payload_scale; 0: computation takes no time */
} tw_network;

/* Ranks as threads of this process, over a simulated network.
 *   transports [nranks] as in tw_transport_threads. network is copied.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM with the field at fault; TW_ERR_MEMORY. */
TW_API int tw_transport_simulated(tw_transport **transports, int nranks, const tw_network *network);

/* The simulated clock of a rank, in seconds; 0 if the network is not simulated. The thread of the
 * rank must call it. */
TW_API double tw_transport_clock(const tw_transport *transport);

/* Advance the clock of a rank by 0 .. 1e9 seconds, for instance by the time of a forward pass.
 * These seconds replace the CPU time that the rank has used since its last transport call: that
 * time is not counted. The thread of the rank must call it.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if the network is not simulated; TW_ERR_PARAM. */
TW_API int tw_transport_elapse(tw_transport *transport, double seconds);

#ifdef __cplusplus
}
#endif

#endif
