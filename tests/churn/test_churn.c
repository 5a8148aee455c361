/* test_churn.c - processes step in an elastic group while they are killed, leave and join at random
 *
 *   test_churn [SECONDS [SEED [PREFIX]]]    5 seconds, unless given; with PREFIX on the hosts that
 *                                           `NETLAB_PREFIX=PREFIX scripts/netlab-hosts up` has made
 *
 * Up to MOST processes. Every 0.5 to 2 seconds (in a run of less than 30 s: 0.1 to 0.4) one is killed in
 * one of the six WAYS, or leaves. Over tcp others join. Each job has one exchange and one transport; many
 * follow each other. After every step ledger.c compares what they hold. One that is stopped goes on after
 * a while: in time, or too late.
 *
 * At most so many are lost at a time that the others are a quorum. Ends with status 1 if anything was
 * wrong, or if no step was completed in 60 seconds. */
#include "check.h"
#include "churn.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST = 8, STALLED = 60 };

static const char *const way_names[] = {"exit 0",  "exit 1",  "abort",
                                        "SIGKILL", "SIGTERM", "SIGSTOP"};
static const int signals[WAYS] = {SIGUSR1, SIGUSR2, SIGABRT, SIGKILL, SIGTERM, SIGSTOP};

static oracle_rng rng;
static int over_hosts;
static int is_short; /* less than 30 s: more often, and nobody is stopped for long */

/* ---- the table */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *what, times *t) {
    qsort(t->values, (size_t)t->count, sizeof *t->values, compare_doubles);
    if (t->count > 0)
        printf("%-28s median %.3f s, worst %.3f s, of %d\n", what, t->values[t->count / 2],
               t->values[t->count - 1], t->count);
}

static void print_table(double seconds) {
    printf("\n%.0f s, %d jobs, %lld steps\n", seconds, counts.jobs, counts.steps);
    for (int w = 0; w < WAYS; w++)
        printf("%-28s %d\n", way_names[w], counts.kills[w]);
    printf("%-28s %d\n", "  of these back in time", counts.back);
    printf("%-28s %d\n", "late without being stopped", counts.late);
    printf("%-28s %d\n", "died in a completed step", counts.doubts);
    printf("%-28s %d\n", "leaves", counts.leaves);
    printf("%-28s %d\n", "joins", counts.joins);
    printf("%-28s %d\n", "newcomers not admitted", counts.refused);
    print_times("next step after a death", &counts.closed);
    print_times("next step after a stop", &counts.stopped);
    printf("%-28s %d\n", "violations", counts.violations);
}

/* ---- events */

static double uniform(double low, double high) {
    return low + (high - low) * oracle_uniform(&rng);
}

/* One at a time: an heir must stay. */
static int is_leaving(void) {
    int count = 0;
    for (int i = 0; i < j->nlives; i++)
        count += ended[i] < 0 && processes[i].fate == LEAVE;
    return count > 0;
}

static void strike(int number) {
    process *p = &processes[number];
    p->when = seconds_now();
    if (oracle_below(&rng, 5) == 0 && !is_leaving()) {
        p->fate = LEAVE;
        j->lives[number].leave = 1;
        return;
    }
    p->fate = (way)oracle_below(&rng, WAYS);
    if (p->fate == STOP) {
        int lasting = !is_short && oracle_below(&rng, 2) == 0;
        p->resume = p->when + (lasting ? j->timeout + uniform(1, 3) : uniform(0.05, 0.5));
    }
    counts.kills[p->fate]++;
    if (kill(p->pid, signals[p->fate]) != 0)
        abort();
}

/* Any process, if those that are left then are a quorum whatever becomes of the others. */
static void strike_any(void) {
    int left = members.nranks - job_going() - 1, choice;
    if (2 * left <= members.nranks || left < 3)
        return;
    do
        choice = (int)oracle_below(&rng, j->nlives);
    while (ended[choice] >= 0 || processes[choice].fate != NOTHING);
    strike(choice);
}

static void run_job(int number, double seconds) {
    double end = seconds_now() + seconds, next = 0;
    int sound = 1;
    job_begin(check_exchange(number / 2 % check_exchanges()), over_hosts || number % 2,
              is_short ? 3 : 5);
    job_start(FIRST);
    while (sound && seconds_now() < end && j->nlives < LIVES) {
        sound = job_poll(STALLED);
        if (seconds_now() < next || members.nranks == 0)
            continue;
        next = seconds_now() + (is_short ? uniform(0.1, 0.4) : uniform(0.5, 2));
        strike_any();
        if (j->tcp && job_running() < MOST && oracle_below(&rng, 5) > 0)
            (void)job_start_newcomer();
    }
    job_end(sound, STALLED);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 5, begin = seconds_now();
    if (argc > 4 || !(seconds > 0.0)) {
        (void)fprintf(stderr, "usage: test_churn [SECONDS [SEED [PREFIX]]]\n");
        return 2;
    }
    double share = seconds / 16 > 60 ? 60 : seconds / 16 < 2.5 ? 2.5 : seconds / 16;
    is_short = seconds < 30;
    rng.key = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    over_hosts = argc > 3;
    jobs_open(over_hosts ? argv[3] : NULL);
    for (int n = 0; seconds_now() - begin < seconds && counts.violations == 0; n++)
        run_job(n, share);
    print_table(seconds_now() - begin);
    return counts.violations > 0;
}
