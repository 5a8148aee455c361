/* allreduce_check.h - whether a step of allreduce lost or invented anything
 *
 * The law: what was applied plus what the ranks keep is what they kept before plus their gradients.
 *
 *     result[i] + sum of residuals after[i]  =  sum of residuals before[i] + sum of gradients[i]
 *
 * All numbers are such that these sums are exact (patterns.h), so any difference is an error.
 */
#ifndef CLI_ALLREDUCE_CHECK_H
#define CLI_ALLREDUCE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "patterns.h"
#include "place.h"
#include "side.h"
#include "verify.h"

/* One rank's part of the check: residuals are summed over ranks by the dense group beside, while
 * the gradients of all ranks are made anew, for this rank's share of the vector. */
typedef struct allreduce_check {
    side *beside;
    place *where;
    int64_t n;
    int64_t begin; /* this rank's share: begin .. end-1 */
    int64_t end;
    pattern_spec made; /* the gradients */
    bool dense;        /* the step: it has no sparse result, and nothing stays behind */
    selection sparse;  /* copy of the step's sparse result */
    float *residual;   /* [n] of this rank, after the step */
    float *kept;       /* [n] sum over ranks of the residuals */
    float *before;     /* [end - begin] the same before the step */
    float *given;      /* [end - begin] sum over ranks of the gradients */
    float *gradient;   /* [end - begin] of one rank */
} allreduce_check;

/* Returns STATUS_OK, or notes the failure in the seat. Not collective. */
int allreduce_check_create(allreduce_check *check, side *beside, place *where, int64_t n);
void allreduce_check_free(allreduce_check *check);

/* A new group begins, with residuals of zero. */
void allreduce_check_begin(allreduce_check *check, const pattern_spec *made);

/* Copy what the group's last step left, sparse result and residual. Returns STATUS_OK, or notes the
 * failure in the seat. Not collective. */
int allreduce_check_copy(allreduce_check *check, tw_group *group);

/* Check the step that was copied: out[n] is its result as TW_SUM. Adds to *wrong what is wrong in
 * this rank's share of the vector, and where the sparse result differs from out. Collective;
 * returns STATUS_OK, or notes the failure in the seat. */
int allreduce_check_step(allreduce_check *check, int64_t step, const float *out, int64_t *wrong);

#endif
