/* test_oktopk.c - the bound of oktopk as a hard promise, and the cost table of the others
 *
 * In every step, on every rank, whatever the supports: at most 6k words of payload sent and 6k
 * received, for k >= 8P; on random and drifting supports 6k(P-1)/P, the figure of the paper. What
 * is sent besides (counts, boundaries, histograms) stays under 2 % of that, or 16 KiB. The counters
 * of tw_step_info are believed here; test_transport.c holds them against the bytes themselves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_oracle.h"
#include "ranks.h"

/* ---- Runs ------------------------------------------------------------------------------------ */

typedef struct run {
    tw_group_params params; /* select.k is the k */
    int nranks;
    int64_t n;
    int steps;
    support_kind kind;
    int64_t entries; /* large ones per gradient */
    int noise, summable;
} run;

/* The largest of all ranks and steps, in bytes. */
typedef struct peak {
    int64_t payload;
    int64_t control;
    int fewer; /* steps whose result had fewer than k entries */
} peak;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* One direction of one rank in one step. */
static void check_direction(const char *direction, int rank, int64_t payload, int64_t control,
                            int64_t most) {
    if (payload > most)
        check_fail("rank %d %s %lld bytes of payload, %lld are allowed (%.3f)", rank, direction,
                   (long long)payload, (long long)most, (double)payload / (double)most);
    const int64_t control_most = larger(payload / 50, 16384);
    if (control > control_most)
        check_fail("rank %d %s %lld bytes of control, %lld are allowed beside %lld of payload",
                   rank, direction, (long long)control, (long long)control_most,
                   (long long)payload);
}

static void check_traffic(ranks *r, int64_t most, peak *top) {
    for (int rank = 0; rank < r->nranks; rank++) {
        tw_step_info info;
        check_ok(tw_group_info(r->groups[rank], 0, &info));
        const tw_traffic *t = &info.traffic;
        if (strcmp(info.exchange, "oktopk") != 0)
            check_fail("the exchange was %s", info.exchange);
        check_direction("sent", rank, t->payload_sent, t->control_sent, most);
        check_direction("received", rank, t->payload_received, t->control_received, most);
        top->payload = larger(top->payload, larger(t->payload_sent, t->payload_received));
        top->control = larger(top->control, larger(t->control_sent, t->control_received));
    }
}

/* 6k words, in bytes; on random and drifting supports times (P-1)/P. */
static int64_t allowed(const run *u) {
    const int64_t bound = 6 * u->params.select.k * 4;
    const int evenly = u->kind == SUPPORT_RANDOM || u->kind == SUPPORT_DRIFT;
    return evenly ? bound * (u->nranks - 1) / u->nranks : bound;
}

static int same_results(ranks *r) {
    tw_sparse first, other;
    check_ok(tw_group_result(r->groups[0], 0, &first));
    for (int rank = 1; rank < r->nranks; rank++) {
        check_ok(tw_group_result(r->groups[rank], 0, &other));
        if (other.count != first.count ||
            memcmp(other.idx, first.idx, (size_t)first.count * sizeof *first.idx) != 0 ||
            memcmp(other.val, first.val, (size_t)first.count * sizeof *first.val) != 0)
            return 0;
    }
    return 1;
}

static int fewer_than_k(ranks *r) {
    tw_step_info info;
    check_ok(tw_group_info(r->groups[0], 0, &info));
    return info.applied < info.k;
}

static void one_step(const run *u, ranks *r, float **grads, int step, peak *top) {
    const support where = {.kind = u->kind,
                           .nranks = u->nranks,
                           .n = u->n,
                           .k = u->entries,
                           .seed = 3,
                           .summable = u->summable,
                           .noise = u->noise};
    check_scene("%s P=%d n=%lld k=%lld select=%s global=%d %lld entries step=%d",
                support_name(u->kind), u->nranks, (long long)u->n, (long long)u->params.select.k,
                u->params.select.method, u->params.global, (long long)u->entries, step);
    for (int rank = 0; rank < u->nranks; rank++)
        support_fill(&where, rank, step, grads[rank]);
    ranks_allreduce(r, 0, (void *const *)grads, NULL);
    ranks_ok(r);
    check_traffic(r, allowed(u), top);
    top->fewer += fewer_than_k(r);
    if (step % 16 == 0)
        check_true(same_results(r));
}

