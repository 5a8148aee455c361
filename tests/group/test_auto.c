/* test_auto.c - scheme auto: ranks choose the same plan, and a change of plan loses nothing
 *
 * A plan is an exchange with a wire format. Most tests run over simulated networks, where times,
 * and so choices, repeat. Gradients are summable: a ledger in units of 2^-10 shows every lost bit.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group_state.h"
#include "thinwire_sim.h"

static const tw_network gigabit = {.latency = 50e-6, .bandwidth = 125e6};
/* Bytes cost, messages do not: dense and sparse are close at high densities. */
static const tw_network bulk = {.latency = 1e-9, .bandwidth = 1e9};

static tw_group_params auto_params(double density) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "auto";
    params.select.density = density;
    params.select.threads = 1;
    params.result = TW_SUM;
    return params;
}

/* Over a simulated network; NULL: over threads. */
static void open_over(ranks *r, int nranks, const tw_network *network,
                      const tw_group_params *params, const int64_t *sizes, int tensors) {
    ranks_init(r, nranks);
    for (int i = 0; i < nranks && network != NULL; i++)
        tw_transport_free(r->transports[i]);
    if (network != NULL)
        check_ok(tw_transport_simulated(r->transports, nranks, network));
    ranks_try_open(r, params, sizes, tensors);
    ranks_ok(r);
}

static tw_choice choice_of(ranks *r, int rank, int tensor) {
    tw_choice choice;
    check_ok(tw_group_choice(r->groups[rank], tensor, &choice));
    return choice;
}

/* Names are the library's own, the same on all ranks of a process. */
static int same_choice(const tw_choice *a, const tw_choice *b) {
    int same = a->exchange == b->exchange && a->wire == b->wire && a->settled == b->settled &&
               a->measured == b->measured && a->predicted == b->predicted &&
               a->latency == b->latency && a->bandwidth == b->bandwidth &&
               a->ncandidates == b->ncandidates && strcmp(a->words, b->words) == 0;
    for (int i = 0; same && i < a->ncandidates; i++)
        same = a->candidates[i].exchange == b->candidates[i].exchange &&
               a->candidates[i].measured == b->candidates[i].measured &&
               a->candidates[i].steps == b->candidates[i].steps;
    return same;
}

/* ---- A ledger -------------------------------------------------------------------------------- */

typedef struct ledger {
    int64_t n;
    int64_t *balance; /* [n]: given less applied, in units of 2^-10 */
    float **grads, **outs;
} ledger;

static ledger ledger_new(int nranks, int64_t n) {
    return (ledger){n, check_alloc(n, sizeof(int64_t)), rows_alloc(nranks, n),
                    rows_alloc(nranks, n)};
}

static void ledger_free(ledger *book) {
    free(book->balance);
    rows_free(book->grads);
    rows_free(book->outs);
}

/* One step, in place on odd ones. All ranks get the same and have chosen the same. */
static void ledger_step(ledger *book, ranks *r, int step, tw_step_info *info) {
    rows_fill(book->grads, r->nranks, book->n, DATA_SUMMABLE, step);
    for (int rank = 0; rank < r->nranks; rank++)
        for (int64_t i = 0; i < book->n; i++)
            book->balance[i] += check_units(book->grads[rank][i]);
    float **outs = step % 2 ? book->grads : book->outs;
    ranks_allreduce(r, 0, (void *const *)book->grads, outs);
    ranks_ok(r);
    check_ok(tw_group_info(r->groups[0], 0, info));
    for (int rank = 1; rank < r->nranks; rank++) {
        tw_choice ours = choice_of(r, rank, 0), zeros = choice_of(r, 0, 0);
        check_bits("out of another rank", outs[rank], outs[0], book->n);
        check_true(same_choice(&ours, &zeros));
    }
    for (int64_t i = 0; i < book->n; i++)
        book->balance[i] -= check_units(outs[0][i]);
}

static void ledger_check(const ledger *book, ranks *r) {
    float **residual = rows_alloc(r->nranks, book->n);
    ranks_get_residuals(r, 0, residual, book->n);
    for (int64_t i = 0; i < book->n; i++) {
        int64_t kept = 0;
        for (int rank = 0; rank < r->nranks; rank++)
            kept += check_units(residual[rank][i]);
        check_int("kept over all ranks", kept, book->balance[i]);
    }
    rows_free(residual);
}

