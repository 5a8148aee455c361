/* verify.h - checks a selection against acc by a method that shares nothing with the library
 *
 * The library guesses a threshold and picks among candidates; here the k-th magnitude comes from
 * two histograms over the whole vector. Slow and simple, outside the timed region.
 */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

/* A copy of a selection: the library's own arrays end with its next call. */
typedef struct selection {
    int64_t count;
    int32_t *idx; /* [count] */
    float *val;   /* [count] */
} selection;

/* One step, complete. */
typedef struct step_record {
    int64_t n;
    int64_t k;          /* entries asked for */
    const float *acc;   /* [n] gradient + residual before the step */
    const float *after; /* [n] residual after the step */
    selection sent;
} step_record;

/* Check what holds for every method: indices ascending and in range, values bitwise acc at idx,
 * and `after` bitwise acc with exactly the sent entries zero. Returns NULL, or says what is wrong
 * and sets *index to where. */
const char *verify_step(const step_record *step, int64_t *index);

/* Whether the selection is the true top-k: min(k, non-zeros) entries of the largest magnitude, of
 * equal magnitudes the smaller index. Call it on a step that verify_step found right.
 * *exact is the answer; returns STATUS_OK, or prints that memory is out. */
int verify_exact(const step_record *step, bool *exact);

#endif
