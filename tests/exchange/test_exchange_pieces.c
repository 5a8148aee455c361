/* test_exchange_pieces.c - allgather cuts long lists into pieces, and nobody can tell from the result
 *
 * A list is cut from 131,073 entries on. Lists of other ranks may be shorter, or empty. Expected is what
 * whole lists give: in a wire format, values rounded as in one message.
 *
 *     test_exchange_pieces [FILTER]     "test_small" is the part for ThreadSanitizer
 */
#include <stdlib.h>
#include <string.h>

#include "exchange/job.h"
#include "exchange_check.h"
#include "group/group.h"
#include "relay.h"
#include "thinwire_sim.h"
#include "transport/transport_internal.h"

enum { N = 700001, K = 300000 }; /* three pieces */

/* ---- full lists */

static void test_supports(void **state) {
    (void)state;
    const int64_t ks[] = {131073, 262144, 300000, 400001};
    for (int p = 2; p <= 5; p++) {
        exchange_case t = exchange_case_default("allgather", p);
        t.n = N;
        t.k = ks[p - 2];
        t.kind = p == 3 ? SUPPORT_REGION : p == 4 ? SUPPORT_IDENTICAL : SUPPORT_RANDOM;
        t.mode = exchange_case_out(t.exchange, p);
        t.steps = 2;
        exchange_check(&t);
    }
}

/* More pieces than are under way at a time. */
static void test_many_pieces(void **state) {
    (void)state;
    exchange_case t = exchange_case_default("allgather", 3);
    t.k = 9 * TW__PIECE_ENTRIES + 1;
    t.n = 2 * t.k;
    t.steps = 1;
    exchange_check(&t);
}

/* The rank before is up to 22 messages ahead, more than TW__RING_RECVS. */
static void test_many_ranks(void **state) {
    (void)state;
    for (int pieces = 2; pieces <= 3; pieces++) {
        exchange_case t = exchange_case_default("allgather", 12);
        t.n = 300007;
        t.k = (pieces - 1) * TW__PIECE_ENTRIES + 1;
        t.steps = 1;
        exchange_check(&t);
    }
}

/* ---- lists of different lengths */

/* The rank's gradient has `count` non-zeros, from `first` on and `every` apart. */
typedef struct stretch {
    int64_t count, first, every;
} stretch;

static void fill_stretch(float *grad, const stretch *s, int rank) {
    memset(grad, 0, N * sizeof *grad);
    for (int64_t i = 0; i < s->count; i++)
        grad[s->first + i * s->every] = (float)(1 + (i * 37 + rank * 11) % 1000) * 0x1p-7f;
}

static const stretch lengths[][5] = {
    {{0, 0, 1}, {K, 0, 2}},                      /* nothing, all */
    {{K, 1, 2}, {0, 0, 1}},                      /* all, nothing */
    {{0, 0, 1}, {0, 0, 1}, {0, 0, 1}},           /* nothing anywhere */
    {{1, N - 1, 1}, {K, 0, 2}, {0, 0, 1}},       /* the last element */
    {{100096, 5, 1}, {K, 0, 1}, {100097, 0, 6}}, /* as much as a piece takes, and one more */
    {{K, N - K, 1}, {K, 0, 1}, {7, 3, 90000}, {200192, 0, 3}, {0, 0, 1}},
};
static const int sizes[] = {2, 2, 3, 3, 3, 5};

static void fill_lengths(float **grads, int i) {
    for (int rank = 0; rank < sizes[i]; rank++)
        fill_stretch(grads[rank], &lengths[i][rank], rank);
}

/* slow: the network takes 0.1 s for 2.4 MB, and ranks write sums to out while pieces travel. */
static void check_lengths(int i, int slow) {
    const int64_t n = N;
    tw_transport *transports[5];
    ranks r;
    exchange_oracle o;
    tw_group_params params = ranks_params("allgather", K);
    float **grads = rows_alloc(sizes[i], N), **outs = rows_alloc(sizes[i], N);
    relay *between = slow ? relay_open(transports, sizes[i]) : NULL;
    int64_t early = 0;
    check_scene("lengths %d, P=%d, slow=%d", i, sizes[i], slow);
    if (slow)
        ranks_adopt(&r, sizes[i], transports);
    else
        ranks_init(&r, sizes[i]);
    params.timeout = RANKS_TIMEOUT;
    ranks_try_open(&r, &params, &n, 1);
    ranks_ok(&r);
    exchange_oracle_open(&o, "allgather", sizes[i], N, K, TW_MEAN);
    fill_lengths(grads, i);
    for (int step = 0; step < 2; step++) {
        exchange_check_step(&r, &o, grads, outs);
        for (int rank = 0; rank < sizes[i]; rank++)
            early += r.groups[rank]->tensors[0].placed;
    }
    if (slow)
        check_true((early > 0) == (o.applied.count > 0));
    exchange_oracle_close(&o);
    ranks_close(&r);
    if (slow)
        relay_close(between);
    rows_free(grads);
    rows_free(outs);
}

