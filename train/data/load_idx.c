/* load_idx.c - images and labels in the format of MNIST (LeCun, Cortes and Burges, 1998)
 *
 *   images: 00 00 08 03, count, rows, columns, then count * rows * columns bytes
 *   labels: 00 00 08 01, count, then count bytes            numbers are 32 bits, big endian
 *
 * A directory holds four such files, named train-images-idx3-ubyte and so on, or with a dot before
 * idx; each may be gzip'd. Nothing else of IDX is read: other types and dimensions are refused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "parts.h"

enum {
    IMAGES_MAGIC = 0x00000803,
    LABELS_MAGIC = 0x00000801,
    IMAGES_HEADER = 16,
    LABELS_HEADER = 8,
    MOST_SIDE = 1024, /* rows or columns */
    NAME_ROOM = 64,
};

/* ---- Files in memory ------------------------------------------------------------------------------ */

static int check_header(const char *name, const bytes *file, uint32_t magic, size_t header,
                        dataset_error *error) {
    if (file->size < header)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: %zu bytes, less than the header of %zu; get the file again", name,
                         file->size, header);
    const uint32_t found = bytes_u32(file->at);
    if (found != magic)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: magic 0x%08" PRIx32 "; IDX %s begin with 0x%08" PRIx32
                         "; is it another kind of file?",
                         name, found, magic == IMAGES_MAGIC ? "images" : "labels", magic);
    return TW_OK;
}

/* The header promises `count` times `each` bytes: exactly these must follow. */
static int check_size(const char *name, const bytes *file, size_t header, uint64_t count,
                      uint64_t each, dataset_error *error) {
    const uint64_t present = file->size - header;
    if (count == 0)
        return data_fail(error, TW_ERR_DAMAGED, "%s: holds nothing; get the file again", name);
    if (present != count * each) /* below 2^32 * 2^20 */
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: %" PRIu64 " bytes of data, but its header promises %" PRIu64
                         " x %" PRIu64 "; get the file again",
                         name, present, count, each);
    return TW_OK;
}

/* Rows and columns within reason, and those of the other split. */
static int check_shape(dataset *set, const char *name, const bytes *images, dataset_error *error) {
    dataset_info *info = &set->info;
    const uint32_t rows = bytes_u32(images->at + 8);
    const uint32_t columns = bytes_u32(images->at + 12);
    if (rows < 1 || columns < 1 || rows > MOST_SIDE || columns > MOST_SIDE)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: images of %" PRIu32 " x %" PRIu32
                         " pixels; sides of 1 to %d are accepted",
                         name, rows, columns, MOST_SIDE);
    if (info->channels != 0 && ((int32_t)rows != info->height || (int32_t)columns != info->width))
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: images of %" PRIu32 " x %" PRIu32
                         " pixels, but the training images have %d x %d; use files that belong "
                         "together",
                         name, rows, columns, info->height, info->width);
    info->channels = 1;
    info->height = (int32_t)rows;
    info->width = (int32_t)columns;
    return TW_OK;
}

static int check_files(dataset *set, const char *images_name, const bytes *images,
                       const char *labels_name, const bytes *labels, dataset_error *error) {
    int status = check_header(images_name, images, IMAGES_MAGIC, IMAGES_HEADER, error);
    if (status == TW_OK)
        status = check_shape(set, images_name, images, error);
    if (status == TW_OK)
        status = check_header(labels_name, labels, LABELS_MAGIC, LABELS_HEADER, error);
    if (status != TW_OK)
        return status;
    const uint32_t count = bytes_u32(images->at + 4);
    const uint32_t label_count = bytes_u32(labels->at + 4);
    const uint64_t each = (uint64_t)set->info.height * (uint64_t)set->info.width;
    status = check_size(images_name, images, IMAGES_HEADER, count, each, error);
    if (status == TW_OK)
        status = check_size(labels_name, labels, LABELS_HEADER, label_count, 1, error);
    if (status == TW_OK && count != label_count)
        return data_fail(error, TW_ERR_DAMAGED,
                         "%s: %" PRIu32 " labels for the %" PRIu32
                         " images of %s; use files that belong together",
                         labels_name, label_count, count, images_name);
    return status;
}

int idx_split(dataset *set, dataset_split split, const char *images_name, const bytes *images,
              const char *labels_name, const bytes *labels, dataset_error *error) {
    int status = check_files(set, images_name, images, labels_name, labels, error);
    if (status != TW_OK)
        return status;
    const int64_t count = bytes_u32(labels->at + 4);
    status = images_check_labels(set, labels_name, labels->at + LABELS_HEADER, count, error);
    if (status == TW_OK)
        status = images_grow(set, split, images_name, count, error);
    if (status != TW_OK)
        return status;
    memcpy(set->images[split].pixels, images->at + IMAGES_HEADER, images->size - IMAGES_HEADER);
    memcpy(set->images[split].labels, labels->at + LABELS_HEADER, labels->size - LABELS_HEADER);
    return TW_OK;
}

/* ---- Files on disk -------------------------------------------------------------------------------- */

static const char *const split_names[DATASET_SPLITS] = {"train", "t10k"};

/* The name that the file really has, into name[NAME_ROOM]; false where there is none. */
static bool find(char *name, const char *directory, dataset_split split, const char *what,
                 int dimensions) {
    static const char *const ways[] = {"%s-%s-idx%d-ubyte", "%s-%s-idx%d-ubyte.gz",
                                       "%s-%s.idx%d-ubyte", "%s-%s.idx%d-ubyte.gz"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        snprintf(name, NAME_ROOM, ways[i], split_names[split], what, dimensions);
        if (data_is_file(directory, name))
            return true;
    }
    snprintf(name, NAME_ROOM, ways[0], split_names[split], what, dimensions);
    return false;
}

bool is_idx_directory(const char *path) {
    char name[NAME_ROOM];
    return find(name, path, DATASET_TRAIN, "images", 3) ||
           find(name, path, DATASET_TRAIN, "labels", 1);
}

static int read_part(bytes *out, char *path, const char *directory, dataset_split split,
                     const char *what, int dimensions, dataset_error *error) {
    char name[NAME_ROOM];
    const bool found = find(name, directory, split, what, dimensions);
    data_path(path, directory, name);
    if (!found)
        return data_fail(error, TW_ERR_FILE,
                         "%s: not there, with .gz neither; all four IDX files must be in %s", path,
                         directory);
    return bytes_read(out, path, error);
}

static int load_split(dataset *set, dataset_split split, const char *directory,
                      dataset_error *error) {
    char images_path[PATH_ROOM];
    char labels_path[PATH_ROOM];
    bytes images = {0};
    bytes labels = {0};
    int status = read_part(&images, images_path, directory, split, "images", 3, error);
    if (status == TW_OK)
        status = read_part(&labels, labels_path, directory, split, "labels", 1, error);
    if (status == TW_OK)
        status = idx_split(set, split, images_path, &images, labels_path, &labels, error);
    bytes_free(&images);
    bytes_free(&labels);
    return status;
}

int load_idx(dataset *set, const char *path, const dataset_options *options, dataset_error *error) {
    int status = load_split(set, DATASET_TRAIN, path, error);
    if (status == TW_OK)
        status = load_split(set, DATASET_TEST, path, error);
    if (status == TW_OK)
        images_finish(set, options);
    return status;
}
