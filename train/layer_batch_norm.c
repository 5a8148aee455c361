/* layer_batch_norm.c - batch normalisation as two sums and one affine map per channel
 *
 * Forward is y = a x + b and backward dx = a g + c x + d, with coefficients per channel that come
 * from sums over the rows. Sums are in double: the variance is a difference of two of them.
 */
#include "layer_batch_norm.h"

#include <math.h>
#include <string.h>

#include "columns.h"
#include "vector.h"

#define EPSILON 1e-5
#define MOMENTUM 0.1

void batch_norm_create(batch_norm *b, plan *p, const char *name, int channels, bool rectify) {
    *b = (batch_norm){.channels = channels, .rectify = rectify};
    b->scale = plan_param(p, name, "scale", channels, INIT_ONE, 0);
    b->shift = plan_param(p, name, "shift", channels, INIT_ZERO, 0);
    b->running_mean = plan_state(p, name, "mean", channels, 0);
    b->running_variance = plan_state(p, name, "variance", channels, 1);
    b->mean = plan_work(p, channels, sizeof(double));
    b->inverse = plan_work(p, channels, sizeof(double));
    b->slope = plan_reals(p, channels);
    b->constant = plan_reals(p, channels);
    columns_plan(p, channels, 2);
    plan_common(p, 2 * (size_t)channels * sizeof(real));
    plan_scratch(p, (size_t)channels * sizeof(real));
}

/* A job over chunks of rows. Sums: partial[chunks][2][channels]. Maps: coefficients. */
typedef struct norm_job {
    const batch_norm *b;
    const real *x;  /* [rows][channels] */
    const real *dy; /* [rows][channels] backward */
    real *to;       /* [rows][channels] y or dx */
    const real *by; /* [2][channels] backward: coefficients of x and 1 */
    double *partial;
    int64_t rows;
} norm_job;

/* ---- Sums -------------------------------------------------------------------------------------- */

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

static void sum_task(void *context, int task, void *scratch) {
    const norm_job *job = context;
    const int64_t n = job->b->channels;
    range r = pass_chunk(job->rows, columns_chunk(job->rows), task);
    double *sum = job->partial + task * 2 * n;
    memset(sum, 0, (size_t)(2 * n) * sizeof *sum);
    for (int64_t at = r.begin * n; at < r.end * n; at += n) {
        if (!job->dy) {
            add_moments(sum, sum + n, job->x + at, n);
            continue;
        }
        const real *g = job->dy + at;
        if (job->b->rectify) {
            rectified(job->b, g, job->x + at, scratch);
            g = scratch;
        }
        add_products(sum, sum + n, g, job->x + at, n);
    }
}

/* sums[2][channels] over all rows, in the team's common memory. */
static double *run_sums(const pass *p, norm_job *job) {
    job->partial = team_common(p->team);
    int chunks = pass_chunks(job->rows, columns_chunk(job->rows));
    team_run(p->team, chunks, sum_task, job);
    columns_total(job->partial, chunks, 2 * job->b->channels, job->partial);
    return job->partial;
}

/* ---- Maps -------------------------------------------------------------------------------------- */

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

static void map_task(void *context, int task, void *scratch) {
    (void)scratch;
    const norm_job *job = context;
    const int64_t n = job->b->channels;
    range r = pass_chunk(job->rows, columns_chunk(job->rows), task);
    for (int64_t at = r.begin * n; at < r.end * n; at += n)
        if (!job->dy)
            map_forward(job->b, job->to + at, job->x + at);
        else
            map_backward(job->b, job->to + at, job->x + at, job->by);
}

static void run_map(const pass *p, norm_job *job) {
    team_run(p->team, pass_chunks(job->rows, columns_chunk(job->rows)), map_task, job);
}

/* ---- Forward ----------------------------------------------------------------------------------- */

/* Mean and variance of the batch, which move the running ones. */
static void take_batch(const batch_norm *b, const double *sums, int64_t rows) {
    const double unbiased = rows > 1 ? (double)rows / (double)(rows - 1) : 1.0;
    for (int c = 0; c < b->channels; c++) {
        double mean = sums[c] / (double)rows;
        double variance = sums[b->channels + c] / (double)rows - mean * mean;
        variance = variance < 0 ? 0 : variance; /* rounding; NaN stays */
        b->mean[c] = mean;
        b->inverse[c] = 1.0 / sqrt(variance + EPSILON);
        double old_mean = (double)b->running_mean[c], old = (double)b->running_variance[c];
        b->running_mean[c] = (real)(old_mean + MOMENTUM * (mean - old_mean));
        b->running_variance[c] = (real)(old + MOMENTUM * (variance * unbiased - old));
    }
}

static void take_running(const batch_norm *b) {
    for (int c = 0; c < b->channels; c++) {
        b->mean[c] = (double)b->running_mean[c];
        b->inverse[c] = 1.0 / sqrt((double)b->running_variance[c] + EPSILON);
    }
}

void batch_norm_forward(const batch_norm *b, const pass *p, int64_t rows, const real *x, real *y) {
    norm_job job = {.b = b, .x = x, .to = y, .rows = rows};
    if (p->training)
        take_batch(b, run_sums(p, &job), rows);
    else
        take_running(b);
    for (int c = 0; c < b->channels; c++) {
        double slope = (double)b->scale.value[c] * b->inverse[c];
        b->slope[c] = (real)slope;
        b->constant[c] = (real)((double)b->shift.value[c] - slope * b->mean[c]);
    }
    run_map(p, &job);
}

/* ---- Backward ---------------------------------------------------------------------------------- */

void batch_norm_backward(const batch_norm *b, const pass *p, int64_t rows, const real *x,
                         real *dy) {
    norm_job job = {.b = b, .x = x, .dy = dy, .to = dy, .rows = rows};
    const double *sums = run_sums(p, &job);
    const int n = b->channels;
    for (int c = 0; c < n; c++) {
        b->shift.grad[c] = (real)sums[c];
        b->scale.grad[c] = (real)((sums[n + c] - b->mean[c] * sums[c]) * b->inverse[c]);
    }
    pass_ready(p, &b->shift);
    pass_ready(p, &b->scale);
    real *by = team_common(p->team); /* the sums are used up; they live on in the gradients */
    for (int c = 0; c < n; c++) {
        double slope = (double)b->scale.value[c] * b->inverse[c];
        double of_x = -slope * b->inverse[c] * (double)b->scale.grad[c] / (double)rows;
        double shift = (double)b->shift.grad[c];
        by[c] = (real)of_x;
        by[n + c] = (real)(-slope * shift / (double)rows - of_x * b->mean[c]);
    }
    job.by = by;
    run_map(p, &job);
}
