/* load_cifar.c - the binary version of CIFAR-10 (Krizhevsky, 2009)
 *
 * data_batch_1.bin to data_batch_5.bin and test_batch.bin, each a row of records: one byte of label,
 * then 1024 bytes of red, 1024 of green and 1024 of blue, 32 rows of 32. The canonical files have
 * 10,000 records; other numbers are fine, parts of records are not. In memory the three colours of
 * a pixel lie together, as models want them.
 */
#include <stdio.h>

#include "data/data.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, COLOURS = 3, RECORD = 1 + COLOURS * PLANE, TRAIN_FILES = 5 };
#define FOLDER "cifar-10-batches-bin" /* what the archive unpacks to */

static void unpack(const uint8_t *record, uint8_t *label, uint8_t *pixel) {
    *label = *record++;
    for (int p = 0; p < PLANE; p++)
        for (int c = 0; c < COLOURS; c++)
            *pixel++ = record[c * PLANE + p];
}

/* The records of one file after the images that the split has. */
static int append_records(dataset *set, dataset_split split, const char *path, const bytes *file) {
    if (file->size == 0 || file->size % RECORD != 0)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: %zu bytes are not whole CIFAR-10 records of %d; get the file again",
                        path, file->size, RECORD);
    image_split *images = &set->images[split];
    const int64_t before = images->count;
    const int64_t more = (int64_t)file->size / RECORD;
    TW_TRY(images_grow(set, split, path, more));
    for (int64_t i = 0; i < more; i++)
        unpack(file->at + i * RECORD, &images->labels[before + i],
               images->pixels + (before + i) * COLOURS * PLANE);
    return images_check_labels(set, path, images->labels + before, more);
}

static int append_file(dataset *set, dataset_split split, const char *directory, const char *name) {
    char path[PATH_ROOM];
    data_path(path, directory, name);
    bytes file;
    int status = bytes_read(&file, path);
    if (status == TW_OK)
        status = append_records(set, split, path, &file);
    bytes_free(&file);
    return status;
}

static bool holds_batches(const char *path) {
    return data_is_file(path, "data_batch_1.bin") || data_is_file(path, "test_batch.bin");
}

bool is_cifar(const char *path) {
    char below[PATH_ROOM];
    data_path(below, path, FOLDER);
    return holds_batches(path) || holds_batches(below);
}

int load_cifar(dataset *set, const char *path, const dataset_options *options) {
    char directory[PATH_ROOM];
    data_path(directory, path, holds_batches(path) ? "." : FOLDER);
    set->info.channels = COLOURS;
    set->info.height = set->info.width = SIDE;
    for (int i = 1; i <= TRAIN_FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        TW_TRY(append_file(set, DATASET_TRAIN, directory, name));
    }
    TW_TRY(append_file(set, DATASET_TEST, directory, "test_batch.bin"));
    images_finish(set, options);
    return TW_OK;
}
