/* test_kill.c - processes over TCP, of which one is killed or stopped: how long until the next step
 *
 * A process that was stopped and goes on learns that it is out. `test_kill measure` prints times instead:
 * of a loss with timeout 5 s, and of a step with and without the round of elastic groups. */
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { RANKS = 8, N = 20000, K = 400 };

/* What processes tell each other and the test. */
typedef struct shared {
    _Atomic int stop;
    _Atomic int64_t steps[RANKS];
    _Atomic int nranks[RANKS];
    _Atomic int status[RANKS];
    double seconds[RANKS]; /* of a step, at the end */
    char text[RANKS][256];
} shared;

static shared *all;
static char meet[64];
static double timeout = 1.0;
static int membership = TW_MEMBERSHIP_ELASTIC;

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void choose_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0);
    check_true(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    (void)close(fd);
    snprintf(meet, sizeof meet, "127.0.0.1:%d", ntohs(address.sin_port));
}

/* ---- one process */

static int is_lost(int error) {
    return error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT;
}

static int work(tw_group *group, int rank) {
    static float grad[N], out[N];
    int status = TW_OK;
    tw_step_info info;
    double begin = check_seconds();
    int64_t first = 0;
    for (int i = 0; i < N; i++)
        grad[i] = (float)((i * 7919 + rank * 31) % 211);
    while (!all->stop && status == TW_OK) {
        while (is_lost(status = tw_allreduce(group, 0, grad, out))) {
            tw_members members;
            status = tw_group_shrink(group, &members);
            if (status != TW_OK && !is_lost(status))
                return status;
            if (status == TW_OK)
                all->nranks[rank] = members.nranks;
        }
        (void)tw_group_info(group, 0, &info);
        all->steps[rank] = info.step;
        if (info.step == 50) {
            begin = check_seconds();
            first = info.step;
        }
    }
    all->seconds[rank] = (check_seconds() - begin) / (double)(info.step - first);
    return all->stop ? TW_OK : status; /* others may have stopped a step earlier */
}

static int run_rank(int rank) {
    tw_transport *transport;
    tw_group *group = NULL;
    tw_tcp_params tcp = {.meet = meet, .rank = rank, .nranks = RANKS, .timeout = 20};
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.select.k = K;
    params.select.threads = 1;
    params.membership = membership;
    params.timeout = timeout;
    int status = tw_transport_tcp(&transport, &tcp);
    if (status == TW_OK)
        status = tw_group_create(&group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(group, N, NULL, NULL);
    if (status == TW_OK)
        status = tw_group_open(group);
    if (status == TW_OK)
        status = work(group, rank);
    snprintf(all->text[rank], sizeof *all->text, "%s", tw_last_error());
    all->status[rank] = status;
    tw_group_free(group);
    tw_transport_free(transport);
    return status == TW_OK ? 0 : 1;
}

/* ---- the test */

static void begin(pid_t *pids) {
    choose_port();
    memset(all, 0, sizeof *all);
    for (int r = 0; r < RANKS; r++) {
        all->nranks[r] = RANKS;
        pids[r] = fork();
        check_true(pids[r] >= 0);
        if (pids[r] == 0)
            _exit(run_rank(r));
    }
}

/* Until all ranks but one have made so many steps more. Returns the seconds. */
static double wait_for_steps(int but, int64_t more) {
    double start = check_seconds();
    int64_t from[RANKS];
    for (int r = 0; r < RANKS; r++)
        from[r] = all->steps[r];
    for (int r = 0; r < RANKS; r++)
        while (r != but && all->steps[r] < from[r] + more) {
            if (check_seconds() - start > 60)
                check_fail("rank %d does not get on: %s", r, all->text[r]);
            nap(0.0005);
        }
    return check_seconds() - start;
}

static void end(const pid_t *pids) {
    all->stop = 1;
    for (int r = 0; r < RANKS; r++)
        (void)waitpid(pids[r], NULL, 0);
}

/* Seconds from the signal until all others have finished two steps: one of them began after it. */
static double lose(int victim, int how, pid_t *pids) {
    begin(pids);
    wait_for_steps(-1, 60);
    check_true(kill(pids[victim], how) == 0);
    double seconds = wait_for_steps(victim, 2);
    for (int r = 0; r < RANKS; r++)
        if (r != victim)
            check_int("ranks", all->nranks[r], RANKS - 1);
    return seconds;
}

static void test_killed(void **state) {
    (void)state;
    pid_t pids[RANKS];
    const int victims[] = {3, 0};
    for (int i = 0; i < 2; i++) {
        double seconds = lose(victims[i], SIGKILL, pids);
        end(pids);
        if (seconds > 1.0)
            check_fail("%g s until the next step", seconds);
    }
}

static void test_stopped(void **state) {
    (void)state;
    pid_t pids[RANKS];
    double seconds = lose(2, SIGSTOP, pids);
    if (seconds > timeout + 1.0)
        check_fail("%g s until the next step, the timeout is %g s", seconds, timeout);
    check_true(kill(pids[2], SIGCONT) == 0);
    (void)wait_for_steps(2, 20); /* it does not disturb them */
    for (int i = 0; i < 1000 && all->status[2] == TW_OK; i++)
        nap(0.01);
    check_int("status of the stopped rank", all->status[2], TW_ERR_EXCLUDED);
    check_contains(all->text[2], "go on without this one");
    end(pids);
    for (int r = 0; r < RANKS; r++)
        if (r != 2)
            check_int("status", all->status[r], TW_OK);
}

/* ---- measured */

static double step_seconds(int of) {
    pid_t pids[RANKS];
    double most = 0;
    membership = of;
    begin(pids);
    wait_for_steps(-1, 400);
    end(pids);
    for (int r = 0; r < RANKS; r++)
        most = all->seconds[r] > most ? all->seconds[r] : most;
    return most;
}

static void measure(void) {
    pid_t pids[RANKS];
    timeout = 5.0;
    double fixed = 1e9, elastic = 1e9;
    for (int i = 0; i < 5; i++) {
        fixed = fmin(fixed, step_seconds(TW_MEMBERSHIP_FIXED));
        elastic = fmin(elastic, step_seconds(TW_MEMBERSHIP_ELASTIC));
    }
    printf("step, best of 5: fixed %.0f us, elastic %.0f us, %.2f times\n", 1e6 * fixed,
           1e6 * elastic, elastic / fixed);
    for (int i = 0; i < 5; i++) {
        printf("SIGKILL: %.3f s\n", lose(i, SIGKILL, pids));
        end(pids);
    }
    printf("SIGSTOP: %.3f s\n", lose(2, SIGSTOP, pids));
    (void)kill(pids[2], SIGKILL);
    end(pids);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
    };
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    if (argc > 1 && strcmp(argv[1], "measure") == 0) {
        measure();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
