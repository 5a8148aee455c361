/* layer_linear.c - linear layers and embeddings; see layers.h
 *
 * The embedding's gradient is added row by row in order, on the caller's thread: ids repeat, and
 * clearing the table costs more than the additions.
 */
#include <assert.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/vector.h"

void linear_create(linear *l, layout *to, const char *name, int in, int out, double bound,
                   bool bias) {
    *l = (linear){.in = in, .out = out};
    l->weight = layout_param(to, name, "weight", (int64_t)in * out, INIT_UNIFORM, bound);
    if (bias) {
        l->bias = layout_param(to, name, "bias", out, INIT_ZERO, 0);
        layout_sums(to, out);
    }
}

void linear_forward(const linear *l, const pass *p, int rows, const real *x, real *y) {
    if (l->bias.n)
        for (int i = 0; i < rows; i++)
            memcpy(y + (int64_t)i * l->out, l->bias.value, (size_t)l->out * sizeof *y);
    product(p, rows, l->out, l->in, plain(x, l->in), plain(l->weight.value, l->out),
            l->bias.n ? 1 : 0, y, l->out);
}

void linear_backward(const linear *l, const pass *p, int rows, const real *x, const real *dy,
                     real *dx) {
    if (l->bias.n) {
        column_sums(p, dy, rows, l->out, l->bias.grad);
        pass_ready(p, &l->bias);
    }
    product(p, l->in, l->out, rows, transposed(x, l->in), plain(dy, l->out), 0, l->weight.grad,
            l->out);
    pass_ready(p, &l->weight);
    if (dx)
        product(p, rows, l->in, l->out, plain(dy, l->out), transposed(l->weight.value, l->out), 0,
                dx, l->in);
}

void embedding_create(embedding *e, layout *to, const char *name, int entries, int width,
                      double bound) {
    *e = (embedding){.entries = entries, .width = width};
    e->table = layout_param(to, name, "table", (int64_t)entries * width, INIT_UNIFORM, bound);
}

void embedding_forward(const embedding *e, int rows, const int32_t *ids, bool add, real *y) {
    const int64_t n = e->width;
    for (int64_t i = 0; i < rows; i++) {
        assert(ids[i] >= 0 && ids[i] < e->entries);
        const real *entry = e->table.value + ids[i] * n;
        if (add)
            vector_add(y + i * n, entry, n);
        else
            memcpy(y + i * n, entry, (size_t)n * sizeof *y);
    }
}

void embedding_backward(const embedding *e, const pass *p, int rows, const int32_t *ids,
                        const real *dy) {
    const int64_t n = e->width;
    memset(e->table.grad, 0, (size_t)e->table.n * sizeof *e->table.grad);
    for (int64_t i = 0; i < rows; i++)
        vector_add(e->table.grad + ids[i] * n, dy + i * n, n);
    pass_ready(p, &e->table);
}
