/* layer_batch_norm.h - batch normalisation over the channels of [rows][channels], and a rectifier
 *
 * rows are the pixels of all images of the batch. Per channel (Ioffe and Szegedy, 2015):
 *     mean, var  of x over the rows (training: of this batch, var / rows; else the running ones)
 *     xhat = (x - mean) / sqrt(var + epsilon),  y = scale * xhat + shift,  then max(y, 0) if asked
 *     running = 0.9 * running + 0.1 * batch, where the running variance takes var * rows / (rows-1)
 * Backward, with g = dy (where y > 0, if rectified):
 *     dshift = sum g,  dscale = sum g xhat,
 *     dx = scale / sqrt(var + epsilon) * (g - dshift / rows - xhat * dscale / rows)
 * The rectifier is in here because both directions are bound by memory: it saves a pass over y.
 */
#ifndef TRAIN_LAYER_BATCH_NORM_H
#define TRAIN_LAYER_BATCH_NORM_H

#include "pass.h"

typedef struct batch_norm {
    int channels;
    bool rectify;
    param scale;            /* [channels] */
    param shift;            /* [channels] */
    real *running_mean;     /* [channels] state */
    real *running_variance; /* [channels] state */
    double *mean;           /* [channels] of the last forward */
    double *inverse;        /* [channels] 1 / sqrt(var + epsilon) of it */
    real *slope, *constant; /* [channels] each: y = slope * x + constant of it */
} batch_norm;

void batch_norm_create(batch_norm *b, plan *p, const char *name, int channels, bool rectify);

void batch_norm_forward(const batch_norm *b, const pass *p, int64_t rows,
                        const real *x, /* [rows][channels] */
                        real *y);      /* [rows][channels] */

/* After a forward pass in training mode. Where y was positive is told from x: one array less to
 * read. */
void batch_norm_backward(const batch_norm *b, const pass *p, int64_t rows,
                         const real *x, /* [rows][channels] */
                         real *dy);     /* [rows][channels] becomes dx */

#endif
