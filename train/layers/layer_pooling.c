/* layer_pooling.c - maximum over squares, mean over images; a task is one image. See layers.h */
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

void maxpool_create(maxpool *m, layout *to, int max_batch, int height, int width, int channels) {
    *m = (maxpool){height, width, channels, .out_height = height / 2, .out_width = width / 2};
    int64_t outputs = (int64_t)max_batch * m->out_height * m->out_width * channels;
    m->winner = layout_memory(to, outputs, sizeof *m->winner);
}

/* One output pixel y[n] from the two pixels at x and the two in the line below: [2][n] each. */
VECTOR static void pool_pixel(const real *restrict x, const real *restrict below, int64_t n,
                              real *restrict y, uint8_t *restrict winner) {
    for (int64_t c = 0; c < n; c++) {
        real best = x[c];
        uint8_t who = 0;
        who = x[n + c] > best ? 1 : who;
        best = x[n + c] > best ? x[n + c] : best;
        who = below[c] > best ? 2 : who;
        best = below[c] > best ? below[c] : best;
        who = below[n + c] > best ? 3 : who;
        best = below[n + c] > best ? below[n + c] : best;
        y[c] = best;
        winner[c] = who;
    }
}

VECTOR static void unpool_pixel(const real *restrict dy, const uint8_t *restrict winner, int64_t n,
                                real *restrict dx, real *restrict below) {
    for (int64_t c = 0; c < n; c++) {
        dx[c] = winner[c] == 0 ? dy[c] : 0;
        dx[n + c] = winner[c] == 1 ? dy[c] : 0;
        below[c] = winner[c] == 2 ? dy[c] : 0;
        below[n + c] = winner[c] == 3 ? dy[c] : 0;
    }
}

typedef struct max_job {
    const maxpool *m;
    const real *x, *dy; /* forward; backward */
    real *y, *dx;       /* forward; backward */
} max_job;

static void max_task(const task *t) {
    const max_job *job = t->job;
    const maxpool *m = job->m;
    const int64_t n = m->channels, line = m->width * n;
    const int64_t image = t->index * m->height * line;
    int64_t out = (int64_t)t->index * m->out_height * m->out_width * n;
    if (job->dx && (m->height % 2 != 0 || m->width % 2 != 0))
        memset(job->dx + image, 0, (size_t)(m->height * line) * sizeof *job->dx);
    for (int i = 0; i < m->out_height; i++) {
        for (int j = 0; j < m->out_width; j++) {
            const int64_t at = image + 2 * i * line + 2 * j * n;
            if (job->dx)
                unpool_pixel(job->dy + out, m->winner + out, n, job->dx + at, job->dx + at + line);
            else
                pool_pixel(job->x + at, job->x + at + line, n, job->y + out, m->winner + out);
            out += n;
        }
    }
}

void maxpool_forward(const maxpool *m, const pass *p, int count, const real *x, real *y) {
    pass_run(p, count, 1, max_task, &(max_job){.m = m, .x = x, .y = y});
}

void maxpool_backward(const maxpool *m, const pass *p, int count, const real *dy, real *dx) {
    pass_run(p, count, 1, max_task, &(max_job){.m = m, .dy = dy, .dx = dx});
}

typedef struct mean_job {
    avgpool a;
    const real *from; /* x or dy */
    real *to;         /* y or dx */
} mean_job;

static void mean_task(const task *t) {
    const mean_job *job = t->job;
    const int64_t n = job->a.channels, pixels = job->a.pixels;
    const real *x = job->from + t->index * pixels * n;
    for (int64_t c = 0; c < n; c++) {
        double sum = 0;
        for (int64_t i = 0; i < pixels; i++)
            sum += (double)x[i * n + c];
        job->to[t->index * n + c] = (real)(sum / (double)pixels);
    }
}

static void mean_backward_task(const task *t) {
    const mean_job *job = t->job;
    const int64_t n = job->a.channels, pixels = job->a.pixels;
    const real *dy = job->from + t->index * n;
    real *dx = job->to + t->index * pixels * n;
    const real share = (real)(1.0 / (double)pixels);
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t c = 0; c < n; c++)
            dx[i * n + c] = dy[c] * share;
}

void avgpool_forward(avgpool a, const pass *p, int count, const real *x, real *y) {
    pass_run(p, count, 1, mean_task, &(mean_job){a, x, y});
}

void avgpool_backward(avgpool a, const pass *p, int count, const real *dy, real *dx) {
    pass_run(p, count, 1, mean_backward_task, &(mean_job){a, dy, dx});
}
