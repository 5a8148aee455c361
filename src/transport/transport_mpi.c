/* transport_mpi.c - over MPI, by the public calls of libthinwire
 *
 * A message is a frame (frame.h) and a body. Short ones are copied behind their frame, in the slot.
 * For long ones an MPI datatype joins the frame in the slot and the body in the caller's memory.
 *
 * A request is a slot. MPI's requests are in one array, so that one call tests all of them. Slots are
 * reused: a step allocates nothing, but MPI may. Nothing here blocks. Ranks that share a core must
 * let each other compute, so idle yields a few times and then sleeps.
 *
 * After a failure MPI can cancel neither a send nor a receive that has found its message. Such a
 * request is released after a moment, while MPI may still use its memory: the program should end the
 * job then, see thinwire_mpi.h. */
#include "thinwire_mpi.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/memory.h"
#include "transport/frame.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* How long other ranks may take to create the transport. */
#define CREATE_SECONDS 300
/* For all cancelled requests of a transport together. The call that fails takes this much longer than
 * its deadline. */
#define CANCEL_TIME (TW__SECOND / 20)
/* Bytes of a body that is copied, which takes 0.02 us. A datatype adds 0.2 us (Open MPI) to 0.7 us
 * (MPICH) to a short message. */
#define SHORT_BODY 2048
/* MPI counts in int: bodies in words of 8 bytes, and the rest. */
#define WORD 8
/* Idle: yields, then sleeps of 1, 2, 4 ... 512 microseconds, each EACH times, so that a message is
 * noticed late by an eighth of the wait at most. Measured with 8 ranks on 2 cores: 64 bytes to all
 * take 27 us, 130 us without yields, 28 us with 5000 yields. Two ranks compute in 203 ms (Open MPI)
 * and 230 ms (MPICH) while six wait, in 203 ms alone; with sleeps up to 128 us in 270 ms. */
#define YIELDS 32
#define EACH 8
#define DOUBLINGS 9

typedef struct slot {
    void *data;         /* of the caller */
    size_t bytes;       /* to send; or capacity, then received */
    MPI_Count received; /* with the frame */
    int at;             /* position of its MPI_Request, -1 when it is done */
    int error;          /* MPI's, once it is done */
    unsigned round;     /* of testing, when it was last tested */
    int tag;
    int receiving;
    tw__frame frame;
    char body[SHORT_BODY]; /* directly behind it */
} slot;

_Static_assert(offsetof(slot, body) == offsetof(slot, frame) + sizeof(tw__frame), "one message");

typedef struct mpi {
    MPI_Comm comm;
    MPI_Datatype word;
    int nranks;
    int *hosts;          /* [nranks]: the lowest rank on the same host */
    int failed;          /* a request failed, or was cancelled */
    int abandoned;       /* a cancelled request was not done: MPI may still use its slot */
    int checked;         /* bodies are sent with their CRC */
    int idles;           /* in a row, without a request that was done */
    int64_t cancel_time; /* left, ns */
    tw__slab slots;
    unsigned round;        /* of testing all requests */
    int room, active;      /* of the arrays below */
    MPI_Request *requests; /* [room], [active] of them under way */
    slot **owners;         /* [room] */
    int *done;             /* [room]: for MPI_Testsome */
    MPI_Status *statuses;  /* [room] */
} mpi;

static int explain(const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return tw_transport_explain("%s: %.*s", what, length, text);
}

/* ---- slots */

/* Arrays that could grow stay grown, even if others could not. Returns 0 when memory is out. */
static int grow(mpi *m, size_t room) {
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
    int grown = requests != NULL && owners != NULL && done != NULL && statuses != NULL;
    m->room = grown ? (int)room : m->room;
    return grown;
}

