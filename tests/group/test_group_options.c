/* test_group_options.c - options of selection in a group: momentum, warm-up, feedback, threads, and
 * tensors with options of their own
 *
 * Results and residuals are compared with the oracle of each exchange.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_check.h"

enum { RANKS = 4, N = 2003, K = 64 };

/* ---- Options of the selection ---------------------------------------------------------------- */

static void test_feedback_off(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        exchange_oracle o;
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.select.feedback = TW_FEEDBACK_OFF;
        exchange_oracle_open(&o, check_exchange(e), RANKS, N, K, TW_MEAN);
        o.feedback = TW_FEEDBACK_OFF;
        exchange_check_steps(&params, &o, 4);
        exchange_oracle_close(&o);
    }
}

static void test_momentum(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        for (int nranks = 3; nranks <= 4; nranks++) {
            exchange_oracle o;
            tw_group_params params = ranks_params(check_exchange(e), K);
            params.select.momentum = 0.75f;
            exchange_oracle_open(&o, check_exchange(e), nranks, N, K, TW_MEAN);
            o.momentum = 0.75f;
            exchange_check_steps(&params, &o, 6);
            exchange_oracle_close(&o);
        }
}

static void set_adamw(tw_select_params *select) {
    select->before = TW_BEFORE_ADAMW;
    select->beta1 = 0.75;
    select->beta2 = 0.875;
    select->eps = 1e-6;
    select->rate = 0.01;
}

static void test_adamw(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        for (int nranks = 3; nranks <= 4; nranks++) {
            exchange_oracle o;
            tw_group_params params = ranks_params(check_exchange(e), K);
            set_adamw(&params.select);
            exchange_oracle_open(&o, check_exchange(e), nranks, N, K, TW_MEAN);
            o.adamw = 1;
            o.rate = params.select.rate;
            exchange_check_steps(&params, &o, 6);
            exchange_oracle_close(&o);
        }
}

/* ---- Rates and densities that the caller sets ------------------------------------------------ */

/* What one rank sets before a step; all others set `usual`. */
typedef struct setting {
    int (*set)(tw_group *group, int tensor, double value);
    double usual, other;
    int rank;
} setting;

static int set_one(ranks *r, int rank, void *context) {
    const setting *s = context;
    return s->set(r->groups[rank], TW_ALL, rank == s->rank ? s->other : s->usual);
}

static void open_set(ranks *r, int density) {
    const int64_t sizes[] = {N, N};
    tw_group_params params = ranks_params("allgather", 0);
    params.select.density = 0.01;
    if (density) {
        params.select.warmup = TW_WARMUP_CALLER;
        params.select.warmup_density = 0.5;
    } else {
        set_adamw(&params.select);
    }
    ranks_open(r, RANKS, &params, sizes, 2);
}

/* One rank with another value: the step is refused, and with the same value again the group goes on
 * as one that never heard of it. */
static void check_setting(int density, setting s, const char *field) {
    ranks tried, spared;
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N),
          **want = rows_alloc(RANKS, N), **before = rows_alloc(RANKS, N);
    open_set(&tried, density);
    open_set(&spared, density);
    for (int step = 0; step < 6; step++) {
        setting same = s;
        check_scene("%s %g, rank %d sets %g, step %d", field, s.usual, s.rank, s.other, step);
        same.other = s.usual = same.usual = s.usual * 0.9;
        rows_fill(grads, RANKS, N, DATA_GAUSS, step);
        ranks_run(&tried, set_one, &s);
        ranks_ok(&tried);
        ranks_get_residuals(&tried, 0, before, N);
        ranks_allreduce(&tried, 0, (void *const *)grads, outs);
        ranks_error(&tried, TW_ERR_MISMATCH);
        ranks_say(&tried, "%s: rank ", field);
        ranks_say(&tried, "(summed ");                         /* no round was needed to tell */
        ranks_say(&tried, "rank %d", s.rank > 0 ? s.rank : 1); /* rank 0 differs from all others */
        ranks_check_residuals(&tried, 0, before, N);
        ranks_run(&tried, set_one, &same);
        ranks_run(&spared, set_one, &same);
        ranks_allreduce(&tried, 0, (void *const *)grads, outs);
        ranks_ok(&tried);
        ranks_allreduce(&spared, 0, (void *const *)grads, want);
        ranks_ok(&spared);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out", outs[rank], want[rank], N);
    }
    ranks_close(&tried);
    ranks_close(&spared);
    rows_free(grads);
    rows_free(outs);
    rows_free(want);
    rows_free(before);
}

