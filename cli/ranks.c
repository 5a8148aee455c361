/* ranks.c - chooses between threads and MPI, and notes what fails on a rank
 *
 * Open MPI, MPICH and Slurm tell a process about its job through the environment, before MPI is
 * initialised: that decides. A rank's failure is noted rather than printed, as all ranks have it
 * and one line is enough.
 */
#include "ranks.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "errors.h"
#include "ranks_kinds.h"

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
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (getenv(launchers[i].mark) != NULL) {
            const char *rank = getenv(launchers[i].rank);
            return rank != NULL ? atoi(rank) : 0;
        }
    }
    return -1;
}

void ranks_hush(void) {
    if (launched_rank() > 0) {
        errors_hush(true);
        FILE *nowhere = freopen("/dev/null", "w", stdout); /* for --help */
        (void)nowhere; /* NULL: stdout is closed, which is as quiet */
    }
}

int ranks_status_alone(int status) {
    return launched_rank() > 0 ? STATUS_OK : status;
}

static int begin_mpi(rank_job *job, int64_t wanted) {
    if (!ranks_mpi_available()) {
        return failure("mpirun started this, but the build has no MPI: install libopenmpi-dev and "
                       "rebuild, or run without mpirun and give --ranks");
    }
    int status = ranks_mpi_begin(job);
    if (status == STATUS_OK && wanted > 0 && wanted != job->nranks) {
        status = usage_error("--ranks %" PRId64 " is not accepted: mpirun started %d; leave "
                             "--ranks out",
                             wanted, job->nranks);
        ranks_mpi_end();
    }
    return status;
}

int ranks_begin(rank_job *job, int64_t wanted, int otherwise) {
    *job = (rank_job){.mpi = launched_rank() >= 0};
    if (job->mpi)
        return begin_mpi(job, wanted);
    job->nranks = wanted > 0 ? (int)wanted : otherwise;
    return STATUS_OK;
}

bool ranks_speaks(const rank_job *job) {
    return job->first == 0;
}

int ranks_worst(const rank_job *job, int status) {
    return job->mpi ? ranks_mpi_worst(status) : status;
}

int ranks_run(const rank_job *job, rank_work work, void *context) {
    errors_hush(false);
    return job->mpi ? ranks_mpi_run(job, work, context) : ranks_threads_run(job, work, context);
}

void ranks_end(const rank_job *job) {
    if (job->mpi)
        ranks_mpi_end();
}

const char *ranks_transport(const rank_job *job) {
    return job->mpi ? "mpi" : "threads";
}

/* ---- Failures ------------------------------------------------------------------------------- */

/* Errors that a collective call gives on all ranks at once, with the group still whole or not yet
 * made. After any other one it is not known what the other ranks do. */
static bool is_shared(int error) {
    return error == TW_ERR_NUMBER || error == TW_ERR_MISMATCH || error == TW_ERR_MEMORY ||
           error == TW_ERR_DEVICE;
}

int rank_library_failure(rank_seat *seat, const char *doing, int error) {
    seat->broken = seat->broken || !is_shared(error);
    if (seat->text[0] == '\0')
        library_failure_text(seat->text, sizeof seat->text, doing, error);
    return STATUS_FAILED;
}

int rank_failure(rank_seat *seat, const char *format, ...) {
    if (seat->text[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(seat->text, sizeof seat->text, format, arguments);
        va_end(arguments);
    }
    return STATUS_FAILED;
}
