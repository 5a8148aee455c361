/* dataset.c - the map: from a name to a loader, from an epoch and a step to examples
 *
 *   open     name -> fashion | idx | cifar | text -> splits, normalisation or vocabulary
 *   batch    place in the epoch = (step * workers + worker) * count + row
 *            example            = order(seed, epoch)[place]        test: example = place
 *            randomness         = key(seed, split, epoch, example): the same for any sharding
 */
#include "../dataset.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "chance.h"
#include "parts.h"

enum { MOST_CLASSES = 256, LEAST_MASKED_LENGTH = 5 /* CLS word SEP word SEP */ };
enum { KEY_ORDER, KEY_EXAMPLE };

/* ---- Opening -------------------------------------------------------------------------------------- */

void data_path(char *path, const char *directory, const char *file) {
    snprintf(path, PATH_ROOM, "%s/%s", directory, file);
}

bool data_is_file(const char *directory, const char *file) {
    char path[PATH_ROOM];
    struct stat about;
    data_path(path, directory, file);
    return stat(path, &about) == 0 && !S_ISDIR(about.st_mode);
}

static int check_options(const dataset_options *options, dataset_error *error) {
    const int32_t least = 1 + (options->masked ? TOKEN_MASKED_WORDS : TOKEN_WORDS);
    if (options->train_limit < 0 || options->test_limit < 0)
        return data_fail(error, TW_ERR_PARAM,
                         "data: a limit of %" PRId64 "; 0 takes all, others are positive",
                         options->train_limit < 0 ? options->train_limit : options->test_limit);
    if (options->classes < 0 || options->classes > MOST_CLASSES)
        return data_fail(error, TW_ERR_PARAM, "data: %d classes; 1 to %d are accepted",
                         options->classes, MOST_CLASSES);
    if (options->vocabulary != 0 && options->vocabulary < least)
        return data_fail(error, TW_ERR_PARAM,
                         "data: a vocabulary of %d; at least %d are needed, 0 takes every word",
                         options->vocabulary, least);
    return TW_OK;
}

static int load_path(dataset *set, const char *path, const dataset_options *options,
                     dataset_error *error) {
    struct stat about;
    if (stat(path, &about) != 0)
        return data_fail(error, errno == ENOENT ? TW_ERR_NAME : TW_ERR_FILE,
                         "%s: %s; give '%s', a directory of IDX, CIFAR-10 or text files, or a text",
                         path, strerror(errno), DATASET_EMBEDDED);
    if (!S_ISDIR(about.st_mode))
        return load_text(set, path, options, error);
    if (is_idx_directory(path))
        return load_idx(set, path, options, error);
    if (is_cifar_directory(path))
        return load_cifar(set, path, options, error);
    if (is_text_directory(path))
        return load_text(set, path, options, error);
    return data_fail(error, TW_ERR_FILE,
                     "%s: holds none of train-images-idx3-ubyte(.gz), data_batch_1.bin and "
                     "train.txt; give the directory that does",
                     path);
}

int dataset_open(dataset **out, const char *name, const dataset_options *options,
                 dataset_error *error) {
    static const dataset_options defaults;
    const dataset_options *given = options ? options : &defaults;
    *out = NULL;
    int status = check_options(given, error);
    if (status != TW_OK)
        return status;
    void *room;
    status = data_alloc(&room, name, 1, sizeof(dataset), error);
    if (status != TW_OK)
        return status;
    dataset *set = room;
    set->info.classes = given->classes ? given->classes : DEFAULT_CLASSES;
    status = strcmp(name, DATASET_EMBEDDED) == 0 ? load_fashion(set, given, error)
                                                 : load_path(set, name, given, error);
    if (status != TW_OK) {
        dataset_close(set);
        return status;
    }
    *out = set;
    return TW_OK;
}

void dataset_close(dataset *set) {
    if (set == NULL)
        return;
    for (int split = 0; split < DATASET_SPLITS; split++) {
        free(set->images[split].pixels);
        free(set->images[split].labels);
        free(set->text[split].tokens);
        free(set->text[split].sentences);
        free(set->text[split].pairs);
    }
    vocabulary_free(&set->words);
    free(set);
}

const dataset_info *dataset_get_info(const dataset *set) {
    return &set->info;
}

/* ---- Batches -------------------------------------------------------------------------------------- */

static int32_t workers_of(const batch_plan *plan) {
    return plan->workers ? plan->workers : 1;
}

