/* test_buckets.c - tensors in the background: buckets and orders change no result
 *
 * A hundred tensors of very different sizes on four ranks. A reference set of ranks sums them one
 * by one with tw_allreduce; others start them in random orders, different on every rank, with
 * buckets of all sizes, and must get the same bits: results, residuals, sparse results.
 *
 *     test_buckets [FILTER]      "test_small*" is the part for ThreadSanitizer
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ranks.h"

enum { RANKS = 4, MANY = 100, FEW = 9 };

/* ---- A set of tensors on all ranks ---------------------------------------------------------------- */

typedef struct fleet {
    ranks r;
    int tensors;
    int64_t *sizes;         /* [tensors] */
    float ***grads;         /* [tensors][RANKS][n], shared by all fleets of a test */
    float ***outs;          /* [tensors][RANKS][n] */
    int order[RANKS][MANY]; /* in which each rank starts */
    int waits[MANY + 1];    /* in which all of them wait; TW_ALL ends */
} fleet;

static tw_group_params usual(const char *scheme, int64_t bucket) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.02;
    params.select.threads = 1;
    params.bucket = bucket;
    return params;
}

/* Transports and room, no groups yet. */
static void fleet_prepare(fleet *f, int64_t *sizes, int tensors, float ***grads) {
    memset(f, 0, sizeof *f);
    f->tensors = tensors;
    f->sizes = sizes;
    f->grads = grads;
    f->outs = check_alloc(tensors, sizeof *f->outs);
    for (int i = 0; i < tensors; i++)
        f->outs[i] = rows_alloc(RANKS, sizes[i]);
    ranks_init(&f->r, RANKS);
    f->waits[0] = TW_ALL;
}

static void fleet_open(fleet *f, const tw_group_params *params, int64_t *sizes, int tensors,
                       float ***grads) {
    fleet_prepare(f, sizes, tensors, grads);
    ranks_try_open(&f->r, params, sizes, tensors);
    ranks_ok(&f->r);
}

static void fleet_close(fleet *f) {
    for (int i = 0; i < f->tensors; i++)
        rows_free(f->outs[i]);
    free(f->outs);
    ranks_close(&f->r);
}

static float ***gradients(const int64_t *sizes, int tensors) {
    float ***grads = check_alloc(tensors, sizeof *grads);
    for (int i = 0; i < tensors; i++)
        grads[i] = rows_alloc(RANKS, sizes[i]);
    return grads;
}

static void gradients_free(float ***grads, int tensors) {
    for (int i = 0; i < tensors; i++)
        rows_free(grads[i]);
    free(grads);
}

static void gradients_fill(float ***grads, const int64_t *sizes, int tensors, int step) {
    for (int i = 0; i < tensors; i++)
        for (int rank = 0; rank < RANKS; rank++)
            oracle_fill(grads[i][rank], sizes[i], DATA_GAUSS,
                        (uint64_t)((step * 1000 + i) * RANKS + rank));
}

/* One large tensor, some middling ones, many tiny ones, in no order. */
static void make_sizes(int64_t *sizes, int tensors, int64_t largest) {
    oracle_rng rng = {5};
    for (int i = 0; i < tensors; i++)
        sizes[i] = 1 + (int64_t)pow((double)largest / 20.0, oracle_uniform(&rng));
    sizes[0] = 1;
    sizes[tensors / 2] = largest;
}

/* ---- Steps ------------------------------------------------------------------------------------------ */

