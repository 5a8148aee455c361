/* data.h - synthetic gradients: reproducible vectors of known shape
 *
 * The same kind, n and seed give the same values for any number of threads. Between machines the
 * last bit may differ where their libm rounds differently.
 */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include <stdint.h>

/* The kinds by position from 0; NULL past the last one. */
const char *data_kind_name(int position);

/* Fill values[n] with the kind at this position. */
void data_fill(int kind, float *values, int64_t n, uint64_t seed);

#endif
