/* gemm.h - matrix products over `real`, by whatever CBLAS the build found
 *
 * Row-major; ld* is the distance between rows as stored. BLAS runs on the calling thread alone: the
 * parallelism is in workers and in a model's team, and a product cut by BLAS itself would have
 * bits that depend on the number of threads.
 */
#ifndef TRAIN_GEMM_H
#define TRAIN_GEMM_H

#include "real.h"

/* A matrix as it is stored. */
typedef struct matrix {
    const real *at; /* [rows][ld] */
    int ld;
    int transposed; /* 1: the product uses its transpose */
} matrix;

static inline matrix plain(const real *at, int ld) {
    return (matrix){at, ld, 0};
}
static inline matrix transposed(const real *at, int ld) {
    return (matrix){at, ld, 1};
}

/* c[m][n] = a[m][k] b[k][n] + beta c, where beta is 0 (c may hold anything) or 1. k may be 0. */
void gemm(int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc);

/* Have BLAS stay on the calling thread, in this process, from now on. */
void gemm_on_calling_thread(void);

#endif
