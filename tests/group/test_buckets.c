/* test_buckets.c - tensors in the background: buckets and orders change no result
 *
 * A hundred tensors of very different sizes on four ranks. A reference group sums them one by one
 * with tw_allreduce. Other groups start them in random orders, different on every rank, with
 * buckets of all sizes. They must get the same bits: results, residuals, sparse results.
 *
 *     test_buckets [FILTER]      "test_small*" is the part for ThreadSanitizer
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "workload.h"

/* Both get the same gradients; `tried` in the background, in any order. */
static void compare_workloads(workload *tried, workload *reference, const char *what, int steps) {
    oracle_rng rng = {.key = 11};
    for (int step = 0; step < steps; step++) {
        workload_gradients_fill(reference->grads, reference->sizes, reference->tensors, step);
        ranks_run(&reference->r, step_one_by_one, reference);
        ranks_ok(&reference->r);
        workload_shuffle(tried, &rng);
        ranks_run(&tried->r, step_in_background, tried);
        ranks_ok(&tried->r);
        workload_same(tried, reference, what, step);
    }
}

/* A workload with this bucket size against one with a bucket per tensor. */
static void compare_buckets(const char *scheme, int global, int64_t bucket, int tensors,
                            int64_t largest, int steps) {
    int64_t sizes[MANY];
    char what[64];
    workload reference, tried;
    workload_sizes(sizes, tensors, largest);
    snprintf(what, sizeof what, "%s global=%d bucket=%lld", scheme, global, (long long)bucket);
    check_scene("%s", what);
    float ***grads = workload_gradients(sizes, tensors);
    tw_group_params alone = workload_params(scheme, 1), params = workload_params(scheme, bucket);
    alone.global = params.global = global;
    workload_open(&reference, &alone, sizes, tensors, grads);
    workload_open(&tried, &params, sizes, tensors, grads);
    compare_workloads(&tried, &reference, what, steps);
    workload_close(&reference);
    workload_close(&tried);
    workload_gradients_free(grads, tensors);
}

/* ---- Any order, any bucket ------------------------------------------------------------------- */

static void test_orders(void **state) {
    (void)state;
    const int64_t buckets[] = {1, 1000, 0, INT32_MAX};
    for (int i = 0; i < 4; i++)
        compare_buckets("oktopk", TW_GLOBAL_EXACT, buckets[i], MANY, 1000000, 3);
}

static void test_schemes(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        for (int bucket = 0; bucket < 2 && strcmp(scheme, "auto") != 0; bucket++)
            compare_buckets(scheme, TW_GLOBAL_EXACT, bucket ? 5000 : 0, 30, 20000, 4);
}

/* A tensor's reused threshold does not depend on the other tensors of its bucket. */
static void test_global_reuse(void **state) {
    (void)state;
    compare_buckets("oktopk", TW_GLOBAL_REUSE, 0, 20, 200000, 10);
    compare_buckets("oktopk", TW_GLOBAL_REUSE, 20000, 20, 200000, 10);
}

/* ---- Tensors that differ --------------------------------------------------------------------- */

typedef struct mixture {
    tw_group_params params;
    const int64_t *sizes;
} mixture;

/* Every second tensor has no feedback. */
static int open_mixture(ranks *r, int rank, void *context) {
    const mixture *m = context;
    tw_select_params select = m->params.select;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &m->params);
    for (int i = 0; i < FEW && !error; i++) {
        select.feedback = i % 2 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
        error = tw_group_add(r->groups[rank], m->sizes[i], &select, NULL);
    }
    return error ? error : tw_group_open(r->groups[rank]);
}

static void compare_mixtures(const char *scheme) {
    int64_t sizes[FEW];
    workload reference, tried;
    workload_sizes(sizes, FEW, 20000);
    float ***grads = workload_gradients(sizes, FEW);
    mixture alone = {workload_params(scheme, 1), sizes}, all = {workload_params(scheme, 0), sizes};
    alone.params.select.density = all.params.select.density =
        0.2; /* k >= 8P: oktopk keeps its own exchange */
    check_scene("%s", scheme);
    workload_prepare(&reference, sizes, FEW, grads);
    ranks_run(&reference.r, open_mixture, &alone);
    ranks_ok(&reference.r);
    workload_prepare(&tried, sizes, FEW, grads);
    ranks_run(&tried.r, open_mixture, &all);
    ranks_ok(&tried.r);
    compare_workloads(&tried, &reference, scheme, 4);
    workload_close(&reference);
    workload_close(&tried);
    workload_gradients_free(grads, FEW);
}

