/* gradients.c - generators of synthetic gradients, and windows into them for the steps
 *
 * Every chunk of CHUNK values has its own random numbers, seeded by (seed, chunk), so chunks can be
 * made in any order by any thread. Normals are made in pairs by Box and Muller's transform,
 * Student's t by Bailey's polar method (1994), both in float32: 133 million values take a second or
 * two on two cores. Not for statistics beyond 7 digits or for tails past 6.7 standard deviations.
 */
#include "bench/gradients.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/pool.h"
#include "bench/patterns.h"
#include "cli.h"
#include "vector.h"

#define CHUNK 65536
#define TWO_PI 6.28318530717958647692f
#define SPIKE_SHARE 1000 /* one value in 1000 lies in the region of large ones */

#define SHIFT_UNIT 16   /* a cache line: all steps have the same alignment, none is slower for it */
#define SHIFT_COUNT 251 /* a prime: any stride visits all shifts before one comes again */
#define SHIFT_STRIDE 97

/* Chunks of [0, n) on all cores; their bounds depend on n alone, so results do not depend on the
 * number of threads. */
static void for_chunks(int64_t n, tw__task *task, void *context) {
    int threads = tw_default_threads();
    tw__pool_retain(threads);
    tw__pool_run(threads, (n + CHUNK - 1) / CHUNK, task, context);
    tw__pool_release();
}

static int64_t chunk_end(int64_t chunk, int64_t n) {
    return (chunk + 1) * CHUNK < n ? (chunk + 1) * CHUNK : n;
}

/* What a generator needs to know besides its range. */
typedef struct vector_job {
    int kind;
    float constant; /* of fill_constant */
    float *values;  /* [n] */
    int64_t n;
    uint64_t seed;
} vector_job;

typedef struct random_stream {
    uint64_t key, counter;
} random_stream;

static random_stream stream_for(const vector_job *job, int64_t begin) {
    return (random_stream){.key = pattern_random(job->seed, (uint64_t)(begin / CHUNK))};
}

static uint64_t next_bits(random_stream *stream) {
    return tw__random(stream->key, stream->counter++);
}

/* Uniform in (0, 1], never 0 so that its logarithm is finite; small values keep full precision. */
static float unit(uint64_t bits32) {
    return ((float)(uint32_t)bits32 + 0.5f) * 0x1p-32f;
}

/* Two independent standard normals. */
static void next_normals(random_stream *stream, float pair[2]) {
    uint64_t bits = next_bits(stream);
    float radius = sqrtf(-2.0f * logf(unit(bits >> 32)));
    float angle = TWO_PI * unit(bits);
    pair[0] = radius * cosf(angle);
    pair[1] = radius * sinf(angle);
}

static void fill_gauss(const vector_job *job, float *values, int64_t begin, int64_t end) {
    random_stream stream = stream_for(job, begin);
    for (int64_t i = begin; i < end; i += 2) {
        float pair[2];
        next_normals(&stream, pair);
        values[i] = pair[0];
        if (i + 1 < end)
            values[i + 1] = pair[1];
    }
}

static void fill_laplace(const vector_job *job, float *values, int64_t begin, int64_t end) {
    random_stream stream = stream_for(job, begin);
    for (int64_t i = begin; i < end; i++) {
        uint64_t bits = next_bits(&stream);
        float magnitude = -logf(unit(bits >> 32));
        values[i] = (bits & 1) != 0 ? -magnitude : magnitude;
    }
}

static void fill_student(const vector_job *job, float *values, int64_t begin, int64_t end) {
    random_stream stream = stream_for(job, begin);
    for (int64_t i = begin; i < end; i++) {
        uint64_t bits = next_bits(&stream);
        float root = cbrtf(unit(bits >> 32)); /* u^(-2/3) is what 3 degrees of freedom ask for */
        float square = fmaxf(3.0f * (1.0f / (root * root) - 1.0f), 0.0f);
        values[i] = sqrtf(square) * cosf(TWO_PI * unit(bits));
    }
}

