/* test_group.c - life of a group, information about its steps, names of schemes
 *
 * What exchanges compute is tested in test_exchange.c.
 */
#include <math.h>
#include <string.h>

#include "exchange_check.h"

enum { RANKS = 4, N = 2003, K = 64 };

/* ---- Life ------------------------------------------------------------------------------------ */

static void test_life(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group, *second = (tw_group *)&group;
    int tensor = -1;
    const tw_group_params params = ranks_params(NULL, K);
    check_scene("life");
    tw_group_free(NULL);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    tw_group_free(group); /* without tensors */
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_create(&second, transport, &params), TW_ERR_STATE);
    check_true(second == NULL);
    for (int i = 0; i < 5; i++) {
        check_ok(tw_group_add(group, 100 + i, NULL, i == 3 ? NULL : &tensor));
        if (i != 3)
            check_int("number of the tensor", tensor, i);
    }
    tw_group_free(group); /* not open */
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, 100, NULL, &tensor));
    check_int("number of the tensor", tensor, 0);
    check_ok(tw_group_open(group));
    check_error(tw_group_open(group), TW_ERR_STATE);
    check_error(tw_group_add(group, 100, NULL, NULL), TW_ERR_STATE);
    tw_group_free(group); /* without a step */
    tw_transport_free(transport);
}

/* A transport carries one group after the other; messages of the first do not reach the second. */
static void test_groups_in_turn(void **state) {
    (void)state;
    ranks r;
    ranks_init(&r, RANKS);
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N);
    for (int turn = 1; turn < check_exchanges(); turn++) {
        const int64_t n = N;
        const tw_group_params params = ranks_params(check_exchange(turn), K);
        exchange_oracle o;
        exchange_oracle_open(&o, check_exchange(turn), RANKS, N, K, TW_MEAN);
        check_scene("group %d on the same transports", turn);
        ranks_try_open(&r, &params, &n, 1);
        ranks_ok(&r);
        for (int step = 0; step < 3; step++) {
            rows_fill(grads, RANKS, N, DATA_LAPLACE, step);
            exchange_check_step(&r, &o, grads, outs);
        }
        ranks_free_groups(&r);
        exchange_oracle_close(&o);
    }
    rows_free(grads);
    rows_free(outs);
    ranks_close(&r);
}

/* Two groups in one process, steps in turn on the same threads. */
static int step_both(ranks *r, int rank, void *context) {
    ranks *other = context;
    float grad[50], out[50];
    oracle_fill(grad, 50, DATA_SUMMABLE, (uint64_t)rank);
    int error = tw_allreduce(r->groups[rank], 0, grad, out);
    if (!error)
        error = tw_allreduce(other->groups[rank], 0, grad, grad);
    return error ? error : oracle_difference(out, grad, 50) < 0 ? TW_OK : TW_ERR_STATE;
}

static void test_two_groups(void **state) {
    (void)state;
    ranks one, two;
    const int64_t n = 50;
    tw_group_params params = ranks_params("allgather", K);
    params.select.k = 50;
    ranks_open(&one, RANKS, &params, &n, 1);
    params.exchange = "oktopk";
    ranks_open(&two, RANKS, &params, &n, 1);
    check_scene("two groups in turn");
    for (int step = 0; step < 5; step++) {
        ranks_run(&one, step_both, &two);
        ranks_ok(&one);
    }
    ranks_close(&one);
    ranks_close(&two);
}

/* params and names are copied. */
static void test_params_are_copied(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    char scheme[] = "topka", exchange[] = "gtopk", method[] = "exact";
    tw_group_params params = ranks_params(exchange, K);
    params.scheme = scheme;
    params.select.method = method;
    tw_select_params own = params.select;
    check_scene("copied parameters");
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_add(group, N, &own, NULL));
    memset(scheme, 'x', 5);
    memset(exchange, 'x', 5);
    memset(method, 'x', 5);
    memset(&params, 0xff, sizeof params);
    memset(&own, 0xff, sizeof own);
    check_ok(tw_group_open(group));
    float grad[N];
    oracle_fill(grad, N, DATA_GAUSS, 1);
    tw_step_info info;
    for (int tensor = 0; tensor < 2; tensor++) {
        check_ok(tw_allreduce(group, tensor, grad, NULL));
        check_ok(tw_group_info(group, tensor, &info));
        assert_string_equal(info.exchange, "gtopk");
        check_int("applied", info.applied, K);
    }
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- Information about steps ----------------------------------------------------------------- */