static void test_some_without_feedback(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        if (strcmp(scheme, "auto") != 0)
            compare_mixtures(scheme);
}

/* ---- Selections of one pass that have little in common --------------------------------------- */

enum { VARIOUS = 24 };

/* Some tensors are one thread's work, some are cut between threads, into 2 chunks; where not all are
 * small, into 3 or 5 too. */
static void various_sizes(int64_t *sizes, int all_small) {
    for (int i = 0; i < VARIOUS; i++)
        sizes[i] = i % 5 == 0   ? (all_small ? 65537 : 150000 * (1 + i % 2)) + i
                   : i % 5 == 1 ? 65536
                   : i % 5 == 2 ? 131072 - i
                                : 1 + 37 * i;
}

static int is_half(int tensor) {
    return tensor % 3 == 1;
}

/* Every method, type of gradients and what comes before selection; three threads, for some one. */
static int open_various(ranks *r, int rank, void *context) {
    const mixture *m = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &m->params);
    for (int i = 0; i < VARIOUS && !error; i++) {
        tw_select_params select = m->params.select;
        select.method = check_method(i % check_methods());
        select.type = is_half(i) ? TW_BF16 : TW_F32;
        select.threads = i % 11 == 10 ? 1 : 3;
        select.feedback = i % 4 == 3 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
        select.momentum = i % 8 == 2 ? 0.9f : 0.0f;
        select.clip_norm = i % 6 == 4 ? 2.5f : 0.0f;
        select.density = i % 2 == 0 ? 0.02 : 0.2;
        error = tw_group_add(r->groups[rank], m->sizes[i], &select, NULL);
    }
    return error ? error : tw_group_open(r->groups[rank]);
}

/* The upper halves of floats, in their place. */
static void halve(float *grad, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &grad[i], sizeof bits);
        const uint16_t upper = (uint16_t)(bits >> 16);
        memcpy((uint16_t *)grad + i, &upper, sizeof upper);
    }
}

static void fill_various(float ***grads, const int64_t *sizes, int step) {
    workload_gradients_fill(grads, sizes, VARIOUS, step);
    for (int i = 0; i < VARIOUS; i++)
        for (int rank = 0; rank < RANKS && is_half(i); rank++)
            halve(grads[i][rank], sizes[i]);
}

static void open_workload(workload *w, ranks_call call, mixture *m, int64_t *sizes,
                          float ***grads) {
    workload_prepare(w, sizes, VARIOUS, grads);
    ranks_run(&w->r, call, m);
    ranks_ok(&w->r);
}

static void compare_various(int all_small) {
    int64_t sizes[VARIOUS];
    workload reference, tried;
    oracle_rng rng = {.key = 12};
    various_sizes(sizes, all_small);
    float ***grads = workload_gradients(sizes, VARIOUS);
    mixture alone = {workload_params("topka", 1), sizes};
    mixture all = {workload_params("topka", INT32_MAX), sizes};
    check_scene("various tensors, all small: %d", all_small);
    open_workload(&reference, open_various, &alone, sizes, grads);
    open_workload(&tried, open_various, &all, sizes, grads);
    for (int step = 0; step < 3; step++) {
        fill_various(grads, sizes, step);
        workload_shuffle(&tried, &rng);
        ranks_run(&reference.r, step_one_by_one, &reference);
        ranks_ok(&reference.r);
        ranks_run(&tried.r, step_in_background, &tried);
        ranks_ok(&tried.r);
        workload_same(&tried, &reference, "various tensors", step);
    }
    workload_close(&reference);
    workload_close(&tried);
    workload_gradients_free(grads, VARIOUS);
}

static void test_small_various(void **state) {
    (void)state;
    compare_various(0);
}

