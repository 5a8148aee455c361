/* test_weights.c - what local steps need of a group: decay, the mean of those that sent, weights
 *
 * Conservation with decay: over all ranks, applied + new residuals + decayed = gradients + old
 * residuals, on numbers that sum exactly. Means are compared bitwise with sums.
 */
#include <math.h>
#include <string.h>

#include "ranks.h"

enum { RANKS = 4, N = 5003, K = 64 };

static double sum_of(float *const *rows, int nranks) {
    double sum = 0.0;
    for (int rank = 0; rank < nranks; rank++)
        for (int64_t i = 0; i < N; i++)
            sum += (double)rows[rank][i];
    return sum;
}

static double decayed(const ranks *r) {
    double sum = 0.0;
    for (int rank = 0; rank < r->nranks; rank++) {
        tw_step_info info;
        check_ok(tw_group_info(r->groups[rank], 0, &info));
        sum += info.decayed;
    }
    return sum;
}

static void check_conservation(const char *exchange) {
    tw_group_params params = ranks_params(exchange, K);
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N),
          **before = rows_alloc(RANKS, N), **after = rows_alloc(RANKS, N);
    double lost = 0.0;
    ranks r;
    params.result = TW_SUM;
    params.select.decay = 0.5f; /* residuals stay multiples of a power of two */
    ranks_open(&r, RANKS, &params, (const int64_t[]){N}, 1);
    for (int step = 0; step < 6; step++) {
        check_scene("%s step=%d", exchange, step);
        rows_fill(grads, RANKS, N, DATA_SUMMABLE, step);
        ranks_get_residuals(&r, 0, before, N);
        double given = sum_of(grads, RANKS) + sum_of(before, RANKS);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, after, N);
        double found = sum_of(outs, 1) + sum_of(after, RANKS) + decayed(&r);
        if (found != given)
            check_fail("applied + residuals + decayed is %.17g, given %.17g", found, given);
        lost += fabs(decayed(&r));
    }
    check_true(lost > 0.0);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    rows_free(before);
    rows_free(after);
}

static void test_conservation_with_decay(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        check_conservation(check_exchange(e));
}

/* ---- weights */

static float weight_of(int rank) {
    return (float)(1 + 3 * rank);
}

static int set_weight(ranks *r, int rank, void *context) {
    (void)context;
    return tw_group_set_weight(r->groups[rank], (double)weight_of(rank));
}

/* Two groups that see the same gradients: one sums, the other has `result`, and weights. */
static void check_means(const char *exchange, int result, const char *wire,
                        void (*compare)(float *const *grads, const float *sum, const float *mean)) {
    ranks sums, means;
    float **grads = rows_alloc(RANKS, N), **sum = rows_alloc(RANKS, N),
          **mean = rows_alloc(RANKS, N);
    tw_group_params params = ranks_params(exchange, K);
    params.wire = wire;
    params.result = TW_SUM;
    ranks_open(&sums, RANKS, &params, (const int64_t[]){N}, 1);
    params.result = result;
    ranks_open(&means, RANKS, &params, (const int64_t[]){N}, 1);
    ranks_run(&means, set_weight, NULL);
    ranks_ok(&means);
    for (int step = 0; step < 3; step++) {
        check_scene("%s result=%d wire=%s step=%d", exchange, result, wire, step);
        rows_fill(grads, RANKS, N, DATA_GAUSS, step);
        ranks_allreduce(&sums, 0, (void *const *)grads, sum);
        ranks_allreduce(&means, 0, (void *const *)grads, mean);
        ranks_ok(&sums);
        ranks_ok(&means);
        for (int rank = 1; rank < RANKS; rank++)
            check_bits("out of another rank", mean[rank], mean[0], N);
        compare(step == 0 ? grads : NULL, sum[0], mean[0]);
    }
    ranks_close(&sums);
    ranks_close(&means);
    rows_free(grads);
    rows_free(sum);
    rows_free(mean);
}

static void is_weighted_mean(float *const *grads, const float *sum, const float *mean) {
    float all = 0.0f;
    (void)grads;
    for (int rank = 0; rank < RANKS; rank++)
        all += weight_of(rank);
    for (int64_t i = 0; i < N; i++)
        check_float("mean", mean[i], sum[i] / all);
}

static void test_weights(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        check_means(check_exchange(e), TW_MEAN, "raw", is_weighted_mean);
    check_means("dense", TW_MEAN_OF_SENDERS, "raw", is_weighted_mean);
}

/* In the first step a rank sends the K largest of its gradient. */
static void is_mean_of_senders(float *const *grads, const float *sum, const float *mean) {
    static float divisor[N];
    int shared = 0;
    if (grads == NULL)
        return;
    memset(divisor, 0, sizeof divisor);
    for (int rank = 0; rank < RANKS; rank++) {
        int32_t idx[K];
        float val[K];
        int64_t count = oracle_topk(grads[rank], N, K, idx, val);
        for (int64_t j = 0; j < count; j++)
            divisor[idx[j]] += weight_of(rank);
    }
    for (int64_t i = 0; i < N; i++) {
        check_float("mean", mean[i], sum[i] == 0.0f ? 0.0f : sum[i] / divisor[i]);
        shared += divisor[i] != 0.0f && divisor[i] != weight_of(0) && divisor[i] != weight_of(1) &&
                  divisor[i] != weight_of(2) && divisor[i] != weight_of(3);
    }
    check_true(shared > 0); /* some have several senders */
}

static void test_mean_of_senders(void **state) {
    (void)state;
    check_means("allgather", TW_MEAN_OF_SENDERS, "raw", is_mean_of_senders);
    check_means("allgather", TW_MEAN_OF_SENDERS, "bf16", is_mean_of_senders);
}

static void test_refusals(void **state) {
    (void)state;
    const double bad[] = {0.0, -1.0, NAN, INFINITY, 1e-40};
    tw_transport *self = NULL;
    tw_group *group = NULL;
    check_ok(tw_transport_self(&self));
    for (int e = 0; e < check_exchanges(); e++) {
        const char *name = check_exchange(e);
        tw_group_params params = ranks_params(name, K);
        params.result = TW_MEAN_OF_SENDERS;
        if (strcmp(name, "allgather") == 0 || strcmp(name, "dense") == 0)
            continue;
        check_error(tw_group_create(&group, self, &params), TW_ERR_PARAM);
        check_contains(tw_last_error(), "TW_MEAN_OF_SENDERS");
        check_contains(tw_last_error(), name);
    }
    tw_group_params params = ranks_params("allgather", K);
    check_ok(tw_group_create(&group, self, &params));
    check_error(tw_group_set_weight(group, 2.0), TW_ERR_STATE);
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    for (int i = 0; i < 5; i++) {
        check_error(tw_group_set_weight(group, bad[i]), TW_ERR_PARAM);
        check_contains(tw_last_error(), "weight");
    }
    tw_group_free(group);
    tw_transport_free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conservation_with_decay),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_mean_of_senders),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
