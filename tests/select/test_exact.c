/* test_exact.c - "exact" equals a full sort: same indices, same values, for every input
 *
 * The library guesses a threshold from the step before, collects what passes and picks among that.
 * So every run takes several steps under error feedback, and between them the data changes in ways
 * that make the guess wrong: a million times larger or smaller, all zero, all equal, sorted both
 * ways, everything large in one region. Sizes surround the widths of vectors, blocks and chunks.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- A selector and its oracle --------------------------------------------------------------- */

/* Both get the same gradients. After each step the selection must be the same, after some the
 * residual too. Not after each: reading it makes the library finish work that it otherwise leaves
 * for the next pass, and both orders are to be tested. */
typedef struct run {
    int64_t n, k;
    int type;     /* tw_type */
    int feedback; /* tw_feedback */
    int steps;    /* done so far */
    tw_selector *selector;
    char *memory;    /* the gradient as the library sees it, ends where its allocation ends */
    char *grad_raw;  /* memory + shift, [n] of type */
    float *grad;     /* [n] the same numbers as float32 */
    float *residual; /* [n] by the oracle */
    float *acc;      /* [n] by the oracle */
    float *scratch;  /* [n] */
    int32_t *idx;    /* [k] expected selection */
    float *val;      /* [k] */
} run;

/* params: method "exact" and k > 0. shift: bytes by which the gradient is misaligned. */
static void run_open(run *r, int64_t n, const tw_select_params *params, int shift) {
    memset(r, 0, sizeof *r);
    r->n = n;
    r->k = params->k;
    r->type = params->type;
    r->feedback = params->feedback;
    r->selector = check_create(n, params);
    r->memory = check_alloc(shift + n * oracle_type_size(r->type), 1);
    r->grad_raw = r->memory + shift;
    r->grad = check_alloc(n, sizeof(float));
    r->residual = check_alloc(n, sizeof(float));
    r->acc = check_alloc(n, sizeof(float));
    r->scratch = check_alloc(n, sizeof(float));
    r->idx = check_alloc(r->k, sizeof(int32_t));
    r->val = check_alloc(r->k, sizeof(float));
}

static void check_residual(run *r) {
    check_ok(tw_selector_get_residual(r->selector, r->scratch));
    check_bits("residual", r->scratch, r->residual, r->n);
}

/* Compares the residual a last time. */
static void run_close(run *r) {
    check_residual(r);
    tw_selector_free(r->selector);
    free(r->memory);
    free(r->grad);
    free(r->residual);
    free(r->acc);
    free(r->scratch);
    free(r->idx);
    free(r->val);
    memset(r, 0, sizeof *r);
}

/* Data of a kind, times scale, rounded to the type, into grad and grad_raw. */
static void run_fill(run *r, oracle_data kind, float scale, uint64_t seed) {
    oracle_fill(r->scratch, r->n, kind, seed);
    for (int64_t i = 0; i < r->n; i++)
        r->scratch[i] *= scale;
    oracle_encode(r->grad_raw, r->scratch, r->n, r->type);
    oracle_decode(r->grad, r->grad_raw, r->n, r->type);
}

/* What the oracle selects; returns the count. */
static int64_t expect(run *r) {
    for (int64_t i = 0; i < r->n; i++)
        r->acc[i] = r->feedback == TW_FEEDBACK_ON ? r->grad[i] + r->residual[i] : r->grad[i];
    const int64_t count = oracle_topk(r->acc, r->n, r->k, r->idx, r->val);
    if (r->feedback == TW_FEEDBACK_ON)
        memcpy(r->residual, r->acc, (size_t)r->n * sizeof *r->acc);
    for (int64_t j = 0; j < count; j++)
        r->residual[r->idx[j]] = 0.0f;
    return count;
}

static void check_info(const run *r, int64_t count) {
    uint32_t smallest = count ? UINT32_MAX : 0;
    for (int64_t j = 0; j < count; j++)
        if (oracle_magnitude(r->val[j]) < smallest)
            smallest = oracle_magnitude(r->val[j]);
    tw_select_info info;
    check_ok(tw_selector_info(r->selector, &info));
    check_int("info.k", info.k, r->k);
    check_int("info.count", info.count, count);
    check_int("info.bad_index", info.bad_index, -1);
    check_true(info.candidates >= count && info.rescans >= 0);
    check_float("info.threshold", info.threshold, oracle_float(smallest));
}

