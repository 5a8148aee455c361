/* transport_nccl.c - messages between GPUs as groups of NCCL's sends and receives
 *
 * Made of the public calls alone. Grouped, NCCL's operations do not wait for each other's turn, so
 * ranks may list their messages in any order. */
#include "thinwire_nccl.h"

static int explain(const char *what, ncclResult_t result) {
    return tw_transport_explain("NCCL: cannot %s: %s", what, ncclGetErrorString(result));
}

/* A communicator that does not block goes on by itself: `progress` tells when it is done. */
static int has_failed(ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
}

static ncclResult_t queue(const tw_device_message *m, ncclComm_t comm, cudaStream_t stream) {
    return m->sending ? ncclSend(m->data, m->bytes, ncclInt8, m->peer, comm, stream)
                      : ncclRecv(m->data, m->bytes, ncclInt8, m->peer, comm, stream);
}

int tw_nccl_exchange(void *context, const tw_device_message *messages, int count, void *stream) {
    ncclComm_t comm = context;
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < count && !has_failed(result); i++)
        result = queue(&messages[i], comm, stream);
    ncclResult_t ended = ncclGroupEnd(); /* also after a failure */
    result = has_failed(result) ? result : ended;
    return has_failed(result) ? explain("exchange", result) : TW_OK;
}

static int progress(void *context) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(context, &state);
    if (has_failed(result) || has_failed(state))
        return explain("exchange", has_failed(result) ? result : state);
    return state == ncclInProgress;
}

static int check(void *context, int ordinal) {
    int device = -1;
    ncclResult_t result = ncclCommCuDevice(context, &device);
    if (result != ncclSuccess)
        return explain("ask the communicator for its GPU", result);
    if (device == ordinal)
        return TW_OK;
    return tw_transport_explain("comm: is of GPU %d; the group's tensors lie on GPU %d", device,
                                ordinal);
}

int tw_transport_nccl(tw_transport *transport, ncclComm_t comm) {
    static const tw_device_calls calls = {
        .exchange = tw_nccl_exchange, .progress = progress, .check = check};
    int rank, nranks, nccl_rank = 0, nccl_ranks = 0;
    int status = tw_transport_info(transport, NULL, &rank, &nranks, NULL);
    if (status != TW_OK)
        return status;
    ncclResult_t result = comm != NULL ? ncclCommCount(comm, &nccl_ranks) : ncclInvalidArgument;
    if (result == ncclSuccess)
        result = ncclCommUserRank(comm, &nccl_rank);
    if (result != ncclSuccess)
        return explain("ask the communicator who it is", result);
    if (rank != nccl_rank || nranks != nccl_ranks) {
        (void)tw_transport_explain("comm: rank %d of %d; the transport's is rank %d of %d",
                                   nccl_rank, nccl_ranks, rank, nranks);
        return TW_ERR_PARAM;
    }
    return tw_transport_set_device(transport, &calls, comm);
}