static slot *take(mpi *m) {
    slot *s = NULL;
    if (m->active < m->room || grow(m, 2 * (size_t)m->room))
        s = tw__slab_take(&m->slots);
    if (s == NULL)
        return NULL;
    memset(s, 0, offsetof(slot, body));
    s->round = m->round;
    s->at = m->active;
    m->owners[m->active] = s;
    m->requests[m->active++] = MPI_REQUEST_NULL;
    return s;
}

/* The last active request moves to the position of one that is done. */
static void leave(mpi *m, slot *s) {
    assert(s->at >= 0 && s->at < m->active && m->owners[s->at] == s);
    int last = --m->active;
    m->requests[s->at] = m->requests[last];
    m->owners[s->at] = m->owners[last];
    m->owners[s->at]->at = s->at;
    s->at = -1;
}

static void put(mpi *m, slot *s) {
    if (s->at >= 0)
        leave(m, s);
    tw__slab_put(&m->slots, s);
}

/* ---- start */

static int is_short(const slot *s) {
    return s->bytes <= SHORT_BODY;
}

/* The frame in the slot and the caller's data, as addresses. */
static int join(const mpi *m, slot *s, MPI_Datatype *type) {
    size_t rest = s->bytes % WORD;
    int lengths[3] = {(int)sizeof s->frame, (int)(s->bytes / WORD), (int)rest};
    MPI_Aint places[3];
    MPI_Datatype types[3] = {MPI_BYTE, m->word, MPI_BYTE};
    MPI_Get_address(&s->frame, &places[0]);
    MPI_Get_address(s->data, &places[1]);
    MPI_Get_address((char *)s->data + (s->bytes - rest), &places[2]);
    int error = MPI_Type_create_struct(3, lengths, places, types, type);
    return error != MPI_SUCCESS ? error : MPI_Type_commit(type);
}

static int start(const mpi *m, int peer, slot *s) {
    MPI_Request *request = &m->requests[s->at];
    MPI_Datatype type = MPI_BYTE;
    void *data = is_short(s) ? &s->frame : MPI_BOTTOM;
    int count = is_short(s) ? (int)(sizeof s->frame + s->bytes) : 1;
    int error = is_short(s) ? MPI_SUCCESS : join(m, s, &type);
    if (error == MPI_SUCCESS)
        error = s->receiving ? MPI_Irecv(data, count, type, peer, s->tag, m->comm, request)
                             : MPI_Isend(data, count, type, peer, s->tag, m->comm, request);
    if (type != MPI_BYTE && type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type); /* MPI keeps it until the message is done */
    return error;
}

/* MPI keeps messages in order, so they need no numbers. */
static void write_frame(const mpi *m, slot *s) {
    s->frame = tw__frame_open(s->data, s->bytes, s->tag, m->checked);
    tw__frame_seal(&s->frame);
    if (is_short(s) && s->bytes > 0)
        memcpy(s->body, s->data, s->bytes);
}

/* Other calls wait for it. NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker) */
static int start_slot(mpi *m, int peer, int tag, int receiving, void *data, size_t bytes,
                      void **request) {
    slot *s = take(m);
    if (s == NULL)
        return tw_transport_explain("no memory for more than %d requests", m->active);
    s->data = data;
    s->bytes = bytes;
    s->tag = tag;
    s->receiving = receiving;
    if (!receiving)
        write_frame(m, s);
    *request = s;
    int error = start(m, peer, s);
    if (error == MPI_SUCCESS)
        return TW_OK;
    m->failed = 1;
    put(m, s);
    return explain(receiving ? "MPI_Irecv" : "MPI_Isend", error);
}
/* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */

static int mpi_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **request) {
    return start_slot(context, peer, tag, 0, (void *)data, bytes, request);
}

static int mpi_recv(void *context, int peer, int tag, void *data, size_t capacity, void **request) {
    return start_slot(context, peer, tag, 1, data, capacity, request);
}

/* ---- test and cancel */

static void set_done(slot *s, int error, const MPI_Status *status) {
    s->error = error;
    if (error == MPI_SUCCESS && s->receiving)
        s->error = MPI_Get_elements_x(status, MPI_BYTE, &s->received);
}