static void test_small(void **state) {
    (void)state;
    check_lengths(4, 1);
}

static void test_lengths(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++)
        check_lengths(i, 0);
}

static void test_slow_network(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++)
        check_lengths(i, 1);
}

/* Returns the simulated seconds of two steps. */
static double simulated_seconds(int i, double latency) {
    const tw_network gigabit = {.latency = latency, .bandwidth = 125e6};
    const int64_t n = N;
    tw_transport *transports[5];
    ranks r;
    exchange_oracle o;
    tw_group_params params = ranks_params("allgather", K);
    float **grads = rows_alloc(sizes[i], N), **outs = rows_alloc(sizes[i], N);
    check_scene("simulated network, lengths %d, P=%d", i, sizes[i]);
    check_ok(tw_transport_simulated(transports, sizes[i], &gigabit));
    ranks_adopt(&r, sizes[i], transports);
    ranks_try_open(&r, &params, &n, 1);
    ranks_ok(&r);
    exchange_oracle_open(&o, "allgather", sizes[i], N, K, TW_MEAN);
    fill_lengths(grads, i);
    const double begin = tw_transport_clock(r.transports[0]);
    for (int step = 0; step < 2; step++)
        exchange_check_step(&r, &o, grads, outs);
    const double seconds = tw_transport_clock(r.transports[0]) - begin;
    exchange_oracle_close(&o);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    return seconds;
}

/* The same results, in the same time whatever the order of threads: that of the longest list at least. */
static void test_simulated_network(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        const double seconds = simulated_seconds(i, 50e-6), again = simulated_seconds(i, 50e-6);
        int64_t longest = 0;
        for (int rank = 1; rank < sizes[i]; rank++)
            longest = lengths[i][rank].count > longest ? lengths[i][rank].count : longest;
        check_scene("lengths %d: %.9f s, then %.9f s", i, seconds, again);
        check_true(seconds == again);
        check_true(seconds > 2.0 * 8.0 * (double)longest / 125e6);
    }
}

/* A piece need not be here before the next one is sent: a list costs a latency for each rank that it
 * passes, as if it were one message. Two more are for counts and the agreement on the step. */
static void test_long_links(void **state) {
    (void)state;
    const double latency = 0.04;
    for (int i = 0; i < 6; i++) {
        const double near = simulated_seconds(i, 0.0), far = simulated_seconds(i, latency);
        check_scene("lengths %d: %.6f s, %.6f s over long links", i, near, far);
        check_true(far - near < 2.0 * (sizes[i] + 1.5) * latency);
    }
}

/* Means over the ranks that have sent an element, of what whole lists give. */
static void test_means_of_senders(void **state) {
    (void)state;
    const int64_t n = N;
    for (int i = 0; i < 6; i++) {
        ranks r;
        tw_group_params params = ranks_params("allgather", K);
        params.result = TW_MEAN_OF_SENDERS;
        float **grads = rows_alloc(sizes[i], N), **outs = rows_alloc(sizes[i], N);
        float *want = check_alloc(N, sizeof *want);
        check_scene("senders, lengths %d, P=%d", i, sizes[i]);
        ranks_open(&r, sizes[i], &params, &n, 1);
        fill_lengths(grads, i);
        for (int64_t at = 0; at < N; at++) {
            float sum = 0.0f, senders = 0.0f;
            for (int rank = 0; rank < sizes[i]; rank++) {
                sum += grads[rank][at];
                senders += grads[rank][at] != 0.0f;
            }
            want[at] = senders > 0.0f ? sum / senders : 0.0f;
        }
        ranks_allreduce(&r, 0, (void *const *)grads, outs);
        ranks_ok(&r);
        for (int rank = 0; rank < sizes[i]; rank++)
            check_bits("out", outs[rank], want, N);
        ranks_close(&r);
        rows_free(grads);
        rows_free(outs);
        free(want);
    }
}

