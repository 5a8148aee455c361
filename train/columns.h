/* columns.h - sums down the columns of tall matrices, the same bits for any number of threads
 *
 * Gradients of biases and norms, and batch statistics, all are sums over the rows of [rows][width].
 * Rows are cut into chunks by their number alone; each chunk is summed in double, lane by lane, and
 * the partial sums are added in order.
 */
#ifndef TRAIN_COLUMNS_H
#define TRAIN_COLUMNS_H

#include "pass.h"

enum { COLUMNS_CHUNKS = 16 }; /* at most so many */

/* Rows of a chunk. */
int64_t columns_chunk(int64_t rows);

/* Ask for the room that sums of `width` columns need in the team's common memory: `sums` of them. */
void columns_plan(plan *p, int width, int sums);

/* Add the partial sums of a job whose tasks were chunks: partial[chunks][width] into total[width],
 * which may be its first row. */
void columns_total(const double *partial, int chunks, int width, double *total);

/* out[j] = sum over rows of x[rows][width]. Uses the common memory. */
void columns_sum(const pass *p, const real *x, int64_t rows, int width, real *out);

#endif
