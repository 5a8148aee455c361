/* layer_attention.c - multi-head self-attention; a task is one head of one sequence
 *
 * q, k, v of a head are columns of `joined`, so products read and write them in place. Backward, the
 * gradients of q, k and v overwrite them: each is needed until the last product of its head only.
 * See layers.h.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

void attention_create(attention *a, layout *to, const char *name, int max_batch, int length,
                      int width, int heads, double bound) {
    assert(width % heads == 0);
    const int64_t rows = (int64_t)max_batch * length;
    const int64_t depth = width / heads;
    *a = (attention){.width = width, .heads = heads, .length = length};
    linear_create(&a->qkv, to, name_part("%s.qkv", name).text, width, 3 * width, bound, true);
    linear_create(&a->out, to, name_part("%s.out", name).text, width, width, bound, true);
    a->joined = layout_reals(to, rows * 3 * width);
    a->weights = layout_reals(to, rows * heads * length);
    a->mixed = layout_reals(to, rows * width);
    /* dscore, and the gradients of q and k until both are used up */
    layout_scratch(to, (size_t)(length * length + 2 * length * depth) * sizeof(real));
}

typedef struct head_job {
    const attention *a;
    const int32_t *lengths; /* [count], or NULL */
    real *mixed;            /* [count * length][width] result, or its gradient */
} head_job;

/* One head of one sequence. */
typedef struct head {
    real *q, *k, *v; /* [length][depth] each, rows 3 * width apart */
    real *weights;   /* [length][length] */
    real *mixed;     /* [length][depth], rows width apart */
    int to;          /* positions before the padding */
} head;

static head find_head(const task *t) {
    const head_job *job = t->job;
    const attention *a = job->a;
    const int sequence = t->index / a->heads, number = t->index % a->heads,
              depth = a->width / a->heads;
    const int64_t row = (int64_t)sequence * a->length;
    head h = {.q = a->joined + row * 3 * a->width + (int64_t)number * depth,
              .weights = a->weights + (int64_t)t->index * a->length * a->length,
              .mixed = job->mixed + row * a->width + (int64_t)number * depth,
              .to = job->lengths ? job->lengths[sequence] : a->length};
    h.k = h.q + a->width;
    h.v = h.k + a->width;
    return h;
}

VECTOR static void softmax_row(real *restrict x, int64_t n, real scale) {
    real most = x[0];
    for (int64_t t = 1; t < n; t++)
        most = x[t] > most ? x[t] : most;
    for (int64_t t = 0; t < n; t++)
        x[t] = exponential((x[t] - most) * scale);
    real share = (real)(1.0 / lanes_sum(x, n));
    for (int64_t t = 0; t < n; t++)
        x[t] *= share;
}

static real score_scale(const attention *a) {
    return (real)(1.0 / sqrt((double)a->width / a->heads));
}

static void forward_task(const task *t) {
    const attention *a = ((const head_job *)t->job)->a;
    const int length = a->length, depth = a->width / a->heads, ld = 3 * a->width;
    head h = find_head(t);
    gemm(length, h.to, depth, plain(h.q, ld), transposed(h.k, ld), 0, h.weights, length);
    for (int s = 0; s < length; s++)
        softmax_row(h.weights + (int64_t)s * length, h.to, score_scale(a));
    gemm(length, depth, h.to, plain(h.weights, length), plain(h.v, ld), 0, h.mixed, a->width);
}

void attention_forward(const attention *a, const pass *p, int count, const int32_t *lengths,
                       const real *x, real *y) {
    linear_forward(&a->qkv, p, count * a->length, x, a->joined);
    head_job job = {.a = a, .lengths = lengths, .mixed = a->mixed};
    pass_run(p, count * a->heads, 1, forward_task, &job);
    linear_forward(&a->out, p, count * a->length, a->mixed, y);
}

/* dweight[n] becomes dscore, the scale of scores included. */
VECTOR static void softmax_back(real *restrict d, const real *restrict weight, int64_t n,
                                real scale) {
    const real mean = (real)lanes_dot(d, weight, n);
    for (int64_t t = 0; t < n; t++)
        d[t] = weight[t] * (d[t] - mean) * scale;
}

static void copy_columns(const real *from, int rows, int columns, real *to, int ld) {
    for (int i = 0; i < rows; i++)
        memcpy(to + (int64_t)i * ld, from + (int64_t)i * columns, (size_t)columns * sizeof *to);
}

/* Padding is looked at by nobody: no gradient. */
static void clear_columns(real *to, int from, int rows, int columns, int ld) {
    for (int i = from; i < rows; i++)
        memset(to + (int64_t)i * ld, 0, (size_t)columns * sizeof *to);
}

static void backward_task(const task *t) {
    const attention *a = ((const head_job *)t->job)->a;
    const int length = a->length, depth = a->width / a->heads, ld = 3 * a->width;
    head h = find_head(t);
    real *dscore = t->scratch; /* [length][length] */
    real *dq = dscore + (int64_t)length * length, *dk = dq + (int64_t)length * depth;
    gemm(length, h.to, depth, plain(h.mixed, a->width), transposed(h.v, ld), 0, dscore, length);
    gemm(h.to, depth, length, transposed(h.weights, length), plain(h.mixed, a->width), 0, h.v, ld);
    for (int s = 0; s < length; s++)
        softmax_back(dscore + (int64_t)s * length, h.weights + (int64_t)s * length, h.to,
                     score_scale(a));
    gemm(length, depth, h.to, plain(dscore, length), plain(h.k, ld), 0, dq, depth);
    gemm(h.to, depth, length, transposed(dscore, length), plain(h.q, ld), 0, dk, depth);
    copy_columns(dq, length, depth, h.q, ld);
    copy_columns(dk, h.to, depth, h.k, ld);
    clear_columns(h.k, h.to, length, depth, ld);
    clear_columns(h.v, h.to, length, depth, ld);
}

void attention_backward(const attention *a, const pass *p, int count, const int32_t *lengths,
                        const real *x, const real *dy, real *dx) {
    const int rows = count * a->length;
    linear_backward(&a->out, p, rows, a->mixed, dy, dx);
    head_job job = {.a = a, .lengths = lengths, .mixed = dx};
    pass_run(p, count * a->heads, 1, backward_task, &job);
    linear_backward(&a->qkv, p, rows, x, a->joined, dx);
}
