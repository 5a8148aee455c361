/* winograd.c - three transforms around 16 matrix products; see winograd.h
 *
 * Two methods, by the size of the kernels:
 *   narrow  kernels fit in a core's cache. A task takes some tiles through all stages in its scratch
 *           memory, so transforms never leave the cache. For weights, tasks are fixed quarters of the
 *           tiles, each with a sum of its own, added in order.
 *   wide    kernels are the bulk. Up to ROUND tiles go through the stages together; the products
 *           are 16 tasks, each of which reads its plane of the kernels once.
 * The sizes below matter little: a step of vgg16 (batch 32, one core of an EPYC with 1 MiB L2, CPU
 * time) takes 405 to 413 ms with 256 KiB to 2 MiB per task, 256 or 512 tiles per round, 2 to 4 parts
 * and WIDE from 100 to 192; with WIDE 400 it takes 425.
 */
#include "layers/winograd.h"

#include <assert.h>

#include "layers/matrix.h"
#include "layers/vector.h"

enum {
    LEAST_CHANNELS = 16, /* below, patches win: products are too thin */
    WIDE = 192 * 192,    /* in * out from which the wide method is used */
    ROUND = 512,         /* tiles that go through the wide method together */
    STRIP = 16,          /* tiles of one task of its transforms */
    PARTS = 4,           /* of the tiles, in the narrow weight gradient */
    SPAN = 4096          /* kernels of one task of their transform */
};
#define NARROW_BYTES (512 * 1024) /* of transforms of one narrow task; see the top */

bool winograd_suits(int height, int width, int in, int out, int kernel, int stride) {
    return kernel == 3 && stride == 1 && height % 2 == 0 && width % 2 == 0 &&
           in >= LEAST_CHANNELS && out >= LEAST_CHANNELS && in <= WINOGRAD_CHANNELS &&
           out <= WINOGRAD_CHANNELS;
}

static int64_t length(range r) {
    return r.end - r.begin;
}

static int64_t kernels_of(const winograd *w) {
    return (int64_t)w->in * w->out;
}

static bool is_wide(const winograd *w) {
    return kernels_of(w) >= WIDE;
}

/* Tiles that a narrow task takes at once. */
static int64_t narrow_tiles(const winograd *w) {
    int64_t tiles = NARROW_BYTES / (PLANES * (w->in + w->out) * (int64_t)sizeof(float));
    return tiles > STRIP ? tiles / STRIP * STRIP : STRIP;
}

void winograd_create(winograd *w, layout *to, int height, int width, int in, int out) {
    assert(winograd_suits(height, width, in, out, 3, 1));
    *w = (winograd){.height = height, .width = width, .in = in, .out = out};
    w->kernels = layout_reals(to, PLANES * kernels_of(w));
    const size_t both = (size_t)(PLANES * (in + out)) * sizeof(real); /* transforms of one tile */
    const size_t sums = (size_t)(PLANES * kernels_of(w)) * sizeof(real);
    if (is_wide(w)) {
        layout_common(to, ROUND * both + sums);
    } else {
        layout_scratch(to, (size_t)narrow_tiles(w) * both);
        layout_common(to, PARTS * sums);
    }
}

/* ---- Images to images: forward and input gradient ------------------------------------------------ */

typedef struct image_job {
    const winograd *w;
    tiling from, to;    /* in and out, or out and in */
    bool back;          /* the kernels turned by 180 degrees and transposed */
    const real *source; /* [count] images of `from` */
    const real *bias;   /* [to.channels], or NULL */
    real *target;       /* [count] images of `to` */
    int64_t tiles;      /* of all images */
    range round;        /* wide: tiles in this round */
    real *inputs;       /* wide: [PLANES][round][from.channels] */
    real *outputs;      /* wide: [PLANES][round][to.channels] */
} image_job;

/* Turning a kernel by 180 degrees swaps the first and last row and column of its transform. */
static int turned(int plane) {
    static const int swap[4] = {3, 1, 2, 0};
    return swap[plane / 4] * 4 + swap[plane % 4];
}

