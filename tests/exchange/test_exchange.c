/* test_exchange.c - every exchange against its oracle, bit by bit, for many P, n, k and supports
 *
 * exchange_check.h runs P ranks and the oracle for a few steps, also on gaussian data, where the order
 * of summation shows. The oracle itself is checked against an example on paper.
 *
 *     test_exchange [FILTER]     "test_small" is the part for ThreadSanitizer
 */
#include <math.h>
#include <string.h>

#include "exchange_check.h"

/* ---- The oracle and its names ------------------------------------------------------------------ */

/* Every exchange of the library has a name of its own, and an oracle. */
static void test_every_exchange_has_an_oracle(void **state) {
    (void)state;
    const int exchanges = check_exchanges();
    for (int i = 0; i < exchanges; i++) {
        int times = 0;
        for (int e = 0; e < exchanges; e++)
            times += strcmp(check_exchange(i), check_exchange(e)) == 0;
        check_scene("exchange %s", check_exchange(i));
        check_int("times that the table has it", times, 1);
        check_int("known to the oracle", exchange_oracle_knows(check_exchange(i)), 1);
    }
    check_error(tw_exchange(exchanges, NULL, NULL), TW_ERR_NAME);
}

/* The oracle itself, on numbers that can be followed on paper. P = 3, k = 2:
 *
 *     rank 0 selects [0]=5 [1]=4;  rank 1 [0]=-5 [2]=3;  rank 2 [1]=1 [3]=-2, and keeps [0]=0.5
 */
static void paper_example(exchange_oracle *o, const char *exchange) {
    float rows[3][4] = {{5, 4, 0, 0.25f}, {-5, 0, 3, 0}, {0.5f, 1, 0, -2}};
    float *grads[3] = {rows[0], rows[1], rows[2]};
    exchange_oracle_open(o, exchange, 3, 4, 2, TW_SUM);
    o->oktopk_from = 0;
    exchange_oracle_step(o, grads);
}

static void check_paper(const char *exchange, const float out[4], const float left[3][4]) {
    exchange_oracle o;
    check_scene("worked example, %s", exchange);
    paper_example(&o, exchange);
    check_bits("out", o.out, out, 4);
    for (int rank = 0; rank < 3; rank++)
        check_bits("residual", o.residual[rank], left[rank], 4);
    exchange_oracle_close(&o);
}

static void test_the_oracle(void **state) {
    (void)state;
    const float all[4] = {0, 5, 3, -2};
    const float left_all[3][4] = {{0, 0, 0, 0.25f}, {0, 0, 0, 0}, {0.5f, 0, 0, 0}};
    check_paper("allgather", all, left_all);
    check_paper("dsa", all, left_all);
    /* The sum at 0 is zero and -2 is third: both stay where they were. */
    const float best[4] = {0, 5, 3, 0};
    const float left_best[3][4] = {{5, 0, 0, 0.25f}, {-5, 0, 0, 0}, {0.5f, 0, 0, -2}};
    check_paper("oktopk", best, left_best);
    /* Rank 0 merges [1]=4 [2]=3, then [1]=5 [2]=3 and drops [3]=-2 to its own residual. */
    const float left_tree[3][4] = {{0, 0, 0, -1.75f}, {0, 0, 0, 0}, {0.5f, 0, 0, 0}};
    check_paper("gtopk", best, left_tree);
    /* Rank 2 sums elements 2 and 3, and keeps the -2. */
    const float left_there[3][4] = {{0, 0, 0, 0.25f}, {0, 0, 0, 0}, {0.5f, 0, 0, -2}};
    check_paper("butterfly", best, left_there);
    const float dense[4] = {0.5f, 5, 3, -1.75f};
    const float none[3][4] = {{0}};
    check_paper("dense", dense, none);
}

/* The lone rank of tw_transport_self is like one of one thread. */
static void test_self(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        ranks r = {0};
        ranks_init(&r, 1);
        tw_transport_free(r.transports[0]);
        check_ok(tw_transport_self(&r.transports[0]));
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.exchange = check_exchange(e);
        params.select.method = "exact";
        params.select.k = 20;
        const int64_t n = 500;
        ranks_try_open(&r, &params, &n, 1);
        ranks_ok(&r);
        exchange_oracle o;
        exchange_oracle_open(&o, check_exchange(e), 1, n, 20, TW_MEAN);
        float **grad = rows_alloc(1, n);
        for (int step = 0; step < 5; step++) {
            check_scene("self, %s, step=%d", check_exchange(e), step);
            oracle_fill(grad[0], n, DATA_LAPLACE, (uint64_t)step);
            exchange_oracle_step(&o, grad);
            ranks_allreduce(&r, 0, (void *const *)grad, grad);
            ranks_ok(&r);
            check_bits("out", grad[0], o.out, n);
            ranks_check_residuals(&r, 0, o.residual, n);
        }
        rows_free(grad);
        exchange_oracle_close(&o);
        ranks_close(&r);
    }
}

