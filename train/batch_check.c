/* batch_check.c - counts, missing parts, and every index in its range
 *
 * An index out of range would read and write beyond tables, so all are looked at: a few thousand
 * comparisons against the millions of products of a step.
 */
#include "batch_check.h"

#include "model_calls.h"

/* values[samples][each] all in low .. high. */
static int check_range(const int32_t *values, int samples, int each, int32_t low, int32_t high,
                       const char *what, model_error *error) {
    for (int i = 0; i < samples; i++) {
        for (int j = 0; j < each; j++) {
            int32_t value = values[(int64_t)i * each + j];
            if (value < low || value > high) {
                return model_refuse(error, MODEL_ERR_BATCH, "%s of sample %d is %d; %d .. %d is %s",
                                    what, i, (int)value, (int)low, (int)high, "accepted");
            }
        }
    }
    return MODEL_OK;
}

static int check_images(const model *m, const model_batch *b, model_error *error) {
    if (!b->images || !b->labels)
        return model_refuse(error, MODEL_ERR_BATCH, "%s needs images and labels", m->kind->name);
    return check_range(b->labels, b->count, 1, MODEL_IGNORE, m->kind->classes - 1, "label", error);
}

static int check_words(const model *m, const model_batch *b, model_error *error) {
    const int length = m->spec.length, last = m->spec.vocabulary - 1;
    if (!b->tokens || !b->labels)
        return model_refuse(error, MODEL_ERR_BATCH, "%s needs tokens and labels", m->kind->name);
    int status = check_range(b->tokens, b->count, length, 0, last, "token", error);
    if (status == MODEL_OK)
        status = check_range(b->labels, b->count, length, MODEL_IGNORE, last, "label", error);
    return status;
}

static int check_masked(const model *m, const model_batch *b, model_error *error) {
    const int length = m->spec.length;
    int status = check_words(m, b, error);
    if (status == MODEL_OK && b->segments)
        status = check_range(b->segments, b->count, length, 0, 1, "segment", error);
    if (status == MODEL_OK && b->lengths)
        status = check_range(b->lengths, b->count, 1, 1, length, "length", error);
    if (status == MODEL_OK && b->follows)
        status = check_range(b->follows, b->count, 1, MODEL_IGNORE, 1, "follows", error);
    return status;
}

int batch_check(const model *m, const model_batch *batch, model_error *error) {
    if (batch->count < 1 || batch->count > m->spec.max_batch) {
        return model_refuse(error, MODEL_ERR_BATCH, "a batch of %d; 1 .. %d is accepted",
                            batch->count, m->spec.max_batch);
    }
    switch (m->kind->input) {
    case MODEL_IMAGES:
        return check_images(m, batch, error);
    case MODEL_WORDS:
        return check_words(m, batch, error);
    case MODEL_MASKED:
        return check_masked(m, batch, error);
    }
    return MODEL_OK;
}
