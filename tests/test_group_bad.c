/* test_group_bad.c - wrong parameters, ranks that disagree, bad numbers, ranks that never come
 *
 * A mistake on one rank must be an error on all of them, with words that name the rank and the
 * field, and after a refused step everything goes on as if it had not been: a group that went
 * through bad steps is compared, bit by bit, with one that did not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranks.h"

enum { RANKS = 4, N = 301, K = 40 };

static const char *const exchanges[] = {"dense", "allgather", "dsa", "gtopk", "oktopk"};
enum { EXCHANGES = 5 };

static tw_group_params usual(void) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.method = "exact";
    params.select.k = K;
    params.select.threads = 1;
    params.result = TW_SUM;
    return params;
}

static void fill(float **grads, int step) {
    for (int rank = 0; rank < RANKS; rank++)
        oracle_fill(grads[rank], N, DATA_POWER5, (uint64_t)(100 * step + rank));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Parameters of one rank --------------------------------------------------------------------- */

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
        tw_group_params params = usual();                                                          \
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
    REFUSE(result, 2, TW_ERR_PARAM, "result");
    REFUSE(result, -1, TW_ERR_PARAM, "result");
    REFUSE(global, 2, TW_ERR_PARAM, "global");
    REFUSE(global, -1, TW_ERR_PARAM, "global");
    REFUSE(timeout, -1.0, TW_ERR_PARAM, "timeout");
    REFUSE(timeout, (double)NAN, TW_ERR_PARAM, "timeout");
    REFUSE(bucket, -1, TW_ERR_PARAM, "bucket");
    REFUSE(reserved[0], 1, TW_ERR_PARAM, "reserved");
    REFUSE(reserved[7], 1, TW_ERR_PARAM, "reserved");
}

static void refuse_tensor(int64_t n, const tw_select_params *select, int error, const char *word) {
    tw_transport *transport;
    tw_group *group;
    int tensor = 77;
    const tw_group_params params = usual();
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
        tw_select_params select = usual().select;                                                  \
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
    const tw_group_params params = usual();
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

/* ---- Order and numbers ---------------------------------------------------------------------------- */

static void test_order(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    float x[N] = {0};
    tw_sparse sparse;
    const tw_group_params params = usual();
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
    const tw_group_params params = usual();
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

/* ---- Ranks that disagree --------------------------------------------------------------------------- */

/* Two groups of parameters: rank `odd` has the second one. */
typedef struct dispute {
    tw_group_params usual, other;
    int64_t n, other_n;
    int tensors, other_tensors;
    int odd;
} dispute;

static int dispute_rank(ranks *r, int rank, void *context) {
    const dispute *d = context;
    const int odd = rank == d->odd;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], odd ? &d->other : &d->usual);
    for (int i = 0; i < (odd ? d->other_tensors : d->tensors) && !error; i++)
        error = tw_group_add(r->groups[rank], odd ? d->other_n : d->n, NULL, NULL);
    return error ? error : tw_group_open(r->groups[rank]);
}

static dispute agreed(void) {
    dispute d = {.n = N, .other_n = N, .tensors = 2, .other_tensors = 2};
    d.usual = usual();
    d.usual.timeout = RANKS_TIMEOUT;
    d.other = d.usual;
    return d;
}

/* All ranks must name the odd one and the field; the group is of no use afterwards. */
static void check_dispute(dispute *d, const char *field) {
    for (d->odd = 1; d->odd < RANKS; d->odd++) {
        ranks r;
        float x[N] = {0};
        check_scene("rank %d has another %s", d->odd, field);
        ranks_init(&r, RANKS);
        ranks_run(&r, dispute_rank, d);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "%s: rank %d has", field, d->odd);
        for (int rank = 0; rank < RANKS; rank++) {
            check_error(tw_allreduce(r.groups[rank], 0, x, x), TW_ERR_STATE);
            check_error(tw_group_open(r.groups[rank]), TW_ERR_STATE);
        }
        ranks_close(&r);
    }
}

