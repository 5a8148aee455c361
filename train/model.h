/* model.h - what a model is to the training loop: tensors, a batch, forward, backward
 *
 * A model owns its parameters, their gradients and all workspace, from creation to model_free. The
 * loop feeds batches, reads gradients, and writes parameters. One step:
 *
 *     model_forward(model, &batch, &result);        loss and correct predictions, keeps activations
 *     model_backward(model, ready, context);        grads[n]; ready(context, t) as each t is final
 *     ... allreduce of the gradients, optimiser: walk model->values[n] and model->grads[n] ...
 *
 * Rules
 *   - `real` is float. The tests compile the same sources again with TRAIN_DOUBLE: there a central
 *     difference is good to nine digits, so a wrong backward formula cannot hide behind rounding.
 *   - Parameters of all tensors lie in one block values[n] in forward order without gaps, gradients
 *     alike in grads[n]. Both blocks begin on a cache line.
 *   - ready is called in strictly descending order of tensors, each exactly once, from the thread
 *     that called model_backward: what is final at any time is one suffix of grads[n].
 *   - A step allocates nothing. Gradients are overwritten, never accumulated over steps.
 *   - The same seed, parameters and batches give the same bits: on every run, for any number of
 *     threads and with any number of other models at work in the process.
 *   - A model may be used by one thread at a time; different models are independent.
 *   - Models never print, exit or abort. A call returns TW_OK or a TW_ERR_ code, with words in
 *     tw_last_error(). After an error nothing has changed but workspace.
 *   - Values must be finite; what comes of NaN is NaN in loss or gradients, for the loop to see.
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "thinwire.h"

#ifdef TRAIN_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* ---- 1. What to create ---------------------------------------------------------------------- */

/* Zero means default in every field but name and max_batch. A value that is not understood is
 * refused, never replaced. */
typedef struct model_spec {
    const char *name; /* "cnn", "vgg16", "resnet20", "lstm", "bert": see model_kind_at */
    const char *size; /* bert: "tiny" (default) or "base"; others: NULL */
    int max_batch;    /* samples in the largest batch; sizes the workspace */
    uint64_t seed;    /* of the initial parameters; the same on all workers */
    int threads;      /* threads for one step, the caller's included; 0: 1. Does not change a bit */

    /* lstm and bert; 0: the default of the model, or of its size */
    int vocabulary; /* words: token ids are 0 .. vocabulary - 1 */
    int length;     /* tokens in a sequence */
    int width;      /* of embeddings and hidden states */
    int layers;     /* lstm: 1 or 2; bert: encoder layers */
    int heads;      /* bert: attention heads; divides width */
    int inner;      /* bert: width inside the feed-forward part */
} model_spec;

/* ---- 2. A model ----------------------------------------------------------------------------- */

/* One parameter tensor, or one piece of state. */
typedef struct model_tensor {
    const char *name; /* "block3.conv.weight": unique in the model */
    int64_t n;        /* elements */
    int64_t offset;   /* of the first one in values[] and grads[], or in state[] */
    real *value;      /* [n] */
    real *grad;       /* [n]; NULL for state */
    bool decay; /* weight decay applies: kernels, matrices and embeddings; not biases, norms */
} model_tensor;

typedef enum {
    MODEL_IMAGES, /* float pixels, one label per image */
    MODEL_WORDS,  /* token ids, the next word as label at every position */
    MODEL_MASKED, /* token ids, labels at masked positions, and whether sentence B follows A */
} model_input;

typedef struct model_kind model_kind;
struct layout;
struct pass;
struct model_batch;
struct model_result;

typedef struct model {
    const model_kind *kind;
    model_spec spec; /* as given, with the defaults filled in */
    int64_t n;       /* parameters of all tensors */
    real *values;    /* [n] */
    real *grads;     /* [n] */
    int ntensors;
    model_tensor *tensors; /* [ntensors] in forward order */
    int64_t nstate;        /* numbers that a checkpoint needs besides parameters: running */
    real *state;           /* [nstate] statistics of batch norms, which workers may average */
    int nstates;
    model_tensor *states;      /* [nstates] views into state */
    struct model_parts *parts; /* layers and workspace: the model's own business */
} model;

