/* links.c - measures the parameters of a network for `thinwire simulate`, one rank on each host
 *
 *   mpirun ... build/bench/links        prints latency, overhead and bandwidth as a JSON line
 *
 * Three small measurements over the library's transport:
 *
 *   ping-pong   8 bytes between rank 0 and each other rank, the rest idle: latency + 2 overheads
 *   allgather   8 bytes from every rank to every other at once: latency + 2(P-1) overheads
 *   ring        two lengths from every rank to the next at once: the longer one takes longer by
 *               (difference of bytes) / bandwidth
 *
 * If one machine runs all hosts, the overhead includes the time that they take from each other's
 * cores. Times are medians. Exit status 1 with fewer than 3 ranks, or if a rank fails. */
#include "base/clock.h"
#include "thinwire_mpi.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 200
#define LONG_ROUNDS 7
#define LONG (1 << 20)

typedef struct links {
    tw_transport *transport;
    int rank, nranks;
    char *out, *in;
    void *scratch;
    int64_t *record; /* [nranks] */
} links;

static void require_ok(int error) {
    if (error == TW_OK)
        return;
    fprintf(stderr, "links: %s\n", tw_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, ascending);
    return times[count / 2];
}

/* Send to one rank and receive from one rank at the same time; -1: none. */
static void send_recv(links *l, int to, int from, size_t bytes) {
    tw__message messages[2] = {0};
    if (from >= 0)
        require_ok(tw__transport_recv(l->transport, from, TW__CONTROL, l->in, bytes, &messages[0]));
    if (to >= 0)
        require_ok(tw__transport_send(l->transport, to, TW__CONTROL, l->out, bytes, &messages[1]));
    require_ok(tw__transport_wait(l->transport, messages, 2));
}

static void allgather(links *l) {
    require_ok(tw__allgather(l->transport, l->record, sizeof *l->record, l->scratch));
}

/* Half of a round trip; valid on rank 0. */
static double ping_pong(links *l) {
    double times[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int peer = 1 + i * (l->nranks - 1) / ROUNDS;
        double begin = tw__seconds();
        if (l->rank == 0)
            send_recv(l, peer, -1, 8);
        if (l->rank == 0 || l->rank == peer)
            send_recv(l, -1, l->rank == 0 ? peer : 0, 8);
        if (l->rank == peer)
            send_recv(l, 0, -1, 8);
        times[i] = (tw__seconds() - begin) / 2;
    }
    return median(times, ROUNDS);
}

/* Each after a pause: in a step ranks come from computation or from a long wait, not directly from
 * earlier messages. */
static double allgather_seconds(links *l) {
    const struct timespec pause = {.tv_nsec = 2000000};
    double times[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        allgather(l);
        nanosleep(&pause, NULL);
        double begin = tw__seconds();
        allgather(l);
        times[i] = tw__seconds() - begin;
    }
    return median(times, ROUNDS);
}

static double ring(links *l, size_t bytes) {
    double times[LONG_ROUNDS];
    for (int i = 0; i < LONG_ROUNDS; i++) {
        allgather(l);
        double begin = tw__seconds();
        send_recv(l, (l->rank + 1) % l->nranks, (l->rank + l->nranks - 1) % l->nranks, bytes);
        allgather(l); /* until the slowest is done */
        times[i] = tw__seconds() - begin;
    }
    return median(times, LONG_ROUNDS);
}

static void measure(links *l) {
    allgather(l);
    double there = ping_pong(l);
    allgather(l);
    double all = allgather_seconds(l);
    double longer = ring(l, 3 * LONG) - ring(l, LONG);
    double overhead = (all - there) / (2 * (l->nranks - 2));
    overhead = overhead > 0.0 ? overhead : 0.0;
    double latency = there - 2 * overhead;
    if (l->rank == 0)
        printf("{\"what\":\"links\",\"nranks\":%d,\"latency_s\":%.9f,\"overhead_s\":%.9f,"
               "\"bandwidth_Bps\":%.0f,\"there_s\":%.9f,\"everyone_s\":%.9f}\n",
               l->nranks, latency > 0.0 ? latency : 0.0, overhead, 2 * LONG / longer, there, all);
}

int main(int argc, char **argv) {
    links l = {.out = calloc(3, LONG), .in = calloc(3, LONG)};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &l.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l.nranks);
    l.scratch = malloc(tw__allgather_memory(l.nranks));
    l.record = calloc((size_t)l.nranks, sizeof *l.record);
    if (l.nranks < 3 || !l.out || !l.in || !l.scratch || !l.record) {
        fprintf(stderr, "links: needs 3 ranks and 6 MB; mpirun -n 3 or more\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    require_ok(tw_transport_mpi(&l.transport, MPI_COMM_WORLD));
    measure(&l);
    tw_transport_free(l.transport);
    free(l.out);
    free(l.in);
    free(l.scratch);
    free(l.record);
    MPI_Finalize();
    return 0;
}
