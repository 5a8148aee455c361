/* wire_each.h - messages in independent pieces: what each thread of a device writes or reads
 *
 * Each function makes or reads one byte, word or entry. A block is TW__WIRE_BLOCK entries, or the m
 * that are left at the end; arrays of a block hold zeros behind the m-th. Bytes may lie at any
 * address. docs/wire_format.md describes them. tests/wire/test_wire_each.c makes whole messages of
 * these pieces on the CPU, and compares them with those of backend/cpu/wire_codec.c. */
#ifndef TW_WIRE_WIRE_EACH_H
#define TW_WIRE_WIRE_EACH_H

#include "backend/cpu/wire_numbers.h"
#include "wire/wire.h"

/* A message without its head: low parts of indices, values, bitmap. */
typedef struct tw__wire_body {
    int64_t count;
    int64_t lo;
    uint32_t span;
    int width; /* of the low parts */
    size_t low_bytes;
    size_t bits_at; /* the bitmap's first byte */
    size_t bit_bytes;
    int format; /* its code */
    int bits;   /* of a value */
    int levels_bytes;
} tw__wire_body;

static inline tw__wire_body tw__wire_body_of(const tw__wire_message *m) {
    tw__wire_body body;
    body.count = m->count;
    body.lo = m->lo;
    body.span = m->indices.span;
    body.width = m->indices.width;
    body.low_bytes = m->indices.low_bytes;
    body.bits_at = m->indices.low_bytes + tw__wire_value_bytes(m->format, m->count);
    body.bit_bytes = m->indices.bit_bytes;
    body.format = m->format->code;
    body.bits = m->format->bits;
    body.levels_bytes = m->format->levels_bytes;
    return body;
}

TW__HOST_DEVICE static inline int64_t tw__blocks_of(int64_t count) {
    return (count + TW__WIRE_BLOCK - 1) / TW__WIRE_BLOCK;
}

/* Entries of a block. */
TW__HOST_DEVICE static inline int tw__block_entries(int64_t count, int64_t block) {
    int64_t left = count - block * TW__WIRE_BLOCK;
    return left < TW__WIRE_BLOCK ? (int)left : TW__WIRE_BLOCK;
}

/* ---- Slices: number i goes to byte i mod stride ----------------------------------------------- */

/* Byte j of a slice of bits shift .. shift + bits - 1 of x[TW__WIRE_BLOCK]. */
TW__HOST_DEVICE static inline uint8_t tw__slice_byte(const uint32_t *x, int shift, int bits,
                                                     int stride, int j) {
    uint32_t byte = 0;
    for (int t = 0; t < 8 / bits; t++)
        byte |= (x[j + t * stride] >> shift & ((1u << bits) - 1)) << t * bits;
    return (uint8_t)byte;
}

TW__HOST_DEVICE static inline uint32_t tw__slice_number(const uint8_t *in, int bits, int stride,
                                                        int i) {
    return (uint32_t)in[i % stride] >> bits * (i / stride) & ((1u << bits) - 1);
}

/* ---- Indices -------------------------------------------------------------------------------- */

/* Low parts are cut into slices of 8 bits, then of 4, 2 and 1. */
TW__HOST_DEVICE static inline int tw__slice_bits(int rest) {
    return rest >= 8 ? 8 : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
}

/* Byte j of every slice of a block's low parts; j < TW__WIRE_BLOCK makes them all. */
TW__HOST_DEVICE static inline void tw__low_write(const uint32_t *x, int m, int width, int j,
                                                 uint8_t *out) {
    int bits = 0;
    for (int shift = 0; shift < width; shift += bits) {
        bits = tw__slice_bits(width - shift);
        int stride = (int)tw__bits_bytes(m, bits);
        if (j < stride)
            out[j] = tw__slice_byte(x, shift, bits, stride, j);
        out += stride;
    }
}

TW__HOST_DEVICE static inline uint32_t tw__low_read(const uint8_t *in, int m, int width, int i) {
    uint32_t low = 0;
    int bits = 0;
    for (int shift = 0; shift < width; shift += bits) {
        bits = tw__slice_bits(width - shift);
        int stride = (int)tw__bits_bytes(m, bits);
        low |= tw__slice_number(in, bits, stride, i) << shift;
        in += stride;
    }
    return low;
}

