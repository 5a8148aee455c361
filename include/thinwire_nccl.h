/* thinwire_nccl.h - NCCL for groups on GPUs
 *
 * NCCL sends entries from GPU to GPU. Control messages (counts, agreement) use the transport, for
 * instance MPI. This is a library of its own, libthinwire_nccl, so that libthinwire does not need
 * NCCL.
 *
 *     tw_transport_mpi(&transport, MPI_COMM_WORLD);
 *     ncclCommInitRank(&comm, nranks, id, rank);
 *     tw_transport_nccl(transport, comm);
 *     tw_group_create(&group, transport, &params);    // params.select.device = TW_CUDA
 *
 * If a rank dies while NCCL work is queued, the other ranks wait in NCCL, inside a call of this
 * library, even after `timeout`. Then call ncclCommAbort from another thread, the only use of comm
 * that is allowed during a step. The waiting call returns an error that names the rank, and the
 * group is broken. */
#ifndef THINWIRE_NCCL_H
#define THINWIRE_NCCL_H

#include <nccl.h>

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Let a transport use an NCCL communicator. All ranks must call this, before they create a group.
 * It does not wait for other ranks.
 *   comm  has the ranks of the transport, in the same order. The GPU of a rank in it is the one
 *         that `ordinal` of its tensors names. The caller owns comm. It must outlive the group. Do
 *         not use it while a step of the group is in progress.
 * Errors: TW_ERR_NULL for the transport; TW_ERR_STATE if the transport has a group; TW_ERR_PARAM if
 * comm has another size or rank; TW_ERR_TRANSPORT with NCCL's text, also if comm is NULL. */
TW_API int tw_transport_nccl(tw_transport *transport, ncclComm_t comm);

/* The tw_device_exchange that tw_transport_nccl sets: all messages as one group of NCCL sends and
 * receives. context is an ncclComm_t. */
TW_API int tw_nccl_exchange(void *context, const tw_device_message *messages, int count,
                            void *stream);

#ifdef __cplusplus
}
#endif

#endif