/* ---- Choices --------------------------------------------------------------------------------- */

/* Ranks agree and nothing is lost, over simulated networks and over threads, whose times vary. */
static void test_conserves(void **state) {
    (void)state;
    const tw_network *const networks[] = {&gigabit, &bulk, NULL};
    for (int which = 0; which < 3; which++)
        for (int nranks = 1; nranks <= 5; nranks++) {
            ranks r;
            ledger book = ledger_new(nranks, 1501);
            tw_group_params params = auto_params(0.05);
            open_over(&r, nranks, networks[which], &params, &book.n, 1);
            for (int step = 0; step < 60; step++) {
                tw_step_info info;
                check_scene("network %d, P=%d, step %d", which, nranks, step);
                ledger_step(&book, &r, step, &info);
                ledger_check(&book, &r);
            }
            check_true(choice_of(&r, 0, 0).settled);
            ranks_close(&r);
            ledger_free(&book);
        }
}

/* Where both are close, both are tried: from sparse to dense and back. */
static void test_sparse_and_dense_in_turn(void **state) {
    (void)state;
    int changes = 0, was_dense = -1, dense_steps = 0;
    ranks r;
    ledger book = ledger_new(3, 4000);
    tw_group_params params = auto_params(0.34);
    params.wire = "raw";
    open_over(&r, 3, &bulk, &params, &book.n, 1);
    for (int step = 0; step < 60; step++) {
        tw_step_info info;
        check_scene("step %d", step);
        ledger_step(&book, &r, step, &info);
        ledger_check(&book, &r);
        int dense = strcmp(info.exchange, "dense") == 0;
        check_int("applied by dense", dense ? info.applied : book.n, book.n);
        changes += was_dense >= 0 && dense != was_dense;
        was_dense = dense;
        dense_steps += dense;
    }
    check_between("steps that were dense", dense_steps, 3, 37);
    check_between("changes between dense and sparse", changes, 2, 40);
    ranks_close(&r);
    ledger_free(&book);
}

/* The same job chooses the same plans, takes the same time and gives the same numbers. */
static double one_job(char *plans, size_t size, float *last, int64_t n) {
    ranks r;
    ledger book = ledger_new(4, n);
    tw_group_params params = auto_params(0.02);
    tw_network network = gigabit;
    network.jitter = 0.3;
    plans[0] = '\0';
    open_over(&r, 4, &network, &params, &book.n, 1);
    for (int step = 0; step < 30; step++) {
        tw_step_info info;
        ledger_step(&book, &r, step, &info);
        size_t used = strlen(plans);
        snprintf(plans + used, size - used, "%s %s, ", info.exchange, info.wire);
    }
    ranks_get_residuals(&r, 0, book.outs, n);
    memcpy(last, book.outs[2], sizeof *last * (size_t)n);
    double clock = tw_transport_clock(r.transports[1]);
    ranks_close(&r);
    ledger_free(&book);
    return clock;
}

static void test_simulation_repeats(void **state) {
    (void)state;
    enum { LENGTH = 5000 };
    static float once[LENGTH], again[LENGTH];
    char first[2000], second[2000];
    double clock = one_job(first, sizeof first, once, LENGTH);
    check_true(clock == one_job(second, sizeof second, again, LENGTH));
    assert_string_equal(first, second);
    check_bits("residual", again, once, LENGTH);
}

/* The measured network is the simulated one, predictions come true, and the best plan is kept. */
static void test_predictions(void **state) {
    (void)state;
    ranks r;
    ledger book = ledger_new(8, 50000);
    tw_group_params params = auto_params(0.01);
    tw_step_info info;
    open_over(&r, 8, &gigabit, &params, &book.n, 1);
    tw_choice choice = choice_of(&r, 0, 0);
    check_true(!choice.settled && choice.measured == 0.0 && choice.predicted > 0.0);
    check_true(fabs(choice.latency / gigabit.latency - 1.0) < 0.01);
    check_true(fabs(choice.bandwidth / gigabit.bandwidth - 1.0) < 0.01);
    for (int step = 0; step < 60; step++)
        ledger_step(&book, &r, step, &info);
    choice = choice_of(&r, 0, 0);
    check_true(choice.settled && !choice.dense_is_faster);
    check_true(fabs(choice.measured / choice.predicted - 1.0) < 0.2);
    check_contains(choice.words, "dense would take");
    assert_string_equal(choice.exchange, info.exchange);
    assert_string_equal(choice.wire, info.wire);
    int tried = 0;
    for (int i = 0; i < choice.ncandidates; i++) {
        const tw_candidate *c = &choice.candidates[i];
        tried += c->measured > 0.0;
        check_true(i == 0 || c->predicted >= choice.candidates[i - 1].predicted);
        check_true(c->measured == 0.0 || c->measured >= choice.measured);
        check_true((c->measured > 0.0) <= (c->steps >= 3));
    }
    check_between("plans tried", tried, 1, choice.ncandidates);
    ranks_close(&r);
    ledger_free(&book);
}

