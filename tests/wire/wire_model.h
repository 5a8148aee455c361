/* wire_model.h - messages as docs/wire_format.md describes them, bit by bit, for comparison
 *
 * Slow and without a line of the library: what it writes can be checked against the document by
 * reading both. */
#ifndef WIRE_MODEL_H
#define WIRE_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* The formats by their code; NULL past the last. */
const char *wire_model_name(int format);

/* The message for idx[count] and val[count] within lo .. hi-1. Returns its bytes, which the caller
 * frees, and their number; rounded[count] gets what the receiver will see. */
uint8_t *wire_model_encode(int format, const int32_t *idx, const float *val, int64_t count,
                           int64_t lo, int64_t hi, size_t *size, float *rounded);

#endif
