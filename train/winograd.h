/* winograd.h - 3 x 3 convolutions by Winograd's minimal filtering: 4/9 of the products
 *
 * A faster way to the same three results as layer_conv2d.c's patches, for stride 1, even sides and
 * enough channels to make matrix products of. Rounding differs a little from the direct sums (some
 * units more in the last place), like that of any other order of summation.
 */
#ifndef TRAIN_WINOGRAD_H
#define TRAIN_WINOGRAD_H

#include "pass.h"

typedef struct winograd {
    int height, width, in, out;
    real *kernels; /* [PLANES][in][out] transformed by the last forward */
} winograd;

/* Whether the shape is one for this. */
bool winograd_suits(int height, int width, int in, int out, int kernel, int stride);

void winograd_create(winograd *w, plan *p, int height, int width, int in, int out);

void winograd_forward(const winograd *w, const pass *p, int count,
                      const real *x,      /* [count][height][width][in] */
                      const real *weight, /* [3][3][in][out] */
                      const real *bias,   /* [out], or NULL */
                      real *y);           /* [count][height][width][out] */

/* After a forward with the same weights. */
void winograd_input_gradient(const winograd *w, const pass *p, int count, const real *dy, real *dx);

void winograd_weight_gradient(const winograd *w, const pass *p, int count, const real *x,
                              const real *dy, real *grad); /* [3][3][in][out] */

#endif
