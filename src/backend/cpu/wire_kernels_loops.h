/* wire_kernels_loops.h - what every wire kernel does, in loops that compilers turn into vector code
 *
 * Included by each kernels_*.c and so compiled once per instruction set. Numbers of less than
 * a byte are packed in strides rather than side by side: of 4-bit numbers, byte j holds number j
 * and number j + stride, where stride is the number of bytes. Neighbours stay neighbours, so the
 * loops need no shuffles.
 *
 *     5 numbers of 4 bits, stride 3      byte 0: 0 and 3     byte 1: 1 and 4     byte 2: 2
 */
#ifndef TW_KERNELS_WIRE_KERNELS_LOOPS_H
#define TW_KERNELS_WIRE_KERNELS_LOOPS_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/wire_kernels.h"
#include "backend/cpu/wire_numbers.h"

/* Strides of less than a block end up to 7 numbers behind it. */
#define PIECES (TW__WIRE_BLOCK + 8)

/* Numbers below 2^bits, one to a byte, to out[stride]; bits is 1, 2, 4 or 8. */
static inline void pack_pieces(const uint8_t *restrict piece, int stride, int bits,
                               uint8_t *restrict out) {
    for (int j = 0; j < stride; j++) {
        unsigned byte = piece[j];
        for (int t = 1; t < 8 / bits; t++)
            byte |= (unsigned)piece[j + t * stride] << t * bits;
        out[j] = (uint8_t)byte;
    }
}

static inline void unpack_pieces(const uint8_t *restrict in, int stride, int bits,
                                 uint8_t *restrict piece) {
    const unsigned mask = (1u << bits) - 1;
    for (int t = 0; t < 8 / bits; t++)
        for (int j = 0; j < stride; j++)
            piece[j + t * stride] = (uint8_t)(in[j] >> t * bits & mask);
}

/* With `bits` and the usual stride known to the compiler; returns the stride. */
static inline int pack_known(const uint8_t *piece, int count, int bits, uint8_t *out) {
    int stride = (int)tw__bits_bytes(count, bits);
    if (count == TW__WIRE_BLOCK)
        pack_pieces(piece, TW__WIRE_BLOCK * bits / 8, bits, out);
    else
        pack_pieces(piece, stride, bits, out);
    return stride;
}

static inline int unpack_known(const uint8_t *in, int count, int bits, uint8_t *piece) {
    int stride = (int)tw__bits_bytes(count, bits);
    if (count == TW__WIRE_BLOCK)
        unpack_pieces(in, TW__WIRE_BLOCK * bits / 8, bits, piece);
    else
        unpack_pieces(in, stride, bits, piece);
    return stride;
}

/* ---- Indices -------------------------------------------------------------------------------- */

static inline int loop_positions(uint64_t word, uint32_t first, uint32_t *at) {
    int count = 0;
    for (; word != 0; word &= word - 1)
        at[count++] = first + (uint32_t)__builtin_ctzll(word);
    return count;
}

/* Bits shift .. shift + bits - 1 of each x; returns the bytes written. */
static inline int pack_slice(const uint32_t *x, int count, int shift, int bits, uint8_t *out) {
    uint8_t piece[PIECES] = {0};
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        piece[i] = (uint8_t)(x[i] >> shift & ((1u << bits) - 1));
    return pack_known(piece, count, bits, out);
}

static inline int unpack_slice(const uint8_t *in, int count, int shift, int bits, uint32_t *x) {
    uint8_t piece[PIECES];
    int bytes = unpack_known(in, count, bits, piece);
    for (int i = 0; i < count; i++)
        x[i] |= (uint32_t)piece[i] << shift;
    return bytes;
}

static void loop_pack(const uint32_t *x, int count, int width, uint8_t *out) {
    int shift = 0;
    for (; shift + 8 <= width; shift += 8)
        out += pack_slice(x, count, shift, 8, out);
    if (width & 4) {
        out += pack_slice(x, count, shift, 4, out);
        shift += 4;
    }
    if (width & 2) {
        out += pack_slice(x, count, shift, 2, out);
        shift += 2;
    }
    if (width & 1)
        pack_slice(x, count, shift, 1, out);
}

static void loop_unpack(const uint8_t *in, int count, int width, uint32_t *x) {
    int shift = 0;
    memset(x, 0, TW__WIRE_BLOCK * sizeof *x);
    for (; shift + 8 <= width; shift += 8)
        in += unpack_slice(in, count, shift, 8, x);
    if (width & 4) {
        in += unpack_slice(in, count, shift, 4, x);
        shift += 4;
    }
    if (width & 2) {
        in += unpack_slice(in, count, shift, 2, x);
        shift += 2;
    }
    if (width & 1)
        unpack_slice(in, count, shift, 1, x);
}

static void loop_gaps(const uint32_t *idx, int count, uint32_t minimum, uint32_t *gap) {
    gap[0] = idx[0] - minimum;
    for (int i = 1; i < TW__WIRE_BLOCK; i++)
        gap[i] = idx[i] - idx[i - 1] - 1;
    if (count < TW__WIRE_BLOCK)
        memset(gap + count, 0, sizeof *gap * (size_t)(TW__WIRE_BLOCK - count));
}

/* Of four numbers by adding what lies one, then two lanes before; the last lane is carried on. Twice
 * as fast as the loop below, which is for versions of gcc that lack the shuffle. */
