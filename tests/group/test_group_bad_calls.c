/* test_group_bad_calls.c - a group refuses wrong parameters and wrong calls
 *
 * One rank: parameters that are wrong, NULL, calls out of order, tensors that do not exist. Several
 * ranks: parameters that differ are an error on all of them, whose text names the rank and the
 * field.
 */
#include <math.h>

#include "ranks.h"

enum { RANKS = 4, N = 301, K = 40 };

/* ---- Parameters of one rank ------------------------------------------------------------------ */

static void refuse(const tw_group_params *params, int error, const char *word) {
    tw_transport *transport;
    tw_group *group = (tw_group *)&group;
    check_scene("%s", word);
    check_ok(tw_transport_self(&transport));
    check_error(tw_group_create(&group, transport, params), error);
    check_true(group == NULL);
    check_contains(tw_last_error(), word);
    tw_transport_free(transport);
}

#define REFUSE(field, value, error, word)                                                          \
    do {                                                                                           \
        tw_group_params params = ranks_params(NULL, K);                                            \
        params.field = (value);                                                                    \
        refuse(&params, (error), (word));                                                          \
    } while (0)

static void test_params(void **state) {
    (void)state;
    REFUSE(scheme, "oktopkk", TW_ERR_NAME, "oktopkk");
    REFUSE(scheme, "", TW_ERR_NAME, "scheme");
    REFUSE(scheme, "allgather", TW_ERR_NAME, "topka");
    REFUSE(exchange, "topka", TW_ERR_NAME, "allgather");
    REFUSE(exchange, "", TW_ERR_NAME, "exchange");
    REFUSE(exchange, "Auto", TW_ERR_NAME, " or auto");
    REFUSE(wire, "q3", TW_ERR_NAME, "'q3' is not known; accepted is raw, ");
    REFUSE(result, 2, TW_ERR_PARAM, "result");
    REFUSE(result, -1, TW_ERR_PARAM, "result");
    REFUSE(global, 2, TW_ERR_PARAM, "global");
    REFUSE(global, -1, TW_ERR_PARAM, "global");
    REFUSE(timeout, -1.0, TW_ERR_PARAM, "timeout");
    REFUSE(timeout, (double)NAN, TW_ERR_PARAM, "timeout");
    REFUSE(timeout, 1.1e9, TW_ERR_PARAM, "timeout");
    REFUSE(bucket, -1, TW_ERR_PARAM, "bucket");
    REFUSE(bucket, (int64_t)INT32_MAX + 1, TW_ERR_PARAM, "bucket");
    REFUSE(count, 3, TW_ERR_PARAM, "count");
    REFUSE(checksum, 2, TW_ERR_PARAM, "checksum");
    REFUSE(checksum, -1, TW_ERR_PARAM, "checksum");
    REFUSE(reserved[0], 1, TW_ERR_PARAM, "reserved");
    REFUSE(reserved[6], 1, TW_ERR_PARAM, "reserved");
    REFUSE(membership, 2, TW_ERR_PARAM, "membership");
    REFUSE(select.method, "exactly", TW_ERR_NAME, "exactly");
    REFUSE(select.k, -1, TW_ERR_K, "k: -1");
    REFUSE(select.density, 0.5, TW_ERR_K, "not both");
    REFUSE(select.type, 3, TW_ERR_PARAM, "type");
    REFUSE(select.feedback, 2, TW_ERR_PARAM, "feedback");
    REFUSE(select.threads, 257, TW_ERR_PARAM, "threads");
    REFUSE(select.device, 2, TW_ERR_PARAM, "device");
    REFUSE(select.momentum, 1.0f, TW_ERR_PARAM, "momentum");
    REFUSE(select.warmup, 4, TW_ERR_PARAM, "warmup");
    REFUSE(select.reserved[6], 1, TW_ERR_PARAM, "reserved");
}

/* Entries per rank can be counted only where the exchange is known. */
static void test_count_with_auto(void **state) {
    (void)state;
    tw_group_params params = ranks_params(NULL, K);
    params.scheme = "auto";
    params.count = TW_COUNT_PER_RANK;
    refuse(&params, TW_ERR_PARAM, "count: TW_COUNT_PER_RANK needs a fixed exchange");
}