/* Runs grad_raw, compares, commits all; every third time compares the residual. */
static void run_step(run *r) {
    const int64_t count = expect(r);
    tw_sparse sparse;
    check_ok(tw_selector_run(r->selector, r->grad_raw, &sparse));
    check_selection(&sparse, count, r->idx, r->val);
    check_info(r, count);
    check_ok(tw_selector_commit(r->selector, NULL, 0));
    if (++r->steps % 3 == 0)
        check_residual(r);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

enum { NKS = 7, SAME = -1 };

/* The programme of steps: kind of data (SAME: the setup's) and factor. */
static const struct {
    int kind;
    float scale;
} programme[] = {
    {SAME, 1.0f},          {SAME, 1.0f},           {SAME, 1e6f},
    {SAME, 1.0f},          {SAME, 1e-6f},          {DATA_ZEROS, 1.0f},
    {DATA_CONSTANT, 1.0f}, {DATA_ASCENDING, 1.0f}, {DATA_DESCENDING, 1.0f},
    {DATA_REGION, 1e3f},   {SAME, 1.0f},
};
enum { NSTEPS = sizeof programme / sizeof programme[0] };

static const int thread_counts[] = {1, 2, 3, 7};
static const int shifts[] = {0, 1, 2, 3, 4, 20};

/* The k under test: 1, 2, n/100, n/10, n/2, n-1, n, each brought into 1 .. n. */
static int64_t nth_k(int64_t n, int position) {
    const int64_t ks[NKS] = {1, 2, n / 100, n / 10, n / 2, n - 1, n};
    const int64_t k = ks[position] < n ? ks[position] : n;
    return k < 1 ? 1 : k;
}

typedef struct setup {
    int64_t n, k;
    oracle_data kind;
    int type, feedback, threads, shift, steps;
} setup;

/* The first steps of the programme. */
static void run_setup(const setup *s) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = s->k;
    params.type = s->type;
    params.feedback = s->feedback;
    params.threads = s->threads;
    run r;
    check_scene("create n=%lld k=%lld", (long long)s->n, (long long)s->k);
    run_open(&r, s->n, &params, s->shift);
    for (int step = 0; step < s->steps; step++) {
        const int kind = programme[step].kind == SAME ? (int)s->kind : programme[step].kind;
        check_scene("n=%lld k=%lld data=%s x %g type=%d feedback=%d threads=%d shift=%d step=%d",
                    (long long)s->n, (long long)s->k, oracle_data_name((oracle_data)kind),
                    (double)programme[step].scale, s->type, s->feedback, s->threads, s->shift,
                    step);
        run_fill(&r, (oracle_data)kind, programme[step].scale, (uint64_t)(s->n * 31 + step));
        run_step(&r);
    }
    run_close(&r);
}

/* A setup for n and k. The rest rotates with `turn`, so that all values are used. */
static setup rotate(int64_t n, int64_t k, int turn) {
    const setup s = {
        .n = n,
        .k = k,
        .kind = (oracle_data)(turn % DATA_KINDS),
        .type = turn / 3 % 3,
        .threads = thread_counts[turn / 2 % 4],
        .shift = shifts[turn % 6],
        .steps = NSTEPS,
    };
    return s;
}

static void test_small_sizes(void **state) {
    (void)state;
    check_kernels_or_skip();
    int turn = 0;
    for (int64_t n = 1; n <= 300; n++)
        for (int which = 0; which < NKS; which++) {
            const setup s = rotate(n, nth_k(n, which), turn++);
            run_setup(&s);
        }
}

/* Every kind of data with every k and type, at a size that is a multiple of nothing. */
static void test_every_kind(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int kind = 0; kind < DATA_KINDS; kind++)
        for (int which = 0; which < NKS; which++)
            for (int type = TW_F32; type <= TW_BF16; type++) {
                setup s = rotate(331, nth_k(331, which), kind + which + type);
                s.kind = (oracle_data)kind;
                s.type = type;
                run_setup(&s);
                s.feedback = TW_FEEDBACK_OFF;
                run_setup(&s);
            }
}

static void test_around_blocks(void **state) {
    (void)state;
    check_kernels_or_skip();
    const int64_t blocks[] = {512, 1000, 2048, 4096, 3 * 4096, 16384, 65536};
    int turn = 0;
    for (int b = 0; b < 7; b++)
        for (int64_t n = blocks[b] - 1; n <= blocks[b] + 1; n++)
            for (int which = 0; which < NKS; which++) {
                setup s = rotate(n, nth_k(n, which), turn++);
                s.steps = n > 10000 ? 3 : NSTEPS;
                run_setup(&s);
            }
}

static void test_every_shift(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int64_t n = 250; n <= 267; n++)
        for (int shift = 0; shift < 6; shift++)
            for (int type = TW_F32; type <= TW_BF16; type++) {
                setup s = rotate(n, 25, shift);
                s.kind = DATA_GAUSS;
                s.shift = shifts[shift];
                s.type = type;
                s.steps = 3;
                run_setup(&s);
            }
}