/* One plane: outputs[n][to] = inputs[n][from] kernels. */
static void plane_product(const image_job *job, int plane, int n, const real *inputs,
                          real *outputs) {
    const winograd *w = job->w;
    const int from = job->from.channels, to = job->to.channels;
    const real *kernels = w->kernels + kernels_of(w) * (job->back ? turned(plane) : plane);
    matrix right = job->back ? transposed(kernels, w->out) : plain(kernels, w->out);
    gemm(n, to, from, plain(inputs, from), right, 0, outputs, to);
}

static void narrow_task(const task *t) {
    const image_job *job = t->job;
    const int n = (int)length(t->r);
    const int64_t in_plane = (int64_t)n * job->from.channels;
    const int64_t out_plane = (int64_t)n * job->to.channels;
    real *inputs = t->scratch, *outputs = inputs + PLANES * in_plane;
    winograd_inputs(job->from, job->source, t->r, inputs, in_plane);
    for (int k = 0; k < PLANES; k++)
        plane_product(job, k, n, inputs + k * in_plane, outputs + k * out_plane);
    winograd_outputs(job->to, outputs, out_plane, job->bias, t->r, job->target);
}

/* Tasks of a round are strips of its tiles: t->r counts from the round's begin. */
static range strip(range round, const task *t) {
    return (range){round.begin + t->r.begin, round.begin + t->r.end};
}

static void wide_inputs_task(const task *t) {
    const image_job *job = t->job;
    const int64_t n = job->from.channels;
    winograd_inputs(job->from, job->source, strip(job->round, t), job->inputs + t->r.begin * n,
                    length(job->round) * n);
}

static void wide_product_task(const task *t) {
    const image_job *job = t->job;
    const int64_t n = length(job->round);
    plane_product(job, t->index, (int)n, job->inputs + t->index * n * job->from.channels,
                  job->outputs + t->index * n * job->to.channels);
}

static void wide_outputs_task(const task *t) {
    const image_job *job = t->job;
    const int64_t n = job->to.channels;
    winograd_outputs(job->to, job->outputs + t->r.begin * n, length(job->round) * n, job->bias,
                     strip(job->round, t), job->target);
}

static void run_wide(const pass *p, image_job *job) {
    job->inputs = p->common;
    for (int64_t at = 0; at < job->tiles; at += ROUND) {
        job->round = chunk(job->tiles, ROUND, at / ROUND);
        job->outputs = job->inputs + PLANES * length(job->round) * job->from.channels;
        const int64_t n = length(job->round);
        pass_run(p, n, STRIP, wide_inputs_task, job);
        pass_run(p, PLANES, 1, wide_product_task, job);
        pass_run(p, n, STRIP, wide_outputs_task, job);
    }
}

static void run_images(const pass *p, image_job *job) {
    if (is_wide(job->w))
        run_wide(p, job);
    else
        pass_run(p, job->tiles, narrow_tiles(job->w), narrow_task, job);
}

/* ---- Kernels ------------------------------------------------------------------------------------- */

typedef struct kernel_job {
    const real *from;
    real *to;
    int64_t n;   /* in * out */
    real *parts; /* gradients: [nparts][PLANES][n], added up into the first */
    int nparts;
} kernel_job;

static void kernels_task(const task *t) {
    const kernel_job *job = t->job;
    winograd_kernels(job->from, job->n, t->r, job->to);
}

static void kernel_gradients_task(const task *t) {
    const kernel_job *job = t->job;
    for (int part = 1; part < job->nparts; part++) {
        for (int k = 0; k < PLANES; k++) {
            real *sum = job->parts + k * job->n + t->r.begin;
            vector_add(sum, sum + part * PLANES * job->n, t->r.end - t->r.begin);
        }
    }
    winograd_kernel_gradients(job->parts, job->n, t->r, job->to);
}

/* ---- Weight gradient ----------------------------------------------------------------------------- */

typedef struct weight_job {
    const winograd *w;
    tiling in, out;
    const real *x, *dy;
    int64_t tiles;
    range round;     /* wide */
    real *inputs;    /* wide: [PLANES][round][in] */
    real *gradients; /* wide: [PLANES][round][out] */
    real *sums;      /* narrow: [PARTS][PLANES][in][out]; wide: [PLANES][in][out] */
} weight_job;

/* sum[in][out] (+)= inputs^T gradients, over n tiles. */
static void plane_sum(const winograd *w, int64_t n, const real *inputs, const real *gradients,
                      bool add, real *sum) {
    gemm(w->in, w->out, (int)n, transposed(inputs, w->in), plain(gradients, w->out), add ? 1 : 0,
         sum, w->out);
}

