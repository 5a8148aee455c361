/* winograd.c - 3 x 3 convolutions by Winograd's minimal filtering: 4/9 of the products; see layers.h
 *
 * For stride 1, even sides and enough channels to make matrix products of. Rounding differs a little
 * from the direct sums (some units more in the last place), like that of any other order of summation.
 *
 * F(2x2, 3x3) of Lavin and Gray (2016): a 2 x 2 tile of outputs from the 4 x 4 inputs around it with
 * 16 products per pair of channels instead of 36:
 *
 *     y = A^T [ (G g G^T) . (B^T d B) ] A          d: 4 x 4 inputs, g: 3 x 3 kernel, . elementwise
 *
 *           1  0 -1  0           1    0    0              1  1  1  0
 *     B^T = 0  1  1  0      G = 1/2  1/2  1/2      A^T =  0  1 -1 -1
 *           0 -1  1  0          1/2 -1/2  1/2
 *           0  1  0 -1           0    0    1
 *
 * The elementwise products, summed over channels, are 16 matrix products. The gradient of the kernel
 * follows by transposing: dg = G^T [ (B^T d B) . (A dy A^T) ] G, summed over tiles.
 * A tensor of transforms is 16 planes [plane][tile][channel] or [plane][in][out].
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
#include "layers/layers.h"
#include "layers/vector.h"

enum {
    PLANES = 16,
    LEAST_CHANNELS = 16, /* below, patches win: products are too thin */
    MOST_CHANNELS = 1024,
    WIDE = 192 * 192, /* in * out from which the wide method is used */
    ROUND = 512,      /* tiles that go through the wide method together */
    STRIP = 16,       /* tiles of one task of its transforms */
    PARTS = 4,        /* of the tiles, in the narrow weight gradient */
    SPAN = 4096       /* kernels of one task of their transform */
};
#define NARROW_BYTES (512 * 1024) /* of transforms of one narrow task; see the top */

static int64_t length(range r) {
    return r.end - r.begin;
}

static int64_t kernels_of(const conv2d *c) {
    return (int64_t)c->shape.in * c->shape.out;
}

static bool is_wide(const conv2d *c) {
    return kernels_of(c) >= WIDE;
}

/* Tiles that a narrow task takes at once. */
static int64_t narrow_tiles(const conv2d *c) {
    int64_t tiles = NARROW_BYTES / (PLANES * (c->shape.in + c->shape.out) * (int64_t)sizeof(float));
    return tiles > STRIP ? tiles / STRIP * STRIP : STRIP;
}

bool winograd_create(conv2d *c, layout *to) {
    const conv2d_shape s = c->shape;
    if (s.kernel != 3 || s.stride != 1 || s.height % 2 != 0 || s.width % 2 != 0 ||
        s.in < LEAST_CHANNELS || s.out < LEAST_CHANNELS || s.in > MOST_CHANNELS ||
        s.out > MOST_CHANNELS)
        return false;
    c->kernels = layout_reals(to, PLANES * kernels_of(c));
    const size_t both = (size_t)(PLANES * (s.in + s.out)) * sizeof(real); /* of one tile */
    const size_t sums = (size_t)(PLANES * kernels_of(c)) * sizeof(real);
    if (is_wide(c)) {
        layout_common(to, ROUND * both + sums);
    } else {
        layout_scratch(to, (size_t)narrow_tiles(c) * both);
        layout_common(to, PARTS * sums);
    }
    return true;
}

/* Tiles that go through all stages together. */
typedef struct tile_round {
    range tiles;
    real *inputs;  /* [PLANES][tiles][from] */
    real *outputs; /* [PLANES][tiles][to] products; weight gradient: transforms of dy */
    real *sums;    /* weight gradient: [PLANES][in][out] */
    bool add;      /* to the sums of rounds before */
} tile_round;

/* Forward, input gradient or weight gradient. */
typedef struct job {
    const conv2d *c;
    int from, to;       /* channels: in and out; input gradient: out and in */
    bool back;          /* input gradient: the kernels turned by 180 degrees and transposed */
    const real *source; /* [count] images of `from` channels */
    const real *bias;   /* [to], or NULL */
    real *target;       /* [count] images of `to` channels; weight gradient: NULL */
    const real *dy;     /* weight gradient: [count] images of `to` channels */
    real *sums;         /* weight gradient: [PARTS, wide: 1][PLANES][in][out] */
    int64_t tiles;      /* of all images */
    tile_round now;     /* wide: the round at work */
} job;

