/* test_exchange_conservation.c - nothing is lost: a ledger in integers, element by element
 *
 * Over all ranks, what was applied and what residuals keep must be what gradients gave, with every
 * scheme and every pair of selection and exchange; thresholds, which have no oracle, included.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_oracle.h"
#include "ranks.h"

/* What all ranks together were given and what was applied, in units of 2^-10. */
typedef struct ledger {
    int64_t n;
    int64_t *given;   /* [n] */
    int64_t *applied; /* [n] */
} ledger;

static void check_balance(const ledger *book, ranks *r) {
    float **residual = rows_alloc(r->nranks, book->n);
    ranks_get_residuals(r, 0, residual, book->n);
    for (int64_t i = 0; i < book->n; i++) {
        int64_t kept = 0;
        for (int rank = 0; rank < r->nranks; rank++)
            kept += check_units(residual[rank][i]);
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
            book->given[i] += check_units(grad[rank][i]);
    }
    ranks_allreduce(r, 0, (void *const *)grad, out);
    ranks_ok(r);
    for (int rank = 1; rank < r->nranks; rank++)
        check_bits("out of another rank", out[rank], out[0], book->n);
    for (int64_t i = 0; i < book->n; i++)
        book->applied[i] += check_units(out[0][i]);
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
    check_true(schemes >= 10);
}

static void test_pairs_conserve(void **state) {
    (void)state;
    for (int method = 0; method < check_methods(); method++)
        for (int e = 0; e < check_exchanges(); e++)
            for (int nranks = 2; nranks <= 5; nranks++) {
                tw_group_params params = ledger_params(40);
                char name[64];
                params.exchange = check_exchange(e);
                params.select.method = check_method(method);
                params.select.seed = (uint64_t)nranks;
                params.global = nranks % 2 ? TW_GLOBAL_REUSE : TW_GLOBAL_EXACT;
                snprintf(name, sizeof name, "%s + %s", params.select.method, check_exchange(e));
                run_ledger(&params, nranks, 1201, 16, name);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes_conserve),
        cmocka_unit_test(test_pairs_conserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
