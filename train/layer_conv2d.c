/* layer_conv2d.c - convolution by patches and matrix products
 *
 * A tile is a few lines of targets: its patches are gathered into the worker's scratch memory and
 * multiplied at once, while they are in the cache. Tasks of a job:
 *   forward, dx   tiles of targets; when these are few, halves of the result's channels too
 *   dweight       lines of the kernel, times 2: halves of the output channels where these are many,
 *                 else halves of the batch, whose second sum is added at the end
 * so that two threads share each evenly, and one thread repeats little work.
 */
#include "layer_conv2d.h"

#include <string.h>

#include "columns.h"
#include "gemm.h"
#include "vector.h"

#define FEW_TILES 4  /* below this, tasks are halves of channels */
#define MANY_OUT 128 /* output channels from which halves of them make good products */

static size_t scratch_bytes(const patches *g) {
    int64_t row = (int64_t)g->kernel * g->channels;
    int64_t whole = (int64_t)patches_lines(g, g->kernel) * g->target_width * row * g->kernel;
    int64_t one_line = (int64_t)patches_lines(g, 1) * g->target_width * row;
    return (size_t)(whole > one_line ? whole : one_line) * sizeof(real);
}

void conv2d_create(conv2d *c, plan *p, const char *name, conv2d_shape shape) {
    const int kernel = shape.kernel, inputs = kernel * kernel * shape.in;
    *c = (conv2d){.in = shape.in,
                  .out = shape.out,
                  .kernel = kernel,
                  .stride = shape.stride,
                  .height = shape.height,
                  .width = shape.width,
                  .out_height = (shape.height - 1) / shape.stride + 1,
                  .out_width = (shape.width - 1) / shape.stride + 1};
    c->forward = (patches){.height = c->height,
                           .width = c->width,
                           .channels = c->in,
                           .target_height = c->out_height,
                           .target_width = c->out_width,
                           .kernel = kernel,
                           .pad = kernel / 2,
                           .step = c->stride,
                           .spread = 1};
    c->backward = (patches){.height = c->out_height,
                            .width = c->out_width,
                            .channels = c->out,
                            .target_height = c->height,
                            .target_width = c->width,
                            .kernel = kernel,
                            .pad = kernel / 2,
                            .step = 1,
                            .spread = c->stride};
    const int64_t n = (int64_t)inputs * c->out;
    c->weight = plan_param(p, name, "weight", n, INIT_UNIFORM, plan_he(inputs));
    if (shape.bias) {
        c->bias = plan_param(p, name, "bias", c->out, INIT_ZERO, 0);
        columns_plan(p, c->out, 1);
    }
    c->by_winograd = winograd_suits(c->height, c->width, c->in, c->out, kernel, c->stride);
    if (c->by_winograd) {
        winograd_create(&c->minimal, p, c->height, c->width, c->in, c->out);
        return;
    }
    plan_scratch(p, scratch_bytes(&c->forward));
    plan_scratch(p, scratch_bytes(&c->backward));
    plan_common(p, (size_t)n * sizeof(real));
}

/* ---- Patches times a kernel: forward and dx --------------------------------------------------- */

typedef struct product_job {
    const patches *g;
    const real *source; /* [count] images of g */
    const real *kernel; /* [g->kernel][g->kernel][g->channels][out] */
    const real *bias;   /* [out], or NULL */
    real *y;            /* [targets][out] */
    int64_t lines;      /* of targets, over all images */
    int out;
    int halves; /* 2: a task makes half of the channels */
} product_job;

static void fill_rows(real *y, int rows, int ld, const real *bias, int n) {
    for (int i = 0; i < rows; i++)
        memcpy(y + (int64_t)i * ld, bias, (size_t)n * sizeof *y);
}

static void product_task(void *context, int task, void *scratch) {
    const product_job *job = context;
    const patches *g = job->g;
    const int64_t half = (job->out + job->halves - 1) / job->halves;
    range lines = pass_chunk(job->lines, patches_lines(g, g->kernel), task / job->halves);
    range columns = pass_chunk(job->out, half, task % job->halves);
    const int rows = (int)(lines.end - lines.begin) * g->target_width;
    const int inner = g->kernel * g->kernel * g->channels;
    const int n = (int)(columns.end - columns.begin);
    real *y = job->y + lines.begin * g->target_width * job->out + columns.begin;
    if (job->bias)
        fill_rows(y, rows, job->out, job->bias + columns.begin, n);
    patches_gather(g, job->source, lines, 0, g->kernel, scratch);
    gemm(rows, n, inner, plain(scratch, inner), plain(job->kernel + columns.begin, job->out),
         job->bias ? 1 : 0, y, job->out);
}

static void run_product(const pass *p, product_job *job) {
    int tiles = pass_chunks(job->lines, patches_lines(job->g, job->g->kernel));
    job->halves = tiles < FEW_TILES && job->out >= MANY_OUT ? 2 : 1;
    team_run(p->team, tiles * job->halves, product_task, job);
}

