/* thinwire_sim.h - simulated networks: how long would this job take elsewhere?
 *
 * Ranks are threads of one process, as in tw_transport_threads. The library passes messages on
 * without delay, and computes how long each would have taken on the network. Each rank has a
 * simulated clock, which advances by these times. The same job takes the same simulated time in
 * every run, unless computation takes simulated time too (`computing`). `thinwire simulate` uses
 * this header.
 *
 *     tw_network network = {.latency = 50e-6, .bandwidth = 125e6};    // 50 us, 1 Gbit/s
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
 * Each host has one link to the network. Each of its ranks gets an equal share of the bandwidth,
 * whether the others send or not. A rank sends one message after the other, and receives one after
 * the other, both at the same time. */
typedef struct tw_network {
    double latency;         /* seconds from sending a byte to receiving it, between hosts */
    double bandwidth;       /* bytes per second of a host's link, in each direction */
    int host_ranks;         /* ranks per host; 0: 1. Host 0 has the first ranks, and so on */
    double local_latency;   /* latency within a host; 0: as between hosts */
    double local_bandwidth; /* bytes per second of a rank within a host; 0: `bandwidth` */
    double jitter;          /* 0 .. 1: the latency of each message is multiplied by a random number
                               from 1 - jitter to 1 + jitter */
    double slowdown;        /* between hosts, bytes from and to rank `straggler` take this many
                               times longer; 0: no rank is slow */
    int straggler;          /* a rank; ignored if slowdown is 0 */
    uint64_t seed;          /* of the random numbers of jitter: equal seeds, equal latencies */
    double overhead;        /* seconds that a rank is busy with each message that it sends, and
                               with each that it receives */
    double payload_scale;   /* each byte of payload takes the time of this many bytes, so that a
                               short vector can stand for a long one; 0: 1 */
    double computing;       /* a second of a rank's CPU time advances its clock by computing *
                               payload_scale seconds. 0: computation takes no time */
    uint32_t reserved[8];   /* zero */
} tw_network;

/* Ranks as threads of this process, over a simulated network.
 *   transports [nranks] as in tw_transport_threads. network is copied.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM with the field at fault; TW_ERR_MEMORY. */
TW_API int tw_transport_simulated(tw_transport **transports, int nranks, const tw_network *network);

/* The time on the simulated clock of a rank, in seconds; 0 if the network is not simulated. The
 * thread of the rank must call it. */
TW_API double tw_transport_clock(const tw_transport *transport);

/* Advance the simulated clock of a rank by 0 .. 1e9 seconds, for instance by the time of a forward
 * pass. If `computing` is set, these seconds replace the CPU time that the rank has used since its
 * last call on this transport. The thread of the rank must call it.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if the network is not simulated; TW_ERR_PARAM. */
TW_API int tw_transport_elapse(tw_transport *transport, double seconds);

#ifdef __cplusplus
}
#endif

#endif
