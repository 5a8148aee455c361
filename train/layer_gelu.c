/* layer_gelu.c - Gaussian error linear unit; see layer_gelu.h */
#include "layer_gelu.h"

#include <tgmath.h>

enum { CHUNK = 8192 };

typedef struct gelu_job {
    const real *x; /* [n] */
    real *y;       /* [n] y, or dy that becomes dx */
    int64_t n;
} gelu_job;

/* The share of a normal distribution below x. */
static real below(real x) {
    const real root_half = (real)0.70710678118654752440;
    return (1 + erf(x * root_half)) / 2;
}

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const gelu_job *job = context;
    range r = pass_chunk(job->n, CHUNK, task);
    for (int64_t i = r.begin; i < r.end; i++)
        job->y[i] = job->x[i] * below(job->x[i]);
}

static void backward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const gelu_job *job = context;
    const real peak = (real)0.39894228040143267794; /* 1 / sqrt(2 pi) */
    range r = pass_chunk(job->n, CHUNK, task);
    for (int64_t i = r.begin; i < r.end; i++) {
        real x = job->x[i];
        job->y[i] *= below(x) + x * peak * exp(-x * x / 2);
    }
}

void gelu_forward(const pass *p, int64_t n, const real *x, real *y) {
    gelu_job job = {.x = x, .y = y, .n = n};
    team_run(p->team, pass_chunks(n, CHUNK), forward_task, &job);
}

void gelu_backward(const pass *p, int64_t n, const real *x, real *dy) {
    gelu_job job = {.x = x, .y = dy, .n = n};
    team_run(p->team, pass_chunks(n, CHUNK), backward_task, &job);
}
