/* encoder.c - one encoder layer of BERT; see encoder.h */
#include "encoder.h"

#include <stdio.h>

#include "layer_gelu.h"
#include "vector.h"

void encoder_create(encoder *e, plan *p, const char *name, encoder_shape shape, double bound) {
    const int rows = shape.max_batch * shape.length, width = shape.width, inner = shape.inner;
    char part[PLAN_NAME];
    *e = (encoder){.width = width, .inner = inner, .length = shape.length};
    snprintf(part, sizeof part, "%s.attention", name);
    attention_create(&e->attend, p, part, shape.max_batch, shape.length, width, shape.heads, bound);
    snprintf(part, sizeof part, "%s.norm1", name);
    layer_norm_create(&e->norm1, p, part, rows, width);
    snprintf(part, sizeof part, "%s.expand", name);
    linear_create(&e->expand, p, part, width, inner, bound, true);
    snprintf(part, sizeof part, "%s.contract", name);
    linear_create(&e->contract, p, part, inner, width, bound, true);
    snprintf(part, sizeof part, "%s.norm2", name);
    layer_norm_create(&e->norm2, p, part, rows, width);
    e->middle = plan_reals(p, (int64_t)rows * width);
    e->expanded = plan_reals(p, (int64_t)rows * inner);
    e->bent = plan_reals(p, (int64_t)rows * inner);
    e->y = plan_reals(p, (int64_t)rows * width);
}

const real *encoder_forward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                            const real *x) {
    const int rows = count * e->length;
    const int64_t n = (int64_t)rows * e->width;
    attention_forward(&e->attend, p, count, lengths, x, e->middle);
    vector_add(e->middle, x, n);
    layer_norm_forward(&e->norm1, p, rows, e->middle, e->middle);
    linear_forward(&e->expand, p, rows, e->middle, e->expanded);
    gelu_forward(p, (int64_t)rows * e->inner, e->expanded, e->bent);
    linear_forward(&e->contract, p, rows, e->bent, e->y);
    vector_add(e->y, e->middle, n);
    layer_norm_forward(&e->norm2, p, rows, e->y, e->y);
    return e->y;
}

void encoder_backward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                      const real *x, real *dy, real *temporary) {
    const int rows = count * e->length;
    const int64_t n = (int64_t)rows * e->width;
    layer_norm_backward(&e->norm2, p, rows, dy);
    linear_backward(&e->contract, p, rows, e->bent, dy, e->bent);
    gelu_backward(p, (int64_t)rows * e->inner, e->expanded, e->bent);
    linear_backward(&e->expand, p, rows, e->middle, e->bent, temporary);
    vector_add(dy, temporary, n); /* the shortcut's gradient and the layers' */
    layer_norm_backward(&e->norm1, p, rows, dy);
    attention_backward(&e->attend, p, count, lengths, x, dy, temporary);
    vector_add(dy, temporary, n);
}
