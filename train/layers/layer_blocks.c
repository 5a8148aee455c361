/* layer_blocks.c - blocks of layers that models repeat; see layers.h */
#include <assert.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

void conv_block_create(conv_block *b, layout *to, const char *name, int max_batch,
                       conv2d_shape shape, bool rectify) {
    conv2d_create(&b->conv, to, name_part("%s.conv", name).text, shape);
    batch_norm_create(&b->norm, to, name_part("%s.norm", name).text, shape.out, rectify);
    b->pixels = (int64_t)b->conv.out_height * b->conv.out_width;
    b->sums = layout_reals(to, max_batch * b->pixels * shape.out);
    b->y = layout_reals(to, max_batch * b->pixels * shape.out);
}

const real *conv_block_forward(const conv_block *b, const pass *p, int count, const real *x) {
    conv2d_forward(&b->conv, p, count, x, b->sums);
    batch_norm_forward(&b->norm, p, count * b->pixels, b->sums, b->y);
    return b->y;
}

void conv_block_backward(const conv_block *b, const pass *p, int count, const real *x, real *dy,
                         real *dx) {
    batch_norm_backward(&b->norm, p, count * b->pixels, b->sums, dy);
    conv2d_backward(&b->conv, p, count, x, dy, dx);
}

typedef struct residual_job {
    residual r;
    const real *a, *x; /* forward */
    const real *g;     /* backward */
    real *y, *dx;      /* forward; backward */
} residual_job;

VECTOR static void join_pixel(real *y, const real *a, const real *x, int64_t in, int64_t out) {
    for (int64_t c = 0; c < in; c++) {
        real value = a[c] + x[c];
        y[c] = value <= 0 ? 0 : value; /* NaN stays, to be seen */
    }
    for (int64_t c = in; c < out; c++)
        y[c] = a[c] <= 0 ? 0 : a[c];
}

static int64_t outputs(residual r) {
    return (int64_t)(r.height / r.stride) * (r.width / r.stride) * r.out;
}

/* A task is one image. */
static void residual_task(const task *t) {
    const residual_job *job = t->job;
    const residual r = job->r;
    const int64_t image = (int64_t)t->index * r.height * r.width * r.in;
    int64_t out = t->index * outputs(r);
    for (int i = 0; i < r.height / r.stride; i++) {
        for (int j = 0; j < r.width / r.stride; j++) {
            const int64_t at = image + ((int64_t)i * r.width + j) * r.stride * r.in;
            if (job->dx)
                vector_add(job->dx + at, job->g + out, r.in);
            else
                join_pixel(job->y + out, job->a + out, job->x + at, r.in, r.out);
            out += r.out;
        }
    }
}

void residual_forward(residual r, const pass *p, int count, const real *a, const real *x, real *y) {
    assert(r.out >= r.in);
    pass_run(p, count, 1, residual_task, &(residual_job){.r = r, .a = a, .x = x, .y = y});
}

void residual_backward(residual r, const pass *p, int count, const real *y, real *dy, real *kept) {
    const int64_t n = count * outputs(r);
    relu_backward(p, n, y, dy);
    memcpy(kept, dy, (size_t)n * sizeof *kept);
}

void residual_shortcut(residual r, const pass *p, int count, const real *g, real *dx) {
    pass_run(p, count, 1, residual_task, &(residual_job){.r = r, .g = g, .dx = dx});
}

void encoder_create(encoder *e, layout *to, const char *name, encoder_shape shape, double bound) {
    const int rows = shape.max_batch * shape.length, width = shape.width, inner = shape.inner;
    *e = (encoder){.width = width, .inner = inner, .length = shape.length};
    attention_create(&e->attend, to, name_part("%s.attention", name).text, shape.max_batch,
                     shape.length, width, shape.heads, bound);
    layer_norm_create(&e->norm1, to, name_part("%s.norm1", name).text, rows, width);
    linear_create(&e->expand, to, name_part("%s.expand", name).text, width, inner, bound, true);
    linear_create(&e->contract, to, name_part("%s.contract", name).text, inner, width, bound, true);
    layer_norm_create(&e->norm2, to, name_part("%s.norm2", name).text, rows, width);
    e->middle = layout_reals(to, (int64_t)rows * width);
    e->expanded = layout_reals(to, (int64_t)rows * inner);
    e->bent = layout_reals(to, (int64_t)rows * inner);
    e->y = layout_reals(to, (int64_t)rows * width);
}

const real *encoder_forward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                            const real *x) {
    const int rows = count * e->length;
    const int64_t n = (int64_t)rows * e->width;
    attention_forward(&e->attend, p, count, lengths, x, e->middle);
    vector_add(e->middle, x, n);
    layer_norm_forward(&e->norm1, p, rows, e->middle, e->middle);
    linear_forward(&e->expand, p, rows, e->middle, e->expanded);
    gelu_forward(p, (int64_t)rows * e->inner, e->expanded, e->bent);
    linear_forward(&e->contract, p, rows, e->bent, e->y);
    vector_add(e->y, e->middle, n);
    layer_norm_forward(&e->norm2, p, rows, e->y, e->y);
    return e->y;
}

void encoder_backward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                      const real *x, real *dy, real *temporary) {
    const int rows = count * e->length;
    const int64_t n = (int64_t)rows * e->width;
    layer_norm_backward(&e->norm2, p, rows, dy);
    linear_backward(&e->contract, p, rows, e->bent, dy, e->bent);
    gelu_backward(p, (int64_t)rows * e->inner, e->expanded, e->bent);
    linear_backward(&e->expand, p, rows, e->middle, e->bent, temporary);
    vector_add(dy, temporary, n); /* the shortcut's gradient and the layers' */
    layer_norm_backward(&e->norm1, p, rows, dy);
    attention_backward(&e->attend, p, count, lengths, x, dy, temporary);
    vector_add(dy, temporary, n);
}