/* A text that refuses a name lists all that are accepted. */
static void test_accepted_names(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        REFUSE(scheme, "none", TW_ERR_NAME, scheme);
    for (int i = 0; i < check_exchanges(); i++)
        REFUSE(exchange, "none", TW_ERR_NAME, check_exchange(i));
    for (int i = 0; i < check_wires(); i++)
        REFUSE(wire, "none", TW_ERR_NAME, check_wire(i));
}

static void refuse_tensor(int64_t n, const tw_select_params *select, int error, const char *word) {
    tw_transport *transport;
    tw_group *group;
    int tensor = 77;
    const tw_group_params params = ranks_params(NULL, K);
    check_scene("tensor with bad %s", word);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_add(group, n, select, &tensor), error);
    check_contains(tw_last_error(), word);
    check_ok(tw_group_add(group, N, NULL, &tensor)); /* the refused one has no number */
    check_int("number of the tensor", tensor, 0);
    check_ok(tw_group_open(group));
    tw_group_free(group);
    tw_transport_free(transport);
}

#define REFUSE_TENSOR(field, value, error, word)                                                   \
    do {                                                                                           \
        tw_select_params select = ranks_params(NULL, K).select;                                    \
        select.field = (value);                                                                    \
        refuse_tensor(N, &select, (error), (word));                                                \
    } while (0)

static void test_tensors(void **state) {
    (void)state;
    refuse_tensor(0, NULL, TW_ERR_SIZE, "n");
    refuse_tensor(-5, NULL, TW_ERR_SIZE, "n");
    refuse_tensor((int64_t)1 << 31, NULL, TW_ERR_SIZE, "n");
    refuse_tensor(K - 1, NULL, TW_ERR_K, "k");
    REFUSE_TENSOR(method, "best", TW_ERR_NAME, "best");
    REFUSE_TENSOR(k, N + 1, TW_ERR_K, "k");
    REFUSE_TENSOR(k, 0, TW_ERR_K, "k");
    REFUSE_TENSOR(density, 0.5, TW_ERR_K, "density");
    REFUSE_TENSOR(type, 3, TW_ERR_PARAM, "type");
    REFUSE_TENSOR(feedback, 2, TW_ERR_PARAM, "feedback");
    REFUSE_TENSOR(momentum, 1.0f, TW_ERR_PARAM, "momentum");
    REFUSE_TENSOR(before, 2, TW_ERR_PARAM, "before");
    REFUSE_TENSOR(beta1, 0.5, TW_ERR_PARAM, "beta1");
    REFUSE_TENSOR(threads, 257, TW_ERR_PARAM, "threads");
    REFUSE_TENSOR(reserved[3], 1, TW_ERR_PARAM, "reserved");
}

static void test_null(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group = (tw_group *)&group;
    tw_memory memory;
    tw_sparse sparse;
    tw_step_info info;
    float x[N] = {0};
    const tw_group_params params = ranks_params(NULL, K);
    check_scene("NULL");
    check_ok(tw_transport_self(&transport));
    check_error(tw_group_create(NULL, transport, &params), TW_ERR_NULL);
    check_error(tw_group_create(&group, NULL, &params), TW_ERR_NULL);
    check_true(group == NULL);
    check_error(tw_group_create(&group, transport, NULL), TW_ERR_NULL);
    check_error(tw_group_add(NULL, N, NULL, NULL), TW_ERR_NULL);
    check_error(tw_group_memory(NULL, &memory), TW_ERR_NULL);
    check_error(tw_group_open(NULL), TW_ERR_NULL);
    check_error(tw_allreduce(NULL, 0, x, x), TW_ERR_NULL);
    check_error(tw_allreduce_start(NULL, 0, x, x), TW_ERR_NULL);
    check_error(tw_allreduce_wait(NULL, 0), TW_ERR_NULL);
    check_error(tw_group_result(NULL, 0, &sparse), TW_ERR_NULL);
    check_error(tw_group_info(NULL, 0, &info), TW_ERR_NULL);
    check_error(tw_group_get_residual(NULL, 0, x), TW_ERR_NULL);
    check_error(tw_group_save(NULL, "x"), TW_ERR_NULL);
    check_error(tw_group_load(NULL, NULL, 0), TW_ERR_NULL);
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_memory(group, NULL), TW_ERR_NULL);
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    check_error(tw_group_result(group, 0, NULL), TW_ERR_NULL);
    check_error(tw_group_info(group, 0, NULL), TW_ERR_NULL);
    check_error(tw_group_get_residual(group, 0, NULL), TW_ERR_NULL);
    check_error(tw_group_save(group, NULL), TW_ERR_NULL);
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- Order and numbers ----------------------------------------------------------------------- */