#define DISPUTE(field, value, name)                                                                \
    do {                                                                                           \
        dispute d = agreed();                                                                      \
        d.other.field = (value);                                                                   \
        check_dispute(&d, (name));                                                                 \
    } while (0)

static void test_disputes(void **state) {
    (void)state;
    DISPUTE(scheme, "gtopk", "scheme");
    DISPUTE(exchange, "dsa", "exchange");
    DISPUTE(result, TW_MEAN, "result");
    DISPUTE(global, TW_GLOBAL_REUSE, "global");
    DISPUTE(bucket, 1, "bucket");
    DISPUTE(select.method, "dgc", "method");
    DISPUTE(select.k, K + 1, "k");
    DISPUTE(select.type, TW_BF16, "type");
    DISPUTE(select.feedback, TW_FEEDBACK_OFF, "feedback");
    DISPUTE(select.momentum, 0.5f, "momentum");
    DISPUTE(select.clip_norm, 1.0f, "clip_norm");
    DISPUTE(select.warmup_steps, 7, "warmup_steps");
    DISPUTE(select.warmup_density, 0.5, "warmup_density");
    DISPUTE(select.reuse_period, 7, "reuse_period");
    DISPUTE(select.reuse_low, 0.5f, "reuse_low");
    DISPUTE(select.reuse_high, 1.5f, "reuse_high");
    DISPUTE(select.reuse_nudge, 0.25f, "reuse_nudge");
    DISPUTE(select.gaussian_rounds, 7, "gaussian_rounds");
    DISPUTE(select.dgc_sample, 0.5, "dgc_sample");
}

static void test_disputes_of_shape(void **state) {
    (void)state;
    dispute d = agreed();
    d.other_n = N + 1;
    check_dispute(&d, "n");
    d = agreed();
    d.other_tensors = 3;
    check_dispute(&d, "tensors");
    d = agreed();
    d.usual.select.k = d.other.select.k = 0;
    d.usual.select.density = 0.1;
    d.other.select.density = 0.25;
    check_dispute(&d, "density");
}

/* What may differ: how long to wait, how many threads, and the seed of each rank's choice. */
static void test_no_dispute(void **state) {
    (void)state;
    dispute d = agreed();
    d.other.timeout = RANKS_TIMEOUT / 2;
    d.other.select.threads = 3;
    d.other.select.seed = 77;
    d.odd = 1;
    ranks r;
    check_scene("timeout, threads and seed differ");
    ranks_init(&r, RANKS);
    ranks_run(&r, dispute_rank, &d);
    ranks_ok(&r);
    ranks_close(&r);
}

/* ---- Bad numbers ------------------------------------------------------------------------------------ */

/* Two sets of ranks: one goes through bad steps, one is spared. */
typedef struct pair {
    ranks tried, spared;
    float **grads, **outs, **want, **before;
    int step;
} pair;

static void pair_open(pair *p, const tw_group_params *params) {
    const int64_t sizes[2] = {N, N};
    *p = (pair){.grads = rows_alloc(RANKS, N),
                .outs = rows_alloc(RANKS, N),
                .want = rows_alloc(RANKS, N),
                .before = rows_alloc(RANKS, N)};
    ranks_open(&p->tried, RANKS, params, sizes, 2);
    ranks_open(&p->spared, RANKS, params, sizes, 2);
}

static void pair_close(pair *p) {
    ranks_close(&p->tried);
    ranks_close(&p->spared);
    rows_free(p->grads);
    rows_free(p->outs);
    rows_free(p->want);
    rows_free(p->before);
}

/* The same good step on both sets gives the same. */
static void good_step(pair *p) {
    fill(p->grads, p->step++);
    ranks_allreduce(&p->tried, 0, (void *const *)p->grads, p->outs);
    ranks_ok(&p->tried);
    ranks_allreduce(&p->spared, 0, (void *const *)p->grads, p->want);
    ranks_ok(&p->spared);
    for (int rank = 0; rank < RANKS; rank++)
        check_bits("out", p->outs[rank], p->want[rank], N);
    ranks_get_residuals(&p->spared, 0, p->before, N);
    ranks_check_residuals(&p->tried, 0, p->before, N);
}

