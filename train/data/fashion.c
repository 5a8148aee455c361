/* fashion.c - the embedded part of Fashion-MNIST
 *
 * The files of data/fashion-mnist become read-only data of the object file: the assembler copies
 * them in (.incbin), so that compiling takes no time and the program finds them wherever it is
 * copied to, installed or not, in whatever directory it runs. A search for a share directory would
 * have to know three places and could fail in each; arrays in generated C would be 20 MB of source.
 * They stay packed, 5.2 MB, and are pages that only a run on this set ever reads. GCC and clang on
 * ELF systems understand this; FASHION_DIR comes from CMakeLists.txt.
 */
#include "parts.h"

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

typedef struct embedded_file {
    const char *name;
    const unsigned char *first, *end; /* gzip'd IDX */
} embedded_file;

#define PART(what, symbol)                                                                         \
    { "the embedded " what, symbol, symbol##_end }

/* By split: images, labels. */
static const embedded_file fashion_files[DATASET_SPLITS][2] = {
    {PART("training images", fashion_train_images), PART("training labels", fashion_train_labels)},
    {PART("test images", fashion_test_images), PART("test labels", fashion_test_labels)},
};

static int unpack(bytes *out, const embedded_file *file, dataset_error *error) {
    return bytes_unpack(out, file->name, file->first, (size_t)(file->end - file->first), error);
}

static int load_split(dataset *set, dataset_split split, dataset_error *error) {
    const embedded_file *files = fashion_files[split];
    bytes images = {0};
    bytes labels = {0};
    int status = unpack(&images, &files[0], error);
    if (status == TW_OK)
        status = unpack(&labels, &files[1], error);
    if (status == TW_OK)
        status = idx_split(set, split, files[0].name, &images, files[1].name, &labels, error);
    bytes_free(&images);
    bytes_free(&labels);
    return status;
}

int load_fashion(dataset *set, const dataset_options *options, dataset_error *error) {
    int status = load_split(set, DATASET_TRAIN, error);
    if (status == TW_OK)
        status = load_split(set, DATASET_TEST, error);
    if (status == TW_OK)
        images_finish(set, options);
    return status;
}
