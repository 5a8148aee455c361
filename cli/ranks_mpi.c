/* ranks_mpi.c - a job of processes that mpirun started, each of them one rank
 *
 * A failure that all ranks share ends the job in order. When ranks are lost, or hang, only
 * MPI_Abort ends it; the line about it should come once, from the lowest rank that lives. So each
 * rank waits a little longer than the one before it, and the first to speak ends all others.
 */
#include "ranks_kinds.h"

#include "errors.h"

#ifdef TW_HAVE_MPI

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "thinwire_mpi.h"

#define TURN_US 50000 /* between one rank and the next to speak of a broken job */
#define TURNS_MAX 40  /* 2 seconds at most */

bool ranks_mpi_available(void) {
    return true;
}

int ranks_mpi_begin(rank_job *job) {
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return failure("MPI could not be initialised");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &job->nranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &job->first);
    return STATUS_OK;
}

int ranks_mpi_worst(int status) {
    int worst = status;
    MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return worst;
}

/* Does not return. */
static void end_broken_job(const rank_seat *seat) {
    int turns = seat->rank < TURNS_MAX ? seat->rank : TURNS_MAX;
    usleep((useconds_t)(turns * TURN_US));
    failure("rank %d: %s", seat->rank, seat->text);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, STATUS_FAILED);
}

/* All ranks are here: the lowest one that knows what failed says so. */
static int report(const rank_seat *seat, int status) {
    int speaker = seat->text[0] != '\0' ? seat->rank : INT_MAX;
    int lowest = speaker;
    MPI_Allreduce(&speaker, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest != INT_MAX && seat->rank == lowest)
        return failure("rank %d: %s", seat->rank, seat->text);
    return lowest != INT_MAX ? STATUS_FAILED : status;
}

int ranks_mpi_run(const rank_job *job, rank_work work, void *context) {
    rank_seat seat = {.rank = job->first, .nranks = job->nranks, .neighbours = 1};
    int error = tw_transport_mpi(&seat.transport, MPI_COMM_WORLD);
    if (error == TW_OK)
        error = tw_transport_mpi(&seat.beside, MPI_COMM_WORLD);
    int status = STATUS_OK;
    if (error == TW_OK) {
        status = work(&seat, context);
    } else {
        status = rank_library_failure(&seat, "connecting the ranks", error);
        seat.broken = true;
    }
    if (seat.broken)
        end_broken_job(&seat);
    tw_transport_free(seat.transport);
    tw_transport_free(seat.beside);
    return report(&seat, status);
}

void ranks_mpi_end(void) {
    MPI_Finalize();
}

#else

bool ranks_mpi_available(void) {
    return false;
}

/* ranks_begin asks first, so nothing below is ever called. */
int ranks_mpi_begin(rank_job *job) {
    (void)job;
    return STATUS_FAILED;
}

int ranks_mpi_worst(int status) {
    return status;
}

int ranks_mpi_run(const rank_job *job, rank_work work, void *context) {
    (void)job, (void)work, (void)context;
    return STATUS_FAILED;
}

void ranks_mpi_end(void) {
}

#endif
