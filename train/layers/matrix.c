/* matrix.c - products in blocks, column sums in chunks; see matrix.h */
#include "layers/matrix.h"

#include <assert.h>
#include <cblas.h>
#include <string.h>

#include "layers/vector.h"

VECTOR void vector_add(real *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

VECTOR void vector_scale(real *x, real factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* OpenBLAS has this; a BLAS without threads of its own has not and does not need it. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

void gemm_on_calling_thread(void) {
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
}

void gemm(int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc) {
    assert((beta == 0 || beta == 1) && ldc >= n);
    if (m == 0 || n == 0)
        return;
    if (k == 0) { /* the sum of nothing; not every BLAS sets c then */
        for (int i = 0; i < m && beta == 0; i++)
            memset(c + (int64_t)i * ldc, 0, (size_t)n * sizeof *c);
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

/* Blocks of the result: columns first, for a block of them packs only its part of the second
 * operand. Thinner than 128 they would pack the first one too often. */
enum { BLOCK_ROWS = 512, BLOCK_LEAST = 128, BLOCK_COUNT = 4 };

typedef struct product_job {
    matrix a, b;
    real *c; /* [m][ldc] */
    real beta;
    int m, n, k, ldc;
    int columns; /* of a block */
} product_job;

static void product_task(const task *t) {
    const product_job *job = t->job;
    const int across = chunks(job->n, job->columns);
    range rows = chunk(job->m, BLOCK_ROWS, t->index / across);
    range columns = chunk(job->n, job->columns, t->index % across);
    matrix a = job->a, b = job->b;
    a.at += rows.begin * (a.transposed ? 1 : a.ld);
    b.at += columns.begin * (b.transposed ? b.ld : 1);
    gemm((int)(rows.end - rows.begin), (int)(columns.end - columns.begin), job->k, a, b, job->beta,
         job->c + rows.begin * job->ldc + columns.begin, job->ldc);
}

void product(const pass *p, int m, int n, int k, matrix a, matrix b, real beta, real *c, int ldc) {
    const int even = (chunks(n, BLOCK_COUNT) + 15) / 16 * 16;
    product_job job = {a, b, c, beta, m, n, k, ldc, even > BLOCK_LEAST ? even : BLOCK_LEAST};
    pass_run(p, (int64_t)chunks(m, BLOCK_ROWS) * chunks(n, job.columns), 1, product_task, &job);
}

enum { SUM_CHUNKS = 16, SUM_LEAST = 64 }; /* chunks at most; fewer rows are not worth a task */

int64_t sum_chunk(int64_t rows) {
    int64_t each = (rows + SUM_CHUNKS - 1) / SUM_CHUNKS;
    return each > SUM_LEAST ? each : SUM_LEAST;
}

void layout_sums(layout *to, int width) {
    layout_common(to, sizeof(double) * SUM_CHUNKS * (size_t)width);
}

const double *run_sums(const pass *p, int64_t rows, int width, void (*run)(const task *t),
                       const void *job) {
    double *partial = p->common; /* [count][width] */
    const int count = chunks(rows, sum_chunk(rows));
    assert(count <= SUM_CHUNKS);
    memset(partial, 0, sizeof *partial * (size_t)count * (size_t)width);
    pass_run(p, rows, sum_chunk(rows), run, job);
    for (int j = 0; j < width; j++) {
        double sum = 0;
        for (int i = 0; i < count; i++)
            sum += partial[(int64_t)i * width + j];
        partial[j] = sum;
    }
    return partial;
}

typedef struct sum_job {
    const real *x; /* [rows][width] */
    double *partial;
    int64_t width;
} sum_job;

VECTOR static void sum_task(const task *t) {
    const sum_job *job = t->job;
    const int64_t width = job->width;
    double *restrict sum = job->partial + t->index * width;
    const real *restrict x = job->x;
    for (int64_t i = t->r.begin; i < t->r.end; i++)
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)x[i * width + j];
}

void column_sums(const pass *p, const real *x, int64_t rows, int width, real *out) {
    sum_job job = {x, p->common, width};
    const double *sums = run_sums(p, rows, width, sum_task, &job);
    for (int j = 0; j < width; j++)
        out[j] = (real)sums[j];
}
