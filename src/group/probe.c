/* probe.c - latency, overhead and bandwidth between the ranks, all of them at once
 *
 * Three things are timed, on the clock of the transport:
 *
 *   pair      everyone sends 8 bytes to the rank half way round      latency + overhead
 *   alltoall  everyone sends 8 bytes to everyone                     latency + (P-1) overhead
 *   bulk      everyone sends S bytes in all, to everyone             alltoall + S * byte
 *
 * Each is timed TAKES times, and the shortest counts: a core that somebody else needed is not the
 * network. All but the first repeat as often as fits into BUDGET, and S grows until it takes as long.
 * Ranks share their times and go by the slowest. So all know the same numbers, start the next
 * measurement together, and see a shared link as slow as it will be. Connections exist already: the
 * group has compared its parameters. */
#include "group/auto.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define BUDGET 1e-3 /* seconds for a measurement */
#define TAKES 3
#define MOST_REPEATS 16
#define SMALL 8 /* bytes */
#define FIRST_BULK ((size_t)64 << 10)
#define LAST_BULK ((size_t)4 << 20)

typedef struct bench {
    tw_transport *transport;
    int rank, nranks;
    size_t bytes;          /* of a message */
    tw__message_kind kind; /* bulk is counted as payload, whose time it is to tell */
    double *times;         /* [nranks] */
    tw__buffer *out;       /* [nranks] */
    tw__buffer *in;        /* [nranks] */
    char *sent;            /* [most bytes of a message] */
    char *received;        /* [nranks][as much] */
    void *share, *recvs;   /* of collectives */
} bench;

static size_t most_bytes(int nranks) {
    return LAST_BULK / (size_t)(nranks - 1) + SMALL + 1;
}

static void layout(bench *b, tw__arena *arena) {
    int64_t nranks = b->nranks;
    b->times = tw__arena_take(arena, nranks, sizeof *b->times);
    b->out = tw__arena_take(arena, nranks, sizeof *b->out);
    b->in = tw__arena_take(arena, nranks, sizeof *b->in);
    b->sent = tw__arena_take(arena, 1, most_bytes(b->nranks));
    b->received = tw__arena_take(arena, nranks, most_bytes(b->nranks));
    b->share = tw__arena_take(arena, 1, tw__allgather_memory(b->nranks));
    b->recvs = tw__arena_take(arena, 1, tw__alltoall_memory(b->nranks));
}

typedef int measure(bench *b);

static int pair(bench *b) {
    int half = b->nranks / 2;
    tw__message messages[2] = {0};
    int error = tw__transport_recv(b->transport, (b->rank - half + b->nranks) % b->nranks, b->kind,
                                   b->received, SMALL, &messages[0]);
    if (error == TW_OK)
        error = tw__transport_send(b->transport, (b->rank + half) % b->nranks, b->kind, b->sent,
                                   SMALL, &messages[1]);
    if (error != TW_OK) {
        tw__transport_cancel(b->transport, messages, 2);
        return tw__transport_abort(b->transport, error);
    }
    return tw__transport_wait(b->transport, messages, 2);
}

static int alltoall(bench *b) {
    for (int r = 0; r < b->nranks; r++) {
        b->out[r] = (tw__buffer){b->sent, b->bytes, 0};
        b->in[r] = (tw__buffer){.data = b->received + (size_t)r * b->bytes, .capacity = b->bytes};
    }
    return tw__alltoall_run(b->transport, b->kind, b->out, b->in, b->recvs);
}

/* Seconds that the slowest rank takes, on average over the repeats. */
static int time_of(bench *b, measure *what, int repeats, double *seconds) {
    double begin = tw__transport_seconds(b->transport);
    for (int i = 0; i < repeats; i++)
        TW_TRY(what(b));
    b->times[b->rank] = (tw__transport_seconds(b->transport) - begin) / repeats;
    TW_TRY(tw__allgather(b->transport, b->times, sizeof *b->times, b->share));
    *seconds = 0.0;
    for (int r = 0; r < b->nranks; r++)
        *seconds = b->times[r] > *seconds ? b->times[r] : *seconds;
    return TW_OK;
}

/* Some takes, each as long as there is time for; the shortest. */
static int time_well(bench *b, measure *what, double *seconds) {
    TW_TRY(time_of(b, what, 1, seconds));
    for (int take = 1; take < TAKES; take++) {
        double again, fits = BUDGET / (*seconds + 1e-9);
        int repeats = fits < 1.0 ? 1 : fits < MOST_REPEATS ? (int)fits : MOST_REPEATS;
        TW_TRY(time_of(b, what, repeats, &again));
        *seconds = again < *seconds ? again : *seconds;
    }
    return TW_OK;
}

/* *per_byte from the first amount that takes long enough beside `empty`, the time without it. */
static int time_bulk(bench *b, double empty, double *per_byte) {
    double seconds = 0.0;
    b->kind = TW__PAYLOAD;
    for (size_t bulk = FIRST_BULK; bulk <= LAST_BULK; bulk *= 4) {
        b->bytes = bulk / (size_t)(b->nranks - 1) + SMALL + 1;
        TW_TRY(time_well(b, alltoall, &seconds));
        if (seconds > empty + BUDGET && seconds > 4.0 * empty)
            break;
    }
    double more = (double)((b->bytes - SMALL) * (size_t)(b->nranks - 1));
    *per_byte = seconds > empty ? (seconds - empty) / more : 0.0;
    return TW_OK;
}

static int measure_all(bench *b, tw__probe *probe) {
    double alone = 0.0, all = 0.0;
    TW_TRY(time_well(b, pair, &alone));
    TW_TRY(time_well(b, alltoall, &all));
    TW_TRY(time_bulk(b, all, &probe->byte));
    if (b->nranks > 2 && all > alone)
        probe->overhead = (all - alone) / (b->nranks - 2);
    probe->latency = alone > probe->overhead ? alone - probe->overhead : 0.0;
    return TW_OK;
}

int tw__probe_measure(tw_transport *t, tw__probe *probe) {
    bench b = {.transport = t, .bytes = SMALL, .kind = TW__CONTROL};
    *probe = (tw__probe){0};
    (void)tw_transport_info(t, NULL, &b.rank, &b.nranks, NULL);
    if (b.nranks == 1)
        return TW_OK;
    tw__arena counting = {0}, arena = {0};
    layout(&b, &counting);
    void *memory = tw__reserve(counting.used);
    if (memory == NULL) /* the others would wait */
        return tw__transport_abort(
            t, tw__fail(TW_ERR_MEMORY, "no memory to measure between %d ranks", b.nranks));
    arena.memory = memory;
    layout(&b, &arena);
    memset(b.sent, 0, most_bytes(b.nranks));
    int error = measure_all(&b, probe);
    free(memory);
    return error;
}
