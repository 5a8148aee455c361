/* test_exchange.c - every exchange against its oracle, bit by bit, for many P, n, k and supports
 *
 * Each trial runs P ranks for a few steps beside exchange_oracle: every rank's result, dense and
 * sparse, and every rank's residual must be those of the oracle, also on gaussian data, where the
 * order of summation shows. The methods that select by thresholds have no oracle; for them, and for
 * every scheme, a ledger in integers has to balance, element by element, over all ranks.
 *
 *     test_exchange [FILTER]     "test_small" is the part for ThreadSanitizer
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_oracle.h"
#include "ranks.h"

static const char *const exchanges[] = {"dense", "allgather", "dsa", "gtopk", "oktopk"};
enum { EXCHANGES = 5 };

/* ---- Trials ---------------------------------------------------------------------------------- */

typedef enum { OUT_APART, OUT_IN_PLACE, OUT_NONE, OUTS } out_mode;

typedef struct trial {
    const char *exchange;
    int nranks;
    int64_t n, k;
    int steps;
    int result;        /* tw_result */
    int type;          /* tw_type */
    out_mode mode;     /* where the result goes */
    int data;          /* oracle_data, or -1: support */
    support_kind kind; /* of large entries */
    int summable;      /* exactly; else gaussian */
    int quiet;         /* nothing but large entries */
    int shift;         /* bytes by which grad and out are misaligned */
    uint64_t seed;
} trial;

/* A trial under way. */
typedef struct scene {
    trial t;
    ranks r;
    exchange_oracle oracle;
    float **grad;    /* [nranks][n] as float32 */
    char **raw;      /* [nranks] what the library gets: type, shift */
    char **out;      /* [nranks] where the library writes */
    float *got;      /* [n] */
    void **grad_arg; /* [nranks] */
    float **out_arg; /* [nranks] or NULL */
} scene;

static char **bytes_alloc(int nranks, int64_t bytes) {
    char **rows = check_alloc(nranks, sizeof *rows);
    for (int rank = 0; rank < nranks; rank++)
        rows[rank] = check_alloc(bytes, 1);
    return rows;
}

static void bytes_free(char **rows, int nranks) {
    for (int rank = 0; rank < nranks; rank++)
        free(rows[rank]);
    free(rows);
}

static void scene_arguments(scene *s) {
    const int in_place = s->t.mode == OUT_IN_PLACE;
    for (int rank = 0; rank < s->t.nranks; rank++) {
        s->grad_arg[rank] = s->raw[rank] + s->t.shift;
        char *out = in_place ? s->raw[rank] : s->out[rank];
        s->out_arg[rank] = (float *)(void *)(out + s->t.shift);
    }
}

static void scene_open(scene *s, const trial *t) {
    memset(s, 0, sizeof *s);
    s->t = *t;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = strcmp(t->exchange, "dense") == 0 ? "dense" : "topka";
    params.exchange = t->exchange;
    params.select.method = "exact";
    params.select.k = t->k;
    params.select.type = t->type;
    params.select.threads = 1;
    params.result = t->result;
    ranks_open(&s->r, t->nranks, &params, &t->n, 1);
    exchange_oracle_open(&s->oracle, t->exchange, t->nranks, t->n, t->k, t->result);
    s->grad = rows_alloc(t->nranks, t->n);
    s->raw = bytes_alloc(t->nranks, t->n * oracle_type_size(t->type) + t->shift);
    s->out = bytes_alloc(t->nranks, t->n * 4 + t->shift);
    s->got = check_alloc(t->n, sizeof *s->got);
    s->grad_arg = check_alloc(t->nranks, sizeof *s->grad_arg);
    s->out_arg = check_alloc(t->nranks, sizeof *s->out_arg);
    scene_arguments(s);
}

static void scene_close(scene *s) {
    ranks_close(&s->r);
    exchange_oracle_close(&s->oracle);
    rows_free(s->grad);
    bytes_free(s->raw, s->t.nranks);
    bytes_free(s->out, s->t.nranks);
    free(s->got);
    free(s->grad_arg);
    free(s->out_arg);
}