static void fill_power5(const vector_job *job, float *values, int64_t begin, int64_t end) {
    fill_gauss(job, values, begin, end);
    for (int64_t i = begin; i < end; i++) {
        float square = values[i] * values[i];
        values[i] *= square * square;
    }
}

static void fill_constant(const vector_job *job, float *values, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        values[i] = job->constant;
}

/* All the large values in one region: whoever splits the index space evenly gets them all. */
static void fill_spike(const vector_job *job, float *values, int64_t begin, int64_t end) {
    int64_t length = job->n / SPIKE_SHARE > 0 ? job->n / SPIKE_SHARE : 1;
    uint64_t room = (uint64_t)(job->n - length) + 1;
    int64_t first = (int64_t)(pattern_random(job->seed, UINT64_MAX) % room);
    random_stream stream = stream_for(job, begin);
    stream.key = ~stream.key; /* apart from the one that makes the normals */
    fill_gauss(job, values, begin, end);
    for (int64_t i = begin; i < end; i++) {
        values[i] *= 1e-3f;
        if (i >= first && i - first < length)
            values[i] *= powf(10.0f, 2.0f + 2.0f * unit(next_bits(&stream)));
    }
}

static const struct {
    const char *name;
    void (*fill)(const vector_job *job, float *values, int64_t begin, int64_t end);
    float constant;
} kinds[] = {
    {"gauss", fill_gauss, 0.0f},       /* standard normal */
    {"laplace", fill_laplace, 0.0f},   /* Laplace, scale 1 */
    {"student", fill_student, 0.0f},   /* Student's t, 3 degrees of freedom: heavy tails */
    {"power5", fill_power5, 0.0f},     /* 5th power of a standard normal: very heavy tails */
    {"zeros", fill_constant, 0.0f},    /* nothing to select */
    {"constant", fill_constant, 0.5f}, /* every magnitude tied */
    {"spike", fill_spike,
     0.0f}, /* 0.001 x normal, one region of 0.1 % is 100 to 10000 times larger */
};

const char *gradients_kind_name(int position) {
    return position >= 0 && position < COUNT_OF(kinds) ? kinds[position].name : NULL;
}

static void fill_chunk(void *context, int worker, int64_t chunk) {
    const vector_job *job = context;
    (void)worker;
    kinds[job->kind].fill(job, job->values, chunk * CHUNK, chunk_end(chunk, job->n));
}

void gradients_fill(int kind, float *values, int64_t n, uint64_t seed) {
    assert(kind >= 0 && kind < COUNT_OF(kinds));
    for_chunks(n, fill_chunk, &(vector_job){kind, kinds[kind].constant, values, n, seed});
}

/* ---- Half-sized types -------------------------------------------------------------------------
 *
 *                sign  exponent (bias)  fraction
 *     float32      1       8 (127)         23
 *     float16      1       5 (15)          10
 *     bfloat16     1       8 (127)          7
 *
 * Rounding to nearest even on the bits: add just under half of the last place kept, plus one if
 * that place is odd, then cut. A carry out of the fraction raises the exponent, which is right.
 * Overflow gives infinity. Shares no code with the library, which is being checked. */

#define F32_INFINITY 0x7f800000u
#define F16_INFINITY 0x7c00u
#define F16_LIMIT 0x47800000u      /* 2^16 as float32: from here on float16 has no exponent left */
#define F16_MIN_NORMAL 0x38800000u /* 2^-14 as float32 */
#define BIAS_STEP (112u << 23)     /* 127 - 15, in the place of float32's exponent */

/* Drop `shift` low bits, round to nearest even. */
static uint32_t round_off(uint32_t bits, int shift) {
    uint32_t odd = (bits >> shift) & 1u;
    return (bits + (1u << (shift - 1)) - 1u + odd) >> shift;
}