/* A row of the table of models (models/models.c). */
struct model_kind {
    const char *name;
    const char *description; /* one line for --help */
    model_input input;
    int height, width, channels; /* of images; 0 for text */
    int classes;                 /* of images; 0 for text */

    /* For model.c: the model as a struct of layers and buffers, its "net", and functions over it. */
    size_t net_bytes;
    /* Fills in defaults, refuses what cannot be. */
    int (*complete)(model_spec *spec);
    /* Builds the net, once to measure and once for good; see layers/layer.h. */
    void (*build)(void *net, struct layout *to, const model_spec *spec);
    /* Loss and predictions; the batch has been checked. */
    struct model_result (*forward)(void *net, const struct pass *p,
                                   const struct model_batch *batch);
    /* All gradients, pass_ready for each tensor from the last to the first. */
    void (*backward)(void *net, const struct pass *p, const struct model_batch *batch);
};

/* The row at a position, NULL past the last; the row of a name, NULL if there is none. */
const model_kind *model_kind_at(int position);
const model_kind *model_kind_named(const char *name);

/* What a specification comes to, without allocating it. */
typedef struct model_size {
    int64_t n;      /* parameters */
    int64_t nstate; /* running statistics */
    int ntensors;
    size_t bytes; /* all memory: parameters, gradients, state and workspace */
} model_size;

/* Errors: TW_ERR_NAME: no such model or size. TW_ERR_PARAM: a number is out of range. */
int model_measure(const model_spec *spec, model_size *size);

/* Allocate and initialise: parameters from the seed (He for what a rectifier follows, Xavier
 * elsewhere), gradients zero, running mean 0 and variance 1. On error *out is NULL.
 * Errors: those of model_measure; TW_ERR_MEMORY. */
int model_create(model **out, const model_spec *spec);

/* NULL is fine. */
void model_free(model *m);

/* ---- 3. A step ------------------------------------------------------------------------------ */

#define MODEL_IGNORE (-1) /* label of a position that does not count */

/* Borrowed for the duration of model_forward and of the model_backward that follows. Parts that a
 * model has no use for are not looked at. */
typedef struct model_batch {
    int count;               /* samples, 1 .. max_batch */
    const real *images;      /* [count][height][width][channels] */
    const int32_t *tokens;   /* [count][length] */
    const int32_t *labels;   /* images: [count]; words, masked: [count][length] or MODEL_IGNORE */
    const int32_t *segments; /* masked: [count][length] 0 or 1; NULL: all 0 */
    const int32_t *lengths;  /* masked: [count] tokens before the padding; NULL: all of length */
    const int32_t *follows;  /* masked: [count] 0 or 1, or MODEL_IGNORE; NULL: all ignored */
} model_batch;

typedef struct model_result {
    double loss;   /* mean cross entropy of the predictions; bert: words' mean + sentences' mean */
    int64_t count; /* predictions: images, or words that are not ignored */
    int64_t correct;                      /* of them where the label came out largest */
    int64_t sentences, sentences_correct; /* bert: the same of "does B follow A" */
} model_result;

/* Called as soon as the gradient of model->tensors[tensor] is final. */
typedef void (*model_ready)(void *context, int tensor);

/* Training mode: batch statistics, which also move the running ones. A batch without any label
 * that counts has loss 0 and zero gradients. result may be NULL.
 * Errors: TW_ERR_PARAM: a batch is too large, lacks a part, or holds a label out of range. */
int model_forward(model *m, const model_batch *batch, model_result *result);

/* Gradients of the loss of the last model_forward. ready may be NULL.
 * Errors: TW_ERR_STATE: there was none. */
int model_backward(model *m, model_ready ready, void *context);

/* Forward alone, with the running statistics, which stay as they are. After it comes a new
 * model_forward before the next model_backward.
 * Errors: those of model_forward. */
int model_evaluate(model *m, const model_batch *batch, model_result *result);

#endif
