/* conv_block.c - convolution, batch norm, rectifier; see conv_block.h */
#include "conv_block.h"

#include <stdio.h>

void conv_block_create(conv_block *b, plan *p, const char *name, int max_batch, conv2d_shape shape,
                       bool rectify) {
    char part[PLAN_NAME];
    snprintf(part, sizeof part, "%s.conv", name);
    conv2d_create(&b->conv, p, part, shape);
    snprintf(part, sizeof part, "%s.norm", name);
    batch_norm_create(&b->norm, p, part, shape.out, rectify);
    b->pixels = (int64_t)b->conv.out_height * b->conv.out_width;
    b->sums = plan_reals(p, max_batch * b->pixels * shape.out);
    b->y = plan_reals(p, max_batch * b->pixels * shape.out);
}

const real *conv_block_forward(const conv_block *b, const pass *p, int count, const real *x) {
    conv2d_forward(&b->conv, p, count, x, b->sums);
    batch_norm_forward(&b->norm, p, count * b->pixels, b->sums, b->y);
    return b->y;
}

void conv_block_backward(const conv_block *b, const pass *p, int count, const real *x, real *dy,
                         real *dx) {
    batch_norm_backward(&b->norm, p, count * b->pixels, b->sums, dy);
    conv2d_backward(&b->conv, p, count, x, dy, dx);
}
