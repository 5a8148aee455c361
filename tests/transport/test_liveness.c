/* test_roll_call.c - a rank that does not come is named by all others, and no other rank is
 *
 * Waits are cut to 0.3 s. What a member was told is in its text; the main thread looks at it. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "crew.h"

static member crew[CREW_MOST];

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* Is silent until the others have given up: of one that has gone, sockets know at once. */
static void be_absent(void) {
    if (crew_on_sockets)
        nap(1.0);
}

/* Waits for a byte from a rank that will not come. Keeps what was said. */
static int await(member *m, int from, double timeout) {
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
        if (i != missing && strncmp(crew[i].text, want, strlen(want)) != 0)
            check_fail("rank %d says \"%s\", expected \"%s\"", i, crew[i].text, want);
}

/* Rank 0 waits for 1, 1 for 2, and so on; the last one never comes. The others start one after
 * the other, so that some have given up when the deadline of others is still to come. */
static void play_chain(member *m) {
    nap(m->rank * 0.07);
    if (m->rank == m->nranks - 1)
        be_absent();
    else
        crew_true(m, await(m, m->rank + 1, 0.3) == TW_ERR_TIMEOUT);
}

static void test_chain(void **state) {
    (void)state;
    crew_run(4, 0, play_chain, crew);
    check_texts(4, 3, "no answer within 0.3 s from rank 3; is it stopped or dead?");
}

/* The same with deadlines that come sooner the nearer to the end: each but the first hears of it from
 * one that has gone when it looks. The reason must still be the one at the end. */
static void play_ebb(member *m) {
    if (m->rank == m->nranks - 1)
        be_absent();
    else
        crew_true(m,
                  await(m, m->rank + 1, m->rank == m->nranks - 2 ? 0.3 : 60.0) == TW_ERR_TIMEOUT);
}

static void test_ebb(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        crew_run(4, 0, play_ebb, crew);
        check_texts(4, 3, "no answer within 0.3 s from rank 3; is it stopped or dead?");
    }
}

/* One rank is impatient: those whose deadline is far off fail with its words. */
static void play_impatient(member *m) {
    if (m->rank == 2) {
        be_absent();
        return;
    }
    int64_t begin = tw__clock();
    crew_true(m, await(m, 2, m->rank == 0 ? 0.3 : 60.0) == TW_ERR_TIMEOUT);
    crew_true(m, tw__clock() - begin < 20 * TW__SECOND);
}

static void test_impatient(void **state) {
    (void)state;
    crew_run(5, 0, play_impatient, crew);
    check_texts(5, 2, "no answer within 0.3 s from rank 2; is it stopped or dead?");
    check_contains(crew[4].text, "(says rank 0)");
}

/* Rank 0 is past its deadline, and waits for answers, when rank 1 gives up for a reason of its own:
 * that is the reason then. Rank 2 is silent. */
static void play_reason(member *m) {
    if (m->rank == 2)
        be_absent();
    if (m->rank == 1) {
        nap(0.45);
        (void)tw__transport_give_up(m->transport, tw__fail(TW_ERR_DAMAGED, "a broken leg"));
    }
    if (m->rank == 0)
        crew_true(m, await(m, 1, 0.3) == TW_ERR_DAMAGED);
}

static void test_reason(void **state) {
    (void)state;
    crew_run(3, 0, play_reason, crew);
    check_contains(crew[0].text, "a broken leg (says rank 1)");
}

/* A simulated network holds a few messages of a pair: whoever has more to send waits no longer than
 * for any other. */
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

/* In a rotation everybody waits for everybody. */
static void play_rotation(member *m) {
    uint32_t counts[100] = {0};
    if (m->rank == 1) {
        be_absent();
        return;
    }
    tw__transport_set_timeout(m->transport, 0.3);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, 100));
    int status = tw__sum_counts(m->transport, counts, 100, scratch);
    snprintf(m->text, sizeof m->text, "%s", tw_last_error());
    free(scratch);
    crew_true(m, status == TW_ERR_TIMEOUT);
}

static void test_rotation(void **state) {
    (void)state;
    crew_run(8, 0, play_rotation, crew);
    check_texts(8, 1, "no answer within 0.3 s from rank 1; is it stopped or dead?");
}

static void play_alone(member *m) {
    if (m->rank == 0)
        crew_true(m, await(m, 5, 0.3) == TW_ERR_TIMEOUT);
    else
        be_absent();
}

static void test_alone(void **state) {
    (void)state;
    crew_run(24, 0, play_alone, crew);
    assert_string_equal(crew[0].text,
                        "no answer within 0.3 s from ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "
                        "13, 14, 15, 16 and 7 more; are they stopped or dead?");
}

/* All are there, and wait for each other: the calls are not the same. */
static void play_crossed(member *m) {
    crew_true(m, await(m, 1 - m->rank, 0.3) == TW_ERR_TIMEOUT);
}

static void test_crossed(void **state) {
    (void)state;
    crew_run(2, 0, play_crossed, crew);
    for (int i = 0; i < 2; i++) {
        check_contains(crew[i].text, "all ranks answer, but within 0.3 s rank");
        check_contains(crew[i].text, "are the calls in the same order on all ranks?");
    }
}

/* A rank that comes late, but before the deadline, harms nobody. It is asked and told nothing. */
static void play_late(member *m) {
    uint32_t counts[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    if (m->rank == 0)
        nap(0.25);
    void *scratch = tw__alloc(tw__sum_counts_memory(m->nranks, 10));
    int status = tw__sum_counts(m->transport, counts, 10, scratch);
    free(scratch);
    crew_ok(m, status);
    crew_true(m, counts[0] == 3 && counts[9] == 3);
    crew_ok(m, tw__transport_acquire(m->transport));
}

static void test_late(void **state) {
    (void)state;
    crew_run(3, 0, play_late, crew);
}

int main(int argc, char **argv) {
    crew_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),     cmocka_unit_test(test_ebb),
        cmocka_unit_test(test_impatient), cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_alone),     cmocka_unit_test(test_crossed),
        cmocka_unit_test(test_late),      cmocka_unit_test(test_reason),
        cmocka_unit_test(test_full_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
