/* layer_cross_entropy.c - softmax and cross entropy; see layers.h
 *
 * The largest logit is taken off first, so that nothing overflows.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

enum { CHUNK = 16 }; /* rows of a task */

/* What one row adds to the result. */
typedef struct row_loss {
    double loss;
    bool correct;
} row_loss;

void cross_entropy_create(cross_entropy *e, layout *to, int max_rows, int classes) {
    *e = (cross_entropy){.classes = classes, .rows = layout_memory(to, max_rows, sizeof(row_loss))};
}

typedef struct entropy_job {
    const cross_entropy *e;
    const int32_t *labels; /* [rows] */
    real *logits;          /* [rows][classes] */
    int64_t count;         /* rows that count */
} entropy_job;

VECTOR static void exponentials(real *restrict x, int64_t n, real most) {
    for (int64_t i = 0; i < n; i++)
        x[i] = exponential(x[i] - most);
}

static row_loss one_row(real *x, int n, int32_t label, int64_t count) {
    if (label == MODEL_IGNORE) {
        memset(x, 0, (size_t)n * sizeof *x);
        return (row_loss){0};
    }
    assert(label >= 0 && label < n);
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    const real most = x[best];
    const double of_label = (double)(x[label] - most);
    exponentials(x, n, most);
    double total = 0;
    for (int i = 0; i < n; i++)
        total += (double)x[i];
    vector_scale(x, (real)(1.0 / (total * (double)count)), n);
    x[label] -= (real)(1.0 / (double)count);
    return (row_loss){.loss = log(total) - of_label, .correct = best == label};
}

static void rows_task(const task *t) {
    const entropy_job *job = t->job;
    const int n = job->e->classes;
    for (int64_t i = t->r.begin; i < t->r.end; i++)
        job->e->rows[i] = one_row(job->logits + i * n, n, job->labels[i], job->count);
}

model_result cross_entropy_forward(const cross_entropy *e, const pass *p, int rows,
                                   const int32_t *labels, real *logits) {
    entropy_job job = {.e = e, .labels = labels, .logits = logits};
    for (int i = 0; i < rows; i++)
        job.count += labels[i] != MODEL_IGNORE;
    pass_run(p, rows, CHUNK, rows_task, &job);
    model_result result = {.count = job.count};
    for (int i = 0; i < rows; i++) {
        result.loss += e->rows[i].loss;
        result.correct += e->rows[i].correct;
    }
    result.loss /= job.count ? (double)job.count : 1.0;
    return result;
}
