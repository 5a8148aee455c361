/* model_bert.c - BERT (Devlin et al., 2019): encoder, masked words and next sentence
 *
 *     x = norm(words[token] + positions[0..length-1] + segments[segment])       [length][width]
 *     `layers` times an encoder layer (encoder.h)
 *     sentences: tanh(pool(x[first position])) -> linear to 2: does B follow A?
 *     words:     at masked positions only: norm(gelu(transform(x))) -> linear to the vocabulary
 *     loss = mean cross entropy of the words + mean cross entropy of the sentences
 * The decoder has weights of its own (not those of the embedding) and a bias: with 12 layers of
 * width 768, 12 heads, 3072 inside, 512 positions and 30,522 words, 133,547,324 parameters.
 */
#include <stdio.h>
#include <string.h>
#include <tgmath.h>

#include "encoder.h"
#include "layer_cross_entropy.h"
#include "layer_embedding.h"
#include "layer_gelu.h"
#include "model_calls.h"

enum { MOST_LAYERS = 48, POSITIONS = 512, SEGMENTS = 2, SENTENCES = 2 };

/* Uniform values with the standard deviation 0.02 of the paper. */
#define BOUND (0.02 * 1.7320508075688772)

typedef struct bert {
    int nlayers, length, width;
    embedding words, positions, segments;
    layer_norm norm;
    encoder layers[MOST_LAYERS];

    linear pool;     /* of the first position */
    linear sentence; /* width to SENTENCES */
    cross_entropy sentence_loss;
    real *first;           /* [count][width] x at the first position, then its gradient */
    real *pooled;          /* [count][width] */
    real *sentence_logits; /* [count][SENTENCES] becomes their gradient */
    int32_t *follows;      /* [count] labels */

    linear transform; /* width to width */
    layer_norm word_norm;
    linear decoder; /* width to vocabulary */
    cross_entropy word_loss;
    int nmasked;       /* of this batch */
    int32_t *masked;   /* [nmasked] rows that have a label */
    int32_t *labels;   /* [nmasked] */
    real *chosen;      /* [nmasked][width] x at these rows */
    real *transformed; /* [nmasked][width] */
    real *bent;        /* [nmasked][width] after gelu and norm */
    real *word_logits; /* [nmasked][vocabulary] becomes their gradient */

    int32_t *position_ids; /* [rows] */
    int32_t *segment_ids;  /* [rows] */
    real *x;               /* [rows][width] embedded and normalised */
    real *grad[2];         /* [rows][width] each: gradients on their way back */
} bert;

/* ---- Sizes ---------------------------------------------------------------------------------------- */

typedef struct bert_size {
    const char *name;
    int width, layers, heads, inner;
} bert_size;

static const bert_size sizes[] = {{"tiny", 128, 2, 2, 512}, {"base", 768, 12, 12, 3072}};

static const bert_size *find_size(const char *name) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (!name || strcmp(name, sizes[i].name) == 0)
            return &sizes[i];
    return NULL;
}

static int complete(model_spec *spec, model_error *error) {
    const bert_size *size = find_size(spec->size);
    if (!size) {
        return model_refuse(error, MODEL_ERR_NAME,
                            "bert has no size '%s'; tiny or base is accepted", spec->size);
    }
    spec->size = size->name;
    const struct {
        int *field;
        const char *name;
        int standard, most;
    } fields[] = {{&spec->vocabulary, "vocabulary", 30522, 10000000},
                  {&spec->length, "length", 128, POSITIONS},
                  {&spec->width, "width", size->width, 16384},
                  {&spec->layers, "layers", size->layers, MOST_LAYERS},
                  {&spec->heads, "heads", size->heads, 1024},
                  {&spec->inner, "inner", size->inner, 65536}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        int status = model_complete_field(fields[i].field, fields[i].name, fields[i].standard, 1,
                                          fields[i].most, error);
        if (status != MODEL_OK)
            return status;
    }
    if (spec->width % spec->heads != 0) {
        return model_refuse(error, MODEL_ERR_SPEC, "width %d is not a multiple of heads %d",
                            spec->width, spec->heads);
    }
    return MODEL_OK;
}

/* ---- Building ------------------------------------------------------------------------------------- */