static void test_dense_is_faster(void **state) {
    (void)state;
    ranks r;
    ledger book = ledger_new(2, 3000);
    tw_group_params params = auto_params(1.0);
    params.wire = "raw";
    tw_step_info info;
    open_over(&r, 2, &bulk, &params, &book.n, 1);
    for (int step = 0; step < 60; step++)
        ledger_step(&book, &r, step, &info);
    tw_choice choice = choice_of(&r, 1, 0);
    check_true(choice.settled && choice.dense_is_faster);
    assert_string_equal(choice.exchange, "dense");
    check_contains(choice.words, "dense is faster");
    ranks_close(&r);
    ledger_free(&book);
}

/* Candidates keep to what the parameters name. With momentum, dense is none. */
static int has(const tw_choice *c, const char *exchange, const char *wire) {
    for (int i = 0; i < c->ncandidates; i++)
        if ((!exchange || strcmp(c->candidates[i].exchange, exchange) == 0) &&
            (!wire || strcmp(c->candidates[i].wire, wire) == 0))
            return 1;
    return 0;
}

static tw_choice candidates_of(const tw_group_params *params) {
    ranks r;
    const int64_t n = 3000;
    open_over(&r, 3, &gigabit, params, &n, 1);
    tw_choice choice = choice_of(&r, 2, 0);
    ranks_close(&r);
    return choice;
}

static void test_candidates(void **state) {
    (void)state;
    tw_group_params params = auto_params(0.1);
    tw_choice c = candidates_of(&params);
    check_true(has(&c, "dense", "raw") && has(&c, "oktopk", "bf16") && has(&c, "gtopk", "raw"));
    check_true(!has(&c, "dense", "bf16") && !has(&c, NULL, "q4"));
    params.wire = "q4";
    c = candidates_of(&params);
    check_true(has(&c, "allgather", "q4") && has(&c, "dense", "raw") && !has(&c, "dsa", "raw"));
    params = auto_params(0.1);
    params.exchange = "gtopk";
    c = candidates_of(&params);
    check_int("plans of gtopk", c.ncandidates, 2);
    check_contains(c.words, "dense was not compared");
    params = auto_params(0.001); /* k = 3: too few for oktopk */
    c = candidates_of(&params);
    check_true(!has(&c, "oktopk", NULL) && has(&c, "gtopk", NULL));
    params = auto_params(0.1);
    params.select.momentum = 0.5f;
    c = candidates_of(&params);
    check_true(!has(&c, "dense", NULL) && has(&c, "allgather", "bf16"));
}

/* While k falls nothing is tried. */
static void test_warmup(void **state) {
    (void)state;
    ranks r;
    ledger book = ledger_new(2, 2000);
    tw_group_params params = auto_params(0.01);
    params.select.warmup_steps = 6;
    open_over(&r, 2, &gigabit, &params, &book.n, 1);
    for (int step = 0; step < 30; step++) {
        tw_step_info info;
        ledger_step(&book, &r, step, &info);
        tw_choice choice = choice_of(&r, 0, 0);
        for (int i = 0; i < choice.ncandidates && step <= 6; i++)
            check_true(choice.candidates[i].measured == 0.0);
    }
    check_true(choice_of(&r, 0, 0).settled);
    ledger_check(&book, &r);
    ranks_close(&r);
    ledger_free(&book);
}

/* What a step took on the slowest rank, after all had agreed on it. */
static double step_seconds(ranks *r, tw_step_info *info) {
    double most = 0.0;
    for (int rank = 0; rank < r->nranks; rank++) {
        check_ok(tw_group_info(r->groups[rank], 0, info));
        most = fmax(most, info->exchange_seconds + info->apply_seconds);
    }
    return most;
}

