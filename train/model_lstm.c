/* model_lstm.c - a word-level language model: predicts each next word (Zaremba et al., 2014)
 *
 *     tokens [length] -> embedding [length][width] -> 1 or 2 lstm layers -> linear to the vocabulary
 * Each sequence starts from a zero state. Inside, time comes first: [length][count], so that one
 * time step of all sequences is contiguous. Defaults are the "small" size of the paper: 2 layers of
 * 200, 35 words, vocabulary 10,000: 4,651,600 parameters.
 */
#include <stdio.h>

#include "layer_cross_entropy.h"
#include "layer_embedding.h"
#include "layer_linear.h"
#include "layer_lstm.h"
#include "model_calls.h"

enum { MOST_LAYERS = 2 };

typedef struct lstm_model {
    int nlayers, length;
    embedding words;
    lstm layers[MOST_LAYERS];
    linear decoder;
    cross_entropy loss;
    int32_t *ids;    /* [length][count] tokens, time first */
    int32_t *labels; /* [length][count] */
    real *x;         /* [length][count][width] embedded */
    real *logits;    /* [length][count][vocabulary] becomes their gradient */
    real *grad[2];   /* [length][count][width] each: gradients on their way back, in turn */
} lstm_model;

static int complete(model_spec *spec, model_error *error) {
    if (spec->size || spec->heads || spec->inner)
        return model_refuse(error, MODEL_ERR_SPEC, "lstm takes no size, heads or inner");
    int status = model_complete_field(&spec->vocabulary, "vocabulary", 10000, 2, 10000000, error);
    status = status ? status : model_complete_field(&spec->length, "length", 35, 1, 4096, error);
    status = status ? status : model_complete_field(&spec->width, "width", 200, 1, 16384, error);
    return status ? status
                  : model_complete_field(&spec->layers, "layers", 2, 1, MOST_LAYERS, error);
}

static void build(void *self, plan *p, const model_spec *spec) {
    lstm_model *net = self;
    const int width = spec->width, most = spec->max_batch;
    const int64_t rows = (int64_t)spec->length * most;
    net->nlayers = spec->layers;
    net->length = spec->length;
    embedding_create(&net->words, p, "words", spec->vocabulary, width, 0.1);
    for (int i = 0; i < net->nlayers; i++) {
        char name[PLAN_NAME];
        snprintf(name, sizeof name, "lstm%d", i + 1);
        lstm_create(&net->layers[i], p, name, most, spec->length, width, width);
    }
    linear_create(&net->decoder, p, "decoder", width, spec->vocabulary,
                  plan_xavier(width, spec->vocabulary), true);
    cross_entropy_create(&net->loss, p, (int)rows, spec->vocabulary);
    net->ids = plan_work(p, rows, sizeof *net->ids);
    net->labels = plan_work(p, rows, sizeof *net->labels);
    net->x = plan_reals(p, rows * width);
    net->logits = plan_reals(p, rows * spec->vocabulary);
    for (int i = 0; i < 2; i++)
        net->grad[i] = plan_reals(p, rows * width);
}

/* to[length][count] from from[count][length]. */
static void time_first(const int32_t *from, int count, int length, int32_t *to) {
    for (int t = 0; t < length; t++)
        for (int s = 0; s < count; s++)
            to[(int64_t)t * count + s] = from[(int64_t)s * length + t];
}

static const real *layer_output(const lstm_model *net, int layer, int count) {
    const lstm *l = &net->layers[layer];
    return l->h + (int64_t)count * l->width;
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    const lstm_model *net = self;
    const int count = batch->count, rows = net->length * count;
    time_first(batch->tokens, count, net->length, net->ids);
    time_first(batch->labels, count, net->length, net->labels);
    embedding_forward(&net->words, rows, net->ids, false, net->x);
    const real *x = net->x;
    for (int i = 0; i < net->nlayers; i++)
        x = lstm_forward(&net->layers[i], p, count, x);
    linear_forward(&net->decoder, p, rows, x, net->logits);
    cross_entropy_result made =
        cross_entropy_forward(&net->loss, p, rows, net->labels, net->logits);
    return (model_result){.loss = made.loss, .count = made.count, .correct = made.correct};
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const lstm_model *net = self;
    const int count = batch->count, rows = net->length * count, last = net->nlayers - 1;
    real *dy = net->grad[0], *dx = net->grad[1];
    linear_backward(&net->decoder, p, rows, layer_output(net, last, count), net->logits, dy);
    for (int i = last; i >= 0; i--) {
        const real *x = i > 0 ? layer_output(net, i - 1, count) : net->x;
        lstm_backward(&net->layers[i], p, count, x, dy, dx);
        real *swap = dy;
        dy = dx;
        dx = swap;
    }
    embedding_backward(&net->words, p, rows, net->ids, dy);
}

static const model_calls calls = {.bytes = sizeof(lstm_model),
                                  .complete = complete,
                                  .build = build,
                                  .forward = forward,
                                  .backward = backward};

const model_kind model_lstm = {
    .name = "lstm",
    .description = "word-level language model: embedding, 1 or 2 LSTM layers, decoder",
    .input = MODEL_WORDS,
    .calls = &calls};
