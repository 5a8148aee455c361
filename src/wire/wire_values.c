/* wire_values.c - the table of value formats */
#include "wire/wire.h"
#include "backend/cpu/wire_kernels.h"

static void encode_f32(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    (void)kernels;
    memcpy(out, val, sizeof *val * (size_t)count);
}

static void decode_f32(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    (void)kernels;
    memcpy(val, in, sizeof *val * (size_t)count);
}

static void encode_f16(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    kernels->wire->narrow_f16(val, count, out);
}

static void decode_f16(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    kernels->widen_f16(val, in, count);
}

static void encode_bf16(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    kernels->wire->narrow_bf16(val, count, out);
}

static void decode_bf16(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    kernels->widen_bf16(val, in, count);
}

static void encode_q8(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    kernels->wire->quantize(val, count, 8, out);
}

static void decode_q8(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    kernels->wire->dequantize(in, count, 8, val);
}

static void encode_q4(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    kernels->wire->quantize(val, count, 4, out);
}

static void decode_q4(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    kernels->wire->dequantize(in, count, 4, val);
}

static void encode_q2(const tw__kernels *kernels, const float *val, int count, uint8_t *out) {
    kernels->wire->quantize(val, count, 2, out);
}

static void decode_q2(const tw__kernels *kernels, const uint8_t *in, int count, float *val) {
    kernels->wire->dequantize(in, count, 2, val);
}

static const tw__wire formats[] = {
    {"f32", "float32, as it is", TW__WIRE_F32, 32, 0, encode_f32, decode_f32},
    {"f16", "binary16, clamped at 65504", TW__WIRE_F16, 16, 0, encode_f16, decode_f16},
    {"bf16", "bfloat16: float32's range, 8 bits of precision", TW__WIRE_BF16, 16, 0, encode_bf16,
     decode_bf16},
    {"q8", "sign and 128 levels between a block's smallest and largest magnitude", TW__WIRE_Q8, 8,
     TW__WIRE_LEVELS_BYTES, encode_q8, decode_q8},
    {"q4", "sign and 8 levels between a block's smallest and largest magnitude", TW__WIRE_Q4, 4,
     TW__WIRE_LEVELS_BYTES, encode_q4, decode_q4},
    {"q2", "sign and 2 levels, the means of a block's small and large magnitudes", TW__WIRE_Q2, 2,
     TW__WIRE_LEVELS_BYTES, encode_q2, decode_q2},
};

enum { FORMATS = sizeof formats / sizeof formats[0] };

const tw__wire *tw__wire_find(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(name, formats[i].name) == 0)
            return &formats[i];
    return NULL;
}

const tw__wire *tw__wire_at(int position) {
    return position >= 0 && position < FORMATS ? &formats[position] : NULL;
}

/* Whole blocks, and the one that is left. */
size_t tw__wire_value_bytes(const tw__wire *format, int64_t count) {
    size_t blocks = (size_t)((count + TW__WIRE_BLOCK - 1) / TW__WIRE_BLOCK);
    return blocks * (size_t)format->levels_bytes + tw__bits_bytes(count, format->bits);
}
