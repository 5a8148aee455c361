/* winograd.h - 3 x 3 convolutions by Winograd's minimal filtering: 4/9 of the products
 *
 * For stride 1, even sides and enough channels to make matrix products of. Rounding differs a little
 * from the direct sums (some units more in the last place), like that of any other order of summation.
 *
 * F(2x2, 3x3) of Lavin and Gray (2016): a 2 x 2 tile of outputs from the 4 x 4 inputs around it with
 * 16 products per pair of channels instead of 36:
 *
 *     y = A^T [ (G g G^T) . (B^T d B) ] A          d: 4 x 4 inputs, g: 3 x 3 kernel, . elementwise
 *
 *           1  0 -1  0           1    0    0              1  1  1  0
 *     B^T = 0  1  1  0      G = 1/2  1/2  1/2      A^T =  0  1 -1 -1
 *           0 -1  1  0          1/2 -1/2  1/2
 *           0  1  0 -1           0    0    1
 *
 * The elementwise products, summed over channels, are 16 matrix products. The gradient of the kernel
 * follows by transposing: dg = G^T [ (B^T d B) . (A dy A^T) ] G, summed over tiles.
 * A tensor of transforms is 16 planes [plane][tile][channel] or [plane][in][out].
 */
#ifndef TRAIN_WINOGRAD_H
#define TRAIN_WINOGRAD_H

#include "layers/layer.h"

typedef struct winograd {
    int height, width, in, out;
    real *kernels; /* [PLANES][in][out] transformed by the last forward */
} winograd;

/* Whether the shape fits. */
bool winograd_suits(int height, int width, int in, int out, int kernel, int stride);

void winograd_create(winograd *w, layout *to, int height, int width, int in, int out);

void winograd_forward(const winograd *w, const pass *p, int count,
                      const real *x,      /* [count][height][width][in] */
                      const real *weight, /* [3][3][in][out] */
                      const real *bias,   /* [out], or NULL */
                      real *y);           /* [count][height][width][out] */

/* After a forward with the same weights. */
void winograd_input_gradient(const winograd *w, const pass *p, int count, const real *dy, real *dx);

void winograd_weight_gradient(const winograd *w, const pass *p, int count, const real *x,
                              const real *dy, real *grad); /* [3][3][in][out] */

/* ---- Transforms, tile by tile (winograd_tiles.c) ------------------------------------------------ */

enum { PLANES = 16, WINOGRAD_CHANNELS = 1024 }; /* at most so many channels */

/* Images cut into tiles of 2 x 2 pixels; both sides are even. */
typedef struct tiling {
    int height, width, channels;
} tiling;

/* Tiles of one image. */
static inline int64_t tiling_each(tiling t) {
    return (int64_t)(t.height / 2) * (t.width / 2);
}

/* B^T d B of tiles [begin, end), counted over all images; to: planes `plane` apart, tile `begin`
 * at 0. */
void winograd_inputs(tiling t, const real *images, range tiles, real *to, int64_t plane);

/* A^T m A plus bias (or NULL) into the tiles of the images. */
void winograd_outputs(tiling t, const real *from, int64_t plane, const real *bias, range tiles,
                      real *images);

/* A dy A^T of tiles. */
void winograd_gradients(tiling t, const real *images, range tiles, real *to, int64_t plane);

/* G g G^T of kernels [9][n] at positions r, and G^T u G back; planes are n apart. */
void winograd_kernels(const real *kernels, int64_t n, range r, real *to);
void winograd_kernel_gradients(const real *from, int64_t n, range r, real *kernels);

#endif
