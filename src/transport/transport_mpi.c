/* transport_mpi.c - over MPI; made of public calls alone, as any program could
 *
 * A request is a slot; MPI's own requests lie side by side, so that one call looks at all of them.
 * Slots come from a pool, so that a step allocates nothing but what MPI does. Nothing here blocks:
 * ranks that share cores with those they wait for must let them compute, so idle yields a few times
 * and then sleeps.
 *
 * After a failure MPI cannot take back a send, nor a receive that has found its message. Such a
 * request is let go after a moment, and MPI may still look at its memory: programs are told to end
 * the job then. */
#include "thinwire_mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define SECOND INT64_C(1000000000)
/* How long the other ranks may take to create the transport. */
#define CREATE_SECONDS 300
/* What all cancelled requests of a transport together are waited for. */
#define CANCEL_TIME (SECOND / 5)
/* MPI counts in int. Longer messages are counted in words of 8 bytes, and the rest. */
#define LONG_MESSAGE ((size_t)1 << 30)
#define WORD 8
/* Idle: yields, then sleeps of 1, 2, 4 ... 512 microseconds, each EACH times: a message is found
 * late by an eighth of the wait at most. Measured with 8 ranks on 2 cores: 64 bytes to all take
 * 27 us, 130 us without the yields, 28 us with 5000 of them. Two ranks compute in 203 ms (Open MPI)
 * and 230 ms (MPICH) while six wait, in 203 ms alone; with sleeps up to 128 us in 270 ms. */
#define YIELDS 32
#define EACH 8
#define DOUBLINGS 9

typedef struct slot {
    struct slot *next; /* among the unused */
    size_t bytes;      /* to send; or received */
    int place;         /* of its MPI_Request among those under way, -1 when it is done */
    int error;         /* MPI's, once it is done */
    unsigned round;    /* in which it was last asked about */
    int tag;
    int receiving;
} slot;

typedef struct block {
    struct block *next;
    slot slots[];
} block;

typedef struct mpi {
    MPI_Comm comm;
    MPI_Datatype word;
    int nranks;
    int *hosts; /* [nranks]: the lowest rank on the same host */
    int failed; /* something that is not over was let go */
    int quiet;  /* idles in a row in which nothing was done */
    int64_t cancel_time;
    slot *unused;
    block *blocks;
    unsigned round;        /* of looking at all requests */
    int room, active;      /* of the arrays below */
    MPI_Request *requests; /* [room], [active] of them under way */
    slot **owners;         /* [room] */
    int *done;             /* [room]: for MPI_Testsome */
    MPI_Status *statuses;  /* [room] */
} mpi;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static int explain(const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return tw_transport_explain("%s: %.*s", what, length, text);
}

/* ---- slots */

/* What could be had stays, whether or not all could. */
static int widen(mpi *m, size_t room) {
    /* Pointers are meant. NOLINTBEGIN(bugprone-sizeof-expression) */
    MPI_Request *requests = realloc(m->requests, room * sizeof *requests);
    slot **owners = realloc(m->owners, room * sizeof *owners);
    /* NOLINTEND(bugprone-sizeof-expression) */
    int *done = realloc(m->done, room * sizeof *done);
    MPI_Status *statuses = realloc(m->statuses, room * sizeof *statuses);
    m->requests = requests != NULL ? requests : m->requests;
    m->owners = owners != NULL ? owners : m->owners;
    m->done = done != NULL ? done : m->done;
    m->statuses = statuses != NULL ? statuses : m->statuses;
    return requests != NULL && owners != NULL && done != NULL && statuses != NULL;
}

/* Room for the receives of three rotations, their sends, and a roll call. */
static int add_block(mpi *m) {
    size_t count = 7 * (size_t)m->nranks + 64, room = (size_t)m->room + count;
    block *b = calloc(1, sizeof *b + count * sizeof(slot));
    if (b == NULL || !widen(m, room)) {
        free(b);
        return tw_transport_explain("out of memory for %zu requests", room);
    }
    m->room = (int)room;
    b->next = m->blocks;
    m->blocks = b;
    for (size_t i = 0; i < count; i++) {
        b->slots[i].next = m->unused;
        m->unused = &b->slots[i];
    }
    return TW_OK;
}