static peak run_steps(const run *u) {
    ranks r;
    peak top = {0, 0, 0};
    float **grads = rows_alloc(u->nranks, u->n);
    check_scene("P=%d n=%lld k=%lld", u->nranks, (long long)u->n, (long long)u->params.select.k);
    ranks_open(&r, u->nranks, &u->params, &u->n, 1);
    for (int step = 0; step < u->steps; step++)
        one_step(u, &r, grads, step, &top);
    ranks_close(&r);
    rows_free(grads);
    check_true(top.payload > 0 && top.control > 0);
    return top;
}

static run usual(int nranks, int64_t n, int64_t k) {
    run u = {.params = TW_GROUP_PARAMS_INIT, .nranks = nranks, .n = n, .steps = 6, .entries = k};
    u.params.scheme = "oktopk";
    u.params.select.method = "exact";
    u.params.select.k = k;
    u.params.select.threads = 1;
    u.params.result = TW_SUM;
    return u;
}

/* ---- The bound -------------------------------------------------------------------------------- */

/* Every P from 2 to 32, k = 8P and just above, n barely above k and far above, all supports. */
static void test_every_count_of_ranks(void **state) {
    (void)state;
    for (int nranks = 2; nranks <= 32; nranks++)
        for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
            if (nranks > 8 && (nranks + kind) % 3 != 0)
                continue; /* each P has a third of the supports, each support a third of the P */
            const int which = (nranks + kind) % 4;
            const int64_t k = 8 * nranks + which % 2;
            run u = usual(nranks, which / 2 ? k + 3 : 300 * k, k);
            u.kind = (support_kind)kind;
            if (u.n < 4 * k && (kind == SUPPORT_RANDOM || kind == SUPPORT_DRIFT))
                u.n = 300 * k; /* n hardly above k is no even spread */
            u.steps = 4;
            run_steps(&u);
        }
}

/* All supports with k well above 8P; more large entries than k, so that every list is full. */
static void test_supports(void **state) {
    (void)state;
    const int counts[] = {2, 3, 4, 7, 8, 16, 32};
    for (int p = 0; p < 7; p++)
        for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
            run u = usual(counts[p], 60000, 1500);
            u.kind = (support_kind)kind;
            u.entries = kind % 2 ? 1500 : 4000;
            u.steps = 8;
            run_steps(&u);
        }
}

/* Long runs, in which residuals pile up. */
static void test_long_runs(void **state) {
    (void)state;
    const support_kind kinds[] = {SUPPORT_RANDOM,    SUPPORT_DRIFT,  SUPPORT_ALTERNATING,
                                  SUPPORT_NEIGHBOUR, SUPPORT_REGION, SUPPORT_CLUMPS};
    const int counts[] = {4, 8, 13};
    for (int i = 0; i < 6; i++) {
        run u = usual(counts[i % 3], 30000, 600);
        u.kind = kinds[i];
        u.entries = 900;
        u.noise = u.summable = 1;
        u.steps = 200;
        run_steps(&u);
    }
}

/* Methods that select up to 4k, and the reused global threshold. */
static void test_methods(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
            run u = usual(kind % 2 ? 8 : 5, 20000, 400);
            u.kind = (support_kind)kind;
            u.params.select.method = check_method(method);
            u.params.global = method % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
            u.entries = 1600;
            u.noise = u.summable = kind % 3 == 0;
            u.steps = 12;
            run_steps(&u);
        }
}

