/* test_group_disputes.c - ranks that open a group with different parameters
 *
 * A difference on one rank must be an error on all of them, with words that name the rank and the
 * field.
 */
#include "ranks.h"

enum { RANKS = 4, N = 301, K = 40 };

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
    d.usual = ranks_params(NULL, K);
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
    DISPUTE(result, TW_SUM, "result");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disputes),
        cmocka_unit_test(test_disputes_of_shape),
        cmocka_unit_test(test_no_dispute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
