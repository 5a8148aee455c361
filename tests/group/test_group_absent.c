/* test_group_absent.c - a rank that makes no call: the others time out in time and name it
 *
 * After that the group is broken: every call fails at once.
 */
#include <stdio.h>

#include "ranks.h"

enum { RANKS = 4, N = 301, K = 40 };

typedef struct absence {
    int absent;
    double seconds[RANKS]; /* that each call took */
    float **grads;         /* a step; NULL: */
    int loads;             /* a load; 0: the opening */
} absence;

static int call_unless_absent(ranks *r, int rank, void *context) {
    absence *a = context;
    if (rank == a->absent)
        return TW_ERR_TIMEOUT; /* the status that the others must have */
    const double start = check_seconds();
    const int error = a->grads   ? tw_allreduce(r->groups[rank], 0, a->grads[rank], a->grads[rank])
                      : a->loads ? tw_group_load(r->groups[rank], NULL, 0)
                                 : tw_group_open(r->groups[rank]);
    a->seconds[rank] = check_seconds() - start;
    return error;
}

static void check_absence(const ranks *r, const absence *a, double timeout) {
    ranks_error(r, TW_ERR_TIMEOUT);
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != a->absent) {
            char name[16];
            snprintf(name, sizeof name, "%d", a->absent);
            check_contains(r->text[rank], name);
            if (a->seconds[rank] < 0.5 * timeout || a->seconds[rank] > 1.1 * timeout + 0.1)
                check_fail("rank %d waited %g s, the timeout is %g s", rank, a->seconds[rank],
                           timeout);
        }
}

/* Calls of a broken group fail without waiting. */
static void check_broken(const ranks *r, const absence *a, double timeout) {
    float x[N] = {0};
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != a->absent) {
            const double start = check_seconds();
            check_error(tw_allreduce(r->groups[rank], 0, x, x), TW_ERR_TIMEOUT);
            check_contains(tw_last_error(), "broken");
            check_error(tw_allreduce_start(r->groups[rank], 0, x, x), TW_ERR_TIMEOUT);
            check_contains(tw_last_error(), "broken");
            check_true(check_seconds() - start < timeout / 2);
        }
}

/* The transport of a broken group serves no other. */
static void check_failed_transport(ranks *r, const tw_group_params *params, int rank) {
    tw_group *next = NULL;
    tw_group_free(r->groups[rank]);
    r->groups[rank] = NULL;
    check_error(tw_group_create(&next, r->transports[rank], params), TW_ERR_STATE);
    check_contains(tw_last_error(), "transport: has failed");
}

static void test_absent_in_step(void **state) {
    (void)state;
    const double timeout = 0.4;
    for (int e = 0; e < check_exchanges(); e++) {
        ranks r;
        const int64_t n = N;
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.timeout = timeout;
        absence a = {.absent = (e + 2) % RANKS, .grads = rows_alloc(RANKS, N)};
        float **before = rows_alloc(RANKS, N);
        check_scene("%s: rank %d makes no call", check_exchange(e), a.absent);
        ranks_open(&r, RANKS, &params, &n, 1);
        rows_fill(a.grads, RANKS, N, DATA_POWER5, 1);
        ranks_allreduce(&r, 0, (void *const *)a.grads, a.grads);
        ranks_ok(&r);
        ranks_get_residuals(&r, 0, before, N);
        rows_fill(a.grads, RANKS, N, DATA_POWER5, 2);
        ranks_run(&r, call_unless_absent, &a);
        check_absence(&r, &a, timeout);
        ranks_check_residuals(&r, 0, before, N);
        check_broken(&r, &a, timeout);
        check_failed_transport(&r, &params, (a.absent + 1) % RANKS);
        rows_free(a.grads);
        rows_free(before);
        ranks_close(&r);
    }
}

static void test_absent_at_load(void **state) {
    (void)state;
    ranks r;
    const int64_t n = N;
    tw_group_params params = ranks_params(NULL, K);
    params.timeout = 0.4;
    absence a = {.absent = 2, .loads = 1};
    check_scene("rank 2 does not load");
    ranks_open(&r, RANKS, &params, &n, 1);
    ranks_run(&r, call_unless_absent, &a);
    check_absence(&r, &a, params.timeout);
    check_broken(&r, &a, params.timeout);
    ranks_close(&r);
}

static int create_only(ranks *r, int rank, void *context) {
    int error = tw_group_create(&r->groups[rank], r->transports[rank], context);
    return error ? error : tw_group_add(r->groups[rank], N, NULL, NULL);
}

static void test_absent_at_open(void **state) {
    (void)state;
    ranks r;
    tw_group_params params = ranks_params(NULL, K);
    params.timeout = 0.4;
    absence a = {.absent = 1};
    check_scene("rank 1 does not open");
    ranks_init(&r, RANKS);
    ranks_run(&r, create_only, &params);
    ranks_ok(&r);
    ranks_run(&r, call_unless_absent, &a);
    check_absence(&r, &a, params.timeout);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent_in_step),
        cmocka_unit_test(test_absent_at_load),
        cmocka_unit_test(test_absent_at_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