/* One part of the tiles, some tiles at a time. */
static void narrow_weight_task(const task *t) {
    const weight_job *job = t->job;
    const winograd *w = job->w;
    range part = chunk(job->tiles, (job->tiles + PARTS - 1) / PARTS, t->index);
    real *sums = job->sums + t->index * PLANES * kernels_of(w);
    const int64_t most = narrow_tiles(w);
    int64_t at = part.begin;
    do { /* once even for an empty part: its sum is 0 */
        range r = {at, at + most < part.end ? at + most : part.end};
        r.end = r.end > r.begin ? r.end : r.begin;
        const int64_t n = length(r);
        real *inputs = t->scratch, *gradients = inputs + PLANES * n * w->in;
        winograd_inputs(job->in, job->x, r, inputs, n * w->in);
        winograd_gradients(job->out, job->dy, r, gradients, n * w->out);
        for (int k = 0; k < PLANES; k++) {
            plane_sum(w, n, inputs + k * n * w->in, gradients + k * n * w->out, at > part.begin,
                      sums + k * kernels_of(w));
        }
        at += most;
    } while (at < part.end);
}

static void wide_transform_task(const task *t) {
    const weight_job *job = t->job;
    const winograd *w = job->w;
    const int64_t n = length(job->round);
    const range r = strip(job->round, t);
    winograd_inputs(job->in, job->x, r, job->inputs + t->r.begin * w->in, n * w->in);
    winograd_gradients(job->out, job->dy, r, job->gradients + t->r.begin * w->out, n * w->out);
}

static void wide_sum_task(const task *t) {
    const weight_job *job = t->job;
    const winograd *w = job->w;
    const int64_t n = length(job->round);
    plane_sum(w, n, job->inputs + t->index * n * w->in, job->gradients + t->index * n * w->out,
              job->round.begin > 0, job->sums + t->index * kernels_of(w));
}

static void run_wide_weights(const pass *p, weight_job *job) {
    const winograd *w = job->w;
    job->inputs = job->sums + PLANES * kernels_of(w);
    for (int64_t at = 0; at < job->tiles; at += ROUND) {
        job->round = chunk(job->tiles, ROUND, at / ROUND);
        const int64_t n = length(job->round);
        job->gradients = job->inputs + PLANES * n * w->in;
        pass_run(p, n, STRIP, wide_transform_task, job);
        pass_run(p, PLANES, 1, wide_sum_task, job);
    }
}

/* ---- The three results --------------------------------------------------------------------------- */

static image_job describe(const winograd *w, int count, const real *source, const real *bias,
                          real *target, bool back) {
    const tiling in = {w->height, w->width, w->in}, out = {w->height, w->width, w->out};
    return (image_job){.w = w,
                       .from = back ? out : in,
                       .to = back ? in : out,
                       .back = back,
                       .source = source,
                       .bias = bias,
                       .target = target,
                       .tiles = count * tiling_each(in)};
}

void winograd_forward(const winograd *w, const pass *p, int count, const real *x,
                      const real *weight, const real *bias, real *y) {
    kernel_job kernels = {.from = weight, .to = w->kernels, .n = kernels_of(w)};
    pass_run(p, kernels.n, SPAN, kernels_task, &kernels);
    image_job job = describe(w, count, x, bias, y, false);
    run_images(p, &job);
}

void winograd_input_gradient(const winograd *w, const pass *p, int count, const real *dy,
                             real *dx) {
    image_job job = describe(w, count, dy, NULL, dx, true);
    run_images(p, &job);
}

void winograd_weight_gradient(const winograd *w, const pass *p, int count, const real *x,
                              const real *dy, real *grad) {
    const tiling in = {w->height, w->width, w->in}, out = {w->height, w->width, w->out};
    weight_job job = {w, in, out, x, dy, count * tiling_each(in), .sums = p->common};
    if (is_wide(w))
        run_wide_weights(p, &job);
    else
        pass_run(p, PARTS, 1, narrow_weight_task, &job);
    kernel_job kernels = {
        .to = grad, .n = kernels_of(w), .parts = job.sums, .nparts = is_wide(w) ? 1 : PARTS};
    pass_run(p, kernels.n, SPAN, kernel_gradients_task, &kernels);
}