TW__HOST_DEVICE static inline void tw__plain_write(uint32_t number, int bytes, uint8_t *out) {
    for (int b = 0; b < bytes; b++)
        out[b] = (uint8_t)(number >> 8 * b);
}

TW__HOST_DEVICE static inline uint32_t tw__plain_read(const uint8_t *in, int bytes) {
    uint32_t number = 0;
    for (int b = 0; b < bytes; b++)
        number |= (uint32_t)in[b] << 8 * b;
    return number;
}

/* Indices between entry i and the one before it. */
TW__HOST_DEVICE static inline uint32_t tw__gap_of(const tw__wire_body *body,
                                                  const tw__entry *entries, int64_t i) {
    int64_t minimum = i > 0 ? (int64_t)entries[i - 1].idx + 1 : body->lo;
    return (uint32_t)(entries[i].idx - minimum);
}

/* Bits of the bitmap that entry i takes: zeros for the high part of its gap, and a one. */
TW__HOST_DEVICE static inline uint32_t tw__bits_of(const tw__wire_body *body,
                                                   const tw__entry *entries, int64_t i) {
    return (tw__gap_of(body, entries, i) >> body->width) + 1;
}

/* A word of the bitmap, where ends[i] bits are those of entries 0 .. i. */
TW__HOST_DEVICE static inline uint64_t tw__bitmap_word(const uint32_t *ends, int64_t count,
                                                       int64_t word) {
    const int64_t first = word * TW__WIRE_WORD;
    int64_t lo = 0, hi = count;
    uint64_t bits = 0;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if ((int64_t)ends[middle] <= first)
            lo = middle + 1;
        else
            hi = middle;
    }
    for (; lo < count && (int64_t)ends[lo] <= first + TW__WIRE_WORD; lo++)
        bits |= (uint64_t)1 << ((int64_t)ends[lo] - 1 - first);
    return bits;
}

/* Of the last word there may be fewer bytes. */
TW__HOST_DEVICE static inline void tw__bitmap_store(uint64_t bits, int64_t word, uint8_t *out,
                                                    size_t bytes) {
    for (size_t at = 8 * (size_t)word; at < bytes && at < 8 * (size_t)word + 8; at++, bits >>= 8)
        out[at] = (uint8_t)bits;
}

TW__HOST_DEVICE static inline uint64_t tw__bitmap_load(const uint8_t *in, int64_t word,
                                                       size_t bytes) {
    uint64_t bits = 0;
    const size_t first = 8 * (size_t)word;
    for (size_t at = first; at < bytes && at < first + 8; at++)
        bits |= (uint64_t)in[at] << 8 * (at - first);
    return bits;
}

/* The low part of entry i's gap; 0 where there are none. */
TW__HOST_DEVICE static inline uint32_t tw__low_at(const tw__wire_body *body, const uint8_t *low,
                                                  int64_t i) {
    const int64_t block = i / TW__WIRE_BLOCK;
    return tw__low_read(low + (size_t)block * tw__packed_bytes(TW__WIRE_BLOCK, body->width),
                        tw__block_entries(body->count, block), body->width,
                        (int)(i % TW__WIRE_BLOCK));
}

/* Index i, from lo, where bit found[i] is the i-th that is set, and lows[i] the sum of the low parts
 * up to it. Any numbers are taken, and none wraps around. */
TW__HOST_DEVICE static inline uint64_t tw__index_at(const tw__wire_body *body,
                                                    const uint32_t *found,
                                                    const unsigned long long *lows, int64_t i) {
    return lows[i] + (uint64_t)i + ((uint64_t)(found[i] - (uint32_t)i) << body->width);
}

/* ---- Values --------------------------------------------------------------------------------- */