/* The magnitudes of the result, added up. */
static double applied_sum(const char *exchange, support_kind kind, int nranks, int64_t n) {
    exchange_oracle o;
    const support where = {.kind = kind, .nranks = nranks, .n = n, .k = n / 100, .seed = 3};
    float **grads = rows_alloc(nranks, n);
    double sum = 0;
    for (int r = 0; r < nranks; r++)
        support_fill(&where, r, 0, grads[r]);
    exchange_oracle_open(&o, exchange, nranks, n, n / 100, TW_SUM);
    exchange_oracle_step(&o, grads);
    for (int64_t j = 0; j < o.applied.count; j++)
        sum += fabs((double)o.applied.val[j]);
    exchange_oracle_close(&o);
    rows_free(grads);
    return sum;
}

/* butterfly asks nobody where entries lie, and yet finds nearly all that oktopk finds. */
static void test_butterfly_finds_the_largest(void **state) {
    (void)state;
    for (int nranks = 8; nranks <= 32; nranks *= 2)
        for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
            const double best = applied_sum("oktopk", (support_kind)kind, nranks, 50000);
            const double found = applied_sum("butterfly", (support_kind)kind, nranks, 50000);
            check_scene("P=%d %s: %g of %g", nranks, support_name((support_kind)kind), found, best);
            check_true(found > 0.99 * best);
        }
}

/* ---- Trials: ranks x exchanges x supports ------------------------------------------------------ */

static const support_kind five[] = {SUPPORT_RANDOM, SUPPORT_IDENTICAL, SUPPORT_DISJOINT,
                                    SUPPORT_REGION, SUPPORT_DRIFT};

static void try_all_supports(const int *counts, int ncounts, int steps) {
    for (int p = 0; p < ncounts; p++)
        for (int e = 0; e < check_exchanges(); e++)
            for (int kind = 0; kind < 5; kind++)
                for (int summable = 0; summable < 2; summable++) {
                    exchange_case t = exchange_case_default(check_exchange(e), counts[p]);
                    t.kind = five[kind];
                    t.summable = summable;
                    t.steps = steps;
                    t.result = (kind + summable) % 2 ? TW_MEAN : TW_SUM;
                    t.mode = exchange_case_out(t.exchange, p + kind + summable);
                    exchange_check(&t);
                }
}

static void test_few_ranks(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 5, 7, 8};
    try_all_supports(counts, 7, 5);
}

static void test_many_ranks(void **state) {
    (void)state;
    const int counts[] = {13, 16, 32};
    try_all_supports(counts, 3, 3);
}

/* The part that ThreadSanitizer runs: it makes a step 20 times slower. */
static void test_small(void **state) {
    (void)state;
    const int counts[] = {4};
    try_all_supports(counts, 1, 2);
}

/* ---- Trials: sizes ----------------------------------------------------------------------------- */

static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},       {2, 1},      {2, 2},       {3, 2},
                                       {7, 7},       {31, 5},     {33, 33},     {100, 1},
                                       {1000, 1000}, {1000, 999}, {1000, 64},   {4099, 1024},
                                       {16384, 65},  {16385, 72}, {50021, 500}, {50021, 3000}};
    const int counts[] = {1, 2, 3, 5, 8, 13};
    for (int e = 0; e < check_exchanges(); e++)
        for (int i = 0; i < 16; i++)
            for (int p = 0; p < 6; p++) {
                exchange_case t = exchange_case_default(check_exchange(e), counts[p]);
                t.n = sizes[i][0];
                t.k = sizes[i][1];
                t.kind = (support_kind)(i % SUPPORT_KINDS);
                t.steps = t.n > 10000 ? 2 : 4;
                t.result = p % 2 ? TW_MEAN : TW_SUM;
                t.mode = exchange_case_out(t.exchange, i + p);
                exchange_check(&t);
            }
}

