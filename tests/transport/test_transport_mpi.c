/* test_transport_mpi.c - the transport over MPI, run by mpiexec with 4 ranks
 *
 *   test_transport_mpi messages   alltoalls, sums, long messages, bad arguments
 *   test_transport_mpi too_long   a message that does not fit is an error of its receiver
 *   test_transport_mpi damaged    a flipped bit is an error of all ranks that names the sender
 *   test_transport_mpi stopped    all ranks name one that was stopped by SIGSTOP, by their deadline
 *   test_transport_mpi silent     the same of one that makes no call
 *   test_transport_mpi closed     the same of one that frees its transport
 *   test_transport_mpi flood      the same of one that sends 100,000 messages that nobody receives
 *
 * The last four take a timeout in seconds as a second argument; 1 without. flood takes a number of
 * messages as a third. It is not part of the tests: MPICH warns of each of them at its end.
 * Ranks are processes. A check that fails ends the job. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "thinwire_mpi.h"
#include "transport/transport.h"

enum { MOST = 64, LONGEST = 200000 };

static int rank, nranks;
static tw_transport *transport;
static double timeout = 1.0;
static int flood_messages = 100000;

static void check(int holds, const char *what, int line) {
    if (holds)
        return;
    fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", rank, line, what, tw_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define check_true(condition) check((condition), #condition, __LINE__)
#define check_ok(call) check((call) == TW_OK, #call, __LINE__)

/* ---- messages */

static size_t length_of(uint64_t round, int from, int to) {
    uint64_t draw = tw__random(round, (uint64_t)from * MOST + (uint64_t)to);
    return draw % 4 == 0 ? 0 : draw / 4 % (round % 8 == 0 ? LONGEST : 300);
}

static int value_of(uint64_t round, int from, int to) {
    return (int)(tw__random(round + 1, (uint64_t)from * MOST + (uint64_t)to) & 0xff);
}

static int all_are(const unsigned char *data, size_t bytes, int value) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != value)
            return 0;
    return 1;
}

static void run_alltoall(uint64_t round) {
    static unsigned char out_data[MOST][LONGEST], in_data[MOST][LONGEST];
    static tw__message recvs[MOST];
    tw__buffer out[MOST], in[MOST];
    for (int i = 0; i < nranks; i++) {
        out[i] = (tw__buffer){.data = out_data[i], .bytes = length_of(round, rank, i)};
        in[i] = (tw__buffer){.data = in_data[i], .capacity = LONGEST};
        memset(out_data[i], value_of(round, rank, i), out[i].bytes);
    }
    check_ok(tw__alltoall_run(transport, TW__PAYLOAD, out, in, recvs));
    for (int i = 0; i < nranks; i++) {
        check_true(i == rank || in[i].bytes == length_of(round, i, rank));
        check_true(i == rank || all_are(in_data[i], in[i].bytes, value_of(round, i, rank)));
    }
}

static int sum(int64_t count) {
    uint32_t *counts = calloc((size_t)count, sizeof *counts);
    void *scratch = tw__alloc(tw__sum_counts_memory(nranks, count));
    for (int64_t i = 0; i < count; i++)
        counts[i] = (uint32_t)(rank + 1) * (uint32_t)i;
    int status = tw__sum_counts(transport, counts, count, scratch);
    uint32_t ranks = (uint32_t)(nranks * (nranks + 1) / 2);
    for (int64_t i = 0; i < count && status == TW_OK; i++)
        check_true(counts[i] == ranks * (uint32_t)i);
    free(counts);
    free(scratch);
    return status;
}

/* Around the ring: any number of bytes, not only whole words. */
static void send_around(size_t bytes) {
    tw__message both[2];
    unsigned char *data = calloc(2, bytes);
    int to = (rank + 1) % nranks, from = (rank + nranks - 1) % nranks;
    memset(data, rank + 1, bytes);
    check_ok(tw__transport_recv(transport, from, TW__PAYLOAD, data + bytes, bytes, &both[0]));
    check_ok(tw__transport_send(transport, to, TW__PAYLOAD, data, bytes, &both[1]));
    check_ok(tw__transport_wait(transport, both, 2));
    check_true(both[0].bytes == bytes);
    check_true(all_are(data + bytes, bytes, from + 1));
    free(data);
}

