/* layer_lstm.h - long short-term memory over whole sequences, time first
 *
 * For t = 0 .. length-1, from h[-1] = c[-1] = 0, with all sequences of the batch side by side:
 *     a = x[t] x_weight + h[t-1] h_weight + bias         [count][4][width], parts i f g o
 *     i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o);   g = tanh(a_g)
 *     c[t] = f c[t-1] + i g;   h[t] = o tanh(c[t])
 * Backward, from the last t, dh and dc being 0 beyond it:
 *     dh = dy[t] + da[t+1] h_weight^T
 *     dc = dh o (1 - tanh(c)^2) + dc[t+1] f[t+1]
 *     da_i = dc g i (1-i),  da_f = dc c[t-1] f (1-f),  da_g = dc i (1-g^2),  da_o = dh tanh(c) o (1-o)
 *     dbias = sum of da,  dh_weight = sum of h[t-1]^T da[t],  dx_weight = x^T da,  dx = da x_weight^T
 * The products with x and the weights' gradients are one product each over all times.
 */
#ifndef TRAIN_LAYER_LSTM_H
#define TRAIN_LAYER_LSTM_H

#include "pass.h"

typedef struct lstm {
    int in, width, length;
    param x_weight; /* [in][4][width] */
    param h_weight; /* [width][4][width] */
    param bias;     /* [4][width]; that of f begins at 1: remember at first */
    real *gates;    /* [length][count][4][width] i f g o, then da */
    real *c;        /* [length + 1][count][width], c[-1] first */
    real *h;        /* [length + 1][count][width], h[-1] first */
    real *dh;       /* [count][width] */
    real *dc;       /* [count][width] */
} lstm;

void lstm_create(lstm *l, plan *p, const char *name, int max_batch, int length, int in, int width);

/* x: [length][count][in]. Returns y: [length][count][width], which lives in the layer. */
const real *lstm_forward(const lstm *l, const pass *p, int count, const real *x);

void lstm_backward(const lstm *l, const pass *p, int count, const real *x, /* [length][count][in] */
                   const real *dy, /* [length][count][width] */
                   real *dx);      /* [length][count][in] */

#endif