/* A measured time is the least of the plan's first three steps. Its fourth was under way when another
 * plan was chosen, and does not count for either. Some gradients have fewer entries than k, so
 * that times differ: the first step of all is slow, and the fourth of each plan is fast. */
static void test_measured_times(void **state) {
    (void)state;
    enum { P = 4, STEPS = 40, SIZE = 20000 };
    const int64_t n = SIZE;
    tw_group_params params = auto_params(0.05);
    tw_step_info infos[STEPS];
    double seconds[STEPS];
    int measured = 0;
    ranks r;
    params.select.feedback = TW_FEEDBACK_OFF;
    float **grads = rows_alloc(P, n), **outs = rows_alloc(P, n);
    open_over(&r, P, &gigabit, &params, &n, 1);
    for (int step = 0; step < STEPS; step++) {
        int fast = step == 1 || step == 2 || step % 4 == 3;
        rows_fill(grads, P, n, DATA_SUMMABLE, step);
        for (int rank = 0; rank < P && fast; rank++)
            for (int64_t i = 0; i < n; i++)
                grads[rank][i] *= (float)((i + rank) % 25 == 0);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        seconds[step] = step_seconds(&r, &infos[step]);
    }
    tw_choice choice = choice_of(&r, 0, 0);
    for (int i = 0; i < choice.ncandidates; i++) {
        const tw_candidate *c = &choice.candidates[i];
        double least = INFINITY;
        for (int step = 0, seen = 0; step < STEPS && seen < 3; step++)
            if (strcmp(infos[step].exchange, c->exchange) == 0 &&
                strcmp(infos[step].wire, c->wire) == 0) {
                least = fmin(least, seconds[step]);
                seen++;
            }
        check_scene("%s with %s: measured %.9g, least %.9g", c->exchange, c->wire, c->measured,
                    least);
        check_true(c->measured == 0.0 || fabs(c->measured - least) < 1e-6 * least);
        measured += c->measured > 0.0;
    }
    check_between("plans tried", measured, 2, choice.ncandidates);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
}

/* ---- Dense with residuals -------------------------------------------------------------------- */

/* A dense step applies gradient and residual: nothing is kept. */
static void test_dense_takes_residuals_along(void **state) {
    (void)state;
    enum { P = 3 };
    tw_group_params sparse = auto_params(0.05), dense = auto_params(0.05);
    sparse.exchange = "gtopk";
    dense.exchange = "dense";
    ledger book = ledger_new(P, 2001);
    tw_step_info info;
    ranks r, s;
    open_over(&r, P, NULL, &sparse, &book.n, 1);
    for (int step = 0; step < 5; step++)
        ledger_step(&book, &r, step, &info);
    state_save_all(&r, "sparse");
    open_over(&s, P, NULL, &dense, &book.n, 1);
    state_load_all(&s, "sparse");
    ranks_ok(&s);
    ledger_step(&book, &s, 5, &info);
    assert_string_equal(info.exchange, "dense");
    check_int("step", info.step, 6);
    for (int64_t i = 0; i < book.n; i++)
        check_int("not applied", book.balance[i], 0);
    ledger_check(&book, &s);
    state_save_all(&s, "dense");
    state_load_all(&r, "dense");
    ranks_ok(&r);
    for (int step = 6; step < 12; step++)
        ledger_step(&book, &r, step, &info);
    ledger_check(&book, &r);
    ranks_close(&r);
    ranks_close(&s);
    ledger_free(&book);
}