static int take(mpi *m, int tag, int receiving, slot **taken) {
    if (m->unused == NULL && add_block(m) != TW_OK)
        return TW_ERR_TRANSPORT;
    slot *s = *taken = m->unused;
    m->unused = s->next;
    *s = (slot){.tag = tag, .receiving = receiving, .round = m->round, .place = m->active};
    m->owners[m->active] = s;
    m->requests[m->active++] = MPI_REQUEST_NULL;
    return TW_OK;
}

/* The last one under way takes the place of one that is not any more. */
static void leave(mpi *m, slot *s) {
    int last = --m->active;
    m->requests[s->place] = m->requests[last];
    m->owners[s->place] = m->owners[last];
    m->owners[s->place]->place = s->place;
    s->place = -1;
}

static void give_back(mpi *m, slot *s) {
    if (s->place >= 0)
        leave(m, s);
    s->next = m->unused;
    m->unused = s;
}

/* ---- starting */

/* bytes as one element of a type that is words and the rest. */
static int long_type(const mpi *m, size_t bytes, MPI_Datatype *type) {
    int lengths[2] = {(int)(bytes / WORD), (int)(bytes % WORD)};
    MPI_Aint places[2] = {0, (MPI_Aint)(bytes - bytes % WORD)};
    MPI_Datatype types[2] = {m->word, MPI_BYTE};
    int error = MPI_Type_create_struct(2, lengths, places, types, type);
    return error != MPI_SUCCESS ? error : MPI_Type_commit(type);
}

static int start_send(const mpi *m, const void *data, size_t bytes, int peer, const slot *s) {
    MPI_Request *request = &m->requests[s->place];
    if (bytes <= LONG_MESSAGE)
        return MPI_Isend(data, (int)bytes, MPI_BYTE, peer, s->tag, m->comm, request);
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int error = long_type(m, bytes, &type);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(data, 1, type, peer, s->tag, m->comm, request);
    if (type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type); /* goes when the message is through */
    return error;
}

static int start_recv(const mpi *m, void *data, size_t capacity, int peer, const slot *s) {
    MPI_Request *request = &m->requests[s->place];
    if (capacity <= LONG_MESSAGE)
        return MPI_Irecv(data, (int)capacity, MPI_BYTE, peer, s->tag, m->comm, request);
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int error = long_type(m, capacity, &type);
    if (error == MPI_SUCCESS)
        error = MPI_Irecv(data, 1, type, peer, s->tag, m->comm, request);
    if (type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type);
    return error;
}

static int started(mpi *m, slot *s, const char *call, int error, void **request) {
    *request = s;
    if (error == MPI_SUCCESS)
        return TW_OK;
    m->failed = 1;
    give_back(m, s);
    return explain(call, error);
}

static int mpi_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **request) {
    mpi *m = context;
    slot *s = NULL;
    if (take(m, tag, 0, &s) != TW_OK)
        return TW_ERR_TRANSPORT;
    s->bytes = bytes;
    int error = start_send(m, data, bytes, peer, s);
    /* Waited for in other calls. NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker) */
    return started(m, s, "MPI_Isend", error, request);
}

static int mpi_recv(void *context, int peer, int tag, void *data, size_t capacity, void **request) {
    mpi *m = context;
    slot *s = NULL;
    if (take(m, tag, 1, &s) != TW_OK)
        return TW_ERR_TRANSPORT;
    int error = start_recv(m, data, capacity, peer, s);
    /* Likewise. NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker) */
    return started(m, s, "MPI_Irecv", error, request);
}

/* ---- ending */

