/* encoder.h - one encoder layer of BERT: attention, feed-forward, each with shortcut and norm
 *
 *     middle = norm1(x + attention(x))
 *     y = norm2(middle + contract(gelu(expand(middle))))
 */
#ifndef TRAIN_ENCODER_H
#define TRAIN_ENCODER_H

#include "layer_attention.h"
#include "layer_layer_norm.h"

typedef struct encoder {
    int width, inner, length;
    attention attend;
    layer_norm norm1, norm2;
    linear expand;   /* width to inner */
    linear contract; /* inner to width */
    real *middle;    /* [rows][width], rows = count * length */
    real *expanded;  /* [rows][inner] */
    real *bent;      /* [rows][inner] after gelu, then the gradient of it */
    real *y;         /* [rows][width] */
} encoder;

/* Sizes of an encoder layer. */
typedef struct encoder_shape {
    int max_batch, length, width, heads, inner;
} encoder_shape;

void encoder_create(encoder *e, plan *p, const char *name, encoder_shape shape, double bound);

/* x: [count][length][width]; lengths as in layer_attention.h. Returns e->y. */
const real *encoder_forward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                            const real *x);

void encoder_backward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                      const real *x,    /* [rows][width] */
                      real *dy,         /* [rows][width] becomes dx */
                      real *temporary); /* [rows][width] */

#endif
