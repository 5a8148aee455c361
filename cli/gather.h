/* gather.h - what ranks tell each other outside of the work that is measured
 *
 * A dense group over the job's second transport: it works alike for threads and MPI, and a rank
 * that is lost becomes an error within the deadline. Whole numbers travel as floats, in pieces of
 * 16 bits.
 *
 * All calls but gather_close are collective and return STATUS_OK, or report the error.
 */
#ifndef CLI_GATHER_H
#define CLI_GATHER_H

#include <stdint.h>

#include "job.h"

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
