/* layer_conv2d.h - two-dimensional convolution over images in NHWC
 *
 *     y[b,i,j,o] = bias[o] + sum over k,l,c of x[b, i*stride + k - pad, j*stride + l - pad, c]
 *                                              * weight[k,l,c,o]
 * with x zero beyond the border. Backward:
 *     dbias[o]        = sum over b,i,j of dy[b,i,j,o]
 *     dweight[k,l,c,o]= sum over b,i,j of x[b, i*stride + k - pad, j*stride + l - pad, c] dy[b,i,j,o]
 *     dx              = dy, spread by the stride, convolved with the kernel turned by 180 degrees
 * All three are products of patches (patches.h) and matrices, tile by tile; or, where the shape
 * suits, go by Winograd's way with fewer products (winograd.h).
 */
#ifndef TRAIN_LAYER_CONV2D_H
#define TRAIN_LAYER_CONV2D_H

#include "patches.h"
#include "winograd.h"

typedef struct conv2d {
    int in, out; /* channels */
    int kernel, stride;
    int height, width; /* of the input */
    int out_height, out_width;
    patches forward;  /* of the input around output pixels */
    patches backward; /* of the output's gradient around input pixels */
    bool by_winograd; /* instead of by patches */
    winograd minimal;
    param weight; /* [kernel][kernel][in][out] */
    param bias;   /* [out]; n is 0 without */
} conv2d;

/* What a convolution is made of; the padding is kernel / 2: stride 1 keeps the size. */
typedef struct conv2d_shape {
    int height, width, in, out;
    int kernel; /* odd */
    int stride;
    bool bias;
} conv2d_shape;

void conv2d_create(conv2d *c, plan *p, const char *name, conv2d_shape shape);

void conv2d_forward(const conv2d *c, const pass *p, int count,
                    const real *x, /* [count][height][width][in] */
                    real *y);      /* [count][out_height][out_width][out] */

void conv2d_backward(const conv2d *c, const pass *p, int count,
                     const real *x,  /* as forward had it */
                     const real *dy, /* [count][out_height][out_width][out] */
                     real *dx);      /* [count][height][width][in], or NULL: not wanted */

#endif
