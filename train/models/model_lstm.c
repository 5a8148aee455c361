/* model_lstm.c - a word-level language model: predicts each next word (Zaremba et al., 2014)
 *
 *     tokens [length] -> embedding [length][width] -> 1 or 2 lstm layers -> linear to the vocabulary
 * Each sequence starts from a zero state. Inside, time comes first: [length][count], so that one
 * time step of all sequences is contiguous. Defaults are the "small" size of the paper: 2 layers of
 * 200, 35 words, vocabulary 10,000: 4,651,600 parameters.
 */
#include "models/models.h"

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

static int complete(model_spec *spec) {
    if (spec->size || spec->heads || spec->inner)
        return tw__fail(TW_ERR_PARAM, "lstm takes no size, heads or inner");
    TW_TRY(complete_field(&spec->vocabulary, "vocabulary", 10000, 2, 10000000));
    TW_TRY(complete_field(&spec->length, "length", 35, 1, 4096));
    TW_TRY(complete_field(&spec->width, "width", 200, 1, 16384));
    return complete_field(&spec->layers, "layers", 2, 1, MOST_LAYERS);
}

static void build(void *self, layout *to, const model_spec *spec) {
    lstm_model *net = self;
    const int width = spec->width, most = spec->max_batch;
    const int64_t rows = (int64_t)spec->length * most;
    net->nlayers = spec->layers;
    net->length = spec->length;
    embedding_create(&net->words, to, "words", spec->vocabulary, width, 0.1);
    for (int i = 0; i < net->nlayers; i++)
        lstm_create(&net->layers[i], to, name_part("lstm%d", i + 1).text, most, spec->length, width,
                    width);
    linear_create(&net->decoder, to, "decoder", width, spec->vocabulary,
                  bound_xavier(width, spec->vocabulary), true);
    cross_entropy_create(&net->loss, to, (int)rows, spec->vocabulary);
    net->ids = layout_memory(to, rows, sizeof *net->ids);
    net->labels = layout_memory(to, rows, sizeof *net->labels);
    net->x = layout_reals(to, rows * width);
    net->logits = layout_reals(to, rows * spec->vocabulary);
    for (int i = 0; i < 2; i++)
        net->grad[i] = layout_reals(to, rows * width);
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
    return cross_entropy_forward(&net->loss, p, rows, net->labels, net->logits);
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const lstm_model *net = self;
    const int count = batch->count, rows = net->length * count, last = net->nlayers - 1;
    real *dy = net->grad[0], *dx = net->grad[1];
    linear_backward(&net->decoder, p, rows, layer_output(net, last, count), net->logits, dy);
    for (int i = last; i >= 0; i--) {
        const real *x = i > 0 ? layer_output(net, i - 1, count) : net->x;
        lstm_backward(&net->layers[i], p, count, x, dy, dx);
        swap_reals(&dy, &dx);
    }
    embedding_backward(&net->words, p, rows, net->ids, dy);
}

const model_kind model_lstm = {
    .name = "lstm",
    .description = "word-level language model: embedding, 1 or 2 LSTM layers, decoder",
    .input = MODEL_WORDS,
    .net_bytes = sizeof(lstm_model),
    .complete = complete,
    .build = build,
    .forward = forward,
    .backward = backward,
};
