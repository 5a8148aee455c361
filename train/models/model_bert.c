/* model_bert.c - BERT (Devlin et al., 2019): encoder, masked words and next sentence
 *
 *     x = norm(words[token] + positions[0..length-1] + segments[segment])       [length][width]
 *     `layers` times an encoder layer (layers.h)
 *     sentences: tanh(pool(x[first position])) -> linear to 2: does B follow A?
 *     words:     at masked positions only: norm(gelu(transform(x))) -> linear to the vocabulary
 *     loss = mean cross entropy of the words + mean cross entropy of the sentences
 * The decoder has weights of its own (not those of the embedding) and a bias: with 12 layers of
 * width 768, 12 heads, 3072 inside, 512 positions and 30,522 words, 133,547,324 parameters.
 */
#include <string.h>
#include <tgmath.h>

#include "layers/vector.h"
#include "models/models.h"

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

static const struct bert_size {
    const char *name;
    int width, layers, heads, inner;
} sizes[] = {{"tiny", 128, 2, 2, 512}, {"base", 768, 12, 12, 3072}};

static int complete(model_spec *spec) {
    const struct bert_size *size = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !size; i++)
        if (!spec->size || strcmp(spec->size, sizes[i].name) == 0)
            size = &sizes[i];
    if (!size)
        return tw__fail(TW_ERR_NAME, "bert has no size '%s'; tiny or base is accepted", spec->size);
    spec->size = size->name;
    TW_TRY(complete_field(&spec->vocabulary, "vocabulary", 30522, 1, 10000000));
    TW_TRY(complete_field(&spec->length, "length", 128, 1, POSITIONS));
    TW_TRY(complete_field(&spec->width, "width", size->width, 1, 16384));
    TW_TRY(complete_field(&spec->layers, "layers", size->layers, 1, MOST_LAYERS));
    TW_TRY(complete_field(&spec->heads, "heads", size->heads, 1, 1024));
    TW_TRY(complete_field(&spec->inner, "inner", size->inner, 1, 65536));
    if (spec->width % spec->heads != 0)
        return tw__fail(TW_ERR_PARAM, "width %d is not a multiple of heads %d", spec->width,
                        spec->heads);
    return TW_OK;
}

static void build(void *self, layout *to, const model_spec *spec) {
    bert *net = self;
    const int width = spec->width, most = spec->max_batch, rows = most * spec->length;
    const int64_t all = (int64_t)rows * width;
    net->nlayers = spec->layers;
    net->length = spec->length;
    net->width = width;
    embedding_create(&net->words, to, "words", spec->vocabulary, width, BOUND);
    embedding_create(&net->positions, to, "positions", POSITIONS, width, BOUND);
    embedding_create(&net->segments, to, "segments", SEGMENTS, width, BOUND);
    layer_norm_create(&net->norm, to, "norm", rows, width);
    encoder_shape shape = {most, spec->length, width, spec->heads, spec->inner};
    for (int i = 0; i < net->nlayers; i++)
        encoder_create(&net->layers[i], to, name_part("layer%d", i + 1).text, shape, BOUND);
    net->position_ids = layout_memory(to, rows, sizeof *net->position_ids);
    net->segment_ids = layout_memory(to, rows, sizeof *net->segment_ids);
    net->x = layout_reals(to, all);
    for (int i = 0; i < 2; i++)
        net->grad[i] = layout_reals(to, all);

    linear_create(&net->pool, to, "pool", width, width, BOUND, true);
    linear_create(&net->sentence, to, "sentence", width, SENTENCES, BOUND, true);
    cross_entropy_create(&net->sentence_loss, to, most, SENTENCES);
    net->first = layout_reals(to, (int64_t)most * width);
    net->pooled = layout_reals(to, (int64_t)most * width);
    net->sentence_logits = layout_reals(to, (int64_t)most * SENTENCES);
    net->follows = layout_memory(to, most, sizeof *net->follows);

    linear_create(&net->transform, to, "transform", width, width, BOUND, true);
    layer_norm_create(&net->word_norm, to, "word_norm", rows, width);
    linear_create(&net->decoder, to, "decoder", width, spec->vocabulary, BOUND, true);
    cross_entropy_create(&net->word_loss, to, rows, spec->vocabulary);
    net->masked = layout_memory(to, rows, sizeof *net->masked);
    net->labels = layout_memory(to, rows, sizeof *net->labels);
    net->chosen = layout_reals(to, all);
    net->transformed = layout_reals(to, all);
    net->bent = layout_reals(to, all);
    net->word_logits = layout_reals(to, (int64_t)rows * spec->vocabulary);
}

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

static model_result sentences_forward(const bert *net, const pass *p, int count, const real *x) {
    const int64_t n = (int64_t)count * net->width;
    const size_t row = (size_t)net->width * sizeof *x;
    for (int64_t i = 0; i < count; i++)
        memcpy(net->first + i * net->width, x + i * net->length * net->width, row);
    linear_forward(&net->pool, p, count, net->first, net->pooled);
    for (int64_t i = 0; i < n; i++)
        net->pooled[i] = tanh(net->pooled[i]);
    linear_forward(&net->sentence, p, count, net->pooled, net->sentence_logits);
    return cross_entropy_forward(&net->sentence_loss, p, count, net->follows, net->sentence_logits);
}

static model_result words_forward(const bert *net, const pass *p, const real *x) {
    const int rows = net->nmasked, width = net->width;
    for (int64_t i = 0; i < rows; i++)
        memcpy(net->chosen + i * width, x + (int64_t)net->masked[i] * width,
               (size_t)width * sizeof *x);
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
    model_result sentences = sentences_forward(net, p, batch->count, x);
    model_result words = words_forward(net, p, x);
    words.loss += sentences.loss;
    words.sentences = sentences.count;
    words.sentences_correct = sentences.correct;
    return words;
}

/* Adds to dx[rows][width] at the masked rows. */
static void words_backward(const bert *net, const pass *p, real *temporary, real *dx) {
    const int rows = net->nmasked, width = net->width;
    linear_backward(&net->decoder, p, rows, net->bent, net->word_logits, temporary);
    layer_norm_backward(&net->word_norm, p, rows, temporary);
    gelu_backward(p, (int64_t)rows * width, net->transformed, temporary);
    linear_backward(&net->transform, p, rows, net->chosen, temporary, net->chosen);
    for (int64_t i = 0; i < rows; i++)
        vector_add(dx + (int64_t)net->masked[i] * width, net->chosen + i * width, width);
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
        vector_add(dx + i * net->length * width, net->first + i * width, width);
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

const model_kind model_bert = {
    .name = "bert",
    .description = "BERT encoder with masked words and next sentence; sizes tiny and base",
    .input = MODEL_MASKED,
    .net_bytes = sizeof(bert),
    .complete = complete,
    .build = build,
    .forward = forward,
    .backward = backward,
};
