/* jobs.c - starts the processes of a job, and notes what became of them */
#include "churn.h"

#include "oracle.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

job *j;
process processes[LIVES];
int ended[LIVES];
step_members members;
job_counts counts;
static ledger *book;
static double last_step, last_poll;
static const char *hosts;

const char *const phase_names[] = {
#define PHASE_NAME(name) #name,
    PHASES(PHASE_NAME)
#undef PHASE_NAME
};

enum { HOSTS = 8 };

/* What every process was doing when something went wrong. */
static void print_processes(void) {
    for (int i = 0; i < j->nlives; i++) {
        const life *l = &j->lives[i];
        if (ended[i] >= 0 && seconds_now() - processes[i].gone > 90)
            continue;
        printf("  process %d: fate %d %.3f s ago, in %s, %lld steps begun, %lld done", i,
               processes[i].fate, seconds_now() - processes[i].when, phase_names[l->phase],
               (long long)l->begun, (long long)l->done);
        if (ended[i] >= 0)
            printf(", ended with %d %.3f s ago: %s", ended[i], seconds_now() - processes[i].gone,
                   l->text);
        printf("\n");
    }
}

void violation(const char *format, ...) {
    va_list arguments;
    printf("VIOLATION: %s, %s, step %lld: ", j->exchange, j->tcp ? "tcp" : "sockets",
           (long long)j->checked + 1);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    if (counts.violations++ == 0)
        print_processes();
}

/* ---- begin */

void jobs_open(const char *prefix) {
    hosts = prefix;
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED)
        abort();
}

/* Any host can be the meeting point. */
static void name_hosts(char *meet, size_t size) {
    size_t used = 0;
    for (int h = 0; h < HOSTS; h++)
        used += (size_t)snprintf(meet + used, size - used, "%s10.91.0.%d:7000", h > 0 ? "," : "",
                                 h + 1);
}

static void enter_host(int number) {
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s-%d", hosts, number % HOSTS);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(path);
        abort();
    }
    (void)close(fd);
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

void job_begin(const char *exchange, int tcp, double timeout) {
    int used = j->nlives;
    memset(j, 0, offsetof(job, lives) + (size_t)used * sizeof *j->lives);
    memset(&members, 0, sizeof members);
    j->exchange = exchange;
    j->tcp = tcp;
    j->timeout = timeout;
    j->stop_at = INT64_MAX;
    if (hosts != NULL)
        name_hosts(j->meet, sizeof j->meet);
    else if (tcp)
        choose_port(j->meet, sizeof j->meet);
    book = ledger_open();
    if (book == NULL)
        abort();
    counts.jobs++;
    last_step = last_poll = seconds_now();
}

static void exit_0(int signal) {
    (void)signal;
    _exit(0);
}

static void exit_1(int signal) {
    (void)signal;
    _exit(1);
}

static void close_sockets(int but_of_rank) {
    for (int a = 0; a < MOST; a++)
        for (int b = 0; b < MOST; b++)
            if (a != but_of_rank && life_sockets[a][b] > 0) {
                (void)close(life_sockets[a][b]);
                life_sockets[a][b] = 0;
            }
}

static void start_process(int number) {
    processes[number] = (process){.fate = NOTHING};
    ended[number] = -1;
    (void)fflush(stdout);
    pid_t pid = processes[number].pid = fork();
    if (pid < 0)
        abort();
    if (pid > 0)
        return;
    if (hosts != NULL)
        enter_host(number);
    (void)signal(SIGUSR1, exit_0);
    (void)signal(SIGUSR2, exit_1);
    close_sockets(j->lives[number].joins ? -1 : j->lives[number].rank);
    life_run(number);
}

void job_start(int nranks) {
    for (int a = 0; a < nranks && !j->tcp; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
                abort();
            life_sockets[a][b] = pair[0];
            life_sockets[b][a] = pair[1];
        }
    j->nlives = nranks;
    for (int r = 0; r < nranks; r++) {
        j->lives[r].rank = r;
        j->lives[r].nranks = nranks;
        start_process(r);
    }
    close_sockets(-1);
}

int job_start_newcomer(void) {
    int number = j->nlives++;
    j->lives[number].joins = 1;
    start_process(number);
    return number;
}

/* ---- what became of them */

static int is_expected(const process *p, int code) {
    if (p->fate != NOTHING && p->fate != LEAVE)
        return code != FAILED && (code != NO_QUORUM || p->fate == STOP);
    return code == LEFT || code == EXCLUDED || code == NOT_ADMITTED || code == NOT_MET ||
           (code == ENDED && j->finished) ||
           (code == NO_QUORUM && j->faults && j->checked == 0); /* for others the meeting failed */
}

