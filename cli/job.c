/* job.c - chooses between threads, MPI and TCP, and runs ranks as threads
 *
 * Open MPI, MPICH and Slurm tell a process about its job through the environment, before MPI is
 * initialised: that decides. A rank that fails leaves, and the others notice: at once between
 * threads, by their deadlines over MPI.
 */
#include "job.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli.h"

/* Variables that a launcher sets: one that tells it apart, and the rank. */
static const struct {
    const char *mark;
    const char *rank;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_RANK"},
    {"PMIX_RANK", "PMIX_RANK"},
};

/* The rank that mpirun gave to this process, -1 when it was not started by it. */
static int launched_rank(void) {
    for (int i = 0; i < COUNT_OF(launchers); i++) {
        if (getenv(launchers[i].mark) != NULL) {
            const char *rank = getenv(launchers[i].rank);
            return rank != NULL ? atoi(rank) : 0;
        }
    }
    return -1;
}

static bool has_meet(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--meet", strlen("--meet")) == 0)
            return true;
    return false;
}

void job_silence_others(int argc, char **argv) {
    if (launched_rank() > 0 && !has_meet(argc, argv)) {
        error_silence(true);
        FILE *nowhere = freopen("/dev/null", "w", stdout); /* for --help */
        (void)nowhere; /* NULL: stdout is closed, which is as quiet */
    }
}

static const job_mpi *mpi; /* loaded; NULL without mpirun */

#ifdef TW_HAVE_MPI
#define MPI_FILE "thinwire-mpi.so"

/* The path of MPI_FILE: beside the command, as in a build directory, or where it is installed, which
 * is relative to the command. "" if it is in neither. */
