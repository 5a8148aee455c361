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
 *   - `real` is float (see real.h).
 *   - Parameters of all tensors lie in one block values[n] in forward order without gaps, gradients
 *     alike in grads[n]. Both blocks begin on a cache line.
 *   - ready is called in strictly descending order of tensors, each exactly once, from the thread
 *     that called model_backward: what is final at any time is one suffix of grads[n].
 *   - A step allocates nothing. Gradients are overwritten, never accumulated over steps.
 *   - The same seed, parameters and batches give the same bits: on every run, for any number of
 *     threads and with any number of other models at work in the process.
 *   - A model may be used by one thread at a time; different models are independent.
 *   - Models never print, exit or abort. A call returns MODEL_OK (0) or a negative error;
 *     model_error fields say it in words. After an error nothing has changed but workspace.
 *   - Values must be finite; what comes of NaN is NaN in loss or gradients, for the loop to see.
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real.h"

/* ---- 1. Errors ------------------------------------------------------------------------------ */

#define MODEL_OK 0
#define MODEL_ERR_NAME (-1)   /* no such model or size */
#define MODEL_ERR_SPEC (-2)   /* a number of the specification is out of range */
#define MODEL_ERR_MEMORY (-3) /* out of memory, or threads */
#define MODEL_ERR_BATCH (-4) /* a batch is too large, lacks a part, or holds a label out of range */
#define MODEL_ERR_STATE (-5) /* backward without a forward */

/* The words to an error: what was given and what is accepted. */
typedef struct model_error {
    char text[200];
} model_error;

/* ---- 2. What to create ---------------------------------------------------------------------- */

/* Zero means default in every field but name and max_batch. A value that is not understood is
 * refused, never replaced. */
typedef struct model_spec {
    const char *name; /* "cnn", "vgg16", "resnet20", "lstm", "bert": see model_kind_at */
    const char *size; /* bert: "tiny" (default) or "base"; others: NULL */
    int max_batch;    /* samples in the largest batch; workspace is for so many */
    uint64_t seed;    /* of the initial parameters; the same on all workers */
    int threads;      /* threads for one step, the caller's included; 0: 1. Does not change bits */

    /* lstm and bert; 0: the default of the model, or of its size */
    int vocabulary; /* words: token ids are 0 .. vocabulary - 1 */
    int length;     /* tokens in a sequence */
    int width;      /* of embeddings and hidden states */
    int layers;     /* lstm: 1 or 2; bert: encoder layers */
    int heads;      /* bert: attention heads; divides width */
    int inner;      /* bert: width inside the feed-forward part */
} model_spec;

/* ---- 3. A model ----------------------------------------------------------------------------- */

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

typedef struct model {
    const model_kind *kind;
    model_spec spec; /* as given, with the defaults filled in */
    int64_t n;       /* parameters of all tensors */
    real *values;    /* [n] */
    real *grads;     /* [n] */
    int ntensors;
    model_tensor *tensors; /* [ntensors] in forward order */
    int64_t nstate;        /* numbers that a checkpoint needs beside the parameters: running */
    real *state;           /* [nstate] statistics of batch norms, which workers may average */
    int nstates;
    model_tensor *states;      /* [nstates] views into state */
    model_error error;         /* the words to the last error of a call on this model */
    struct model_parts *parts; /* layers and workspace: the model's own business */
} model;

/* A row of the table of models. */
struct model_kind {
    const char *name;
    const char *description; /* one line for --help */
    model_input input;
    int height, width, channels;     /* of images; 0 for text */
    int classes;                     /* of images; 0 for text */
    const struct model_calls *calls; /* the model's own business */
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

/* Errors: MODEL_ERR_NAME, MODEL_ERR_SPEC; error may be NULL. */
int model_measure(const model_spec *spec, model_size *size, model_error *error);

/* Allocate and initialise: parameters from the seed (He for what a rectifier follows, Xavier
 * elsewhere), gradients zero, running mean 0 and variance 1. On error *out is NULL.
 * Errors: those of model_measure; MODEL_ERR_MEMORY. error may be NULL. */
int model_create(model **out, const model_spec *spec, model_error *error);

/* NULL is fine. */
void model_free(model *m);

/* ---- 4. A step ------------------------------------------------------------------------------ */

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
 * Errors: MODEL_ERR_BATCH. */
int model_forward(model *m, const model_batch *batch, model_result *result);

/* Gradients of the loss of the last model_forward. ready may be NULL.
 * Errors: MODEL_ERR_STATE. */
int model_backward(model *m, model_ready ready, void *context);

/* Forward alone, with the running statistics, which stay as they are. After it comes a new
 * model_forward before the next model_backward.
 * Errors: MODEL_ERR_BATCH. */
int model_evaluate(model *m, const model_batch *batch, model_result *result);

#endif