static void scene_fill(scene *s, int step) {
    const trial *t = &s->t;
    const support where = {.kind = t->kind,
                           .nranks = t->nranks,
                           .n = t->n,
                           .k = t->k,
                           .seed = t->seed,
                           .summable = t->summable,
                           .noise = !t->quiet};
    for (int rank = 0; rank < t->nranks; rank++) {
        if (t->data >= 0)
            oracle_fill(s->grad[rank], t->n, (oracle_data)t->data,
                        t->seed * 100 + (uint64_t)(step * t->nranks + rank));
        else
            support_fill(&where, rank, step, s->grad[rank]);
        oracle_encode(s->grad_arg[rank], s->grad[rank], t->n, t->type);
        oracle_decode(s->grad[rank], s->grad_arg[rank], t->n, t->type);
        memset(s->out[rank], 0xff, (size_t)(t->n * 4 + t->shift));
    }
}

/* ---- What a step must leave behind ------------------------------------------------------------- */

static void check_out(scene *s, int rank) {
    if (s->t.mode == OUT_NONE)
        return;
    memcpy(s->got, s->out_arg[rank], (size_t)s->t.n * sizeof(float));
    check_bits("out", s->got, s->oracle.out, s->t.n);
}

static void check_result(scene *s, int rank) {
    tw_sparse sparse;
    if (strcmp(s->t.exchange, "dense") == 0) {
        check_error(tw_group_result(s->r.groups[rank], 0, &sparse), TW_ERR_STATE);
        return;
    }
    const oracle_entries *want = &s->oracle.applied;
    float *val = check_alloc(want->count + 1, sizeof *val);
    for (int64_t j = 0; j < want->count; j++)
        val[j] = s->oracle.out[want->idx[j]];
    check_ok(tw_group_result(s->r.groups[rank], 0, &sparse));
    check_selection(&sparse, want->count, want->idx, val);
    free(val);
}

static void check_step_info(scene *s, int rank, int step) {
    tw_step_info info;
    check_ok(tw_group_info(s->r.groups[rank], 0, &info));
    check_int("info.step", info.step, step + 1);
    check_int("info.tensors", info.tensors, 1);
    if (strcmp(info.exchange, s->oracle.used) != 0)
        check_fail("info.exchange is %s, expected %s", info.exchange, s->oracle.used);
    if (strcmp(s->t.exchange, "dense") == 0)
        return;
    check_int("info.k", info.k, s->t.k);
    check_int("info.applied", info.applied, s->oracle.applied.count);
    check_between("info.selected", info.selected, 0, s->t.k);
}

/* The gradient is the caller's; in place it has become the result. */
static void check_grad_untouched(scene *s, int rank) {
    if (s->t.mode == OUT_IN_PLACE)
        return;
    oracle_decode(s->got, s->grad_arg[rank], s->t.n, s->t.type);
    check_bits("grad", s->got, s->grad[rank], s->t.n);
}

static void scene_step(scene *s, int step) {
    scene_fill(s, step);
    exchange_oracle_step(&s->oracle, s->grad);
    ranks_allreduce(&s->r, 0, s->grad_arg, s->t.mode == OUT_NONE ? NULL : s->out_arg);
    ranks_ok(&s->r);
    for (int rank = 0; rank < s->t.nranks; rank++) {
        check_out(s, rank);
        check_result(s, rank);
        check_step_info(s, rank, step);
        check_grad_untouched(s, rank);
    }
    /* Not after every step: unread, the library leaves part of its work for the next pass. */
    if (step % 2 || step + 1 == s->t.steps)
        ranks_check_residuals(&s->r, 0, s->oracle.residual, s->t.n);
}

static void describe(const trial *t, int step) {
    check_scene("%s P=%d n=%lld k=%lld %s%s result=%d type=%d out=%d shift=%d seed=%d step=%d",
                t->exchange, t->nranks, (long long)t->n, (long long)t->k,
                t->data >= 0 ? oracle_data_name((oracle_data)t->data) : support_name(t->kind),
                t->summable ? " summable" : "", t->result, t->type, (int)t->mode, t->shift,
                (int)t->seed, step);
}

static void run_trial(const trial *t) {
    scene s;
    describe(t, -1);
    scene_open(&s, t);
    for (int step = 0; step < t->steps; step++) {
        describe(t, step);
        scene_step(&s, step);
    }
    scene_close(&s);
}

