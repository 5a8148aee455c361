/* gradients.c - windows into a base vector, scaled and converted where asked
 *
 * The shift is a multiple of 16 elements, one cache line, so that all steps have the same alignment
 * and none is slower for it. A shift that came twice in a row would be a gradient repeated, which
 * no training gives.
 */
#include "gradients.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "buffer.h"
#include "convert.h"
#include "data.h"
#include "errors.h"
#include "parallel.h"
#include "thinwire.h"

#define SHIFT_UNIT 16
#define SHIFT_COUNT 251 /* a prime: any stride visits all shifts before one comes again */
#define SHIFT_STRIDE 97

typedef struct conversion {
    const float *window; /* [n] */
    float scale;
    int type;
    float *exact;   /* [n] */
    uint16_t *half; /* [n] or NULL */
} conversion;

static void convert_range(void *context, int64_t begin, int64_t end) {
    const conversion *job = context;
    for (int64_t i = begin; i < end; i++)
        job->exact[i] = job->window[i] * job->scale;
    if (job->type == TW_F16)
        convert_to_f16(job->exact + begin, job->half + begin, end - begin);
    else if (job->type == TW_BF16)
        convert_to_bf16(job->exact + begin, job->half + begin, end - begin);
}

int gradients_create(gradients *source, const gradient_spec *spec) {
    int64_t base_length = spec->n + SHIFT_COUNT * SHIFT_UNIT;
    bool is_half = spec->type != TW_F32;
    bool is_copy = is_half || spec->drift != 1.0;
    *source = (gradients){.spec = *spec};
    source->base = buffer_create(base_length, sizeof *source->base);
    source->exact = is_copy ? buffer_create(spec->n, sizeof *source->exact) : NULL;
    source->half = is_half ? buffer_create(spec->n, sizeof *source->half) : NULL;
    if (source->base == NULL || (is_copy && source->exact == NULL) ||
        (is_half && source->half == NULL)) {
        gradients_free(source);
        return failure("not enough memory for gradients of %" PRId64 " elements; try a smaller --n",
                       spec->n);
    }
    data_fill(spec->data, source->base, base_length, spec->seed);
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
    conversion job = {
        .window = window,
        .scale = (float)pow(source->spec.drift, (double)step),
        .type = source->spec.type,
        .exact = source->exact,
        .half = source->half,
    };
    parallel_for(source->spec.n, convert_range, &job);
    const void *typed = source->half != NULL ? (const void *)source->half : source->exact;
    return (gradient){.typed = typed, .values = source->exact};
}
