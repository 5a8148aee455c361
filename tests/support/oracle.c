/* oracle.c - data, conversions and a top-k by full sort; see oracle.h
 *
 * Conversions between float32 and the 16-bit types use arithmetic (frexp, ldexp). The kernels use
 * bit tricks and the CPU's instructions, so the two cannot share a bug.
 */
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "thinwire.h"

/* ---- Random numbers -------------------------------------------------------------------------- */

uint64_t oracle_next(oracle_rng *rng) {
    return tw__random(rng->key, rng->counter++);
}

int64_t oracle_below(oracle_rng *rng, int64_t bound) {
    return (int64_t)(oracle_next(rng) % (uint64_t)bound);
}

double oracle_uniform(oracle_rng *rng) {
    return ((double)(oracle_next(rng) >> 11) + 0.5) * 0x1p-53;
}

double oracle_gauss(oracle_rng *rng) {
    const double radius = sqrt(-2.0 * log(oracle_uniform(rng)));
    return radius * cos(6.283185307179586 * oracle_uniform(rng));
}

/* ---- Vectors --------------------------------------------------------------------------------- */

const char *oracle_data_name(oracle_data kind) {
    static const char *const names[] = {
#define ORACLE_DATA_TEXT(name, text) text,
        ORACLE_DATA(ORACLE_DATA_TEXT)
#undef ORACLE_DATA_TEXT
    };
    return names[kind];
}

static double laplace(oracle_rng *rng) {
    const double magnitude = -log(oracle_uniform(rng));
    return oracle_next(rng) & 1 ? magnitude : -magnitude;
}

static float any_bits(oracle_rng *rng) {
    const uint32_t random = (uint32_t)oracle_next(rng);
    const uint32_t exponent = (uint32_t)oracle_below(rng, 127 + 60);
    return oracle_float((random & 0x807fffffu) | exponent << 23);
}

static float signed_zero(oracle_rng *rng) {
    const int64_t dice = oracle_below(rng, 40);
    return dice == 0 ? 1.5f : dice == 1 ? -1.5f : dice & 1 ? -0.0f : 0.0f;
}

static float denormal(oracle_rng *rng) {
    const uint64_t random = oracle_next(rng);
    return oracle_float((uint32_t)(random & 0x800fffffu)); /* mantissas of up to 20 bits */
}

/* Entry i of n. A spike or region begins at the fraction `where` of the vector, in [0, 1). */
static float value_at(oracle_data kind, oracle_rng *rng, int64_t i, int64_t n, double where) {
    const int64_t start = (int64_t)(where * (double)n);
    switch (kind) {
    case DATA_SUMMABLE:
        return (float)(oracle_below(rng, 201) - 100) * 0x1p-10f;
    case DATA_GAUSS:
        return (float)oracle_gauss(rng);
    case DATA_LAPLACE:
        return (float)laplace(rng);
    case DATA_POWER5:
        return (float)pow(oracle_gauss(rng), 5.0);
    case DATA_ZEROS:
        return 0.0f;
    case DATA_CONSTANT:
        return -0.75f;
    case DATA_SPIKE:
        return i == start ? 1e9f : 1e-9f * (float)oracle_gauss(rng);
    case DATA_TIES:
        return (float)(oracle_below(rng, 7) - 3);
    case DATA_DENORMALS:
        return denormal(rng);
    case DATA_SIGNED_ZEROS:
        return signed_zero(rng);
    case DATA_ASCENDING:
        return (float)(i + 1) * 0.25f;
    case DATA_DESCENDING:
        return (float)(i - n) * 0.25f;
    case DATA_REGION:
        return (float)oracle_gauss(rng) * (i >= start && i < start + n / 16 + 1 ? 1000.0f : 1e-3f);
    case DATA_BITS:
        return any_bits(rng);
    case DATA_KINDS:
        break;
    }
    abort();
}

void oracle_fill(float *x, int64_t n, oracle_data kind, uint64_t seed) {
    oracle_rng rng = {.key = seed * 1000003u + (uint64_t)kind};
    const double where = oracle_uniform(&rng);
    for (int64_t i = 0; i < n; i++)
        x[i] = value_at(kind, &rng, i, n, where);
}

/* ---- Element types --------------------------------------------------------------------------- */

