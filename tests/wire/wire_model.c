/* wire_model.c - a naive encoder of wire format version 2; see wire_model.h */
#include "wire_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "thinwire.h"

enum { BLOCK = 128, LANES = 16, WIDTH_MAX = 24, PLAIN = 32 };

typedef struct model_format {
    const char *name;
    int bits; /* of a value */
    int type; /* tw_type, or QUANTIZED */
} model_format;

enum { QUANTIZED = -1 };

/* By their code. */
static const model_format formats[] = {
    {"f32", 32, TW_F32},  {"f16", 16, TW_F16},  {"bf16", 16, TW_BF16},
    {"q8", 8, QUANTIZED}, {"q4", 4, QUANTIZED}, {"q2", 2, QUANTIZED},
};

const char *wire_model_name(int format) {
    return format < (int)(sizeof formats / sizeof formats[0]) ? formats[format].name : NULL;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- Bytes that grow ------------------------------------------------------------------------ */

typedef struct bytes {
    uint8_t *at; /* [size] */
    size_t size;
} bytes;

/* So many more, zero; returns the first. */
static uint8_t *extend(bytes *b, size_t more) {
    b->at = realloc(b->at, b->size + more + 1);
    if (!b->at)
        abort();
    memset(b->at + b->size, 0, more);
    b->size += more;
    return b->at + b->size - more;
}

static void append(bytes *b, const void *data, size_t size) {
    if (size > 0)
        memcpy(extend(b, size), data, size);
}

static void append_strides(bytes *b, const uint32_t *number, int64_t count, int bits) {
    const int64_t stride = (count * bits + 7) / 8;
    uint8_t *out = extend(b, (size_t)stride);
    for (int64_t i = 0; i < count; i++)
        out[i % stride] |= (uint8_t)(number[i] << (i / stride * bits));
}

/* ---- Indices -------------------------------------------------------------------------------- */

static void append_low(bytes *b, const uint32_t *x, int64_t count, int width) {
    int shift = 0;
    while (shift < width) {
        const int left = width - shift;
        const int bits = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        uint32_t slice[BLOCK];
        for (int64_t i = 0; i < count; i++)
            slice[i] = x[i] >> shift & ((1u << bits) - 1);
        append_strides(b, slice, count, bits);
        shift += bits;
    }
}

/* What goes before the values. */
static void append_lows(bytes *b, const uint32_t *x, const uint32_t *gap, int64_t count,
                        int width) {
    if (width == PLAIN)
        append(b, x, 4 * (size_t)count);
    for (int64_t i = 0; i < count && width != PLAIN; i += BLOCK)
        append_low(b, gap + i, at_most(BLOCK, count - i), width);
}

/* What goes behind the values: a bit at a time, zeros for each high part and a one. */
static void append_bitmap(bytes *b, const uint32_t *gap, int64_t count, int width) {
    int64_t nbits = 0;
    for (int64_t i = 0; i < count && width != PLAIN; i++)
        for (uint32_t bit = 0; bit <= gap[i] >> width; bit++, nbits++) {
            if (nbits % 8 == 0)
                extend(b, 1);
            if (bit == gap[i] >> width)
                b->at[b->size - 1] |= (uint8_t)(1u << nbits % 8);
        }
}

/* By trying them all, with the longest bitmap that there can be; of equal ones the first in this
 * order. */
static int smallest(const uint32_t *x, const uint32_t *gap, int64_t count, int64_t span) {
    int best = PLAIN;
    int64_t least = 4 * count;
    for (int width = 0; width <= WIDTH_MAX && count > 0; width++) {
        bytes trial = {NULL, 0};
        append_lows(&trial, x, gap, count, width);
        const int64_t size = (int64_t)trial.size + (count + ((span - count) >> width) + 7) / 8;
        if (size < least) {
            least = size;
            best = width;
        }
        free(trial.at);
    }
    return best;
}

/* ---- Values --------------------------------------------------------------------------------- */

typedef struct levels {
    float base, step;
} levels;

/* As bf16, rounded down, to nearest, or up; not beyond the largest. */
static float to_bf16(float x, int up) {
    if (up == 0) {
        uint16_t code;
        float back;
        oracle_encode(&code, &x, 1, TW_BF16);
        oracle_decode(&back, &code, 1, TW_BF16);
        return back;
    }
    return oracle_float((oracle_bits(x) + (up > 0 ? 0xffffu : 0u)) & 0xffff0000u);
}

static levels settle(levels l, int top) {
    if (l.base < 0x1p-126f)
        l.base = 0.0f;
    if (l.step < 0x1p-126f)
        l.step = 0x1p-126f;
    if (!isfinite(l.base + (float)top * l.step))
        l.step = oracle_float(oracle_bits(l.step) - 0x10000u);
    return l;
}

static levels levels_between(const float *val, int64_t count, int top) {
    float least = INFINITY, most = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        least = fminf(least, fabsf(val[i]));
        most = fmaxf(most, fabsf(val[i]));
    }
    const float base = to_bf16(least, -1);
    return settle((levels){base, to_bf16((most - base) / (float)top, 1)}, top);
}

