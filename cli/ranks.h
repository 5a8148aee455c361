/* ranks.h - runs one function on every rank of a job, over whatever carries the job
 *
 * By itself a process plays all ranks as threads. Under mpirun it is one rank and the others are
 * processes like it; which of the two is seen from the environment. Each rank gets two transports:
 * one for what is measured, and one beside it, as a transport carries one group at a time.
 *
 *     ranks_hush(); parse options, return ranks_status_alone(status) if they are wrong;
 *     ranks_begin(&job, wanted, 8); ranks_run(&job, work, context); ranks_end(&job);
 */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "thinwire.h"

#define RANKS_MAX 1024 /* as threads */
#define RANK_TEXT 1024

/* One rank, as its function sees it. */
typedef struct rank_seat {
    int rank;
    int nranks;
    int neighbours;          /* ranks in this process, this one too */
    tw_transport *transport; /* for what is measured */
    tw_transport *beside;    /* for checks and figures */
    bool broken;             /* others may not know of the failure: no collective call any more */
    char text[RANK_TEXT];    /* what failed here first; "" if nothing did */
} rank_seat;

typedef int (*rank_work)(rank_seat *seat, void *context); /* returns a status */

typedef struct rank_job {
    bool mpi;
    int nranks;
    int first; /* lowest rank in this process */
} rank_job;

/* Under mpirun all ranks but 0 keep quiet: what follows is the same on all of them, until
 * ranks_run. */
void ranks_hush(void);

/* The exit status of a process that ends before it joined its job: only rank 0 tells that something
 * was wrong, as mpirun ends all others at the first that does, printed or not. */
int ranks_status_alone(int status);

/* Set up the job; wanted is the number of ranks asked for, 0 if none was: then mpirun decides, or
 * there are `otherwise` threads. Returns STATUS_OK, or prints why not. */
int ranks_begin(rank_job *job, int64_t wanted, int otherwise);

/* Whether rank 0, which prints, is in this process. */
bool ranks_speaks(const rank_job *job);

/* The worst of the statuses that the processes of the job pass. */
int ranks_worst(const rank_job *job, int status);

/* Run work once for every rank; it is given its seat and context. Prints the first failure once.
 * Returns STATUS_OK or STATUS_FAILED; where ranks are lost it may end the job instead. */
int ranks_run(const rank_job *job, rank_work work, void *context);

/* The job is over. */
void ranks_end(const rank_job *job);

/* "threads" or "mpi". */
const char *ranks_transport(const rank_job *job);

/* For a rank's work: note that a call of the library returned error, or that something else
 * failed, to be printed by ranks_run. The first failure of a rank is the one that counts. Returns
 * STATUS_FAILED. */
int rank_library_failure(rank_seat *seat, const char *doing, int error);
int rank_failure(rank_seat *seat, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
