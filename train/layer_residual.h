/* layer_residual.h - adds the shortcut of a residual block and rectifies (He et al., 2016)
 *
 *     y[b,i,j,c] = max(a[b,i,j,c] + s[b,i,j,c], 0)
 *     s[b,i,j,c] = x[b, i*stride, j*stride, c] for c < in, else 0
 * The shortcut without parameters ("option A"): every stride-th pixel, new channels zero. Backward,
 * with g = dy where y > 0:
 *     da = g,      dx[b, i*stride, j*stride, c] += g[b,i,j,c] for c < in
 */
#ifndef TRAIN_LAYER_RESIDUAL_H
#define TRAIN_LAYER_RESIDUAL_H

#include "pass.h"

typedef struct residual {
    int height, width, in; /* of x */
    int out, stride;       /* a, y: [height / stride][width / stride][out]; out >= in */
} residual;

void residual_forward(residual r, const pass *p, int count,
                      const real *a, /* [count][height/stride][width/stride][out] */
                      const real *x, /* [count][height][width][in] */
                      real *y);      /* like a; may be a */

void residual_backward(residual r, const pass *p, int count, const real *y, /* like a */
                       real *dy,                                            /* becomes g */
                       real *kept); /* like a: becomes g too, for residual_shortcut */

/* The shortcut's part: dx += shortcut backwards of g. */
void residual_shortcut(residual r, const pass *p, int count, const real *g, /* like a */
                       real *dx);                                           /* like x */

#endif
