/* test_simulated.c - a simulated network takes the time of its model
 *
 * The time of dense has a formula: an agreement, then two alltoalls in which every rank sends (P-1)/P
 * of the vector over its link. Sparse exchanges must take the same time and give the same results in
 * every run.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ranks.h"
#include "thinwire_sim.h"

enum { STEPS = 3 };

static const tw_network gigabit = {.latency = 50e-6, .bandwidth = 125e6};

static void simulated_open(ranks *r, int nranks, const tw_network *network,
                           const tw_group_params *params, int64_t n) {
    ranks_init(r, nranks);
    for (int i = 0; i < nranks; i++)
        tw_transport_free(r->transports[i]);
    check_ok(tw_transport_simulated(r->transports, nranks, network));
    ranks_try_open(r, params, &n, 1);
    ranks_ok(r);
}

static double latest(const ranks *r) {
    double most = 0.0;
    for (int i = 0; i < r->nranks; i++)
        most = fmax(most, tw_transport_clock(r->transports[i]));
    return most;
}

/* Simulated seconds of the last of some steps; results go to outs. */
static double time_of(int nranks, const tw_network *network, const char *scheme, int64_t n,
                      float **outs) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.01;
    ranks r;
    double before = 0.0, after = 0.0;
    float **grads = rows_alloc(nranks, n);
    simulated_open(&r, nranks, network, &params, n);
    for (int step = 0; step < STEPS; step++) {
        rows_fill(grads, nranks, n, DATA_GAUSS, step);
        before = latest(&r);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        after = latest(&r);
    }
    ranks_close(&r);
    rows_free(grads);
    return after - before;
}

static double dense_seconds(int nranks, int64_t n, const tw_network *m) {
    double messages = nranks - 1.0;
    double part = 4.0 * (double)n / nranks / m->bandwidth;
    return 2.0 * (m->latency + messages * part); /* sends and receives overlap, except one */
}

static void test_dense_takes_what_it_must(void **state) {
    (void)state;
    const int64_t n = 80000;
    for (int nranks = 2; nranks <= 8; nranks *= 2) {
        float **outs = rows_alloc(nranks, n);
        double least = dense_seconds(nranks, n, &gigabit);
        double got = time_of(nranks, &gigabit, "dense", n, outs);
        check_scene("P=%d: %g s, at least %g s", nranks, got, least);
        check_true(got >= least);
        check_true(got < least + 2.0 * gigabit.latency + 0.1 * least); /* the agreement */
        rows_free(outs);
    }
}

static void test_same_time_same_result(void **state) {
    (void)state;
    const char *scheme;
    const int64_t n = 20000;
    tw_network network = gigabit;
    network.jitter = 0.3;
    network.seed = 5;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        float **once = rows_alloc(7, n), **again = rows_alloc(7, n);
        check_scene("scheme=%s", scheme);
        double first = time_of(7, &network, scheme, n, once);
        double second = time_of(7, &network, scheme, n, again);
        check_true(first > 0.0);
        check_true(first == second);
        check_bits("out", again[3], once[3], n);
        rows_free(once);
        rows_free(again);
    }
}

/* Several pieces are under way at once, with more messages than TW__WINDOW: the order of threads must
 * not matter. */
static void test_same_time_in_pieces(void **state) {
    (void)state;
    enum { RANKS = 12, TIMES = 2 };
    const int64_t n = 1500000;
    tw_network network = gigabit;
    network.overhead = 1e-6;
    float **outs = rows_alloc(RANKS, n);
    double first = time_of(RANKS, &network, "dense", n, outs);
    for (int i = 1; i < TIMES; i++) {
        double again = time_of(RANKS, &network, "dense", n, outs);
        check_scene("run %d: %.9f s, the first took %.9f s", i, again, first);
        check_true(again == first);
    }
    rows_free(outs);
}

/* Slower networks make slower steps. */
static void test_slower_networks(void **state) {
    (void)state;
    const int64_t n = 20000;
    float **outs = rows_alloc(8, n);
    double usual = time_of(8, &gigabit, "oktopk", n, outs);
    tw_network other = gigabit;
    other.latency *= 10.0;
    check_true(time_of(8, &other, "oktopk", n, outs) > 2.0 * usual);
    other = gigabit;
    other.slowdown = 20.0;
    other.straggler = 3;
    check_true(time_of(8, &other, "dense", n, outs) > time_of(8, &gigabit, "dense", n, outs));
    other = gigabit;
    other.host_ranks = 4;
    other.local_latency = 1e-6;
    other.local_bandwidth = 10e9;
    check_true(time_of(8, &other, "dense", n, outs) > time_of(8, &gigabit, "dense", n, outs));
    rows_free(outs);
}

