/* matrix.h - matrix products over `real` by the CBLAS that the build found, and column sums
 *
 * Row-major; ld* is the distance between rows as stored. BLAS runs on the calling thread alone: ranks
 * and a model's tasks are parallel, and a product that BLAS cuts itself would have bits that depend
 * on the number of threads.
 */
#ifndef TRAIN_MATRIX_H
#define TRAIN_MATRIX_H

#include "layers/layer.h"

typedef struct matrix {
    const real *at; /* [rows][ld] as stored */
    int ld;
    int transposed; /* 1: the product uses its transpose */
} matrix;

static inline matrix plain(const real *at, int ld) {
    return (matrix){at, ld, 0};
}
static inline matrix transposed(const real *at, int ld) {
    return (matrix){at, ld, 1};
}

/* c[m][n] = a[m][k] b[k][n] + beta c on this thread. beta is 0 (c may hold anything) or 1. k may be
 * 0. */
void gemm(int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc);

/* The same by all threads of the pass, in blocks that depend on m and n alone. */
void product(const pass *p, int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc);

/* Have BLAS stay on the calling thread, in this process, from now on. */
void gemm_on_calling_thread(void);

/* Gradients of biases and norms, and batch statistics. Rows are cut into chunks by their number
 * alone; each chunk is summed in double, lane by lane, and the partial sums are added in order. */
int64_t sum_chunk(int64_t rows); /* rows of a chunk */

/* Asks for the common memory that sums of `width` columns need. */
void layout_sums(layout *to, int width);

/* Runs a task per chunk of rows. The task adds to its zeroed sums (double *)p->common + t->index *
 * width. Returns the total: [width], in the common memory. */
const double *run_sums(const pass *p, int64_t rows, int width, void (*run)(const task *t),
                       const void *job);

/* out[j] = sum over rows of x[rows][width]. */
void column_sums(const pass *p, const real *x, int64_t rows, int width, real *out);

#endif