/* ---- Transforms, vectorised over channels -------------------------------------------------------- */

/* Where a tile stands. */
typedef struct spot {
    int64_t image;    /* offset of its image */
    int line, column; /* of its first pixel */
    int64_t at;       /* offset of that pixel */
} spot;

static int64_t tiles_each(const conv2d_shape *s) {
    return (int64_t)(s->height / 2) * (s->width / 2);
}

static spot find_spot(const conv2d_shape *s, int channels, int64_t tile) {
    const int64_t each = tiles_each(s), within = tile % each;
    const int across = s->width / 2;
    spot found = {.image = tile / each * s->height * s->width * channels,
                  .line = (int)(within / across) * 2,
                  .column = (int)(within % across) * 2};
    found.at = found.image + ((int64_t)found.line * s->width + found.column) * channels;
    return found;
}

VECTOR static void input_tile(const real *const d[PLANES], int64_t n, real *to, int64_t plane) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        real t[PLANES];
        for (int j = 0; j < 4; j++) { /* B^T d */
            real d0 = d[j][c], d1 = d[4 + j][c], d2 = d[8 + j][c], d3 = d[12 + j][c];
            t[j] = d0 - d2;
            t[4 + j] = d1 + d2;
            t[8 + j] = d2 - d1;
            t[12 + j] = d1 - d3;
        }
        for (int i = 0; i < PLANES; i += 4) { /* times B */
            to[i * plane + c] = t[i] - t[i + 2];
            to[(i + 1) * plane + c] = t[i + 1] + t[i + 2];
            to[(i + 2) * plane + c] = t[i + 2] - t[i + 1];
            to[(i + 3) * plane + c] = t[i + 1] - t[i + 3];
        }
    }
}

/* B^T d B of tiles; planes are `plane` apart. */
static void transform_inputs(const job *j, range tiles, real *to, int64_t plane) {
    static const real zeros[MOST_CHANNELS];
    const conv2d_shape *shape = &j->c->shape;
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const spot s = find_spot(shape, j->from, tile);
        const real *d[PLANES];
        for (int k = 0; k < PLANES; k++) {
            const int line = s.line - 1 + k / 4, column = s.column - 1 + k % 4;
            const bool inside =
                line >= 0 && line < shape->height && column >= 0 && column < shape->width;
            const int64_t pixel = (int64_t)line * shape->width + column;
            d[k] = inside ? j->source + s.image + pixel * j->from : zeros;
        }
        input_tile(d, j->from, to, plane);
        to += j->from;
    }
}

VECTOR static void output_tile(const real *m, int64_t plane, const real *bias, int64_t n, real *y,
                               real *below) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        real t[8];
        for (int j = 0; j < 4; j++) { /* A^T m */
            real m0 = m[j * plane + c], m1 = m[(4 + j) * plane + c];
            real m2 = m[(8 + j) * plane + c], m3 = m[(12 + j) * plane + c];
            t[j] = m0 + m1 + m2;
            t[4 + j] = m1 - m2 - m3;
        }
        const real add = bias ? bias[c] : 0;
        y[c] = t[0] + t[1] + t[2] + add;
        y[n + c] = t[1] - t[2] - t[3] + add;
        below[c] = t[4] + t[5] + t[6] + add;
        below[n + c] = t[5] - t[6] - t[7] + add;
    }
}

/* A^T m A plus bias into the tiles of the target. */
static void transform_outputs(const job *j, range tiles, const real *from, int64_t plane) {
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        real *y = j->target + find_spot(&j->c->shape, j->to, tile).at;
        output_tile(from, plane, j->bias, j->to, y, y + (int64_t)j->c->shape.width * j->to);
        from += j->to;
    }
}

VECTOR static void gradient_tile(const real *dy, const real *below, int64_t n, real *to,
                                 int64_t plane) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        const real a = dy[c], b = dy[n + c], e = below[c], f = below[n + c];
        const real left[4] = {a, a + e, a - e, -e}, right[4] = {b, b + f, b - f, -f}; /* A dy */
        for (int i = 0; i < 4; i++) { /* times A^T */
            to[4 * i * plane + c] = left[i];
            to[(4 * i + 1) * plane + c] = left[i] + right[i];
            to[(4 * i + 2) * plane + c] = left[i] - right[i];
            to[(4 * i + 3) * plane + c] = -right[i];
        }
    }
}