/* A usual trial; callers change what they are about. */
static trial usual(const char *exchange, int nranks) {
    return (trial){.exchange = exchange,
                   .nranks = nranks,
                   .n = 3001,
                   .k = 300,
                   .steps = 4,
                   .result = TW_SUM,
                   .data = -1,
                   .seed = (uint64_t)nranks};
}

static out_mode mode_for(const char *exchange, int number) {
    const out_mode mode = (out_mode)(number % OUTS);
    return mode == OUT_NONE && strcmp(exchange, "dense") == 0 ? OUT_APART : mode;
}

/* ---- Trials: ranks x exchanges x supports ------------------------------------------------------ */

static const support_kind five[] = {SUPPORT_RANDOM, SUPPORT_IDENTICAL, SUPPORT_DISJOINT,
                                    SUPPORT_REGION, SUPPORT_DRIFT};

static void try_all_supports(const int *counts, int ncounts, int steps) {
    for (int p = 0; p < ncounts; p++)
        for (int e = 0; e < EXCHANGES; e++)
            for (int kind = 0; kind < 5; kind++)
                for (int summable = 0; summable < 2; summable++) {
                    trial t = usual(exchanges[e], counts[p]);
                    t.kind = five[kind];
                    t.summable = summable;
                    t.steps = steps;
                    t.result = (kind + summable) % 2 ? TW_MEAN : TW_SUM;
                    t.mode = mode_for(t.exchange, p + kind + summable);
                    run_trial(&t);
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
    for (int e = 0; e < EXCHANGES; e++)
        for (int i = 0; i < 16; i++)
            for (int p = 0; p < 6; p++) {
                trial t = usual(exchanges[e], counts[p]);
                t.n = sizes[i][0];
                t.k = sizes[i][1];
                t.kind = (support_kind)(i % SUPPORT_KINDS);
                t.steps = t.n > 10000 ? 2 : 4;
                t.result = p % 2 ? TW_MEAN : TW_SUM;
                t.mode = mode_for(t.exchange, i + p);
                run_trial(&t);
            }
}

/* k around 8P, where oktopk takes over from gtopk, and every support that it might stumble over. */
static void test_edge_of_oktopk(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 6, 9};
    for (int p = 0; p < 6; p++)
        for (int more = -1; more <= 1; more++)
            for (int kind = 0; kind < SUPPORT_KINDS; kind++) {
                trial t = usual("oktopk", counts[p]);
                t.k = 8 * counts[p] + more;
                t.n = kind % 2 ? t.k + 1 : 40 * t.k;
                t.kind = (support_kind)kind;
                t.steps = 6;
                t.summable = more == 0;
                run_trial(&t);
            }
}

/* Clumps much narrower than what oktopk first divides the vector into. */
static void test_clumps(void **state) {
    (void)state;
    const support_kind kinds[] = {SUPPORT_START, SUPPORT_MIDDLE, SUPPORT_END, SUPPORT_NEEDLES,
                                  SUPPORT_CLUMPS};
    for (int p = 2; p <= 8; p += 3)
        for (int i = 0; i < 5; i++) {
            trial t = usual("oktopk", p);
            t.n = 60000 * p;
            t.k = 8 * p;
            t.kind = kinds[i];
            t.quiet = 1;
            t.summable = i % 2;
            run_trial(&t);
        }
}

/* A tensor larger than the windows and chunks in which the library works. */
static void test_large(void **state) {
    (void)state;
    for (int e = 0; e < EXCHANGES; e++)
        for (int i = 0; i < 3; i++) {
            trial t = usual(exchanges[e], 2 + i);
            t.n = 300007;
            t.k = i ? 40000 : 9000; /* oktopk cuts its messages from 32768 on */
            t.kind = i == 2 ? SUPPORT_REGION : SUPPORT_RANDOM;
            t.steps = 2;
            run_trial(&t);
        }
}

/* ---- Trials: data ------------------------------------------------------------------------------ */

