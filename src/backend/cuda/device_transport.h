/* carrier.h - entries from GPU to GPU, three ways
 *
 *   lent     by the caller's own way (tw_transport_set_device), as NCCL
 *   direct   ranks are threads of one process: the receiver copies from the sender's memory
 *   staged   over any transport: chunks are copied to pinned memory of the host, each is sent as
 *            soon as it is there, while the next is being copied; received ones go up likewise
 *
 * All begin alike: sender tells receiver how much will come, and where it lies. */
#ifndef TW_CUDA_CARRIER_H
#define TW_CUDA_CARRIER_H

#include "backend/cuda/device.h"
#include "transport/transport.h"

typedef struct tw__device_transport tw__device_transport;

/* Lends the transport a carrier, for messages of `most` bytes at a time, in and out each. Where it
 * fails, what was made is there to be freed. */
int tw__device_transport_create(tw__device_transport **carrier, tw_transport *transport,
                                tw__device_stream *lane, size_t most);
/* Takes it away. NULL is fine. */
void tw__device_transport_free(tw__device_transport *c);
/* Pinned memory that it takes. */
size_t tw__device_transport_memory(const tw_transport *transport, size_t most);

#endif
