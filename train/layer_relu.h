/* layer_relu.h - rectifier, in place
 *
 *     y = max(x, 0)          dx = dy where y > 0, else 0
 */
#ifndef TRAIN_LAYER_RELU_H
#define TRAIN_LAYER_RELU_H

#include "pass.h"

void relu_forward(const pass *p, int64_t n, real *x); /* [n] becomes y */

void relu_backward(const pass *p, int64_t n, const real *y, /* [n] */
                   real *dy);                               /* [n] becomes dx */

#endif