/* Where the threshold is close to that of the step before, finding it takes three alltoalls: with
 * agreement, cut, counts, split, balance and gathering that makes ten. Over some steps of random
 * supports it settles. */
static void test_few_messages(void **state) {
    (void)state;
    run u = usual(8, 40000, 400);
    ranks r;
    tw_step_info info;
    int64_t fewest = INT64_MAX;
    float **grads = rows_alloc(u.nranks, u.n);
    peak top = {0, 0, 0};
    ranks_open(&r, u.nranks, &u.params, &u.n, 1);
    for (int step = 0; step < 20; step++) {
        one_step(&u, &r, grads, step, &top);
        check_ok(tw_group_info(r.groups[3], 0, &info));
        fewest = info.traffic.messages_sent < fewest ? info.traffic.messages_sent : fewest;
    }
    check_scene("%lld messages", (long long)fewest);
    check_true(fewest <= 10 * 7);
    ranks_close(&r);
    rows_free(grads);
}

/* The candidates for the threshold are all in one rank's region, and more than it may list: 4 ranks
 * bring 800 entries each, no two the same. 400 large ones lie in the second region, 800 middling
 * ones with magnitudes close together in the first; the k = 800 largest are the 400 and the better
 * half of the 800. */
static void test_crowded_threshold(void **state) {
    (void)state;
    enum { P = 4, K = 800, N = P * P * K / 4 * 2 };
    tw_group_params params = usual(P, N, K).params;
    ranks r;
    tw_sparse result;
    const int64_t n = N;
    float **grads = rows_alloc(P, n);
    for (int i = 0; i < P * K; i++) { /* entry i of all, every other index, ranks in turn */
        int region = i / K, at = i % K;
        float middling = 1.0f + (float)at * 0x1p-23f;
        float value = region == 0 ? middling : region == 1 && at % 2 == 0 ? 4.0f : 0.125f;
        grads[i % P][2 * i] = i % 3 ? value : -value;
    }
    ranks_open(&r, P, &params, &n, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    check_ok(tw_group_result(r.groups[1], 0, &result));
    check_true(result.count == K);
    for (int i = 0; i < K; i++) {
        int entry = i < K / 2 ? K / 2 + i : K + 2 * (i - K / 2);
        check_scene("entry %d", i);
        check_true(result.idx[i] == 2 * entry && result.val[i] == grads[entry % P][2 * entry]);
    }
    ranks_close(&r);
    rows_free(grads);
}

/* Reused thresholds, local and global, over many steps: the scheme as it comes. */
static void test_reuse(void **state) {
    (void)state;
    int reused = 0;
    for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
        run u = usual(8, 20000, 400);
        u.kind = (support_kind)kind;
        u.params.select.method = NULL;
        u.params.global = TW_GLOBAL_REUSE;
        u.entries = 600;
        u.noise = 1;
        u.steps = kind < 2 ? 200 : 60;
        reused += run_steps(&u).fewer;
    }
    check_true(reused > 50); /* or the reused threshold never served */
}

/* Large as models are. */
static void test_huge(void **state) {
    (void)state;
    const support_kind kinds[] = {SUPPORT_RANDOM, SUPPORT_END, SUPPORT_CLUMPS, SUPPORT_IDENTICAL};
    for (int i = 0; i < 4; i++) {
        run u = usual(4, 4000000, 40000); /* cut into batches */
        u.kind = kinds[i];
        u.entries = 60000;
        u.steps = 3;
        run_steps(&u);
    }
}

