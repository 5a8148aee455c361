/* test_group_wire.c - groups with compact wire formats lose nothing, agree, and send fewer bytes
 *
 * The sender rounds values, and the rank that holds a sum rounds it; both keep the remainder in
 * their residual. So gradients = applied + residuals, exactly where remainders are exact (f32, f16
 * and bf16 on summable data), and up to rounding for the levels of q8, q4 and q2.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { STEPS = 5 };

static int is_exact(const char *wire) {
    return wire[0] != 'q';
}

typedef struct ledger {
    int64_t n;
    double *given, *applied; /* [n] over all steps */
} ledger;

static ledger ledger_open(int64_t n) {
    ledger b = {n, check_alloc(n, sizeof(double)), check_alloc(n, sizeof(double))};
    memset(b.given, 0, sizeof(double) * (size_t)n);
    memset(b.applied, 0, sizeof(double) * (size_t)n);
    return b;
}

static void ledger_close(ledger *b) {
    free(b->given);
    free(b->applied);
}

/* One step: all ranks have the same result. */
static void ledger_add(ledger *b, float *const *grads, float *const *outs, int nranks) {
    for (int r = 0; r < nranks; r++) {
        check_bits("out", outs[r], outs[0], b->n);
        for (int64_t i = 0; i < b->n; i++)
            b->given[i] += (double)grads[r][i];
    }
    for (int64_t i = 0; i < b->n; i++)
        b->applied[i] += (double)outs[0][i];
}

static void ledger_check(const ledger *b, float *const *residuals, int nranks, int exactly) {
    for (int64_t i = 0; i < b->n; i++) {
        double left = 0.0;
        for (int r = 0; r < nranks; r++)
            left += (double)residuals[r][i];
        double off = fabs(b->applied[i] + left - b->given[i]);
        if (off > (exactly ? 0.0 : 1e-3)) {
            check_fail("index %lld: applied %g + residuals %g, given %g", (long long)i,
                       b->applied[i], left, b->given[i]);
        }
    }
}

static void check_conservation(const char *exchange, const char *wire, int nranks, int64_t n,
                               int64_t k) {
    tw_group_params params = ranks_params(exchange, k);
    params.wire = wire;
    params.result = TW_SUM;
    ranks r;
    ledger b = ledger_open(n);
    float **grads = rows_alloc(nranks, n), **outs = rows_alloc(nranks, n);
    float **residuals = rows_alloc(nranks, n);
    check_scene("exchange=%s wire=%s P=%d n=%lld k=%lld", exchange, wire, nranks, (long long)n,
                (long long)k);
    ranks_open(&r, nranks, &params, &n, 1);
    for (int step = 0; step < STEPS; step++) {
        rows_fill(grads, nranks, n, DATA_SUMMABLE, step);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        ledger_add(&b, grads, outs, nranks);
    }
    ranks_get_residuals(&r, 0, residuals, n);
    ledger_check(&b, residuals, nranks, is_exact(wire));
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    rows_free(residuals);
    ledger_close(&b);
}

static void test_nothing_is_lost(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 5, 8, 11};
    for (int e = 1; e < check_exchanges(); e++) {
        for (int w = 0; w < check_wires(); w++) {
            for (int c = 0; c < 6; c++) {
                check_conservation(check_exchange(e), check_wire(w), counts[c], 3001, 300);
                check_conservation(check_exchange(e), check_wire(w), counts[c], 1000, 997);
                check_conservation(check_exchange(e), check_wire(w), counts[c], 17, 1);
            }
        }
    }
}

/* Large enough for oktopk's batches. */
static void test_batches(void **state) {
    (void)state;
    check_conservation("oktopk", "bf16", 3, 200000, 40000);
    check_conservation("oktopk", "q4", 3, 200000, 40000);
}

static int64_t payload_of(const char *exchange, const char *wire) {
    const int64_t n = 200000;
    tw_group_params params = ranks_params(exchange, 2000);
    params.wire = wire;
    ranks r;
    float **grads = rows_alloc(8, n);
    ranks_open(&r, 8, &params, &n, 1);
    rows_fill(grads, 8, n, DATA_GAUSS, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    int64_t most = 0;
    for (int i = 0; i < 8; i++) {
        tw_step_info info;
        check_ok(tw_group_info(r.groups[i], 0, &info));
        most = info.traffic.payload_sent > most ? info.traffic.payload_sent : most;
    }
    ranks_close(&r);
    rows_free(grads);
    return most;
}

/* Percent of the payload of raw. fulltopk also sums a dense vector of k values, which is raw. */
static void test_fewer_bytes(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        const char *exchange = check_exchange(e);
        const int more = strcmp(exchange, "fulltopk") == 0 ? 23 : 0;
        const int64_t raw = payload_of(exchange, "raw"), bf16 = payload_of(exchange, "bf16"),
                      q4 = payload_of(exchange, "q4");
        check_scene("exchange=%s raw=%lld bf16=%lld q4=%lld", exchange, (long long)raw,
                    (long long)bf16, (long long)q4);
        check_true(100 * bf16 < (45 + more) * raw);
        check_true(100 * q4 < (27 + more) * raw);
    }
}

/* Sums too large for a finite remainder are sent unrounded; sums that overflow are refused. */
static void test_huge_values(void **state) {
    (void)state;
    const int64_t n = 500;
    for (int e = 1; e < check_exchanges(); e++) {
        tw_group_params params = ranks_params(check_exchange(e), 60);
        params.wire = "q2";
        ranks r;
        float **grads = rows_alloc(3, n), **outs = rows_alloc(3, n);
        check_scene("exchange=%s", check_exchange(e));
        ranks_open(&r, 3, &params, &n, 1);
        rows_fill(grads, 3, n, DATA_GAUSS, 1);
        grads[1][7] = 1e38f;
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        check_true(fabsf(outs[2][7] - 1e38f / 3.0f) < 1e32f);
        for (int i = 0; i < 3; i++)
            grads[i][7] = 3e38f;
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_error(&r, TW_ERR_NUMBER);
        ranks_close(&r);
        rows_free(grads);
        rows_free(outs);
    }
}

static void test_wrong_names(void **state) {
    (void)state;
    tw_group *group = NULL;
    tw_transport *self;
    check_ok(tw_transport_self(&self));
    tw_group_params params = ranks_params("oktopk", 5);
    params.wire = "q3";
    check_error(tw_group_create(&group, self, &params), TW_ERR_NAME);
    check_contains(tw_last_error(), "bf16");
    tw_transport_free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost), cmocka_unit_test(test_batches),
        cmocka_unit_test(test_fewer_bytes),     cmocka_unit_test(test_huge_values),
        cmocka_unit_test(test_wrong_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