static void test_order(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    float x[N] = {0};
    tw_sparse sparse;
    const tw_group_params params = ranks_params(NULL, K);
    check_scene("order of calls");
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_open(group), TW_ERR_STATE);
    tw_group_free(group);
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_error(tw_allreduce(group, 0, x, x), TW_ERR_STATE);
    check_error(tw_allreduce_start(group, 0, x, x), TW_ERR_STATE);
    check_error(tw_allreduce_wait(group, 0), TW_ERR_STATE);
    check_error(tw_group_result(group, 0, &sparse), TW_ERR_STATE);
    check_error(tw_group_get_residual(group, 0, x), TW_ERR_STATE);
    check_error(tw_group_save(group, "/tmp/never"), TW_ERR_STATE);
    check_error(tw_group_load(group, NULL, 0), TW_ERR_STATE);
    check_ok(tw_group_open(group));
    check_error(tw_allreduce_wait(group, 0), TW_ERR_STATE);
    check_ok(tw_allreduce(group, 0, x, x));
    tw_group_free(group);
    tw_transport_free(transport);
}

static void test_tensor_numbers(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    float x[N] = {0};
    tw_sparse sparse;
    tw_step_info info;
    const int wrong[] = {-1, -2, 2, 1000000, INT32_MAX, INT32_MIN};
    const tw_group_params params = ranks_params(NULL, K);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    for (int i = 0; i < 6; i++) {
        check_scene("tensor %d", wrong[i]);
        check_error(tw_allreduce(group, wrong[i], x, x), TW_ERR_INDEX);
        check_error(tw_allreduce_start(group, wrong[i], x, x), TW_ERR_INDEX);
        if (wrong[i] != TW_ALL)
            check_error(tw_allreduce_wait(group, wrong[i]), TW_ERR_INDEX);
        check_error(tw_group_result(group, wrong[i], &sparse), TW_ERR_INDEX);
        check_error(tw_group_info(group, wrong[i], &info), TW_ERR_INDEX);
        check_error(tw_group_get_residual(group, wrong[i], x), TW_ERR_INDEX);
    }
    check_ok(tw_allreduce(group, 1, x, x));
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- Parameters that differ between ranks ---------------------------------------------------- */

/* Two sets of parameters: rank `odd` has the second one. */
typedef struct mismatch {
    tw_group_params usual, other;
    int64_t n, other_n;
    int tensors, other_tensors;
    int odd;
} mismatch;

static int open_with_params(ranks *r, int rank, void *context) {
    const mismatch *m = context;
    const int odd = rank == m->odd;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], odd ? &m->other : &m->usual);
    for (int i = 0; i < (odd ? m->other_tensors : m->tensors) && !error; i++)
        error = tw_group_add(r->groups[rank], odd ? m->other_n : m->n, NULL, NULL);
    return error ? error : tw_group_open(r->groups[rank]);
}

static mismatch no_mismatch(void) {
    mismatch m = {.n = N, .other_n = N, .tensors = 2, .other_tensors = 2};
    m.usual = ranks_params(NULL, K);
    m.usual.timeout = RANKS_TIMEOUT;
    m.other = m.usual;
    return m;
}

/* All ranks name the odd one, the field and the value; the group is of no use afterwards. */
static void refuse_mismatch(mismatch *m, const char *field, const char *value) {
    for (m->odd = 1; m->odd < RANKS; m->odd++) {
        ranks r;
        float x[N] = {0};
        check_scene("rank %d has another %s", m->odd, field);
        ranks_init(&r, RANKS);
        ranks_run(&r, open_with_params, m);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "%s: rank %d has %s", field, m->odd, value);
        for (int rank = 0; rank < RANKS; rank++) {
            check_error(tw_allreduce(r.groups[rank], 0, x, x), TW_ERR_STATE);
            check_error(tw_group_open(r.groups[rank]), TW_ERR_STATE);
        }
        ranks_close(&r);
    }
}

