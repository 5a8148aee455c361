/* load_idx.c - images and labels in the format of MNIST (LeCun, Cortes and Burges, 1998)
 *
 *   images: 00 00 08 03, count, rows, columns, then count * rows * columns bytes
 *   labels: 00 00 08 01, count, then count bytes            numbers are 32 bits, big endian
 *
 * A directory holds four such files, named train-images-idx3-ubyte and so on, or with a dot before
 * idx; each may be gzip'd. Nothing else of IDX is read: other types and dimensions are refused.
 *
 * The embedded part of Fashion-MNIST is four such files, gzip'd: the files of data/fashion-mnist
 * become read-only data of the object file. The assembler copies them in (.incbin), so that compiling
 * takes no time and the program finds them wherever it is copied to. A search for a share directory
 * would have to know three places and could fail in each; arrays in generated C would be 20 MB of
 * source. They stay packed, 5.2 MB, and are pages that only a run on this set ever reads. GCC and
 * clang on ELF systems understand this; FASHION_DIR comes from CMakeLists.txt.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/data.h"

enum { MOST_SIDE = 1024 /* rows or columns */, NAME_ROOM = 64 };

/* A split is two files. */
enum { IMAGES, LABELS, PARTS };
static const struct part {
    const char *name;
    int dimensions;
    uint32_t magic;
    size_t header;
} parts[PARTS] = {{"images", 3, 0x00000803, 16}, {"labels", 1, 0x00000801, 8}};

/* ---- Files in memory ------------------------------------------------------------------------------ */

/* One file, and what errors call it. */
typedef struct idx_file {
    char name[PATH_ROOM];
    bytes data;
} idx_file;

static uint32_t read_u32(const uint8_t at[4]) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int check_header(const idx_file *file, const struct part *part) {
    if (file->data.size < part->header)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: %zu bytes, less than the header of %zu; get the file again",
                        file->name, file->data.size, part->header);
    const uint32_t found = read_u32(file->data.at);
    if (found != part->magic)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: magic 0x%08" PRIx32 "; IDX %s begin with 0x%08" PRIx32
                        "; is it another kind of file?",
                        file->name, found, part->name, part->magic);
    return TW_OK;
}

/* The header promises a number of things of `each` bytes: exactly these must follow. */
static int check_size(const idx_file *file, const struct part *part, uint64_t each) {
    const uint64_t present = file->data.size - part->header, count = read_u32(file->data.at + 4);
    if (count == 0)
        return tw__fail(TW_ERR_DAMAGED, "%s: holds nothing; get the file again", file->name);
    if (present != count * each) /* below 2^32 * 2^20 */
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: %" PRIu64 " bytes of data, but its header promises %" PRIu64
                        " x %" PRIu64 "; get the file again",
                        file->name, present, count, each);
    return TW_OK;
}

/* Rows and columns within reason, and those of the other split. */
static int check_shape(dataset *set, const char *name, const bytes *images) {
    dataset_info *info = &set->info;
    const uint32_t rows = read_u32(images->at + 8);
    const uint32_t columns = read_u32(images->at + 12);
    if (rows < 1 || columns < 1 || rows > MOST_SIDE || columns > MOST_SIDE)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: images of %" PRIu32 " x %" PRIu32
                        " pixels; sides of 1 to %d are accepted",
                        name, rows, columns, MOST_SIDE);
    if (info->channels != 0 && ((int32_t)rows != info->height || (int32_t)columns != info->width))
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: images of %" PRIu32 " x %" PRIu32
                        " pixels, but the training images have %d x %d; use files that belong "
                        "together",
                        name, rows, columns, info->height, info->width);
    info->channels = 1;
    info->height = (int32_t)rows;
    info->width = (int32_t)columns;
    return TW_OK;
}

static int check_files(dataset *set, const idx_file files[PARTS]) {
    const idx_file *images = &files[IMAGES], *labels = &files[LABELS];
    TW_TRY(check_header(images, &parts[IMAGES]));
    TW_TRY(check_shape(set, images->name, &images->data));
    TW_TRY(check_header(labels, &parts[LABELS]));
    const uint64_t each = (uint64_t)set->info.height * (uint64_t)set->info.width;
    TW_TRY(check_size(images, &parts[IMAGES], each));
    TW_TRY(check_size(labels, &parts[LABELS], 1));
    const uint32_t count = read_u32(images->data.at + 4);
    const uint32_t label_count = read_u32(labels->data.at + 4);
    if (count != label_count)
        return tw__fail(TW_ERR_DAMAGED,
                        "%s: %" PRIu32 " labels for the %" PRIu32
                        " images of %s; use files that belong together",
                        labels->name, label_count, count, images->name);
    return TW_OK;
}

