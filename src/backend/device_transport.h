/* device_transport.h - device memory from rank to rank, one of three ways
 *
 *   lent     the caller's own transfers (tw_transport_set_device), as NCCL
 *   direct   ranks are threads of one process: the receiver copies from the sender's memory
 *   staged   over any transport: chunks are copied to host memory, and each is sent as soon as it is
 *            there, while the next is being copied; received chunks are copied up likewise
 *
 * All begin alike: the sender offers the receiver how many bytes will come, and where they lie. */
#ifndef TW_BACKEND_DEVICE_TRANSPORT_H
#define TW_BACKEND_DEVICE_TRANSPORT_H

#include "backend/backend.h"
#include "transport/transport.h"

typedef struct tw__device_transport tw__device_transport;

/* Lends the transport its device calls, for at most `most` bytes at a time, in and out each. On error
 * *device is there to be freed. */
int tw__device_transport_create(tw__device_transport **device, tw_transport *transport,
                                const tw__backend *backend, tw__stream *stream, size_t most);
/* Takes them away. NULL is fine. */
void tw__device_transport_free(tw__device_transport *d);
/* Host memory that it takes. */
size_t tw__device_transport_memory(const tw_transport *transport, size_t most);

#endif
