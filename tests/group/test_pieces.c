/* test_pieces.c - a tensor in pieces does what the same numbers in one vector do, bit for bit
 *
 * Random numbers and sizes of pieces, at any address, with all schemes, types and what comes before
 * selection. On a GPU: test_cuda_pieces.c.
 */
#include <stdlib.h>
#include <string.h>

#include "piece_twins.h"

static int is_sparse(const char *scheme) {
    return strcmp(scheme, "dense") != 0 && strcmp(scheme, "auto") != 0;
}

static void use_before(tw_group_params *params, int before) {
    params->select.before = before == 2 ? TW_BEFORE_ADAMW : TW_BEFORE_NOTHING;
    params->select.momentum = before == 1 ? 0.5f : 0.0f;
    params->select.rate = before == 2 ? 0.01 : 0.0;
}

/* Two ranks, or one or three; outputs of all kinds. */
static void test_schemes(void **state) {
    (void)state;
    const char *scheme;
    uint64_t seed = 1;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++)
        for (int i = 0; i < 9 && is_sparse(scheme); i++, seed++) {
            piece_case c = piece_case_default(scheme, 1 + (int)(seed % 23), 700, seed);
            c.nranks = 1 + i % 3;
            c.out = (pieces_out)(i / 3 % PIECES_OUTS);
            use_before(&c.params, (i + s) % 3);
            piece_check(&c, &piece_memory_cpu);
        }
}

static void test_types(void **state) {
    (void)state;
    for (int type = TW_F32; type <= TW_BF16; type++)
        for (int i = 0; i < 12; i++) {
            piece_case c =
                piece_case_default(i % 2 ? "oktopk" : "topka", 40, 400, 100 + (uint64_t)i);
            c.params.select.type = type;
            c.params.select.clip_norm = i % 4 == 3 ? 1.0f : 0.0f;
            c.params.select.threads = 1 + i % 2;
            c.params.wire = i % 3 == 0 ? "bf16" : NULL;
            c.out = i % 5 == 0 ? PIECES_OUT_NONE : PIECES_OUT_APART;
            use_before(&c.params, i % 3);
            piece_check(&c, &piece_memory_cpu);
        }
}

/* Many pieces of one element; a few that are longer than a thread's share; ties and zeros. */
static void test_sizes(void **state) {
    (void)state;
    piece_case tiny = piece_case_default("topka", PIECES_MOST, 1, 7);
    piece_check(&tiny, &piece_memory_cpu);
    for (int i = 0; i < 6; i++) {
        piece_case c = piece_case_default("topka", 9, 90000, 20 + (uint64_t)i);
        c.params.select.threads = 2;
        c.data = i % 2 ? DATA_TIES : DATA_SIGNED_ZEROS;
        c.steps = 4;
        use_before(&c.params, i / 2);
        piece_check(&c, &piece_memory_cpu);
    }
}

/* The bare gradient, without feedback, and every method. */
static void test_methods(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        for (int feedback = TW_FEEDBACK_ON; feedback <= TW_FEEDBACK_OFF; feedback++) {
            piece_case c = piece_case_default("topka", 17, 500, 300 + (uint64_t)method);
            c.params.select.method = check_method(method);
            c.params.select.feedback = feedback;
            piece_check(&c, &piece_memory_cpu);
        }
}

/* What one form saved, the other loads. */
static void test_states(void **state) {
    (void)state;
    for (int before = 0; before < 3; before++) {
        piece_case c = piece_case_default("oktopk", 30, 300, 400 + (uint64_t)before);
        c.load_step = 4;
        use_before(&c.params, before);
        piece_check(&c, &piece_memory_cpu);
    }
}

/* ---- refusals */

