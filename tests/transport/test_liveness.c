/* test_liveness.c - all ranks name the missing rank, and no other
 *
 * The timeout is 0.3 s. Each rank keeps its error text; the main thread checks it. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "transport/transport_internal.h"
#include "transport_ranks.h"
#include "thinwire_sim.h"

static test_rank all[RANKS_MAX];

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* Silent until the others have failed. A rank that returns closes its transport, which the others
 * would notice at once. */
static void stay_away(void) {
    nap(0.7);
}

/* Waits for a byte from a rank that does not send. Keeps the error text. */
static int await(test_rank *m, int from, double timeout) {
    char byte = 0;
    tw__message message;
    tw__transport_set_timeout(m->transport, timeout);
    int status = tw__transport_recv(m->transport, from, TW__CONTROL, &byte, 1, &message);
    if (status == TW_OK)
        status = tw__transport_wait(m->transport, &message, 1);
    snprintf(m->text, sizeof m->text, "%s", tw_last_error());
    return status;
}

static void check_texts(int nranks, int missing, const char *want) {
    for (int i = 0; i < nranks; i++)
        if (i != missing && strncmp(all[i].text, want, strlen(want)) != 0)
            check_fail("rank %d says \"%s\", expected \"%s\"", i, all[i].text, want);
}

/* Rank 0 waits for 1, 1 for 2, and so on; the last one is missing. They start one after the other, so
 * that some have aborted before the deadline of others. */
static void run_chain(test_rank *m) {
    nap(m->rank * 0.07);
    if (m->rank == m->nranks - 1)
        stay_away();
    else
        rank_check(m, await(m, m->rank + 1, 0.3) == TW_ERR_TIMEOUT);
}

static void test_chain(void **state) {
    (void)state;
    run_ranks(4, 0, run_chain, all);
    check_texts(4, 3, "no answer within 0.3 s from rank 3; is it stopped or dead?");
}

/* Only the last waiting rank has a short deadline. The others get its abort notice after it has
 * closed its transport, and must report its reason. */
static void run_cascade(test_rank *m) {
    if (m->rank == m->nranks - 1)
        stay_away();
    else
        rank_check(m,
                   await(m, m->rank + 1, m->rank == m->nranks - 2 ? 0.3 : 60.0) == TW_ERR_TIMEOUT);
}

static void test_cascade(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        run_ranks(4, 0, run_cascade, all);
        check_texts(4, 3, "no answer within 0.3 s from rank 3; is it stopped or dead?");
    }
}

/* One rank has a short deadline. The others fail with its text. */
static void run_short_deadline(test_rank *m) {
    if (m->rank == 2) {
        stay_away();
        return;
    }
    int64_t begin = tw__clock();
    rank_check(m, await(m, 2, m->rank == 0 ? 0.3 : 60.0) == TW_ERR_TIMEOUT);
    rank_check(m, tw__clock() - begin < 20 * TW__SECOND);
}

static void test_short_deadline(void **state) {
    (void)state;
    run_ranks(5, 0, run_short_deadline, all);
    check_texts(5, 2, "no answer within 0.3 s from rank 2; is it stopped or dead?");
    check_contains(all[4].text, "(says rank 0)");
}

/* Rank 0 has asked who is alive and waits for replies when rank 1 aborts: rank 0 fails with the
 * reason of rank 1. Rank 2 is silent. */
static void run_reason(test_rank *m) {
    if (m->rank == 2)
        stay_away();
    if (m->rank == 1) {
        nap(0.22);
        (void)tw__transport_abort(m->transport, tw__fail(TW_ERR_DAMAGED, "a broken disk"));
    }
    if (m->rank == 0)
        rank_check(m, await(m, 1, 0.3) == TW_ERR_DAMAGED);
}

static void test_reason(void **state) {
    (void)state;
    run_ranks(3, 0, run_reason, all);
    check_contains(all[0].text, "a broken disk (says rank 1)");
}

/* A simulated network has room for a few messages of a pair. A sender that waits for room keeps its
 * deadline. */
