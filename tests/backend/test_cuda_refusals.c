/* test_cuda_refusals.c - what a group on a GPU is given and cannot use: typed errors, nothing changed
 *
 * Numbers, memory that is not the GPU's, GPUs that are not there. After each refusal residuals and
 * outputs are bit for bit as before, and the next step is the CPU's, whose group never saw the bad
 * one. An argument: tests of this name alone. */
#include <math.h>
#include <time.h>

#include "cuda_runs.h"

/* A step that the GPU's group refuses, on all ranks alike. */
static void refuse(pair *p, ranks_call call, int error) {
    ranks_run(&p->cuda, call, p);
    ranks_error(&p->cuda, error);
    pair_check_outs(p);
    compare_residuals(p);
}

/* A bad number or pointer on one rank: the same error on all, and nothing has changed. */
static void test_refusals(void **state) {
    (void)state;
    tw_group_params params = params_of("oktopk", 0.05);
    pair p;
    pair_open_one(&p, 3, 3001, &params, DIRECT);
    for (int step = 0; step < STEPS; step++) {
        check_scene("refusals, step=%d", step);
        rows_fill(p.grads, 3, 3001, DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK);
        float before = p.grads[1][77];
        p.grads[1][77] = NAN;
        pair_upload(&p);
        refuse(&p, reduce_one, TW_ERR_NUMBER);
        ranks_say(&p.cuda, "rank 1, tensor 0: element 77");
        p.grads[1][77] = before;
        pair_upload(&p);
        p.odd = (oddity){1, 0, p.grads[1], p.gpu_outs[1]};
        refuse(&p, reduce_one, TW_ERR_DEVICE);
        ranks_say(&p.cuda, "rank 1, tensor 0: ");
        check_contains(p.cuda.text[1], "grad: is memory of the host");
        p.odd.is = 0;
    }
    compare_residuals(&p);
    pair_close(&p);
}

/* ---- memory that cannot be used, of one of many small tensors */

enum { MOST_BAD = 8 };

typedef struct bad_memory {
    int is_out; /* what it is given as: out, or grad */
    void *at;
    int error;
    const char *words;
} bad_memory;

/* All kinds that there are here. Returns how many. */
static int bad_memories(const pair *p, void *pinned, void *other_gpu, bad_memory bad[MOST_BAD]) {
    int count = 0;
    void *host = p->typed[1], *odd = (char *)p->gpu_grads[1] + 1,
         *odd_out = (char *)p->gpu_outs[1] + 1; /* apart from grad: to overlap is another error */
    bad[count++] = (bad_memory){0, host, TW_ERR_DEVICE, "grad: is memory of the host"};
    bad[count++] = (bad_memory){1, host, TW_ERR_DEVICE, "out: is memory of the host"};
    bad[count++] = (bad_memory){0, pinned, TW_ERR_DEVICE, "grad: is memory of the host"};
    bad[count++] = (bad_memory){0, odd, TW_ERR_DEVICE, "grad: is not aligned"};
    bad[count++] = (bad_memory){1, odd_out, TW_ERR_DEVICE, "out: is not aligned"};
    bad[count++] = (bad_memory){0, NULL, TW_ERR_NULL, "grad"};
    if (other_gpu != NULL) {
        bad[count++] = (bad_memory){0, other_gpu, TW_ERR_DEVICE, "grad: is memory of GPU 1"};
        bad[count++] = (bad_memory){1, other_gpu, TW_ERR_DEVICE, "out: is memory of GPU 1"};
    }
    return count;
}

/* Memory of another GPU, if there is one. */
static void *other_memory(size_t bytes) {
    int count = 0;
    void *memory = NULL;
    gpu_ok(cudaGetDeviceCount(&count));
    if (count > 1) {
        gpu_ok(cudaSetDevice(1));
        gpu_ok(cudaMalloc(&memory, bytes));
        gpu_ok(cudaSetDevice(0));
    }
    return memory;
}

static void refuse_memory(pair *p, const bad_memory *bad, int tensor) {
    p->odd = (oddity){1, tensor, p->gpu_grads[1], p->gpu_outs[1]};
    if (bad->is_out)
        p->odd.out = bad->at;
    else
        p->odd.grad = bad->at;
    refuse(p, reduce_all, bad->error);
    ranks_say(&p->cuda, "rank 1, tensor %d: ", tensor);
    check_contains(p->cuda.text[1], bad->words);
    p->odd.is = 0;
}

/* The first, one in the middle of a launch, and the last; the very first step is refused too. */
static void run_bad_memory(const char *scheme, mixture mix, transfer_kind how) {
    static const int tensors[] = {0, 16, MIXED - 1};
    tw_select_params selects[MIXED];
    bad_memory bad[MOST_BAD];
    void *pinned;
    group_setup mixed = {.params = params_of(scheme, 0.05), .nranks = 3, .how = how};
    setup_mixed(&mixed, mix, selects);
    pair p;
    pair_open(&p, &mixed);
    void *other_gpu = other_memory(4 * (size_t)p.n);
    gpu_ok(cudaMallocHost(&pinned, 4 * (size_t)p.n));
    int count = bad_memories(&p, pinned, other_gpu, bad);
    for (int step = 0; step < 3 * count; step++) {
        check_scene("scheme=%s %s mixture %d, %s, tensor %d, step=%d", scheme, transfer_names[how],
                    mix, bad[step / 3].words, tensors[step % 3], step);
        rows_fill(p.grads, p.nranks, p.n, DATA_GAUSS, step);
        pair_upload(&p);
        refuse_memory(&p, &bad[step / 3], tensors[step % 3]);
        pair_step(&p, reduce_all, TW_OK);
    }
    compare_residuals(&p);
    pair_close(&p);
    gpu_ok(cudaFreeHost(pinned));
    gpu_ok(cudaFree(other_gpu));
}

static void test_bad_memory(void **state) {
    (void)state;
    run_bad_memory("oktopk", TYPES, DIRECT);
    run_bad_memory("oktopk", BOTH, LENT);
    run_bad_memory("gtopk", METHODS, LENT);
    run_bad_memory("dense", TYPES, LENT);
    run_bad_memory("dense", TYPES, DIRECT);
}

/* ---- GPUs that are not there */

static void test_no_such_gpu(void **state) {
    (void)state;
    static const int ordinals[] = {-1, 99};
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = params_of("oktopk", 0.05);
    params.select.device = TW_CUDA;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    for (int i = 0; i < 2; i++) {
        tw_select_params wrong = params.select;
        wrong.ordinal = ordinals[i];
        check_error(tw_group_add(group, 1000, &wrong, NULL), TW_ERR_DEVICE);
        check_contains(tw_last_error(), "ordinal: ");
    }
    check_error(tw_group_open(group), TW_ERR_STATE); /* none was added */
    check_ok(tw_group_add(group, 1000, NULL, NULL));
    check_ok(tw_group_open(group));
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- many tensors */

/* Each is added in constant time: 10,000 of them take milliseconds. */
static void test_add_many(void **state) {
    (void)state;
    enum { MANY = 10000 };
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = params_of("oktopk", 0.05);
    params.select.device = TW_CUDA;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    const clock_t begin = clock();
    for (int t = 0; t < MANY; t++)
        check_ok(tw_group_add(group, 100, NULL, NULL));
    check_between("CPU seconds", (int64_t)((clock() - begin) / CLOCKS_PER_SEC), 0, 0);
    tw_group_free(group);
    tw_transport_free(transport);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_memory),
        cmocka_unit_test(test_no_such_gpu),
        cmocka_unit_test(test_add_many),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