/* Between two ranks a message takes the sender's overhead, the latency, the receiver's overhead. */
static void test_overhead(void **state) {
    (void)state;
    const int64_t n = 1000;
    float **outs = rows_alloc(2, n);
    tw_network network = {.latency = 50e-6, .bandwidth = 1e18};
    double without = time_of(2, &network, "topka", n, outs);
    network.overhead = 50e-6;
    double with = time_of(2, &network, "topka", n, outs);
    check_scene("%g s, %g s with overhead", without, with);
    check_true(without >= 50e-6);
    check_true(fabs(with - 3.0 * without) < 1e-9);
    rows_free(outs);
}

static void compute_for(double seconds) {
    for (double begin = tw__cpu_seconds(); tw__cpu_seconds() - begin < seconds;)
        continue;
}

/* Computation takes `computing` times its CPU time; tw_transport_elapse replaces it. */
static void test_computing(void **state) {
    (void)state;
    tw_transport *transports[2];
    tw_network network = {.latency = 1e-6, .bandwidth = 1e9, .computing = 10.0};
    check_ok(tw_transport_simulated(transports, 2, &network));
    double before = tw_transport_clock(transports[0]);
    compute_for(0.02);
    double after = tw_transport_clock(transports[0]);
    check_scene("%g s before, %g s after", before, after);
    check_true(before < 1e-3 && after - before >= 0.2 && after - before < 2.0);
    compute_for(0.02);
    check_ok(tw_transport_elapse(transports[0], 5.0));
    double told = tw_transport_clock(transports[0]);
    check_scene("%g s after 5 s more", told);
    check_true(told - after >= 5.0 && told - after < 5.01);
    for (int r = 0; r < 2; r++)
        tw_transport_free(transports[r]);

    network.computing = 0.0;
    check_ok(tw_transport_simulated(transports, 2, &network));
    before = tw_transport_clock(transports[0]);
    compute_for(0.02);
    check_true(tw_transport_clock(transports[0]) == before);
    for (int r = 0; r < 2; r++)
        tw_transport_free(transports[r]);
}

/* When ranks have computed after a step in the background, on their clocks. */
typedef struct overlapped {
    float **grads;
    double seconds[2];
} overlapped;

static int compute_beside(ranks *r, int rank, void *context) {
    overlapped *o = context;
    int error = tw_allreduce_start(r->groups[rank], 0, o->grads[rank], o->grads[rank]);
    if (error == TW_OK)
        error = tw_allreduce_wait(r->groups[rank], 0);
    compute_for(0.02);
    o->seconds[rank] = tw_transport_clock(r->transports[rank]);
    return error;
}

/* Computation beside steps in the background takes no time, whichever thread runs them. */
static void test_computing_beside_steps(void **state) {
    (void)state;
    ranks r;
    const int64_t n = 1000;
    const tw_network network = {.latency = 1e-6, .bandwidth = 1e9, .computing = 10.0};
    const tw_group_params params = ranks_params("allgather", 10);
    overlapped o = {.grads = rows_alloc(2, n)};
    simulated_open(&r, 2, &network, &params, n);
    for (int step = 0; step < 10; step++) {
        double before = latest(&r);
        rows_fill(o.grads, 2, n, DATA_GAUSS, step);
        ranks_run(&r, compute_beside, &o);
        ranks_ok(&r);
        check_scene("step %d took %g s", step, fmax(o.seconds[0], o.seconds[1]) - before);
        check_true(fmax(o.seconds[0], o.seconds[1]) - before < 0.1);
    }
    ranks_close(&r);
    rows_free(o.grads);
}

/* Applied sums + residuals = gradients, exactly. */
static void check_ledger(ranks *r, int64_t n, const double *given, const double *applied) {
    float **left = rows_alloc(r->nranks, n);
    ranks_get_residuals(r, 0, left, n);
    for (int64_t i = 0; i < n; i++) {
        double kept = 0.0;
        for (int rank = 0; rank < r->nranks; rank++)
            kept += (double)left[rank][i];
        if (applied[i] + kept != given[i]) {
            check_fail("element %lld: applied %g + residuals %g, given %g", (long long)i,
                       applied[i], kept, given[i]);
        }
    }
    rows_free(left);
}

static void conserve_on_hosts(int nranks, int host_ranks, const char *wire, int64_t n, int64_t k) {
    tw_group_params params = ranks_params("twolevel", k);
    tw_network network = gigabit;
    ranks r;
    float **grads = rows_alloc(nranks, n), **outs = rows_alloc(nranks, n);
    double *given = check_alloc(2 * n, sizeof *given), *applied = given + n;
    memset(given, 0, 2 * (size_t)n * sizeof *given);
    check_scene("P=%d, %d on a host, %s, n=%lld", nranks, host_ranks, wire, (long long)n);
    params.wire = wire;
    params.result = TW_SUM;
    network.host_ranks = host_ranks;
    simulated_open(&r, nranks, &network, &params, n);
    for (int step = 0; step < STEPS; step++) {
        rows_fill(grads, nranks, n, DATA_SUMMABLE, step);
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        for (int rank = 0; rank < nranks; rank++) {
            check_bits("out", outs[rank], outs[0], n);
            for (int64_t i = 0; i < n; i++)
                given[i] += (double)grads[rank][i];
        }
        for (int64_t i = 0; i < n; i++)
            applied[i] += (double)outs[0][i];
    }
    check_ledger(&r, n, given, applied);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    free(given);
}

