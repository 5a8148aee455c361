/* test_methods.c - methods pick the largest entries, and as many as they promise
 *
 * Every method but "random" selects by magnitude: the selection must be the `count` largest
 * entries, ties included, and not more than it may be. On data that a method was made for, its count is
 * compared with its paper. Reuse and random have files of their own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 120011, STEPS = 6 };

/* A selector and the acc that it should compute. */
typedef struct subject {
    int64_t n, k;
    int feedback;
    tw_selector *selector;
    float *grad, *residual, *acc; /* [n] */
    int64_t most;                 /* entries that may be selected */
    int32_t *idx;                 /* [most] */
    float *val;                   /* [most] */
} subject;

static void subject_open(subject *s, int64_t n, const tw_select_params *params) {
    memset(s, 0, sizeof *s);
    s->n = n;
    s->k = params->k;
    s->feedback = params->feedback;
    s->selector = check_create(n, params);
    s->grad = check_alloc(n, sizeof(float));
    s->residual = check_alloc(n, sizeof(float));
    s->acc = check_alloc(n, sizeof(float));
    s->most = check_most(params->method, s->k, n);
    s->idx = check_alloc(s->most, sizeof(int32_t));
    s->val = check_alloc(s->most, sizeof(float));
}

static void subject_close(subject *s) {
    tw_selector_free(s->selector);
    free(s->grad);
    free(s->residual);
    free(s->acc);
    free(s->idx);
    free(s->val);
}

/* Run grad; the selection must be the largest entries. Returns their count. */
static int64_t subject_step(subject *s) {
    tw_sparse sparse;
    for (int64_t i = 0; i < s->n; i++)
        s->acc[i] = s->feedback == TW_FEEDBACK_ON ? s->grad[i] + s->residual[i] : s->grad[i];
    check_ok(tw_selector_run(s->selector, s->grad, &sparse));
    check_between("count", sparse.count, 0, s->most);
    const int64_t count = oracle_topk(s->acc, s->n, sparse.count, s->idx, s->val);
    check_selection(&sparse, count, s->idx, s->val);

    uint32_t smallest = 0;
    for (int64_t j = 0; j < count; j++)
        if (j == 0 || oracle_magnitude(s->val[j]) < smallest)
            smallest = oracle_magnitude(s->val[j]);
    tw_select_info info;
    check_ok(tw_selector_info(s->selector, &info));
    check_int("info.count", info.count, count);
    check_float("info.threshold", info.threshold, oracle_float(smallest));

    check_ok(tw_selector_commit(s->selector, NULL, 0));
    memcpy(s->residual, s->acc, (size_t)s->n * sizeof(float));
    for (int64_t j = 0; j < count; j++)
        s->residual[s->idx[j]] = 0.0f;
    return count;
}

static void scale(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static int by_magnitude(const char *method) {
    return strcmp(method, "random") != 0;
}

/* All kinds of data, with jumps of scale that make learned thresholds wrong. */
static void test_picks_the_largest(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++)
        for (int kind = 0; kind < DATA_KINDS; kind++)
            for (int feedback = TW_FEEDBACK_ON; feedback <= TW_FEEDBACK_OFF; feedback++) {
                if (!by_magnitude(check_method(method)))
                    continue;
                const float factors[STEPS] = {1.0f, 1.0f, 1e5f, 1.0f, 1e-5f, 2.0f};
                tw_select_params params = TW_SELECT_PARAMS_INIT;
                params.method = check_method(method);
                params.k = 1 + 30 * (kind % 3);
                params.feedback = feedback;
                params.threads = 1;
                params.reuse_period = 4;
                subject s;
                subject_open(&s, 1501, &params);
                for (int step = 0; step < STEPS; step++) {
                    check_scene("method=%s data=%s k=%lld feedback=%d step=%d", params.method,
                                oracle_data_name((oracle_data)kind), (long long)params.k, feedback,
                                step);
                    oracle_fill(s.grad, s.n, (oracle_data)kind, (uint64_t)step);
                    scale(s.grad, s.n, factors[step]);
                    subject_step(&s);
                }
                subject_close(&s);
            }
}

typedef struct limits {
    int64_t low, high;
} limits;

