/* allreduce_measure.h - one rank's part in measuring rows of `thinwire bench allreduce` */
#ifndef CLI_ALLREDUCE_MEASURE_H
#define CLI_ALLREDUCE_MEASURE_H

#include "allreduce_check.h"
#include "bench_allreduce.h"
#include "side.h"

/* What a rank keeps from row to row. */
typedef struct allreduce_rank {
    const allreduce_bench *bench;
    rank_seat *seat;
    side beside;
    allreduce_check check; /* with --verify */
    place where;           /* gradients and results lie there for the library */
    float *grad;           /* [n] */
    float *out;            /* [n] */
    void *grad_there;      /* [n] the mirrors of both */
    void *out_there;       /* [n] */
    double *samples;       /* [5][steps] in us: call, select, agree, exchange, apply */
    int64_t progress;      /* steps done, all rows */
} allreduce_rank;

/* Collective, all of them but the last. Return STATUS_OK, or note the failure in the seat. */
int allreduce_rank_create(allreduce_rank *self, const allreduce_bench *bench, rank_seat *seat);
int allreduce_measure(allreduce_rank *self, const allreduce_row *row, allreduce_result *result);
void allreduce_rank_free(allreduce_rank *self);

#endif
