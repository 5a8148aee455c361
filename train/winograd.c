/* winograd.c - three transforms around 16 matrix products; see winograd.h and winograd_tiles.h
 *
 * Two ways to do it, by the size of the kernels:
 *   narrow  kernels fit in a core's cache. A task takes some tiles through all stages in its scratch
 *           memory, so transforms never leave the cache. For weights, tasks are fixed quarters of the
 *           tiles, each with a sum of its own, added in order.
 *   wide    kernels are the bulk. Up to ROUND tiles go through the stages together; the products
 *           are 16 tasks, each of which reads its plane of the kernels once.
 * The sizes below matter little: a step of vgg16 (batch 32, one core of an EPYC with 1 MiB L2, CPU
 * time) takes 405 to 413 ms with 256 KiB to 2 MiB per task, 256 or 512 tiles per round, 2 to 4 parts
 * and WIDE from 100 to 192; with WIDE 400 it takes 425.
 */
#include "winograd.h"

#include <stddef.h>

#include "gemm.h"
#include "vector.h"
#include "winograd_tiles.h"

enum {
    LEAST_CHANNELS = 16, /* below, patches win: products are too thin */
    WIDE = 192 * 192,    /* in * out from which the wide way is used */
    ROUND = 512,         /* tiles of the wide way that are under way together */
    STRIP = 16,          /* tiles of one task of its transforms */
    PARTS = 4,           /* of the tiles, in the narrow way to the weights */
    LANE = 4096          /* kernels of one task of their transform */
};
#define NARROW_BYTES (512 * 1024) /* of transforms of one task in the narrow way; see the top */

bool winograd_suits(int height, int width, int in, int out, int kernel, int stride) {
    return kernel == 3 && stride == 1 && height % 2 == 0 && width % 2 == 0 &&
           in >= LEAST_CHANNELS && out >= LEAST_CHANNELS && in <= WINOGRAD_CHANNELS &&
           out <= WINOGRAD_CHANNELS;
}

static int64_t kernels_of(const winograd *w) {
    return (int64_t)w->in * w->out;
}

static bool is_wide(const winograd *w) {
    return kernels_of(w) >= WIDE;
}

/* Tiles that a task of the narrow way takes at once. */
static int64_t narrow_tiles(const winograd *w) {
    int64_t tiles = NARROW_BYTES / (PLANES * (w->in + w->out) * (int64_t)sizeof(float));
    return tiles > STRIP ? tiles / STRIP * STRIP : STRIP;
}