/* Sizes that every thread gets a part of. The whole programme at 100003, fewer steps above. */
static void test_large_sizes(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int t = 0; t < 4; t++) {
        const oracle_data kinds[] = {DATA_GAUSS, DATA_POWER5, DATA_TIES, DATA_BITS};
        setup s = rotate(100003, nth_k(100003, 2 + t % 2), t);
        s.type = TW_F32;
        s.kind = kinds[t];
        s.threads = thread_counts[t];
        run_setup(&s);
    }
    const setup larger[] = {
        {.n = 262145, .k = 2621, .kind = DATA_LAPLACE, .threads = 2, .shift = 3, .steps = 5},
        {.n = 393217, .k = 393216, .kind = DATA_TIES, .threads = 7, .steps = 2},
        {.n = 524289, .k = 5, .kind = DATA_SPIKE, .type = TW_BF16, .threads = 3, .steps = 3},
        {.n = 1000003, .k = 1000, .kind = DATA_GAUSS, .threads = 3, .shift = 20, .steps = 3},
        {.n = 1048576, .k = 104858, .kind = DATA_GAUSS, .type = TW_F16, .threads = 2, .steps = 2},
        /* more than caches are expected to hold */
        {.n = 2097251, .k = 20972, .kind = DATA_GAUSS, .threads = 2, .shift = 3, .steps = 2},
    };
    for (int i = 0; i < 6; i++)
        run_setup(&larger[i]);
}

/* After a step of tiny values the learned threshold is far too low: everything passes, far more
 * than there is room for. Entries that are thrown out early must still be the smallest, and of equal
 * ones those with the larger index. */
static void test_floods(void **state) {
    (void)state;
    check_kernels_or_skip();
    const oracle_data kinds[] = {DATA_CONSTANT, DATA_TIES, DATA_ASCENDING, DATA_DESCENDING};
    const int64_t ks[] = {1, 3, 500};
    for (int kind = 0; kind < 4; kind++)
        for (int which = 0; which < 3; which++) {
            tw_select_params params = TW_SELECT_PARAMS_INIT;
            params.k = ks[which];
            params.threads = 1 + kind % 2;
            params.feedback = TW_FEEDBACK_OFF;
            run r;
            run_open(&r, 70001, &params, 0);
            for (int step = 0; step < 4; step++) {
                check_scene("flood of %s, k=%lld step=%d", oracle_data_name(kinds[kind]),
                            (long long)params.k, step);
                if (step % 2)
                    run_fill(&r, kinds[kind], 1.0f, 1);
                else
                    run_fill(&r, DATA_GAUSS, 1e-9f, 1);
                run_step(&r);
            }
            run_close(&r);
        }
}

/* The threshold is learned on one kind of data, then another kind comes: twenty steps of each. */
static void test_long_runs(void **state) {
    (void)state;
    check_kernels_or_skip();
    for (int threads = 1; threads <= 2; threads++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        params.k = 70;
        params.threads = threads;
        run r;
        run_open(&r, 7001, &params, 4);
        for (int step = 0; step < 60; step++) {
            const oracle_data kinds[] = {DATA_GAUSS, DATA_SUMMABLE, DATA_POWER5};
            check_scene("long run, threads=%d step=%d", threads, step);
            run_fill(&r, kinds[step / 20], 1.0f, (uint64_t)step);
            run_step(&r);
        }
        run_close(&r);
    }
}

/* Magnitudes that grow by 5 % a step, and then no more. Growth is foreseen: few more than k entries are
 * candidates. The end of it may cost another read, never exactness. */
static void test_growth(void **state) {
    (void)state;
    enum { GROWING = 24, CALM = 4 };
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    float scale = 1.0f;
    run r;
    params.k = 2000;
    run_open(&r, 200000, &params, 0);
    for (int step = 0; step < GROWING + CALM; step++) {
        tw_select_info info;
        check_scene("growth, step=%d", step);
        run_fill(&r, DATA_GAUSS, scale, (uint64_t)step);
        run_step(&r);
        check_ok(tw_selector_info(r.selector, &info));
        if (step >= GROWING / 2 && step < GROWING) {
            check_int("rescans", info.rescans, 0);
            check_between("candidates", info.candidates, info.k, 2 * info.k);
        }
        scale *= step < GROWING ? 1.05f : 1.0f;
    }
    run_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_sizes),   cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_around_blocks), cmocka_unit_test(test_every_shift),
        cmocka_unit_test(test_large_sizes),   cmocka_unit_test(test_floods),
        cmocka_unit_test(test_long_runs),     cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
