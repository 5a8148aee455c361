/* layer_conv2d.c - convolution by patches and matrix products
 *
 * A tile is a few lines of targets: its patches are gathered into the worker's scratch memory and
 * multiplied at once, while they are in the cache. Tasks of a job:
 *   forward, dx   tiles of targets; when these are few, halves of the result's channels too
 *   dweight       lines of the kernel, times 2: halves of the output channels where these are many,
 *                 else halves of the batch, whose second sum is added at the end
 * so that two threads share each evenly, and one thread repeats little work.
 */
#include <assert.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

/* ---- Patches ---------------------------------------------------------------------------------- */

/* The neighbourhoods of pixels as rows of a matrix (im2col). Row (image, y, x) of the matrix holds the
 * kernel x kernel pixels around one target pixel, all channels of each, and zeros beyond the border. A
 * convolution is then a matrix product. With the channels innermost, one line of a neighbourhood is
 * one contiguous piece of the image.
 *
 * The same gathering serves both directions. Forward, the target is an output pixel and the source
 * the input image, in which neighbouring targets lie `step` apart. Backward, the target is an input
 * pixel and the source the gradient of the output, spread out `spread` apart with zeros between.
 *
 *     source = (target * step + tap - pad) / spread     where that is whole and inside, else zero
 *
 * Worked example, one line of 4 pixels abcd, kernel 3, step 1, pad 1:
 *     0ab  abc  bcd  cd0
 */
typedef struct patches {
    int height, width, channels;     /* of a source image: [height][width][channels] */
    int target_height, target_width; /* of the grid of targets */
    int kernel, pad;
    int step;   /* forward: the stride; backward: 1 */
    int spread; /* forward: 1; backward: the stride */
} patches;

static patches forward_patches(const conv2d *c) {
    const conv2d_shape s = c->shape;
    return (patches){s.height,     s.width,  s.in, c->out_height, c->out_width, s.kernel,
                     s.kernel / 2, s.stride, 1};
}

static patches backward_patches(const conv2d *c) {
    const conv2d_shape s = c->shape;
    return (patches){c->out_height, c->out_width, s.out, s.height, s.width,
                     s.kernel,      s.kernel / 2, 1,     s.stride};
}

/* A tile of patches is written, then read by the product at once: it should stay in the cache that a
 * core has for itself, with the packed operands. (256 KiB to 1 MiB make no difference to vgg16, where
 * only the first layer uses patches.) */
#define TILE_BYTES (512 * 1024)
#define TILE_LEAST 128 /* rows: fewer make thin products, which pack the kernel too often */

/* Target lines whose patches, `lines` lines of the kernel each, fill about a cache. */
static int patches_lines(const patches *g, int lines) {
    int64_t row = (int64_t)lines * g->kernel * g->channels * (int64_t)sizeof(real);
    int64_t rows = TILE_BYTES / row;
    rows = rows > TILE_LEAST ? rows : TILE_LEAST;
    int64_t made = rows / g->target_width;
    return made > 1 ? (int)made : 1;
}

/* Pieces of images with few channels are so short that calling memcpy would be most of the work. */
#define SHORT 16

static void copy(real *restrict to, const real *restrict from, int64_t n) {
    if (n > SHORT)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i];
}

static void clear(real *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = 0;
}

/* One line of a neighbourhood whose taps are neighbours in the source: [kernel][channels]. */
static void gather_dense(const patches *g, const real *line, int left, real *out) {
    const int64_t pixel = g->channels;
    int begin = left < 0 ? -left : 0;
    int end = left + g->kernel > g->width ? g->width - left : g->kernel;
    begin = begin < g->kernel ? begin : g->kernel;
    end = end > begin ? end : begin;
    clear(out, begin * pixel);
    copy(out + begin * pixel, line + (left + begin) * pixel, (end - begin) * pixel);
    clear(out + end * pixel, (g->kernel - end) * pixel);
}

/* The same where only every spread-th tap meets a source pixel. */
static void gather_spread(const patches *g, const real *line, int left, real *out) {
    const size_t pixel = (size_t)g->channels;
    for (int tap = 0; tap < g->kernel; tap++) {
        int at = left + tap;
        if (at >= 0 && at % g->spread == 0 && at / g->spread < g->width)
            memcpy(out, line + (size_t)(at / g->spread) * pixel, pixel * sizeof *out);
        else
            memset(out, 0, pixel * sizeof *out);
        out += pixel;
    }
}

/* The source line of a target line and a tap, or NULL outside. */
static const real *source_line(const patches *g, const real *image, int target, int tap) {
    int at = target * g->step + tap - g->pad;
    if (at < 0 || at % g->spread != 0 || at / g->spread >= g->height)
        return NULL;
    return image + (int64_t)(at / g->spread) * g->width * g->channels;
}

