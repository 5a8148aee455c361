/* conv_block.h - convolution, batch norm and (if asked) rectifier: the brick of vgg16 and resnet20 */
#ifndef TRAIN_CONV_BLOCK_H
#define TRAIN_CONV_BLOCK_H

#include "layer_batch_norm.h"
#include "layer_conv2d.h"

typedef struct conv_block {
    conv2d conv;
    batch_norm norm;
    int64_t pixels; /* of one output image */
    real *sums;     /* [max_batch][out_height][out_width][out] what the convolution gave */
    real *y;        /* [max_batch][out_height][out_width][out] */
} conv_block;

void conv_block_create(conv_block *b, plan *p, const char *name, int max_batch, conv2d_shape shape,
                       bool rectify);

/* x: [count][height][width][in]. Returns b->y. */
const real *conv_block_forward(const conv_block *b, const pass *p, int count, const real *x);

void conv_block_backward(const conv_block *b, const pass *p, int count, const real *x,
                         real *dy,  /* like y; is used up */
                         real *dx); /* like x, or NULL: not wanted */

#endif