static void test_info(void **state) {
    (void)state;
    ranks r;
    const int64_t n = N;
    const tw_group_params params = ranks_params("allgather", K);
    float **grads = rows_alloc(RANKS, N);
    tw_step_info info;
    tw_traffic before[RANKS], after;
    check_scene("info");
    ranks_open(&r, RANKS, &params, &n, 1);
    check_ok(tw_group_info(r.groups[0], 0, &info));
    check_int("step of a fresh group", info.step, 0);
    for (int step = 0; step < 4; step++) {
        for (int rank = 0; rank < RANKS; rank++)
            check_ok(tw_transport_info(r.transports[rank], NULL, NULL, NULL, &before[rank]));
        rows_fill(grads, RANKS, N, DATA_LAPLACE, step);
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_ok(&r);
        for (int rank = 0; rank < RANKS; rank++) {
            check_ok(tw_group_info(r.groups[rank], 0, &info));
            check_ok(tw_transport_info(r.transports[rank], NULL, NULL, NULL, &after));
            check_int("step", info.step, step + 1);
            check_int("k", info.k, K);
            check_int("selected", info.selected, K);
            check_int("tensors", info.tensors, 1);
            check_between("applied", info.applied, K, K * RANKS);
            check_int("payload sent", info.traffic.payload_sent, 8 * K * (RANKS - 1));
            check_int("payload received", info.traffic.payload_received, 8 * K * (RANKS - 1));
            check_int("payload of the transport", after.payload_sent - before[rank].payload_sent,
                      info.traffic.payload_sent);
            check_int("control of the transport", after.control_sent - before[rank].control_sent,
                      info.traffic.control_sent);
            check_int("messages of the transport", after.messages_sent - before[rank].messages_sent,
                      info.traffic.messages_sent);
            check_true(info.traffic.messages_sent > 0 && info.traffic.control_sent > 0);
            check_true(info.select_seconds > 0 && info.agree_seconds >= 0);
            check_true(info.exchange_seconds > 0 && info.apply_seconds >= 0);
        }
    }
    ranks_close(&r);
    rows_free(grads);
}

/* The result stays until the next step and has no zeros. There is none before the first step, nor
 * after one that failed. */
static void test_result(void **state) {
    (void)state;
    ranks r;
    tw_sparse result, again;
    const int64_t sizes[2] = {N, N};
    const tw_group_params params = ranks_params("allgather", K);
    float **grads = rows_alloc(RANKS, N);
    check_scene("result");
    ranks_open(&r, RANKS, &params, sizes, 2);
    check_error(tw_group_result(r.groups[0], 0, &result), TW_ERR_STATE);
    for (int rank = 0; rank < RANKS; rank++) { /* 1 - 1 + 1 - 1 at 5, 3 ranks' 2 at 7 */
        grads[rank][5] = rank % 2 ? 1.0f : -1.0f;
        grads[rank][7] = rank ? 2.0f : 0.0f;
    }
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    check_error(tw_group_result(r.groups[0], 1, &result), TW_ERR_STATE);
    for (int rank = 0; rank < RANKS; rank++) {
        check_ok(tw_group_result(r.groups[rank], 0, &result));
        check_selection(&result, 1, (int32_t[]){7}, (float[]){1.5f});
    }
    ranks_allreduce(&r, 1, (void *const *)grads, NULL); /* another tensor's step */
    ranks_ok(&r);
    check_ok(tw_group_result(r.groups[RANKS - 1], 0, &again));
    check_true(again.idx == result.idx && again.val == result.val);
    check_selection(&again, 1, (int32_t[]){7}, (float[]){1.5f});
    grads[1][0] = INFINITY;
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_error(&r, TW_ERR_NUMBER);
    check_error(tw_group_result(r.groups[0], 0, &again), TW_ERR_STATE);
    check_ok(tw_group_result(r.groups[0], 1, &again));
    ranks_close(&r);
    rows_free(grads);
}

/* A rank that is alone applies what it selects, but no zeros; method random selects some. */
static void test_result_of_one_rank(void **state) {
    (void)state;
    ranks r;
    const int64_t sizes[2] = {N, N};
    tw_group_params params = ranks_params("allgather", N);
    float **grads = rows_alloc(1, N);
    tw_sparse result;
    params.select.method = "random";
    check_scene("result of one rank");
    ranks_open(&r, 1, &params, sizes, 2);
    for (int tensor = 0; tensor < 2; tensor++) {
        memset(grads[0], 0, sizeof(float) * N);
        grads[0][3] = 1.5f;
        grads[0][8] = -2.0f;
        ranks_allreduce(&r, tensor, (void *const *)grads, NULL);
        ranks_ok(&r);
        check_ok(tw_group_result(r.groups[0], tensor, &result));
        check_selection(&result, 2, (int32_t[]){3, 8}, (float[]){1.5f, -2.0f});
    }
    ranks_close(&r);
    rows_free(grads);
}

