/* layer_avgpool.h - the mean over all pixels of an image, per channel
 *
 *     y[b,c] = mean over pixels of x[b,pixel,c]          dx[b,pixel,c] = dy[b,c] / pixels
 */
#ifndef TRAIN_LAYER_AVGPOOL_H
#define TRAIN_LAYER_AVGPOOL_H

#include "pass.h"

typedef struct avgpool {
    int pixels, channels;
} avgpool;

void avgpool_forward(avgpool a, const pass *p, int count,
                     const real *x, /* [count][pixels][channels] */
                     real *y);      /* [count][channels] */

void avgpool_backward(avgpool a, const pass *p, int count, const real *dy, /* [count][channels] */
                      real *dx); /* [count][pixels][channels] */

#endif