/* A refused dense step leaves gradients, results and residuals as they were, also in place. */
static void test_dense_refused(void **state) {
    (void)state;
    enum { P = 3 };
    const int64_t n = 1000;
    tw_group_params params = auto_params(0.1);
    float **grads = rows_alloc(P, n), **copy = rows_alloc(P, n), **before = rows_alloc(P, n);
    ranks r, dense;
    params.exchange = "gtopk";
    open_over(&r, P, NULL, &params, &n, 1);
    rows_fill(grads, P, n, DATA_GAUSS, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, grads);
    ranks_ok(&r);
    ranks_get_residuals(&r, 0, before, n);
    state_save_all(&r, "refused");
    params.exchange = "dense";
    open_over(&dense, P, NULL, &params, &n, 1);
    state_load_all(&dense, "refused");
    for (int kind = 0; kind < 2; kind++) {
        check_scene(kind == 0 ? "NaN" : "a sum that overflows");
        rows_fill(grads, P, n, DATA_GAUSS, 2);
        for (int rank = 0; rank < P; rank++)
            grads[rank][77] = kind == 1 ? 0.9f * FLT_MAX : rank == 1 ? NAN : 1.0f;
        rows_copy(copy, grads, P, n);
        ranks_allreduce(&dense, 0, (void *const *)grads, grads);
        ranks_error(&dense, TW_ERR_NUMBER);
        for (int rank = 0; rank < P; rank++)
            check_bits("gradient", grads[rank], copy[rank], n);
        ranks_check_residuals(&dense, 0, before, n);
    }
    rows_fill(grads, P, n, DATA_GAUSS, 3); /* and it goes on */
    ranks_allreduce(&dense, 0, (void *const *)grads, grads);
    ranks_ok(&dense);
    ranks_close(&r);
    ranks_close(&dense);
    rows_free(grads);
    rows_free(copy);
    rows_free(before);
}

/* Saved while plans are being tried, loaded by fewer ranks. */
static void test_state(void **state) {
    (void)state;
    ranks r, fewer;
    ledger book = ledger_new(4, 1200), after = ledger_new(2, 1200);
    tw_group_params params = auto_params(0.05);
    tw_step_info info;
    open_over(&r, 4, &gigabit, &params, &book.n, 1);
    for (int step = 0; step < 5; step++)
        ledger_step(&book, &r, step, &info);
    state_save_all(&r, "auto");
    state_files files = state_spread("auto", 4, 2, 1);
    open_over(&fewer, 2, &gigabit, &params, &book.n, 1);
    ranks_run(&fewer, state_load, &files);
    ranks_ok(&fewer);
    memcpy(after.balance, book.balance, sizeof *book.balance * (size_t)book.n);
    ledger_check(&after, &fewer);
    for (int step = 5; step < 25; step++)
        ledger_step(&after, &fewer, step, &info);
    check_int("steps", info.step, 25);
    ledger_check(&after, &fewer);
    ranks_close(&r);
    ranks_close(&fewer);
    ledger_free(&book);
    ledger_free(&after);
}

/* ---- Buckets --------------------------------------------------------------------------------- */

enum { TENSORS = 12, ROUNDS = 25 };
static const int64_t tensor_sizes[TENSORS] = {900, 10,   3000, 120000, 40, 7,
                                              500, 2000, 64,   90000,  1,  300};

typedef struct many {
    int64_t *balance; /* [n of all]: of all ranks, added by rank 0 */
    float **grads;    /* [nranks][n of all] */
    uint64_t hash[4]; /* of a rank's results */
    int64_t total;
} many;

static int run_rounds(ranks *r, int rank, void *context) {
    many *c = context;
    float *grad = c->grads[rank];
    for (int round = 0; round < ROUNDS; round++) {
        oracle_fill(grad, c->total, DATA_SUMMABLE, (uint64_t)(100 * round + rank));
        int64_t at = 0;
        for (int t = 0; t < TENSORS; at += tensor_sizes[t++]) {
            int error = tw_allreduce_start(r->groups[rank], t, grad + at, grad + at);
            if (error != TW_OK)
                return error;
        }
        int error = tw_allreduce_wait(r->groups[rank], TW_ALL);
        if (error != TW_OK)
            return error;
        c->hash[rank] = oracle_hash(c->hash[rank], grad, c->total * (int64_t)sizeof *grad);
        for (int64_t i = 0; i < c->total && rank == 0; i++)
            c->balance[i] -= (int64_t)(grad[i] * 1024.0f);
    }
    return TW_OK;
}

