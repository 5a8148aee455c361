/* layer_maxpool.h - the largest of each 2 x 2 square of pixels, per channel
 *
 *     y[b,i,j,c] = max over k,l in {0,1} of x[b, 2i+k, 2j+l, c]; among equals the first wins
 *     dx[b, 2i+k, 2j+l, c] = dy[b,i,j,c] where (k,l) won, else 0
 * An odd last line or column of the input is left out and gets gradient 0.
 */
#ifndef TRAIN_LAYER_MAXPOOL_H
#define TRAIN_LAYER_MAXPOOL_H

#include "pass.h"

typedef struct maxpool {
    int height, width, channels;
    int out_height, out_width;
    uint8_t *winner; /* [max_batch][out_height][out_width][channels]: 2k + l */
} maxpool;

void maxpool_create(maxpool *m, plan *p, int max_batch, int height, int width, int channels);

void maxpool_forward(const maxpool *m, const pass *p, int count,
                     const real *x, /* [count][height][width][channels] */
                     real *y);      /* [count][out_height][out_width][channels] */

void maxpool_backward(const maxpool *m, const pass *p, int count,
                      const real *dy, /* [count][out_height][out_width][channels] */
                      real *dx);      /* [count][height][width][channels] */

#endif