static int take_split(dataset *set, dataset_split split, const idx_file files[PARTS]) {
    TW_TRY(check_files(set, files));
    const bytes *images = &files[IMAGES].data, *labels = &files[LABELS].data;
    const size_t pixels = images->size - parts[IMAGES].header;
    const int64_t count = read_u32(labels->at + 4);
    const uint8_t *label = labels->at + parts[LABELS].header;
    TW_TRY(images_check_labels(set, files[LABELS].name, label, count));
    TW_TRY(images_grow(set, split, files[IMAGES].name, count));
    memcpy(set->images[split].pixels, images->at + parts[IMAGES].header, pixels);
    memcpy(set->images[split].labels, label, (size_t)count);
    return TW_OK;
}

/* ---- Files on disk -------------------------------------------------------------------------------- */

static const char *const split_names[DATASET_SPLITS] = {"train", "t10k"};

/* The name that the file really has, into name[NAME_ROOM]; false where there is none. */
static bool find(char *name, const char *directory, dataset_split split, const struct part *part) {
    static const char *const forms[] = {"%s-%s-idx%d-ubyte", "%s-%s-idx%d-ubyte.gz",
                                        "%s-%s.idx%d-ubyte", "%s-%s.idx%d-ubyte.gz"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        snprintf(name, NAME_ROOM, forms[i], split_names[split], part->name, part->dimensions);
        if (data_is_file(directory, name))
            return true;
    }
    snprintf(name, NAME_ROOM, forms[0], split_names[split], part->name, part->dimensions);
    return false;
}

bool is_idx(const char *path) {
    char name[NAME_ROOM];
    return find(name, path, DATASET_TRAIN, &parts[IMAGES]) ||
           find(name, path, DATASET_TRAIN, &parts[LABELS]);
}

static int read_part(idx_file *file, const char *directory, dataset_split split, int part) {
    char name[NAME_ROOM];
    const bool found = find(name, directory, split, &parts[part]);
    data_path(file->name, directory, name);
    if (!found)
        return tw__fail(TW_ERR_FILE,
                        "%s: not there, with .gz neither; all four IDX files must be in %s",
                        file->name, directory);
    return bytes_read(&file->data, file->name);
}

/* ---- Embedded files ------------------------------------------------------------------------------ */

#define EMBED(symbol, file)                                                                        \
    __asm__(".section .rodata\n"                                                                   \
            ".balign 16\n"                                                                         \
            ".globl " #symbol "\n.hidden " #symbol "\n"                                            \
            ".globl " #symbol "_end\n.hidden " #symbol "_end\n" #symbol ":\n"                      \
            ".incbin \"" FASHION_DIR "/" file "\"\n" #symbol "_end:\n"                             \
            ".byte 0\n"                                                                            \
            ".previous\n");                                                                        \
    extern const unsigned char symbol[];                                                           \
    extern const unsigned char symbol##_end[];

EMBED(fashion_train_images, "train-images-idx3-ubyte.gz")
EMBED(fashion_train_labels, "train-labels-idx1-ubyte.gz")
EMBED(fashion_test_images, "t10k-images-idx3-ubyte.gz")
EMBED(fashion_test_labels, "t10k-labels-idx1-ubyte.gz")

#define RANGE(symbol)                                                                              \
    { symbol, symbol##_end }

/* First byte and end of each, gzip'd IDX. */
static const unsigned char *const embedded[DATASET_SPLITS][PARTS][2] = {
    {RANGE(fashion_train_images), RANGE(fashion_train_labels)},
    {RANGE(fashion_test_images), RANGE(fashion_test_labels)},
};

static int unpack_part(idx_file *file, dataset_split split, int part) {
    const unsigned char *const *from = embedded[split][part];
    snprintf(file->name, sizeof file->name, "the embedded %s %s",
             split == DATASET_TRAIN ? "training" : "test", parts[part].name);
    return bytes_unpack(&file->data, file->name, from[0], (size_t)(from[1] - from[0]));
}

/* ---- Both --------------------------------------------------------------------------------------- */

/* directory NULL: the embedded files. */
static int load_split(dataset *set, dataset_split split, const char *directory) {
    idx_file files[PARTS] = {{.data = {0}}};
    int status = TW_OK;
    for (int i = 0; i < PARTS && status == TW_OK; i++)
        status = directory ? read_part(&files[i], directory, split, i)
                           : unpack_part(&files[i], split, i);
    if (status == TW_OK)
        status = take_split(set, split, files);
    bytes_free(&files[IMAGES].data);
    bytes_free(&files[LABELS].data);
    return status;
}

int load_idx(dataset *set, const char *path, const dataset_options *options) {
    TW_TRY(load_split(set, DATASET_TRAIN, path));
    TW_TRY(load_split(set, DATASET_TEST, path));
    images_finish(set, options);
    return TW_OK;
}
