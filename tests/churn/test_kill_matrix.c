/* test_kill_matrix.c - a process dies at each of its fault points, one after the other
 *
 *   test_kill_matrix        some points, without SIGSTOP
 *   test_kill_matrix EVERY  every EVERY-th point, 1: all of them; exchanges side by side
 *
 * Each run is a job of five: they meet, open a group, make steps, save and load, one leaves, and over tcp
 * one joins. One of them dies at its n-th fault point (faults.c), in the six ways in turn. Three scripts:
 * a rank dies; it dies in the tw_group_shrink after another's death; the one that joins dies. For each
 * transport n grows until the script ends before that point. A point is repeated until its place in the
 * library has seen all six ways.
 *
 * Then the others must go on: ledger.c compares their residuals, results and steps, errors must name the
 * one that died, and the next step must be complete within the timeout, or within 30 s if the process was
 * stopped. Prints the number of deaths in each place. */
#include "check.h"
#include "churn.h"

#include <dirent.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 5, STALLED = 30, LAST = 8, MANY = 100000 };

typedef enum { A_RANK, IN_SHRINK, A_NEWCOMER, SCRIPTS } script;

static char folder[] = "/tmp/test_kill_matrix-XXXXXX"; /* of saved states */

static int is_quick;

/* Where a process dies: a phase, or in an exchange that many messages after its begin. */
enum { PART = RANKS - 1, PARTS = 16, PLACES = NPHASES + PARTS };

static struct {
    int deaths[2][PLACES][WAYS]; /* sockets, tcp */
    int not_met;                 /* of those in meet: no job came about */
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

static int place_of(const life *l) {
    int part = (l->died_at - 1) / PART;
    return l->died_at == 0 ? l->died_in : NPHASES + (part < PARTS ? part : PARTS - 1);
}

/* Whether the process died; *place: where. */
static int run_point(const char *exchange, int tcp, script s, int64_t n, way how, int *place) {
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
    int died = l->points >= n;
    *place = place_of(l);
    if (!died)
        processes[victim].fate = NOTHING;
    while (sound && died && *place == IN_meet && j->checked == 0 && ranks_running() > 0)
        sound = job_poll(STALLED);
    if (j->checked == 0 && !has_met(victim)) {
        matrix.not_met++;
        sound = 0; /* there are no members */
    }
    job_end(sound, STALLED);
    return died;
}

/* ---- the matrix */

/* The way in which fewest have died there. */
static way rarest(const int *deaths) {
    way best = EXIT_0;
    for (way how = EXIT_1; how < (is_quick ? STOP : WAYS); how++)
        if (deaths[how] < deaths[best])
            best = how;
    return best;
}

static void run_script(const char *exchange, int tcp, script s, int every) {
    static int turn;
    int place = IN_meet;
    for (int64_t n = 1 + (every > 1 ? turn++ % every : 0); n < MANY;) {
        way how = is_quick ? (way)(turn++ % STOP) : rarest(matrix.deaths[tcp][place]);
        int before = counts.violations;
        if (!run_point(exchange, tcp, s, n, how, &place)) {
            if (victim_of(s, n) != LEAVER) /* it leaves early: the others' scripts are longer */
                break;
            n += every;
            continue;
        }
        int *deaths = matrix.deaths[tcp][place];
        deaths[how]++;
        if (counts.violations > before)
            printf("  script %d, point %lld, in %s, message %d, way %d\n", s, (long long)n,
                   phase_names[j->lives[victim_of(s, n)].died_in],
                   j->lives[victim_of(s, n)].died_at, how);
        (void)fflush(stdout);
        if (is_quick || deaths[rarest(deaths)] > 0)
            n += every;
    }
}

static void print_place(int tcp, int place) {
    const int *deaths = matrix.deaths[tcp][place];
    int sum = 0;
    for (int w = 0; w < WAYS; w++)
        sum += deaths[w];
    if (sum == 0)
        return;
    printf("%-8s", tcp ? "tcp" : "sockets");
    if (place < NPHASES)
        printf("%-12s", phase_names[place]);
    else
        printf("message %2d..", (place - NPHASES) * PART + 1);
    for (int w = 0; w < WAYS; w++)
        printf(" %7d", deaths[w]);
    printf("\n");
}

static void print_matrix(const char *title) {
    printf("%s\n%-8s%-12s %7s %7s %7s %7s %7s %7s\n", title, "over", "died in", "exit 0", "exit 1",
           "abort", "SIGKILL", "SIGTERM", "SIGSTOP");
    for (int tcp = 0; tcp <= 1; tcp++)
        for (int place = 0; place < PLACES; place++)
            print_place(tcp, place);
    printf(
        "%d of those in meet left no job; %lld steps, %d violations; longest pause of this check "
        "%.3f s\n",
        matrix.not_met, counts.steps, counts.violations, counts.longest_poll);
    (void)fflush(stdout);
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

static void run_exchange(int e, int every) {
    for (int tcp = 0; tcp <= 1; tcp++)
        for (int s = 0; s < SCRIPTS; s++)
            if ((tcp || s != A_NEWCOMER) && (!is_quick || (e + tcp + s) % 3 == 0))
                run_script(check_exchange(e), tcp, (script)s, every);
}

/* Exchanges first .. end-1. Returns whether something was wrong. */
static int run_exchanges(const char *title, int first, int end, int every) {
    jobs_open(NULL);
    if (mkdtemp(folder) == NULL)
        abort();
    for (int e = first; e < end; e++)
        run_exchange(e, every);
    print_matrix(title);
    remove_folder();
    return counts.violations > 0;
}

/* A loopback network of its own: an exchange leaves thousands of closed connections behind, and their
 * ports stay taken for a minute. */
static void enter_own_network(void) {
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        perror("test_kill_matrix: exchanges share the ports of this machine");
        return;
    }
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0)
        abort();
    (void)close(fd);
}

/* Each in a process of its own: most of the time they wait for deadlines. */
static int run_side_by_side(int every) {
    int status, failed = 0;
    for (int e = 0; e < check_exchanges(); e++)
        if (fork() == 0) {
            enter_own_network();
            _exit(run_exchanges(check_exchange(e), e, e + 1, every));
        }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

int main(int argc, char **argv) {
    static char output[1 << 16]; /* a table appears at once */
    (void)setvbuf(stdout, output, _IOFBF, sizeof output);
    is_quick = argc < 2;
    if (argc > 2 || (!is_quick && atoi(argv[1]) < 1)) {
        (void)fprintf(stderr, "usage: test_kill_matrix [EVERY], from 1 on\n");
        return 2;
    }
    return is_quick ? run_exchanges("some points", 0, check_exchanges(), 151)
                    : run_side_by_side(atoi(argv[1]));
}