static int check_plan(const dataset *set, const batch_plan *plan, dataset_error *error) {
    static const char *const needs[] = {"images", "text", "text opened for masked batches"};
    const bool image = set->info.kind == DATASET_IMAGES;
    if (plan->form < BATCH_IMAGES || plan->form > BATCH_MASKED || plan->split < DATASET_TRAIN ||
        plan->split >= DATASET_SPLITS)
        return data_fail(error, TW_ERR_PARAM, "batch: form %d of split %d is not known",
                         (int)plan->form, (int)plan->split);
    if (image != (plan->form == BATCH_IMAGES) || (plan->form == BATCH_MASKED && !set->info.masked))
        return data_fail(error, TW_ERR_PARAM, "batch: the model needs %s, but the data are %s",
                         needs[plan->form], image ? "images" : "text for a word model");
    if (plan->count < 1 || plan->workers < 0 || plan->worker < 0 ||
        plan->worker >= workers_of(plan))
        return data_fail(error, TW_ERR_PARAM,
                         "batch: %d examples for worker %d of %d; at least one example, and a "
                         "worker from 0 on",
                         plan->count, plan->worker, workers_of(plan));
    const int32_t least = plan->form == BATCH_MASKED ? LEAST_MASKED_LENGTH : 1;
    if (!image && plan->length < least)
        return data_fail(error, TW_ERR_PARAM, "batch: a length of %d tokens; at least %d",
                         plan->length, least);
    return TW_OK;
}

/* Examples of the split in this form. */
static int64_t examples_of(const dataset *set, const batch_plan *plan) {
    const token_split *text = &set->text[plan->split];
    switch (plan->form) {
    case BATCH_IMAGES:
        return set->images[plan->split].count;
    case BATCH_WORDS:
        return (text->count - 1) / plan->length;
    default:
        return text->pair_count;
    }
}

int dataset_steps(const dataset *set, const batch_plan *plan, int64_t *steps,
                  dataset_error *error) {
    *steps = 0;
    const int status = check_plan(set, plan, error);
    if (status != TW_OK)
        return status;
    const int64_t examples = examples_of(set, plan);
    const int64_t each = (int64_t)plan->count * workers_of(plan);
    const bool train = plan->split == DATASET_TRAIN;
    if (examples < (train ? each : 1))
        return data_fail(error, TW_ERR_PARAM,
                         "batch: %d examples for each of %d workers, but there are only %" PRId64
                         "; use smaller batches, shorter sequences or more data",
                         plan->count, workers_of(plan), examples);
    *steps = train ? examples / each : (examples + each - 1) / each;
    return TW_OK;
}

static void fill_row(const dataset *set, const batch_plan *plan, int64_t example, uint64_t key,
                     const batch_buffers *buffers, int64_t row) {
    const uint64_t own = chance_key(key, (uint64_t)example);
    if (plan->form == BATCH_IMAGES)
        batch_image(set, plan, example, own, buffers, row);
    else if (plan->form == BATCH_WORDS)
        batch_window(set, plan, example, buffers, row);
    else
        batch_masked(set, plan, example, own, buffers, row);
}

/* The buffers that the form fills are there. */
static bool has_buffers(const batch_plan *plan, const batch_buffers *b) {
    if (b->labels == NULL)
        return false;
    if (plan->form == BATCH_IMAGES)
        return b->images != NULL;
    if (plan->form == BATCH_WORDS)
        return b->tokens != NULL;
    return b->tokens != NULL && b->segments != NULL && b->lengths != NULL && b->follows != NULL;
}

int dataset_batch(const dataset *set, const batch_plan *plan, int64_t epoch, int64_t step,
                  const batch_buffers *buffers, int32_t *filled, dataset_error *error) {
    *filled = 0;
    int64_t steps;
    const int status = dataset_steps(set, plan, &steps, error);
    if (status != TW_OK)
        return status;
    if (epoch < 0 || step < 0 || step >= steps)
        return data_fail(error, TW_ERR_PARAM,
                         "batch: step %" PRId64 " of epoch %" PRId64 "; an epoch has %" PRId64
                         " steps",
                         step, epoch, steps);
    if (!has_buffers(plan, buffers))
        return data_fail(error, TW_ERR_NULL, "batch: a buffer that this form fills is NULL");
    const bool train = plan->split == DATASET_TRAIN;
    const int64_t examples = examples_of(set, plan);
    const int64_t first = (step * workers_of(plan) + plan->worker) * plan->count;
    const uint64_t key =
        chance_key(chance_key(plan->seed, (uint64_t)plan->split), train ? (uint64_t)epoch : 0);
    for (; *filled < plan->count && first + *filled < examples; ++*filled) {
        const int64_t place = first + *filled;
        const int64_t example =
            train ? chance_order(chance_key(key, KEY_ORDER), examples, place) : place;
        fill_row(set, plan, example, chance_key(key, KEY_EXAMPLE), buffers, *filled);
    }
    return TW_OK;
}