void conv2d_forward(const conv2d *c, const pass *p, int count, const real *x, real *y) {
    const real *bias = c->bias.n ? c->bias.value : NULL;
    if (c->by_winograd) {
        winograd_forward(&c->minimal, p, count, x, c->weight.value, bias, y);
        return;
    }
    product_job job = {.g = &c->forward,
                       .source = x,
                       .kernel = c->weight.value,
                       .bias = bias,
                       .y = y,
                       .lines = (int64_t)count * c->out_height,
                       .out = c->out};
    run_product(p, &job);
}

/* ---- Gradient of the input -------------------------------------------------------------------- */

typedef struct turn_job {
    const real *weight; /* [taps][in][out] */
    real *turned;       /* [taps][out][in]: taps in reverse */
    int taps, in, out;
} turn_job;

/* to[columns][rows] = transpose of from[rows][columns], in squares that stay in the cache. */
VECTOR static void transpose(const real *restrict from, int64_t rows, int64_t columns,
                             real *restrict to) {
    const int64_t square = 16;
    for (int64_t i = 0; i < rows; i += square) {
        const int64_t last = i + square < rows ? i + square : rows;
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = i; k < last; k++)
                to[j * rows + k] = from[k * columns + j];
    }
}

static void turn_task(void *context, int task, void *scratch) {
    (void)scratch;
    const turn_job *job = context;
    const int64_t tap = (int64_t)job->in * job->out;
    transpose(job->weight + task * tap, job->in, job->out,
              job->turned + (job->taps - 1 - task) * tap);
}

static void input_gradient(const conv2d *c, const pass *p, int count, const real *dy, real *dx) {
    turn_job turn = {.weight = c->weight.value,
                     .turned = team_common(p->team),
                     .taps = c->kernel * c->kernel,
                     .in = c->in,
                     .out = c->out};
    team_run(p->team, turn.taps, turn_task, &turn);
    product_job job = {.g = &c->backward,
                       .source = dy,
                       .kernel = turn.turned,
                       .y = dx,
                       .lines = (int64_t)count * c->height,
                       .out = c->in};
    run_product(p, &job);
}

/* ---- Gradient of the weights ------------------------------------------------------------------ */

typedef struct weight_job {
    const conv2d *c;
    const real *x;  /* [count][height][width][in] */
    const real *dy; /* [count][out_height][out_width][out] */
    real *grad[2];  /* [kernel][kernel][in][out] of the whole batch, or of its halves */
    int64_t lines;  /* of outputs, over all images */
    bool by_batch;  /* tasks are halves of the batch instead of halves of the channels */
} weight_job;

/* One line of the kernel: grad[kernel * in][n] = patches^T[kernel * in][pixels] dy[pixels][n]. */
static void weight_line(const weight_job *job, int tap, range lines, range columns, real *grad,
                        real *scratch) {
    const conv2d *c = job->c;
    const int inner = c->kernel * c->in, n = (int)(columns.end - columns.begin);
    const int64_t tile = patches_lines(&c->forward, 1);
    real beta = 0;
    for (int64_t at = lines.begin; at < lines.end; at += tile) {
        range some = {at, at + tile < lines.end ? at + tile : lines.end};
        const int pixels = (int)(some.end - some.begin) * c->out_width;
        patches_gather(&c->forward, job->x, some, tap, 1, scratch);
        gemm(inner, n, pixels, transposed(scratch, inner),
             plain(job->dy + some.begin * c->out_width * c->out + columns.begin, c->out), beta,
             grad + (int64_t)tap * inner * c->out + columns.begin, c->out);
        beta = 1;
    }
}

static void weight_task(void *context, int task, void *scratch) {
    const weight_job *job = context;
    const int tap = task / 2, half = task % 2;
    range lines = {0, job->lines}, columns = {0, job->c->out};
    if (job->by_batch)
        lines = pass_chunk(job->lines, (job->lines + 1) / 2, half);
    else
        columns = pass_chunk(job->c->out, (job->c->out + 1) / 2, half);
    weight_line(job, tap, lines, columns, job->grad[half], scratch);
}

static void weight_gradient(const conv2d *c, const pass *p, int count, const real *x,
                            const real *dy) {
    real *whole = c->weight.grad;
    weight_job job = {.c = c,
                      .x = x,
                      .dy = dy,
                      .grad = {whole, whole},
                      .lines = (int64_t)count * c->out_height,
                      .by_batch = c->out < MANY_OUT && count > 1};
    if (job.by_batch)
        job.grad[1] = team_common(p->team);
    team_run(p->team, 2 * c->kernel, weight_task, &job);
    if (job.by_batch)
        vector_add(whole, job.grad[1], c->weight.n);
}

void conv2d_backward(const conv2d *c, const pass *p, int count, const real *x, const real *dy,
                     real *dx) {
    if (c->bias.n) {
        columns_sum(p, dy, (int64_t)count * c->out_height * c->out_width, c->out, c->bias.grad);
        pass_ready(p, &c->bias);
    }
    if (c->by_winograd)
        winograd_weight_gradient(&c->minimal, p, count, x, dy, c->weight.grad);
    else
        weight_gradient(c, p, count, x, dy);
    pass_ready(p, &c->weight);
    if (dx && c->by_winograd)
        winograd_input_gradient(&c->minimal, p, count, dy, dx);
    else if (dx)
        input_gradient(c, p, count, dy, dx);
}
