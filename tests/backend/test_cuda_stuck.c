/* test_cuda_stuck.c - work that does not end on the GPU: errors at the deadline, and all can be freed
 *
 * Two ranks share the card. A host function that waits for a gate stands for a kernel of NCCL whose
 * peer is gone: in the exchange that is lent to the group, or in the stream of the caller. A call
 * that waits for it without a deadline never returns: the alarm then ends the test. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_ranks.h"

enum { P = 2, N = 100000, SECONDS_TO_LIVE = 120 };
#define TIMEOUT 1.0

/* ---- the gate */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int closed;

static void set_gate(int now) {
    pthread_mutex_lock(&mutex);
    closed = now;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void CUDART_CB pass_gate(void *context) {
    (void)context;
    pthread_mutex_lock(&mutex);
    while (closed)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* As lent_exchange, until the gate is closed: then it queues what does not end. */
static int stuck_exchange(void *context, const tw_device_message *messages, int count,
                          void *stream) {
    pthread_mutex_lock(&mutex);
    int is_stuck = closed;
    pthread_mutex_unlock(&mutex);
    if (!is_stuck)
        return lent_exchange(context, messages, count, stream);
    return cudaLaunchHostFunc(stream, pass_gate, NULL) == cudaSuccess
               ? TW_OK
               : tw_transport_explain("test: no host function");
}

static const tw_device_calls stuck = {.exchange = stuck_exchange};

/* ---- ranks */

typedef struct place {
    ranks r;
    tw_group_params params;
    cudaStream_t stream; /* of rank 1 */
    void *grads[P];
    float *outs[P];
    double took[P]; /* seconds, of the last call */
} place;

static int open_rank(ranks *r, int rank, void *context) {
    place *p = context;
    tw_select_params select = p->params.select;
    select.device = TW_CUDA;
    select.stream = rank == 1 ? p->stream : NULL;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &p->params);
    if (error == TW_OK)
        error = tw_group_add(r->groups[rank], N, &select, NULL);
    return error != TW_OK ? error : tw_group_open(r->groups[rank]);
}

static int reduce(ranks *r, int rank, void *context) {
    place *p = context;
    double begin = check_seconds();
    int error = tw_allreduce(r->groups[rank], 0, p->grads[rank], p->outs[rank]);
    p->took[rank] = check_seconds() - begin;
    return error;
}

static int reduce_behind(ranks *r, int rank, void *context) {
    place *p = context;
    double begin = check_seconds();
    int error = tw_allreduce_start(r->groups[rank], 0, p->grads[rank], p->outs[rank]);
    if (error == TW_OK)
        error = tw_allreduce_wait(r->groups[rank], TW_ALL);
    p->took[rank] = check_seconds() - begin;
    return error;
}

static int free_group(ranks *r, int rank, void *context) {
    place *p = context;
    double begin = check_seconds();
    tw_group_free(r->groups[rank]);
    p->took[rank] = check_seconds() - begin;
    r->groups[rank] = NULL;
    return TW_OK;
}

static void check_took(const place *p, const char *what, double most) {
    for (int rank = 0; rank < P; rank++)
        if (p->took[rank] > most)
            check_fail("%s: rank %d took %g s, expected %g at most", what, rank, p->took[rank],
                       most);
}

/* Groups after a good step: kernels are loaded, which waits for the whole GPU. */
static void place_open(place *p, const char *scheme, double timeout, const tw_device_calls *calls) {
    float *grad = check_alloc(N, sizeof *grad);
    *p = (place){.params = params_of(scheme, 0.05)};
    p->params.timeout = timeout;
    gpu_ok(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    ranks_init(&p->r, P);
    lent_clear();
    for (int rank = 0; rank < P; rank++) {
        check_ok(tw_transport_set_device(p->r.transports[rank], calls, lent_rank(rank)));
        gpu_ok(cudaMalloc(&p->grads[rank], N * sizeof *grad));
        gpu_ok(cudaMalloc((void **)&p->outs[rank], N * sizeof *grad));
        oracle_fill(grad, N, DATA_GAUSS, (uint64_t)rank);
        gpu_ok(cudaMemcpy(p->grads[rank], grad, N * sizeof *grad, cudaMemcpyHostToDevice));
    }
    free(grad);
    ranks_run(&p->r, open_rank, p);
    ranks_ok(&p->r);
    ranks_run(&p->r, reduce, p);
    ranks_ok(&p->r);
    ranks_run(&p->r, reduce_behind, p);
    ranks_ok(&p->r);
}

/* The gate is open again: the GPU comes to its end. */
static void place_close(place *p) {
    set_gate(0);
    gpu_ok(cudaDeviceSynchronize());
    ranks_close(&p->r);
    gpu_ok(cudaStreamDestroy(p->stream));
    for (int rank = 0; rank < P; rank++) {
        gpu_ok(cudaFree(p->grads[rank]));
        gpu_ok(cudaFree(p->outs[rank]));
    }
}

/* ---- a lent exchange that takes its time */

static void CUDART_CB sleep_a_while(void *context) {
    (void)context;
    usleep(1000);
}

static int slow_exchange(void *context, const tw_device_message *messages, int count,
                         void *stream) {
    int error = lent_exchange(context, messages, count, stream);
    if (error == TW_OK && cudaLaunchHostFunc(stream, sleep_a_while, NULL) != cudaSuccess)
        error = tw_transport_explain("test: no host function");
    return error;
}

/* No message wakes a rank when its GPU is done: the wait is not longer than the work for that. The
 * best of some steps counts, as the machine may be busy. topka has one exchange in a step. */
static void test_lent_is_noticed(void **state) {
    (void)state;
    static const tw_device_calls slow = {.exchange = slow_exchange};
    place p;
    tw_step_info info;
    double least = 1.0;
    check_scene("a lent exchange of 1 ms");
    place_open(&p, "topka", RANKS_TIMEOUT, &slow);
    for (int step = 0; step < 20; step++) {
        ranks_run(&p.r, step % 2 ? reduce_behind : reduce, &p);
        ranks_ok(&p.r);
        check_ok(tw_group_info(p.r.groups[0], 0, &info));
        least = info.exchange_seconds < least ? info.exchange_seconds : least;
    }
    if (least < 0.001 || least > 0.003)
        check_fail("exchange_seconds: %g", least);
    place_close(&p);
}

/* ---- a lent exchange that does not end */

static const char *const schemes[] = {"topka", "oktopk", "dense"};
enum { SCHEMES = 3 };

static void get_stuck(place *p, ranks_call call) {
    set_gate(1);
    ranks_run(&p->r, call, p);
    ranks_error(&p->r, TW_ERR_TIMEOUT);
    check_took(p, "the step", 1.1 * TIMEOUT + 0.1);
}

/* The step fails at its deadline, questions fail at once, and the groups can be freed. */
static void test_lent(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SCHEMES; i++) {
        place p;
        float *residual = check_alloc(N, sizeof *residual);
        check_scene("scheme=%s background=%d", schemes[i / 2], i % 2);
        place_open(&p, schemes[i / 2], TIMEOUT, &stuck);
        get_stuck(&p, i % 2 ? reduce_behind : reduce);
        double begin = check_seconds();
        check_error(tw_group_get_residual(p.r.groups[0], 0, residual),
                    i / 2 == 2 ? TW_OK : TW_ERR_TIMEOUT); /* dense has none */
        check_true(check_seconds() - begin < 0.5);
        ranks_run(&p.r, free_group, &p);
        check_took(&p, "tw_group_free", 1.0);
        place_close(&p);
        free(residual);
    }
}

/* What was stuck is aborted: residuals are as before, and all memory is freed. */
static void test_lent_aborted(void **state) {
    (void)state;
    size_t before = 0, after = 0, all;
    float **old = rows_alloc(P, N);
    for (int turn = 0; turn < 3; turn++) {
        place p;
        check_scene("turn %d", turn);
        gpu_ok(cudaMemGetInfo(&before, &all));
        place_open(&p, "topka", TIMEOUT, &stuck);
        ranks_get_residuals(&p.r, 0, old, N);
        get_stuck(&p, reduce);
        set_gate(0);
        gpu_ok(cudaDeviceSynchronize());
        ranks_check_residuals(&p.r, 0, old, N);
        place_close(&p);
        gpu_ok(cudaMemGetInfo(&after, &all));
    }
    check_int("bytes that the last turn did not free", (int64_t)before - (int64_t)after, 0);
    rows_free(old);
}

static int start_and_free(ranks *r, int rank, void *context) {
    place *p = context;
    int error = tw_allreduce_start(r->groups[rank], 0, p->grads[rank], p->outs[rank]);
    usleep(300000); /* the thread waits for the exchange by now */
    return error != TW_OK ? error : free_group(r, rank, context);
}

/* A group is freed during such a step, long before its deadline. */
static void test_free_under_way(void **state) {
    (void)state;
    for (int i = 0; i < SCHEMES; i++) {
        place p;
        check_scene("scheme=%s", schemes[i]);
        place_open(&p, schemes[i], RANKS_TIMEOUT, &stuck);
        set_gate(1);
        ranks_run(&p.r, start_and_free, &p);
        ranks_ok(&p.r);
        check_took(&p, "tw_group_free", 1.0);
        place_close(&p);
    }
}

/* ---- a stream of the caller that does not end: rank 1 */

static void test_callers_stream(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SCHEMES; i++) {
        place p;
        check_scene("scheme=%s background=%d", schemes[i / 2], i % 2);
        place_open(&p, schemes[i / 2], TIMEOUT, &stuck);
        set_gate(1);
        gpu_ok(cudaLaunchHostFunc(p.stream, pass_gate, NULL));
        ranks_run(&p.r, i % 2 ? reduce_behind : reduce, &p);
        ranks_error(&p.r, TW_ERR_TIMEOUT);
        check_took(&p, "the step", 1.1 * TIMEOUT + 0.1);
        check_contains(p.r.text[0], "rank 1, tensor 0: its device did not end in time");
        check_contains(p.r.text[1], "the device has not ended within 0.5 s");
        p.took[0] = 0.0;
        (void)free_group(&p.r, 1, &p); /* rank 0's memory is freed when the card is idle */
        check_took(&p, "tw_group_free", 1.0);
        place_close(&p);
    }
}

/* A group is freed while the stream of its caller is stuck. */
static void test_free_behind_callers_stream(void **state) {
    (void)state;
    place p;
    check_scene("freed behind a stuck stream");
    place_open(&p, "topka", RANKS_TIMEOUT, &stuck);
    set_gate(1);
    gpu_ok(cudaLaunchHostFunc(p.stream, pass_gate, NULL));
    check_error(start_and_free(&p.r, 1, &p), TW_OK);
    check_took(&p, "tw_group_free", 1.0);
    place_close(&p);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent_is_noticed), cmocka_unit_test(test_lent),
        cmocka_unit_test(test_lent_aborted),    cmocka_unit_test(test_free_under_way),
        cmocka_unit_test(test_callers_stream),  cmocka_unit_test(test_free_behind_callers_stream),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    (void)alarm(SECONDS_TO_LIVE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
