/* wire_kernels.h - the loops of the wire formats, one table per instruction set
 *
 * All work on a block: TW__WIRE_BLOCK entries, or fewer at the end of a message. Arrays of a block
 * hold TW__WIRE_BLOCK elements in any case, zeros behind the last one, so that loops have a fixed
 * length; bytes have exactly the length that docs/wire_format.md says. Every table has bitwise the
 * same results: the bytes are an agreement between ranks. wire_kernels_loops.h defines them. */
#ifndef TW_KERNELS_WIRE_KERNELS_H
#define TW_KERNELS_WIRE_KERNELS_H

#include "backend/host_device.h"

#include <stddef.h>
#include <stdint.h>

#define TW__WIRE_BLOCK 128
#define TW__WIRE_WORD 64        /* bits that are looked at together */
#define TW__WIRE_WIDTH_MAX 24   /* bits that pack takes from a gap */
#define TW__WIRE_LEVELS_BYTES 4 /* before the codes of a block of quantized values */

/* Bytes that `count` numbers of `bits` bits take. */
TW__HOST_DEVICE static inline size_t tw__bits_bytes(int64_t count, int bits) {
    return ((size_t)count * (size_t)bits + 7) / 8;
}

typedef struct tw__wire_kernels {
    /* first + the position of each set bit of word, to at[TW__WIRE_WORD], of which all may be
     * written. Returns how many are set. */
    int (*positions)(uint64_t word, uint32_t first, uint32_t *at);
    /* The low `width` bits of x[count], to out[tw__packed_bytes(count, width)], and back: then the
     * other bits of x are 0. */
    void (*pack)(const uint32_t *x, int count, int width, uint8_t *out);
    void (*unpack)(const uint8_t *in, int count, int width, uint32_t *x);
    /* What lies between ascending idx[count]: gap[i] = idx[i] - idx[i - 1] - 1, and
     * gap[0] = idx[0] - minimum. */
    void (*gaps)(const uint32_t *idx, int count, uint32_t minimum, uint32_t *gap);
    /* sum[i] = before + the sum of (x[j] >> shift) + 1 over j = 0 .. i. The two may be one. */
    void (*sums)(const uint32_t *x, int shift, uint32_t before, uint32_t *sum);

    /* Rounded to nearest, ties to even; what is too large becomes the largest finite number.
     * out[2 * count]. tw__kernels' widen is the inverse. */
    void (*narrow_f16)(const float *val, int count, uint8_t *out);
    void (*narrow_bf16)(const float *val, int count, uint8_t *out);
    /* To 8, 4 or 2 bits: out[TW__WIRE_LEVELS_BYTES + tw__bits_bytes(count, bits)]. */
    void (*quantize)(const float *val, int count, int bits, uint8_t *out);
    void (*dequantize)(const uint8_t *in, int count, int bits, float *val);
} tw__wire_kernels;

/* Bytes of a block that pack makes: slices of 8, 4, 2 and 1 bits, each of whole bytes. */
TW__HOST_DEVICE static inline size_t tw__packed_bytes(int64_t count, int width) {
    size_t bytes = (size_t)count * (size_t)(width / 8);
    for (int bits = 4; bits >= 1; bits /= 2)
        if (width & bits)
            bytes += tw__bits_bytes(count, bits);
    return bytes;
}

#endif