static void test_settings_differ(void **state) {
    (void)state;
    check_setting(0, (setting){tw_group_set_rate, 0.1, 0.2, 2}, "rate");
    check_setting(0, (setting){tw_group_set_rate, 0.1, 0.0, 0}, "rate");
    check_setting(1, (setting){tw_group_set_density, 0.4, 0.5, 3}, "density");
}

/* What the two tensors have; on one rank the other way round. */
typedef struct swap {
    int (*set)(tw_group *group, int tensor, double value);
    double values[2];
    int rank; /* -1: none */
    float **grads, **outs;
} swap;

static int set_swapped(ranks *r, int rank, void *context) {
    const swap *s = context;
    const int swapped = rank == s->rank;
    int error = s->set(r->groups[rank], 0, s->values[swapped]);
    return error == TW_OK ? s->set(r->groups[rank], 1, s->values[!swapped]) : error;
}

static int step_of_two(ranks *r, int rank, void *context) {
    const swap *s = context;
    tw_group *g = r->groups[rank];
    int error = tw_allreduce_start(g, 0, s->grads[rank], s->outs[rank]);
    if (error == TW_OK)
        error = tw_allreduce_start(g, 1, s->grads[rank] + N, s->outs[rank] + N);
    return error == TW_OK ? tw_allreduce_wait(g, TW_ALL) : error;
}

/* In sum nothing differs, and yet the text begins with what does. */
static void check_swapped(int density, swap s, const char *text) {
    ranks r;
    swap same = s;
    same.rank = -1;
    s.grads = same.grads = rows_alloc(RANKS, 2 * N);
    s.outs = same.outs = rows_alloc(RANKS, 2 * N);
    rows_fill(s.grads, RANKS, 2 * N, DATA_GAUSS, 0);
    open_set(&r, density);
    for (int step = 0; step < 2; step++) {
        check_scene("rank %d, %s step %d", s.rank, text, step);
        ranks_run(&r, set_swapped, &s);
        ranks_ok(&r);
        ranks_run(&r, step_of_two, &s);
        ranks_error(&r, TW_ERR_MISMATCH);
        for (int rank = 0; rank < RANKS; rank++)
            check_true(strncmp(r.text[rank], text, strlen(text)) == 0);
        ranks_run(&r, set_swapped, &same);
        ranks_ok(&r);
        ranks_run(&r, step_of_two, &same);
        ranks_ok(&r);
    }
    ranks_close(&r);
    rows_free(s.grads);
    rows_free(s.outs);
}

static void test_settings_swapped(void **state) {
    (void)state;
    check_swapped(0, (swap){tw_group_set_rate, {0.1, 0.3}, 2, NULL, NULL}, "rate: rank 2 ");
    check_swapped(0, (swap){tw_group_set_rate, {0.1, 0.3}, 0, NULL, NULL}, "rate: rank 1 ");
    check_swapped(1, (swap){tw_group_set_density, {0.1, 0.3}, 3, NULL, NULL}, "density: rank 3 ");
    check_swapped(1, (swap){tw_group_set_density, {0.1, 0.3}, 0, NULL, NULL}, "density: rank 1 ");
}

/* Common values: rank sets `other` in place of values[at], or with at -1 one more. */
typedef struct common {
    double values[70];
    int count, rank, at;
    double other;
} common;

static int set_common(ranks *r, int rank, void *context) {
    common c = *(const common *)context;
    if (rank == c.rank && c.at >= 0)
        c.values[c.at] = c.other;
    return tw_group_set_common(r->groups[rank], c.values, c.count + (rank == c.rank && c.at < 0));
}