/* Every rank has the same few neighbours at P/2.2 places. Nothing is lost. */
static void needles(int nranks, int64_t n) {
    run u = usual(nranks, n, 8 * nranks);
    u.kind = SUPPORT_NEEDLES;
    u.summable = 1;
    peak top = {0, 0, 0};
    ranks r;
    tw_sparse result;
    float **grads = rows_alloc(nranks, n);
    int64_t *owed = check_alloc(n, sizeof *owed); /* units of 2^-10 */
    ranks_open(&r, nranks, &u.params, &n, 1);
    for (int step = 0; step < 3; step++) {
        one_step(&u, &r, grads, step, &top);
        for (int rank = 0; rank < nranks; rank++)
            for (int64_t i = 0; i < n; i++)
                owed[i] += (int64_t)(grads[rank][i] * 0x1p10f);
        check_ok(tw_group_result(r.groups[0], 0, &result));
        check_between("applied", result.count, u.params.select.k / 2, u.params.select.k);
        for (int64_t j = 0; j < result.count; j++)
            owed[result.idx[j]] -= (int64_t)(result.val[j] * 0x1p10f);
    }
    for (int rank = 0; rank < nranks; rank++) {
        check_ok(tw_group_get_residual(r.groups[rank], 0, grads[0]));
        for (int64_t i = 0; i < n; i++)
            owed[i] -= (int64_t)(grads[0][i] * 0x1p10f);
    }
    for (int64_t i = 0; i < n; i++)
        check_int("units lost", owed[i], 0);
    ranks_close(&r);
    rows_free(grads);
    free(owed);
}

static void test_needles(void **state) {
    (void)state;
    needles(8, 1000000);
    needles(32, 500000);
    needles(64, 250000);
}

/* The same in an index space so large that the partition cannot tell neighbours apart: ranks hold
 * back entries. Without feedback and with one gradient for all, as residuals would take 1 GiB. */
