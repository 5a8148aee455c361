/* test_group_memory.c - a group takes the memory that it reports, little for a small tensor, its steps
 * take none, and it survives running out of memory
 *
 * allocations.h counts, and fails a chosen call while a rank opens or loads.
 */
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "allocations.h"
#include "group_state.h"

enum { RANKS = 4, N = 2003, K = 64 };

/* ---- Memory ---------------------------------------------------------------------------------- */

static tw_memory memory_of(const tw_group_params *params, int nranks, int64_t n) {
    ranks r;
    tw_group *group;
    tw_memory memory;
    ranks_init(&r, nranks);
    check_ok(tw_group_create(&group, r.transports[0], params));
    check_error(tw_group_memory(group, &memory), TW_ERR_STATE);
    check_ok(tw_group_add(group, n, NULL, NULL));
    check_ok(tw_group_memory(group, &memory));
    tw_group_free(group);
    ranks_close(&r);
    check_int("total", (int64_t)memory.total,
              (int64_t)(memory.residual + memory.moments + memory.undo + memory.workspace));
    return memory;
}

/* Whether a rank receives so much that its result may hold the entries of all ranks: O(k P). */
static int gathers_all(const char *exchange, int64_t n, int64_t k, int nranks) {
    tw_cost cost;
    check_ok(tw_exchange_cost(exchange, n, k, nranks, &cost));
    return cost.most > (double)(k * nranks);
}

static void test_memory(void **state) {
    (void)state;
    for (int e = 1; e < check_exchanges(); e++) {
        tw_group_params params = ranks_params(check_exchange(e), K);
        params.select.k = 10000;
        check_scene("memory of %s", check_exchange(e));
        const tw_memory small = memory_of(&params, 2, 1000000);
        const tw_memory large = memory_of(&params, 2, 8000000);
        const tw_memory many = memory_of(&params, 64, 1000000);
        check_between("residual", (int64_t)small.residual, 4000000, 4000000 + (2 << 20));
        check_int("moments", (int64_t)small.moments, 0);
        check_between("workspace of 8n", (int64_t)large.workspace, 1,
                      (int64_t)small.workspace + 7000000 / 100);
        if (!gathers_all(check_exchange(e), 1000000, params.select.k, 64)) /* O(k + P) */
            check_between("workspace of 32 P", (int64_t)many.workspace, 1,
                          2 * (int64_t)small.workspace);
        check_true(many.residual == small.residual && many.undo == small.undo);
        params.select.momentum = 0.5f;
        check_between("moments", (int64_t)memory_of(&params, 2, 1000000).moments, 8000000,
                      8000000 + (4 << 20));
    }
    const tw_group_params params = ranks_params("dense", K);
    check_scene("memory of dense");
    const tw_memory dense = memory_of(&params, 4, 50000000);
    check_int("residual, moments and undo", (int64_t)(dense.residual + dense.moments + dense.undo),
              0);
    check_between("workspace", (int64_t)dense.workspace, 1, 8 << 20);
}