static void note_end(int number, int status) {
    process *p = &processes[number];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended[number] = code;
    p->gone = seconds_now();
    p->resume = 0;
    counts.leaves += code == LEFT;
    counts.refused += code == NOT_ADMITTED;
    counts.late += code == EXCLUDED && p->fate == NOTHING;
    if (!is_expected(p, code))
        violation("process %d ended with %d: %s", number, code, j->lives[number].text);
    if (j->lives[number].misnamed[0] != '\0' && !j->lives[j->lives[number].blamed].gave_up)
        violation("process %d blames another: %s", number, j->lives[number].misnamed);
}

static void note_stop(int number) {
    process *p = &processes[number];
    if (p->resume != 0)
        return;
    p->when = seconds_now();
    p->resume = p->when + j->timeout + 0.5;
}

static void reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;)
        for (int i = 0; i < j->nlives; i++)
            if (processes[i].pid == pid && ended[i] < 0) {
                if (WIFSTOPPED(status))
                    note_stop(i);
                else
                    note_end(i, status);
            }
}

static int is_member(int number) {
    for (int r = 0; r < members.nranks; r++)
        if (members.lives[r] == number)
            return 1;
    return 0;
}

int job_running(void) {
    int count = 0;
    for (int i = 0; i < j->nlives; i++)
        count += ended[i] < 0;
    return count;
}

int job_going(void) {
    int count = 0;
    for (int i = 0; i < j->nlives; i++)
        count += ended[i] < 0 ? processes[i].fate != NOTHING : is_member(i);
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
static void forgive_stopped(void) {
    for (int i = 0; i < j->nlives; i++) {
        process *p = &processes[i];
        if (p->fate == STOP && p->when > 0 && p->resume == 0 && ended[i] < 0 &&
            j->lives[i].done >= p->done + 2) {
            p->fate = NOTHING;
            counts.back++;
        }
    }
}

static void add_time(times *t, double seconds) {
    if (t->count < MAX_TIMES)
        t->values[t->count++] = seconds;
}

/* The first step without a process that was killed. */
static void note_times(void) {
    for (int i = 0; i < j->nlives; i++) {
        process *p = &processes[i];
        if (!p->was_member && is_member(i)) {
            p->was_member = 1;
            counts.joins += j->lives[i].joins;
        }
        if (p->was_member && !p->counted && !is_member(i) && p->fate < WAYS && ended[i] != LEFT) {
            double took = members.when - (j->lives[i].died > 0 ? j->lives[i].died : p->when);
            p->counted = 1;
            add_time(p->fate == STOP ? &counts.stopped : &counts.closed, took);
            if (j->lives[i].die_at > 0 && p->fate != STOP && took > j->timeout)
                violation("%.1f s from the death of process %d to the next step", took, i);
        }
    }
}

static void note_poll(void) {
    double now = seconds_now();
    if (now - last_poll > counts.longest_poll)
        counts.longest_poll = now - last_poll;
    last_poll = now;
}

int job_poll(double stalled) {
    char text[640];
    int status;
    note_poll();
    reap();
    resume_stopped();
    while ((status = ledger_next(book, &members, text, sizeof text)) > 0) {
        counts.steps++;
        last_step = seconds_now();
        note_times();
    }
    forgive_stopped();
    if (status < 0)
        violation("%s", text);
    else if (seconds_now() - last_step > stalled) {
        violation("no step was completed in %g s; this check itself paused for at most %.3f s",
                  stalled, counts.longest_poll);
        status = -1;
    }
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    return status == 0;
}

/* ---- the end */

static void kill_all(void) {
    for (int i = 0; i < j->nlives; i++)
        if (ended[i] < 0)
            (void)kill(processes[i].pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

static int count_members(void) {
    int count = 0;
    for (int r = 0; r < members.nranks; r++)
        count += ended[members.lives[r]] < 0;
    return count;
}

/* Newcomers that nobody has admitted do not count. */
void job_end(int sound, double stalled) {
    while (sound && (job_going() > 0 || j->stop_at > j->checked)) {
        if (job_going() == 0 && j->stop_at == INT64_MAX)
            j->stop_at = j->checked + AHEAD + 2;
        sound = job_poll(stalled);
    }
    j->finished = 1;
    for (double end = seconds_now() + stalled; sound && count_members() > 0;) {
        reap();
        if (seconds_now() > end) {
            violation("a process does not end");
            break;
        }
    }
    kill_all();
    counts.doubts += ledger_close(book);
}