static void note_end(slot *s, int error, const MPI_Status *status) {
    MPI_Count count = 0;
    s->error = error;
    if (error == MPI_SUCCESS && s->receiving) {
        s->error = MPI_Get_elements_x(status, MPI_BYTE, &count);
        s->bytes = (size_t)count;
    }
}

/* Looks at everything under way at once. Asked about one request at a time, MPI would look at all
 * its sockets each time: with 8 ranks on 2 cores that is where the time went. */
static int look(mpi *m) {
    int count = 0;
    m->round++;
    int error = MPI_Testsome(m->active, m->requests, &count, m->done, m->statuses);
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS)
        return error;
    for (int i = 0; i < count && count != MPI_UNDEFINED; i++)
        note_end(m->owners[m->done[i]],
                 error == MPI_SUCCESS ? MPI_SUCCESS : m->statuses[i].MPI_ERROR, &m->statuses[i]);
    for (int place = m->active - 1; place >= 0; place--)
        if (m->requests[place] == MPI_REQUEST_NULL)
            leave(m, m->owners[place]);
    return MPI_SUCCESS;
}

/* A request that is asked about again wants to know what has happened since. */
static int mpi_test(void *context, void *request, size_t *bytes) {
    mpi *m = context;
    slot *s = request;
    int error = MPI_SUCCESS;
    if (s->place >= 0 && s->round == m->round)
        error = look(m);
    s->round = m->round;
    if (error == MPI_SUCCESS && s->place >= 0)
        return 0;
    m->quiet = 0;
    *bytes = s->bytes;
    error = error == MPI_SUCCESS ? s->error : error;
    give_back(m, s);
    if (error == MPI_SUCCESS)
        return 1;
    m->failed = 1;
    return explain("MPI_Testsome", error);
}

/* Receives of the roll call are cancelled in the end in any case; data only after a failure. */
static void mpi_cancel(void *context, void *request) {
    mpi *m = context;
    slot *s = request;
    int64_t begin = now(), deadline = begin + m->cancel_time;
    int done = s->place < 0;
    if (s->tag == 0 || !s->receiving)
        m->failed = 1;
    if (!done && s->receiving)
        MPI_Cancel(&m->requests[s->place]);
    while (!done && MPI_Test(&m->requests[s->place], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           !done && now() < deadline)
        sched_yield();
    m->cancel_time -= now() - begin;
    if (!done && m->requests[s->place] != MPI_REQUEST_NULL)
        MPI_Request_free(&m->requests[s->place]);
    give_back(m, s);
}

static void mpi_idle(void *context, int64_t microseconds) {
    mpi *m = context;
    m->quiet += m->quiet < YIELDS + EACH * DOUBLINGS;
    if (m->quiet <= YIELDS) {
        sched_yield();
        return;
    }
    int64_t sleep = (int64_t)1 << (m->quiet - YIELDS) / EACH;
    sleep = sleep < microseconds ? sleep : microseconds;
    struct timespec t = {.tv_nsec = (long)(sleep * 1000)};
    nanosleep(&t, NULL);
}

/* ---- create and free */

static void free_context(mpi *m) {
    while (m->blocks != NULL) {
        block *b = m->blocks;
        m->blocks = b->next;
        free(b);
    }
    free(m->requests);
    free(m->owners);
    free(m->done);
    free(m->statuses);
    free(m->hosts);
    free(m);
}

/* MPI_Comm_free is collective and could wait for ranks that are gone. A duplicate that stays costs
 * little, as the job is about to end. */
static void mpi_close(void *context) {
    mpi *m = context;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Type_free(&m->word);
    if (!finalized && !m->failed)
        MPI_Comm_free(&m->comm);
    free_context(m);
}

static int mpi_host(void *context, int rank) {
    const mpi *m = context;
    return m->hosts[rank];
}

static const tw_transport_calls mpi_calls = {
    .name = "mpi",
    .send = mpi_send,
    .recv = mpi_recv,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .idle = mpi_idle,
    .close = mpi_close,
    .host = mpi_host,
};

static int refuse(int error, const char *text) {
    (void)tw_transport_explain("%s", text);
    return error;
}

static int check_comm(MPI_Comm comm) {
    int initialized = 0, finalized = 0, inter = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return refuse(TW_ERR_STATE, "MPI: is not initialised, or finalised already; call MPI_Init "
                                    "first");
    if (comm == MPI_COMM_NULL)
        return refuse(TW_ERR_PARAM, "comm: is MPI_COMM_NULL; a communicator is required");
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return refuse(TW_ERR_PARAM, "comm: has two groups; merge them by MPI_Intercomm_merge");
    return TW_OK;
}

/* MPI_Comm_dup would wait for ever for a rank that never comes. */
static int duplicate(mpi *m, MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t deadline = now() + CREATE_SECONDS * SECOND;
    int done = 0;
    int error = MPI_Comm_idup(comm, &m->comm, &request);
    while (error == MPI_SUCCESS && !done && now() < deadline) {
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done)
            mpi_idle(m, 1000);
    }
    if (error != MPI_SUCCESS)
        return explain("MPI_Comm_idup", error);
    if (!done)
        return refuse(TW_ERR_TIMEOUT, "comm: not all of its ranks called tw_transport_mpi within "
                                      "300 s; are they stopped or dead?");
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    m->quiet = 0;
    return TW_OK;
}

