/* test_nccl.c - entries between GPUs by NCCL, as far as one card goes
 *
 * NCCL refuses two ranks on one card. So a communicator of one rank sends to itself here, through
 * the call that groups lend; what groups of several ranks do with such a call is tested with ranks
 * as threads over a stand-in, cuda_exchange.c. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "thinwire_nccl.h"

static ncclComm_t comm;
static int another_gpu; /* what is to be added to the number of a communicator's GPU */

/* The linker puts it in the place of ncclCommCuDevice. */
ncclResult_t __real_ncclCommCuDevice(const ncclComm_t c, int *device);
ncclResult_t __wrap_ncclCommCuDevice(const ncclComm_t c, int *device);
ncclResult_t __wrap_ncclCommCuDevice(const ncclComm_t c, int *device) {
    ncclResult_t result = __real_ncclCommCuDevice(c, device);
    *device += another_gpu;
    return result;
}

static void gpu_ok(cudaError_t error) {
    if (error != cudaSuccess)
        check_fail("CUDA: %s", cudaGetErrorString(error));
}

/* What NCCL has begun is queued. */
static void await_nccl(ncclComm_t c) {
    ncclResult_t now = ncclInProgress;
    while (now == ncclInProgress)
        check_int("ncclCommGetAsyncError", ncclCommGetAsyncError(c, &now), ncclSuccess);
    check_int("NCCL", now, ncclSuccess);
}

/* Three messages to itself, of which each is found by its own receive. */
static void send_to_itself(ncclComm_t c) {
    enum { COUNT = 1000 };
    static const size_t sizes[3] = {8 * COUNT, 8, 4 * COUNT};
    char sent[3][8 * COUNT], received[8 * COUNT];
    void *from[3], *to[3];
    tw_device_message messages[6];
    cudaStream_t stream;
    gpu_ok(cudaStreamCreate(&stream));
    for (int i = 0; i < 3; i++) {
        memset(sent[i], 'a' + i, sizeof sent[i]);
        gpu_ok(cudaMalloc(&from[i], sizes[i]));
        gpu_ok(cudaMalloc(&to[i], sizes[i]));
        gpu_ok(cudaMemcpy(from[i], sent[i], sizes[i], cudaMemcpyHostToDevice));
        gpu_ok(cudaMemset(to[i], 0, sizes[i]));
        messages[i] = (tw_device_message){.sending = 1, .data = from[i], .bytes = sizes[i]};
        messages[3 + i] = (tw_device_message){.data = to[i], .bytes = sizes[i]};
    }
    check_ok(tw_nccl_exchange(c, messages, 6, stream));
    await_nccl(c);
    gpu_ok(cudaStreamSynchronize(stream));
    for (int i = 0; i < 3; i++) {
        gpu_ok(cudaMemcpy(received, to[i], sizes[i], cudaMemcpyDeviceToHost));
        check_int("bytes that differ", memcmp(received, sent[i], sizes[i]) != 0, 0);
        gpu_ok(cudaFree(from[i]));
        gpu_ok(cudaFree(to[i]));
    }
    gpu_ok(cudaStreamDestroy(stream));
}

static void test_messages(void **state) {
    (void)state;
    send_to_itself(comm);
}

/* A communicator that does not block: its calls may say that they are in progress. */
static void test_not_blocking(void **state) {
    (void)state;
    ncclUniqueId id;
    ncclComm_t c = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check_int("ncclGetUniqueId", ncclGetUniqueId(&id), ncclSuccess);
    ncclResult_t made = ncclCommInitRankConfig(&c, 1, id, 0, &config);
    check_true(made == ncclSuccess || made == ncclInProgress);
    await_nccl(c);
    for (int i = 0; i < 3; i++)
        send_to_itself(c);
    (void)ncclCommFinalize(c);
    await_nccl(c);
    (void)ncclCommDestroy(c);
}