/* A step with what p->grads holds must be refused on all ranks and leave no trace: neither in the
 * residuals, nor in out, nor in the last result. */
static void bad_step_into(pair *p, int error, float **out) {
    tw_step_info info, after;
    check_ok(tw_group_info(p->tried.groups[0], 0, &info));
    ranks_get_residuals(&p->tried, 0, p->before, N);
    for (int rank = 0; rank < RANKS; rank++)
        memcpy(p->want[rank], p->grads[rank], N * sizeof(float));
    ranks_allreduce(&p->tried, 0, (void *const *)p->grads, out);
    ranks_error(&p->tried, error);
    for (int rank = 0; rank < RANKS; rank++)
        check_bits("gradient of a refused step", p->grads[rank], p->want[rank], N);
    ranks_check_residuals(&p->tried, 0, p->before, N);
    check_ok(tw_group_info(p->tried.groups[0], 0, &after));
    check_int("steps that succeeded", after.step, info.step);
}

/* In place: the gradient must be as before. */
static void bad_step(pair *p, int error) {
    bad_step_into(p, error, p->grads);
}

static tw_group_params params_of(const char *exchange, int variant) {
    tw_group_params params = usual();
    params.scheme = strcmp(exchange, "dense") == 0 ? "dense" : NULL;
    params.exchange = exchange;
    params.select.method = variant % 2 ? "reuse" : "exact";
    params.select.momentum = variant == 2 ? 0.5f : 0.0f;
    params.global = variant % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
    return params;
}

static void test_bad_numbers(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int e = 0; e < EXCHANGES; e++)
        for (int variant = 0; variant < 3; variant++) {
            pair p;
            const tw_group_params params = params_of(exchanges[e], variant);
            pair_open(&p, &params);
            for (int i = 0; i < 8; i++) {
                const int rank = (i + 3) % RANKS, at = i * 42;
                check_scene("%s variant=%d: %g on rank %d at %d", exchanges[e], variant,
                            (double)bad[i % 3], rank, at);
                good_step(&p);
                fill(p.grads, 1000 + i);
                p.grads[rank][at] = bad[i % 3];
                bad_step(&p, TW_ERR_NUMBER);
                ranks_say(&p.tried, "rank %d", rank);
                ranks_say(&p.tried, "%d", at);
            }
            good_step(&p);
            pair_close(&p);
        }
}

/* Bad on all ranks, and bad at once with NULL on another. */
static void test_several_bad(void **state) {
    (void)state;
    for (int e = 0; e < EXCHANGES; e++) {
        pair p;
        const tw_group_params params = params_of(exchanges[e], 0);
        check_scene("%s: all ranks are bad", exchanges[e]);
        pair_open(&p, &params);
        good_step(&p);
        fill(p.grads, 500);
        for (int rank = 0; rank < RANKS; rank++)
            p.grads[rank][10 + rank] = NAN;
        bad_step(&p, TW_ERR_NUMBER);
        ranks_say(&p.tried, "rank 0");
        ranks_say(&p.tried, "10");
        good_step(&p);
        pair_close(&p);
    }
}

/* Each rank's gradient is fine, their sum is not. Dense has it in out by then: there out is not
 * the gradient. */
