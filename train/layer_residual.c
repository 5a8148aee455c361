/* layer_residual.c - shortcut and rectifier; a task is one image. See layer_residual.h */
#include "layer_residual.h"

#include <string.h>

#include "layer_relu.h"
#include "vector.h"

typedef struct residual_job {
    residual r;
    const real *a; /* forward */
    const real *x; /* forward */
    const real *g; /* backward */
    real *to;      /* y, or dx */
} residual_job;

VECTOR static void join_pixel(real *y, const real *a, const real *x, int64_t in, int64_t out) {
    for (int64_t c = 0; c < in; c++) {
        real value = a[c] + x[c];
        y[c] = value <= 0 ? 0 : value; /* NaN stays, to be seen */
    }
    for (int64_t c = in; c < out; c++)
        y[c] = a[c] <= 0 ? 0 : a[c];
}

/* Pixel (i, j) of the smaller image in an image of x. */
static int64_t place(residual r, int i, int j) {
    return ((int64_t)i * r.stride * r.width + (int64_t)j * r.stride) * r.in;
}

static int64_t outputs(residual r) {
    return (int64_t)(r.height / r.stride) * (r.width / r.stride) * r.out;
}

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const residual_job *job = context;
    const residual r = job->r;
    const real *x = job->x + (int64_t)task * r.height * r.width * r.in;
    int64_t at = task * outputs(r);
    for (int i = 0; i < r.height / r.stride; i++) {
        for (int j = 0; j < r.width / r.stride; j++) {
            join_pixel(job->to + at, job->a + at, x + place(r, i, j), r.in, r.out);
            at += r.out;
        }
    }
}

static void shortcut_task(void *context, int task, void *scratch) {
    (void)scratch;
    const residual_job *job = context;
    const residual r = job->r;
    real *dx = job->to + (int64_t)task * r.height * r.width * r.in;
    const real *g = job->g + task * outputs(r);
    for (int i = 0; i < r.height / r.stride; i++) {
        for (int j = 0; j < r.width / r.stride; j++) {
            vector_add(dx + place(r, i, j), g, r.in);
            g += r.out;
        }
    }
}

void residual_forward(residual r, const pass *p, int count, const real *a, const real *x, real *y) {
    residual_job job = {.r = r, .a = a, .x = x, .to = y};
    team_run(p->team, count, forward_task, &job);
}

void residual_backward(residual r, const pass *p, int count, const real *y, real *dy, real *kept) {
    const int64_t n = count * outputs(r);
    relu_backward(p, n, y, dy);
    memcpy(kept, dy, (size_t)n * sizeof *kept);
}

void residual_shortcut(residual r, const pass *p, int count, const real *g, real *dx) {
    residual_job job = {.r = r, .g = g, .to = dx};
    team_run(p->team, count, shortcut_task, &job);
}
