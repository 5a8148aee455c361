/* layer_maxpool.c - 2 x 2 pooling; a task is one image. See layer_maxpool.h */
#include "layer_maxpool.h"

#include <string.h>

#include "vector.h"

void maxpool_create(maxpool *m, plan *p, int max_batch, int height, int width, int channels) {
    *m = (maxpool){.height = height,
                   .width = width,
                   .channels = channels,
                   .out_height = height / 2,
                   .out_width = width / 2};
    int64_t outputs = (int64_t)max_batch * m->out_height * m->out_width * channels;
    m->winner = plan_work(p, outputs, sizeof *m->winner);
}

/* One output pixel from the two pixels at x and the two below at `below`. */
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

typedef struct pool_job {
    const maxpool *m;
    const real *from;
    real *to;
} pool_job;

static void forward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const pool_job *job = context;
    const maxpool *m = job->m;
    const int64_t n = m->channels, line = m->width * n;
    const real *x = job->from + (int64_t)task * m->height * line;
    const int64_t first = (int64_t)task * m->out_height * m->out_width * n;
    real *y = job->to + first;
    uint8_t *winner = m->winner + first;
    for (int i = 0; i < m->out_height; i++) {
        for (int j = 0; j < m->out_width; j++) {
            const real *at = x + 2 * i * line + 2 * j * n;
            pool_pixel(at, at + line, n, y, winner);
            y += n;
            winner += n;
        }
    }
}

static void backward_task(void *context, int task, void *scratch) {
    (void)scratch;
    const pool_job *job = context;
    const maxpool *m = job->m;
    const int64_t n = m->channels, line = m->width * n;
    real *dx = job->to + (int64_t)task * m->height * line;
    const int64_t first = (int64_t)task * m->out_height * m->out_width * n;
    const real *dy = job->from + first;
    const uint8_t *winner = m->winner + first;
    if (m->height % 2 != 0 || m->width % 2 != 0)
        memset(dx, 0, (size_t)(m->height * line) * sizeof *dx);
    for (int i = 0; i < m->out_height; i++) {
        for (int j = 0; j < m->out_width; j++) {
            real *at = dx + 2 * i * line + 2 * j * n;
            unpool_pixel(dy, winner, n, at, at + line);
            dy += n;
            winner += n;
        }
    }
}

void maxpool_forward(const maxpool *m, const pass *p, int count, const real *x, real *y) {
    pool_job job = {.m = m, .from = x, .to = y};
    team_run(p->team, count, forward_task, &job);
}

void maxpool_backward(const maxpool *m, const pass *p, int count, const real *dy, real *dx) {
    pool_job job = {.m = m, .from = dy, .to = dx};
    team_run(p->team, count, backward_task, &job);
}
