/* gradients.h - synthetic gradients: reproducible vectors of known shape, and one for every step
 *
 * The same kind, n and seed give the same values for any number of threads. Between machines the
 * last bit may differ where their libm rounds differently.
 *
 * Steps: one base vector a little longer than n is made once; the gradient of step t is a window of
 * n values that starts a pseudo-random multiple of 16 elements into it. Steps differ, yet cost no
 * time to make. Only a drift or a half-sized type asks for a copy.
 */
#ifndef CLI_GRADIENTS_H
#define CLI_GRADIENTS_H

#include <stdint.h>

/* The kinds by position from 0; NULL past the last one. */
const char *gradients_kind_name(int position);

/* Fill values[n] with the kind at this position. */
void gradients_fill(int kind, float *values, int64_t n, uint64_t seed);

typedef struct gradient_spec {
    int64_t n;
    int kind;     /* position */
    int type;     /* tw_type */
    double drift; /* step t is scaled by drift^t */
    uint64_t seed;
} gradient_spec;

typedef struct gradients {
    gradient_spec spec;
    float *base;    /* [n + 251 * 16] */
    float *exact;   /* [n] the values of the step; NULL when a window of base will do */
    uint16_t *half; /* [n] the same as f16 or bf16; NULL for f32 */
} gradients;

/* The gradient of one step, twice: as the selector takes it, and the very same numbers as float32.
 * Valid until the next call of gradients_at. */
typedef struct gradient {
    const void *typed;   /* [n] of spec.type */
    const float *values; /* [n] */
} gradient;

/* Returns STATUS_OK, or prints why not. */
int gradients_create(gradients *source, const gradient_spec *spec);
void gradients_free(gradients *source);
gradient gradients_at(gradients *source, int64_t step);

#endif
