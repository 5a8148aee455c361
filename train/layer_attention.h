/* layer_attention.h - multi-head self-attention (Vaswani et al., 2017), linear layers included
 *
 * For each sequence, with q, k, v = x qkv (three linear layers in one), split into heads of
 * depth = width / heads columns; per head, over positions s (from) and t (to) of the sequence:
 *     score[s][t] = q[s] . k[t] / sqrt(depth), for t before the padding
 *     weight[s] = softmax of score[s],   mixed[s] = sum over t of weight[s][t] v[t]
 *     y = mixed out
 * Backward per head, with dm the gradient of mixed:
 *     dv[t] = sum over s of weight[s][t] dm[s],    dweight[s][t] = dm[s] . v[t]
 *     dscore[s][t] = weight[s][t] (dweight[s][t] - sum over u of weight[s][u] dweight[s][u])
 *     dq[s] = sum over t of dscore[s][t] k[t] / sqrt(depth),  dk[t] likewise from q[s]
 */
#ifndef TRAIN_LAYER_ATTENTION_H
#define TRAIN_LAYER_ATTENTION_H

#include "layer_linear.h"

typedef struct attention {
    int width, heads, length;
    linear qkv;    /* width to 3 * width: q, k, v side by side */
    linear out;    /* width to width */
    real *joined;  /* [count * length][3][width] q k v, then their gradients */
    real *weights; /* [count][heads][length][length] */
    real *mixed;   /* [count * length][width] */
} attention;

void attention_create(attention *a, plan *p, const char *name, int max_batch, int length, int width,
                      int heads, double bound);

void attention_forward(const attention *a, const pass *p, int count,
                       const int32_t *lengths, /* [count] positions before the padding; NULL: all */
                       const real *x,          /* [count][length][width] */
                       real *y);               /* [count][length][width] */

void attention_backward(const attention *a, const pass *p, int count, const int32_t *lengths,
                        const real *x,  /* [count][length][width] */
                        const real *dy, /* [count][length][width] */
                        real *dx);      /* [count][length][width] */

#endif
