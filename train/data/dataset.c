/* dataset.c - the map: from a name to a loader, which fills an open data set
 *
 *     name -> fashion | idx | cifar | text -> splits, then normalisation or vocabulary
 */
#include "data/dataset.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/data.h"

enum { MOST_CLASSES = 256 };

/* Who loads what. Adding a loader: a file, a row, its two declarations in data.h, a build line. */
static const struct loader {
    const char *needs; /* a file that the path holds */
    bool (*suits)(const char *path);
    int (*load)(dataset *set, const char *path, const dataset_options *options);
} loaders[] = {
    {"train-images-idx3-ubyte(.gz)", is_idx, load_idx},
    {"data_batch_1.bin", is_cifar, load_cifar},
    {"train.txt", is_text, load_text},
};
enum { NLOADERS = sizeof loaders / sizeof loaders[0] };

static int check_options(const dataset_options *options) {
    const int32_t least = 1 + (options->masked ? TOKEN_MASKED_WORDS : TOKEN_WORDS);
    if (options->train_limit < 0 || options->test_limit < 0)
        return tw__fail(TW_ERR_PARAM,
                        "data: a limit of %" PRId64 "; 0 takes all, others are positive",
                        options->train_limit < 0 ? options->train_limit : options->test_limit);
    if (options->classes < 0 || options->classes > MOST_CLASSES)
        return tw__fail(TW_ERR_PARAM, "data: %d classes; 1 to %d are accepted", options->classes,
                        MOST_CLASSES);
    if (options->vocabulary != 0 && options->vocabulary < least)
        return tw__fail(TW_ERR_PARAM,
                        "data: a vocabulary of %d; at least %d are needed, 0 takes every word",
                        options->vocabulary, least);
    return TW_OK;
}

static int load_path(dataset *set, const char *path, const dataset_options *options) {
    struct stat about;
    char needs[200] = "";
    size_t used = 0;
    if (stat(path, &about) != 0)
        return tw__fail(errno == ENOENT ? TW_ERR_NAME : TW_ERR_FILE,
                        "%s: %s; give '%s', a directory of IDX, CIFAR-10 or text files, or a text",
                        path, strerror(errno), DATASET_EMBEDDED);
    for (int i = 0; i < NLOADERS && used < sizeof needs; i++) {
        if (loaders[i].suits(path))
            return loaders[i].load(set, path, options);
        const char *before = i == 0 ? "" : i + 1 < NLOADERS ? ", " : " and ";
        used +=
            (size_t)snprintf(needs + used, sizeof needs - used, "%s%s", before, loaders[i].needs);
    }
    return tw__fail(TW_ERR_FILE, "%s: holds none of %s; give the directory that does", path, needs);
}

int dataset_open(dataset **out, const char *name, const dataset_options *options) {
    static const dataset_options defaults;
    const dataset_options *given = options ? options : &defaults;
    *out = NULL;
    TW_TRY(check_options(given));
    dataset *set = data_alloc(name, 1, sizeof *set);
    if (set == NULL)
        return TW_ERR_MEMORY;
    set->info.classes = given->classes ? given->classes : DEFAULT_CLASSES;
    const int status = strcmp(name, DATASET_EMBEDDED) == 0 ? load_idx(set, NULL, given)
                                                           : load_path(set, name, given);
    if (status == TW_OK)
        *out = set;
    else
        dataset_close(set);
    return status;
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
