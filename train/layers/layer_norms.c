/* layer_norms.c - batch and layer normalisation as sums and one affine map per channel; see layers.h
 *
 * Batch norm forward is y = a x + b and backward dx = a g + c x + d, with coefficients per channel
 * that come from sums over the rows. Sums are in double: the variance is a difference of two of them.
 */
#include <math.h>

#include "layers/layers.h"
#include "layers/vector.h"

#define BATCH_EPSILON 1e-5
#define LAYER_EPSILON 1e-12 /* BERT's */
#define MOMENTUM 0.1

void batch_norm_create(batch_norm *b, layout *to, const char *name, int channels, bool rectify) {
    *b = (batch_norm){.channels = channels, .rectify = rectify};
    b->scale = layout_param(to, name, "scale", channels, INIT_ONE, 0);
    b->shift = layout_param(to, name, "shift", channels, INIT_ZERO, 0);
    b->running_mean = layout_state(to, name, "mean", channels, 0);
    b->running_variance = layout_state(to, name, "variance", channels, 1);
    b->mean = layout_memory(to, channels, sizeof(double));
    b->inverse = layout_memory(to, channels, sizeof(double));
    b->slope = layout_reals(to, channels);
    b->constant = layout_reals(to, channels);
    layout_sums(to, 2 * channels);
    layout_common(to, 2 * (size_t)channels * sizeof(real));
    layout_scratch(to, (size_t)channels * sizeof(real));
}

typedef struct batch_job {
    const batch_norm *b;
    const real *x;   /* [rows][channels] */
    const real *dy;  /* [rows][channels] backward */
    real *to;        /* [rows][channels] y or dx */
    const real *by;  /* [2][channels] backward: coefficients of x and 1 */
    double *partial; /* [chunks][2][channels] */
} batch_job;

VECTOR static void add_moments(double *restrict sum, double *restrict squares,
                               const real *restrict x, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        double value = (double)x[c];
        sum[c] += value;
        squares[c] += value * value;
    }
}

VECTOR static void add_products(double *restrict sum, double *restrict products,
                                const real *restrict g, const real *restrict x, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        double value = (double)g[c];
        sum[c] += value;
        products[c] += value * (double)x[c];
    }
}

/* g where forward's y, whose bits this finds again, was positive. A loop of its own: GCC 12 does not
 * vectorise it together with sums in double, which cost 8 % of a step of vgg16. */
VECTOR static void rectified(const batch_norm *b, const real *restrict g, const real *restrict x,
                             real *restrict to) {
    const real *restrict slope = b->slope, *restrict constant = b->constant;
    for (int64_t c = 0; c < b->channels; c++)
        to[c] = slope[c] * x[c] + constant[c] > 0 ? g[c] : 0;
}

static void sum_task(const task *t) {
    const batch_job *job = t->job;
    const int64_t n = job->b->channels;
    double *sum = job->partial + t->index * 2 * n;
    for (int64_t at = t->r.begin * n; at < t->r.end * n; at += n) {
        if (!job->dy) {
            add_moments(sum, sum + n, job->x + at, n);
            continue;
        }
        const real *g = job->dy + at;
        if (job->b->rectify) {
            rectified(job->b, g, job->x + at, t->scratch);
            g = t->scratch;
        }
        add_products(sum, sum + n, g, job->x + at, n);
    }
}