/* ---- Names of schemes ------------------------------------------------------------------------ */

static int is_method(const char *name) {
    for (int i = 0; i < check_methods(); i++)
        if (strcmp(check_method(i), name) == 0)
            return 1;
    return 0;
}

static int is_exchange(const char *name) {
    for (int i = 0; i < check_exchanges(); i++)
        if (strcmp(check_exchange(i), name) == 0)
            return 1;
    return strcmp(name, "auto") == 0;
}

/* The row of this name; the test fails unless there is exactly one. */
static void find_scheme(const char *scheme, const char **select, const char **exchange) {
    const char *name, *method, *how;
    int found = 0;
    *select = *exchange = "";
    for (int i = 0; tw_scheme(i, &name, &method, &how, NULL) == TW_OK; i++)
        if (strcmp(name, scheme) == 0) {
            *select = method;
            *exchange = how;
            found++;
        }
    check_scene("scheme %s", scheme);
    check_int("rows", found, 1);
}

/* Every scheme pairs a method and an exchange that exist, and is described. */
static void test_names(void **state) {
    (void)state;
    const char *name, *select, *exchange, *text;
    int position = 0;
    for (; tw_scheme(position, &name, &select, &exchange, &text) == TW_OK; position++) {
        find_scheme(name, &select, &exchange);
        check_true(is_method(select) && is_exchange(exchange) && strlen(text) > 10);
    }
    check_scene("names");
    check_error(tw_scheme(position, NULL, NULL, NULL, NULL), TW_ERR_NAME);
    check_error(tw_scheme(-1, NULL, NULL, NULL, NULL), TW_ERR_NAME);
    check_ok(tw_scheme(0, NULL, NULL, NULL, NULL));
    for (int i = 0; tw_exchange(i, NULL, &text) == TW_OK; i++)
        check_true(strlen(text) > 10);
    check_error(tw_exchange(-1, NULL, NULL), TW_ERR_NAME);
}

/* Users and papers know these: they stay. */
static void test_published_schemes(void **state) {
    (void)state;
    static const char *const want[][3] = {
        {"topka", "exact", "allgather"},   {"topkdsa", "exact", "dsa"},
        {"gtopk", "exact", "gtopk"},       {"gaussiank", "gaussian", "allgather"},
        {"dgc", "dgc", "allgather"},       {"randomk", "random", "allgather"},
        {"oktopk", "reuse", "oktopk"},     {"fulltopk", "reuse", "fulltopk"},
        {"logtopk", "exact", "butterfly"}, {"twolevel", "exact", "twolevel"},
        {"auto", "exact", "auto"},
    };
    const char *select, *exchange;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        find_scheme(want[i][0], &select, &exchange);
        assert_string_equal(select, want[i][1]);
        assert_string_equal(exchange, want[i][2]);
    }
    find_scheme("dense", &select, &exchange);
    assert_string_equal(exchange, "dense");
}

/* The exchange of the scheme is what runs; the default is oktopk. */
static void test_scheme_decides(void **state) {
    (void)state;
    const char *name = NULL, *exchange;
    for (int i = -1; i < 0 || tw_scheme(i, &name, NULL, &exchange, NULL) == TW_OK; i++) {
        tw_transport *transport;
        tw_group *group;
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.scheme = i < 0 ? NULL : name;
        params.select.k = K;
        check_scene("scheme %s", i < 0 ? "NULL" : name);
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        check_ok(tw_group_add(group, N, NULL, NULL));
        check_ok(tw_group_open(group));
        float grad[N];
        tw_step_info info;
        oracle_fill(grad, N, DATA_GAUSS, 1);
        check_ok(tw_allreduce(group, 0, grad, grad));
        check_ok(tw_group_info(group, 0, &info));
        if (i < 0 || strcmp(exchange, "auto") != 0)
            assert_string_equal(info.exchange, i < 0 ? "oktopk" : exchange);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_groups_in_turn),
        cmocka_unit_test(test_two_groups),
        cmocka_unit_test(test_params_are_copied),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_result),
        cmocka_unit_test(test_result_of_one_rank),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_published_schemes),
        cmocka_unit_test(test_scheme_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
