/* layer_gelu.h - Gaussian error linear unit, the exact form (Hendrycks and Gimpel, 2016)
 *
 *     y = x P(x),  P(x) = (1 + erf(x / sqrt 2)) / 2
 *     dx = dy (P(x) + x exp(-x^2 / 2) / sqrt(2 pi))
 */
#ifndef TRAIN_LAYER_GELU_H
#define TRAIN_LAYER_GELU_H

#include "pass.h"

void gelu_forward(const pass *p, int64_t n, const real *x, real *y); /* [n] each */

void gelu_backward(const pass *p, int64_t n, const real *x, /* [n] */
                   real *dy);                               /* [n] becomes dx */

#endif