VECTOR static void map_forward(const batch_norm *b, real *restrict y, const real *restrict x) {
    const real *restrict slope = b->slope, *restrict constant = b->constant;
    const int64_t n = b->channels;
    if (b->rectify) {
        for (int64_t c = 0; c < n; c++) {
            real value = slope[c] * x[c] + constant[c];
            y[c] = value <= 0 ? 0 : value; /* NaN stays, to be seen */
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            y[c] = slope[c] * x[c] + constant[c];
    }
}

/* dx = slope g + by[0] x + by[1], in place of dy. */
VECTOR static void map_backward(const batch_norm *b, real *restrict dy, const real *restrict x,
                                const real *restrict by) {
    const real *restrict slope = b->slope, *restrict constant = b->constant;
    const int64_t n = b->channels;
    if (b->rectify) {
        for (int64_t c = 0; c < n; c++) {
            real g = slope[c] * x[c] + constant[c] > 0 ? dy[c] : 0;
            dy[c] = slope[c] * g + (by[c] * x[c] + by[n + c]);
        }
    } else {
        for (int64_t c = 0; c < n; c++)
            dy[c] = slope[c] * dy[c] + (by[c] * x[c] + by[n + c]);
    }
}

static void map_task(const task *t) {
    const batch_job *job = t->job;
    const int64_t n = job->b->channels;
    for (int64_t at = t->r.begin * n; at < t->r.end * n; at += n)
        if (!job->dy)
            map_forward(job->b, job->to + at, job->x + at);
        else
            map_backward(job->b, job->to + at, job->x + at, job->by);
}

/* Mean and variance of the batch, which move the running ones. */
static void take_batch(const batch_norm *b, const double *sums, int64_t rows) {
    const double unbiased = rows > 1 ? (double)rows / (double)(rows - 1) : 1.0;
    for (int c = 0; c < b->channels; c++) {
        double mean = sums[c] / (double)rows;
        double variance = sums[b->channels + c] / (double)rows - mean * mean;
        variance = variance < 0 ? 0 : variance; /* rounding; NaN stays */
        b->mean[c] = mean;
        b->inverse[c] = 1.0 / sqrt(variance + BATCH_EPSILON);
        double old_mean = (double)b->running_mean[c], old = (double)b->running_variance[c];
        b->running_mean[c] = (real)(old_mean + MOMENTUM * (mean - old_mean));
        b->running_variance[c] = (real)(old + MOMENTUM * (variance * unbiased - old));
    }
}

void batch_norm_forward(const batch_norm *b, const pass *p, int64_t rows, const real *x, real *y) {
    batch_job job = {.b = b, .x = x, .to = y, .partial = p->common};
    if (p->training)
        take_batch(b, run_sums(p, rows, 2 * b->channels, sum_task, &job), rows);
    for (int c = 0; c < b->channels; c++) {
        if (!p->training) {
            b->mean[c] = (double)b->running_mean[c];
            b->inverse[c] = 1.0 / sqrt((double)b->running_variance[c] + BATCH_EPSILON);
        }
        double slope = (double)b->scale.value[c] * b->inverse[c];
        b->slope[c] = (real)slope;
        b->constant[c] = (real)((double)b->shift.value[c] - slope * b->mean[c]);
    }
    pass_run(p, rows, sum_chunk(rows), map_task, &job);
}

void batch_norm_backward(const batch_norm *b, const pass *p, int64_t rows, const real *x,
                         real *dy) {
    batch_job job = {b, x, dy, dy, NULL, p->common};
    const double *sums = run_sums(p, rows, 2 * b->channels, sum_task, &job);
    const int n = b->channels;
    for (int c = 0; c < n; c++) {
        b->shift.grad[c] = (real)sums[c];
        b->scale.grad[c] = (real)((sums[n + c] - b->mean[c] * sums[c]) * b->inverse[c]);
    }
    real *by = p->common; /* the sums are used up; they live on in the gradients */
    for (int c = 0; c < n; c++) {
        double slope = (double)b->scale.value[c] * b->inverse[c];
        double of_x = -slope * b->inverse[c] * (double)b->scale.grad[c] / (double)rows;
        double shift = (double)b->shift.grad[c];
        by[c] = (real)of_x;
        by[n + c] = (real)(-slope * shift / (double)rows - of_x * b->mean[c]);
    }
    pass_ready(p, &b->shift); /* from here on the exchange may write to the gradients */
    pass_ready(p, &b->scale);
    job.by = by;
    pass_run(p, rows, sum_chunk(rows), map_task, &job);
}

void layer_norm_create(layer_norm *l, layout *to, const char *name, int max_rows, int width) {
    *l = (layer_norm){.width = width};
    l->scale = layout_param(to, name, "scale", width, INIT_ONE, 0);
    l->shift = layout_param(to, name, "shift", width, INIT_ZERO, 0);
    l->xhat = layout_reals(to, (int64_t)max_rows * width);
    l->inverse = layout_reals(to, max_rows);
    layout_sums(to, 2 * width);
}

typedef struct layer_job {
    const layer_norm *l;
    const real *x;   /* forward: [rows][width] */
    real *y;         /* y, or dy that becomes dx: [rows][width] */
    double *partial; /* backward: [chunks][2][width] sums of dy and dy xhat */
} layer_job;

VECTOR static void centre(const real *restrict x, real mean, real *restrict xhat, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        xhat[j] = x[j] - mean;
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

static void normalise_task(const task *t) {
    const layer_job *job = t->job;
    const layer_norm *l = job->l;
    const int64_t n = l->width;
    for (int64_t i = t->r.begin; i < t->r.end; i++) {
        const real *x = job->x + i * n;
        real *xhat = l->xhat + i * n;
        real mean = (real)(row_sum(x, n) / (double)n);
        centre(x, mean, xhat, n); /* first: the variance then loses no digits */
        double variance = row_dot(xhat, xhat, n) / (double)n;
        l->inverse[i] = (real)(1.0 / sqrt(variance + LAYER_EPSILON));
        vector_scale(xhat, l->inverse[i], n);
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

static void layer_backward_task(const task *t) {
    const layer_job *job = t->job;
    const layer_norm *l = job->l;
    const int64_t n = l->width;
    double *sums = job->partial + t->index * 2 * n;
    for (int64_t i = t->r.begin; i < t->r.end; i++) {
        real *dy = job->y + i * n;
        const real *xhat = l->xhat + i * n;
        take_sums(dy, xhat, l->scale.value, sums, sums + n, n);
        real mean = (real)(row_sum(dy, n) / (double)n);
        real slope = (real)(row_dot(dy, xhat, n) / (double)n);
        take_dx(dy, xhat, mean, slope, l->inverse[i], n);
    }
}

void layer_norm_forward(const layer_norm *l, const pass *p, int rows, const real *x, real *y) {
    layer_job job = {.l = l, .x = x, .y = y};
    pass_run(p, rows, sum_chunk(rows), normalise_task, &job);
}

void layer_norm_backward(const layer_norm *l, const pass *p, int rows, real *dy) {
    const int n = l->width;
    layer_job job = {.l = l, .y = dy, .partial = p->common};
    const double *sums = run_sums(p, rows, 2 * n, layer_backward_task, &job);
    for (int j = 0; j < n; j++) {
        l->shift.grad[j] = (real)sums[j];
        l->scale.grad[j] = (real)sums[n + j];
    }
    pass_ready(p, &l->shift);
    pass_ready(p, &l->scale);
}