#define MISMATCH_TEXT(field, value, name, text)                                                    \
    do {                                                                                           \
        mismatch m = no_mismatch();                                                                \
        m.other.field = (value);                                                                   \
        refuse_mismatch(&m, (name), (text));                                                       \
    } while (0)
#define MISMATCH(field, value, name) MISMATCH_TEXT(field, value, name, "")
#define MISMATCH_NAMED(field, value, name) MISMATCH_TEXT(field, value, name, #value ",")

static void test_mismatch(void **state) {
    (void)state;
    MISMATCH(scheme, "gtopk", "scheme");
    MISMATCH(exchange, "dsa", "exchange");
    MISMATCH_NAMED(result, TW_SUM, "result");
    MISMATCH_NAMED(global, TW_GLOBAL_REUSE, "global");
    MISMATCH_NAMED(count, TW_COUNT_PER_RANK, "count");
    MISMATCH_NAMED(checksum, TW_CHECKSUM_OFF, "checksum");
    MISMATCH(bucket, 1, "bucket");
    MISMATCH(select.method, "dgc", "method");
    MISMATCH(select.k, K + 1, "k");
    MISMATCH_NAMED(select.type, TW_BF16, "type");
    MISMATCH_NAMED(select.feedback, TW_FEEDBACK_OFF, "feedback");
    MISMATCH(select.momentum, 0.5f, "momentum");
    MISMATCH_NAMED(select.before, TW_BEFORE_ADAMW, "before");
    MISMATCH_NAMED(select.warmup, TW_WARMUP_LINEAR, "warmup");
    MISMATCH(select.clip_norm, 1.0f, "clip_norm");
    MISMATCH(select.warmup_steps, 7, "warmup_steps");
    MISMATCH(select.warmup_density, 0.5, "warmup_density");
    MISMATCH(select.reuse_period, 7, "reuse_period");
    MISMATCH(select.reuse_low, 0.5f, "reuse_low");
    MISMATCH(select.reuse_high, 1.5f, "reuse_high");
    MISMATCH(select.reuse_nudge, 0.25f, "reuse_nudge");
    MISMATCH(select.gaussian_rounds, 7, "gaussian_rounds");
    MISMATCH(select.dgc_sample, 0.5, "dgc_sample");
    MISMATCH(select.decay, 0.5f, "decay");
}

static void test_mismatch_of_shape(void **state) {
    (void)state;
    mismatch m = no_mismatch();
    m.other_n = N + 1;
    refuse_mismatch(&m, "n", "");
    m = no_mismatch();
    m.other_tensors = 3;
    refuse_mismatch(&m, "tensors", "");
    m = no_mismatch();
    m.usual.select.k = m.other.select.k = 0;
    m.usual.select.density = 0.1;
    m.other.select.density = 0.25;
    refuse_mismatch(&m, "density", "");
}

static int one_with_another_tensor(ranks *r, int rank, void *context) {
    const int *odd = context;
    float x[N] = {1.0f};
    return tw_allreduce(r->groups[rank], rank == *odd, x, x);
}

/* One rank is at another tensor than the others. */
static void test_mismatch_of_tensors(void **state) {
    (void)state;
    const int64_t sizes[2] = {N, N};
    const tw_group_params params = ranks_params(NULL, K);
    for (int odd = 1; odd < RANKS; odd++) {
        ranks r;
        check_scene("rank %d exchanges another tensor", odd);
        ranks_open(&r, RANKS, &params, sizes, 2);
        ranks_run(&r, one_with_another_tensor, &odd);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "rank %d exchanges other tensors", odd);
        ranks_close(&r);
    }
}

/* Timeout, threads and seed may differ. */
static void test_allowed_differences(void **state) {
    (void)state;
    mismatch m = no_mismatch();
    m.other.timeout = RANKS_TIMEOUT / 2;
    m.other.select.threads = 3;
    m.other.select.seed = 77;
    m.odd = 1;
    ranks r;
    check_scene("timeout, threads and seed differ");
    ranks_init(&r, RANKS);
    ranks_run(&r, open_with_params, &m);
    ranks_ok(&r);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_count_with_auto),
        cmocka_unit_test(test_accepted_names),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_tensor_numbers),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_mismatch_of_shape),
        cmocka_unit_test(test_mismatch_of_tensors),
        cmocka_unit_test(test_allowed_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