/* tw_group_memory says what tw_group_open takes, and says the same afterwards. */
static void test_memory_is_as_reported(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        tw_transport *transport;
        tw_group *group;
        tw_memory told, after;
        const tw_group_params params = ranks_params(check_exchange(e), K);
        check_scene("memory of %s, as reported", check_exchange(e));
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        for (int i = 0; i < 3; i++)
            check_ok(tw_group_add(group, 100000, NULL, NULL));
        check_ok(tw_group_memory(group, &told));
        allocation_bytes = 0;
        check_ok(tw_group_open(group));
        const int64_t taken = allocation_bytes;
        check_between("bytes taken", taken, (int64_t)told.total - 65536,
                      (int64_t)told.total + 65536);
        check_ok(tw_group_memory(group, &after));
        check_true(memcmp(&told, &after, sizeof told) == 0);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

/* ---- Many small tensors ---------------------------------------------------------------------- */

enum { MANY = 10000, FEW_ELEMENTS = 100 };

/* In use; 0 where the allocator does not tell. */
static int64_t heap_bytes(void) {
    const struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Less than 2 kB each, beside their residuals and undo logs. Adding and opening takes 0.1 s. Sanitizers
 * and valgrind tell nothing of the heap. */
static void test_many_tensors(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++) {
        tw_transport *transport;
        tw_group *group;
        tw_memory told;
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.scheme = scheme;
        params.select.density = 0.01;
        if (strcmp(scheme, "auto") == 0)
            continue; /* its dense steps take n floats more */
        check_scene("%d tensors of %s", MANY, scheme);
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        const double begin = cpu_seconds();
        const int64_t heap = heap_bytes();
        for (int t = 0; t < MANY; t++)
            check_ok(tw_group_add(group, FEW_ELEMENTS, NULL, NULL));
        check_ok(tw_group_memory(group, &told));
        allocation_bytes = 0;
        check_ok(tw_group_open(group));
        const int64_t taken = allocation_bytes, own = (int64_t)(told.residual + told.undo);
        check_between("bytes allocated for a tensor", (taken - own) / MANY, 1, 2200);
        if (heap > 0)
            check_between("bytes on the heap", (heap_bytes() - heap - own) / MANY, 1, 1999);
        check_between("workspace told", (int64_t)told.workspace / MANY, 1, 1600);
        check_between("milliseconds", (int64_t)(1e3 * (cpu_seconds() - begin)), 0, 2000);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

/* ---- Allocation in steps --------------------------------------------------------------------- */

typedef struct counted_steps {
    pthread_barrier_t barrier;
    int64_t n;
    float **grads, **outs;
    int64_t allocations;
} counted_steps;

/* Nothing but library calls happens between the barriers. */
static int count_allocations(ranks *r, int rank, void *context) {
    counted_steps *c = context;
    tw_group *group = r->groups[rank];
    int error = TW_OK;
    pthread_barrier_wait(&c->barrier);
    if (rank == 0)
        allocation_calls = 0;
    pthread_barrier_wait(&c->barrier);
    for (int step = 0; step < 6 && !error; step++) {
        error = tw_allreduce(group, 0, c->grads[rank], c->outs[rank]);
        for (int i = 0; i < 3 && !error; i++)
            error = tw_allreduce_start(group, i, c->grads[rank], c->outs[rank] + i * c->n);
        if (!error)
            error = tw_allreduce_wait(group, TW_ALL);
        if (!error && tw_allreduce(group, 0, rank ? c->grads[rank] : NULL, NULL) != TW_ERR_NULL)
            error = TW_ERR_STATE;
    }
    pthread_barrier_wait(&c->barrier);
    if (rank == 0)
        c->allocations = allocation_calls;
    return error;
}

static void check_allocations(const char *scheme, const char *wire, int64_t n, int64_t k) {
    const int64_t sizes[3] = {n, n, n};
    ranks r;
    counted_steps c = {.n = n, .grads = rows_alloc(RANKS, n), .outs = rows_alloc(RANKS, 3 * n)};
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.wire = wire;
    params.select.k = k;
    params.select.threads = 2;
    check_scene("allocations of %s, k=%lld", scheme, (long long)k);
    pthread_barrier_init(&c.barrier, NULL, RANKS);
    rows_fill(c.grads, RANKS, n, DATA_LAPLACE, 1);
    ranks_open(&r, RANKS, &params, sizes, 3);
    ranks_run(&r, count_allocations, &c);
    ranks_ok(&r);
    check_int("allocations in the step path", c.allocations, 0);
    pthread_barrier_destroy(&c.barrier);
    rows_free(c.grads);
    rows_free(c.outs);
    ranks_close(&r);
}

static void test_steps_allocate_nothing(void **state) {
    (void)state;
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++)
        check_allocations(scheme, NULL, N, K);
}

/* Lists that go around the ring, those of topka in two pieces; of three tensors together, in four. */
static void test_long_steps_allocate_nothing(void **state) {
    (void)state;
    check_allocations("topka", NULL, 300007, 140000);
    check_allocations("topka", "q2", 300007, 140000);
    check_allocations("topkdsa", NULL, 300007, 140000);
}

/* Values for the next step take memory only if there are more than ever before. */
static void test_common_values_keep_memory(void **state) {
    (void)state;
    enum { COMMON = 1000 };
    static const double values[2 * COMMON];
    const tw_group_params params = ranks_params("allgather", K);
    const int64_t n = N;
    ranks r;
    check_scene("common values");
    ranks_open(&r, 1, &params, &n, 1);
    check_ok(tw_group_set_common(r.groups[0], values, COMMON));
    allocation_calls = 0;
    for (int count = 0; count <= COMMON; count += COMMON / 4)
        check_ok(tw_group_set_common(r.groups[0], values, count));
    check_int("allocations", allocation_calls, 0);
    allocation_fails_in = 1;
    check_error(tw_group_set_common(r.groups[0], values, COMMON + 1), TW_ERR_MEMORY);
    allocation_fails_in = 0;
    check_ok(tw_group_set_common(r.groups[0], values, 2 * COMMON));
    ranks_close(&r);
}

/* ---- Without memory -------------------------------------------------------------------------- */

/* Rank 1 runs out of memory at call number *context while it opens. */
static int open_without_memory(ranks *r, int rank, void *context) {
    tw_group_params params = ranks_params("oktopk", K);
    params.timeout = 5;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &params);
    if (!error)
        error = tw_group_add(r->groups[rank], N, NULL, NULL);
    if (error)
        return error;
    allocation_fails_in = rank == 1 ? *(int64_t *)context : 0;
    error = tw_group_open(r->groups[rank]);
    if (rank == 1)
        *(int64_t *)context = allocation_fails_in; /* 0: the call was made and failed */
    allocation_fails_in = 0;
    return error;
}

/* A group that failed to open refuses every call. */
static int ask_failed(ranks *r, int rank, void *context) {
    tw_group *g = r->groups[rank];
    float row[N] = {0};
    tw_step_info info;
    const char *path = context;
    (void)tw_group_info(g, 0, &info);
    (void)tw_group_get_residual(g, 0, row);
    (void)tw_allreduce_wait(g, TW_ALL);
    int done = tw_allreduce(g, 0, row, row) == TW_OK;
    done |= tw_allreduce_start(g, 0, row, row) == TW_OK;
    done |= tw_group_load(g, &path, 1) == TW_OK;
    return done ? TW_OK : TW_ERR_STATE;
}

static void test_open_out_of_memory(void **state) {
    (void)state;
    int64_t call = 1, left = 0;
    for (; left == 0; call++) {
        ranks r;
        left = call;
        check_scene("allocation %lld fails", (long long)call);
        ranks_init(&r, 3);
        ranks_run(&r, open_without_memory, &left);
        if (left == 0) {
            ranks_error(&r, TW_ERR_MEMORY);
            ranks_say(&r, "rank 1");
            ranks_run(&r, ask_failed, (void *)state_path("none", 0));
            ranks_error(&r, TW_ERR_STATE);
        } else
            ranks_ok(&r);
        ranks_close(&r);
    }
    check_true(call > 5);
}

/* ---- Ranks change, and one of them has no memory for it -------------------------------------- */

typedef struct short_change {
    int poor;     /* the rank whose memory runs out */
    int64_t call; /* that fails; afterwards 0: it was made and failed */
    int first[3]; /* what the call has returned that was to change the ranks */
    float **grads;
} short_change;

static tw_group_params elastic_params(const char *exchange) {
    tw_group_params params = ranks_params(exchange, K);
    params.membership = TW_MEMBERSHIP_ELASTIC;
    params.timeout = 2;
    return params;
}

/* Until the ranks that are left are whole. */
static int recover(tw_group *g) {
    int error;
    do
        error = tw_group_shrink(g, NULL);
    while (error == TW_ERR_MEMORY || error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT);
    return error == TW_ERR_STATE && strstr(tw_last_error(), "whole") != NULL ? TW_OK : error;
}

/* Rank 2 leaves. Whoever fails recovers at once. */
static int leave_without_memory(ranks *r, int rank, void *context) {
    short_change *c = context;
    tw_group *g = r->groups[rank];
    allocation_fails_in = rank == c->poor ? c->call : 0;
    int error = rank == 2 ? tw_group_leave(g, 0) : tw_group_grow(g, NULL);
    if (rank == c->poor)
        c->call = allocation_fails_in;
    allocation_fails_in = 0;
    c->first[rank] = error;
    return error != TW_OK ? recover(g) : TW_OK;
}

static int has_left(const short_change *c, int rank) {
    return rank == 2 && c->first[2] == TW_OK;
}

/* Those that are out, because others did not wait for them, have given up. */
static int step_of_those_that_stay(ranks *r, int rank, void *context) {
    const short_change *c = context;
    float row[N] = {0};
    return has_left(c, rank) || r->status[rank] != TW_OK
               ? TW_OK
               : tw_allreduce(r->groups[rank], 0, row, row);
}

static void add_residuals(ranks *r, const short_change *c, double *sum) {
    float row[N];
    memset(sum, 0, N * sizeof *sum);
    for (int rank = 0; rank < r->nranks; rank++) {
        if (has_left(c, rank))
            continue;
        check_ok(tw_group_get_residual(r->groups[rank], 0, row));
        for (int i = 0; i < N; i++)
            sum[i] += row[i];
    }
}

/* One step, then rank 2 leaves. Returns whether the allocation was made. */
static int check_leave(short_change *c) {
    const int64_t n = N, call = c->call;
    const tw_group_params params = elastic_params("oktopk");
    double before[N], after[N];
    ranks r;
    check_scene("allocation %lld of rank %d fails", (long long)call, c->poor);
    ranks_open(&r, 3, &params, &n, 1);
    ranks_allreduce(&r, 0, (void *const *)c->grads, NULL);
    ranks_ok(&r);
    c->first[2] = TW_ERR_STATE;
    add_residuals(&r, c, before);
    ranks_run(&r, leave_without_memory, c);
    check_true((c->first[c->poor] != TW_OK) == (c->call == 0));
    check_true(c->first[2] == TW_OK || c->first[2] == TW_ERR_MEMORY);
    if (c->first[2] == TW_OK) {
        check_int("the heir goes on", r.status[0], TW_OK);
        add_residuals(&r, c, after);
        for (int i = 0; i < N; i++)
            check_true(before[i] == after[i]);
    }
    ranks_run(&r, step_of_those_that_stay, c);
    ranks_ok(&r);
    ranks_close(&r);
    return c->call == 0;
}

/* What an heir was given is not lost if it runs out of memory afterwards, and all go on. */
static void test_leave_out_of_memory(void **state) {
    (void)state;
    short_change c = {.grads = rows_alloc(3, N)};
    rows_fill(c.grads, 3, N, DATA_SUMMABLE, 1);
    for (c.poor = 0; c.poor < 3; c.poor++) {
        int64_t call = 0;
        do
            c.call = ++call;
        while (check_leave(&c));
        check_true(call > 5);
    }
    rows_free(c.grads);
}

/* Rank 2 is lost, and rank 1 has no memory to go on without it. Then it has. */
static int shrink_without_memory(ranks *r, int rank, void *context) {
    short_change *c = context;
    float row[N] = {0};
    if (rank == 2)
        return TW_OK;
    if (tw_allreduce(r->groups[rank], 0, row, row) == TW_OK)
        return TW_ERR_DAMAGED;
    allocation_fails_in = rank == c->poor ? c->call : 0;
    int error = c->first[rank] = tw_group_shrink(r->groups[rank], NULL);
    if (rank == c->poor)
        c->call = allocation_fails_in;
    allocation_fails_in = 0;
    if (error != TW_OK)
        error = recover(r->groups[rank]);
    return error == TW_OK ? tw_allreduce(r->groups[rank], 0, row, row) : error;
}

static void test_shrink_out_of_memory(void **state) {
    (void)state;
    const int64_t n = N;
    int64_t call = 0;
    short_change c = {.poor = 1};
    do {
        const tw_group_params params = elastic_params("allgather");
        ranks r;
        c.call = ++call;
        check_scene("allocation %lld of tw_group_shrink fails", (long long)call);
        ranks_open(&r, 3, &params, &n, 1);
        tw_group_free(r.groups[2]);
        tw_transport_free(r.transports[2]);
        r.groups[2] = NULL;
        r.transports[2] = NULL;
        ranks_run(&r, shrink_without_memory, &c);
        ranks_ok(&r);
        check_int("what failed", c.first[1], c.call == 0 ? TW_ERR_MEMORY : TW_OK);
        ranks_close(&r);
    } while (c.call == 0);
    check_true(call > 5);
}

/* ---- A process joins, and it or a rank has no memory for it ---------------------------------- */

typedef struct process {
    tw_tcp_params params;
    int joins;
    int64_t
        call;   /* of its opening, or of the first tw_group_grow that makes so many, which fails */
    int failed; /* it has */
    int opened, grown, stepped; /* statuses */
    int lost;                   /* a connection was, in tw_group_grow or in the next step */
    int nranks;
    pthread_t thread;
} process;

static void begin_scarcity(const process *p) {
    allocation_fails_in = p->failed ? 0 : p->call;
}

static void end_scarcity(process *p) {
    p->failed |= p->call > 0 && allocation_fails_in == 0;
    allocation_fails_in = 0;
}

static int open_process(process *p, tw_transport *transport, tw_group **group) {
    tw_group_params params = elastic_params("allgather"); /* results grow with the ranks */
    params.timeout = 1;
    int status = tw_group_create(group, transport, &params);
    if (status == TW_OK)
        status = tw_group_add(*group, N, NULL, NULL);
    if (status != TW_OK)
        return status;
    if (p->joins)
        begin_scarcity(p);
    status = tw_group_open(*group);
    if (p->joins)
        end_scarcity(p);
    return status;
}

/* Until somebody has joined, or could not. The first call begins to listen. */
static int grow_process(process *p, tw_group *group) {
    int status = tw_group_grow(group, NULL);
    for (int i = 0; i < 5000 && status == TW_OK && p->nranks < 3; i++) {
        tw_members members = {0};
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        begin_scarcity(p);
        status = tw_group_grow(group, &members);
        end_scarcity(p);
        if (status == TW_ERR_MEMORY && members.nranks == 0)
            status = TW_OK; /* nothing has changed */
        else
            p->nranks = members.nranks;
    }
    return status;
}

static int is_lost(int status) {
    return status == TW_ERR_TRANSPORT || status == TW_ERR_TIMEOUT;
}

static void *run_process(void *context) {
    process *p = context;
    tw_transport *transport = NULL;
    tw_group *group = NULL;
    float row[N] = {0};
    p->opened = p->joins ? tw_transport_join(&transport, &p->params)
                         : tw_transport_tcp(&transport, &p->params);
    if (p->opened == TW_OK)
        p->opened = open_process(p, transport, &group);
    if (p->opened == TW_OK) {
        p->grown = p->joins ? TW_OK : grow_process(p, group);
        p->stepped = is_lost(p->grown) ? p->grown : tw_allreduce(group, 0, row, row);
        p->lost = is_lost(p->stepped);
        if (p->lost && (p->stepped = recover(group)) == TW_OK)
            p->stepped = tw_allreduce(group, 0, row, row);
    }
    tw_group_free(group);
    tw_transport_free(transport);
    return NULL;
}

static void choose_port(char *meet, size_t size) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0);
    check_true(getsockname(fd, (struct sockaddr *)&address, &length) == 0);
    (void)close(fd);
    snprintf(meet, size, "127.0.0.1:%d", ntohs(address.sin_port));
}