static void test_sum_overflows(void **state) {
    (void)state;
    float **apart = rows_alloc(RANKS, N);
    for (int e = 0; e < EXCHANGES; e++)
        for (int result = TW_MEAN; result <= TW_SUM; result++) {
            pair p;
            tw_group_params params = params_of(exchanges[e], result); /* with reuse too */
            params.result = result;
            pair_open(&p, &params);
            for (int i = 0; i < 3; i++) {
                check_scene("%s: sum over ranks overflows, %d", exchanges[e], i);
                good_step(&p);
                fill(p.grads, 600 + i);
                for (int64_t at = 0; at < N; at++)
                    p.grads[3][at] *= 1000.0f; /* a threshold learned here would show */
                p.grads[i][77] = p.grads[i + 1][77] = 3e38f;
                bad_step_into(&p, TW_ERR_NUMBER, e == 0 ? apart : p.grads);
            }
            good_step(&p);
            pair_close(&p);
        }
    rows_free(apart);
}

/* The sum of gradient and residual overflows on one rank. */
static void test_residual_overflows(void **state) {
    (void)state;
    for (int e = 1; e < EXCHANGES; e++) {
        ranks r;
        const int64_t n = 8;
        tw_group_params params = params_of(exchanges[e], 0);
        params.select.k = 1;
        float **grads = rows_alloc(RANKS, n), **before = rows_alloc(RANKS, n);
        check_scene("%s: gradient + residual overflows", exchanges[e]);
        ranks_open(&r, RANKS, &params, &n, 1);
        grads[2][3] = 3.2e38f; /* sent in the first step; 3e38 stays behind */
        grads[2][5] = 3e38f;
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, before, n);
        grads[2][3] = 0;
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_error(&r, TW_ERR_NUMBER);
        ranks_say(&r, "rank 2");
        ranks_say(&r, "5");
        ranks_check_residuals(&r, 0, before, n);
        rows_free(grads);
        rows_free(before);
        ranks_close(&r);
    }
}

/* gtopk: what rank 0 drops at a merge overflows with what its residual holds there. */
static void test_dropped_sum_overflows(void **state) {
    (void)state;
    ranks r;
    const int64_t n = 8;
    tw_group_params params = params_of("gtopk", 0);
    params.select.k = 1;
    float **grads = rows_alloc(RANKS, n), **before = rows_alloc(RANKS, n);
    check_scene("gtopk: a dropped sum overflows with the residual");
    ranks_open(&r, RANKS, &params, &n, 1);
    grads[0][3] = 3.3e38f; /* stays in the list; 3.2e38 at 5 stays behind */
    grads[0][5] = 3.2e38f;
    grads[1][5] = 3e38f; /* is dropped by rank 0 */
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_error(&r, TW_ERR_NUMBER);
    ranks_check_residuals(&r, 0, before, n);
    grads[0][5] = 0;
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    rows_free(grads);
    rows_free(before);
    ranks_close(&r);
}

/* ---- NULL on one rank -------------------------------------------------------------------------------- */

static void test_null_on_one_rank(void **state) {
    (void)state;
    for (int e = 0; e < EXCHANGES; e++)
        for (int rank = 0; rank < RANKS; rank++) {
            pair p;
            const tw_group_params params = params_of(exchanges[e], 0);
            check_scene("%s: NULL on rank %d", exchanges[e], rank);
            pair_open(&p, &params);
            good_step(&p);
            float *kept = p.grads[rank];
            p.grads[rank] = NULL;
            ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
            p.grads[rank] = kept;
            ranks_error(&p.tried, TW_ERR_NULL);
            ranks_say(&p.tried, "rank %d", rank);
            ranks_check_residuals(&p.tried, 0, p.before, N);
            good_step(&p);
            pair_close(&p);
        }
}

/* dense has nothing but out to leave its result in. */
static void test_dense_needs_out(void **state) {
    (void)state;
    pair p;
    const tw_group_params params = params_of("dense", 0);
    check_scene("dense without out on rank 1");
    pair_open(&p, &params);
    float *kept = p.outs[1];
    p.outs[1] = NULL;
    ranks_allreduce(&p.tried, 0, (void *const *)p.grads, p.outs);
    p.outs[1] = kept;
    ranks_error(&p.tried, TW_ERR_NULL);
    ranks_say(&p.tried, "rank 1");
    good_step(&p);
    pair_close(&p);
}