/* One line of targets, one line of the kernel: out steps by `row` from target to target. */
static void gather_line(const patches *g, const real *line, int64_t row, real *out) {
    const size_t piece = (size_t)g->kernel * (size_t)g->channels;
    for (int x = 0; x < g->target_width; x++) {
        int left = x * g->step - g->pad;
        if (!line)
            memset(out, 0, piece * sizeof *out);
        else if (g->spread == 1)
            gather_dense(g, line, left, out);
        else
            gather_spread(g, line, left, out);
        out += row;
    }
}

/* For the target lines [begin, end), counted over all images, gathers the kernel's lines
 * [first, first + lines):
 *     out[(end - begin) * target_width][lines][kernel][channels]  */
static void patches_gather(const patches *g, const real *source, range target, int first, int lines,
                           real *out) {
    assert(first >= 0 && first + lines <= g->kernel);
    const int64_t piece = (int64_t)g->kernel * g->channels;
    const int64_t image = (int64_t)g->height * g->width * g->channels;
    for (int64_t line = target.begin; line < target.end; line++) {
        const real *from = source + line / g->target_height * image;
        int y = (int)(line % g->target_height);
        for (int tap = 0; tap < lines; tap++)
            gather_line(g, source_line(g, from, y, first + tap), lines * piece, out + tap * piece);
        out += g->target_width * lines * piece;
    }
}

/* ---- Creation --------------------------------------------------------------------------------- */

#define FEW_TILES 4  /* below this, tasks are halves of channels */
#define MANY_OUT 128 /* output channels from which halves of them make good products */

static size_t scratch_bytes(const patches *g) {
    int64_t row = (int64_t)g->kernel * g->channels;
    int64_t whole = (int64_t)patches_lines(g, g->kernel) * g->target_width * row * g->kernel;
    int64_t one_line = (int64_t)patches_lines(g, 1) * g->target_width * row;
    return (size_t)(whole > one_line ? whole : one_line) * sizeof(real);
}

void conv2d_create(conv2d *c, layout *to, const char *name, conv2d_shape shape) {
    assert(shape.kernel % 2 == 1 && shape.stride > 0);
    const int inputs = shape.kernel * shape.kernel * shape.in;
    const int64_t n = (int64_t)inputs * shape.out;
    *c = (conv2d){.shape = shape,
                  .out_height = (shape.height - 1) / shape.stride + 1,
                  .out_width = (shape.width - 1) / shape.stride + 1};
    c->weight = layout_param(to, name, "weight", n, INIT_UNIFORM, bound_he(inputs));
    if (shape.bias) {
        c->bias = layout_param(to, name, "bias", shape.out, INIT_ZERO, 0);
        layout_sums(to, shape.out);
    }
    if (winograd_create(c, to))
        return;
    const patches forward = forward_patches(c), backward = backward_patches(c);
    layout_scratch(to, scratch_bytes(&forward));
    layout_scratch(to, scratch_bytes(&backward));
    layout_common(to, (size_t)n * sizeof(real));
}

/* ---- Patches times a kernel: forward and dx --------------------------------------------------- */

typedef struct product_job {
    patches g;
    const real *source; /* [count] images of g */
    const real *kernel; /* [g.kernel][g.kernel][g.channels][out] */
    const real *bias;   /* [out], or NULL */
    real *y;            /* [targets][out] */
    int64_t lines;      /* of targets, over all images */
    int out;
    int halves; /* 2: a task makes half of the channels */
} product_job;

static void product_task(const task *t) {
    const product_job *job = t->job;
    const patches *g = &job->g;
    const int64_t half = (job->out + job->halves - 1) / job->halves;
    range lines = chunk(job->lines, patches_lines(g, g->kernel), t->index / job->halves);
    range columns = chunk(job->out, half, t->index % job->halves);
    const int rows = (int)(lines.end - lines.begin) * g->target_width;
    const int inner = g->kernel * g->kernel * g->channels;
    const int n = (int)(columns.end - columns.begin);
    real *y = job->y + lines.begin * g->target_width * job->out + columns.begin;
    for (int i = 0; i < rows && job->bias; i++)
        memcpy(y + (int64_t)i * job->out, job->bias + columns.begin, (size_t)n * sizeof *y);
    patches_gather(g, job->source, lines, 0, g->kernel, t->scratch);
    gemm(rows, n, inner, plain(t->scratch, inner), plain(job->kernel + columns.begin, job->out),
         job->bias ? 1 : 0, y, job->out);
}

