/* layer_linear.h - y = x weight + bias, row by row
 *
 *     dbias = column sums of dy,   dweight = x^T dy,   dx = dy weight^T
 */
#ifndef TRAIN_LAYER_LINEAR_H
#define TRAIN_LAYER_LINEAR_H

#include "gemm.h"
#include "pass.h"

typedef struct linear {
    int in, out;
    param weight; /* [in][out] */
    param bias;   /* [out]; n is 0 without */
} linear;

/* bound: of the initial weights, which are uniform; the bias begins at 0. */
void linear_create(linear *l, plan *p, const char *name, int in, int out, double bound, bool bias);

void linear_forward(const linear *l, const pass *p, int rows, const real *x, /* [rows][in] */
                    real *y);                                                /* [rows][out] */

void linear_backward(const linear *l, const pass *p, int rows, const real *x, /* [rows][in] */
                     const real *dy,                                          /* [rows][out] */
                     real *dx); /* [rows][in], may be x; NULL: not wanted */

/* c[m][n] = a b + beta c by the whole team, in blocks that depend on m and n alone. */
void linear_product(const pass *p, int m, int n, int k, matrix a, matrix b, real beta, real *c,
                    int ldc);

#endif