/* As check_setting, of an exchange; text: what all ranks say. */
static void check_common(const char *exchange, common c, const char *text) {
    ranks r, spared;
    tw_group_params params = ranks_params(exchange, K);
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N),
          **want = rows_alloc(RANKS, N), **before = rows_alloc(RANKS, N);
    ranks_open(&r, RANKS, &params, (const int64_t[]){N}, 1);
    ranks_open(&spared, RANKS, &params, (const int64_t[]){N}, 1);
    for (int step = 0; step < 4; step++) {
        common tried = c, same = c;
        check_scene("%s, rank %d sets %g as %d of %d, step %d", exchange, c.rank, c.other, c.at,
                    c.count, step);
        same.rank = -1;
        rows_fill(grads, RANKS, N, DATA_GAUSS, step);
        rows_fill(outs, RANKS, N, DATA_GAUSS, 100 + step);
        rows_fill(want, RANKS, N, DATA_GAUSS, 100 + step);
        ranks_run(&r, set_common, &tried);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, before, N);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "%s", text);
        ranks_check_residuals(&r, 0, before, N);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out of the refused step", outs[rank], want[rank], N);
        ranks_run(&r, set_common, &same);
        ranks_ok(&r);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        ranks_allreduce(&spared, 0, (void *const *)grads, want);
        ranks_ok(&spared);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out", outs[rank], want[rank], N);
    }
    ranks_close(&r);
    ranks_close(&spared);
    rows_free(grads);
    rows_free(outs);
    rows_free(want);
    rows_free(before);
}

static void test_common_differs(void **state) {
    (void)state;
    common c = {.values = {0.1, 0.9}, .count = 3, .rank = 2, .at = 0, .other = 0.05};
    check_common("oktopk", c, "common value 0: rank 2 has set 0.05, rank 0 0.1;");
    check_common("dense", c, "common value 0: rank 2 has set 0.05, rank 0 0.1;");
    c.at = 1;
    c.rank = 0; /* it differs from all others */
    check_common("allgather", c, "common value 1: rank 1 has set 0.9, rank 0 0.05;");
    c.at = -1;
    check_common("allgather", c, "common values: rank 1 has set 3, rank 0 4;");
    c = (common){.values = {0.1}, .count = 1, .rank = 1, .other = nextafter(0.1, 1.0)};
    check_common("allgather", c, "rank 1 has set 0.10000000000000002, rank 0 0.10000000000000001;");
    c = (common){.values = {NAN, [66] = 1e-7}, .count = 68, .rank = 3, .at = 66, .other = 2e-7};
    check_common("allgather", c, "common value 66: rank 3 has set 2e-07, rank 0 1e-07;");
}

/* So many common values, all 0.5; rank 1 has another one at `at`. */
typedef struct million {
    double *values; /* [TW_MOST_COMMON] */
    int at;
} million;

static int set_million(ranks *r, int rank, void *context) {
    million *m = context;
    if (rank != 1)
        return tw_group_set_common(r->groups[rank], m->values, TW_MOST_COMMON);
    double *own = malloc(TW_MOST_COMMON * sizeof *own);
    if (own == NULL)
        return TW_ERR_MEMORY;
    memcpy(own, m->values, TW_MOST_COMMON * sizeof *own);
    own[m->at] = 0.25;
    int error = tw_group_set_common(r->groups[rank], own, TW_MOST_COMMON);
    free(own);
    return error;
}

/* The one that differs is found in a few rounds, not after 31,250 messages. */
static void test_one_of_a_million_differs(void **state) {
    (void)state;
    ranks r;
    tw_group_params params = ranks_params("allgather", K);
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N);
    million m = {.values = malloc(TW_MOST_COMMON * sizeof(double))};
    assert_non_null(m.values);
    for (int i = 0; i < TW_MOST_COMMON; i++)
        m.values[i] = 0.5;
    ranks_open(&r, RANKS, &params, (const int64_t[]){N}, 1);
    rows_fill(grads, RANKS, N, DATA_GAUSS, 0);
    for (m.at = TW_MOST_COMMON - 1; m.at > 0; m.at /= 3) {
        tw_traffic before, after;
        ranks_run(&r, set_million, &m);
        ranks_ok(&r);
        check_ok(tw_transport_info(r.transports[0], NULL, NULL, NULL, &before));
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "common value %d: rank 1 has set 0.25, rank 0 0.5;", m.at);
        check_ok(tw_transport_info(r.transports[0], NULL, NULL, NULL, &after));
        check_between("messages", after.messages_sent - before.messages_sent, 0, 8 * (RANKS - 1));
    }
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    free(m.values);
}

/* TW_ALL means the tensors that have such a setting: one with AdamW, one with a density of the
 * caller, one with neither. */