/* Six steps of a method on a kind of data; every count must be within the limits. */
static void check_counts(const char *method, oracle_data kind, int64_t k, limits allowed) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = method;
    params.k = k;
    params.threads = 2;
    subject s;
    subject_open(&s, N, &params);
    for (int step = 0; step < STEPS; step++) {
        check_scene("method=%s data=%s n=%d k=%lld step=%d", method, oracle_data_name(kind), N,
                    (long long)k, step);
        oracle_fill(s.grad, N, kind, (uint64_t)step);
        check_between("count", subject_step(&s), allowed.low, allowed.high);
    }
    subject_close(&s);
}

static void test_gaussian_counts(void **state) {
    (void)state;
    check_kernels_or_skip();
    check_counts("gaussian", DATA_GAUSS, N / 100, (limits){N / 100 / 2, N / 100 * 2});
    check_counts("gaussian", DATA_GAUSS, N / 1000, (limits){N / 1000 / 2, N / 1000 * 2});
    check_counts("gaussian", DATA_POWER5, N / 1000, (limits){N / 1000 / 4, N / 1000 * 4});
}

/* Three entries raise the deviation so far that four halvings do not bring the threshold down to
 * the others. It must not select three entries of 200 then. */
static void test_gaussian_does_not_starve(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "gaussian";
    params.k = 200;
    subject s;
    subject_open(&s, 20011, &params);
    for (int step = 0; step < STEPS; step++) {
        check_scene("gaussian, three large entries, step=%d", step);
        oracle_fill(s.grad, s.n, DATA_GAUSS, (uint64_t)step);
        for (int i = 0; i < 3; i++)
            s.grad[1 + 7000 * i] = 1e6f;
        check_int("count", subject_step(&s), s.k);
    }
    subject_close(&s);
}

/* If more than 4k/3 entries pass: exactly k. Else all that pass, by a 1 % sample roughly k. */
static void test_dgc_counts(void **state) {
    (void)state;
    check_kernels_or_skip();
    const int64_t k = N / 50;
    const oracle_data kinds[] = {DATA_GAUSS, DATA_LAPLACE, DATA_POWER5};
    for (int i = 0; i < 3; i++)
        check_counts("dgc", kinds[i], k, (limits){k / 3, (4 * k + 2) / 3});
    check_counts("dgc", DATA_CONSTANT, k, (limits){k, k});
}

/* The sample's threshold is the magnitude of 2k entries: too many pass, but fewer than 4k. */
static void test_dgc_ties(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "dgc";
    params.k = N / 50;
    subject s;
    subject_open(&s, N, &params);
    check_scene("dgc, 2k entries of the same magnitude");
    oracle_fill(s.grad, N, DATA_GAUSS, 1);
    for (int64_t i = 0; i < N; i++)
        s.grad[i] = i % 25 == 7 ? 1.0f : 0x1p-10f * s.grad[i];
    check_int("count", subject_step(&s), s.k);
    subject_close(&s);
}

static void test_redsync_counts(void **state) {
    (void)state;
    check_kernels_or_skip();
    const int64_t k = N / 100;
    const oracle_data kinds[] = {DATA_GAUSS, DATA_LAPLACE, DATA_POWER5};
    for (int i = 0; i < 3; i++)
        check_counts("redsync", kinds[i], k, (limits){k, 2 * k});
}

/* A whole-vector sample makes the threshold of "dgc" exact. */
static void test_dgc_full_sample(void **state) {
    (void)state;
    check_kernels_or_skip();
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "dgc";
    params.k = 100;
    params.dgc_sample = 1.0;
    subject s;
    subject_open(&s, 8192, &params);
    oracle_fill(s.grad, s.n, DATA_GAUSS, 3);
    check_scene("dgc with dgc_sample = 1");
    check_between("count", subject_step(&s), 90, 110);
    subject_close(&s);
}

/* Share of a normal distribution that lies at or beyond t, on either side. */
static double both_tails(double t, double mean, double deviation) {
    const double unit = deviation * sqrt(2.0);
    return 0.5 * erfc((t - mean) / unit) + 0.5 * erfc((t + mean) / unit);
}

