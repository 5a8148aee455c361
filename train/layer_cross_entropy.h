/* layer_cross_entropy.h - softmax and cross entropy against labels, with labels that do not count
 *
 *     p = softmax(logits[row]),   loss = mean over counted rows of -log p[label]
 *     dlogits = (p - onehot(label)) / counted rows;  0 in rows whose label is MODEL_IGNORE
 * The gradient costs nothing extra: forward leaves it in place of the logits.
 */
#ifndef TRAIN_LAYER_CROSS_ENTROPY_H
#define TRAIN_LAYER_CROSS_ENTROPY_H

#include "pass.h"

typedef struct cross_entropy {
    int classes;
    struct row_loss *rows; /* [max_rows] */
} cross_entropy;

typedef struct cross_entropy_result {
    double loss;
    int64_t count;   /* rows that count */
    int64_t correct; /* where no class was larger than the label, and none before it as large */
} cross_entropy_result;

void cross_entropy_create(cross_entropy *e, plan *p, int max_rows, int classes);

/* Labels are 0 .. classes - 1 or MODEL_IGNORE; the caller has checked. */
cross_entropy_result cross_entropy_forward(const cross_entropy *e, const pass *p, int rows,
                                           const int32_t *labels, /* [rows] */
                                           real *logits); /* [rows][classes] becomes dlogits */

#endif
