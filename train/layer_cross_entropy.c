/* layer_cross_entropy.c - softmax and cross entropy; see layer_cross_entropy.h
 *
 * The largest logit is taken off first, so that nothing overflows.
 */
#include "layer_cross_entropy.h"

#include <math.h>
#include <string.h>

#include "exponential.h"
#include "vector.h"

enum { CHUNK = 16 }; /* rows of a task */

/* What one row adds to the result. */
typedef struct row_loss {
    double loss;
    bool counts, correct;
} row_loss;

void cross_entropy_create(cross_entropy *e, plan *p, int max_rows, int classes) {
    *e = (cross_entropy){.classes = classes, .rows = plan_work(p, max_rows, sizeof(row_loss))};
}

typedef struct entropy_job {
    const cross_entropy *e;
    const int32_t *labels; /* [rows] */
    real *logits;          /* [rows][classes] */
    int64_t rows;
    int64_t count; /* rows that count */
} entropy_job;

static int largest(const real *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

VECTOR static void exponentials(real *restrict x, int64_t n, real most) {
    for (int64_t i = 0; i < n; i++)
        x[i] = exponential(x[i] - most);
}

VECTOR static void scale(real *restrict x, int64_t n, real factor) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static double sum(const real *x, int n) {
    double total = 0;
    for (int i = 0; i < n; i++)
        total += (double)x[i];
    return total;
}

static row_loss one_row(real *x, int n, int32_t label, int64_t count) {
    if (label == MODEL_IGNORE) {
        memset(x, 0, (size_t)n * sizeof *x);
        return (row_loss){0};
    }
    const int best = largest(x, n);
    const real most = x[best];
    const double of_label = (double)(x[label] - most);
    exponentials(x, n, most);
    const double total = sum(x, n);
    scale(x, n, (real)(1.0 / (total * (double)count)));
    x[label] -= (real)(1.0 / (double)count);
    return (row_loss){.loss = log(total) - of_label, .counts = true, .correct = best == label};
}

static void rows_task(void *context, int task, void *scratch) {
    (void)scratch;
    const entropy_job *job = context;
    const int n = job->e->classes;
    range r = pass_chunk(job->rows, CHUNK, task);
    for (int64_t i = r.begin; i < r.end; i++)
        job->e->rows[i] = one_row(job->logits + i * n, n, job->labels[i], job->count);
}

cross_entropy_result cross_entropy_forward(const cross_entropy *e, const pass *p, int rows,
                                           const int32_t *labels, real *logits) {
    entropy_job job = {.e = e, .labels = labels, .logits = logits, .rows = rows};
    for (int i = 0; i < rows; i++)
        job.count += labels[i] != MODEL_IGNORE;
    team_run(p->team, pass_chunks(rows, CHUNK), rows_task, &job);
    cross_entropy_result result = {.count = job.count};
    for (int i = 0; i < rows; i++) {
        result.loss += e->rows[i].loss;
        result.correct += e->rows[i].correct;
    }
    result.loss /= job.count ? (double)job.count : 1.0;
    return result;
}
