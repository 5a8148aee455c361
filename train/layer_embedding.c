/* layer_embedding.c - table look-up; see layer_embedding.h
 *
 * The gradient is added row by row in order, on the caller's thread: ids repeat, and clearing the
 * table costs more than the additions.
 */
#include "layer_embedding.h"

#include <string.h>

#include "vector.h"

void embedding_create(embedding *e, plan *p, const char *name, int entries, int width,
                      double bound) {
    *e = (embedding){.entries = entries, .width = width};
    e->table = plan_param(p, name, "table", (int64_t)entries * width, INIT_UNIFORM, bound);
}

void embedding_forward(const embedding *e, int rows, const int32_t *ids, bool add, real *y) {
    const int64_t n = e->width;
    for (int64_t i = 0; i < rows; i++) {
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
