/* thinwire_nccl.h - NCCL for groups on GPUs
 *
 * NCCL sends entries from GPU to GPU. Some exchanges do not use it: see tw_transport_set_device.
 * Control messages (counts, agreement) use the transport, for instance MPI. This is a library of
 * its own, libthinwire_nccl, so that libthinwire does not need NCCL.
 *
 *     tw_transport_mpi(&transport, MPI_COMM_WORLD);
 *     ncclCommInitRank(&comm, nranks, id, rank);
 *     tw_transport_nccl(transport, comm);
 *     tw_group_create(&group, transport, &params);    // params.select.device = TW_CUDA
 *
 * Failures. If a rank dies while NCCL work is queued, NCCL on the other GPUs waits for it for ever.
 * The step returns an error at its deadline all the same: TW_ERR_TIMEOUT, which names the rank, or
 * TW_ERR_TRANSPORT as soon as ncclCommGetAsyncError tells of a failure. The group is broken, and
 * GPU memory is still in use: see tw_allreduce. Then call ncclCommAbort, tw_group_free and
 * tw_transport_free, in this order. Do not call ncclCommAbort during a step: the step asks comm for
 * errors meanwhile.
 *
 * Connecting. NCCL connects two ranks when they first exchange something. With a blocking
 * communicator, NCCL's default, this happens inside a call of NCCL, and the deadlines of this
 * library do not hold there: if a rank dies before it has connected, the others wait as long as
 * NCCL lets them. With a communicator that does not block (config.blocking = 0), deadlines hold
 * from the first message on. Such a communicator must be ready when it is given:
 * ncclCommGetAsyncError says ncclSuccess.
 *
 * Other communicators. NCCL's kernels wait on the GPU for those of the other ranks. If another
 * communicator works on the same GPUs during a step, and its kernels and those of the step begin in
 * different orders on different ranks, all may wait for ever. Such work must be complete before a
 * step begins, or be queued in `stream` of tw_select_params, which the step waits for; and it may
 * begin again when the step is complete. With tw_allreduce_start: not between start and wait. */
#ifndef THINWIRE_NCCL_H
#define THINWIRE_NCCL_H

#include <nccl.h>

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Let a transport use an NCCL communicator. All ranks must call this, before they create a group.
 * It does not wait for other ranks. The group cannot be elastic.
 *   comm  has the ranks of the transport, in the same order. The GPU of a rank in it is the one
 *         that `ordinal` of its tensors names, or tw_group_open returns TW_ERR_DEVICE. The caller
 *         owns comm. It must outlive the group, unless it is aborted. Do not use it while a step of
 *         the group is in progress.
 * Errors: TW_ERR_NULL for the transport; TW_ERR_STATE if the transport has a group; TW_ERR_PARAM if
 * comm has another size or rank; TW_ERR_TRANSPORT with NCCL's text, also if comm is NULL. */
TW_API int tw_transport_nccl(tw_transport *transport, ncclComm_t comm);

/* What tw_transport_nccl sets as `exchange` of tw_device_calls, for callers that set calls of their
 * own. It queues all messages as one group of NCCL sends and receives. context is an ncclComm_t. If
 * that does not block, ncclCommGetAsyncError tells when they are queued. */
TW_API int tw_nccl_exchange(void *context, const tw_device_message *messages, int count,
                            void *stream);

#ifdef __cplusplus
}
#endif

#endif