static void find_mpi_file(char path[PATH_MAX]) {
    static const char *const places[] = {".", JOB_MPI_DIR};
    char command[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    command[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(command, '/');
    path[0] = '\0';
    for (int i = 0; slash != NULL && path[0] == '\0' && i < COUNT_OF(places); i++) {
        const char *place = places[i];
        *slash = '\0';
        int end = snprintf(path, PATH_MAX, "%s%s%s/" MPI_FILE, place[0] == '/' ? "" : command,
                           place[0] == '/' ? "" : "/", place);
        if (end < 0 || end >= PATH_MAX || access(path, R_OK) != 0)
            path[0] = '\0';
    }
}

const job_mpi *job_mpi_load(const char **cause) {
    char path[PATH_MAX];
    find_mpi_file(path);
    *cause = MPI_FILE " is not installed";
    if (path[0] == '\0')
        return NULL;
    void *file = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* global: MPI loads parts that need it */
    const job_mpi *calls = file != NULL ? dlsym(file, "thinwire_job_mpi") : NULL;
    if (calls == NULL)
        *cause = dlerror();
    else if (calls->version != JOB_MPI_VERSION)
        *cause = MPI_FILE " is of another version";
    else
        return calls;
    return NULL;
}
#else
const job_mpi *job_mpi_load(const char **cause) {
    *cause = "not in this build: install libopenmpi-dev and rebuild";
    return NULL;
}
#endif

static int begin_tcp(job_handle *job, int64_t wanted, const job_tcp *tcp) {
    if (tcp->join && tcp->rank >= 0)
        return error_usage(
            "--join and --rank: give one of them; the job gives a newcomer its rank");
    if ((tcp->rank < 0 && !tcp->join) || wanted == 0)
        return error_usage(tcp->join ? "--join needs --ranks P, as the job was started with"
                                     : "--meet needs --rank R and --ranks P");
    if (tcp->rank >= wanted)
        return error_usage("--rank %" PRId64 ": accepted are 0 .. %" PRId64 ", of --ranks %" PRId64,
                           tcp->rank, wanted - 1, wanted);
    *job =
        (job_handle){.processes = true, .tcp = tcp, .nranks = (int)wanted, .first = (int)tcp->rank};
    return STATUS_OK;
}

static int begin(job_handle *job, int64_t wanted, int otherwise, const job_tcp *tcp) {
    if (tcp->meet != NULL)
        return begin_tcp(job, wanted, tcp);
    if (tcp->rank >= 0 || tcp->secret_file != NULL)
        return error_usage("--rank and --secret-file are for --meet; give it too");
    *job = (job_handle){.processes = launched_rank() >= 0};
    if (!job->processes && wanted > JOB_RANKS_MAX)
        return error_usage("--ranks %" PRId64 ": accepted are 1 to %d threads", wanted,
                           JOB_RANKS_MAX);
    if (!job->processes) {
        job->nranks = wanted > 0 ? (int)wanted : otherwise;
        return STATUS_OK;
    }
    const char *cause;
    mpi = job_mpi_load(&cause);
    if (mpi == NULL)
        return error_report(
            "mpirun started this, but its MPI cannot be used: %s; or run without mpirun and give "
            "--ranks",
            cause);
    TW_TRY(mpi->begin(job));
    if (wanted == 0 || wanted == job->nranks)
        return STATUS_OK;
    mpi->end();
    return error_usage("--ranks %" PRId64 " is not accepted: mpirun started %d; leave --ranks out",
                       wanted, job->nranks);
}

int job_execute(int status, int64_t wanted, int otherwise, const job_tcp *tcp,
                int (*run)(const job_handle *job, void *context), void *context) {
    job_handle job;
    if (status == STATUS_OK)
        status = begin(&job, wanted, otherwise, tcp);
    if (status != STATUS_OK)
        return launched_rank() > 0 && tcp->meet == NULL ? STATUS_OK : status;
    status = run(&job, context);
    if (mpi != NULL)
        mpi->end();
    return status;
}

bool job_prints(const job_handle *job) {
    return job->first == 0;
}

int job_worst(const job_handle *job, int status) {
    return job->processes && mpi != NULL ? mpi->worst(status) : status;
}

const char *job_transport_name(const job_handle *job) {
    if (job->tcp != NULL)
        return "tcp";
    return job->processes ? "mpi" : job->sockets ? "sockets" : "threads";
}

typedef struct thread_set {
    pthread_mutex_t gate; /* held until all threads exist */
    bool called_off;
    void (*work)(void *context, int rank);
    void *context;
} thread_set;

typedef struct rank_thread {
    thread_set *set;
    pthread_t thread;
    int rank;
} rank_thread;

static void *thread_main(void *argument) {
    rank_thread *self = argument;
    pthread_mutex_lock(&self->set->gate);
    bool called_off = self->set->called_off;
    pthread_mutex_unlock(&self->set->gate);
    if (!called_off)
        self->set->work(self->set->context, self->rank);
    return NULL;
}

/* Returns how many could be started; all of these have ended. */
static int run_threads(thread_set *set, rank_thread *threads, int nranks, size_t stack) {
    pthread_attr_t attributes;
    int started = 0;
    if (pthread_attr_init(&attributes) != 0)
        return 0;
    if (stack == 0 || pthread_attr_setstacksize(&attributes, stack) == 0) {
        pthread_mutex_lock(&set->gate);
        for (; started < nranks; started++) {
            threads[started] = (rank_thread){.set = set, .rank = started};
            if (pthread_create(&threads[started].thread, &attributes, thread_main,
                               &threads[started]) != 0)
                break;
        }
        set->called_off = started < nranks;
        pthread_mutex_unlock(&set->gate);
    }
    for (int r = 0; r < started; r++)
        pthread_join(threads[r].thread, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

int job_threads(int nranks, size_t stack, void (*work)(void *context, int rank), void *context) {
    assert(nranks > 0);
    thread_set set = {.gate = PTHREAD_MUTEX_INITIALIZER, .work = work, .context = context};
    rank_thread *threads = calloc((size_t)nranks, sizeof *threads);
    if (threads == NULL)
        return error_report("not enough memory for %d ranks; try fewer --ranks", nranks);
    int started = run_threads(&set, threads, nranks, stack);
    free(threads);
    if (started < nranks) {
        return error_report("only %d of %d threads could be started; try fewer --ranks", started,
                            nranks);
    }
    return STATUS_OK;
}

/* A job whose ranks are threads. */
typedef struct local_job {
    int nranks;
    bool sockets;
    job_rank *ranks;           /* [nranks] */
    tw_transport **transports; /* [nranks] for what is measured, then [nranks] for gather.c */
    job_work work;
    void *context;
} local_job;

static void rank_main(void *context, int rank) {
    local_job *local = context;
    job_rank *self = &local->ranks[rank];
    error_capture_in(&self->error);
    self->status = local->work(self, local->context);
    tw_transport_free(self->transport); /* the other ranks see that this one has left */
    tw_transport_free(self->gather_transport);
    local->transports[rank] = local->transports[rank + local->nranks] = NULL;
}

/* ends [nranks][nranks] gets the socket of each rank to each other. */
static int make_sockets(int *ends, int nranks) {
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
                return error_report("only %d ranks could be connected: %s; try fewer --ranks", a,
                                    strerror(errno));
            ends[a * nranks + b] = pair[0];
            ends[b * nranks + a] = pair[1];
        }
    return STATUS_OK;
}

static int connect_by_sockets(tw_transport **transports, int nranks) {
    int *ends = calloc((size_t)nranks * (size_t)nranks, sizeof *ends);
    int status = ends != NULL ? make_sockets(ends, nranks)
                              : error_report("not enough memory for %d ranks", nranks);
    for (int r = 0; r < nranks && status == STATUS_OK; r++)
        status = error_check(
            "connecting the ranks",
            tw_transport_sockets(&transports[r], ends + (ptrdiff_t)r * nranks, r, nranks));
    free(ends);
    return status;
}

static int connect_ranks(local_job *local) {
    int nranks = local->nranks;
    if (local->sockets)
        TW_TRY(connect_by_sockets(local->transports, nranks));
    else
        TW_TRY(
            error_check("connecting the ranks", tw_transport_threads(local->transports, nranks)));
    TW_TRY(error_check("connecting the ranks",
                       tw_transport_threads(local->transports + nranks, nranks)));
    for (int r = 0; r < nranks; r++) {
        local->ranks[r] = (job_rank){.rank = r,
                                     .nranks = nranks,
                                     .local_ranks = nranks,
                                     .transport = local->transports[r],
                                     .gather_transport = local->transports[r + nranks]};
    }
    return STATUS_OK;
}

/* The error of the lowest rank that has one. */
static int print_error(const local_job *local) {
    int status = STATUS_OK;
    for (int r = 0; r < local->nranks; r++) {
        if (local->ranks[r].error.text[0] != '\0')
            return error_report("rank %d: %s", r, local->ranks[r].error.text);
        status = local->ranks[r].status != STATUS_OK ? STATUS_FAILED : status;
    }
    return status;
}

static int run_local(const job_handle *job, job_work work, void *context) {
    size_t nranks = (size_t)job->nranks;
    local_job local = {.nranks = job->nranks,
                       .sockets = job->sockets,
                       .ranks = calloc(nranks, sizeof *local.ranks),
                       .transports = calloc(2 * nranks, sizeof(tw_transport *)),
                       .work = work,
                       .context = context};
    int status = STATUS_OK;
    if (local.ranks == NULL || local.transports == NULL)
        status = error_report("not enough memory for %d ranks; try fewer --ranks", job->nranks);
    else if ((status = connect_ranks(&local)) == STATUS_OK &&
             (status = job_threads(local.nranks, 0, rank_main, &local)) == STATUS_OK)
        status = print_error(&local);
    for (size_t i = 0; local.transports != NULL && i < 2 * nranks; i++)
        tw_transport_free(local.transports[i]);
    free(local.ranks);
    free(local.transports);
    return status;
}

int job_run(const job_handle *job, job_work work, void *context) {
    error_silence(false);
    if (job->tcp != NULL)
        return job_tcp_run(job, work, context);
    return job->processes ? mpi->run(job, work, context) : run_local(job, work, context);
}
