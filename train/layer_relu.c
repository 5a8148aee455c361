/* layer_relu.c - rectifier; see layer_relu.h */
#include "layer_relu.h"

#include "vector.h"

enum { CHUNK = 65536 };

typedef struct relu_job {
    real *x;       /* [n] what is changed */
    const real *y; /* [n] backward: output of the forward pass */
    int64_t n;
} relu_job;

VECTOR static void rectify(real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 0 ? x[i] : (x[i] == x[i] ? 0 : x[i]); /* NaN stays, to be seen */
}

VECTOR static void mask(real *restrict dy, const real *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dy[i] = y[i] > 0 ? dy[i] : 0;
}

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const relu_job *job = context;
    range r = pass_chunk(job->n, CHUNK, task);
    rectify(job->x + r.begin, r.end - r.begin);
}

static void backward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const relu_job *job = context;
    range r = pass_chunk(job->n, CHUNK, task);
    mask(job->x + r.begin, job->y + r.begin, r.end - r.begin);
}

void relu_forward(const pass *p, int64_t n, real *x) {
    relu_job job = {.x = x, .n = n};
    team_run(p->team, pass_chunks(n, CHUNK), forward_task, &job);
}

void relu_backward(const pass *p, int64_t n, const real *y, real *dy) {
    relu_job job = {.x = dy, .y = y, .n = n};
    team_run(p->team, pass_chunks(n, CHUNK), backward_task, &job);
}