/* Equal hosts, a smaller last host (also the second of two, with more than one rank), hosts with more
 * ranks than a butterfly level. */
static void test_hosts_conserve(void **state) {
    (void)state;
    static const int hosts[][2] = {{4, 2}, {6, 2}, {6, 3},  {7, 3},  {5, 3},
                                   {6, 4}, {8, 5}, {12, 4}, {15, 5}, {20, 10}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        conserve_on_hosts(hosts[i][0], hosts[i][1], "raw", 2003, 100);
        conserve_on_hosts(hosts[i][0], hosts[i][1], "bf16", 2003, 100);
        conserve_on_hosts(hosts[i][0], hosts[i][1], "raw", 5, 2);
    }
}

/* Ranks that share a link send less over it after they have summed within the host. */
static void test_hosts_pay(void **state) {
    (void)state;
    const int64_t n = 200000;
    tw_network network = gigabit;
    network.host_ranks = 4;
    network.local_latency = 1e-6;
    network.local_bandwidth = 10e9;
    float **outs = rows_alloc(16, n);
    const double two = time_of(16, &network, "twolevel", n, outs);
    const double flat = time_of(16, &network, "logtopk", n, outs);
    const double oktopk = time_of(16, &network, "oktopk", n, outs);
    check_scene("twolevel %g s, logtopk %g s, oktopk %g s", two, flat, oktopk);
    check_true(2.0 * two < flat && 2.0 * two < oktopk);
    rows_free(outs);
}

static void test_elapse(void **state) {
    (void)state;
    tw_transport *ends[2], *plain;
    check_ok(tw_transport_simulated(ends, 2, &gigabit));
    check_ok(tw_transport_elapse(ends[1], 0.25));
    check_true(fabs(tw_transport_clock(ends[1]) - 0.25) < 1e-9);
    check_true(tw_transport_clock(ends[0]) < 1e-9);
    check_error(tw_transport_elapse(ends[1], -1.0), TW_ERR_PARAM);
    check_ok(tw_transport_self(&plain));
    check_error(tw_transport_elapse(plain, 1.0), TW_ERR_STATE);
    check_true(tw_transport_clock(plain) == 0.0);
    tw_transport_free(plain);
    tw_transport_free(ends[0]);
    tw_transport_free(ends[1]);
}

/* The network has fixed ranks, though its messages travel as those between threads. */
static void test_not_elastic(void **state) {
    (void)state;
    tw_transport *ends[2];
    tw_group *group;
    tw_group_params params = ranks_params("oktopk", 10);
    params.membership = TW_MEMBERSHIP_ELASTIC;
    check_ok(tw_transport_simulated(ends, 2, &gigabit));
    check_error(tw_group_create(&group, ends[0], &params), TW_ERR_TRANSPORT);
    check_contains(tw_last_error(), "its ranks cannot change");
    tw_transport_free(ends[0]);
    tw_transport_free(ends[1]);
}

static void test_bad_networks(void **state) {
    (void)state;
    tw_transport *ends[4];
    const struct {
        tw_network network;
        const char *field;
    } rows[] = {
        {{.latency = -1.0, .bandwidth = 1e9}, "latency"},
        {{.latency = 1e-6}, "bandwidth"},
        {{.latency = 1e-6, .bandwidth = 1e9, .jitter = 2.0}, "jitter"},
        {{.latency = 1e-6, .bandwidth = 1e9, .host_ranks = -1}, "host_ranks"},
        {{.latency = 1e-6, .bandwidth = 1e9, .slowdown = 2.0, .straggler = 4}, "straggler"},
        {{.latency = NAN, .bandwidth = 1e9}, "latency"},
        {{.latency = 1e-6, .bandwidth = 1e9, .overhead = -1.0}, "overhead"},
        {{.latency = 1e-6, .bandwidth = 1e9, .computing = -1.0}, "computing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_error(tw_transport_simulated(ends, 4, &rows[i].network), TW_ERR_PARAM);
        check_contains(tw_last_error(), rows[i].field);
    }
    check_error(tw_transport_simulated(ends, 4, NULL), TW_ERR_NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_takes_what_it_must),
        cmocka_unit_test(test_same_time_same_result),
        cmocka_unit_test(test_same_time_in_pieces),
        cmocka_unit_test(test_slower_networks),
        cmocka_unit_test(test_overhead),
        cmocka_unit_test(test_computing),
        cmocka_unit_test(test_computing_beside_steps),
        cmocka_unit_test(test_hosts_conserve),
        cmocka_unit_test(test_hosts_pay),
        cmocka_unit_test(test_elapse),
        cmocka_unit_test(test_not_elastic),
        cmocka_unit_test(test_bad_networks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
