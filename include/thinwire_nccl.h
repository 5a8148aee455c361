/* thinwire_nccl.h - entries of groups on GPUs go from GPU to GPU by NCCL
 *
 * In a library of its own, libthinwire_nccl, so that libthinwire needs no NCCL. NCCL moves the
 * entries; what ranks tell each other beside (counts, agreement, deadlines) goes by the transport
 * that it is lent to, for instance MPI:
 *
 *     tw_transport_mpi(&transport, MPI_COMM_WORLD);
 *     tw_transport_nccl(transport, comm);             // ncclCommInitRank(&comm, ...) was before
 *     tw_group_create(&group, transport, &params);    // params.select.device = TW_CUDA
 *
 * A rank that dies leaves the others with TW_ERR_TIMEOUT naming it. Their streams still wait in NCCL
 * then: call ncclCommAbort before you ask the group for its state, or free it. */
#ifndef THINWIRE_NCCL_H
#define THINWIRE_NCCL_H

#include <nccl.h>

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lend the communicator to a transport that has no group yet. Its ranks must be those of the
 * transport, in the same order, each with the GPU of its group. comm stays the caller's, must
 * outlive the group, and is not to be used while a call of the group is under way. Not collective,
 * but all ranks must do it.
 * Errors: TW_ERR_NULL for the transport; TW_ERR_STATE when it has a group; TW_ERR_PARAM when comm
 * has another size or rank; TW_ERR_TRANSPORT in the words of NCCL, also when comm is NULL. */
TW_API int tw_transport_nccl(tw_transport *transport, ncclComm_t comm);

/* What that lends, for tw_transport_set_device: messages as one group of NCCL's sends and receives.
 * context is an ncclComm_t. */
TW_API int tw_nccl_exchange(void *context, const tw_device_message *messages, int count,
                            void *stream);

#ifdef __cplusplus
}
#endif

#endif