/* ---- Ranks that never come ---------------------------------------------------------------------------- */

typedef struct absence {
    int absent;
    double seconds[RANKS]; /* that each call took */
    float **grads;
} absence;

static int come_or_not(ranks *r, int rank, void *context) {
    absence *a = context;
    if (rank == a->absent)
        return TW_ERR_TIMEOUT; /* as the others should */
    const double start = now();
    const int error = a->grads ? tw_allreduce(r->groups[rank], 0, a->grads[rank], a->grads[rank])
                               : tw_group_open(r->groups[rank]);
    a->seconds[rank] = now() - start;
    return error;
}

static void check_absence(const ranks *r, const absence *a, double timeout) {
    ranks_error(r, TW_ERR_TIMEOUT);
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != a->absent) {
            char name[16];
            snprintf(name, sizeof name, "%d", a->absent);
            check_contains(r->text[rank], name);
            if (a->seconds[rank] < 0.5 * timeout || a->seconds[rank] > 2 * timeout + 1)
                check_fail("rank %d waited %g s, the timeout is %g s", rank, a->seconds[rank],
                           timeout);
        }
}

static void test_absent_in_step(void **state) {
    (void)state;
    const double timeout = 0.4;
    for (int e = 0; e < EXCHANGES; e++) {
        ranks r;
        const int64_t n = N;
        tw_group_params params = params_of(exchanges[e], 0);
        params.timeout = timeout;
        absence a = {.absent = (e + 2) % RANKS, .grads = rows_alloc(RANKS, N)};
        float **before = rows_alloc(RANKS, N);
        check_scene("%s: rank %d does not come", exchanges[e], a.absent);
        ranks_open(&r, RANKS, &params, &n, 1);
        fill(a.grads, 1);
        ranks_allreduce(&r, 0, (void *const *)a.grads, a.grads);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, before, N);
        fill(a.grads, 2);
        ranks_run(&r, come_or_not, &a);
        check_absence(&r, &a, timeout);
        ranks_check_residuals(&r, 0, before, N);
        for (int rank = 0; rank < RANKS; rank++)
            if (rank != a.absent) { /* broken: at once, and without waiting */
                const double start = now();
                check_error(tw_allreduce(r.groups[rank], 0, a.grads[rank], a.grads[rank]),
                            TW_ERR_TIMEOUT);
                check_error(tw_allreduce_start(r.groups[rank], 0, a.grads[rank], a.grads[rank]),
                            TW_ERR_TIMEOUT);
                check_contains(tw_last_error(), "broken");
                check_true(now() - start < timeout / 2);
            }
        rows_free(a.grads);
        rows_free(before);
        ranks_close(&r);
    }
}

static int create_only(ranks *r, int rank, void *context) {
    int error = tw_group_create(&r->groups[rank], r->transports[rank], context);
    return error ? error : tw_group_add(r->groups[rank], N, NULL, NULL);
}

static void test_absent_at_open(void **state) {
    (void)state;
    ranks r;
    tw_group_params params = usual();
    params.timeout = 0.4;
    absence a = {.absent = 1};
    check_scene("rank 1 does not open");
    ranks_init(&r, RANKS);
    ranks_run(&r, create_only, &params);
    ranks_ok(&r);
    ranks_run(&r, come_or_not, &a);
    check_absence(&r, &a, params.timeout);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_tensor_numbers),
        cmocka_unit_test(test_disputes),
        cmocka_unit_test(test_disputes_of_shape),
        cmocka_unit_test(test_no_dispute),
        cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_several_bad),
        cmocka_unit_test(test_sum_overflows),
        cmocka_unit_test(test_residual_overflows),
        cmocka_unit_test(test_dropped_sum_overflows),
        cmocka_unit_test(test_null_on_one_rank),
        cmocka_unit_test(test_dense_needs_out),
        cmocka_unit_test(test_absent_in_step),
        cmocka_unit_test(test_absent_at_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