/* ---- wire formats */

/* What the other ranks see of a gradient whose non-zeros travel as one list. */
static void round_as_one(const tw__wire *wire, const float *grad, float *seen) {
    const tw__kernels *kernels;
    tw__entry *entries = check_alloc(N, sizeof *entries);
    tw__list list = {entries, 0};
    check_ok(tw__kernels_choose(&kernels));
    for (int32_t i = 0; i < N; i++)
        if (grad[i] != 0.0f)
            entries[list.count++] = (tw__entry){i, grad[i]};
    float *rounded = check_alloc(list.count + TW__WIRE_BLOCK, sizeof *rounded);
    void *bytes = check_alloc((int64_t)tw__wire_bound(wire, list.count, 0, N), 1);
    (void)tw__wire_encode(kernels, wire, &list, 0, N, bytes, rounded);
    memset(seen, 0, N * sizeof *seen);
    for (int64_t i = 0; i < list.count; i++)
        seen[entries[i].idx] = rounded[i];
    free(bytes);
    free(rounded);
    free(entries);
}

/* One step: results and residuals. huge: an element of this value; nothing of that rank is rounded. */
static void check_wire_step(int format, const stretch *lists, int nranks, float huge) {
    const tw__wire *wire = tw__wire_at(format);
    const int64_t n = N;
    ranks r;
    tw_group_params params = ranks_params("allgather", K);
    params.wire = wire->name;
    params.result = TW_SUM;
    float **grads = rows_alloc(nranks, N), **outs = rows_alloc(nranks, N);
    float **left = rows_alloc(nranks, N), *want = check_alloc(N, sizeof *want);
    check_scene("%s, P=%d, huge=%g", wire->name, nranks, (double)huge);
    ranks_open(&r, nranks, &params, &n, 1);
    memset(want, 0, N * sizeof *want);
    for (int rank = 0; rank < nranks; rank++) {
        const stretch *s = &lists[rank];
        fill_stretch(grads[rank], s, rank);
        if (rank == 0 && huge != 0.0f)
            grads[0][s->first + (s->count - 1) * s->every] = huge;
        if (rank == 0 && huge != 0.0f)
            memcpy(left[0], grads[0], N * sizeof(float));
        else
            round_as_one(wire, grads[rank], left[rank]);
        for (int64_t i = 0; i < N; i++) {
            want[i] += left[rank][i];
            left[rank][i] = grads[rank][i] - left[rank][i];
        }
    }
    ranks_allreduce(&r, 0, (void *const *)grads, outs);
    ranks_ok(&r);
    for (int rank = 0; rank < nranks; rank++)
        check_bits("out", outs[rank], want, N);
    ranks_check_residuals(&r, 0, left, N);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    rows_free(left);
    free(want);
}

static void test_wires(void **state) {
    (void)state;
    for (int format = 0; tw__wire_at(format) != NULL; format++)
        for (int i = 0; i < 6; i++)
            check_wire_step(format, lengths[i], sizes[i], 0.0f);
}

/* In the last piece alone: the first ones are not rounded either. */
static void test_huge_value(void **state) {
    (void)state;
    const stretch full[] = {{K, 0, 2}, {K, 1, 2}, {10, 0, 1}};
    for (int format = 0; tw__wire_at(format) != NULL; format++)
        check_wire_step(format, full, 3, 0x1p101f);
}

/* ---- a rank that fails between two pieces */

static struct {
    int (*send)(void *context, int peer, int tag, const void *data, size_t bytes, void **request);
    int target; /* the send that fails, and all after it */
    int sends;
} failing;

static int fail_from(void *context, int peer, int tag, const void *data, size_t bytes,
                     void **request) {
    if (tag == TW__TAG_DATA && failing.sends++ >= failing.target)
        return TW_ERR_TRANSPORT;
    return failing.send(context, peer, tag, data, bytes, request);
}

/* Of rank 1. */
static void fail_sends(ranks *r, int target) {
    tw_transport_calls *calls = &r->transports[1]->calls;
    failing.send = calls->send;
    failing.target = target;
    failing.sends = 0;
    calls->send = fail_from;
}

