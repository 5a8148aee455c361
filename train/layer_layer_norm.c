/* layer_layer_norm.c - layer normalisation; a task is a chunk of rows. See layer_layer_norm.h */
#include "layer_layer_norm.h"

#include <math.h>
#include <string.h>

#include "columns.h"
#include "lanes.h"
#include "vector.h"

#define EPSILON 1e-12 /* BERT's */

void layer_norm_create(layer_norm *l, plan *p, const char *name, int max_rows, int width) {
    *l = (layer_norm){.width = width};
    l->scale = plan_param(p, name, "scale", width, INIT_ONE, 0);
    l->shift = plan_param(p, name, "shift", width, INIT_ZERO, 0);
    l->xhat = plan_reals(p, (int64_t)max_rows * width);
    l->inverse = plan_reals(p, max_rows);
    columns_plan(p, width, 2);
}

typedef struct norm_job {
    const layer_norm *l;
    const real *x;   /* forward: [rows][width] */
    real *y;         /* y, or dy that becomes dx: [rows][width] */
    double *partial; /* backward: [chunks][2][width] sums of dy and dy xhat */
    int64_t rows;
} norm_job;

VECTOR static void centre(const real *restrict x, real mean, real *restrict xhat, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        xhat[j] = x[j] - mean;
}

VECTOR static void scale_by(real *restrict xhat, real inverse, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        xhat[j] *= inverse;
}

VECTOR static void stretch(const real *restrict xhat, const real *restrict scale,
                           const real *restrict shift, real *restrict y, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        y[j] = scale[j] * xhat[j] + shift[j];
}

VECTOR static double row_sum(const real *x, int64_t n) {
    return lanes_sum(x, n);
}

VECTOR static double row_dot(const real *x, const real *y, int64_t n) {
    return lanes_dot(x, y, n);
}

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const norm_job *job = context;
    const layer_norm *l = job->l;
    const int64_t n = l->width;
    range r = pass_chunk(job->rows, columns_chunk(job->rows), task);
    for (int64_t i = r.begin; i < r.end; i++) {
        const real *x = job->x + i * n;
        real *xhat = l->xhat + i * n;
        real mean = (real)(row_sum(x, n) / (double)n);
        centre(x, mean, xhat, n); /* first: the variance then loses no digits */
        double variance = row_dot(xhat, xhat, n) / (double)n;
        l->inverse[i] = (real)(1.0 / sqrt(variance + EPSILON));
        scale_by(xhat, l->inverse[i], n);
        stretch(xhat, l->scale.value, l->shift.value, job->y + i * n, n);
    }
}

/* Sums of the parameters' gradients, and dy becomes g = dy scale. */
VECTOR static void take_sums(real *restrict dy, const real *restrict xhat,
                             const real *restrict scale, double *restrict shifts,
                             double *restrict scales, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        shifts[j] += (double)dy[j];
        scales[j] += (double)dy[j] * (double)xhat[j];
        dy[j] *= scale[j];
    }
}

VECTOR static void take_dx(real *restrict g, const real *restrict xhat, real mean, real slope,
                           real inverse, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        g[j] = (g[j] - mean - xhat[j] * slope) * inverse;
}

static void backward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const norm_job *job = context;
    const layer_norm *l = job->l;
    const int64_t n = l->width;
    range r = pass_chunk(job->rows, columns_chunk(job->rows), task);
    double *sums = job->partial + task * 2 * n;
    memset(sums, 0, (size_t)(2 * n) * sizeof *sums);
    for (int64_t i = r.begin; i < r.end; i++) {
        real *dy = job->y + i * n;
        const real *xhat = l->xhat + i * n;
        take_sums(dy, xhat, l->scale.value, sums, sums + n, n);
        real mean = (real)(row_sum(dy, n) / (double)n);
        real slope = (real)(row_dot(dy, xhat, n) / (double)n);
        take_dx(dy, xhat, mean, slope, l->inverse[i], n);
    }
}

void layer_norm_forward(const layer_norm *l, const pass *p, int rows, const real *x, real *y) {
    norm_job job = {.l = l, .x = x, .y = y, .rows = rows};
    team_run(p->team, pass_chunks(rows, columns_chunk(rows)), forward_task, &job);
}

void layer_norm_backward(const layer_norm *l, const pass *p, int rows, real *dy) {
    const int n = l->width, chunks = pass_chunks(rows, columns_chunk(rows));
    norm_job job = {.l = l, .y = dy, .partial = team_common(p->team), .rows = rows};
    team_run(p->team, chunks, backward_task, &job);
    columns_total(job.partial, chunks, 2 * n, job.partial);
    for (int j = 0; j < n; j++) {
        l->shift.grad[j] = (real)job.partial[j];
        l->scale.grad[j] = (real)job.partial[n + j];
    }
    pass_ready(p, &l->shift);
    pass_ready(p, &l->scale);
}