/* What has arrived is in the slot, and in the caller's memory if there was room for a long one. */
static int read_message(slot *s) {
    char text[TW__FRAME_TEXT];
    size_t body =
        s->received < (MPI_Count)sizeof s->frame ? 0 : (size_t)s->received - sizeof s->frame;
    if (!tw__frame_check(&s->frame, 0, text))
        return tw_transport_explain("%s", text);
    if (s->frame.bytes != body || s->frame.tag != s->tag)
        return tw_transport_explain("%zu bytes came, %llu were sent", body,
                                    (unsigned long long)s->frame.bytes);
    const void *data = is_short(s) ? s->body : s->data;
    if (!tw__frame_check_body(&s->frame, s->frame.checked ? tw__crc32c(0, data, body) : 0, text))
        return tw_transport_explain("%s", text);
    if (is_short(s) && body > 0)
        memcpy(s->data, s->body, body);
    s->bytes = body;
    return TW_OK;
}

/* Tests all active requests at once. MPI looks at all its sockets in every call: with 8 ranks on 2
 * cores, a call for each request took most of the time. */
static int test_all(mpi *m) {
    int count = 0;
    m->round++;
    int error = MPI_Testsome(m->active, m->requests, &count, m->done, m->statuses);
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS)
        return error;
    for (int i = 0; i < count && count != MPI_UNDEFINED; i++)
        set_done(m->owners[m->done[i]],
                 error == MPI_SUCCESS ? MPI_SUCCESS : m->statuses[i].MPI_ERROR, &m->statuses[i]);
    for (int at = m->active - 1; at >= 0; at--)
        if (m->requests[at] == MPI_REQUEST_NULL)
            leave(m, m->owners[at]);
    return MPI_SUCCESS;
}

/* Asks MPI only if this request was tested since the last time. */
static int mpi_test(void *context, void *request, size_t *bytes) {
    mpi *m = context;
    slot *s = request;
    int error = MPI_SUCCESS;
    if (s->at >= 0 && s->round == m->round)
        error = test_all(m);
    s->round = m->round;
    if (error == MPI_SUCCESS && s->at >= 0)
        return 0;
    m->idles = 0;
    error = error == MPI_SUCCESS ? s->error : error;
    int status = error != MPI_SUCCESS ? explain("MPI_Testsome", error)
                 : s->receiving       ? read_message(s)
                                      : TW_OK;
    *bytes = s->bytes;
    put(m, s);
    m->failed |= status != TW_OK;
    return status == TW_OK ? 1 : status;
}

/* MPI may still read or write the slot: it is never used again, and never freed. */
static void abandon(mpi *m, slot *s) {
    if (m->requests[s->at] != MPI_REQUEST_NULL)
        MPI_Request_free(&m->requests[s->at]);
    leave(m, s);
    m->abandoned = 1;
}

/* Receives of liveness checks (tag 1) are cancelled at every end; others only after a failure. */
static void mpi_cancel(void *context, void *request) {
    mpi *m = context;
    slot *s = request;
    int64_t begin = tw__clock(), deadline = begin + m->cancel_time;
    int done = s->at < 0;
    if (s->tag == 0 || !s->receiving)
        m->failed = 1;
    if (!done && s->receiving)
        MPI_Cancel(&m->requests[s->at]);
    while (!done && MPI_Test(&m->requests[s->at], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           !done && tw__clock() < deadline)
        sched_yield();
    m->cancel_time -= tw__clock() - begin;
    if (done)
        put(m, s);
    else
        abandon(m, s);
}

static void mpi_idle(void *context, int64_t microseconds) {
    mpi *m = context;
    m->idles += m->idles < YIELDS + EACH * DOUBLINGS;
    if (m->idles <= YIELDS) {
        sched_yield();
        return;
    }
    int64_t sleep = (int64_t)1 << (m->idles - YIELDS) / EACH;
    sleep = sleep < microseconds ? sleep : microseconds;
    struct timespec t = {.tv_nsec = (long)(sleep * 1000)};
    nanosleep(&t, NULL);
}

/* ---- create and free */

static void free_context(mpi *m) {
    if (!m->abandoned)
        tw__slab_free(&m->slots);
    free(m->requests);
    free(m->owners);
    free(m->done);
    free(m->statuses);
    free(m->hosts);
    free(m);
}

/* Messages that nobody will receive: another rank has failed, or sent its abort notice. */
static int has_unmatched(const mpi *m) {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->comm, &found, MPI_STATUS_IGNORE);
    return found;
}