/* A dy A^T of tiles. */
static void transform_gradients(const job *j, range tiles, real *to, int64_t plane) {
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const real *dy = j->dy + find_spot(&j->c->shape, j->to, tile).at;
        gradient_tile(dy, dy + (int64_t)j->c->shape.width * j->to, j->to, to, plane);
        to += j->to;
    }
}

/* G g G^T of kernels [9][n] at positions r; planes are n apart. */
VECTOR static void transform_kernels(const real *kernels, int64_t n, range r, real *to) {
    const real half = (real)0.5;
    INDEPENDENT
    for (int64_t c = r.begin; c < r.end; c++) {
        real t[12];
        for (int j = 0; j < 3; j++) { /* G g */
            real g0 = kernels[j * n + c], g1 = kernels[(3 + j) * n + c];
            real g2 = kernels[(6 + j) * n + c];
            t[j] = g0;
            t[3 + j] = half * (g0 + g1 + g2);
            t[6 + j] = half * (g0 - g1 + g2);
            t[9 + j] = g2;
        }
        for (int i = 0; i < 4; i++) { /* times G^T */
            real g0 = t[3 * i], g1 = t[3 * i + 1], g2 = t[3 * i + 2];
            to[4 * i * n + c] = g0;
            to[(4 * i + 1) * n + c] = half * (g0 + g1 + g2);
            to[(4 * i + 2) * n + c] = half * (g0 - g1 + g2);
            to[(4 * i + 3) * n + c] = g2;
        }
    }
}

/* G^T u G of them. */
VECTOR static void transform_sums(const real *from, int64_t n, range r, real *kernels) {
    const real half = (real)0.5;
    INDEPENDENT
    for (int64_t c = r.begin; c < r.end; c++) {
        real t[12];
        for (int j = 0; j < 4; j++) { /* G^T u */
            real u0 = from[j * n + c], u1 = from[(4 + j) * n + c];
            real u2 = from[(8 + j) * n + c], u3 = from[(12 + j) * n + c];
            t[j] = u0 + half * (u1 + u2);
            t[4 + j] = half * (u1 - u2);
            t[8 + j] = half * (u1 + u2) + u3;
        }
        for (int i = 0; i < 3; i++) { /* times G */
            real u0 = t[4 * i], u1 = t[4 * i + 1], u2 = t[4 * i + 2], u3 = t[4 * i + 3];
            kernels[3 * i * n + c] = u0 + half * (u1 + u2);
            kernels[(3 * i + 1) * n + c] = half * (u1 - u2);
            kernels[(3 * i + 2) * n + c] = half * (u1 + u2) + u3;
        }
    }
}

/* ---- The stages of a round ----------------------------------------------------------------------- */

/* Tiles r, counted from the first of the round. */
static void transform(const job *j, const tile_round *o, range r) {
    const int64_t n = length(o->tiles);
    const range tiles = {o->tiles.begin + r.begin, o->tiles.begin + r.end};
    transform_inputs(j, tiles, o->inputs + r.begin * j->from, n * j->from);
    if (j->dy)
        transform_gradients(j, tiles, o->outputs + r.begin * j->to, n * j->to);
}

/* Turning a kernel by 180 degrees swaps the first and last row and column of its transform. */
static int turned(int plane) {
    static const int swap[4] = {3, 1, 2, 0};
    return swap[plane / 4] * 4 + swap[plane % 4];
}

/* One plane: outputs[n][to] = inputs[n][from] kernels, or sums[in][out] (+)= inputs^T outputs. */
static void multiply(const job *j, const tile_round *o, int plane) {
    const int64_t kernels = kernels_of(j->c);
    const int n = (int)length(o->tiles), out = j->c->shape.out;
    const real *inputs = o->inputs + (int64_t)plane * n * j->from;
    real *outputs = o->outputs + (int64_t)plane * n * j->to;
    if (o->sums) {
        gemm(j->from, out, n, transposed(inputs, j->from), plain(outputs, out), o->add ? 1 : 0,
             o->sums + plane * kernels, out);
        return;
    }
    const real *kernel = j->c->kernels + kernels * (j->back ? turned(plane) : plane);
    gemm(n, j->to, j->from, plain(inputs, j->from),
         j->back ? transposed(kernel, out) : plain(kernel, out), 0, outputs, j->to);
}

static void finish(const job *j, const tile_round *o, range r) {
    const range tiles = {o->tiles.begin + r.begin, o->tiles.begin + r.end};
    transform_outputs(j, tiles, o->outputs + r.begin * j->to, length(o->tiles) * j->to);
}

