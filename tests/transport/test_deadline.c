/* test_deadline.c - a call returns by its deadline and names the rank, whatever that rank does
 *
 *   test_deadline           ranks are threads
 *   test_deadline sockets   ranks are processes, joined by sockets
 *
 * Three ranks finish a step. Then rank 2 misbehaves while the others are in tw_allreduce. With
 * THINWIRE_TEST_LONG set there are more timeouts and longer floods, and every time is printed. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/frame.h"
#include "transport/transport_internal.h"
#include "transport_ranks.h"

enum { RANKS = 3, BAD = 2, N = 1000 };

typedef struct fault {
    const char *name;
    void (*run)(tw_transport *transport, const int *sockets, int64_t count);
    int64_t count;     /* of messages */
    int at_once;       /* it is noticed long before the deadline */
    const char *names; /* in the error text */
} fault;

/* What the good ranks leave behind, in memory that processes share. */
typedef struct outcome {
    _Atomic int done;
    int status;
    double seconds;
    char text[512];
} outcome;
static outcome *outcomes; /* [RANKS] */

static const fault *now;
static double timeout;

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- what rank 2 does */

static void wait_for_others(void) {
    while (!outcomes[0].done || !outcomes[1].done)
        nap(0.01);
}

static void be_silent(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport, (void)sockets, (void)count;
    wait_for_others();
}

static void stop(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport, (void)sockets, (void)count;
    kill(getpid(), SIGSTOP);
}

/* Its transport is freed next. */
static void leave(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport, (void)sockets, (void)count;
}

static void flood_thread(tw_transport *transport, const int *sockets, int64_t count) {
    tw__message *messages = calloc((size_t)count, sizeof *messages);
    (void)sockets;
    for (int64_t i = 0; i < count; i++)
        (void)tw__transport_send(transport, 0, TW__CONTROL, "", 0, &messages[i]);
    wait_for_others();
    tw__transport_cancel(transport, messages, (int)count);
    free(messages);
}

/* Messages that rank 2 has sent to rank 0: what it forges is numbered from here on. */
static uint32_t sent;
static int (*counted)(void *context, int peer, int tag, const void *data, size_t bytes,
                      void **request);

static int count_send(void *context, int peer, int tag, const void *data, size_t bytes,
                      void **request) {
    sent += peer == 0;
    return counted(context, peer, tag, data, bytes, request);
}

static void count_sends(tw_transport *transport) {
    counted = transport->calls.send;
    transport->calls.send = count_send;
}

static tw__frame next_frame(size_t bytes, int tag) {
    tw__frame frame = {.bytes = bytes, .number = sent++, .tag = (uint8_t)tag};
    tw__frame_seal(&frame);
    return frame;
}

/* Messages of `bytes` each to rank 0. The write blocks when rank 0 stops reading; the test ends this
 * process. */
static void flood_socket(const int *sockets, int tag, size_t bytes, const void *body,
                         int64_t count) {
    size_t size = sizeof(tw__frame) + bytes, batch = size < 65536 ? 65536 / size : 1;
    char *data = calloc(batch, size);
    for (int64_t i = 0; i < count; i += (int64_t)batch) {
        for (size_t one = 0; one < batch; one++) {
            tw__frame frame = next_frame(bytes, tag);
            memcpy(data + one * size, &frame, sizeof frame);
            if (body != NULL)
                memcpy(data + one * size + sizeof frame, body, bytes);
        }
        for (size_t at = 0; at < batch * size;) {
            ssize_t wrote = send(sockets[0], data + at, batch * size - at, MSG_NOSIGNAL);
            if (wrote < 0)
                break;
            at += (size_t)wrote;
        }
    }
    free(data);
    wait_for_others();
}

/* Tag 2 is never received, so its messages are kept as long as there is room. */
static void flood_empty(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport;
    flood_socket(sockets, 2, 0, NULL, count);
}

static void flood_large(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport;
    flood_socket(sockets, 2, (size_t)8 << 20, NULL, count);
}

static void flood_queries(tw_transport *transport, const int *sockets, int64_t count) {
    const int32_t query[3] = {1, 0, 0};
    (void)transport;
    flood_socket(sockets, 1, sizeof query, query, count);
}

/* The first of them arrives in place of a message of the step. */
static void flood_data(tw_transport *transport, const int *sockets, int64_t count) {
    (void)transport;
    flood_socket(sockets, 0, 0, NULL, count);
}

/* One message that is too long, and bytes for as long as rank 0 reads them. */
static void send_endless(tw_transport *transport, const int *sockets, int64_t count) {
    static char data[1 << 20];
    const tw__frame frame = next_frame((size_t)1 << 36, 0);
    (void)transport, (void)count;
    (void)send(sockets[0], &frame, sizeof frame, MSG_NOSIGNAL);
    while (!outcomes[0].done)
        (void)send(sockets[0], data, sizeof data, MSG_NOSIGNAL);
    wait_for_others();
}

/* One message that arrives byte by byte, too slowly. */
static void drip(tw_transport *transport, const int *sockets, int64_t count) {
    const tw__frame frame = next_frame(40, 0);
    (void)transport, (void)count;
    (void)send(sockets[0], &frame, sizeof frame, MSG_NOSIGNAL);
    for (int i = 0; i < 39 && !outcomes[0].done; i++) {
        (void)send(sockets[0], "x", 1, MSG_NOSIGNAL);
        nap(0.2);
    }
    wait_for_others();
}

/* ---- one rank */

static int step(tw_group *group) {
    float grad[N];
    for (int i = 0; i < N; i++)
        grad[i] = (float)(i % 7);
    return tw_allreduce(group, 0, grad, grad);
}

