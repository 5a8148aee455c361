/* columns.c - column sums in chunks; see columns.h */
#include "columns.h"

#include <string.h>

#include "vector.h"

int64_t columns_chunk(int64_t rows) {
    const int64_t least = 64; /* fewer rows are not worth a task */
    int64_t each = (rows + COLUMNS_CHUNKS - 1) / COLUMNS_CHUNKS;
    return each > least ? each : least;
}

void columns_plan(plan *p, int width, int sums) {
    plan_common(p, sizeof(double) * COLUMNS_CHUNKS * (size_t)width * (size_t)sums);
}

VECTOR static void add_rows(double *restrict sum, const real *restrict x, int64_t rows,
                            int64_t width) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            sum[j] += (double)x[i * width + j];
}

typedef struct sum_job {
    const real *x;   /* [rows][width] */
    double *partial; /* [chunks][width] */
    int64_t rows;
    int64_t width;
} sum_job;

static void sum_chunk(void *context, int task, void *scratch) {
    (void)scratch;
    sum_job *job = context;
    range r = pass_chunk(job->rows, columns_chunk(job->rows), task);
    double *sum = job->partial + task * job->width;
    memset(sum, 0, (size_t)job->width * sizeof *sum);
    add_rows(sum, job->x + r.begin * job->width, r.end - r.begin, job->width);
}

void columns_total(const double *partial, int chunks, int width, double *total) {
    for (int j = 0; j < width; j++) {
        double sum = 0;
        for (int chunk = 0; chunk < chunks; chunk++)
            sum += partial[(int64_t)chunk * width + j];
        total[j] = sum;
    }
}

void columns_sum(const pass *p, const real *x, int64_t rows, int width, real *out) {
    double *partial = team_common(p->team);
    sum_job job = {.x = x, .partial = partial, .rows = rows, .width = width};
    int chunks = pass_chunks(rows, columns_chunk(rows));
    team_run(p->team, chunks, sum_chunk, &job);
    columns_total(partial, chunks, width, partial);
    for (int j = 0; j < width; j++)
        out[j] = (real)partial[j];
}
