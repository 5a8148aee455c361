/* test_oktopk_edges.c - steps of oktopk that random gradients do not lead to */
#include "ranks.h"

static tw_group_params params_of(int64_t k) {
    tw_group_params params = ranks_params("oktopk", k);
    params.select.threads = 1;
    params.result = TW_SUM;
    return params;
}

/* A reused threshold that only half of k sums reach is not taken: the step searches again. */
static void test_reuse_of_few(void **state) {
    (void)state;
    enum { P = 4, K = 400 };
    const int64_t n = 20000;
    tw_group_params params = params_of(K);
    ranks r;
    float **grads = rows_alloc(P, n);
    params.global = TW_GLOBAL_REUSE;
    ranks_open(&r, P, &params, &n, 1);
    for (int step = 0; step < 2; step++) {
        tw_step_info info;
        check_scene("step %d", step);
        for (int rank = 0; rank < P; rank++)
            for (int i = 0; i < K; i++)
                grads[rank][i] = step == 0 ? 1.0f + (float)i * 0x1p-10f : i % 2 ? 4.0f : 0.25f;
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_ok(&r);
        check_ok(tw_group_info(r.groups[0], 0, &info));
        check_int("applied", info.applied, K);
    }
    ranks_close(&r);
    rows_free(grads);
}

/* Each rank sums 100,000 entries of the same magnitude: more than 16 bits count. */
static void test_many_equal_sums(void **state) {
    (void)state;
    enum { P = 2, K = 100000 };
    const int64_t n = (int64_t)P * K;
    tw_group_params params = params_of(K);
    ranks r;
    tw_sparse result;
    float **grads = rows_alloc(P, n);
    params.wire = "bf16";
    check_scene("%d equal sums of each rank", K);
    for (int64_t i = 0; i < n; i++)
        grads[i % P][i] = i % 3 ? 1.0f : -1.0f;
    ranks_open(&r, P, &params, &n, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    check_ok(tw_group_result(r.groups[1], 0, &result));
    check_int("count", result.count, K);
    for (int64_t i = 0; i < K; i++)
        check_int("index", result.idx[i], i);
    ranks_close(&r);
    rows_free(grads);
}

/* The whole result lies in the region of a rank that has no entries there itself: that rank sends the
 * most. One entry is left over when the result is shared out, and must not be its. */
static void test_result_in_one_region(void **state) {
    (void)state;
    enum { P = 32, K = 8 * P + 1, FULL = 5 };
    const int64_t n = (int64_t)P * K;
    const tw_group_params params = params_of(K);
    ranks r;
    float **grads = rows_alloc(P, n);
    check_scene("the result is in region %d", FULL);
    for (int64_t i = 0; i < n; i++) { /* each index has one rank, never that of its region */
        int64_t region = i / K;
        grads[(region + 1 + i % (P - 1)) % P][i] = region == FULL ? 2.0f : 1.0f;
    }
    ranks_open(&r, P, &params, &n, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    for (int rank = 0; rank < P; rank++) {
        tw_step_info info;
        check_ok(tw_group_info(r.groups[rank], 0, &info));
        check_int("applied", info.applied, K);
        check_between("bytes sent", info.traffic.payload_sent, 1, (int64_t)6 * K * 4);
        check_between("bytes received", info.traffic.payload_received, 1, (int64_t)6 * K * 4);
    }
    ranks_close(&r);
    rows_free(grads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse_of_few),
        cmocka_unit_test(test_many_equal_sums),
        cmocka_unit_test(test_result_in_one_region),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