static void test_crowded(void **state) {
    (void)state;
    enum { RANKS = 64 };
    const int64_t n = 4000000, k = 8 * RANKS;
    run u = usual(RANKS, n, k);
    u.params.select.feedback = TW_FEEDBACK_OFF;
    support where = {.kind = SUPPORT_NEEDLES, .nranks = RANKS, .n = n, .k = k, .summable = 1};
    ranks r;
    peak top = {0, 0, 0};
    float *grad = check_alloc(n, sizeof *grad), *same[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        same[rank] = grad;
    ranks_open(&r, RANKS, &u.params, &n, 1);
    for (int step = 0; step < 5; step++) {
        check_scene("crowded, step=%d", step);
        support_fill(&where, 0, step, grad);
        ranks_allreduce(&r, 0, (void *const *)same, NULL);
        ranks_ok(&r);
        check_traffic(&r, 24 * k, &top);
        check_true(same_results(&r));
    }
    ranks_close(&r);
    free(grad);
}

/* ---- Several tensors in one bucket: 6 times the sum of their k -------------------------------- */

enum { TENSORS = 20 };

static int start_all_and_wait(ranks *r, int rank, void *context) {
    float **grads = context; /* [TENSORS], the same for all ranks */
    int error = TW_OK;
    for (int i = 0; i < TENSORS && !error; i++)
        error = tw_allreduce_start(r->groups[rank], i, grads[i], NULL);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

/* Control may be 16 KiB for each tensor, as it might if they travelled alone. */
static void test_bucket(void **state) {
    (void)state;
    enum { RANKS = 4, K = 64 };
    int64_t sizes[TENSORS];
    run u = usual(RANKS, 0, K);
    for (int i = 0; i < TENSORS; i++)
        sizes[i] = K + 300 * i;
    ranks r;
    ranks_open(&r, RANKS, &u.params, sizes, TENSORS);
    float **grads = rows_alloc(TENSORS, sizes[TENSORS - 1]);
    for (int step = 0; step < 10; step++) {
        tw_step_info info;
        check_scene("bucket of %d tensors, step=%d", TENSORS, step);
        for (int i = 0; i < TENSORS; i++)
            oracle_fill(grads[i], sizes[i], step % 2 ? DATA_REGION : DATA_GAUSS, (uint64_t)step);
        ranks_run(&r, start_all_and_wait, grads);
        ranks_ok(&r);
        for (int rank = 0; rank < RANKS; rank++) {
            check_ok(tw_group_info(r.groups[rank], 3, &info));
            check_int("tensors in the bucket", info.tensors, TENSORS);
            check_between("payload sent", info.traffic.payload_sent, 1, 24 * K * TENSORS);
            check_between("payload received", info.traffic.payload_received, 1, 24 * K * TENSORS);
            check_between("control sent", info.traffic.control_sent, 1, 16384 * TENSORS);
            check_between("control received", info.traffic.control_received, 1, 16384 * TENSORS);
        }
    }
    rows_free(grads);
    ranks_close(&r);
}

/* ---- Flatness --------------------------------------------------------------------------------- */

/* What a rank moves does not grow with P: P/(P-1) times its peak is the same for 2 .. 64. */
static void test_flatness(void **state) {
    (void)state;
    double low = 0, high = 0;
    char figures[256] = "";
    for (int nranks = 2; nranks <= 64; nranks *= 2) {
        run u = usual(nranks, 1000000, 20000);
        u.kind = SUPPORT_RANDOM;
        u.entries = 40000;
        u.steps = 3;
        const peak top = run_steps(&u);
        const double flat = (double)top.payload * nranks / (nranks - 1);
        const size_t used = strlen(figures);
        snprintf(figures + used, sizeof figures - used, " %.0f", flat);
        low = low == 0 || flat < low ? flat : low;
        high = flat > high ? flat : high;
    }
    check_scene("peak bytes x P/(P-1) for P = 2, 4 ... 64:%s", figures);
    check_true(high <= 1.05 * low);
}

/* ---- The cost table --------------------------------------------------------------------------- */

/* The table holds for every rank, but for dsa, whose ranges get more or less of the entries: there
 * it holds for the mean over ranks. Ranges are of whole elements: one more for each other rank. */
static void check_words(ranks *r, const char *exchange, double most) {
    const int dsa = strcmp(exchange, "dsa") == 0, dense = strcmp(exchange, "dense") == 0;
    const int64_t bytes = 4 * ((int64_t)most + (dsa || dense ? r->nranks : 0));
    int64_t sent = 0, received = 0;
    for (int rank = 0; rank < r->nranks; rank++) {
        tw_step_info info;
        check_ok(tw_group_info(r->groups[rank], 0, &info));
        sent += info.traffic.payload_sent;
        received += info.traffic.payload_received;
        if (!dsa) {
            check_direction("sent", rank, info.traffic.payload_sent, 0, bytes);
            check_direction("received", rank, info.traffic.payload_received, 0, bytes);
        }
    }
    check_int("bytes received by all", received, sent);
    check_between("bytes sent, mean over ranks", sent / r->nranks, r->nranks > 1, bytes);
}

static void check_cost(const char *exchange, int nranks, support_kind kind) {
    const int64_t n = 20000, k = 512;
    run u = usual(nranks, n, k);
    u.params.exchange = exchange;
    const support where = {
        .kind = kind, .nranks = nranks, .n = n, .k = k, .seed = 5, .summable = 1, .noise = 1};
    ranks r;
    tw_cost cost;
    float **grads = rows_alloc(nranks, n), **outs = rows_alloc(nranks, n);
    check_scene("cost of %s, P=%d, %s", exchange, nranks, support_name(kind));
    check_ok(tw_exchange_cost(exchange, n, k, nranks, &cost));
    check_true(cost.least >= 0 && cost.least <= cost.most);
    ranks_open(&r, nranks, &u.params, &n, 1);
    for (int step = 0; step < 3; step++) {
        for (int rank = 0; rank < nranks; rank++)
            support_fill(&where, rank, step, grads[rank]);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        check_words(&r, exchange, cost.most);
    }
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
}

static void test_costs_hold(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 5, 8, 13, 32};
    const char *name;
    for (int e = 0; tw_exchange(e, &name, NULL) == TW_OK; e++)
        for (int p = 0; p < 8; p++)
            for (int kind = 0; kind < SUPPORT_KINDS; kind++)
                if (counts[p] < 8 || kind % 3 == 0)
                    check_cost(name, counts[p], (support_kind)kind);
}

static void expect_cost(const char *exchange, int nranks, double least, double most) {
    tw_cost cost;
    check_scene("cost of %s, P=%d", exchange, nranks);
    check_ok(tw_exchange_cost(exchange, 1000000, 10000, nranks, &cost));
    if (cost.least != least || cost.most != most)
        check_fail("cost is %.17g .. %.17g, expected %.17g .. %.17g", cost.least, cost.most, least,
                   most);
}

/* The table of the papers for n = 1,000,000 and k = 10,000. */
static void test_cost_table(void **state) {
    (void)state;
    const double n = 1e6, k = 1e4;
    expect_cost("dense", 4, 2 * n * 3 / 4, 2 * n * 3 / 4);
    expect_cost("allgather", 4, 2 * k * 3, 2 * k * 3);
    expect_cost("dsa", 4, 4 * k * 3 / 4, (2 * k + n) * 3 / 4);
    expect_cost("gtopk", 8, 2 * k, 4 * k * 3);
    expect_cost("oktopk", 4, 2 * k * 3 / 4, 6 * k);
    expect_cost("fulltopk", 4, 4 * k * 3 / 4, 6 * k + 2 * k * 3 / 4);
    /* One round each way among 4: k, then three shares of k/4 + 3 sqrt(k/4) + 3. */
    expect_cost("butterfly", 4, 4 * k * 3 / 4, 2 * (k + 3 * (2500 + 150 + 3)));
    /* Two rounds among 8: shares of 8 and of single ranks. */
    expect_cost("butterfly", 64, 4 * k * 63 / 64,
                2 * (2 * k + 7 * (1250 + 105 + 3) + 7 * (157 + 36 + 3)));
}

/* Least is not above most, however many are selected. */
static void test_cost_at_high_density(void **state) {
    (void)state;
    const char *name;
    for (int e = 0; tw_exchange(e, &name, NULL) == TW_OK; e++)
        for (int64_t k = 0; k <= 100; k += 10) {
            tw_cost cost;
            check_scene("cost of %s, %lld of 100", name, (long long)k);
            check_ok(tw_exchange_cost(name, 100, k, 8, &cost));
            check_true(cost.least >= 0 && cost.least <= cost.most);
        }
}

static void test_cost_refuses(void **state) {
    (void)state;
    tw_cost cost;
    check_error(tw_exchange_cost(NULL, 10, 1, 2, &cost), TW_ERR_NULL);
    check_error(tw_exchange_cost("dense", 10, 1, 2, NULL), TW_ERR_NULL);
    check_error(tw_exchange_cost("topka", 10, 1, 2, &cost), TW_ERR_NAME);
    check_error(tw_exchange_cost("gtopk", 0, 1, 2, &cost), TW_ERR_PARAM);
    check_error(tw_exchange_cost("gtopk", 10, -1, 2, &cost), TW_ERR_PARAM);
    check_error(tw_exchange_cost("gtopk", 10, 11, 2, &cost), TW_ERR_PARAM);
    check_error(tw_exchange_cost("gtopk", 10, 1, 0, &cost), TW_ERR_PARAM);
    check_error(tw_exchange_cost("butterfly", 10, 1, INT32_MAX, &cost), TW_ERR_PARAM);
    check_error(tw_exchange_cost("butterfly", INT64_MAX, INT64_MAX, 64, &cost), TW_ERR_PARAM);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_count_of_ranks),
        cmocka_unit_test(test_supports),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_few_messages),
        cmocka_unit_test(test_crowded_threshold),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_needles),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_bucket),
        cmocka_unit_test(test_flatness),
        cmocka_unit_test(test_costs_hold),
        cmocka_unit_test(test_cost_table),
        cmocka_unit_test(test_cost_at_high_density),
        cmocka_unit_test(test_cost_refuses),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
