/* layer_layer_norm.h - layer normalisation: each row by its own mean and variance (Ba et al., 2016)
 *
 *     mean, var of x[row][width] over the row;  xhat = (x - mean) / sqrt(var + epsilon)
 *     y = scale * xhat + shift
 * Backward, with g = dy * scale and means over the row:
 *     dshift = sum over rows of dy,   dscale = sum over rows of dy xhat
 *     dx = (g - mean(g) - xhat mean(g xhat)) / sqrt(var + epsilon)
 */
#ifndef TRAIN_LAYER_LAYER_NORM_H
#define TRAIN_LAYER_LAYER_NORM_H

#include "pass.h"

typedef struct layer_norm {
    int width;
    param scale;   /* [width] */
    param shift;   /* [width] */
    real *xhat;    /* [max_rows][width] */
    real *inverse; /* [max_rows] 1 / sqrt(var + epsilon) */
} layer_norm;

void layer_norm_create(layer_norm *l, plan *p, const char *name, int max_rows, int width);

void layer_norm_forward(const layer_norm *l, const pass *p, int rows,
                        const real *x, /* [rows][width] */
                        real *y);      /* [rows][width]; may be x */

void layer_norm_backward(const layer_norm *l, const pass *p, int rows,
                         real *dy); /* [rows][width] becomes dx */

#endif
