/* test_kill_matrix.c - a process dies before each of its system calls, one after the other
 *
 *   test_kill_matrix        some points, without SIGSTOP
 *   test_kill_matrix EVERY  every EVERY-th point; 1: all of them
 *
 * Each run is a job of five: they meet, open a group, make steps, save and load, one leaves, and over tcp
 * one joins. One of them dies before its n-th call to send, connect, fsync or rename, in the six ways in
 * turn. Three scripts: a rank dies; it dies in the tw_group_shrink after another's death; the one that
 * joins dies. For each exchange and transport n grows until the script ends before that call.
 *
 * Then the others must go on: ledger.c compares their residuals, results and steps, errors must name the
 * one that died, and the next step must be complete within the timeout, or within 30 s if the process was
 * stopped. Prints the number of deaths in each call of the library. */
#include "check.h"
#include "churn.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 5, STALLED = 30, LAST = 8, MANY = 100000 };

typedef enum { A_RANK, IN_SHRINK, A_NEWCOMER, SCRIPTS } script;

static const char *const phase_names[] = {
#define PHASE_NAME(name) #name,
    PHASES(PHASE_NAME)
#undef PHASE_NAME
};

static char folder[] = "/tmp/test_kill_matrix-XXXXXX"; /* of saved states */

static int is_quick;

static struct {
    int deaths[NPHASES][WAYS];
    int not_met; /* of those in meet: no job came about */
} matrix;

/* ---- one run */

/* "0, 1": those that have not come. Ranks that have given up are among them. */
static int is_named(const char *list, int victim) {
    for (char *end; *list != '\0'; list = *end == ',' ? end + 1 : "")
        if (strtol(list, &end, 10) == victim)
            return 1;
    return 0;
}

/* If a rank dies before all have met there is no job. The meeting point names the one that is missing. */
static int has_met(int victim) {
    int count = 0;
    for (int i = 0; i < RANKS; i++) {
        const char *text = ended[i] == NOT_MET ? strstr(j->lives[i].text, "from rank ") : NULL;
        count += ended[i] == NOT_MET;
        if (text != NULL && i != victim && !is_named(text + 10, victim))
            violation("process %d does not name %d: %s", i, victim, j->lives[i].text);
    }
    return count == 0;
}

static int ranks_running(void) {
    int count = 0;
    for (int i = 0; i < RANKS; i++)
        count += ended[i] < 0;
    return count;
}

static int has_ended(int victim) {
    return ended[victim] >= 0 || j->lives[victim].done > LAST;
}

enum { LEAVER = RANKS - 2, FIRST_DEAD = RANKS - 1 };

static int victim_of(script s, int64_t n) {
    return s == A_NEWCOMER ? RANKS : (int)(n / WAYS % (RANKS - 1));
}

/* Whether the process died; *in: where. */
static int run_point(const char *exchange, int tcp, script s, int64_t n, way how, phase *in) {
    int victim = victim_of(s, n), sound = 1;
    life *l = &j->lives[victim];
    job_begin(exchange, tcp, 2.0);
    snprintf(j->folder, sizeof j->folder, "%s", folder);
    j->faults = 1;
    l->die_at = n;
    l->die_way = (int)how;
    l->die_in_shrink = s == IN_SHRINK;
    j->lives[FIRST_DEAD].die_after = s == IN_SHRINK ? 2 : 0;
    j->lives[LEAVER].leave = s == A_RANK;
    job_start(RANKS);
    if (tcp && s != IN_SHRINK)
        (void)job_start_newcomer();
    processes[victim].fate = how;
    if (s == IN_SHRINK)
        processes[FIRST_DEAD].fate = KILL;
    while (sound && !has_ended(victim) && ranks_running() > 0)
        sound = job_poll(STALLED);
    int died = l->calls >= n;
    *in = (phase)l->died_in;
    if (!died)
        processes[victim].fate = NOTHING;
    while (sound && died && *in == IN_meet && j->checked == 0 && ranks_running() > 0)
        sound = job_poll(STALLED);
    if (j->checked == 0 && !has_met(victim)) {
        matrix.not_met++;
        sound = 0; /* there are no members */
    }
    job_end(sound, STALLED);
    return died;
}

/* ---- the matrix */

static void run_script(const char *exchange, int tcp, script s, int every) {
    static int turn;
    for (int64_t n = 1 + (every > 1 ? turn % every : 0); n < MANY; n += every) {
        way how = (way)(turn++ % (is_quick ? STOP : WAYS));
        phase in;
        int before = counts.violations;
        if (!run_point(exchange, tcp, s, n, how, &in)) {
            if (victim_of(s, n) == LEAVER) /* it leaves early: the others' scripts are longer */
                continue;
            break;
        }
        matrix.deaths[in][how]++;
        if (counts.violations > before)
            printf("  script %d, call %lld, in %s, way %d\n", s, (long long)n, phase_names[in],
                   how);
        (void)fflush(stdout);
    }
}

static void print_matrix(void) {
    printf("%-8s %8s %8s %8s %8s %8s %8s\n", "died in", "exit 0", "exit 1", "abort", "SIGKILL",
           "SIGTERM", "SIGSTOP");
    for (int p = 0; p < NPHASES; p++) {
        printf("%-8s", phase_names[p]);
        for (int w = 0; w < WAYS; w++)
            printf(" %8d", matrix.deaths[p][w]);
        printf("\n");
    }
    printf("%d of those in meet left no job; %lld steps, %d violations\n", matrix.not_met,
           counts.steps, counts.violations);
}

static void remove_folder(void) {
    DIR *files = opendir(folder);
    for (struct dirent *file; files != NULL && (file = readdir(files)) != NULL;)
        if (file->d_name[0] != '.')
            (void)unlinkat(dirfd(files), file->d_name, 0);
    if (files != NULL)
        (void)closedir(files);
    (void)rmdir(folder);
}

int main(int argc, char **argv) {
    int every = argc > 1 ? atoi(argv[1]) : 151;
    is_quick = argc < 2;
    if (mkdtemp(folder) == NULL)
        abort();
    jobs_open(NULL);
    for (int e = 0; e < check_exchanges(); e++)
        for (int tcp = 0; tcp <= 1; tcp++)
            for (int s = 0; s < SCRIPTS; s++)
                if ((tcp || s != A_NEWCOMER) && (!is_quick || (e + tcp + s) % 3 == 0))
                    run_script(check_exchange(e), tcp, (script)s, every);
    print_matrix();
    remove_folder();
    return counts.violations > 0;
}
