/* course.h - a selector that runs beside its oracle: every step of "exact" is compared bit by bit
 *
 * A course holds the selector, its own copy of the residual and the buffers of one step. Both go
 * through the same gradients; after each step the selection must be the same, and the residual
 * whenever it is looked at. It is not looked at after every step, as reading it makes the library
 * finish work that it otherwise leaves for the next pass, and both ways are to be tested.
 */
#ifndef COURSE_H
#define COURSE_H

#include "check.h"

typedef struct course {
    int64_t n, k;
    int type;     /* tw_type */
    int feedback; /* tw_feedback */
    int steps;    /* done so far */
    tw_selector *selector;
    char *memory;    /* the gradient as the library sees it, ends where its allocation ends */
    char *grad_raw;  /* memory + shift, [n] of type */
    float *grad;     /* [n] the same numbers as float32 */
    float *residual; /* [n] by the oracle */
    float *acc;      /* [n] by the oracle */
    float *scratch;  /* [n] */
    int32_t *idx;    /* [k] expected selection */
    float *val;      /* [k] */
} course;

/* params: method "exact" and k > 0. shift: bytes by which the gradient is misaligned. */
void course_open(course *c, int64_t n, const tw_select_params *params, int shift);
/* Compare the residual a last time and free everything. */
void course_close(course *c);

/* Put data of a kind, times scale, rounded to the course's type, into grad and grad_raw. */
void course_fill(course *c, oracle_data kind, float scale, uint64_t seed);

/* Run what grad_raw holds, compare, commit all; after every third step compare the residual. */
void course_step(course *c);

#endif