/* The paper's first threshold for acc, found by halving an interval. */
static double normal_threshold(const subject *s) {
    double mean = 0, square = 0, low = 0;
    for (int64_t i = 0; i < s->n; i++)
        mean += (double)s->acc[i] / (double)s->n;
    for (int64_t i = 0; i < s->n; i++)
        square += ((double)s->acc[i] - mean) * ((double)s->acc[i] - mean) / (double)s->n;
    double high = fabs(mean) + 50 * sqrt(square);
    for (int round = 0; round < 100; round++) {
        const double t = (low + high) / 2;
        if (both_tails(t, mean, sqrt(square)) > (double)s->k / (double)s->n)
            low = t;
        else
            high = t;
    }
    return low;
}

static int64_t count_from(const subject *s, double threshold) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->n; i++)
        count += fabs((double)s->acc[i]) >= threshold;
    return count;
}

/* The count by the paper's rule, with at most `rounds` corrections; k where that is far off. */
static int64_t gaussian_count(const subject *s, int rounds) {
    double threshold = normal_threshold(s);
    for (; rounds > 0; rounds--) {
        const int64_t count = count_from(s, threshold);
        if (3 * count < 2 * s->k)
            threshold *= 0.5;
        else if (3 * count > 4 * s->k)
            threshold *= 1.5;
        else
            break;
    }
    const int64_t count = count_from(s, threshold);
    return count > 4 * s->k || 4 * count < s->k ? s->k : count;
}

/* Rounding may decide about an entry or two that lie at the threshold. */
static void test_gaussian_rule(void **state) {
    (void)state;
    check_kernels_or_skip();
    const oracle_data kinds[] = {DATA_GAUSS, DATA_LAPLACE, DATA_POWER5, DATA_ASCENDING};
    for (int kind = 0; kind < 4; kind++)
        for (int rounds = 1; rounds <= 6; rounds++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.method = "gaussian";
            params.k = 10 + 57 * rounds;
            params.gaussian_rounds = rounds;
            subject s;
            subject_open(&s, 20011, &params);
            for (int step = 0; step < 3; step++) {
                check_scene("gaussian, data=%s k=%lld rounds=%d step=%d",
                            oracle_data_name(kinds[kind]), (long long)s.k, rounds, step);
                oracle_fill(s.grad, s.n, kinds[kind], (uint64_t)step);
                const int64_t count = subject_step(&s);
                const int64_t want = gaussian_count(&s, rounds);
                check_between("count", count, want - 2, want + 2);
            }
            subject_close(&s);
        }
}

/* Numbers that vary by a hundred-thousandth of their mean: the tails are those of a distribution
 * that is 10^5 deviations away from zero. */
static void test_gaussian_far_from_zero(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int round = 0; round < 20; round++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = "gaussian";
        params.k = 60 + 10 * round;
        params.feedback = TW_FEEDBACK_OFF;
        subject s;
        subject_open(&s, 2048, &params);
        oracle_rng rng = {.key = (uint64_t)round};
        check_scene("gaussian far from zero, round %d", round);
        for (int64_t i = 0; i < s.n; i++)
            s.grad[i] = (float)((round % 2 ? 0.4 : -3e36) * (1.0 + 1e-5 * oracle_gauss(&rng)));
        const int64_t count = subject_step(&s), want = gaussian_count(&s, 4);
        check_between("count", count, want - 6, want + 6); /* floats are two entries apart here */
        subject_close(&s);
    }
}

/* ---- Gaussian_k as published, against the authors' rule in plain words */

static int64_t count_above(const subject *s, float threshold) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->n; i++)
        count += fabsf(s->acc[i]) > threshold;
    return count;
}

/* mean + z * deviation of acc, the latter over n - 1. */
static double published_estimate(const subject *s) {
    double mean = 0, square = 0, low = 0, high = 10;
    for (int64_t i = 0; i < s->n; i++)
        mean += (double)s->acc[i] / (double)s->n;
    for (int64_t i = 0; i < s->n; i++)
        square += ((double)s->acc[i] - mean) * ((double)s->acc[i] - mean);
    for (int round = 0; round < 100; round++) {
        const double z = (low + high) / 2;
        if (both_tails(z, 0, 1) > (double)s->k / (double)s->n)
            low = z;
        else
            high = z;
    }
    return mean + low * sqrt(square / (double)(s->n - 1));
}

