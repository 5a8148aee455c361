/* ranks_kinds.h - what carries a job: threads (ranks_threads.c) or MPI (ranks_mpi.c)
 *
 * Only ranks.c calls these. Without MPI in the build the functions of ranks_mpi.c say so.
 */
#ifndef CLI_RANKS_KINDS_H
#define CLI_RANKS_KINDS_H

#include "ranks.h"

int ranks_threads_run(const rank_job *job, rank_work work, void *context);

/* Whether this build has MPI. */
bool ranks_mpi_available(void);
int ranks_mpi_begin(rank_job *job);
int ranks_mpi_worst(int status);
int ranks_mpi_run(const rank_job *job, rank_work work, void *context);
void ranks_mpi_end(void);

#endif