static void build_encoder(bert *net, plan *p, const model_spec *spec) {
    const int width = spec->width, rows = spec->max_batch * spec->length;
    embedding_create(&net->words, p, "words", spec->vocabulary, width, BOUND);
    embedding_create(&net->positions, p, "positions", POSITIONS, width, BOUND);
    embedding_create(&net->segments, p, "segments", SEGMENTS, width, BOUND);
    layer_norm_create(&net->norm, p, "norm", rows, width);
    encoder_shape shape = {spec->max_batch, spec->length, width, spec->heads, spec->inner};
    for (int i = 0; i < net->nlayers; i++) {
        char name[PLAN_NAME];
        snprintf(name, sizeof name, "layer%d", i + 1);
        encoder_create(&net->layers[i], p, name, shape, BOUND);
    }
    net->position_ids = plan_work(p, rows, sizeof *net->position_ids);
    net->segment_ids = plan_work(p, rows, sizeof *net->segment_ids);
    net->x = plan_reals(p, (int64_t)rows * width);
    for (int i = 0; i < 2; i++)
        net->grad[i] = plan_reals(p, (int64_t)rows * width);
}

static void build_sentences(bert *net, plan *p, const model_spec *spec) {
    const int64_t most = spec->max_batch;
    linear_create(&net->pool, p, "pool", spec->width, spec->width, BOUND, true);
    linear_create(&net->sentence, p, "sentence", spec->width, SENTENCES, BOUND, true);
    cross_entropy_create(&net->sentence_loss, p, spec->max_batch, SENTENCES);
    net->first = plan_reals(p, most * spec->width);
    net->pooled = plan_reals(p, most * spec->width);
    net->sentence_logits = plan_reals(p, most * SENTENCES);
    net->follows = plan_work(p, most, sizeof *net->follows);
}

static void build_words(bert *net, plan *p, const model_spec *spec) {
    const int width = spec->width, rows = spec->max_batch * spec->length;
    linear_create(&net->transform, p, "transform", width, width, BOUND, true);
    layer_norm_create(&net->word_norm, p, "word_norm", rows, width);
    linear_create(&net->decoder, p, "decoder", width, spec->vocabulary, BOUND, true);
    cross_entropy_create(&net->word_loss, p, rows, spec->vocabulary);
    net->masked = plan_work(p, rows, sizeof *net->masked);
    net->labels = plan_work(p, rows, sizeof *net->labels);
    net->chosen = plan_reals(p, (int64_t)rows * width);
    net->transformed = plan_reals(p, (int64_t)rows * width);
    net->bent = plan_reals(p, (int64_t)rows * width);
    net->word_logits = plan_reals(p, (int64_t)rows * spec->vocabulary);
}

static void build(void *self, plan *p, const model_spec *spec) {
    bert *net = self;
    net->nlayers = spec->layers;
    net->length = spec->length;
    net->width = spec->width;
    build_encoder(net, p, spec);
    build_sentences(net, p, spec);
    build_words(net, p, spec);
}

/* ---- Forward -------------------------------------------------------------------------------------- */

/* Ids of positions and segments, the rows that have a label, and the labels of sentences. */
static void take_batch(bert *net, const model_batch *batch) {
    const int rows = batch->count * net->length;
    net->nmasked = 0;
    for (int i = 0; i < rows; i++) {
        net->position_ids[i] = i % net->length;
        net->segment_ids[i] = batch->segments ? batch->segments[i] : 0;
        if (batch->labels[i] != MODEL_IGNORE) {
            net->masked[net->nmasked] = i;
            net->labels[net->nmasked] = batch->labels[i];
            net->nmasked++;
        }
    }
    for (int i = 0; i < batch->count; i++)
        net->follows[i] = batch->follows ? batch->follows[i] : MODEL_IGNORE;
}

static void copy_row(real *to, const real *from, int width) {
    memcpy(to, from, (size_t)width * sizeof *to);
}

static cross_entropy_result sentences_forward(const bert *net, const pass *p, int count,
                                              const real *x) {
    const int64_t n = (int64_t)count * net->width;
    for (int64_t i = 0; i < count; i++)
        copy_row(net->first + i * net->width, x + i * net->length * net->width, net->width);
    linear_forward(&net->pool, p, count, net->first, net->pooled);
    for (int64_t i = 0; i < n; i++)
        net->pooled[i] = tanh(net->pooled[i]);
    linear_forward(&net->sentence, p, count, net->pooled, net->sentence_logits);
    return cross_entropy_forward(&net->sentence_loss, p, count, net->follows, net->sentence_logits);
}