/* Ties, zeros, tiny and huge numbers. */
static void test_kinds_of_data(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 4, 7};
    for (int e = 0; e < EXCHANGES; e++)
        for (int p = 0; p < 5; p++)
            for (int data = 0; data < DATA_KINDS; data++) {
                trial t = usual(exchanges[e], counts[p]);
                t.n = 803;
                t.k = 100;
                t.data = data;
                t.mode = mode_for(t.exchange, data);
                run_trial(&t);
            }
}

/* Small integers: sums tie and cancel all the time. */
static void test_ties(void **state) {
    (void)state;
    const int counts[] = {2, 3, 4, 5, 8};
    const int64_t ks[] = {1, 5, 40, 64, 90, 200};
    for (int e = 1; e < EXCHANGES; e++)
        for (int p = 0; p < 5; p++)
            for (int i = 0; i < 6; i++) {
                trial t = usual(exchanges[e], counts[p]);
                t.n = 211;
                t.k = ks[i];
                t.data = DATA_TIES;
                t.steps = 8;
                t.result = i % 2 ? TW_MEAN : TW_SUM;
                run_trial(&t);
            }
}

static void test_types(void **state) {
    (void)state;
    const int counts[] = {1, 3, 4};
    for (int e = 0; e < EXCHANGES; e++)
        for (int p = 0; p < 3; p++)
            for (int type = TW_F32; type <= TW_BF16; type++)
                for (int shift = 0; shift < 4; shift++) {
                    trial t = usual(exchanges[e], counts[p]);
                    t.type = type;
                    t.shift = shift;
                    t.mode = mode_for(t.exchange, shift);
                    if (type != TW_F32 && t.mode == OUT_IN_PLACE)
                        t.mode = OUT_APART;
                    t.summable = shift % 2;
                    run_trial(&t);
                }
}

/* ---- The ledger: schemes and threshold methods -------------------------------------------------- */

/* What all ranks together were given and what was applied, in units of 2^-10. */
typedef struct ledger {
    int64_t n;
    int64_t *given;   /* [n] */
    int64_t *applied; /* [n] */
} ledger;

static int64_t units(float x) {
    const double scaled = (double)x * 1024.0;
    if (scaled != floor(scaled))
        check_fail("%a is no multiple of 2^-10", (double)x);
    return (int64_t)scaled;
}

static void check_balance(const ledger *book, ranks *r) {
    float **residual = rows_alloc(r->nranks, book->n);
    ranks_get_residuals(r, 0, residual, book->n);
    for (int64_t i = 0; i < book->n; i++) {
        int64_t kept = 0;
        for (int rank = 0; rank < r->nranks; rank++)
            kept += units(residual[rank][i]);
        if (book->applied[i] + kept != book->given[i])
            check_fail("element %lld: applied %lld + residuals %lld, given %lld (units of 2^-10)",
                       (long long)i, (long long)book->applied[i], (long long)kept,
                       (long long)book->given[i]);
    }
    rows_free(residual);
}

/* One step: all ranks get the same, which goes into the book. */
static void ledger_step(ledger *book, ranks *r, const support *where, int step) {
    float **grad = rows_alloc(r->nranks, book->n), **out = rows_alloc(r->nranks, book->n);
    for (int rank = 0; rank < r->nranks; rank++) {
        support_fill(where, rank, step, grad[rank]);
        memset(out[rank], 0xff, (size_t)book->n * sizeof(float));
        for (int64_t i = 0; i < book->n; i++)
            book->given[i] += units(grad[rank][i]);
    }
    ranks_allreduce(r, 0, (void *const *)grad, out);
    ranks_ok(r);
    for (int rank = 1; rank < r->nranks; rank++)
        check_bits("out of another rank", out[rank], out[0], book->n);
    for (int64_t i = 0; i < book->n; i++)
        book->applied[i] += units(out[0][i]);
    rows_free(grad);
    rows_free(out);
}

static int64_t sum_of(const int64_t *x, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += llabs(x[i]);
    return sum;
}

