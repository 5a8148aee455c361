/* job.h - runs one function on every rank of a job: threads of this process, MPI, or TCP
 *
 * By itself a process runs all ranks as threads. Under mpirun, or with --meet, it is one rank and the
 * others are processes like it; the environment tells which, or --rank. Each rank gets two transports, as a transport
 * carries one group at a time: one for what is measured, one for gather.c.
 *
 *     job_silence_others(argc, argv);
 *     int status = parse options;
 *     return job_execute(status, wanted ranks, 8, &tcp, run, context);      run calls job_run
 */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli.h"
#include "thinwire.h"

#define JOB_RANKS_MAX 1024 /* as threads */

/* Ranks that meet over TCP: what --meet, --rank and --secret-file say. */
typedef struct job_tcp {
    const char *meet; /* NULL: not over TCP */
    int64_t rank;     /* -1: not given */
    bool join;        /* a job that runs: the library gives the rank */
    bool elastic;     /* one transport, whose ranks can change; no gather_transport */
    const char *secret_file;
    double timeout; /* seconds in which all must come; 0: the library's */
} job_tcp;
#define JOB_TCP_INIT                                                                               \
    { .rank = -1 }
#define JOB_TCP_OPTIONS(tcp)                                                                       \
    OPTION_TEXT(                                                                                   \
        "meet", "HOST:PORT", &(tcp)->meet,                                                         \
        "be one rank of --ranks processes that meet there over TCP; several places may be "        \
        "named with commas"),                                                                      \
        OPTION_INTEGER("rank", "R", &(tcp)->rank, 0, 65535, "with --meet: which rank this is"),    \
        OPTION_TEXT("secret-file", "FILE", &(tcp)->secret_file,                                    \
                    "with --meet: its bytes are known to the job's ranks only (default none)")

/* The job as a process sees it. */
typedef struct job_handle {
    bool processes;     /* every rank is one, over MPI or TCP */
    const job_tcp *tcp; /* NULL: MPI, or threads */
    bool sockets;       /* between ranks that are threads */
    int nranks;
    int first; /* lowest rank in this process; -1: it joins, and the rank is not known yet */
} job_handle;

/* The job as one rank sees it. */
typedef struct job_rank {
    int rank;
    int nranks;
    int local_ranks;                /* in this process, this one included */
    tw_transport *transport;        /* for what is measured */
    tw_transport *gather_transport; /* for figures and checks */
    error_capture error;            /* of this rank */
    int status;                     /* that its work returned */
} job_rank;

typedef int (*job_work)(job_rank *job, void *context); /* returns a status */

/* Under mpirun all ranks but 0 print nothing until job_run: they would repeat rank 0. With --meet each
 * process speaks for itself, whoever started it. */
void job_silence_others(int argc, char **argv);

/* Set up the job, run, end it. status is that of the options: if they are wrong the process ends
 * before it joins its job, and only rank 0 returns the status, since mpirun ends all other
 * processes at the first that fails, printed or not. wanted is the number of ranks asked for, 0 if
 * none was: then mpirun decides, or there are `otherwise` threads. Returns the status. */
int job_execute(int status, int64_t wanted, int otherwise, const job_tcp *tcp,
                int (*run)(const job_handle *job, void *context), void *context);

/* Whether rank 0, which prints, is in this process. */
bool job_prints(const job_handle *job);

/* The worst of the statuses that the processes of an MPI job pass; else this process's own. Collective. */
int job_worst(const job_handle *job, int status);

/* Run work once for every rank. Prints the first error once. Returns STATUS_OK or STATUS_FAILED;
 * where ranks are lost it may end the job instead. */
int job_run(const job_handle *job, job_work work, void *context);

/* "threads", "sockets", "mpi" or "tcp". */
const char *job_transport_name(const job_handle *job);

/* Call work(context, rank) in a thread for each of nranks. None begins before all exist: a thread
 * that cannot be started would leave the others waiting. stack: bytes for each, 0: the usual.
 * Returns STATUS_OK when all have ended, or prints that not all could be started. */
int job_threads(int nranks, size_t stack, void (*work)(void *context, int rank), void *context);

/* For job.c: the functions of job_mpi.c. They are in a file of their own, thinwire-mpi.so, which is
 * loaded when mpirun has started the command: without it the command runs where no MPI is installed.
 * The file must be of the same version as the command. */
#define JOB_MPI_VERSION (TW_VERSION_MAJOR * 1000000 + TW_VERSION_MINOR * 1000 + TW_VERSION_PATCH)
typedef struct job_mpi {
    int version; /* JOB_MPI_VERSION */
    int (*begin)(job_handle *job);
    int (*worst)(int status);
    int (*run)(const job_handle *job, job_work work, void *context);
    int (*end)(void);
} job_mpi;

/* For job.c: job_tcp.c. */
int job_tcp_run(const job_handle *job, job_work work, void *context);

/* Load the functions of job_mpi.c. NULL: not possible, and *cause says why. */
const job_mpi *job_mpi_load(const char **cause);

/* ---- gather.c: what ranks tell each other outside of the work that is measured
 *
 * A dense group over the job's second transport: it works alike for threads and MPI, and a rank that
 * is lost becomes an error within the deadline. Whole numbers travel as floats, in pieces of 16 bits.
 * All calls but gather_close are collective and return STATUS_OK, or report the error. */

#define GATHER_VALUES 16 /* whole numbers that a rank can tell at a time */

typedef struct gather_group {
    job_rank *job;
    tw_group *group;
    float *pieces;   /* [nranks][GATHER_VALUES][4] */
    int64_t *values; /* [nranks][GATHER_VALUES] of the last gather_values */
} gather_group;

/* Open; n is the length of the vectors for gather_sum, 0 for none; timeout is in seconds. */
int gather_open(gather_group *gather, job_rank *job, int64_t n, double timeout);
void gather_close(gather_group *gather);

/* Every rank gives values[count], all get them. */
int gather_values(gather_group *gather, const int64_t *values, int count);

/* What a rank gave at position i, the largest over ranks, and the sum. */
int64_t gather_value(const gather_group *gather, int rank, int i);
int64_t gather_max(const gather_group *gather, int i);
int64_t gather_total(const gather_group *gather, int i);

/* Wait for all ranks. */
int gather_barrier(gather_group *gather);

/* Whether all ranks got here with STATUS_OK: if not, all leave. For work that is not collective
 * and may fail on one of them. */
int gather_agree(gather_group *gather, int status);

/* sum[n] becomes the sum over ranks of values[n]. */
int gather_sum(gather_group *gather, const float *values, float *sum);

#endif