/* The ranks go on, with the newcomer or without it: only connections that need memory may be lost.
 * Returns whether the allocation was made. */
static int check_join(int poor, int64_t call, int *refused) {
    process all[3];
    char meet[32];
    memset(all, 0, sizeof all);
    choose_port(meet, sizeof meet);
    check_scene("allocation %lld of %s fails", (long long)call,
                poor == 2 ? "a newcomer" : "a rank");
    for (int i = 0; i < 3; i++) {
        all[i].joins = i == 2;
        all[i].params = (tw_tcp_params){
            .meet = meet, .rank = i < 2 ? i : 0, .nranks = i < 2 ? 2 : 0, .timeout = 5};
        all[i].call = i == poor ? call : 0;
        check_true(pthread_create(&all[i].thread, NULL, run_process, &all[i]) == 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(all[i].thread, NULL);
    const int lost = all[0].lost || all[1].lost || is_lost(all[2].opened);
    for (int i = 0; i < 2; i++) {
        const int status = all[i].grown;
        check_int("opened", all[i].opened, TW_OK);
        check_true(lost || status == all[0].grown);
        check_true(lost || status == TW_OK || status == TW_ERR_MEMORY);
        check_true(lost || all[i].nranks == (status == TW_OK ? 3 : 2));
        if (!lost || poor == 2)
            check_int("the next step", all[i].stepped, TW_OK);
    }
    if (!lost)
        check_int("newcomer", all[2].opened, all[0].grown);
    *refused += !lost && all[0].grown == TW_ERR_MEMORY;
    return all[poor].failed;
}

static void test_join_out_of_memory(void **state) {
    (void)state;
    for (int poor = 1; poor <= 2; poor++) {
        int64_t call = 1;
        int refused = 0;
        while (check_join(poor, call, &refused))
            call++;
        check_true(refused > 5 && call > 5);
    }
}

/* Three ranks and their files. */
typedef struct saved {
    const char *paths[3];
    int64_t call; /* of rank 1 that fails while it loads; afterwards 0: it was made and failed */
} saved;

static int save_own(ranks *r, int rank, void *context) {
    return tw_group_save(r->groups[rank], ((saved *)context)->paths[rank]);
}

static int load_without_memory(ranks *r, int rank, void *context) {
    saved *s = context;
    allocation_fails_in = rank == 1 ? s->call : 0;
    int error = tw_group_load(r->groups[rank], &s->paths[rank], 1);
    if (rank == 1)
        s->call = allocation_fails_in;
    allocation_fails_in = 0;
    return error;
}

/* A load that runs out of memory on one rank is refused on all, and changes nothing. */
static void test_load_out_of_memory(void **state) {
    (void)state;
    saved s = {{state_path("own", 0), state_path("own", 1), state_path("own", 2)}, 0};
    float **grads = rows_alloc(3, N), **then = rows_alloc(3, N), **now = rows_alloc(3, N);
    const int64_t n = N;
    tw_group_params params = ranks_params("oktopk", K);
    ranks r;
    ranks_open(&r, 3, &params, &n, 1);
    rows_fill(grads, 3, N, DATA_LAPLACE, 1);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_get_residuals(&r, 0, then, N);
    ranks_run(&r, save_own, &s);
    ranks_ok(&r);
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_get_residuals(&r, 0, now, N);
    int64_t call = 0;
    do {
        check_scene("allocation %lld fails", (long long)++call);
        s.call = call;
        ranks_run(&r, load_without_memory, &s);
        if (s.call != 0)
            break;
        ranks_error(&r, TW_ERR_MEMORY);
        ranks_say(&r, "rank 1");
        ranks_check_residuals(&r, 0, now, N);
    } while (call < 100);
    check_true(call > 5);
    ranks_ok(&r);
    ranks_check_residuals(&r, 0, then, N);
    ranks_close(&r);
    rows_free(grads);
    rows_free(then);
    rows_free(now);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_is_as_reported),
        cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_long_steps_allocate_nothing),
        cmocka_unit_test(test_common_values_keep_memory),
        cmocka_unit_test(test_open_out_of_memory),
        cmocka_unit_test(test_leave_out_of_memory),
        cmocka_unit_test(test_shrink_out_of_memory),
        cmocka_unit_test(test_join_out_of_memory),
        cmocka_unit_test(test_load_out_of_memory),
    };
    return cmocka_run_group_tests(tests, state_begin, state_end);
}