/* At most three thresholds are tested; what lies above the last one tested is selected. */
static int64_t published_count(const subject *s) {
    double threshold = published_estimate(s);
    int64_t count = 0;
    for (int test = 0; test < 3; test++) {
        count = count_above(s, (float)threshold);
        if (3 * count < 2 * s->k)
            threshold *= 0.5;
        else if (3 * count > 4 * s->k)
            threshold *= 1.5;
        else
            break;
    }
    return count;
}

static void published_open(subject *s, int64_t n, int64_t k) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.method = "gaussian_published";
    params.k = k;
    params.threads = 2;
    subject_open(s, n, &params);
}

/* Few, many and far too many pass, in steps of error feedback. */
static void test_published_rule(void **state) {
    (void)state;
    check_kernels_or_skip();
    const oracle_data kinds[] = {DATA_GAUSS, DATA_LAPLACE, DATA_POWER5, DATA_ASCENDING};
    int64_t few = 0, many = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int64_t k = 20; k <= 2000; k *= 10) {
            subject s;
            published_open(&s, 20011, k);
            for (int step = 0; step < 12; step++) {
                check_scene("gaussian_published, data=%s k=%lld step=%d",
                            oracle_data_name(kinds[kind]), (long long)k, step);
                oracle_fill(s.grad, s.n, kinds[kind], (uint64_t)step);
                const int64_t count = subject_step(&s);
                check_int("count", count, published_count(&s));
                few += 4 * count < k;
                many += count > 4 * k;
            }
            subject_close(&s);
        }
    check_true(few > 0);
    check_true(many > 0);
}

/* Three large entries: it selects these three alone, as published, and "gaussian" k. */
static void test_published_starves(void **state) {
    (void)state;
    check_kernels_or_skip();
    subject s;
    published_open(&s, 20011, 200);
    check_scene("gaussian_published, three large entries");
    oracle_fill(s.grad, s.n, DATA_GAUSS, 1);
    for (int i = 0; i < 3; i++)
        s.grad[1 + 7000 * i] = 1e6f;
    check_int("count", subject_step(&s), 3);
    subject_close(&s);
}

/* The threshold is the mean and so many deviations, of magnitudes or not: with a mean far below
 * zero it is negative, and everything passes. */
static void test_published_selects_everything(void **state) {
    (void)state;
    check_kernels_or_skip();
    subject s;
    published_open(&s, 20011, 200);
    check_scene("gaussian_published, mean -100");
    oracle_fill(s.grad, s.n, DATA_GAUSS, 1);
    for (int64_t i = 0; i < s.n; i++)
        s.grad[i] -= 100.0f;
    check_int("count", subject_step(&s), s.n);
    subject_close(&s);
}

/* Of zeros nothing is selected, before and after a threshold was learned. */
static void test_zeros(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int method = 0; method < check_methods(); method++) {
        if (!by_magnitude(check_method(method)))
            continue;
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.method = check_method(method);
        params.k = 10;
        params.feedback = TW_FEEDBACK_OFF;
        subject s;
        subject_open(&s, 999, &params);
        for (int step = 0; step < 4; step++) {
            check_scene("method=%s, zeros, step=%d", params.method, step);
            oracle_fill(s.grad, s.n, step == 2 ? DATA_GAUSS : DATA_ZEROS, 1);
            const int64_t count = subject_step(&s);
            if (step == 2)
                check_true(count > 0);
            else
                check_int("count", count, 0);
        }
        subject_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_picks_the_largest),
        cmocka_unit_test(test_gaussian_counts),
        cmocka_unit_test(test_gaussian_does_not_starve),
        cmocka_unit_test(test_dgc_counts),
        cmocka_unit_test(test_dgc_ties),
        cmocka_unit_test(test_redsync_counts),
        cmocka_unit_test(test_dgc_full_sample),
        cmocka_unit_test(test_gaussian_rule),
        cmocka_unit_test(test_gaussian_far_from_zero),
        cmocka_unit_test(test_published_rule),
        cmocka_unit_test(test_published_starves),
        cmocka_unit_test(test_published_selects_everything),
        cmocka_unit_test(test_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
