/* dataset.h - the data sets of the trainer: opened once, then batches by epoch and step
 *
 * dataset_open() takes the name of the embedded set or a path:
 *
 *   fashion-mnist   10,000 + 2,000 images that are part of the program; needs no file
 *   DIRECTORY       IDX files (train-images-idx3-ubyte ... also .gz: MNIST, Fashion-MNIST), the
 *                   binary batches of CIFAR-10 (data_batch_1.bin ... test_batch.bin, also one level
 *                   below in cifar-10-batches-bin), or texts (train.txt and test.txt)
 *   FILE            one plain text; its last tenth becomes the test text. Texts may be .gz too
 *
 * dataset_batch() fills the caller's buffers. A batch is a pure function of its specification
 * (seed, worker, sizes), the epoch and the step: nothing is remembered between calls, so that a run resumed at
 * step s sees what the first run saw, bit for bit. In each epoch the training examples are put in a
 * new order; step s takes the next workers * count of them, the first `count` for worker 0 and so
 * on: workers never share an example. What does not fill a last step is left out of that epoch. Of
 * the test examples none is left out: they come in order, and the last batches are short or empty.
 *
 * Threads: an open data set never changes. Any number of threads may ask it for batches at once.
 *
 * Errors: calls return TW_OK or a TW_ERR_ code; tw_last_error() then has one line that names the file,
 * what is wrong with it and what to do. Nothing is printed. Files are not trusted: each length is
 * checked before it is used.
 */
#ifndef TRAIN_DATASET_H
#define TRAIN_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "thinwire.h"

#define DATASET_EMBEDDED "fashion-mnist" /* the name of the set that needs no file */

typedef struct dataset dataset;

typedef enum dataset_kind { DATASET_IMAGES, DATASET_TOKENS } dataset_kind;
typedef enum dataset_split { DATASET_TRAIN, DATASET_TEST, DATASET_SPLITS } dataset_split;
enum { DATASET_CHANNELS = 3 }; /* at most */

/* Ids of words that no text has. The last four exist only where options.masked asked for them. */
enum {
    TOKEN_UNK = 0, /* any word outside the vocabulary */
    TOKEN_EOS,     /* the end of a line */
    TOKEN_WORDS,   /* the most frequent word, where there are no masked batches */
    TOKEN_PAD = TOKEN_WORDS,
    TOKEN_CLS,
    TOKEN_SEP,
    TOKEN_MASK,
    TOKEN_MASKED_WORDS, /* the most frequent word, where there are */
};
#define TOKEN_IGNORE (-1) /* as a label: nothing to predict here; MODEL_IGNORE */

/* ---- Opening -------------------------------------------------------------------------------------- */

/* Zero everywhere is the default. */
typedef struct dataset_options {
    int64_t train_limit; /* images or tokens to keep, the first ones; 0: all */
    int64_t test_limit;
    int32_t classes;    /* images: labels are 0 .. classes-1; 0: 10 */
    int32_t vocabulary; /* text: ids at most, the special ones included; 0: every word */
    bool masked;        /* text: with the special tokens that masked batches need */
} dataset_options;

typedef struct dataset_info {
    dataset_kind kind;
    int64_t count[DATASET_SPLITS]; /* images, or tokens in the stream */
    int32_t channels, height, width, classes;
    float mean[DATASET_CHANNELS]; /* of the training images as opened, pixels being 0 .. 1 */
    float std[DATASET_CHANNELS];
    int32_t vocabulary; /* ids are 0 .. vocabulary-1 */
    bool masked;
} dataset_info;

/* Open the set `name`. `options` may be NULL. Close what *out gets. On failure *out is NULL.
 * TW_ERR_NAME: neither a name nor a path. TW_ERR_FILE: cannot be read. TW_ERR_DAMAGED: not what it
 * should be. TW_ERR_PARAM: options. TW_ERR_MEMORY. */
int dataset_open(dataset **out, const char *name, const dataset_options *options);

void dataset_close(dataset *set); /* NULL is fine */

const dataset_info *dataset_get_info(const dataset *set);

/* ---- Batches -------------------------------------------------------------------------------------- */

/* What batches hold: the three kinds of input that models have (model.h).
 *   images   images and their classes. Pixels are normalised: (pixel / 255 - mean) / std of the
 *            channel.
 *   words    windows of `length` words that do not overlap; labels are the words that follow.
 *   masked   for BERT (Devlin et al., 2019): CLS a SEP b SEP, padded. b is the sentence after a in
 *            half of the rows, any other one in the rest. 15 % of the words are to be predicted: of
 *            these 80 % show as MASK, 10 % as a random word and 10 % as they are. */
typedef enum batch_form { BATCH_IMAGES, BATCH_WORDS, BATCH_MASKED } batch_form;

typedef struct batch_spec {
    batch_form form;
    dataset_split split;
    int32_t count;   /* examples a worker takes in a step */
    int32_t length;  /* tokens of an example */
    int32_t worker;  /* 0 .. workers-1 */
    int32_t workers; /* 0 is taken as 1 */
    bool augment;  /* training images: random crop after padding by 4, flip in half of the cases */
    uint64_t seed; /* of the order, the augmentation, the masks and the pairs */
} batch_spec;

/* The caller's buffers, named as in model_batch. Those that the form does not fill may be NULL. */
typedef struct batch_buffers {
    float *images;     /* images: [count][height][width][channels] */
    int32_t *tokens;   /* words, masked: [count][length] */
    int32_t *labels;   /* images: [count]; words, masked: [count][length] or TOKEN_IGNORE */
    int32_t *segments; /* masked: [count][length] 0 up to the first SEP, 1 after it, padding 0 */
    int32_t *lengths;  /* masked: [count] tokens before the padding */
    int32_t *follows;  /* masked: [count] 1 where b follows a, else 0 */
} batch_buffers;

/* Steps in an epoch. TW_ERR_PARAM where the specification does not fit the set: wrong form, a worker
 * that is not one of the workers, less data than one step takes. */
int dataset_steps(const dataset *set, const batch_spec *spec, int64_t *steps);

/* Fill the batch of this epoch (any, from 0) and step (0 .. steps-1). *filled gets the number of
 * examples: always spec->count of the training data; rows beyond it are left as they are. */
int dataset_batch(const dataset *set, const batch_spec *spec, int64_t epoch, int64_t step,
                  const batch_buffers *buffers, int32_t *filled);

#endif
