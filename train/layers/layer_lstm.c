/* layer_lstm.c - long short-term memory; see layers.h */
#include <math.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

enum { CHUNK = 8 }; /* sequences of a task */

void lstm_create(lstm *l, layout *to, const char *name, int max_batch, int length, int in,
                 int width) {
    const double bound = 1.0 / sqrt(width); /* as is usual for LSTMs */
    const int64_t step = (int64_t)max_batch * width;
    *l = (lstm){.in = in, .width = width, .length = length};
    l->x_weight = layout_param(to, name, "x_weight", (int64_t)in * 4 * width, INIT_UNIFORM, bound);
    l->h_weight =
        layout_param(to, name, "h_weight", (int64_t)width * 4 * width, INIT_UNIFORM, bound);
    l->bias = layout_param(to, name, "bias", (int64_t)4 * width, INIT_ZERO, 0);
    for (int j = 0; l->bias.value && j < width; j++)
        l->bias.value[width + j] = 1;
    l->gates = layout_reals(to, length * step * 4);
    l->c = layout_reals(to, (length + 1) * step);
    l->h = layout_reals(to, (length + 1) * step);
    l->dh = layout_reals(to, step);
    l->dc = layout_reals(to, step);
    layout_sums(to, 4 * width);
}

static inline real sigmoid(real x) {
    return 1 / (1 + exponential(-x));
}

static inline real tangent(real x) { /* tanh */
    return 2 / (1 + exponential(-2 * x)) - 1;
}

/* a[4][n] becomes the gates; c and h of this time from the c before. */
VECTOR static void cell_forward(real *restrict a, const real *restrict before, real *restrict c,
                                real *restrict h, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        real i = sigmoid(a[j]), f = sigmoid(a[n + j]);
        real g = tangent(a[2 * n + j]), o = sigmoid(a[3 * n + j]);
        c[j] = f * before[j] + i * g;
        h[j] = o * tangent(c[j]);
        a[j] = i;
        a[n + j] = f;
        a[2 * n + j] = g;
        a[3 * n + j] = o;
    }
}

/* Gates a[4][n] become da; dc[n] goes from this time to the one before. */
VECTOR static void cell_backward(real *restrict a, const real *restrict before,
                                 const real *restrict c, const real *restrict dh, real *restrict dc,
                                 int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        real i = a[j], f = a[n + j], g = a[2 * n + j], o = a[3 * n + j];
        real bent = tangent(c[j]);
        real dcell = dh[j] * o * (1 - bent * bent) + dc[j];
        a[j] = dcell * g * i * (1 - i);
        a[n + j] = dcell * before[j] * f * (1 - f);
        a[2 * n + j] = dcell * i * (1 - g * g);
        a[3 * n + j] = dh[j] * bent * o * (1 - o);
        dc[j] = dcell * f;
    }
}

typedef struct cell_job {
    const lstm *l;
    int time, count;
    bool backward;
} cell_job;

static void cell_task(const task *t) {
    const cell_job *job = t->job;
    const lstm *l = job->l;
    const int64_t n = l->width;
    for (int64_t s = t->r.begin; s < t->r.end; s++) {
        int64_t before = (job->time * (int64_t)job->count + s) * n, now = before + job->count * n;
        if (job->backward)
            cell_backward(l->gates + before * 4, l->c + before, l->c + now, l->dh + s * n,
                          l->dc + s * n, n);
        else
            cell_forward(l->gates + before * 4, l->c + before, l->c + now, l->h + now, n);
    }
}

const real *lstm_forward(const lstm *l, const pass *p, int count, const real *x) {
    const int wide = 4 * l->width, rows = l->length * count;
    const int64_t step = (int64_t)count * l->width;
    for (int i = 0; i < rows; i++)
        memcpy(l->gates + (int64_t)i * wide, l->bias.value, (size_t)wide * sizeof(real));
    product(p, rows, wide, l->in, plain(x, l->in), plain(l->x_weight.value, wide), 1, l->gates,
            wide);
    memset(l->c, 0, (size_t)step * sizeof(real));
    memset(l->h, 0, (size_t)step * sizeof(real));
    for (int t = 0; t < l->length; t++) {
        product(p, count, wide, l->width, plain(l->h + t * step, l->width),
                plain(l->h_weight.value, wide), 1, l->gates + t * step * 4, wide);
        pass_run(p, count, CHUNK, cell_task, &(cell_job){l, t, count, false});
    }
    return l->h + step;
}

void lstm_backward(const lstm *l, const pass *p, int count, const real *x, const real *dy,
                   real *dx) {
    const int wide = 4 * l->width, rows = l->length * count;
    const int64_t step = (int64_t)count * l->width;
    memset(l->dc, 0, (size_t)step * sizeof(real));
    for (int t = l->length - 1; t >= 0; t--) {
        memcpy(l->dh, dy + t * step, (size_t)step * sizeof(real));
        if (t + 1 < l->length)
            product(p, count, l->width, wide, plain(l->gates + (t + 1) * step * 4, wide),
                    transposed(l->h_weight.value, wide), 1, l->dh, l->width);
        pass_run(p, count, CHUNK, cell_task, &(cell_job){l, t, count, true});
    }
    const real *da = l->gates; /* [rows][4][width] */
    column_sums(p, da, rows, wide, l->bias.grad);
    pass_ready(p, &l->bias);
    product(p, l->width, wide, rows, transposed(l->h, l->width), plain(da, wide), 0,
            l->h_weight.grad, wide);
    pass_ready(p, &l->h_weight);
    product(p, l->in, wide, rows, transposed(x, l->in), plain(da, wide), 0, l->x_weight.grad, wide);
    pass_ready(p, &l->x_weight);
    product(p, rows, l->in, wide, plain(da, wide), transposed(l->x_weight.value, wide), 0, dx,
            l->in);
}