/* No tensor has as many chunks as threads were asked for, but all together have. */
static void test_small_all(void **state) {
    (void)state;
    compare_various(1);
}

/* Asks for the traffic while the thread of the background counts it. */
static int ask_meanwhile(ranks *r, int rank, void *context) {
    tw_traffic begin, now;
    int error = tw_transport_info(r->transports[rank], NULL, NULL, NULL, &begin);
    if (error == TW_OK)
        error = workload_start(context, rank);
    do
        (void)tw_transport_info(r->transports[rank], NULL, NULL, NULL, &now);
    while (error == TW_OK && now.messages_sent < begin.messages_sent + 20);
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void watch_traffic(void) {
    int64_t sizes[12];
    workload_sizes(sizes, 12, 3000);
    float ***grads = workload_gradients(sizes, 12);
    tw_group_params params = workload_params("oktopk", 500);
    workload w;
    oracle_rng rng = {.key = 5};
    check_scene("traffic of steps in progress");
    workload_open(&w, &params, sizes, 12, grads);
    workload_gradients_fill(grads, sizes, 12, 0);
    workload_shuffle(&w, &rng);
    ranks_run(&w.r, ask_meanwhile, &w);
    ranks_ok(&w.r);
    workload_close(&w);
    workload_gradients_free(grads, 12);
}

static void test_small(void **state) {
    (void)state;
    watch_traffic();
    compare_buckets("oktopk", TW_GLOBAL_EXACT, 0, 12, 3000, 3);
    compare_buckets("gtopk", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
    compare_buckets("logtopk", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
    compare_buckets("dense", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
}

/* A bucket takes tensors in order, up to `bucket` elements, at least one. */
static void test_buckets_are_filled(void **state) {
    (void)state;
    int64_t sizes[7] = {400, 600, 1, 2000, 300, 300, 300};
    const int in_bucket[7] = {2, 2, 1, 1, 3, 3, 3};
    const tw_group_params params = workload_params("oktopk", 1000);
    workload w;
    oracle_rng rng = {.key = 1};
    float ***grads = workload_gradients(sizes, 7);
    workload_open(&w, &params, sizes, 7, grads);
    workload_gradients_fill(grads, sizes, 7, 0);
    workload_shuffle(&w, &rng);
    ranks_run(&w.r, step_in_background, &w);
    ranks_ok(&w.r);
    for (int i = 0; i < 7; i++) {
        tw_step_info info;
        check_scene("tensor %d", i);
        check_ok(tw_group_info(w.r.groups[1], i, &info));
        check_int("tensors in its bucket", info.tensors, in_bucket[i]);
    }
    workload_close(&w);
    workload_gradients_free(grads, 7);
}

/* ---- Waits ----------------------------------------------------------------------------------- */

static void test_waits(void **state) {
    (void)state;
    const int orders[][FEW + 1] = {{8, 7, 6, 5, 4, 3, 2, 1, 0, TW_ALL},
                                   {4, 0, 8, 1, 7, 2, 6, 3, 5, TW_ALL},
                                   {3, TW_ALL},
                                   {0, 3, 6, TW_ALL}};
    comparison c;
    oracle_rng rng = {.key = 3};
    comparison_open(&c, "oktopk");
    for (int i = 0; i < 4; i++) {
        check_scene("order of waits %d", i);
        workload_gradients_fill(c.grads, c.sizes, FEW, i);
        memcpy(c.tried.waits, orders[i], sizeof orders[i]);
        workload_shuffle(&c.tried, &rng);
        reference_step(&c);
        ranks_run(&c.tried.r, step_in_background, &c.tried);
        ranks_ok(&c.tried.r);
        workload_same(&c.tried, &c.reference, "odd waits", i);
    }
    comparison_close(&c);
}

/* Some tensors only, some of them twice; a wait sends a part of a bucket. */
static int some_only(ranks *r, int rank, void *context) {
    workload *w = context;
    static const int parts[][2] = {{4, 4}, {0, 2}, {8, 5}, {4, 4}, {7, 6}, {1, 3}};
    int error = TW_OK;
    for (int p = 0; p < 6 && !error; p++) {
        for (int j = 0; j < 2 && !error; j++) {
            const int i = parts[p][j];
            if (j == 0 || i != parts[p][0])
                error = tw_allreduce_start(r->groups[rank], i, w->grads[i][rank], w->outs[i][rank]);
        }
        if (!error)
            error = tw_allreduce_wait(r->groups[rank], p % 2 ? TW_ALL : parts[p][0]);
        if (!error && p % 2 == 0 && parts[p][1] != parts[p][0])
            error = tw_allreduce_wait(r->groups[rank], parts[p][1]);
    }
    return error;
}

static int some_one_by_one(ranks *r, int rank, void *context) {
    workload *w = context;
    static const int order[] = {4, 0, 2, 8, 5, 4, 7, 6, 1, 3};
    int error = TW_OK;
    for (int j = 0; j < 10 && !error; j++)
        error = tw_allreduce(r->groups[rank], order[j], w->grads[order[j]][rank],
                             w->outs[order[j]][rank]);
    return error;
}

static void test_some_of_them(void **state) {
    (void)state;
    comparison c;
    comparison_open(&c, "oktopk");
    check_scene("some of the tensors");
    ranks_run(&c.tried.r, some_only, &c.tried);
    ranks_ok(&c.tried.r);
    ranks_run(&c.reference.r, some_one_by_one, &c.reference);
    ranks_ok(&c.reference.r);
    workload_same(&c.tried, &c.reference, "some", 0);
    comparison_close(&c);
}

/* tw_allreduce and the background in turn on one group. */
static int mixed(ranks *r, int rank, void *context) {
    workload *w = context;
    const int error = step_in_background(r, rank, context);
    return error ? error : step_one_by_one(r, rank, w);
}

static void test_mixed_with_foreground(void **state) {
    (void)state;
    comparison c;
    comparison_open(&c, "gtopk");
    check_scene("background and foreground in turn");
    for (int round = 0; round < 3; round++) {
        ranks_run(&c.tried.r, mixed, &c.tried);
        ranks_ok(&c.tried.r);
        reference_step(&c);
        reference_step(&c);
        workload_same(&c.tried, &c.reference, "mixed", round);
    }
    comparison_close(&c);
}

/* ---- Who runs a step ------------------------------------------------------------------------- */

static double cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* CPU time of this thread in a step of n elements. */
static double cpu_of_step(tw_group *group, int background, const float *grad, float *out) {
    const double begin = cpu_seconds();
    if (background) {
        check_ok(tw_allreduce_start(group, 0, grad, out));
        check_ok(tw_allreduce_wait(group, 0));
    } else {
        check_ok(tw_allreduce(group, 0, grad, out));
    }
    return cpu_seconds() - begin;
}

/* A wait right after the start finds the other thread asleep, in some of many steps at least. */
static void test_waiter_runs_steps(void **state) {
    (void)state;
    enum { N = 1 << 18, STEPS = 100 };
    tw_transport *transport;
    tw_group *group;
    tw_group_params params = workload_params("topka", 0);
    float *grad = check_alloc(N, sizeof *grad), *out = check_alloc(N, sizeof *out);
    oracle_fill(grad, N, DATA_GAUSS, 7);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_open(group));
    double called = cpu_of_step(group, 0, grad, out), most = 0.0;
    for (int step = 0; step < STEPS; step++) {
        const double called_now = cpu_of_step(group, 0, grad, out);
        const double waited = cpu_of_step(group, 1, grad, out);
        called = called_now < called ? called_now : called;
        most = waited > most ? waited : most;
    }
    print_message("CPU time of a call %.0f us, of start and wait up to %.0f us\n", 1e6 * called,
                  1e6 * most);
    assert_true(most > 0.8 * called);
    tw_group_free(group);
    tw_transport_free(transport);
    free(grad);
    free(out);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_global_reuse),
        cmocka_unit_test(test_some_without_feedback),
        cmocka_unit_test(test_small_various),
        cmocka_unit_test(test_small_all),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_buckets_are_filled),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_some_of_them),
        cmocka_unit_test(test_mixed_with_foreground),
        cmocka_unit_test(test_waiter_runs_steps),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