static void run_product(const pass *p, product_job *job) {
    int tiles = chunks(job->lines, patches_lines(&job->g, job->g.kernel));
    job->halves = tiles < FEW_TILES && job->out >= MANY_OUT ? 2 : 1;
    pass_run(p, tiles * job->halves, 1, product_task, job);
}

void conv2d_forward(const conv2d *c, const pass *p, int count, const real *x, real *y) {
    if (c->kernels) {
        winograd_forward(c, p, count, x, y);
        return;
    }
    product_job job = {.g = forward_patches(c), .source = x, .kernel = c->weight.value, .y = y};
    job.bias = c->bias.n ? c->bias.value : NULL;
    job.out = c->shape.out;
    job.lines = (int64_t)count * c->out_height;
    run_product(p, &job);
}

/* ---- Gradient of the input -------------------------------------------------------------------- */

typedef struct turn_job {
    const conv2d *c;
    real *turned; /* [taps][out][in]: taps in reverse */
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

static void turn_task(const task *t) {
    const turn_job *job = t->job;
    const conv2d_shape *s = &job->c->shape;
    const int64_t tap = (int64_t)s->in * s->out, last = s->kernel * s->kernel - 1;
    transpose(job->c->weight.value + t->index * tap, s->in, s->out,
              job->turned + (last - t->index) * tap);
}

static void input_gradient(const conv2d *c, const pass *p, int count, const real *dy, real *dx) {
    const conv2d_shape s = c->shape;
    pass_run(p, s.kernel * s.kernel, 1, turn_task, &(turn_job){c, p->common});
    product_job job = {backward_patches(c), dy, p->common, NULL, dx, .out = s.in};
    job.lines = (int64_t)count * s.height;
    run_product(p, &job);
}

/* ---- Gradient of the weights ------------------------------------------------------------------ */

typedef struct weight_job {
    const conv2d *c;
    patches g;
    const real *x;  /* [count][height][width][in] */
    const real *dy; /* [count][out_height][out_width][out] */
    real *grad[2];  /* [kernel][kernel][in][out] of the whole batch, or of its halves */
    int64_t lines;  /* of outputs, over all images */
    bool by_batch;  /* tasks are halves of the batch instead of halves of the channels */
} weight_job;

/* One line of the kernel: grad[kernel * in][n] = patches^T[kernel * in][pixels] dy[pixels][n]. */
static void weight_task(const task *t) {
    const weight_job *job = t->job;
    const conv2d *c = job->c;
    const int tap = t->index / 2, half = t->index % 2;
    const int inner = c->shape.kernel * c->shape.in, out = c->shape.out;
    range lines = {0, job->lines}, columns = {0, out};
    if (job->by_batch)
        lines = chunk(job->lines, (job->lines + 1) / 2, half);
    else
        columns = chunk(out, (out + 1) / 2, half);
    real *grad = job->grad[half] + (int64_t)tap * inner * out + columns.begin;
    const int64_t tile = patches_lines(&job->g, 1);
    for (int64_t at = lines.begin; at < lines.end; at += tile) {
        range some = {at, at + tile < lines.end ? at + tile : lines.end};
        const int pixels = (int)(some.end - some.begin) * c->out_width;
        patches_gather(&job->g, job->x, some, tap, 1, t->scratch);
        gemm(inner, (int)(columns.end - columns.begin), pixels, transposed(t->scratch, inner),
             plain(job->dy + some.begin * c->out_width * out + columns.begin, out),
             at > lines.begin ? 1 : 0, grad, out);
    }
}

static void weight_gradient(const conv2d *c, const pass *p, int count, const real *x,
                            const real *dy) {
    real *whole = c->weight.grad;
    weight_job job = {.c = c, .g = forward_patches(c), .x = x, .dy = dy, .grad = {whole, whole}};
    job.lines = (int64_t)count * c->out_height;
    job.by_batch = c->shape.out < MANY_OUT && count > 1;
    if (job.by_batch)
        job.grad[1] = p->common;
    pass_run(p, 2 * c->shape.kernel, 1, weight_task, &job);
    if (job.by_batch)
        vector_add(whole, job.grad[1], c->weight.n);
}

void conv2d_backward(const conv2d *c, const pass *p, int count, const real *x, const real *dy,
                     real *dx) {
    if (c->bias.n) {
        column_sums(p, dy, (int64_t)count * c->out_height * c->out_width, c->shape.out,
                    c->bias.grad);
        pass_ready(p, &c->bias);
    }
    if (c->kernels)
        winograd_weight_gradient(c, p, count, x, dy);
    else
        weight_gradient(c, p, count, x, dy);
    pass_ready(p, &c->weight);
    if (dx && c->kernels)
        winograd_input_gradient(c, p, count, dy, dx);
    else if (dx)
        input_gradient(c, p, count, dy, dx);
}
