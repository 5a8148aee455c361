/* layer_embedding.h - rows of a table, one for each id
 *
 *     y[row] = table[ids[row]]  (or added to y)       dtable[id] = sum of dy[row] over ids[row] == id
 */
#ifndef TRAIN_LAYER_EMBEDDING_H
#define TRAIN_LAYER_EMBEDDING_H

#include "pass.h"

typedef struct embedding {
    int entries, width;
    param table; /* [entries][width] */
} embedding;

/* bound: of the initial values, which are uniform. */
void embedding_create(embedding *e, plan *p, const char *name, int entries, int width,
                      double bound);

/* ids: [rows], each 0 .. entries - 1: the caller has checked. */
void embedding_forward(const embedding *e, int rows, const int32_t *ids, bool add,
                       real *y); /* [rows][width] */

void embedding_backward(const embedding *e, const pass *p, int rows, const int32_t *ids,
                        const real *dy); /* [rows][width] */

#endif