/* Where a block's begin. */
TW__HOST_DEVICE static inline size_t tw__values_at(const tw__wire_body *body, int64_t block) {
    return body->low_bytes + (size_t)block * ((size_t)body->levels_bytes +
                                              tw__bits_bytes(TW__WIRE_BLOCK, body->bits));
}

/* Of the magnitudes lane, lane + TW__LANES ... of a block: one lane's part of its sums. */
TW__HOST_DEVICE static inline tw__shares tw__lane_shares(const float *val, int lane, float border) {
    tw__shares shares = {0.0, 0.0, 0};
    for (int i = lane; i < TW__WIRE_BLOCK; i += TW__LANES) {
        uint32_t magnitude = tw__magnitude(val[i]);
        int above = magnitude > tw__to_bits(border);
        shares.small += above ? 0.0 : (double)tw__from_bits(magnitude);
        shares.large += above ? (double)tw__from_bits(magnitude) : 0.0;
        shares.nlarge += above;
    }
    return shares;
}

TW__HOST_DEVICE static inline tw__shares tw__lanes_sum(const tw__shares *lanes) {
    tw__shares all = {0.0, 0.0, 0};
    for (int lane = 0; lane < TW__LANES; lane++) {
        all.small += lanes[lane].small;
        all.large += lanes[lane].large;
        all.nlarge += lanes[lane].nlarge;
    }
    return all;
}

/* The code of a value, of as many bits as the format has, and the value of a code. */
TW__HOST_DEVICE static inline uint32_t tw__value_code(const tw__wire_body *body, float value,
                                                      tw__levels levels) {
    switch (body->format) {
    case TW__WIRE_F32:
        return tw__to_bits(value);
    case TW__WIRE_F16:
        return tw__sign_of_16(value) | tw__f16_of(tw__magnitude(value));
    case TW__WIRE_BF16:
        return tw__sign_of_16(value) | tw__bf16_of(tw__magnitude(value));
    default:
        return tw__code_of(value, tw__from_bf16(levels.base), tw__from_bf16(levels.step),
                           body->bits);
    }
}

TW__HOST_DEVICE static inline float tw__value_of(const tw__wire_body *body, uint32_t code,
                                                 tw__levels levels) {
    switch (body->format) {
    case TW__WIRE_F32:
        return tw__from_bits(code);
    case TW__WIRE_F16:
        return tw__from_f16(code);
    case TW__WIRE_BF16:
        return tw__from_bf16(code);
    default:
        return tw__coded_value(code, tw__from_bf16(levels.base), tw__from_bf16(levels.step),
                               body->bits);
    }
}

/* Part j of a block of values with code[TW__WIRE_BLOCK]; j < TW__WIRE_BLOCK makes all of them. */
TW__HOST_DEVICE static inline void tw__values_write(const tw__wire_body *body, const uint32_t *code,
                                                    tw__levels levels, int m, int j, uint8_t *out) {
    if (body->levels_bytes == 0) {
        if (j < m)
            tw__plain_write(code[j], body->bits / 8, out + j * (body->bits / 8));
        return;
    }
    int stride = (int)tw__bits_bytes(m, body->bits);
    if (j < TW__WIRE_LEVELS_BYTES)
        out[j] = (uint8_t)(((uint32_t)levels.base | (uint32_t)levels.step << 16) >> 8 * j);
    if (j < stride)
        out[TW__WIRE_LEVELS_BYTES + j] = tw__slice_byte(code, 0, body->bits, stride, j);
}

/* Value i of a block. */
TW__HOST_DEVICE static inline float tw__value_read(const tw__wire_body *body, const uint8_t *in,
                                                   int m, int i) {
    tw__levels levels = {0, 0};
    if (body->levels_bytes == 0)
        return tw__value_of(body, tw__plain_read(in + i * (body->bits / 8), body->bits / 8),
                            levels);
    levels.base = (uint16_t)tw__plain_read(in, 2);
    levels.step = (uint16_t)tw__plain_read(in + 2, 2);
    int stride = (int)tw__bits_bytes(m, body->bits);
    return tw__value_of(body, tw__slice_number(in + TW__WIRE_LEVELS_BYTES, body->bits, stride, i),
                        levels);
}

#endif