static void test_settings_of_some(void **state) {
    (void)state;
    tw_group_params params = ranks_params("allgather", K);
    tw_select_params adamw = params.select, warm = params.select;
    tw_transport *transport;
    tw_group *group;
    set_adamw(&adamw);
    warm.k = 0;
    warm.density = 0.01;
    warm.warmup = TW_WARMUP_CALLER;
    warm.warmup_density = 0.5;
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_add(group, N, &adamw, NULL));
    check_ok(tw_group_add(group, N, &warm, NULL));
    check_ok(tw_group_open(group));
    check_ok(tw_group_set_rate(group, TW_ALL, 0.5));
    check_ok(tw_group_set_density(group, TW_ALL, 0.25));
    check_error(tw_group_set_rate(group, 0, 0.5), TW_ERR_PARAM);
    check_error(tw_group_set_density(group, 1, 0.25), TW_ERR_PARAM);
    tw_group_free(group);
    tw_transport_free(transport);
}

/* The density that was set is that of the step, and information tells it. */
static void test_density_by_caller(void **state) {
    (void)state;
    const double densities[] = {0.5, 0.25, 0.01, 0.3, 0.01};
    ranks r;
    float **grads = rows_alloc(RANKS, N);
    open_set(&r, 1);
    for (int i = 0; i < 6; i++) {
        setting s = {.set = tw_group_set_density, .rank = -1};
        double density = i == 0 ? 0.5 : densities[i - 1]; /* at first warmup_density */
        check_scene("density %g", density);
        s.usual = density;
        if (i > 0)
            ranks_run(&r, set_one, &s);
        rows_fill(grads, RANKS, N, DATA_GAUSS, i);
        ranks_allreduce(&r, 1, (void *const *)grads, grads);
        ranks_ok(&r);
        tw_step_info info;
        check_ok(tw_group_info(r.groups[1], 1, &info));
        check_int("k", info.k, (int64_t)(density * N + 0.5));
        check_int("selected", info.selected, info.k);
    }
    ranks_close(&r);
    rows_free(grads);
}

/* ---- What k counts --------------------------------------------------------------------------- */

/* With every exchange a rank sends at most what allgather sends with this k, and
 * not much less. */
static void test_count_per_rank(void **state) {
    (void)state;
    enum { MANY = 8, LONG = 20000, FEW = 100 };
    const int64_t size = LONG;
    float **grads = rows_alloc(MANY, LONG);
    tw_cost limit;
    check_ok(tw_exchange_cost("allgather", LONG, FEW, MANY, &limit));
    for (int e = 1; e < check_exchanges(); e++) {
        ranks r;
        tw_cost cost;
        tw_step_info info;
        tw_group_params params = ranks_params(check_exchange(e), FEW);
        params.count = TW_COUNT_PER_RANK;
        ranks_open(&r, MANY, &params, &size, 1);
        for (int step = 0; step < 3; step++) {
            check_scene("%s step=%d", check_exchange(e), step);
            rows_fill(grads, MANY, LONG, DATA_GAUSS, step);
            ranks_allreduce(&r, 0, (void *const *)grads, grads);
            ranks_ok(&r);
            check_ok(tw_group_info(r.groups[3], 0, &info));
            check_ok(tw_exchange_cost(check_exchange(e), LONG, info.k, MANY, &cost));
            if (strcmp(check_exchange(e), "dsa") == 0)
                check_int("k of dsa", info.k, FEW);
            else if (cost.most > limit.most || cost.most < 0.8 * limit.most)
                check_fail("k=%lld costs %g words, allgather %g", (long long)info.k, cost.most,
                           limit.most);
            if (strcmp(check_exchange(e), "oktopk") == 0)
                check_int("k of oktopk", info.k, FEW * (MANY - 1) / 3);
        }
        ranks_close(&r);
    }
    rows_free(grads);
}