/* A group of one rank over it, step by step as without. */
static void test_group(void **state) {
    (void)state;
    enum { N = 3001 };
    float grads[N], outs[2][N];
    void *gpu_grad, *gpu_out;
    tw_transport *transports[2];
    tw_group *groups[2];
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.density = 0.05;
    params.select.device = TW_CUDA;
    gpu_ok(cudaMalloc(&gpu_grad, sizeof grads));
    gpu_ok(cudaMalloc(&gpu_out, sizeof grads));
    for (int i = 0; i < 2; i++) {
        check_ok(tw_transport_self(&transports[i]));
        if (i == 1)
            check_ok(tw_transport_nccl(transports[i], comm));
        check_ok(tw_group_create(&groups[i], transports[i], &params));
        check_ok(tw_group_add(groups[i], N, NULL, NULL));
        check_ok(tw_group_open(groups[i]));
    }
    check_error(tw_transport_nccl(transports[1], comm), TW_ERR_STATE);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < N; i++)
            grads[i] = (float)((i * 7919 + step * 104729) % 2003) - 1001.0f;
        gpu_ok(cudaMemcpy(gpu_grad, grads, sizeof grads, cudaMemcpyHostToDevice));
        for (int i = 0; i < 2; i++) {
            check_ok(tw_allreduce(groups[i], 0, gpu_grad, gpu_out));
            gpu_ok(cudaMemcpy(outs[i], gpu_out, sizeof grads, cudaMemcpyDeviceToHost));
        }
        check_bits("out", outs[1], outs[0], N);
    }
    for (int i = 0; i < 2; i++) {
        tw_group_free(groups[i]);
        tw_transport_free(transports[i]);
    }
    gpu_ok(cudaFree(gpu_grad));
    gpu_ok(cudaFree(gpu_out));
}

/* A communicator of another GPU than the group's. */
static void test_another_gpu(void **state) {
    (void)state;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    tw_transport *transport;
    tw_group *group;
    params.select.density = 0.05;
    params.select.device = TW_CUDA;
    for (another_gpu = 1; another_gpu >= 0; another_gpu--) {
        check_ok(tw_transport_self(&transport));
        check_ok(tw_transport_nccl(transport, comm));
        check_ok(tw_group_create(&group, transport, &params));
        check_ok(tw_group_add(group, 1000, NULL, NULL));
        check_error(tw_group_open(group), another_gpu ? TW_ERR_DEVICE : TW_OK);
        if (another_gpu)
            check_contains(tw_last_error(), "is of GPU 1; the group's tensors lie on GPU 0");
        tw_group_free(group);
        tw_transport_free(transport);
    }
    another_gpu = 0;
}

static void test_refusals(void **state) {
    (void)state;
    tw_transport *transports[2], *alone;
    check_ok(tw_transport_threads(transports, 2));
    check_ok(tw_transport_self(&alone));
    check_error(tw_transport_nccl(transports[0], comm), TW_ERR_PARAM);
    check_contains(tw_last_error(), "rank 0 of 1; the transport's is rank 0 of 2");
    check_error(tw_transport_nccl(alone, NULL), TW_ERR_TRANSPORT);
    check_error(tw_transport_nccl(NULL, comm), TW_ERR_NULL);
    tw_transport_free(transports[0]);
    tw_transport_free(transports[1]);
    tw_transport_free(alone);
}

int main(void) {
    int gpu = 0;
    if (tw_cuda_device(0, NULL) != TW_OK) {
        printf("SKIP: %s\n", tw_last_error());
        return 0;
    }
    ncclResult_t result = ncclCommInitAll(&comm, 1, &gpu);
    if (result != ncclSuccess) {
        printf("SKIP: NCCL: %s\n", ncclGetErrorString(result));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),    cmocka_unit_test(test_not_blocking),
        cmocka_unit_test(test_another_gpu), cmocka_unit_test(test_group),
        cmocka_unit_test(test_refusals),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    (void)ncclCommDestroy(comm);
    return failures;
}