static void test_background(void **state) {
    (void)state;
    enum { P = 4 };
    many c = {0};
    for (int t = 0; t < TENSORS; t++)
        c.total += tensor_sizes[t];
    c.balance = check_alloc(c.total, sizeof *c.balance);
    c.grads = rows_alloc(P, c.total);
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < P; rank++) {
            oracle_fill(c.grads[rank], c.total, DATA_SUMMABLE, (uint64_t)(100 * round + rank));
            for (int64_t i = 0; i < c.total; i++)
                c.balance[i] += check_units(c.grads[rank][i]);
        }
    }
    ranks r;
    tw_group_params params = auto_params(0.05);
    open_over(&r, P, &gigabit, &params, tensor_sizes, TENSORS);
    check_between("bucket", choice_of(&r, 0, 0).bucket, 1 << 16, INT32_MAX);
    ranks_run(&r, run_rounds, &c);
    ranks_ok(&r);
    int64_t at = 0;
    for (int t = 0; t < TENSORS; at += tensor_sizes[t++]) {
        float **residual = rows_alloc(P, tensor_sizes[t]);
        ranks_get_residuals(&r, t, residual, tensor_sizes[t]);
        for (int64_t i = 0; i < tensor_sizes[t]; i++)
            for (int rank = 0; rank < P; rank++)
                c.balance[at + i] -= check_units(residual[rank][i]);
        rows_free(residual);
        check_true(choice_of(&r, 3, t).settled);
    }
    for (int64_t i = 0; i < c.total; i++)
        check_int("lost", c.balance[i], 0);
    for (int rank = 1; rank < P; rank++)
        check_true(c.hash[rank] == c.hash[0]);
    ranks_close(&r);
    rows_free(c.grads);
    free(c.balance);
}

/* ---- Bad input ------------------------------------------------------------------------------- */

static int open_with_difference(ranks *r, int rank, void *context) {
    tw_group_params params = auto_params(0.1);
    const char *const *of = context;
    params.exchange = rank == 1 ? of[0] : NULL;
    params.wire = rank == 1 ? of[1] : NULL;
    params.timeout = 20;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &params);
    if (!error)
        error = tw_group_add(r->groups[rank], 100, NULL, NULL);
    return error ? error : tw_group_open(r->groups[rank]);
}

static void test_mismatch(void **state) {
    (void)state;
    const char *const others[][2] = {{"gtopk", NULL}, {NULL, "bf16"}};
    const char *const words[] = {"exchange: rank 1 has gtopk, rank 0 has auto",
                                 "wire: rank 1 has bf16, rank 0 has auto"};
    for (int i = 0; i < 2; i++) {
        ranks r;
        ranks_init(&r, 2);
        ranks_run(&r, open_with_difference, (void *)others[i]);
        ranks_error(&r, TW_ERR_MISMATCH);
        ranks_say(&r, "%s", words[i]);
        ranks_close(&r);
    }
}

static void test_bad_calls(void **state) {
    (void)state;
    ranks r;
    const int64_t n = 100;
    tw_choice choice;
    float **grads = rows_alloc(2, n);
    tw_group_params params = auto_params(0.1);
    tw_transport *transport;
    tw_group *group;
    check_ok(tw_transport_self(&transport));
    params.wire = "auto";
    check_error(tw_group_create(&group, transport, &params), TW_ERR_NAME);
    params.wire = NULL;
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, n, NULL, NULL));
    check_error(tw_group_choice(group, 0, &choice), TW_ERR_STATE);
    check_contains(tw_last_error(), "not open");
    check_ok(tw_group_open(group));
    check_contains(tw_last_error(), "not open"); /* nothing failed since */
    tw_group_free(group);
    tw_transport_free(transport);

    open_over(&r, 2, NULL, &params, &n, 1);
    check_error(tw_group_choice(NULL, 0, &choice), TW_ERR_NULL);
    check_error(tw_group_choice(r.groups[0], 0, NULL), TW_ERR_NULL);
    check_error(tw_group_choice(r.groups[0], 1, &choice), TW_ERR_INDEX);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL); /* dense may be chosen: out is needed */
    ranks_error(&r, TW_ERR_NULL);
    ranks_say(&r, "out with dense or auto");
    ranks_close(&r);

    params = ranks_params("gtopk", 10);
    open_over(&r, 2, NULL, &params, &n, 1);
    check_error(tw_group_choice(r.groups[0], 0, &choice), TW_ERR_STATE);
    check_contains(tw_last_error(), "only \"auto\" chooses");
    ranks_close(&r);
    rows_free(grads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conserves),
        cmocka_unit_test(test_sparse_and_dense_in_turn),
        cmocka_unit_test(test_simulation_repeats),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_dense_is_faster),
        cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_measured_times),
        cmocka_unit_test(test_dense_takes_residuals_along),
        cmocka_unit_test(test_dense_refused),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_background),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, state_begin, state_end);
}