/* The layout of a type of 1 sign bit, some exponent bits and `mantissa` stored mantissa bits. */
typedef struct layout {
    int mantissa;
    int exponent_min;  /* of the smallest normal number, as a power of two */
    uint32_t infinity; /* its bits */
} layout;

static layout layout_of(int type) {
    const layout f16 = {10, -14, 0x7c00u};
    const layout bf16 = {7, -126, 0x7f80u};
    return type == TW_F16 ? f16 : bf16;
}

static float from_short(uint16_t bits, layout form) {
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t one = 1u << form.mantissa;
    const uint32_t exponent = magnitude >> form.mantissa;
    const uint32_t mantissa = magnitude & (one - 1);
    const int scale = form.exponent_min - form.mantissa;
    double value;
    if (magnitude >= form.infinity)
        value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp((double)mantissa, scale);
    else
        value = ldexp((double)(one | mantissa), scale + (int)exponent - 1);
    return (float)(bits & 0x8000u ? -value : value);
}

static uint16_t to_short(float x, layout form) {
    const uint32_t sign = signbit(x) ? 0x8000u : 0;
    if (isnan(x))
        return (uint16_t)(sign | form.infinity | 1u);
    if (isinf(x))
        return (uint16_t)(sign | form.infinity);
    if (x == 0.0f)
        return (uint16_t)sign;
    int exponent;
    frexp((double)x, &exponent); /* |x| in [0.5, 1) x 2^exponent */
    const int scale = exponent - 1 < form.exponent_min ? form.exponent_min : exponent - 1;
    const double units = nearbyint(ldexp(fabs((double)x), form.mantissa - scale));
    uint32_t bits = (uint32_t)units; /* the implicit one adds 1 to the exponent field */
    bits += (uint32_t)(scale - form.exponent_min) << form.mantissa;
    return (uint16_t)(sign | (bits < form.infinity ? bits : form.infinity - 1));
}

int64_t oracle_type_size(int type) {
    return type == TW_F32 ? 4 : 2;
}

void oracle_encode(void *bytes, const float *x, int64_t n, int type) {
    if (type == TW_F32) {
        memcpy(bytes, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint16_t element = to_short(x[i], layout_of(type));
        memcpy((char *)bytes + 2 * i, &element, sizeof element);
    }
}

void oracle_decode(float *x, const void *bytes, int64_t n, int type) {
    if (type == TW_F32) {
        memcpy(x, bytes, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t element;
        memcpy(&element, (const char *)bytes + 2 * i, sizeof element);
        x[i] = from_short(element, layout_of(type));
    }
}

/* ---- Bits and selection ---------------------------------------------------------------------- */

uint32_t oracle_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint32_t oracle_magnitude(float x) {
    return oracle_bits(x) & 0x7fffffffu;
}

float oracle_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint64_t oracle_hash(uint64_t hash, const void *data, int64_t bytes) {
    for (int64_t at = 0; at + 4 <= bytes; at += 4) {
        uint32_t word;
        memcpy(&word, (const char *)data + at, sizeof word);
        hash = tw__mix(hash, word);
    }
    return hash;
}

int64_t oracle_difference(const float *a, const float *b, int64_t n) {
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0)
        return -1;
    int64_t i = 0;
    while (oracle_bits(a[i]) == oracle_bits(b[i]))
        i++;
    return i;
}

static int compare_keys(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static int compare_indices(const void *left, const void *right) {
    return *(const int32_t *)left - *(const int32_t *)right; /* both >= 0: no overflow */
}

int64_t oracle_topk(const float *acc, int64_t n, int64_t k, int32_t *idx, float *val) {
    uint64_t *keys = malloc((size_t)n * sizeof *keys); /* large first, then small index first */
    if (!keys)
        abort();
    int64_t nonzeros = 0;
    for (int64_t i = 0; i < n; i++)
        if (acc[i] != 0.0f)
            keys[nonzeros++] = (uint64_t)~oracle_magnitude(acc[i]) << 32 | (uint32_t)i;
    qsort(keys, (size_t)nonzeros, sizeof *keys, compare_keys);

    const int64_t count = k < nonzeros ? k : nonzeros;
    for (int64_t j = 0; j < count; j++)
        idx[j] = (int32_t)(keys[j] & 0xffffffffu);
    free(keys);
    qsort(idx, (size_t)count, sizeof *idx, compare_indices);
    for (int64_t j = 0; j < count; j++)
        val[j] = acc[idx[j]];
    return count;
}
