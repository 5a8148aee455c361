/* test_cuda_pieces.c - a tensor in pieces on a GPU does what one vector on the CPU does, bit for bit */
#include <stdlib.h>
#include <string.h>

#include "cuda_ranks.h"
#include "piece_twins.h"

static void *alloc_gpu(int64_t bytes) {
    void *memory;
    gpu_ok(cudaMalloc(&memory, (size_t)bytes));
    return memory;
}

static void free_gpu(void *memory) {
    gpu_ok(cudaFree(memory));
}

/* The streams of groups need not wait for the default one, so it is waited for here. */
static void copy_gpu(void *to, const void *from, int64_t bytes) {
    gpu_ok(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDefault));
    gpu_ok(cudaDeviceSynchronize());
}

static const piece_memory memory = {TW_CUDA, 0, alloc_gpu, free_gpu, copy_gpu};

static void use_before(tw_group_params *params, int before) {
    params->select.before = before == 2 ? TW_BEFORE_ADAMW : TW_BEFORE_NOTHING;
    params->select.momentum = before == 1 ? 0.5f : 0.0f;
    params->select.rate = before == 2 ? 0.01 : 0.0;
}

static void test_schemes(void **state) {
    (void)state;
    const char *scheme;
    uint64_t seed = 1;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        if (strcmp(scheme, "dense") == 0 || strcmp(scheme, "auto") == 0)
            continue;
        for (int i = 0; i < 6; i++, seed++) {
            piece_case c = piece_case_default(scheme, 1 + (int)(seed % 23), 3000, seed);
            c.nranks = 1 + i % 3;
            c.out = (pieces_out)(i % PIECES_OUTS);
            use_before(&c.params, (i + s) % 3);
            piece_check(&c, &memory);
        }
    }
}

/* Entries stay on the GPU, tiles begin and end within pieces, aligned and misaligned ones. */
static void test_long(void **state) {
    (void)state;
    for (int type = TW_F32; type <= TW_BF16; type++)
        for (int i = 0; i < 6; i++) {
            piece_case c = piece_case_default("topka", 9, 200000, 30 + (uint64_t)i);
            for (int p = 0; p < c.npieces && i % 2; p++)
                c.sizes[p] = 4 * c.sizes[p];
            c.nranks = 1 + i % 2;
            c.params.select.type = type;
            c.params.select.density = 0.2;
            c.params.select.clip_norm = i % 3 == 1 ? 1.0f : 0.0f;
            c.params.wire = i % 3 == 2 ? "bf16" : NULL;
            c.out = i % 2 ? PIECES_OUT_NONE : PIECES_OUT_APART;
            c.steps = 5;
            use_before(&c.params, i / 2);
            piece_check(&c, &memory);
        }
}

static void test_sizes(void **state) {
    (void)state;
    piece_case tiny = piece_case_default("topka", PIECES_MOST, 1, 7);
    piece_check(&tiny, &memory);
    piece_case many = piece_case_default("oktopk", PIECES_MOST, 100, 8);
    piece_check(&many, &memory);
}

static void test_methods(void **state) {
    (void)state;
    for (int method = 0; method < check_gpu_methods(); method++)
        for (int feedback = TW_FEEDBACK_ON; feedback <= TW_FEEDBACK_OFF; feedback++) {
            piece_case c = piece_case_default("topka", 17, 5000, 300 + (uint64_t)method);
            c.params.select.method = check_method(method);
            c.params.select.feedback = feedback;
            piece_check(&c, &memory);
        }
}

static void test_states(void **state) {
    (void)state;
    for (int before = 0; before < 3; before++) {
        piece_case c = piece_case_default("oktopk", 30, 3000, 400 + (uint64_t)before);
        c.load_step = 4;
        use_before(&c.params, before);
        piece_check(&c, &memory);
    }
}

/* A piece in the host's memory is refused by its number. After that a step succeeds: where the other
 * pieces lie is told anew. */
static void test_host_memory(void **state) {
    (void)state;
    const int64_t sizes[3] = {5000, 6000, 7000};
    float *on_gpu = alloc_gpu(4 * 18000), host[6000] = {0};
    const void *grads[3] = {on_gpu, on_gpu + 5000, on_gpu + 11000};
    const void *wrong[3] = {on_gpu + 11000, host, on_gpu};
    float *outs[3] = {on_gpu, on_gpu + 5000, on_gpu + 11000}, *bad[3] = {on_gpu, host, on_gpu};
    float *filled = check_alloc(18000, sizeof *filled),
          *result = check_alloc(18000, sizeof *result);
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "topka";
    params.select.density = 1.0;
    params.select.device = TW_CUDA;
    check_scene("a piece in the host's memory");
    oracle_fill(filled, 18000, DATA_GAUSS, 1);
    copy_gpu(on_gpu, filled, 4 * 18000);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add_pieces(group, sizes, 3, NULL, NULL));
    check_ok(tw_group_open(group));
    check_ok(tw_allreduce_start_pieces(group, 0, wrong, NULL, 3));
    check_error(tw_allreduce_wait(group, 0), TW_ERR_DEVICE);
    check_contains(tw_last_error(), "grad, piece 1: is memory of the host");
    check_ok(tw_allreduce_start_pieces(group, 0, grads, outs, 3));
    check_ok(tw_allreduce_wait(group, 0));
    copy_gpu(result, on_gpu, 4 * 18000);
    check_bits("out", result, filled, 18000);
    check_error(tw_group_subtract(group, 0, bad, 3), TW_ERR_DEVICE);
    check_contains(tw_last_error(), "params, piece 1");
    check_ok(tw_group_subtract(group, 0, outs, 3));
    copy_gpu(result, on_gpu, 4 * 18000);
    memset(filled, 0, sizeof *filled * 18000);
    check_bits("parameters", result, filled, 18000);
    tw_group_free(group);
    tw_transport_free(transport);
    free_gpu(on_gpu);
    free(filled);
    free(result);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes), cmocka_unit_test(test_long),
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_methods),
        cmocka_unit_test(test_states),  cmocka_unit_test(test_host_memory),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