/* The caller's density counts as that of the parameters does. */
static void test_density_per_rank(void **state) {
    (void)state;
    enum { MANY = 16, LONG = 20000 };
    const int64_t size = LONG;
    ranks r;
    float **grads = rows_alloc(MANY, LONG);
    tw_group_params params = ranks_params("oktopk", 0);
    params.count = TW_COUNT_PER_RANK;
    params.select.density = 0.01;
    params.select.warmup = TW_WARMUP_CALLER;
    params.select.warmup_density = 0.04;
    ranks_open(&r, MANY, &params, &size, 1);
    check_scene("densities per rank");
    for (int i = 0; i < 3; i++) {
        tw_step_info info;
        setting s = {.set = tw_group_set_density, .usual = 0.01 * (4 - i), .rank = -1};
        ranks_run(&r, set_one, &s);
        ranks_ok(&r);
        rows_fill(grads, MANY, LONG, DATA_GAUSS, i);
        ranks_allreduce(&r, 0, (void *const *)grads, grads);
        ranks_ok(&r);
        check_ok(tw_group_info(r.groups[0], 0, &info));
        check_int("k", info.k, (int64_t)(s.usual * LONG * (MANY - 1) / 3 + 0.5));
    }
    check_ok(tw_group_set_density(r.groups[0], 0, 0.01));
    check_error(tw_group_set_density(r.groups[0], 0, 0.009), TW_ERR_DENSITY);
    check_error(tw_group_set_density(r.groups[0], 0, 0.05), TW_ERR_DENSITY);
    check_contains(tw_last_error(), "0.01 .. 0.04");
    ranks_close(&r);
    rows_free(grads);
}

static void test_bad_settings(void **state) {
    (void)state;
    const double bad[] = {0.0, -0.1, 0.004, 0.6, 1.5, NAN, INFINITY};
    ranks r;
    open_set(&r, 1);
    for (int i = 0; i < 7; i++) {
        check_scene("density %g", bad[i]);
        check_error(tw_group_set_density(r.groups[0], TW_ALL, bad[i]), TW_ERR_DENSITY);
        check_contains(tw_last_error(), "0.5"); /* says what is accepted */
    }
    check_error(tw_group_set_density(r.groups[0], 2, 0.1), TW_ERR_INDEX);
    check_error(tw_group_set_density(NULL, 0, 0.1), TW_ERR_NULL);
    check_error(tw_group_set_rate(r.groups[0], TW_ALL, 0.1), TW_ERR_PARAM);
    check_contains(tw_last_error(), "rate");
    check_error(tw_group_set_common(NULL, bad, 1), TW_ERR_NULL);
    check_error(tw_group_set_common(r.groups[0], NULL, 1), TW_ERR_NULL);
    check_error(tw_group_set_common(r.groups[0], bad, -1), TW_ERR_PARAM);
    check_error(tw_group_set_common(r.groups[0], bad, TW_MOST_COMMON + 1), TW_ERR_PARAM);
    check_ok(tw_group_set_common(r.groups[0], NULL, 0));
    ranks_close(&r);
    open_set(&r, 0);
    check_error(tw_group_set_rate(r.groups[0], 0, -1.0), TW_ERR_PARAM);
    check_error(tw_group_set_rate(r.groups[0], 0, NAN), TW_ERR_PARAM);
    check_error(tw_group_set_rate(r.groups[0], -2, 0.1), TW_ERR_INDEX);
    check_error(tw_group_set_rate(NULL, 0, 0.1), TW_ERR_NULL);
    check_error(tw_group_set_density(r.groups[0], 0, 0.01), TW_ERR_PARAM);
    check_contains(tw_last_error(), "TW_WARMUP_CALLER");
    ranks_close(&r);
}

/* Several threads per rank change nothing. */
static void test_threads(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        exchange_oracle o;
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.select.threads = 3;
        exchange_oracle_open(&o, check_exchange(e), RANKS, 200003, K, TW_MEAN);
        exchange_check_steps(&params, &o, 3);
        exchange_oracle_close(&o);
    }
}

/* k falls during warm-up as it does for a selector alone; below 8P oktopk becomes butterfly. */
static int64_t next_k(tw_selector *selector, const float *grad) {
    tw_sparse sparse;
    tw_select_info info;
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_commit(selector, NULL, 0));
    check_ok(tw_selector_info(selector, &info));
    return info.k;
}

