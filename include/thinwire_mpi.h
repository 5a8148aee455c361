/* thinwire_mpi.h - ranks of an MPI communicator as ranks of a transport
 *
 * In a library of its own, libthinwire_mpi, so that libthinwire needs no MPI. Build with the
 * compiler wrapper of the MPI that it was built with:
 *
 *     mpicc train.c $(pkg-config --cflags --libs thinwire_mpi) -o train
 *
 * Threads: tw_allreduce makes its MPI calls in the calling thread. tw_allreduce_start makes them in
 * a thread of the library: initialise MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE then, or with
 * MPI_THREAD_SERIALIZED if the program makes no MPI calls of its own until tw_allreduce_wait has
 * returned.
 *
 * Errors of MPI are returned, not fatal. MPICH reports some of them to MPI_COMM_WORLD, whatever the
 * communicator: set MPI_ERRORS_RETURN there to have these returned too.
 *
 * After TW_ERR_TIMEOUT or TW_ERR_TRANSPORT messages may be left that nobody receives: MPI_Finalize
 * can hang, end the job by MPI_Abort. */
#ifndef THINWIRE_MPI_H
#define THINWIRE_MPI_H

#include <mpi.h>

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This rank's end of a communicator. Collective over it; comm is duplicated and can be freed, and
 * no message of the program meets one of the library. Waits for the other ranks, 300 s at most.
 * tw_transport_free gives the duplicate back, before MPI_Finalize; it is collective too unless
 * something failed.
 * Errors: TW_ERR_NULL; TW_ERR_STATE before MPI_Init or after MPI_Finalize; TW_ERR_PARAM when comm
 * is MPI_COMM_NULL, has two groups, or more than 65536 ranks; TW_ERR_TIMEOUT; TW_ERR_TRANSPORT in
 * the words of MPI; TW_ERR_MEMORY. On error *transport is NULL. */
TW_API int tw_transport_mpi(tw_transport **transport, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