static tile_round make_round(const job *j, range tiles, real *memory, real *sums, bool add) {
    return (tile_round){tiles, memory, memory + PLANES * length(tiles) * j->from, sums, add};
}

/* ---- Narrow: a task takes its tiles through all stages ------------------------------------------- */

static void narrow_round(const job *j, tile_round o) {
    const range all = {0, length(o.tiles)};
    transform(j, &o, all);
    for (int k = 0; k < PLANES; k++)
        multiply(j, &o, k);
    if (j->target)
        finish(j, &o, all);
}

static void narrow_task(const task *t) {
    narrow_round(t->job, make_round(t->job, t->r, t->scratch, NULL, false));
}

/* One part of the tiles, some tiles at a time. */
static void narrow_weight_task(const task *t) {
    const job *j = t->job;
    range part = chunk(j->tiles, (j->tiles + PARTS - 1) / PARTS, t->index);
    real *sums = j->sums + t->index * PLANES * kernels_of(j->c);
    const int64_t most = narrow_tiles(j->c);
    int64_t at = part.begin;
    do { /* once even for an empty part: its sum is 0 */
        range r = {at, at + most < part.end ? at + most : part.end};
        r.end = r.end > r.begin ? r.end : r.begin;
        narrow_round(j, make_round(j, r, t->scratch, sums, at > part.begin));
        at += most;
    } while (at < part.end);
}

/* ---- Wide: tasks are parts of a stage ------------------------------------------------------------ */

static void transform_task(const task *t) {
    const job *j = t->job;
    transform(j, &j->now, t->r);
}

static void multiply_task(const task *t) {
    const job *j = t->job;
    multiply(j, &j->now, t->index);
}

static void finish_task(const task *t) {
    const job *j = t->job;
    finish(j, &j->now, t->r);
}

static void run_wide(const pass *p, job *j) {
    real *memory = j->sums ? j->sums + PLANES * kernels_of(j->c) : p->common;
    for (int64_t at = 0; at < j->tiles; at += ROUND) {
        j->now = make_round(j, chunk(j->tiles, ROUND, at / ROUND), memory, j->sums, at > 0);
        const int64_t n = length(j->now.tiles);
        pass_run(p, n, STRIP, transform_task, j);
        pass_run(p, PLANES, 1, multiply_task, j);
        if (j->target)
            pass_run(p, n, STRIP, finish_task, j);
    }
}

/* ---- The three results --------------------------------------------------------------------------- */

static void kernels_task(const task *t) {
    const conv2d *c = t->job;
    transform_kernels(c->weight.value, kernels_of(c), t->r, c->kernels);
}

static void run_images(const pass *p, job *j) {
    if (is_wide(j->c))
        run_wide(p, j);
    else
        pass_run(p, j->tiles, narrow_tiles(j->c), narrow_task, j);
}

void winograd_forward(const conv2d *c, const pass *p, int count, const real *x, real *y) {
    pass_run(p, kernels_of(c), SPAN, kernels_task, c);
    job j = {c, c->shape.in, c->shape.out, .source = x, .target = y};
    j.bias = c->bias.n ? c->bias.value : NULL;
    j.tiles = count * tiles_each(&c->shape);
    run_images(p, &j);
}

void winograd_input_gradient(const conv2d *c, const pass *p, int count, const real *dy, real *dx) {
    job j = {c, c->shape.out, c->shape.in, .back = true, .source = dy, .target = dx};
    j.tiles = count * tiles_each(&c->shape);
    run_images(p, &j);
}

/* Adds up the parts' sums in the first, then transforms them. */
static void sums_task(const task *t) {
    const job *j = t->job;
    const int64_t n = kernels_of(j->c);
    for (int part = 1; part < PARTS && !is_wide(j->c); part++) {
        for (int k = 0; k < PLANES; k++) {
            real *sum = j->sums + k * n + t->r.begin;
            vector_add(sum, sum + part * PLANES * n, length(t->r));
        }
    }
    transform_sums(j->sums, n, t->r, j->c->weight.grad);
}

void winograd_weight_gradient(const conv2d *c, const pass *p, int count, const real *x,
                              const real *dy) {
    job j = {c, c->shape.in, c->shape.out, .source = x, .dy = dy, .sums = p->common};
    j.tiles = count * tiles_each(&c->shape);
    if (is_wide(c))
        run_wide(p, &j);
    else
        pass_run(p, PARTS, 1, narrow_weight_task, &j);
    pass_run(p, kernels_of(c), SPAN, sums_task, &j);
}