static void warm_up(const char *exchange) {
    ranks r;
    exchange_oracle o;
    const int64_t n = N;
    tw_group_params params = ranks_params(exchange, K);
    params.select.k = 0;
    params.select.density = 0.005;
    params.select.warmup_steps = 6;
    params.select.warmup_density = 0.5;
    tw_selector *alone = check_create(n, &params.select);
    float **grads = rows_alloc(RANKS, n), **outs = rows_alloc(RANKS, n);
    exchange_oracle_open(&o, exchange, RANKS, n, 1, TW_MEAN);
    ranks_open(&r, RANKS, &params, &n, 1);
    int64_t first = 0;
    for (int step = 0; step < 9; step++) {
        tw_step_info info;
        check_scene("warm-up with %s, step=%d", exchange, step);
        rows_fill(grads, RANKS, n, DATA_LAPLACE, step);
        o.k = next_k(alone, grads[0]);
        first = step == 0 ? o.k : first;
        exchange_check_step(&r, &o, grads, outs);
        check_ok(tw_group_info(r.groups[1], 0, &info));
        check_int("k", info.k, o.k);
        assert_string_equal(info.exchange, o.used);
    }
    check_true(o.k == 10 && first > 1000);
    tw_selector_free(alone);
    exchange_oracle_close(&o);
    rows_free(grads);
    rows_free(outs);
    ranks_close(&r);
}

static void test_warmup(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++)
        warm_up(check_exchange(e));
}

/* ---- Tensors of several kinds ---------------------------------------------------------------- */

typedef struct mixture {
    tw_group_params params;
    tw_select_params own[3];
    const void *const *grads[3]; /* [tensor][rank] */
    float **outs[3];
} mixture;

static const int64_t mixed_n[3] = {500, N, 333};

static int mixed_rank(ranks *r, int rank, void *context) {
    mixture *m = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &m->params);
    for (int i = 0; i < 3 && !error; i++)
        error = tw_group_add(r->groups[rank], mixed_n[i], i ? &m->own[i] : NULL, NULL);
    if (!error)
        error = tw_group_open(r->groups[rank]);
    for (int i = 2; i >= 0 && !error; i--)
        error = tw_allreduce(r->groups[rank], i, m->grads[i][rank], m->outs[i][rank]);
    return error;
}

/* The group's selection for tensor 0, own ones (k, type) for the others. */
static void test_mixed_tensors(void **state) {
    (void)state;
    ranks r;
    mixture m = {.params = ranks_params("oktopk", K)};
    m.own[1] = m.own[2] = m.params.select;
    m.own[1].k = 100;
    m.own[1].type = TW_BF16;
    m.own[2].k = 5;
    m.own[2].type = TW_F16;
    float **grads[3], **raw[3];
    for (int i = 0; i < 3; i++) {
        grads[i] = rows_alloc(RANKS, mixed_n[i]);
        raw[i] = rows_alloc(RANKS, mixed_n[i]);
        m.outs[i] = rows_alloc(RANKS, mixed_n[i]);
        m.grads[i] = (const void *const *)raw[i];
        rows_fill(grads[i], RANKS, mixed_n[i], DATA_LAPLACE, i);
        for (int rank = 0; rank < RANKS; rank++) {
            const int type = i ? m.own[i].type : TW_F32;
            oracle_encode(raw[i][rank], grads[i][rank], mixed_n[i], type);
            oracle_decode(grads[i][rank], raw[i][rank], mixed_n[i], type);
        }
    }
    ranks_init(&r, RANKS);
    ranks_run(&r, mixed_rank, &m);
    ranks_ok(&r);
    for (int i = 0; i < 3; i++) {
        exchange_oracle o;
        check_scene("tensor %d of several kinds", i);
        exchange_oracle_open(&o, "oktopk", RANKS, mixed_n[i], i ? m.own[i].k : K, TW_MEAN);
        exchange_oracle_step(&o, grads[i]);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out", m.outs[i][rank], o.out, mixed_n[i]);
        ranks_check_residuals(&r, i, o.residual, mixed_n[i]);
        exchange_oracle_close(&o);
        rows_free(grads[i]);
        rows_free(raw[i]);
        rows_free(m.outs[i]);
    }
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feedback_off),
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_settings_differ),
        cmocka_unit_test(test_settings_swapped),
        cmocka_unit_test(test_common_differs),
        cmocka_unit_test(test_one_of_a_million_differs),
        cmocka_unit_test(test_settings_of_some),
        cmocka_unit_test(test_density_by_caller),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_count_per_rank),
        cmocka_unit_test(test_density_per_rank),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_mixed_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
