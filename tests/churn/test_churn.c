/* test_churn.c - processes step in an elastic group while they are killed, leave and join at random
 *
 *   test_churn [SECONDS [SEED]]    5 seconds, unless given
 *
 * Up to MOST processes. Every 0.5 to 2 seconds (in a run of less than 30 s: 0.1 to 0.4) one is killed in one of the six WAYS, or leaves. Over tcp
 * others join. Each job has one exchange and one transport; many follow each other. After every step
 * ledger.c compares what they hold. One that is stopped goes on after a while: in time, or too late.
 *
 * At most so many are lost at a time that the others are a quorum. Ends with status 1 if anything was
 * wrong, or if no step was completed in 60 seconds. */
#include "churn.h"

#include "check.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FIRST = 8, STALLED = 60, TIMES = 65536 };

typedef enum { EXIT_0, EXIT_1, ABORT, KILL, TERM, STOP, WAYS, LEAVE = WAYS, NOTHING } way;
static const char *const way_names[] = {"exit 0",  "exit 1",  "abort",
                                        "SIGKILL", "SIGTERM", "SIGSTOP"};
static const int signals[WAYS] = {SIGUSR1, SIGUSR2, SIGABRT, SIGKILL, SIGTERM, SIGSTOP};

/* ---- what is counted */

typedef struct times {
    double values[TIMES];
    int count;
} times;

static struct {
    int kills[WAYS], back, leaves, joins, refused, late, doubts, jobs, violations;
    long long steps;
    times closed,
        stopped; /* seconds from a kill to the end of the next step without that process */
} counts;

static void add_time(times *t, double seconds) {
    if (t->count < TIMES)
        t->values[t->count++] = seconds;
}

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

/* ---- a job */

typedef struct process {
    pid_t pid;
    way fate;
    double when;   /* of its fate */
    double resume; /* of a stopped one; 0: it runs */
    int64_t done;  /* steps until then */
    int was_member, counted;
} process;

static job *j;
static ledger *book;
static process processes[LIVES];
static int ended[LIVES]; /* exit codes; -1: runs */
static step_members members;
static oracle_rng rng;
static double last_step;
static int is_short; /* less than 30 s: more often, and nobody is stopped for long */

static double uniform(double low, double high) {
    return low + (high - low) * oracle_uniform(&rng);
}

static void violation(const char *text) {
    printf("VIOLATION: %s %s, step %lld: %s\n", j->exchange, j->tcp ? "tcp" : "sockets",
           (long long)j->checked + 1, text);
    counts.violations++;
}

static void exit_0(int signal) {
    (void)signal;
    _exit(0);
}

static void exit_1(int signal) {
    (void)signal;
    _exit(1);
}

static void start_process(int joins, int rank, int nranks) {
    int number = j->nlives++;
    j->lives[number].joins = joins;
    j->lives[number].rank = rank;
    j->lives[number].nranks = nranks;
    processes[number] = (process){.fate = NOTHING};
    ended[number] = -1;
    fflush(stdout);
    pid_t pid = processes[number].pid = fork();
    if (pid < 0)
        abort();
    if (pid > 0)
        return;
    (void)signal(SIGUSR1, exit_0);
    (void)signal(SIGUSR2, exit_1);
    for (int a = 0; a < MOST; a++)
        for (int b = 0; b < MOST; b++)
            if (a != rank && life_sockets[a][b] > 0)
                (void)close(life_sockets[a][b]);
    life_run(j, number);
}

static void connect_all(int nranks) {
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
                abort();
            life_sockets[a][b] = pair[0];
            life_sockets[b][a] = pair[1];
        }
}

static void disconnect_all(void) {
    for (int a = 0; a < MOST; a++)
        for (int b = 0; b < MOST; b++)
            if (life_sockets[a][b] > 0)
                (void)close(life_sockets[a][b]);
    memset(life_sockets, 0, sizeof life_sockets);
}

static void choose_port(char *meet, size_t size) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        abort();
    (void)close(fd);
    snprintf(meet, size, "127.0.0.1:%d", ntohs(address.sin_port));
}

static void begin_job(int number, double timeout) {
    memset(j, 0, sizeof *j);
    memset(&members, 0, sizeof members);
    j->exchange = check_exchange(number / 2 % check_exchanges());
    j->tcp = number % 2;
    j->timeout = timeout;
    j->stop_at = INT64_MAX;
    book = ledger_open(j);
    if (book == NULL)
        abort();
    if (j->tcp)
        choose_port(j->meet, sizeof j->meet);
    else
        connect_all(FIRST);
    for (int r = 0; r < FIRST; r++)
        start_process(0, r, FIRST);
    disconnect_all();
    last_step = seconds_now();
    counts.jobs++;
}

/* ---- what became of them */

static int was_expected(const process *p, int code) {
    if (p->fate == NOTHING || p->fate == LEAVE)
        return code == LEFT || code == EXCLUDED || code == NOT_ADMITTED ||
               (code == ENDED && j->finished);
    return code != FAILED;
}

