/* layer_avgpool.c - global average pooling; a task is one image. See layer_avgpool.h */
#include "layer_avgpool.h"

typedef struct pool_job {
    avgpool a;
    const real *from;
    real *to;
} pool_job;

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const pool_job *job = context;
    const int64_t n = job->a.channels, pixels = job->a.pixels;
    const real *x = job->from + task * pixels * n;
    real *y = job->to + task * n;
    for (int64_t c = 0; c < n; c++) {
        double sum = 0;
        for (int64_t i = 0; i < pixels; i++)
            sum += (double)x[i * n + c];
        y[c] = (real)(sum / (double)pixels);
    }
}

static void backward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const pool_job *job = context;
    const int64_t n = job->a.channels, pixels = job->a.pixels;
    const real *dy = job->from + task * n;
    real *dx = job->to + task * pixels * n;
    const real share = (real)(1.0 / (double)pixels);
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t c = 0; c < n; c++)
            dx[i * n + c] = dy[c] * share;
}

void avgpool_forward(avgpool a, const pass *p, int count, const real *x, real *y) {
    pool_job job = {.a = a, .from = x, .to = y};
    team_run(p->team, count, forward_task, &job);
}

void avgpool_backward(avgpool a, const pass *p, int count, const real *dy, real *dx) {
    pool_job job = {.a = a, .from = dy, .to = dx};
    team_run(p->team, count, backward_task, &job);
}