/* The mean of the magnitudes in (above, up_to], summed in 16 lanes. */
static float mean_within(const float *val, int64_t count, float above, float up_to) {
    double sums[LANES] = {0}, sum = 0.0;
    int64_t terms = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(val[i]) > above && fabsf(val[i]) <= up_to) {
            sums[i % LANES] += (double)fabsf(val[i]);
            terms++;
        }
    for (int lane = 0; lane < LANES; lane++)
        sum += sums[lane];
    return terms > 0 ? (float)(sum / (double)terms) : -1.0f;
}

static levels levels_of_means(const float *val, int64_t count) {
    const float mean = mean_within(val, count, -1.0f, INFINITY);
    const float high = mean_within(val, count, mean, INFINITY);
    const float base = to_bf16(mean_within(val, count, -1.0f, mean), 0);
    return settle((levels){base, high > base ? to_bf16(high - base, 0) : 0.0f}, 1);
}

static void append_quantized(bytes *b, const float *val, int64_t count, int bits, float *rounded) {
    const int top = (1 << (bits - 1)) - 1;
    const levels l = bits == 2 ? levels_of_means(val, count) : levels_between(val, count, top);
    const uint16_t stored[2] = {(uint16_t)(oracle_bits(l.base) >> 16),
                                (uint16_t)(oracle_bits(l.step) >> 16)};
    uint32_t code[BLOCK];
    append(b, stored, sizeof stored);
    for (int64_t i = 0; i < count; i++) {
        const float level = (fabsf(val[i]) - l.base) / l.step;
        const int nearest = (int)(fminf(fmaxf(level, 0.0f), (float)top) + 0.5f);
        const int negative = signbit(val[i]) != 0;
        rounded[i] = l.base + (float)nearest * l.step;
        if (negative)
            rounded[i] = -rounded[i];
        code[i] = (uint32_t)(negative << (bits - 1) | nearest);
    }
    append_strides(b, code, count, bits);
}

static void append_values(bytes *b, int format, const float *val, int64_t count, float *rounded) {
    const model_format *f = &formats[format];
    if (f->type == QUANTIZED) {
        append_quantized(b, val, count, f->bits, rounded);
        return;
    }
    uint8_t encoded[4 * BLOCK];
    oracle_encode(encoded, val, count, f->type);
    oracle_decode(rounded, encoded, count, f->type);
    append(b, encoded, (size_t)(count * f->bits / 8));
}

/* ---- The message ---------------------------------------------------------------------------- */

uint8_t *wire_model_encode(int format, const int32_t *idx, const float *val, int64_t count,
                           int64_t lo, int64_t hi, size_t *size, float *rounded) {
    uint32_t *x = calloc((size_t)count + 1, sizeof *x);
    uint32_t *gap = calloc((size_t)count + 1, sizeof *gap);
    const uint32_t total = (uint32_t)count;
    bytes message = {NULL, 0};
    if (!x || !gap)
        abort();
    for (int64_t i = 0; i < count; i++) {
        x[i] = (uint32_t)(idx[i] - lo);
        gap[i] = i > 0 ? x[i] - x[i - 1] - 1 : x[i];
    }
    const int width = smallest(x, gap, count, hi - lo);
    const uint8_t start[4] = {2, (uint8_t)format, (uint8_t)width, 0};
    append(&message, start, sizeof start);
    append(&message, &total, sizeof total);
    append_lows(&message, x, gap, count, width);
    for (int64_t i = 0; i < count; i += BLOCK)
        append_values(&message, format, val + i, at_most(BLOCK, count - i), rounded + i);
    append_bitmap(&message, gap, count, width);
    free(x);
    free(gap);
    *size = message.size;
    return message.at;
}