static void test_bad_calls(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    const int64_t sizes[3] = {5, 6, 7}, zero[2] = {5, 0}, large[2] = {INT32_MAX, 1};
    float memory[18] = {1.0f};
    const void *grads[3] = {memory, memory + 5, memory + 11}, *missing[3] = {memory, NULL, memory};
    float *outs[3] = {memory, memory + 5, memory + 11}, *shifted[3] = {memory, memory + 6, memory};
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "topka";
    params.select.density = 0.5;
    check_scene("bad calls");
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_add_pieces(NULL, sizes, 3, NULL, NULL), TW_ERR_NULL);
    check_error(tw_group_add_pieces(group, NULL, 3, NULL, NULL), TW_ERR_NULL);
    check_error(tw_group_add_pieces(group, sizes, 0, NULL, NULL), TW_ERR_PARAM);
    check_error(tw_group_add_pieces(group, zero, 2, NULL, NULL), TW_ERR_SIZE);
    check_contains(tw_last_error(), "sizes[1]: 0");
    check_error(tw_group_add_pieces(group, large, 2, NULL, NULL), TW_ERR_SIZE);
    check_ok(tw_group_add_pieces(group, sizes, 3, NULL, NULL));
    check_ok(tw_group_add(group, 18, NULL, NULL));
    check_ok(tw_group_open(group));
    check_error(tw_group_add_pieces(group, sizes, 3, NULL, NULL), TW_ERR_STATE);
    check_error(tw_allreduce(group, 0, memory, memory), TW_ERR_PARAM);
    check_error(tw_allreduce_start(group, 0, memory, memory), TW_ERR_PARAM);
    check_error(tw_allreduce_start_pieces(group, 0, grads, outs, 2), TW_ERR_PARAM);
    check_contains(tw_last_error(), "tensor 0 has 3 pieces, 2 were given");
    check_error(tw_allreduce_start_pieces(group, 0, NULL, outs, 3), TW_ERR_NULL);
    check_error(tw_allreduce_start_pieces(group, 2, grads, outs, 3), TW_ERR_INDEX);
    check_error(tw_group_subtract(group, 0, outs, 3), TW_ERR_STATE);
    check_ok(tw_allreduce_start_pieces(group, 0, missing, NULL, 3));
    check_error(tw_allreduce_wait(group, 0), TW_ERR_NULL);
    check_contains(tw_last_error(), "rank 0, tensor 0: piece 1, grad, or out, is NULL");
    check_ok(tw_allreduce_start_pieces(group, 0, grads, shifted, 3));
    check_error(tw_allreduce_wait(group, 0), TW_ERR_PARAM);
    check_contains(tw_last_error(), "rank 0, tensor 0: piece 1, grad and out overlap");
    check_ok(tw_allreduce_start_pieces(group, 0, grads, outs, 3));
    check_error(tw_group_subtract(group, 0, outs, 3), TW_ERR_STATE);
    check_ok(tw_allreduce_wait(group, 0));
    check_error(tw_group_subtract(group, 0, NULL, 3), TW_ERR_NULL);
    check_error(tw_group_subtract(NULL, 0, outs, 3), TW_ERR_NULL);
    check_error(tw_group_subtract(group, 0, outs, 1), TW_ERR_PARAM);
    check_error(tw_group_subtract(group, 0, (float *const *)(void *)missing, 3), TW_ERR_NULL);
    check_ok(tw_allreduce_start_pieces(group, 1, grads, outs, 1)); /* one vector is one piece */
    check_ok(tw_allreduce_wait(group, 1));
    check_ok(tw_group_subtract(group, 1, outs, 1));
    tw_group_free(group);
    tw_transport_free(transport);
}

static void test_dense_and_auto(void **state) {
    (void)state;
    static const char *const names[][2] = {{"dense", NULL}, {"auto", NULL}, {"topka", "dense"}};
    const int64_t sizes[2] = {5, 6};
    for (int i = 0; i < 3; i++) {
        tw_transport *transport;
        tw_group *group;
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.scheme = names[i][0];
        params.exchange = names[i][1];
        params.select.density = 0.5;
        check_scene("scheme %s", params.scheme);
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        check_error(tw_group_add_pieces(group, sizes, 2, NULL, NULL), TW_ERR_PARAM);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),        cmocka_unit_test(test_types),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_methods),
        cmocka_unit_test(test_states),         cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_dense_and_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