static int step_one_by_one(ranks *r, int rank, void *context) {
    fleet *f = context;
    int error = TW_OK;
    for (int i = 0; i < f->tensors && !error; i++)
        error = tw_allreduce(r->groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
    return error;
}

static int start_all(fleet *f, int rank) {
    int error = TW_OK;
    for (int j = 0; j < f->tensors && !error; j++) {
        const int i = f->order[rank][j];
        error = tw_allreduce_start(f->r.groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
    }
    return error;
}

static int step_in_background(ranks *r, int rank, void *context) {
    fleet *f = context;
    int error = start_all(f, rank), j = 0;
    for (; f->waits[j] != TW_ALL && !error; j++)
        error = tw_allreduce_wait(r->groups[rank], f->waits[j]);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void shuffle(int *order, int count, oracle_rng *rng) {
    for (int i = 0; i < count; i++) {
        const int j = (int)oracle_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

static void shuffle_all(fleet *f, oracle_rng *rng) {
    for (int rank = 0; rank < RANKS; rank++)
        shuffle(f->order[rank], f->tensors, rng);
}

/* ---- Comparing --------------------------------------------------------------------------------------- */

static void same_tensor(fleet *got, fleet *want, int i) {
    float *a = check_alloc(want->sizes[i], sizeof *a), *b = check_alloc(want->sizes[i], sizeof *b);
    for (int rank = 0; rank < RANKS; rank++) {
        tw_sparse sparse, expected;
        check_bits("out", got->outs[i][rank], want->outs[i][rank], want->sizes[i]);
        check_ok(tw_group_get_residual(got->r.groups[rank], i, a));
        check_ok(tw_group_get_residual(want->r.groups[rank], i, b));
        check_bits("residual", a, b, want->sizes[i]);
        const int error = tw_group_result(want->r.groups[rank], i, &expected);
        check_error(tw_group_result(got->r.groups[rank], i, &sparse), error);
        if (!error)
            check_selection(&sparse, expected.count, expected.idx, expected.val);
    }
    free(a);
    free(b);
}

static void same_fleet(fleet *got, fleet *want, const char *what, int step) {
    for (int i = 0; i < want->tensors; i++) {
        check_scene("%s: tensor %d of %lld elements, step=%d", what, i, (long long)want->sizes[i],
                    step);
        same_tensor(got, want, i);
    }
}

/* Both get the same gradients; `tried` in the background, in any order. */
static void compare_fleets(fleet *tried, fleet *reference, const char *what, int steps) {
    oracle_rng rng = {11};
    for (int step = 0; step < steps; step++) {
        gradients_fill(reference->grads, reference->sizes, reference->tensors, step);
        ranks_run(&reference->r, step_one_by_one, reference);
        ranks_ok(&reference->r);
        shuffle_all(tried, &rng);
        ranks_run(&tried->r, step_in_background, tried);
        ranks_ok(&tried->r);
        same_fleet(tried, reference, what, step);
    }
}

/* Steps of a fleet with this bucket beside the reference. */
static void compare_buckets(const char *scheme, int global, int64_t bucket, int tensors,
                            int64_t largest, int steps) {
    int64_t sizes[MANY];
    char what[64];
    fleet reference, tried;
    make_sizes(sizes, tensors, largest);
    snprintf(what, sizeof what, "%s global=%d bucket=%lld", scheme, global, (long long)bucket);
    check_scene("%s", what);
    float ***grads = gradients(sizes, tensors);
    tw_group_params alone = usual(scheme, 1), params = usual(scheme, bucket);
    alone.global = params.global = global;
    fleet_open(&reference, &alone, sizes, tensors, grads);
    fleet_open(&tried, &params, sizes, tensors, grads);
    compare_fleets(&tried, &reference, what, steps);
    fleet_close(&reference);
    fleet_close(&tried);
    gradients_free(grads, tensors);
}

/* ---- Any order, any bucket ----------------------------------------------------------------------------- */

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

/* A tensor's reused threshold does not depend on how those of its neighbours fare. */
static void test_global_reuse(void **state) {
    (void)state;
    compare_buckets("oktopk", TW_GLOBAL_REUSE, 0, 20, 200000, 10);
    compare_buckets("oktopk", TW_GLOBAL_REUSE, 20000, 20, 200000, 10);
}

/* ---- Tensors that differ -------------------------------------------------------------------------------- */

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
    fleet reference, tried;
    make_sizes(sizes, FEW, 20000);
    float ***grads = gradients(sizes, FEW);
    mixture alone = {usual(scheme, 1), sizes}, all = {usual(scheme, 0), sizes};
    alone.params.select.density = all.params.select.density = 0.2; /* too much for butterfly */
    check_scene("%s", scheme);
    fleet_prepare(&reference, sizes, FEW, grads);
    ranks_run(&reference.r, open_mixture, &alone);
    ranks_ok(&reference.r);
    fleet_prepare(&tried, sizes, FEW, grads);
    ranks_run(&tried.r, open_mixture, &all);
    ranks_ok(&tried.r);
    compare_fleets(&tried, &reference, scheme, 4);
    fleet_close(&reference);
    fleet_close(&tried);
    gradients_free(grads, FEW);
}

static void test_some_without_feedback(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        if (strcmp(scheme, "auto") != 0)
            compare_mixtures(scheme);
}

static void test_small(void **state) {
    (void)state;
    compare_buckets("oktopk", TW_GLOBAL_EXACT, 0, 12, 3000, 3);
    compare_buckets("gtopk", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
    compare_buckets("logtopk", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
    compare_buckets("dense", TW_GLOBAL_EXACT, 500, 12, 3000, 3);
}

/* Buckets are what the parameter says: in order, up to so many elements, one tensor at least. */
static void test_buckets_are_filled(void **state) {
    (void)state;
    int64_t sizes[7] = {400, 600, 1, 2000, 300, 300, 300};
    const int in_bucket[7] = {2, 2, 1, 1, 3, 3, 3};
    const tw_group_params params = usual("oktopk", 1000);
    fleet f;
    oracle_rng rng = {1};
    float ***grads = gradients(sizes, 7);
    fleet_open(&f, &params, sizes, 7, grads);
    gradients_fill(grads, sizes, 7, 0);
    shuffle_all(&f, &rng);
    ranks_run(&f.r, step_in_background, &f);
    ranks_ok(&f.r);
    for (int i = 0; i < 7; i++) {
        tw_step_info info;
        check_scene("tensor %d", i);
        check_ok(tw_group_info(f.r.groups[1], i, &info));
        check_int("tensors in its bucket", info.tensors, in_bucket[i]);
    }
    fleet_close(&f);
    gradients_free(grads, 7);
}

/* ---- Waits ------------------------------------------------------------------------------------------------ */

/* A fleet of FEW tensors in buckets of about three, and its reference, both at the same state. */
typedef struct duel {
    int64_t sizes[FEW];
    float ***grads;
    fleet tried, reference;
} duel;

static void duel_open(duel *d, const char *scheme) {
    for (int i = 0; i < FEW; i++)
        d->sizes[i] = 100 + 7 * (i % 3);
    d->grads = gradients(d->sizes, FEW);
    const tw_group_params params = usual(scheme, 360), alone = usual(scheme, 1);
    fleet_open(&d->tried, &params, d->sizes, FEW, d->grads);
    fleet_open(&d->reference, &alone, d->sizes, FEW, d->grads);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < FEW; i++)
            d->tried.order[rank][i] = i;
    gradients_fill(d->grads, d->sizes, FEW, 0);
}

static void duel_close(duel *d) {
    fleet_close(&d->tried);
    fleet_close(&d->reference);
    gradients_free(d->grads, FEW);
}

static void reference_step(duel *d) {
    ranks_run(&d->reference.r, step_one_by_one, &d->reference);
    ranks_ok(&d->reference.r);
}

static void test_waits(void **state) {
    (void)state;
    const int orders[][FEW + 1] = {{8, 7, 6, 5, 4, 3, 2, 1, 0, TW_ALL},
                                   {4, 0, 8, 1, 7, 2, 6, 3, 5, TW_ALL},
                                   {3, TW_ALL},
                                   {0, 3, 6, TW_ALL}};
    duel d;
    oracle_rng rng = {3};
    duel_open(&d, "oktopk");
    for (int i = 0; i < 4; i++) {
        check_scene("order of waits %d", i);
        gradients_fill(d.grads, d.sizes, FEW, i);
        memcpy(d.tried.waits, orders[i], sizeof orders[i]);
        shuffle_all(&d.tried, &rng);
        reference_step(&d);
        ranks_run(&d.tried.r, step_in_background, &d.tried);
        ranks_ok(&d.tried.r);
        same_fleet(&d.tried, &d.reference, "odd waits", i);
    }
    duel_close(&d);
}

/* Some tensors only, twice some of them within one round; a wait makes a part of a bucket travel. */
static int some_only(ranks *r, int rank, void *context) {
    fleet *f = context;
    static const int parts[][2] = {{4, 4}, {0, 2}, {8, 5}, {4, 4}, {7, 6}, {1, 3}};
    int error = TW_OK;
    for (int p = 0; p < 6 && !error; p++) {
        for (int j = 0; j < 2 && !error; j++) {
            const int i = parts[p][j];
            if (j == 0 || i != parts[p][0])
                error = tw_allreduce_start(r->groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
        }
        if (!error)
            error = tw_allreduce_wait(r->groups[rank], p % 2 ? TW_ALL : parts[p][0]);
        if (!error && p % 2 == 0 && parts[p][1] != parts[p][0])
            error = tw_allreduce_wait(r->groups[rank], parts[p][1]);
    }
    return error;
}

static int some_one_by_one(ranks *r, int rank, void *context) {
    fleet *f = context;
    static const int order[] = {4, 0, 2, 8, 5, 4, 7, 6, 1, 3};
    int error = TW_OK;
    for (int j = 0; j < 10 && !error; j++)
        error = tw_allreduce(r->groups[rank], order[j], f->grads[order[j]][rank],
                             f->outs[order[j]][rank]);
    return error;
}

static void test_some_of_them(void **state) {
    (void)state;
    duel d;
    duel_open(&d, "oktopk");
    check_scene("some of the tensors");
    ranks_run(&d.tried.r, some_only, &d.tried);
    ranks_ok(&d.tried.r);
    ranks_run(&d.reference.r, some_one_by_one, &d.reference);
    ranks_ok(&d.reference.r);
    same_fleet(&d.tried, &d.reference, "some", 0);
    duel_close(&d);
}

/* tw_allreduce and the background in turn on one group. */
static int mixed(ranks *r, int rank, void *context) {
    fleet *f = context;
    const int error = step_in_background(r, rank, context);
    return error ? error : step_one_by_one(r, rank, f);
}

static void test_mixed_with_foreground(void **state) {
    (void)state;
    duel d;
    duel_open(&d, "gtopk");
    check_scene("background and foreground in turn");
    for (int round = 0; round < 3; round++) {
        ranks_run(&d.tried.r, mixed, &d.tried);
        ranks_ok(&d.tried.r);
        reference_step(&d);
        reference_step(&d);
        same_fleet(&d.tried, &d.reference, "mixed", round);
    }
    duel_close(&d);
}

/* ---- Errors -------------------------------------------------------------------------------------------------- */

/* Statuses that calls gave, for the main thread to look at. */
typedef struct statuses {
    fleet *f;
    int of[RANKS][32];
    int waited[RANKS][FEW];
    int pause; /* microseconds */
} statuses;

static int start_one(statuses *s, int rank, int i) {
    fleet *f = s->f;
    return tw_allreduce_start(f->r.groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
}

static int wrong_order(ranks *r, int rank, void *context) {
    statuses *s = context;
    tw_group *group = r->groups[rank];
    float *x = s->f->outs[0][rank];
    tw_sparse sparse;
    tw_step_info info;
    int *of = s->of[rank];
    of[0] = tw_allreduce_wait(group, 3);        /* not started */
    of[1] = start_one(s, rank, 3);              /* fine */
    of[2] = start_one(s, rank, 3);              /* twice */
    of[3] = tw_allreduce_wait(group, 4);        /* not started */
    of[4] = tw_allreduce(group, 0, x, x);       /* while one is under way */
    of[5] = tw_group_result(group, 3, &sparse); /* under way */
    of[6] = tw_group_info(group, 3, &info);
    of[7] = tw_group_get_residual(group, 3, x);
    of[8] = tw_group_save(group, "/tmp/thinwire-never");
    of[9] = tw_group_load(group, NULL, 0);
    of[10] = tw_allreduce_wait(group, 3);  /* fine */
    of[11] = tw_allreduce_wait(group, 3);  /* twice */
    of[12] = tw_allreduce(group, 0, x, x); /* fine again */
    return TW_OK;
}

static void test_wrong_order(void **state) {
    (void)state;
    const int want[] = {TW_ERR_STATE, TW_OK,        TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE,
                        TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE, TW_ERR_STATE,
                        TW_OK,        TW_ERR_STATE, TW_OK};
    duel d;
    duel_open(&d, "oktopk");
    statuses s = {.f = &d.tried};
    ranks_run(&d.tried.r, wrong_order, &s);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < 13; i++) {
            check_scene("rank %d, call %d", rank, i);
            check_int("status", s.of[rank][i], want[i]);
        }
    duel_close(&d);
}

static int wait_for_each(ranks *r, int rank, void *context) {
    statuses *s = context;
    int error = start_all(s->f, rank);
    for (int i = 0; i < FEW && !error; i++)
        s->waited[rank][i] = tw_allreduce_wait(r->groups[rank], i);
    return error;
}

/* NaN in tensor 4 on rank 2: its bucket fails on all ranks, the others do not. */
static void test_bad_bucket(void **state) {
    (void)state;
    duel d;
    duel_open(&d, "oktopk");
    statuses s = {.f = &d.tried};
    int failed = 0;
    for (int round = 0; round < 3; round++) {
        gradients_fill(d.grads, d.sizes, FEW, round);
        d.grads[4][2][17] = round == 1 ? NAN : 0.5f;
        ranks_run(&d.tried.r, wait_for_each, &s);
        ranks_ok(&d.tried.r);
        for (int i = 0; i < FEW; i++) {
            const int want = round == 1 && i >= 3 && i <= 5 ? TW_ERR_NUMBER : TW_OK;
            for (int rank = 0; rank < RANKS; rank++) {
                check_scene("bad bucket: round %d, tensor %d on rank %d", round, i, rank);
                check_int("status", s.waited[rank][i], want);
                failed += want != TW_OK;
            }
        }
    }
    check_int("failures", failed, 3 * RANKS);
    duel_close(&d);
}

/* Afterwards the bucket's tensors are as those of a run without the bad step. */
static int only_middle(ranks *r, int rank, void *context) {
    fleet *f = context;
    int error = TW_OK;
    for (int i = 3; i <= 5 && !error; i++)
        error = tw_allreduce_start(r->groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void test_bad_bucket_leaves_no_trace(void **state) {
    (void)state;
    duel d;
    duel_open(&d, "oktopk");
    for (int round = 0; round < 3; round++) {
        check_scene("round %d after a bad bucket", round);
        gradients_fill(d.grads, d.sizes, FEW, 10 + round);
        d.grads[5][round][3] = INFINITY;
        ranks_run(&d.tried.r, only_middle, &d.tried);
        ranks_error(&d.tried.r, TW_ERR_NUMBER);
        ranks_say(&d.tried.r, "rank %d", round);
        gradients_fill(d.grads, d.sizes, FEW, 20 + round);
        ranks_run(&d.tried.r, step_in_background, &d.tried);
        ranks_ok(&d.tried.r);
        reference_step(&d);
        same_fleet(&d.tried, &d.reference, "after a bad bucket", round);
    }
    duel_close(&d);
}

/* A tensor's own pointer is NULL on one rank. */
static void test_null_gradient(void **state) {
    (void)state;
    duel d;
    duel_open(&d, "oktopk");
    check_scene("NULL in a bucket");
    float *kept = d.grads[4][1];
    d.grads[4][1] = NULL;
    ranks_run(&d.tried.r, only_middle, &d.tried);
    d.grads[4][1] = kept;
    ranks_error(&d.tried.r, TW_ERR_NULL);
    ranks_say(&d.tried.r, "rank 1");
    ranks_run(&d.tried.r, step_in_background, &d.tried);
    ranks_ok(&d.tried.r);
    reference_step(&d);
    same_fleet(&d.tried, &d.reference, "after NULL", 0);
    duel_close(&d);
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

static int start_and_free(ranks *r, int rank, void *context) {
    statuses *s = context;
    int error = TW_OK;
    for (int i = 0; i < (rank == 3 ? 1 : FEW) && !error; i++)
        error = start_one(s, rank, s->f->order[rank][i]);
    usleep((useconds_t)s->pause); /* so that the library's thread is well into it, or not yet */
    tw_group_free(r->groups[rank]);
    r->groups[rank] = NULL;
    return error;
}

/* Freed with tensors under way, some of which can never arrive: comes back, and soon. */
static void test_free_under_way(void **state) {
    (void)state;
    oracle_rng rng = {9};
    for (int round = 0; round < 20; round++) {
        duel d;
        duel_open(&d, round % 2 ? "oktopk" : "gtopk");
        statuses s = {.f = &d.tried, .pause = round * 1000};
        check_scene("free with tensors under way, round %d", round);
        shuffle_all(&d.tried, &rng);
        const time_t begin = time(NULL);
        ranks_run(&d.tried.r, start_and_free, &s);
        ranks_ok(&d.tried.r);
        check_between("seconds until all are free", time(NULL) - begin, 0, 5);
        duel_close(&d);
    }
}

/* A rank that starts nothing: the others time out at their wait, and name it. */
static int all_but_rank_1(ranks *r, int rank, void *context) {
    if (rank == 1)
        return TW_ERR_TIMEOUT;
    return step_in_background(r, rank, context);
}

static void test_absent(void **state) {
    (void)state;
    int64_t sizes[FEW];
    fleet f;
    tw_group_params params = usual("oktopk", 360);
    params.timeout = 0.4;
    for (int i = 0; i < FEW; i++)
        sizes[i] = 100;
    float ***grads = gradients(sizes, FEW);
    oracle_rng rng = {1};
    check_scene("rank 1 starts nothing");
    fleet_open(&f, &params, sizes, FEW, grads);
    shuffle_all(&f, &rng);
    ranks_run(&f.r, all_but_rank_1, &f);
    ranks_error(&f.r, TW_ERR_TIMEOUT);
    check_contains(f.r.text[0], "1");
    fleet_close(&f);
    gradients_free(grads, FEW);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_global_reuse),
        cmocka_unit_test(test_some_without_feedback),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_buckets_are_filled),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_some_of_them),
        cmocka_unit_test(test_mixed_with_foreground),
        cmocka_unit_test(test_wrong_order),
        cmocka_unit_test(test_bad_bucket),
        cmocka_unit_test(test_bad_bucket_leaves_no_trace),
        cmocka_unit_test(test_null_gradient),
        cmocka_unit_test(test_free_under_way),
        cmocka_unit_test(test_absent),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
