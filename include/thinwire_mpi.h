/* thinwire_mpi.h - the ranks of an MPI communicator as the ranks of a transport
 *
 * This is a library of its own, libthinwire_mpi, so that libthinwire does not need MPI. Compile
 * with the compiler wrapper of the MPI that libthinwire_mpi was built with:
 *
 *     mpicc train.c $(pkg-config --cflags --libs thinwire_mpi) -o train
 *
 * Threads. tw_allreduce makes its MPI calls in the calling thread. Steps that tw_allreduce_start has
 * started are made in a thread of the library, or in the thread that calls tw_allreduce_wait:
 * initialise MPI with MPI_THREAD_MULTIPLE. MPI_THREAD_SERIALIZED is enough if the program makes no
 * MPI call until the last started tensor has been waited for.
 *
 * Errors. MPI errors are returned, not fatal. MPICH reports some errors to MPI_COMM_WORLD, whatever
 * the communicator. To have these returned too, set MPI_ERRORS_RETURN on MPI_COMM_WORLD.
 *
 * After an error that breaks the group, some messages may have no receiver, and MPI_Finalize can
 * hang. End the job with MPI_Abort. */
#ifndef THINWIRE_MPI_H
#define THINWIRE_MPI_H

#include <mpi.h>

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This rank's end of a communicator. Collective over comm. Waits for the other ranks, 300 s at
 * most.
 *   comm  is duplicated. The caller may free it afterwards. Messages of the program and of the
 *         library never mix.
 * tw_transport_free frees the duplicate. Call it on all ranks before MPI_Finalize: it waits for
 * them. After a failure of this rank's transport it does not wait, and the duplicate is not freed.
 * If a rank frees its transport while others wait for it in a step, they notice by their timeouts.
 * Errors: TW_ERR_NULL; TW_ERR_STATE before MPI_Init or after MPI_Finalize; TW_ERR_PARAM if comm is
 * MPI_COMM_NULL, is an intercommunicator, or has more than 65536 ranks; TW_ERR_TIMEOUT;
 * TW_ERR_TRANSPORT with the text of MPI; TW_ERR_MEMORY. On error *transport is NULL. */
TW_API int tw_transport_mpi(tw_transport **transport, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
