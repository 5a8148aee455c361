/* side.h - what ranks tell each other beside the work that is measured
 *
 * A dense group over the second transport: it works alike for threads and MPI, and a rank that is
 * lost becomes an error within the deadline. Whole numbers travel as floats, in pieces of 16 bits.
 *
 * All calls but side_close are collective and return STATUS_OK, or note the failure in the seat.
 */
#ifndef CLI_SIDE_H
#define CLI_SIDE_H

#include <stdint.h>

#include "ranks.h"

#define SIDE_VALUES 16 /* whole numbers that a rank can tell at a time */

typedef struct side {
    rank_seat *seat;
    tw_group *group;
    float *pieces; /* [nranks][SIDE_VALUES][4] */
    int64_t *told; /* [nranks][SIDE_VALUES] by side_tell */
} side;

/* Open; n is the length of the vectors for side_sum, 0 for none; timeout is in seconds. */
int side_open(side *beside, rank_seat *seat, int64_t n, double timeout);
void side_close(side *beside);

/* Every rank tells values[count], all get them: see side_told, side_largest and side_total. */
int side_tell(side *beside, const int64_t *values, int count);

/* What a rank told at position i, the largest over ranks, and the sum. */
int64_t side_told(const side *beside, int rank, int i);
int64_t side_largest(const side *beside, int i);
int64_t side_total(const side *beside, int i);

/* Wait until all ranks are here. */
int side_meet(side *beside);

/* Whether all ranks got here with STATUS_OK: if not, all leave. For work that is not collective
 * and may fail on one of them. */
int side_agree(side *beside, int status);

/* sum[n] becomes the sum over ranks of values[n]. */
int side_sum(side *beside, const float *values, float *sum);

#endif
