/* layer_activations.c - rectifier and Gaussian error linear unit; see layers.h */
#include <tgmath.h>

#include "layers/layers.h"
#include "layers/vector.h"

typedef struct job {
    const real *x; /* [n] that is read: gelu's x, or the rectifier's y */
    real *y;       /* [n] that is written: y, or dy that becomes dx */
} job;

enum { RELU_CHUNK = 65536, GELU_CHUNK = 8192 };

VECTOR static void rectify_task(const task *t) {
    const int64_t end = t->r.end;
    real *restrict x = ((const job *)t->job)->y;
    for (int64_t i = t->r.begin; i < end; i++)
        x[i] = x[i] > 0 ? x[i] : (x[i] == x[i] ? 0 : x[i]); /* NaN stays, to be seen */
}

VECTOR static void mask_task(const task *t) {
    const int64_t end = t->r.end;
    const real *restrict y = ((const job *)t->job)->x;
    real *restrict dy = ((const job *)t->job)->y;
    for (int64_t i = t->r.begin; i < end; i++)
        dy[i] = y[i] > 0 ? dy[i] : 0;
}

void relu_forward(const pass *p, int64_t n, real *x) {
    pass_run(p, n, RELU_CHUNK, rectify_task, &(job){.y = x});
}

void relu_backward(const pass *p, int64_t n, const real *y, real *dy) {
    pass_run(p, n, RELU_CHUNK, mask_task, &(job){y, dy});
}

/* The share of a normal distribution below x. */
static real below(real x) {
    const real root_half = (real)0.70710678118654752440;
    return (1 + erf(x * root_half)) / 2;
}

static void gelu_task(const task *t) {
    const job *j = t->job;
    for (int64_t i = t->r.begin; i < t->r.end; i++)
        j->y[i] = j->x[i] * below(j->x[i]);
}

static void gelu_backward_task(const task *t) {
    const job *j = t->job;
    const real peak = (real)0.39894228040143267794; /* 1 / sqrt(2 pi) */
    for (int64_t i = t->r.begin; i < t->r.end; i++) {
        real x = j->x[i];
        j->y[i] *= below(x) + x * peak * exp(-x * x / 2);
    }
}

void gelu_forward(const pass *p, int64_t n, const real *x, real *y) {
    pass_run(p, n, GELU_CHUNK, gelu_task, &(job){x, y});
}

void gelu_backward(const pass *p, int64_t n, const real *x, real *dy) {
    pass_run(p, n, GELU_CHUNK, gelu_backward_task, &(job){x, dy});
}