/* 1.2 GB from the first rank to the last: longer than LONG_MESSAGE. */
static void send_long(void) {
    size_t bytes = ((size_t)1 << 30) + ((size_t)150 << 20) + 5;
    tw__message message = {0};
    unsigned char *data = rank == 0 || rank == nranks - 1 ? malloc(bytes) : NULL;
    if (rank == 0) {
        memset(data, 77, bytes);
        check_ok(tw__transport_send(transport, nranks - 1, TW__PAYLOAD, data, bytes, &message));
    } else if (rank == nranks - 1) {
        memset(data, 0, bytes);
        check_ok(tw__transport_recv(transport, 0, TW__PAYLOAD, data, bytes, &message));
    }
    check_ok(tw__transport_wait(transport, &message, 1));
    check_true(rank != nranks - 1 || (message.bytes == bytes && all_are(data, bytes, 77)));
    free(data);
}

static void messages(void) {
    const char *name = NULL;
    int own = -1, all = -1;
    tw_traffic traffic;
    tw_transport *none = transport;
    check_true(tw_transport_mpi(NULL, MPI_COMM_WORLD) == TW_ERR_NULL);
    check_true(tw_transport_mpi(&none, MPI_COMM_NULL) == TW_ERR_PARAM && none == NULL);
    check_ok(tw_transport_info(transport, &name, &own, &all, NULL));
    check_true(strcmp(name, "mpi") == 0 && own == rank && all == nranks);
    for (uint64_t round = 0; round < 100; round++)
        run_alltoall(round);
    for (int64_t count = 1; count < 20000; count = count * 3 + 1)
        check_ok(sum(count));
    send_around((size_t)9 << 20 | 3);
    traffic = tw__transport_traffic(transport);
    check_true(traffic.payload_sent > 9 << 20 && traffic.control_sent > 0);
    if (getenv("THINWIRE_TEST_LONG") != NULL)
        send_long();
}

/* ---- failures */

/* Rank 0 sends more than rank 1 can receive: rank 1 fails, and ranks that wait fail by its abort
 * notice. MPICH uses the error handler of MPI_COMM_WORLD. */
static void too_long(void) {
    char data[4000] = {0};
    tw__message message = {0};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank == 0)
        check_ok(tw__transport_send(transport, 1, TW__PAYLOAD, data, sizeof data, &message));
    else
        check_ok(tw__transport_recv(transport, rank - 1, TW__PAYLOAD, data, 100, &message));
    int status = tw__transport_wait(transport, &message, 1);
    check_true(status == TW_ERR_TRANSPORT || rank == 0);
    check_true(rank == 0 ||
               strstr(tw_last_error(), "cannot receive from rank 0: MPI_Testsome: ") != NULL);
    check_true(rank == 0 || all_are((unsigned char *)data + 100, sizeof data - 100, 0));
}

/* scripts/attack reads it. */
static void print_failure(double seconds) {
    printf("rank %d: %.3f s of %g, %s\n", rank, seconds, timeout, tw_last_error());
}

/* ---- damage: a bit changes after the transport has computed its CRC */

static int damage;        /* the next message of rank 0 is to be damaged */
static char *damage_data; /* its body, if that stays in the caller's memory */

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    if (damage) {
        damage = 0;
        char *message = data == MPI_BOTTOM ? damage_data : (char *)(uintptr_t)data;
        message[data == MPI_BOTTOM ? LONGEST / 2 : count / 2] ^= 16;
    }
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

/* A short message, which is copied, or a long one. All others wait for rank 1, and get its notice. */
static void expect_damage(size_t bytes) {
    static char data[LONGEST];
    tw__message message = {0};
    int last = rank == 0 ? nranks - 1 : rank - 1;
    damage = rank == 0;
    damage_data = data;
    if (rank == 0)
        check_ok(tw__transport_send(transport, 1, TW__PAYLOAD, data, bytes, &message));
    if (rank == 0)
        check_ok(tw__transport_wait(transport, &message, 1));
    check_ok(tw__transport_recv(transport, last, TW__PAYLOAD, data, bytes, &message));
    int64_t begin = tw__clock();
    check_true(tw__transport_wait(transport, &message, 1) == TW_ERR_TRANSPORT);
    print_failure((double)(tw__clock() - begin) * 1e-9);
    check_true(strstr(tw_last_error(), "mpi transport: cannot receive from rank 0: ") ==
               tw_last_error());
    check_true(strstr(tw_last_error(), "is damaged: its CRC32C is ") != NULL);
}