static void loop_sums(const uint32_t *x, int shift, uint32_t before, uint32_t *sum) {
#if defined(__clang__) || __GNUC__ >= 12
    typedef uint32_t four __attribute__((vector_size(16)));
    const four zero = {0};
    four carry = {before, before, before, before}, s;
    for (int i = 0; i < TW__WIRE_BLOCK; i += 4) {
        memcpy(&s, x + i, sizeof s);
        s = (s >> shift) + 1;
        s += __builtin_shufflevector(zero, s, 0, 4, 5, 6);
        s += __builtin_shufflevector(zero, s, 0, 1, 4, 5);
        s += carry;
        memcpy(sum + i, &s, sizeof s);
        carry = __builtin_shufflevector(s, s, 3, 3, 3, 3);
    }
#else
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        sum[i] = before += (x[i] >> shift) + 1;
#endif
}

/* ---- Values of 16 bits ---------------------------------------------------------------------- */

static void loop_narrow_bf16(const float *val, int count, uint8_t *out) {
    uint16_t code[TW__WIRE_BLOCK];
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        code[i] = (uint16_t)(tw__sign_of_16(val[i]) | tw__bf16_of(tw__magnitude(val[i])));
    memcpy(out, code, 2 * (size_t)count);
}

static void loop_narrow_f16(const float *val, int count, uint8_t *out) {
    uint16_t code[TW__WIRE_BLOCK];
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        code[i] = (uint16_t)(tw__sign_of_16(val[i]) | tw__f16_of(tw__magnitude(val[i])));
    memcpy(out, code, 2 * (size_t)count);
}

/* ---- Values of 8, 4 and 2 bits -------------------------------------------------------------- */

static inline tw__levels levels_between(const float *val, int count, int top) {
    int32_t least = INT32_MAX, most = 0; /* signed: SSE2 compares no other */
    for (int i = 0; i < TW__WIRE_BLOCK; i++) {
        int32_t magnitude = (int32_t)tw__magnitude(val[i]);
        most = magnitude > most ? magnitude : most;
    }
    for (int i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)tw__magnitude(val[i]);
        least = magnitude < least ? magnitude : least;
    }
    return tw__levels_between((uint32_t)least, (uint32_t)most, top);
}

/* By masks: which side a value is on is anyone's guess. */
static inline tw__shares shares_at(const float *val, float border) {
    const int32_t border_bits = (int32_t)tw__to_bits(border);
    double small[TW__LANES] = {0}, large[TW__LANES] = {0};
    tw__shares shares = {0};
    for (int i = 0; i < TW__WIRE_BLOCK; i += TW__LANES)
        for (int lane = 0; lane < TW__LANES; lane++) {
            uint32_t magnitude = tw__magnitude(val[i + lane]);
            uint32_t above = 0u - (uint32_t)((int32_t)magnitude > border_bits);
            small[lane] += (double)tw__from_bits(magnitude & ~above);
            large[lane] += (double)tw__from_bits(magnitude & above);
        }
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        shares.nlarge += (int32_t)tw__magnitude(val[i]) > border_bits;
    for (int lane = 0; lane < TW__LANES; lane++) {
        shares.small += small[lane];
        shares.large += large[lane];
    }
    return shares;
}

static inline tw__levels levels_of_means(const float *val, int count) {
    float mean = (float)(shares_at(val, 0.0f).large / count);
    return tw__levels_of_means(shares_at(val, mean), count);
}

static inline void codes_of(const float *val, tw__levels levels, int bits, uint8_t *code) {
    const float base = tw__from_bf16(levels.base), step = tw__from_bf16(levels.step);
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        code[i] = (uint8_t)tw__code_of(val[i], base, step, bits);
}

static void loop_quantize(const float *val, int count, int bits, uint8_t *out) {
    uint8_t code[PIECES] = {0};
    tw__levels levels =
        bits == 2 ? levels_of_means(val, count) : levels_between(val, count, tw__top_level(bits));
    memcpy(out, &levels, sizeof levels);
    out += sizeof levels;
    codes_of(val, levels, bits, code);
    if (bits == 8)
        pack_known(code, count, 8, out);
    else if (bits == 4)
        pack_known(code, count, 4, out);
    else
        pack_known(code, count, 2, out);
}

static void loop_dequantize(const uint8_t *in, int count, int bits, float *val) {
    uint8_t code[PIECES] = {0};
    tw__levels levels;
    memcpy(&levels, in, sizeof levels);
    in += sizeof levels;
    if (bits == 8)
        unpack_known(in, count, 8, code);
    else if (bits == 4)
        unpack_known(in, count, 4, code);
    else
        unpack_known(in, count, 2, code);
    const float base = tw__from_bf16(levels.base), step = tw__from_bf16(levels.step);
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        val[i] = tw__coded_value(code[i], base, step, bits);
}

/* A table of these, but for positions. */
#define TW__WIRE_LOOPS                                                                             \
    .pack = loop_pack, .unpack = loop_unpack, .gaps = loop_gaps, .sums = loop_sums,                \
    .narrow_f16 = loop_narrow_f16, .narrow_bf16 = loop_narrow_bf16, .quantize = loop_quantize,     \
    .dequantize = loop_dequantize

#endif
