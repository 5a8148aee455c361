/* test_reserved.c - reserved fields: 0 in everything that the library returns, whatever was there
 * before; refused where the caller sets them (also in test_bad_params and test_group_bad_calls)
 */
#include <string.h>

#include "ranks.h"
#include "thinwire_sim.h"

enum { N = 1000, K = 10 };

/* Call a function that fills a struct which held ones, and look at its reserved fields. */
#define CHECK_RESERVED(type, call)                                                                 \
    do {                                                                                           \
        type got;                                                                                  \
        static const char zeros[sizeof got.reserved];                                              \
        memset(&got, 0xff, sizeof got);                                                            \
        check_scene("%s", #call);                                                                  \
        check_ok(call);                                                                            \
        check_true(memcmp(&got.reserved, zeros, sizeof zeros) == 0);                               \
    } while (0)

static void test_selector(void **state) {
    (void)state;
    static float grad[N] = {1.0f, 2.0f};
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_selector *selector;
    params.k = K;
    CHECK_RESERVED(tw_memory, tw_selector_memory(N, &params, &got));
    check_ok(tw_selector_create(&selector, N, &params));
    CHECK_RESERVED(tw_select_info, tw_selector_info(selector, &got));
    CHECK_RESERVED(tw_sparse, tw_selector_run(selector, grad, &got));
    CHECK_RESERVED(tw_sparse, tw_selector_wait(selector, &got));
    check_ok(tw_selector_commit(selector, NULL, 0));
    CHECK_RESERVED(tw_select_info, tw_selector_info(selector, &got));
    tw_selector_free(selector);
}

static void test_group(void **state) {
    (void)state;
    for (int automatic = 0; automatic <= 1; automatic++) {
        tw_group_params params = ranks_params(automatic ? "auto" : "allgather", K);
        float **grads = rows_alloc(2, N), **outs = rows_alloc(2, N);
        ranks r;
        rows_fill(grads, 2, N, DATA_SUMMABLE, 0);
        ranks_open(&r, 2, &params, (const int64_t[]){N}, 1);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        CHECK_RESERVED(tw_memory, tw_group_memory(r.groups[0], &got));
        CHECK_RESERVED(tw_step_info, tw_group_info(r.groups[0], 0, &got));
        CHECK_RESERVED(tw_traffic, tw_transport_info(r.transports[0], NULL, NULL, NULL, &got));
        if (automatic) {
            CHECK_RESERVED(tw_choice, tw_group_choice(r.groups[0], 0, &got));
            tw_choice choice;
            memset(&choice, 0xff, sizeof choice);
            check_ok(tw_group_choice(r.groups[0], 0, &choice));
            for (int i = 0; i < choice.ncandidates; i++)
                for (int j = 0; j < 2; j++)
                    check_int("reserved", choice.candidates[i].reserved[j], 0);
        } else {
            CHECK_RESERVED(tw_sparse, tw_group_result(r.groups[0], 0, &got));
        }
        ranks_close(&r);
        rows_free(grads);
        rows_free(outs);
    }
}

static void test_cost(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        tw_cost cost;
        memset(&cost, 0xff, sizeof cost);
        check_ok(tw_exchange_cost(check_exchange(e), N, K, 4, &cost));
        for (int i = 0; i < 3; i++)
            check_true(cost.reserved[i] == 0.0);
    }
}

static void test_network(void **state) {
    (void)state;
    tw_transport *transports[2];
    for (int i = 0; i < 8; i++) {
        tw_network network = {.bandwidth = 1e9};
        network.reserved[i] = 1;
        check_error(tw_transport_simulated(transports, 2, &network), TW_ERR_PARAM);
        check_contains(tw_last_error(), "reserved");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selector),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
