/* layer_linear.c - linear layer; see layer_linear.h */
#include "layer_linear.h"

#include <string.h>

#include "columns.h"

/* Blocks of the result: columns first, for a block of them packs only its part of the second
 * operand. Thinner than 128 they would pack the first one too often. */
enum { BLOCK_ROWS = 512, BLOCK_LEAST = 128, BLOCK_COUNT = 4 };

void linear_create(linear *l, plan *p, const char *name, int in, int out, double bound, bool bias) {
    *l = (linear){.in = in, .out = out};
    l->weight = plan_param(p, name, "weight", (int64_t)in * out, INIT_UNIFORM, bound);
    if (bias) {
        l->bias = plan_param(p, name, "bias", out, INIT_ZERO, 0);
        columns_plan(p, out, 1);
    }
}

typedef struct product_job {
    matrix a, b;
    real *c; /* [m][ldc] */
    real beta;
    int m, n, k, ldc;
    int columns; /* of a block */
} product_job;

static int block_columns(int n) {
    int each = (n + BLOCK_COUNT - 1) / BLOCK_COUNT;
    each = (each + 15) / 16 * 16;
    return each > BLOCK_LEAST ? each : BLOCK_LEAST;
}

static void product_task(void *context, int task, void *scratch) {
    (void)scratch;
    const product_job *job = context;
    const int across = pass_chunks(job->n, job->columns);
    range rows = pass_chunk(job->m, BLOCK_ROWS, task / across);
    range columns = pass_chunk(job->n, job->columns, task % across);
    matrix a = job->a, b = job->b;
    a.at += rows.begin * (a.transposed ? 1 : a.ld);
    b.at += columns.begin * (b.transposed ? b.ld : 1);
    gemm((int)(rows.end - rows.begin), (int)(columns.end - columns.begin), job->k, a, b, job->beta,
         job->c + rows.begin * job->ldc + columns.begin, job->ldc);
}

void linear_product(const pass *p, int m, int n, int k, matrix a, matrix b, real beta, real *c,
                    int ldc) {
    product_job job = {a, b, c, beta, m, n, k, ldc, block_columns(n)};
    int tasks = pass_chunks(m, BLOCK_ROWS) * pass_chunks(n, job.columns);
    team_run(p->team, tasks, product_task, &job);
}

void linear_forward(const linear *l, const pass *p, int rows, const real *x, real *y) {
    if (l->bias.n)
        for (int i = 0; i < rows; i++)
            memcpy(y + (int64_t)i * l->out, l->bias.value, (size_t)l->out * sizeof *y);
    linear_product(p, rows, l->out, l->in, plain(x, l->in), plain(l->weight.value, l->out),
                   l->bias.n ? 1 : 0, y, l->out);
}

void linear_backward(const linear *l, const pass *p, int rows, const real *x, const real *dy,
                     real *dx) {
    if (l->bias.n) {
        columns_sum(p, dy, rows, l->out, l->bias.grad);
        pass_ready(p, &l->bias);
    }
    linear_product(p, l->in, l->out, rows, transposed(x, l->in), plain(dy, l->out), 0,
                   l->weight.grad, l->out);
    pass_ready(p, &l->weight);
    if (dx) {
        linear_product(p, rows, l->in, l->out, plain(dy, l->out),
                       transposed(l->weight.value, l->out), 0, dx, l->in);
    }
}