/* All ranks have come, so they may wait for each other. */
static int find_hosts(mpi *m) {
    MPI_Comm host = MPI_COMM_NULL;
    int rank = 0, lowest = 0;
    MPI_Comm_rank(m->comm, &rank);
    int error = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    if (error == MPI_SUCCESS)
        error = MPI_Allreduce(&rank, &lowest, 1, MPI_INT, MPI_MIN, host);
    if (error == MPI_SUCCESS)
        error = MPI_Allgather(&lowest, 1, MPI_INT, m->hosts, 1, MPI_INT, m->comm);
    if (host != MPI_COMM_NULL)
        MPI_Comm_free(&host);
    return error == MPI_SUCCESS ? TW_OK : explain("MPI_Comm_split_type", error);
}

static int create(mpi **created, MPI_Comm comm) {
    mpi *m = calloc(1, sizeof *m);
    if (m == NULL)
        return refuse(TW_ERR_MEMORY, "out of memory");
    m->cancel_time = CANCEL_TIME;
    MPI_Comm_size(comm, &m->nranks);
    m->hosts = calloc((size_t)m->nranks, sizeof *m->hosts);
    int status =
        m->hosts != NULL && add_block(m) == TW_OK ? TW_OK : refuse(TW_ERR_MEMORY, "out of memory");
    if (status == TW_OK)
        status = duplicate(m, comm);
    if (status == TW_ERR_TIMEOUT)
        return status; /* MPI may still write the new communicator into it: it is left alone */
    if (status == TW_OK) {
        status = find_hosts(m);
        if (status != TW_OK)
            MPI_Comm_free(&m->comm);
    }
    if (status != TW_OK) {
        free_context(m);
        return status;
    }
    MPI_Type_contiguous(WORD, MPI_BYTE, &m->word);
    MPI_Type_commit(&m->word);
    *created = m;
    return TW_OK;
}

int tw_transport_mpi(tw_transport **transport, MPI_Comm comm) {
    if (transport == NULL)
        return refuse(TW_ERR_NULL, "transport: is NULL; a valid pointer is required");
    *transport = NULL;
    mpi *m = NULL;
    int rank = 0, status = check_comm(comm);
    if (status == TW_OK)
        status = create(&m, comm);
    if (status != TW_OK)
        return status;
    MPI_Comm_rank(m->comm, &rank);
    status = tw_transport_custom(transport, &mpi_calls, m, rank, m->nranks);
    if (status != TW_OK)
        mpi_close(m);
    return status;
}
