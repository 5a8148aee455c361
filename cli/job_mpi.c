/* job_mpi.c - a job of processes that mpirun started, each of them one rank
 *
 * A file that the command loads, thinwire-mpi.so; it takes libthinwire and error.c from the command.
 * An error that all ranks share ends the job in order. When ranks are lost, or hang, only MPI_Abort
 * ends it; the line about it should come once, from the lowest rank that lives. So each rank waits
 * a little longer than the one before it, and the first to print ends all others.
 */
#include "job.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "thinwire_mpi.h"

#define TURN_US 50000 /* between one rank and the next to print the error of a broken job */
#define TURNS_MAX 40  /* 2 seconds at most */

static int begin(job_handle *job) {
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return error_report("MPI could not be initialised");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &job->nranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &job->first);
    return STATUS_OK;
}

static int worst(int status) {
    int largest = status;
    MPI_Allreduce(&status, &largest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return largest;
}

/* Does not return. */
static void end_broken_job(const job_rank *self) {
    int turns = self->rank < TURNS_MAX ? self->rank : TURNS_MAX;
    usleep((useconds_t)(turns * TURN_US));
    error_report("rank %d: %s", self->rank, self->error.text);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, STATUS_FAILED);
}

/* Collective: the lowest rank that has an error prints it. */
static int print_error(const job_rank *self, int status) {
    int candidate = self->error.text[0] != '\0' ? self->rank : INT_MAX;
    int lowest = candidate;
    MPI_Allreduce(&candidate, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest != INT_MAX && self->rank == lowest)
        return error_report("rank %d: %s", self->rank, self->error.text);
    return lowest != INT_MAX ? STATUS_FAILED : status;
}

static int run(const job_handle *job, job_work work, void *context) {
    job_rank self = {.rank = job->first, .nranks = job->nranks, .local_ranks = 1};
    error_capture_in(&self.error);
    int error = tw_transport_mpi(&self.transport, MPI_COMM_WORLD);
    if (error == TW_OK)
        error = tw_transport_mpi(&self.gather_transport, MPI_COMM_WORLD);
    int status = error_check("connecting the ranks", error);
    if (status == STATUS_OK)
        status = work(&self, context);
    else
        self.error.broken = true;
    error_capture_in(NULL);
    if (self.error.broken)
        end_broken_job(&self);
    tw_transport_free(self.transport);
    tw_transport_free(self.gather_transport);
    return print_error(&self, status);
}

__attribute__((visibility("default"))) extern const job_mpi thinwire_job_mpi;
const job_mpi thinwire_job_mpi = {JOB_MPI_VERSION, begin, worst, run, MPI_Finalize};
