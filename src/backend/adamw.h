/* adamw.h - AdamW before selection: the arithmetic that all backends share
 *
 *     m = beta1 * m + fresh1 * g
 *     v = beta2 * v + (fresh2 * g) * g
 *     d = root * sqrt(v) + eps
 *     u = (rate * m) / d + (d - d)        the last term is NaN if v overflowed, else 0
 *
 * Each operation is rounded to float by itself, so CPUs and GPUs agree in every bit. */
#ifndef TW_BACKEND_ADAMW_H
#define TW_BACKEND_ADAMW_H

/* The numbers of one step; t counts the gradients in m and v, this one included. */
typedef struct tw__adamw {
    float beta1, fresh1; /* fresh = 1 - beta */
    float beta2, fresh2;
    float rate; /* of the step, divided by 1 - beta1^t */
    float root; /* 1 / sqrt(1 - beta2^t) */
    float eps;
} tw__adamw;

#endif