static void note_end(int number, int status) {
    process *p = &processes[number];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char text[640];
    ended[number] = code;
    p->resume = 0;
    counts.leaves += code == LEFT;
    counts.refused += code == NOT_ADMITTED;
    counts.late += code == EXCLUDED && p->fate == NOTHING;
    if (!was_expected(p, code)) {
        snprintf(text, sizeof text, "process %d ended with %d: %s", number, code,
                 j->lives[number].text);
        violation(text);
    }
}

static void reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < j->nlives; i++)
            if (processes[i].pid == pid && ended[i] < 0)
                note_end(i, status);
}

static int is_member(int number) {
    for (int r = 0; r < members.nranks; r++)
        if (members.lives[r] == number)
            return 1;
    return 0;
}

/* The first step without a process that was killed. */
static void note_times(void) {
    for (int i = 0; i < j->nlives; i++) {
        process *p = &processes[i];
        if (!p->was_member && is_member(i)) {
            p->was_member = 1;
            counts.joins += j->lives[i].joins;
        }
        if (p->was_member && !p->counted && !is_member(i) && p->fate < WAYS) {
            p->counted = 1;
            add_time(p->fate == STOP ? &counts.stopped : &counts.closed, members.when - p->when);
        }
    }
}

/* 0: something is wrong. */
static int check_steps(void) {
    char text[640];
    int status;
    while ((status = ledger_next(book, ended, &members, text, sizeof text)) > 0) {
        counts.steps++;
        last_step = seconds_now();
        note_times();
    }
    if (status < 0)
        violation(text);
    else if (seconds_now() - last_step > STALLED)
        violation("no step was completed in 60 s");
    return status == 0 && seconds_now() - last_step <= STALLED;
}

/* ---- events */

/* Processes that are there, and those among them that are to go. */
static int count_running(int going) {
    int count = 0;
    for (int i = 0; i < j->nlives; i++)
        count += (ended[i] < 0 || is_member(i)) &&
                 (!going || ended[i] >= 0 || processes[i].fate != NOTHING);
    return count;
}

static void resume_stopped(void) {
    for (int i = 0; i < j->nlives; i++) {
        process *p = &processes[i];
        if (p->resume == 0 || seconds_now() < p->resume)
            continue;
        p->resume = 0;
        p->done = j->lives[i].done;
        if (ended[i] < 0)
            (void)kill(p->pid, SIGCONT);
    }
}

/* One that has made a whole step since it was stopped is still a member. */
static void forgive(void) {
    for (int i = 0; i < j->nlives; i++) {
        process *p = &processes[i];
        if (p->fate == STOP && p->resume == 0 && ended[i] < 0 && j->lives[i].done >= p->done + 2) {
            p->fate = NOTHING;
            counts.back++;
        }
    }
}

static void strike(int number) {
    process *p = &processes[number];
    p->when = seconds_now();
    if (oracle_below(&rng, 5) == 0) {
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
    int running = count_running(0), going = count_running(1), choice;
    if (members.nranks == 0 || 2 * (running - going - 1) <= running || running - going < 4)
        return;
    do
        choice = (int)oracle_below(&rng, j->nlives);
    while (ended[choice] >= 0 || processes[choice].fate != NOTHING);
    strike(choice);
}

/* ---- the run */

static void end_all(void) {
    for (int i = 0; i < j->nlives; i++)
        if (ended[i] < 0) {
            processes[i].fate = KILL;
            (void)kill(processes[i].pid, SIGKILL);
        }
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

static int members_run(void) {
    int count = 0;
    for (int r = 0; r < members.nranks; r++)
        count += ended[members.lives[r]] < 0;
    return count;
}

/* Newcomers that nobody has admitted yet do not count. */
static void end_job(int sound) {
    while (sound && (count_running(1) > 0 || j->stop_at > j->checked)) {
        if (count_running(1) == 0 && j->stop_at == INT64_MAX)
            j->stop_at = j->checked + 2 * AHEAD;
        resume_stopped();
        reap();
        sound = check_steps();
        forgive();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    j->finished = 1;
    for (double end = seconds_now() + 20; sound && members_run() > 0 && seconds_now() < end;)
        reap();
    if (sound && members_run() > 0)
        violation("a process does not end");
    end_all();
    counts.doubts += ledger_close(book);
}

static void run_job(int number, double seconds, double timeout) {
    double end = seconds_now() + seconds, next = 0;
    int sound = 1;
    begin_job(number, timeout);
    while (sound && seconds_now() < end && j->nlives < LIVES - 2) {
        reap();
        resume_stopped();
        sound = check_steps();
        forgive();
        if (sound && seconds_now() > next && members.nranks > 0) {
            next = seconds_now() + (is_short ? uniform(0.1, 0.4) : uniform(0.5, 2));
            strike_any();
            if (j->tcp && count_running(0) < MOST && oracle_below(&rng, 5) > 0)
                start_process(1, 0, 0);
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    end_job(sound);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 5, begin = seconds_now();
    double share = seconds / 16 > 60 ? 60 : seconds / 16 < 2.5 ? 2.5 : seconds / 16;
    is_short = seconds < 30;
    rng.key = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED)
        abort();
    for (int n = 0; seconds_now() - begin < seconds && counts.violations == 0; n++)
        run_job(n, share, is_short ? 3 : 5);
    print_table(seconds_now() - begin);
    return counts.violations > 0;
}
