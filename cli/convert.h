/* convert.h - rounds float32 vectors to the half-sized types, to nearest even
 *
 * Bit arithmetic only, so that it runs on any CPU and does not share code with the library that is
 * being checked. Overflow gives infinity, as in hardware.
 */
#ifndef CLI_CONVERT_H
#define CLI_CONVERT_H

#include <stdint.h>

/* half[count] = values[count] as IEEE 754 binary16; values become what the halves stand for.
 * Assumes the default rounding mode and subnormals switched on. */
void convert_to_f16(float *values, uint16_t *half, int64_t count);

/* The same for bfloat16, the upper half of a float32. */
void convert_to_bf16(float *values, uint16_t *half, int64_t count);

#endif