static void run_good(outcome *o, tw_group *group) {
    int64_t begin = tw__clock();
    o->status = step(group);
    o->seconds = (double)(tw__clock() - begin) * 1e-9;
    snprintf(o->text, sizeof o->text, "%s", tw_last_error());
    o->done = 1;
}

static void run_rank(int rank, tw_transport *transport, const int *sockets) {
    tw_group *group = NULL;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.timeout = timeout;
    params.select.k = 100;
    params.select.threads = 1;
    if (rank == BAD && sockets != NULL)
        count_sends(transport);
    int status = tw_group_create(&group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(group, N, NULL, NULL);
    if (status == TW_OK)
        status = tw_group_open(group);
    if (status == TW_OK)
        status = step(group);
    if (status != TW_OK) {
        outcomes[rank].status = status;
        snprintf(outcomes[rank].text, sizeof outcomes[rank].text, "first step: %s",
                 tw_last_error());
        outcomes[rank].done = 1;
    } else if (rank == BAD) {
        now->run(transport, sockets, now->count);
    } else {
        run_good(&outcomes[rank], group);
    }
    tw_group_free(group);
}

/* ---- all ranks */

static void run_thread(test_rank *m) {
    run_rank(m->rank, m->transport, NULL);
}

static pid_t start_process(int rank, int ends[RANKS][RANKS]) {
    pid_t pid = fork();
    check_true(pid >= 0);
    if (pid > 0)
        return pid;
    tw_transport *transport = NULL;
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            if (a != rank && a != b)
                (void)close(ends[a][b]);
    if (tw_transport_sockets(&transport, ends[rank], rank, RANKS) == TW_OK)
        run_rank(rank, transport, ends[rank]);
    tw_transport_free(transport);
    _exit(0);
}

static void run_processes(void) {
    int ends[RANKS][RANKS], pair[2];
    pid_t pids[RANKS];
    for (int a = 0; a < RANKS; a++)
        for (int b = a + 1; b < RANKS; b++) {
            check_true(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
            ends[a][b] = pair[0];
            ends[b][a] = pair[1];
        }
    for (int rank = 0; rank < RANKS; rank++)
        pids[rank] = start_process(rank, ends);
    for (int a = 0; a < RANKS; a++)
        for (int b = 0; b < RANKS; b++)
            if (a != b)
                (void)close(ends[a][b]);
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank == BAD)
            kill(pids[rank], SIGKILL);
        (void)waitpid(pids[rank], NULL, 0);
    }
}

static void check_fault(const fault *f) {
    double most = f->at_once ? 0.3 : 1.1 * timeout + 0.1;
    now = f;
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    if (ranks_on_sockets)
        run_processes();
    else
        run_ranks(RANKS, 0, run_thread, NULL);
    for (int rank = 0; rank < BAD; rank++) {
        const outcome *o = &outcomes[rank];
        check_scene("%s, %lld messages, timeout %g s, rank %d: status %d after %.3f s: %s", f->name,
                    (long long)f->count, timeout, rank, o->status, o->seconds, o->text);
        if (getenv("THINWIRE_TEST_LONG") != NULL)
            printf("%-8s %-8s %7lld %4g s, rank %d: %.3f s, %d, %s\n",
                   ranks_on_sockets ? "sockets" : "threads", f->name, (long long)f->count, timeout,
                   rank, o->seconds, o->status, o->text);
        check_true(o->done && o->status != TW_OK);
        check_true(o->seconds <= most);
        check_true(f->at_once || o->seconds >= 0.9 * timeout);
        check_contains(o->text, f->names);
    }
}

static void check_faults(const fault *faults, size_t count) {
    const double all[] = {1.0, 0.5, 2.0, 5.0};
    size_t timeouts = getenv("THINWIRE_TEST_LONG") != NULL ? 4 : 1;
    for (size_t t = 0; t < timeouts; t++)
        for (size_t i = 0; i < count; i++) {
            fault f = faults[i];
            timeout = all[t];
            check_fault(&f);
            f.count *= 4;
            if (f.count > 0 && timeouts > 1)
                check_fault(&f);
        }
}

static const fault of_threads[] = {
    {"silent", be_silent, 0, 0, "from rank 2; is it stopped or dead?"},
    {"closed", leave, 0, 1, "rank 2: it has freed its transport"},
    {"data", flood_thread, 100000, 0, "from rank 2; is it stopped or dead?"},
};

static const fault of_processes[] = {
    {"silent", be_silent, 0, 0, "from rank 2; is it stopped or dead?"},
    {"stopped", stop, 0, 0, "from rank 2; is it stopped or dead?"},
    {"closed", leave, 0, 1, "sockets transport: cannot "},
    {"empty", flood_empty, 100000, 0, "from rank 2; is it stopped or dead?"},
    {"large", flood_large, 20, 0, "from rank 2; is it stopped or dead?"},
    {"queries", flood_queries, 100000, 0, "from rank 2; is it stopped or dead?"},
    {"data", flood_data, 100000, 1, "rank 2 sent 0 bytes"},
    {"endless", send_endless, 0, 1, "the message of 68719476736 bytes is longer than"},
    {"drip", drip, 0, 0, "from rank 2; is it stopped or dead?"},
};

static void test_faults(void **state) {
    (void)state;
    if (ranks_on_sockets)
        check_faults(of_processes, sizeof of_processes / sizeof *of_processes);
    else
        check_faults(of_threads, sizeof of_threads / sizeof *of_threads);
}

int main(int argc, char **argv) {
    ranks_on_sockets = argc > 1 && strcmp(argv[1], "sockets") == 0;
    outcomes = mmap(NULL, RANKS * sizeof *outcomes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return outcomes == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