static cross_entropy_result words_forward(const bert *net, const pass *p, const real *x) {
    const int rows = net->nmasked, width = net->width;
    for (int64_t i = 0; i < rows; i++)
        copy_row(net->chosen + i * width, x + (int64_t)net->masked[i] * width, width);
    linear_forward(&net->transform, p, rows, net->chosen, net->transformed);
    gelu_forward(p, (int64_t)rows * width, net->transformed, net->bent);
    layer_norm_forward(&net->word_norm, p, rows, net->bent, net->bent);
    linear_forward(&net->decoder, p, rows, net->bent, net->word_logits);
    return cross_entropy_forward(&net->word_loss, p, rows, net->labels, net->word_logits);
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    bert *net = self;
    const int rows = batch->count * net->length;
    take_batch(net, batch);
    embedding_forward(&net->words, rows, batch->tokens, false, net->x);
    embedding_forward(&net->positions, rows, net->position_ids, true, net->x);
    embedding_forward(&net->segments, rows, net->segment_ids, true, net->x);
    layer_norm_forward(&net->norm, p, rows, net->x, net->x);
    const real *x = net->x;
    for (int i = 0; i < net->nlayers; i++)
        x = encoder_forward(&net->layers[i], p, batch->count, batch->lengths, x);
    cross_entropy_result sentences = sentences_forward(net, p, batch->count, x);
    cross_entropy_result words = words_forward(net, p, x);
    return (model_result){.loss = words.loss + sentences.loss,
                          .count = words.count,
                          .correct = words.correct,
                          .sentences = sentences.count,
                          .sentences_correct = sentences.correct};
}

/* ---- Backward ------------------------------------------------------------------------------------- */

/* Adds to dx[rows][width] at the masked rows. */
static void words_backward(const bert *net, const pass *p, real *temporary, real *dx) {
    const int rows = net->nmasked, width = net->width;
    linear_backward(&net->decoder, p, rows, net->bent, net->word_logits, temporary);
    layer_norm_backward(&net->word_norm, p, rows, temporary);
    gelu_backward(p, (int64_t)rows * width, net->transformed, temporary);
    linear_backward(&net->transform, p, rows, net->chosen, temporary, net->chosen);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            dx[(int64_t)net->masked[i] * width + j] += net->chosen[i * width + j];
}

/* Adds to dx[rows][width] at the first position of each sequence. */
static void sentences_backward(const bert *net, const pass *p, int count, real *temporary,
                               real *dx) {
    const int64_t width = net->width, n = count * width;
    linear_backward(&net->sentence, p, count, net->pooled, net->sentence_logits, temporary);
    for (int64_t i = 0; i < n; i++)
        temporary[i] *= 1 - net->pooled[i] * net->pooled[i];
    linear_backward(&net->pool, p, count, net->first, temporary, net->first);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++)
            dx[i * net->length * width + j] += net->first[i * width + j];
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const bert *net = self;
    const int rows = batch->count * net->length;
    real *dx = net->grad[0], *temporary = net->grad[1];
    memset(dx, 0, (size_t)rows * (size_t)net->width * sizeof *dx);
    words_backward(net, p, temporary, dx);
    sentences_backward(net, p, batch->count, temporary, dx);
    for (int i = net->nlayers - 1; i >= 0; i--) {
        const real *x = i > 0 ? net->layers[i - 1].y : net->x;
        encoder_backward(&net->layers[i], p, batch->count, batch->lengths, x, dx, temporary);
    }
    layer_norm_backward(&net->norm, p, rows, dx);
    embedding_backward(&net->segments, p, rows, net->segment_ids, dx);
    embedding_backward(&net->positions, p, rows, net->position_ids, dx);
    embedding_backward(&net->words, p, rows, batch->tokens, dx);
}

static const model_calls calls = {.bytes = sizeof(bert),
                                  .complete = complete,
                                  .build = build,
                                  .forward = forward,
                                  .backward = backward};

const model_kind model_bert = {
    .name = "bert",
    .description = "BERT encoder with masked words and next sentence; sizes tiny and base",
    .input = MODEL_MASKED,
    .calls = &calls};