static void test_full_ring(void **state) {
    (void)state;
    const tw_network network = {.latency = 1e-6, .bandwidth = 1e9};
    tw_transport *transports[2];
    tw__message messages[20] = {{0}};
    const char byte = 1;
    int status = TW_OK;
    check_ok(tw_transport_simulated(transports, 2, &network));
    tw__transport_set_timeout(transports[0], 0.3);
    for (int i = 0; i < 20 && status == TW_OK; i++)
        status = tw__transport_send(transports[0], 1, TW__PAYLOAD, &byte, 1, &messages[i]);
    check_error(status, TW_ERR_TIMEOUT);
    check_contains(tw_last_error(), "no answer within 0.3 s from rank 1");
    tw__transport_cancel(transports[0], messages, 20);
    for (int i = 0; i < 2; i++)
        tw_transport_free(transports[i]);
}

/* In an alltoall every rank waits for every other. */
static void run_alltoall(test_rank *m) {
    uint32_t counts[100] = {0};
    if (m->rank == 1) {
        stay_away();
        return;
    }
    tw__transport_set_timeout(m->transport, 0.3);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, 100));
    int status = tw__sum_counts(m->transport, counts, 100, scratch);
    snprintf(m->text, sizeof m->text, "%s", tw_last_error());
    free(scratch);
    rank_check(m, status == TW_ERR_TIMEOUT);
}

static void test_alltoall(void **state) {
    (void)state;
    run_ranks(8, 0, run_alltoall, all);
    check_texts(8, 1, "no answer within 0.3 s from rank 1; is it stopped or dead?");
}

static void run_alone(test_rank *m) {
    if (m->rank == 0)
        rank_check(m, await(m, 5, 0.3) == TW_ERR_TIMEOUT);
    else
        stay_away();
}

static void test_alone(void **state) {
    (void)state;
    run_ranks(24, 0, run_alone, all);
    assert_string_equal(all[0].text,
                        "no answer within 0.3 s from ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "
                        "13, 14, 15, 16 and 7 more; are they stopped or dead?");
}

/* Both ranks are alive and wait for each other: their calls differ. */
static void run_crossed(test_rank *m) {
    rank_check(m, await(m, 1 - m->rank, 0.3) == TW_ERR_TIMEOUT);
}

static void test_crossed(void **state) {
    (void)state;
    run_ranks(2, 0, run_crossed, all);
    for (int i = 0; i < 2; i++) {
        check_contains(all[i].text, "all ranks answer, but within 0.3 s rank");
        check_contains(all[i].text, "are the calls in the same order on all ranks?");
    }
}

/* A rank that is late, but before the deadline, is no error. */
static void run_late(test_rank *m) {
    uint32_t counts[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (m->rank == 0)
        nap(0.25);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, 10));
    int status = tw__sum_counts(m->transport, counts, 10, scratch);
    free(scratch);
    rank_ok(m, status);
    rank_check(m, counts[0] == 3 && counts[9] == 3);
    rank_ok(m, tw__transport_acquire(m->transport));
}

static void test_late(void **state) {
    (void)state;
    run_ranks(3, 0, run_late, all);
}

/* Rank 1 sends a notice that is none: of an unknown kind, or cut off within its head. */
static void run_unknown_notice(test_rank *m) {
    static const tw__notice unknown = {.kind = 77};
    const size_t bytes = m->seed == 0 ? sizeof unknown : 1;
    void *request = NULL;
    size_t sent;
    int done = 0;
    if (m->rank == 0) {
        rank_check(m, await(m, 1, 20.0) == TW_ERR_PROTOCOL);
        return;
    }
    tw_transport *t = m->transport;
    rank_check(m, t->calls.send(t->context, 0, TW__TAG_LIVENESS, &unknown, bytes, &request) >= 0);
    while (request != NULL && done == 0)
        done = t->calls.test(t->context, request, &sent);
    stay_away();
}

static void test_unknown_notice(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        run_ranks(2, seed, run_unknown_notice, all);
        check_texts(2, 1, "liveness check: rank 1 sent ");
    }
}

int main(int argc, char **argv) {
    ranks_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),          cmocka_unit_test(test_cascade),
        cmocka_unit_test(test_short_deadline), cmocka_unit_test(test_alltoall),
        cmocka_unit_test(test_alone),          cmocka_unit_test(test_crossed),
        cmocka_unit_test(test_late),           cmocka_unit_test(test_reason),
        cmocka_unit_test(test_full_ring),      cmocka_unit_test(test_unknown_notice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
