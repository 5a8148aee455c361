/* data.c - generators of synthetic gradients
 *
 * Every chunk of PARALLEL_CHUNK values has its own random stream, seeded by (seed, chunk), so
 * chunks can be made in any order by any thread. The stream is SplitMix64 (Steele, Lea and Flood,
 * 2014); normals are made in pairs by Box and Muller's transform, Student's t by Bailey's polar
 * method (1994), both in float32: 133 million values take a second or two on two cores.
 * Not for statistics beyond 7 digits or for tails past 6.7 standard deviations.
 */
#include "data.h"

#include <math.h>
#include <stddef.h>

#include "parallel.h"
#include "random_bits.h"

#define TWO_PI 6.28318530717958647692f
#define SPIKE_SHARE 1000 /* one value in so many lies in the region of large ones */

/* What a generator needs to know beside its range. */
typedef struct vector_job {
    void (*fill)(const struct vector_job *job, float *values, int64_t begin, int64_t end);
    float *values; /* [n] */
    int64_t n;
    uint64_t seed;
} vector_job;

typedef struct random_stream {
    uint64_t state;
} random_stream;

static random_stream stream_for(const vector_job *job, int64_t begin) {
    return (random_stream){random_hash(job->seed, (uint64_t)(begin / PARALLEL_CHUNK))};
}

static uint64_t next_bits(random_stream *stream) {
    stream->state += GOLDEN_GAMMA;
    return random_mix(stream->state);
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

static void fill_zeros(const vector_job *job, float *values, int64_t begin, int64_t end) {
    (void)job;
    for (int64_t i = begin; i < end; i++)
        values[i] = 0.0f;
}

static void fill_constant(const vector_job *job, float *values, int64_t begin, int64_t end) {
    (void)job;
    for (int64_t i = begin; i < end; i++)
        values[i] = 0.5f;
}

/* All the large values in one region: whoever splits the index space evenly gets them all. */
static void fill_spike(const vector_job *job, float *values, int64_t begin, int64_t end) {
    int64_t length = job->n / SPIKE_SHARE > 0 ? job->n / SPIKE_SHARE : 1;
    uint64_t room = (uint64_t)(job->n - length) + 1;
    int64_t first = (int64_t)(random_hash(job->seed, UINT64_MAX) % room);
    random_stream stream = stream_for(job, begin);
    fill_gauss(job, values, begin, end);
    stream.state = ~stream.state; /* a stream apart from the one that made the normals */
    for (int64_t i = begin; i < end; i++) {
        values[i] *= 1e-3f;
        if (i >= first && i - first < length)
            values[i] *= powf(10.0f, 2.0f + 2.0f * unit(next_bits(&stream)));
    }
}

typedef struct data_kind {
    const char *name;
    void (*fill)(const vector_job *job, float *values, int64_t begin, int64_t end);
} data_kind;

static const data_kind kinds[] = {
    {"gauss", fill_gauss},       /* standard normal */
    {"laplace", fill_laplace},   /* Laplace, scale 1 */
    {"student", fill_student},   /* Student's t, 3 degrees of freedom: heavy tails */
    {"power5", fill_power5},     /* 5th power of a standard normal: very heavy tails */
    {"zeros", fill_zeros},       /* all 0: nothing to select */
    {"constant", fill_constant}, /* all 0.5: every magnitude tied */
    {"spike", fill_spike}, /* 0.001 x normal, one region of 0.1 % is 100 to 10000 times larger */
};

#define KIND_COUNT ((int)(sizeof kinds / sizeof kinds[0]))

const char *data_kind_name(int position) {
    return position >= 0 && position < KIND_COUNT ? kinds[position].name : NULL;
}

static void fill_chunk(void *context, int64_t begin, int64_t end) {
    const vector_job *job = context;
    job->fill(job, job->values, begin, end);
}

void data_fill(int kind, float *values, int64_t n, uint64_t seed) {
    vector_job job = {.fill = kinds[kind].fill, .values = values, .n = n, .seed = seed};
    parallel_for(n, fill_chunk, &job);
}