void winograd_create(winograd *w, plan *p, int height, int width, int in, int out) {
    *w = (winograd){.height = height, .width = width, .in = in, .out = out};
    w->kernels = plan_reals(p, PLANES * kernels_of(w));
    const size_t both = (size_t)(PLANES * (in + out)) * sizeof(real); /* transforms of one tile */
    const size_t sums = (size_t)(PLANES * kernels_of(w)) * sizeof(real);
    if (is_wide(w)) {
        plan_common(p, ROUND * both + sums);
    } else {
        plan_scratch(p, (size_t)narrow_tiles(w) * both);
        plan_common(p, PARTS * sums);
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
    range round;        /* wide: tiles under way */
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

static void narrow_task(void *context, int task, void *scratch) {
    const image_job *job = context;
    range r = pass_chunk(job->tiles, narrow_tiles(job->w), task);
    const int n = (int)(r.end - r.begin);
    const int64_t in_plane = (int64_t)n * job->from.channels;
    const int64_t out_plane = (int64_t)n * job->to.channels;
    real *inputs = scratch, *outputs = inputs + PLANES * in_plane;
    winograd_inputs(job->from, job->source, r, inputs, in_plane);
    for (int k = 0; k < PLANES; k++)
        plane_product(job, k, n, inputs + k * in_plane, outputs + k * out_plane);
    winograd_outputs(job->to, outputs, out_plane, job->bias, r, job->target);
}

static int64_t round_tiles(const image_job *job) {
    return job->round.end - job->round.begin;
}

/* Strip `task` of the round; its place in the planes is its begin minus the round's. */
static range strip(range round, int task) {
    range r = pass_chunk(round.end - round.begin, STRIP, task);
    return (range){round.begin + r.begin, round.begin + r.end};
}

static void wide_inputs_task(void *context, int task, void *scratch) {
    (void)scratch;
    const image_job *job = context;
    const int64_t n = job->from.channels;
    winograd_inputs(job->from, job->source, strip(job->round, task), job->inputs + task * STRIP * n,
                    round_tiles(job) * n);
}

static void wide_product_task(void *context, int task, void *scratch) {
    (void)scratch;
    const image_job *job = context;
    const int64_t n = round_tiles(job);
    plane_product(job, task, (int)n, job->inputs + task * n * job->from.channels,
                  job->outputs + task * n * job->to.channels);
}

static void wide_outputs_task(void *context, int task, void *scratch) {
    (void)scratch;
    const image_job *job = context;
    const int64_t n = job->to.channels;
    winograd_outputs(job->to, job->outputs + task * STRIP * n, round_tiles(job) * n, job->bias,
                     strip(job->round, task), job->target);
}

static void run_wide(const pass *p, image_job *job) {
    job->inputs = team_common(p->team);
    for (int64_t at = 0; at < job->tiles; at += ROUND) {
        job->round = pass_chunk(job->tiles, ROUND, at / ROUND);
        job->outputs = job->inputs + PLANES * round_tiles(job) * job->from.channels;
        const int strips = pass_chunks(round_tiles(job), STRIP);
        team_run(p->team, strips, wide_inputs_task, job);
        team_run(p->team, PLANES, wide_product_task, job);
        team_run(p->team, strips, wide_outputs_task, job);
    }
}

static void run_images(const pass *p, image_job *job) {
    if (is_wide(job->w))
        run_wide(p, job);
    else
        team_run(p->team, pass_chunks(job->tiles, narrow_tiles(job->w)), narrow_task, job);
}

/* ---- Kernels ------------------------------------------------------------------------------------- */

typedef struct kernel_job {
    const real *from;
    real *to;
    int64_t n;   /* in * out */
    real *parts; /* gradients: [nparts][PLANES][n], added up into the first */
    int nparts;
} kernel_job;

static void kernels_task(void *context, int task, void *scratch) {
    (void)scratch;
    const kernel_job *job = context;
    winograd_kernels(job->from, job->n, pass_chunk(job->n, LANE, task), job->to);
}

static void kernel_gradients_task(void *context, int task, void *scratch) {
    (void)scratch;
    const kernel_job *job = context;
    range r = pass_chunk(job->n, LANE, task);
    for (int part = 1; part < job->nparts; part++) {
        for (int k = 0; k < PLANES; k++) {
            real *sum = job->parts + k * job->n + r.begin;
            vector_add(sum, sum + part * PLANES * job->n, r.end - r.begin);
        }
    }
    winograd_kernel_gradients(job->parts, job->n, r, job->to);
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
static void narrow_weight_task(void *context, int task, void *scratch) {
    const weight_job *job = context;
    const winograd *w = job->w;
    range part = pass_chunk(job->tiles, (job->tiles + PARTS - 1) / PARTS, task);
    real *sums = job->sums + task * PLANES * kernels_of(w);
    const int64_t most = narrow_tiles(w);
    int64_t at = part.begin;
    do { /* once even for an empty part: its sum is 0 */
        range r = {at, at + most < part.end ? at + most : part.end};
        r.end = r.end > r.begin ? r.end : r.begin;
        const int64_t n = r.end - r.begin;
        real *inputs = scratch, *gradients = inputs + PLANES * n * w->in;
        winograd_inputs(job->in, job->x, r, inputs, n * w->in);
        winograd_gradients(job->out, job->dy, r, gradients, n * w->out);
        for (int k = 0; k < PLANES; k++) {
            plane_sum(w, n, inputs + k * n * w->in, gradients + k * n * w->out, at > part.begin,
                      sums + k * kernels_of(w));
        }
        at += most;
    } while (at < part.end);
}

static void wide_transform_task(void *context, int task, void *scratch) {
    (void)scratch;
    const weight_job *job = context;
    const winograd *w = job->w;
    const int64_t n = job->round.end - job->round.begin;
    const range r = strip(job->round, task);
    winograd_inputs(job->in, job->x, r, job->inputs + task * STRIP * (int64_t)w->in, n * w->in);
    winograd_gradients(job->out, job->dy, r, job->gradients + task * STRIP * (int64_t)w->out,
                       n * w->out);
}

static void wide_sum_task(void *context, int task, void *scratch) {
    (void)scratch;
    const weight_job *job = context;
    const winograd *w = job->w;
    const int64_t n = job->round.end - job->round.begin;
    plane_sum(w, n, job->inputs + task * n * w->in, job->gradients + task * n * w->out,
              job->round.begin > 0, job->sums + task * kernels_of(w));
}

static void run_wide_weights(const pass *p, weight_job *job) {
    const winograd *w = job->w;
    job->inputs = job->sums + PLANES * kernels_of(w);
    for (int64_t at = 0; at < job->tiles; at += ROUND) {
        job->round = pass_chunk(job->tiles, ROUND, at / ROUND);
        const int64_t n = job->round.end - job->round.begin;
        job->gradients = job->inputs + PLANES * n * w->in;
        team_run(p->team, pass_chunks(n, STRIP), wide_transform_task, job);
        team_run(p->team, PLANES, wide_sum_task, job);
    }
}

/* ---- The three results --------------------------------------------------------------------------- */

static image_job describe(const winograd *w, int count) {
    image_job job = {
        .w = w, .from = {w->height, w->width, w->in}, .to = {w->height, w->width, w->out}};
    job.tiles = count * tiling_each(job.from);
    return job;
}

void winograd_forward(const winograd *w, const pass *p, int count, const real *x,
                      const real *weight, const real *bias, real *y) {
    kernel_job kernels = {.from = weight, .to = w->kernels, .n = kernels_of(w)};
    team_run(p->team, pass_chunks(kernels.n, LANE), kernels_task, &kernels);
    image_job job = describe(w, count);
    job.source = x;
    job.bias = bias;
    job.target = y;
    run_images(p, &job);
}

void winograd_input_gradient(const winograd *w, const pass *p, int count, const real *dy,
                             real *dx) {
    image_job job = describe(w, count);
    tiling in = job.from;
    job.from = job.to;
    job.to = in;
    job.back = true;
    job.source = dy;
    job.target = dx;
    run_images(p, &job);
}

void winograd_weight_gradient(const winograd *w, const pass *p, int count, const real *x,
                              const real *dy, real *grad) {
    image_job shape = describe(w, count);
    weight_job job = {.w = w,
                      .in = shape.from,
                      .out = shape.to,
                      .x = x,
                      .dy = dy,
                      .tiles = shape.tiles,
                      .sums = team_common(p->team)};
    if (is_wide(w))
        run_wide_weights(p, &job);
    else
        team_run(p->team, PARTS, narrow_weight_task, &job);
    kernel_job kernels = {
        .to = grad, .n = kernels_of(w), .parts = job.sums, .nparts = is_wide(w) ? 1 : PARTS};
    team_run(p->team, pass_chunks(kernels.n, LANE), kernel_gradients_task, &kernels);
}
