/* gemm.c - cblas_sgemm, or cblas_dgemm in the build that checks gradients */
#include "gemm.h"

#include <cblas.h>
#include <string.h>

/* OpenBLAS has this; a BLAS without threads of its own has not and does not need it. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

void gemm_on_calling_thread(void) {
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
}

static void clear(int m, int n, real *c, int ldc) {
    for (int i = 0; i < m; i++)
        memset(c + (long)i * ldc, 0, (size_t)n * sizeof *c);
}

void gemm(int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc) {
    if (m == 0 || n == 0)
        return;
    if (k == 0) { /* the sum of nothing; not every BLAS sets c then */
        if (beta == 0)
            clear(m, n, c, ldc);
        return;
    }
    CBLAS_TRANSPOSE of_a = a.transposed ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE of_b = b.transposed ? CblasTrans : CblasNoTrans;
#ifdef TRAIN_DOUBLE
    cblas_dgemm(CblasRowMajor, of_a, of_b, m, n, k, 1, a.at, a.ld, b.at, b.ld, beta, c, ldc);
#else
    cblas_sgemm(CblasRowMajor, of_a, of_b, m, n, k, 1, a.at, a.ld, b.at, b.ld, beta, c, ldc);
#endif
}