static uint32_t f16_magnitude(uint32_t magnitude) {
    if (magnitude > F32_INFINITY)
        return F16_INFINITY | 0x200u; /* quiet NaN */
    if (magnitude >= F16_LIMIT)
        return F16_INFINITY;
    if (magnitude < F16_MIN_NORMAL) {
        /* The last place of 0.5f is 2^-24, the smallest float16: the addition does the rounding. */
        return float_to_bits(float_from_bits(magnitude) + 0.5f) - float_to_bits(0.5f);
    }
    return round_off(magnitude - BIAS_STEP, 13);
}

static uint16_t f16_from_float(float value) {
    uint32_t bits = float_to_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    return (uint16_t)(sign | f16_magnitude(bits & 0x7fffffffu));
}

static float float_from_f16(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t magnitude = (half & 0x7fffu) << 13;
    if ((half & F16_INFINITY) == F16_INFINITY)
        return float_from_bits(sign | F32_INFINITY | magnitude);
    /* Read with float32's bias the number is 2^112 too small, subnormal or not. */
    return float_from_bits(sign | float_to_bits(float_from_bits(magnitude) * 0x1p112f));
}

static uint16_t bf16_from_float(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > F32_INFINITY)
        return (uint16_t)(bits >> 16 | 0x40u); /* stays NaN even if its low bits made it one */
    return (uint16_t)round_off(bits, 16);
}

typedef struct conversion {
    const gradients *source;
    const float *window; /* [n] */
    float scale;
} conversion;

static void convert_chunk(void *context, int worker, int64_t chunk) {
    const conversion *job = context;
    const gradients *to = job->source;
    (void)worker;
    for (int64_t i = chunk * CHUNK; i < chunk_end(chunk, to->spec.n); i++) {
        to->exact[i] = job->window[i] * job->scale;
        if (to->spec.type == TW_F16) {
            to->half[i] = f16_from_float(to->exact[i]);
            to->exact[i] = float_from_f16(to->half[i]);
        } else if (to->spec.type == TW_BF16) {
            to->half[i] = bf16_from_float(to->exact[i]);
            to->exact[i] = float_from_bits((uint32_t)to->half[i] << 16);
        }
    }
}

int gradients_create(gradients *source, const gradient_spec *spec) {
    int64_t base_length = spec->n + SHIFT_COUNT * SHIFT_UNIT;
    bool is_half = spec->type != TW_F32;
    bool is_copy = is_half || spec->drift != 1.0;
    *source = (gradients){.spec = *spec};
    source->base = vector_alloc(base_length, sizeof *source->base);
    source->exact = is_copy ? vector_alloc(spec->n, sizeof *source->exact) : NULL;
    source->half = is_half ? vector_alloc(spec->n, sizeof *source->half) : NULL;
    if (source->base == NULL || (is_copy && source->exact == NULL) ||
        (is_half && source->half == NULL)) {
        gradients_free(source);
        return error_report(
            "not enough memory for gradients of %" PRId64 " elements; try a smaller --n", spec->n);
    }
    gradients_fill(spec->kind, source->base, base_length, spec->seed);
    return STATUS_OK;
}

void gradients_free(gradients *source) {
    free(source->base);
    free(source->exact);
    free(source->half);
    *source = (gradients){0};
}

gradient gradients_at(gradients *source, int64_t step) {
    const float *window = source->base + step * SHIFT_STRIDE % SHIFT_COUNT * SHIFT_UNIT;
    if (source->exact == NULL)
        return (gradient){.typed = window, .values = window};
    float scale = (float)pow(source->spec.drift, (double)step);
    for_chunks(source->spec.n, convert_chunk, &(conversion){source, window, scale});
    const void *typed = source->half != NULL ? (const void *)source->half : source->exact;
    return (gradient){.typed = typed, .values = source->exact};
}
