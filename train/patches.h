/* patches.h - the neighbourhoods of pixels as rows of a matrix ("im2col"), for images in NHWC
 *
 * Row (image, y, x) of the matrix holds the kernel x kernel pixels around one target pixel, all
 * channels of each, and zeros beyond the border. A convolution is then a matrix product. With the
 * channels innermost, one line of a neighbourhood is one contiguous piece of the image.
 *
 * The same gathering serves both directions. Forward, the target is an output pixel and the source
 * the input image, in which neighbouring targets lie `step` apart. Backward, the target is an input
 * pixel and the source the gradient of the output, spread out `spread` apart with zeros between.
 *
 *     source = (target * step + tap - pad) / spread     where that is whole and inside, else zero
 *
 * Worked example, one line of 4 pixels abcd, kernel 3, step 1, pad 1:
 *     0ab  abc  bcd  cd0
 */
#ifndef TRAIN_PATCHES_H
#define TRAIN_PATCHES_H

#include "pass.h"

typedef struct patches {
    int height, width, channels;     /* of a source image: [height][width][channels] */
    int target_height, target_width; /* of the grid of targets */
    int kernel, pad;
    int step;   /* forward: the stride; backward: 1 */
    int spread; /* forward: 1; backward: the stride */
} patches;

/* For the target lines [begin, end), counted over all images, gather the kernel's lines
 * [first, first + lines):
 *     out[(end - begin) * target_width][lines][kernel][channels]  */
void patches_gather(const patches *g, const real *source, range target, int first, int lines,
                    real *out);

/* Target lines whose patches, `lines` lines of the kernel each, fill about a cache. */
int patches_lines(const patches *g, int lines);

#endif