static void damaged(void) {
    tw_transport *first = transport;
    expect_damage(100);
    check_ok(tw_transport_mpi(&transport, MPI_COMM_WORLD));
    expect_damage(LONGEST);
    tw_transport_free(first);
}

/* A step against the last rank, which misbehaves. Ends by the deadline and names it. */
static void expect_deadline(void) {
    char want[96];
    snprintf(want, sizeof want, "no answer within %g s from rank %d; is it stopped or dead?",
             timeout, nranks - 1);
    int64_t begin = tw__clock();
    int status = sum(100);
    double seconds = (double)(tw__clock() - begin) * 1e-9;
    print_failure(seconds);
    check_true(status == TW_ERR_TIMEOUT);
    check_true(strstr(tw_last_error(), want) == tw_last_error());
    check_true(seconds >= 0.9 * timeout && seconds <= 1.1 * timeout + 0.1);
}

/* Rank 0 returns after all but the last have come here. */
static void meet_at_0(void) {
    int token = 0;
    if (rank != 0)
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    for (int i = 1; rank == 0 && i < nranks - 1; i++)
        MPI_Recv(&token, 1, MPI_INT, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The last rank, until rank 0 lets it go. */
static void wait_for_0(void) {
    int token = 0;
    MPI_Recv(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void stop_here(pid_t pid) {
    kill(pid, SIGSTOP);
    int status = sum(100); /* continued: the others have failed */
    check_true(status == TW_ERR_TIMEOUT);
    check_true(strstr(tw_last_error(), "(says rank ") != NULL);
}

/* The last rank stops itself. Rank 0 continues it after all others have failed. */
static void stopped(void) {
    int pids[MOST], last = nranks - 1;
    pids[rank] = (int)getpid();
    MPI_Allgather(MPI_IN_PLACE, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
    check_ok(sum(100));
    tw__transport_set_timeout(transport, timeout);
    if (rank == last) {
        stop_here((pid_t)pids[rank]);
        return;
    }
    expect_deadline();
    meet_at_0();
    if (rank == 0)
        kill((pid_t)pids[last], SIGCONT);
}

/* The last rank does something else than the others until they have failed. */
static void misbehave(void (*other)(void)) {
    int token = 0;
    check_ok(sum(100));
    tw__transport_set_timeout(transport, timeout);
    if (rank == nranks - 1) {
        other();
        wait_for_0();
        return;
    }
    expect_deadline();
    meet_at_0();
    if (rank == 0)
        MPI_Send(&token, 1, MPI_INT, nranks - 1, 0, MPI_COMM_WORLD);
}

static void do_nothing(void) {
}

static void silent(void) {
    misbehave(do_nothing);
}

static void free_transport(void) {
    tw_transport_free(transport);
    transport = NULL;
}

static void closed(void) {
    misbehave(free_transport);
}

/* Empty messages under a tag of their own, on the communicator of the program: they arrive by the
 * same connections, and MPI keeps them for receives that do not come. */
static void send_flood(void) {
    for (int i = 0; i < flood_messages; i++)
        MPI_Send(NULL, 0, MPI_BYTE, 0, 9, MPI_COMM_WORLD);
}

static void flood(void) {
    misbehave(send_flood);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {{"messages", messages}, {"too_long", too_long}, {"stopped", stopped},
             {"silent", silent},     {"closed", closed},     {"flood", flood},
             {"damaged", damaged}};

int main(int argc, char **argv) {
    int found = 0;
    timeout = argc > 2 ? atof(argv[2]) : timeout;
    flood_messages = argc > 3 ? atoi(argv[3]) : flood_messages;
    check_true(tw_transport_mpi(&transport, MPI_COMM_WORLD) == TW_ERR_STATE);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    check_ok(tw_transport_mpi(&transport, MPI_COMM_WORLD));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc >= 2 && strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run();
            found = 1;
        }
    check_true(found);
    tw_transport_free(transport);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: ok on %d ranks\n", argv[1], nranks);
    MPI_Finalize();
    return 0;
}