static void check_failure(const char *wire, int target) {
    const int64_t n = N;
    ranks r;
    tw_group_params params = ranks_params("allgather", K);
    params.wire = wire;
    float **grads = rows_alloc(3, N), **outs = rows_alloc(3, N), **zeros = rows_alloc(3, N);
    check_scene("%s: rank 1 cannot send message %d", wire, target);
    rows_fill(grads, 3, N, DATA_GAUSS, target);
    ranks_open(&r, 3, &params, &n, 1);
    fail_sends(&r, target);
    double begin = check_seconds();
    ranks_allreduce(&r, 0, (void *const *)grads, outs);
    check_true(check_seconds() - begin < RANKS_TIMEOUT / 2); /* nobody waits for the deadline */
    ranks_error(&r, TW_ERR_TRANSPORT);
    ranks_check_residuals(&r, 0, zeros, N);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    rows_free(zeros);
}

/* A step has two messages of agreement, then rank 1 sends its three pieces. Without the others, which it
 * passes on to rank 2, rank 0 is done. */
static void test_failure_between_pieces(void **state) {
    (void)state;
    for (int target = 2; target < 5; target++)
        check_failure(target % 2 ? "raw" : "q2", target);
}

/* ---- a rank that is lost between two pieces; the others repeat the step without it */

typedef struct losing {
    float **grads, **outs;
} losing;

static int is_broken(int error) {
    return error == TW_ERR_TRANSPORT || error == TW_ERR_TIMEOUT || error == TW_ERR_STATE;
}

static int lose_or_repeat(ranks *r, int rank, void *context) {
    const losing *l = context;
    int error = tw_allreduce(r->groups[rank], 0, l->grads[rank], l->outs[rank]);
    if (rank == 1) {
        tw_group_free(r->groups[1]);
        tw_transport_free(r->transports[1]);
        r->groups[1] = NULL;
        r->transports[1] = NULL;
        return is_broken(error) ? TW_OK : TW_ERR_DAMAGED;
    }
    if (!is_broken(error)) /* it has not been completed without all pieces */
        return TW_ERR_DAMAGED;
    do {
        error = tw_group_shrink(r->groups[rank], NULL);
        if (error == TW_OK)
            error = tw_allreduce(r->groups[rank], 0, l->grads[rank], l->outs[rank]);
    } while (is_broken(error));
    return error;
}

static void check_loss(const char *wire, int target) {
    const int64_t n = N;
    ranks r, twins; /* these never had the rank that is lost */
    losing l = {rows_alloc(4, N), rows_alloc(4, N)};
    float **outs = rows_alloc(3, N), **left = rows_alloc(3, N), *residual = check_alloc(N, 4);
    tw_group_params params = ranks_params("allgather", K);
    params.wire = wire;
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 20.0;
    check_scene("%s: rank 1 is lost at message %d", wire, target);
    rows_fill(l.grads, 4, N, DATA_GAUSS, target);
    float *grads[] = {l.grads[0], l.grads[2], l.grads[3]};
    ranks_open(&r, 4, &params, &n, 1);
    ranks_open(&twins, 3, &params, &n, 1);
    fail_sends(&r, target);
    ranks_run(&r, lose_or_repeat, &l);
    ranks_ok(&r);
    ranks_allreduce(&twins, 0, (void *const *)grads, outs);
    ranks_ok(&twins);
    ranks_get_residuals(&twins, 0, left, N);
    for (int twin = 0; twin < 3; twin++) {
        const int rank = twin > 0 ? twin + 1 : 0;
        check_bits("out", l.outs[rank], outs[twin], N);
        check_ok(tw_group_get_residual(r.groups[rank], 0, residual));
        check_bits("residual", residual, left[twin], N);
    }
    ranks_close(&r);
    ranks_close(&twins);
    rows_free(l.grads);
    rows_free(l.outs);
    rows_free(outs);
    rows_free(left);
    free(residual);
}

/* A step has three messages of agreement, then three of each piece. */
static void test_loss_between_pieces(void **state) {
    (void)state;
    for (int target = 4; target < 12; target++)
        check_loss(target % 2 ? "raw" : "q2", target);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_supports),
        cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_slow_network),
        cmocka_unit_test(test_simulated_network),
        cmocka_unit_test(test_long_links),
        cmocka_unit_test(test_means_of_senders),
        cmocka_unit_test(test_wires),
        cmocka_unit_test(test_huge_value),
        cmocka_unit_test(test_failure_between_pieces),
        cmocka_unit_test(test_loss_between_pieces),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