/* k around 8P, where oktopk takes over from butterfly, and every support that it might stumble over. */
static void test_edge_of_oktopk(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 6, 9};
    for (int p = 0; p < 6; p++)
        for (int more = -1; more <= 1; more++)
            for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
                exchange_case t = exchange_case_default("oktopk", counts[p]);
                t.k = 8 * counts[p] + more;
                t.n = kind % 2 ? t.k + 1 : 40 * t.k;
                t.kind = (support_kind)kind;
                t.steps = 6;
                t.summable = more == 0;
                exchange_check(&t);
            }
}

/* Clumps much narrower than what oktopk first divides the vector into. */
static void test_clumps(void **state) {
    (void)state;
    const support_kind kinds[] = {SUPPORT_START, SUPPORT_MIDDLE, SUPPORT_END, SUPPORT_NEEDLES,
                                  SUPPORT_CLUMPS};
    for (int p = 2; p <= 8; p += 3)
        for (int i = 0; i < 5; i++) {
            exchange_case t = exchange_case_default("oktopk", p);
            t.n = 60000 * p;
            t.k = 8 * p;
            t.kind = kinds[i];
            t.quiet = 1;
            t.summable = i % 2;
            exchange_check(&t);
        }
}

/* A tensor larger than the windows and chunks in which the library works. */
static void test_large(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++)
        for (int i = 0; i < 5; i++) {
            /* oktopk cuts its messages from 32768 on; allgather and dsa hand them round from 131072,
             * but not where there is nobody to hand them to */
            const int64_t ks[] = {9000, 40000, 40000, 131072, 131072};
            const int counts[] = {2, 3, 4, 5, 1};
            exchange_case t = exchange_case_default(check_exchange(e), counts[i]);
            t.n = 300007;
            t.k = ks[i];
            t.kind = i == 2 ? SUPPORT_REGION : SUPPORT_RANDOM;
            t.steps = 2;
            exchange_check(&t);
        }
}

/* ---- Trials: data ------------------------------------------------------------------------------ */

/* Ties, zeros, tiny and huge numbers. */
/* oktopk looks for its threshold near that of the step before. */
static void test_jumps(void **state) {
    (void)state;
    const int jumps[] = {1, 4, 20};
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
            exchange_case t = exchange_case_default("oktopk", 4);
            t.n = 3000;
            t.k = 100;
            t.steps = 7;
            t.kind = (support_kind)kind;
            t.jump = jumps[i];
            exchange_check(&t);
        }
}

static void test_kinds_of_data(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 7};
    for (int e = 0; e < check_exchanges(); e++)
        for (int p = 0; p < 5; p++)
            for (int data = 0; data < DATA_KINDS; data++) {
                exchange_case t = exchange_case_default(check_exchange(e), counts[p]);
                t.n = 803;
                t.k = 100;
                t.data = data;
                t.mode = exchange_case_out(t.exchange, data);
                exchange_check(&t);
            }
}

/* Small integers: sums tie and cancel all the time. */
static void test_ties(void **state) {
    (void)state;
    const int counts[] = {2, 3, 4, 5, 8};
    const int64_t ks[] = {1, 5, 40, 64, 90, 200};
    for (int e = 1; e < check_exchanges(); e++)
        for (int p = 0; p < 5; p++)
            for (int i = 0; i < 6; i++) {
                exchange_case t = exchange_case_default(check_exchange(e), counts[p]);
                t.n = 211;
                t.k = ks[i];
                t.data = DATA_TIES;
                t.steps = 8;
                t.result = i % 2 ? TW_MEAN : TW_SUM;
                exchange_check(&t);
            }
}

static void test_types(void **state) {
    (void)state;
    const int counts[] = {1, 3, 4};
    for (int e = 0; e < check_exchanges(); e++)
        for (int p = 0; p < 3; p++)
            for (int type = TW_F32; type <= TW_BF16; type++)
                for (int shift = 0; shift < 4; shift++) {
                    exchange_case t = exchange_case_default(check_exchange(e), counts[p]);
                    t.type = type;
                    t.shift = shift;
                    t.mode = exchange_case_out(t.exchange, shift);
                    if (type != TW_F32 && t.mode == OUT_IN_PLACE)
                        t.mode = OUT_APART;
                    t.summable = shift % 2;
                    exchange_check(&t);
                }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_oracle),
        cmocka_unit_test(test_every_exchange_has_an_oracle),
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_few_ranks),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_edge_of_oktopk),
        cmocka_unit_test(test_clumps),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_jumps),
        cmocka_unit_test(test_kinds_of_data),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_butterfly_finds_the_largest),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