/* MPICH calls a message without a receive an error of MPI_Comm_free, and raises it on MPI_COMM_WORLD
 * (on MPI_COMM_SELF since MPI 4), whose handler ends the process. An abort notice may arrive between
 * the look for it and the end, so the handlers return for as long as this call takes. */
static void free_comm(mpi *m) {
    const MPI_Comm raised[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    MPI_Errhandler handlers[2];
    for (int i = 0; i < 2; i++) {
        MPI_Comm_get_errhandler(raised[i], &handlers[i]);
        MPI_Comm_set_errhandler(raised[i], MPI_ERRORS_RETURN);
    }
    MPI_Comm_free(&m->comm);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_set_errhandler(raised[i], handlers[i]);
        MPI_Errhandler_free(&handlers[i]);
    }
}

/* After a failure, here or on another rank, the communicator is not freed: MPI_Comm_free is
 * collective and could wait for a rank that is gone. The job is about to end. */
static void mpi_close(void *context) {
    mpi *m = context;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Type_free(&m->word);
    if (!finalized && !m->failed && !has_unmatched(m))
        free_comm(m);
    free_context(m);
}

static int mpi_host(void *context, int rank) {
    const mpi *m = context;
    assert(rank >= 0 && rank < m->nranks);
    return m->hosts[rank];
}

static void mpi_checksum(void *context, int on) {
    mpi *m = context;
    m->checked = on;
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
    .checksum = mpi_checksum,
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
        return refuse(TW_ERR_STATE, "MPI: is not initialised, or already finalised; call MPI_Init "
                                    "first");
    if (comm == MPI_COMM_NULL)
        return refuse(TW_ERR_PARAM, "comm: is MPI_COMM_NULL; a communicator is required");
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return refuse(TW_ERR_PARAM,
                      "comm: is an intercommunicator; merge it by MPI_Intercomm_merge");
    return TW_OK;
}

/* With a deadline, unlike MPI_Comm_dup. */
static int duplicate(mpi *m, MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t deadline = tw__clock() + CREATE_SECONDS * TW__SECOND;
    int done = 0;
    int error = MPI_Comm_idup(comm, &m->comm, &request);
    while (error == MPI_SUCCESS && !done && tw__clock() < deadline) {
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
    m->idles = 0;
    return TW_OK;
}

/* All ranks are here, so blocking collectives are safe. */
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
        return refuse(TW_ERR_MEMORY, "no memory");
    m->cancel_time = CANCEL_TIME;
    m->checked = 1;
    MPI_Comm_size(comm, &m->nranks);
    m->hosts = calloc((size_t)m->nranks, sizeof *m->hosts);
    /* The receives of three alltoalls, their sends, and a liveness check. */
    size_t room = 7 * (size_t)m->nranks + 64;
    int complete =
        m->hosts != NULL && grow(m, room) && tw__slab_init(&m->slots, sizeof(slot), room);
    int status = complete ? TW_OK : refuse(TW_ERR_MEMORY, "no memory");
    if (status == TW_OK)
        status = duplicate(m, comm);
    if (status == TW_ERR_TIMEOUT)
        return status; /* m is leaked: MPI may still write the communicator into it */
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