static void run_ledger(const tw_group_params *params, int nranks, int64_t n, int steps,
                       const char *name) {
    ranks r;
    ledger book = {n, check_alloc(n, sizeof(int64_t)), check_alloc(n, sizeof(int64_t))};
    check_scene("%s P=%d n=%lld", name, nranks, (long long)n);
    ranks_open(&r, nranks, params, &n, 1);
    for (int step = 0; step < steps; step++) {
        const support where = {.kind = (support_kind)(step / 2 % SUPPORT_KINDS),
                               .nranks = nranks,
                               .n = n,
                               .k = params->select.k,
                               .seed = 7,
                               .summable = 1,
                               .noise = step % 2};
        check_scene("%s P=%d n=%lld step=%d", name, nranks, (long long)n, step);
        ledger_step(&book, &r, &where, step);
        if (step % 3 == 2 || step + 1 == steps)
            check_balance(&book, &r);
    }
    check_true(sum_of(book.applied, n) > 0);
    ranks_close(&r);
    free(book.given);
    free(book.applied);
}

static tw_group_params ledger_params(int64_t k) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.k = k;
    params.select.threads = 1;
    params.select.reuse_period = 5;
    params.result = TW_SUM;
    return params;
}

static void test_schemes_conserve(void **state) {
    (void)state;
    const int counts[] = {1, 2, 3, 5, 8};
    const char *scheme;
    int schemes = 0;
    for (; tw_scheme(schemes, &scheme, NULL, NULL, NULL) == TW_OK; schemes++)
        for (int p = 0; p < 5; p++)
            for (int reuse = 0; reuse < 2; reuse++) {
                tw_group_params params = ledger_params(66); /* 8P and more, for all counts */
                params.scheme = scheme;
                params.global = reuse ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
                run_ledger(&params, counts[p], 2003, 24, scheme);
            }
    check_true(schemes >= 8);
}

static void test_pairs_conserve(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        for (int e = 0; e < EXCHANGES; e++)
            for (int nranks = 2; nranks <= 5; nranks++) {
                tw_group_params params = ledger_params(40);
                char name[64];
                params.exchange = exchanges[e];
                params.select.method = check_method(method);
                params.select.seed = (uint64_t)nranks;
                params.global = nranks % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
                snprintf(name, sizeof name, "%s + %s", params.select.method, exchanges[e]);
                run_ledger(&params, nranks, 1201, 16, name);
            }
}

/* ---- Others ------------------------------------------------------------------------------------ */

/* The exchanges that are tested here are all there are. */
static void test_all_exchanges_are_here(void **state) {
    (void)state;
    const char *name;
    for (int i = 0; i < EXCHANGES; i++) {
        check_ok(tw_exchange(i, &name, NULL));
        int known = 0;
        for (int e = 0; e < EXCHANGES; e++)
            known += strcmp(name, exchanges[e]) == 0;
        check_scene("exchange %s", name);
        check_int("times that it is known", known, 1);
    }
    check_error(tw_exchange(EXCHANGES, &name, NULL), TW_ERR_NAME);
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
    const float dense[4] = {0.5f, 5, 3, -1.75f};
    const float none[3][4] = {{0}};
    check_paper("dense", dense, none);
}

/* The lone rank of tw_transport_self is like one of one thread. */
static void test_self(void **state) {
    (void)state;
    for (int e = 0; e < EXCHANGES; e++) {
        ranks r = {0};
        ranks_init(&r, 1);
        tw_transport_free(r.transports[0]);
        check_ok(tw_transport_self(&r.transports[0]));
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.exchange = exchanges[e];
        params.select.method = "exact";
        params.select.k = 20;
        const int64_t n = 500;
        ranks_try_open(&r, &params, &n, 1);
        ranks_ok(&r);
        exchange_oracle o;
        exchange_oracle_open(&o, exchanges[e], 1, n, 20, TW_MEAN);
        float **grad = rows_alloc(1, n);
        for (int step = 0; step < 5; step++) {
            check_scene("self, %s, step=%d", exchanges[e], step);
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_oracle),     cmocka_unit_test(test_all_exchanges_are_here),
        cmocka_unit_test(test_self),           cmocka_unit_test(test_small),
        cmocka_unit_test(test_few_ranks),      cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_edge_of_oktopk),
        cmocka_unit_test(test_clumps),         cmocka_unit_test(test_large),
        cmocka_unit_test(test_kinds_of_data),  cmocka_unit_test(test_ties),
        cmocka_unit_test(test_types),          cmocka_unit_test(test_schemes_conserve),
        cmocka_unit_test(test_pairs_conserve),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
