/* test_data_files.c - image files read back as written, and every kind of damage refused
 *
 * Files are cut at every length and altered at every byte of their headers. What is refused must
 * name the file and say what to do, in one line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"
#include "data_files.h"

enum { TRAIN = 12, TEST = 5, PIXELS = IDX_ROWS * IDX_COLUMNS };
static const char images_name[] = "train-images-idx3-ubyte";
static const char labels_name[] = "train-labels-idx1-ubyte";

/* ---- As written ----------------------------------------------------------------------------------- */

static void check_idx(const char *suffix) {
    check_scene("IDX with suffix '%s'", suffix);
    files_clear();
    files_write_idx(TRAIN, TEST, suffix);
    dataset *set = files_open(files_path(""), NULL);
    const dataset_info *info = dataset_get_info(set);
    check_int("training images", info->count[DATASET_TRAIN], TRAIN);
    check_int("test images", info->count[DATASET_TEST], TEST);
    check_int("height", info->height, IDX_ROWS);
    check_int("width", info->width, IDX_COLUMNS);
    check_int("channels", info->channels, 1);
    size_t size;
    uint8_t *file = idx_images(TRAIN, &size);
    check_true(memcmp(set->images[DATASET_TRAIN].pixels, file + 16, size - 16) == 0);
    free(file);
    for (int64_t i = 0; i < TRAIN; i++)
        check_int("label", set->images[DATASET_TRAIN].labels[i], i % 10);
    dataset_close(set);
}

static void test_idx(void **state) {
    (void)state;
    check_idx("");
    check_idx(".gz");
}

static void test_cifar(void **state) {
    (void)state;
    check_scene("CIFAR-10");
    files_clear();
    files_write_cifar(3);
    dataset *set = files_open(files_path(""), NULL);
    const dataset_info *info = dataset_get_info(set);
    check_int("training images", info->count[DATASET_TRAIN], 15);
    check_int("test images", info->count[DATASET_TEST], 3);
    check_int("channels", info->channels, 3);
    check_int("height", info->height, 32);
    for (int64_t i = 0; i < 18; i++) {
        const image_split *images = &set->images[i < 15 ? DATASET_TRAIN : DATASET_TEST];
        const uint8_t *pixels = images->pixels + (i < 15 ? i : i - 15) * 3072;
        uint8_t record[CIFAR_RECORD];
        cifar_record(record, i);
        for (int p = 0; p < 1024; p++)
            for (int c = 0; c < 3; c++)
                check_int("pixel", pixels[p * 3 + c], record[1 + c * 1024 + p]);
    }
    dataset_close(set);
}

/* ---- Damaged IDX ---------------------------------------------------------------------------------- */

/* The four good files, one of them replaced by bytes. */
static void refuse_replaced(const char *name, const uint8_t *file, size_t size, const char *says) {
    files_write(name, file, size);
    files_refused(files_path(""), NULL, TW_ERR_DAMAGED, name, says);
}

static void damage_idx(const char *name, uint8_t *file, size_t size, size_t header) {
    for (size_t length = 0; length < size; length++) {
        check_scene("%s cut to %zu bytes", name, length);
        refuse_replaced(name, file, length, length < header ? "header" : "promises");
    }
    for (size_t i = 0; i < header; i++) {
        for (int bit = 0; bit < 8; bit++) {
            check_scene("%s with bit %d of byte %zu turned", name, bit, i);
            file[i] ^= (uint8_t)(1 << bit);
            refuse_replaced(name, file, size, i < 4 ? "magic" : "");
            file[i] ^= (uint8_t)(1 << bit);
        }
    }
    check_scene("%s with a byte too many", name);
    uint8_t *longer = check_alloc((int64_t)size + 1, 1);
    memcpy(longer, file, size);
    refuse_replaced(name, longer, size + 1, "promises");
    free(longer);
    files_write(name, file, size);
}

static void test_damaged_idx(void **state) {
    (void)state;
    files_clear();
    files_write_idx(TRAIN, TEST, "");
    size_t size;
    uint8_t *images = idx_images(TRAIN, &size);
    damage_idx(images_name, images, size, 16);
    for (int at = 10; at <= 14; at += 4) { /* rows, columns: more than 1,024 */
        check_scene("a side of 1,024 pixels and more, byte %d", at);
        images[at] = 4;
        refuse_replaced(images_name, images, size, "sides of 1 to 1024");
        images[at] = 0;
    }
    memset(images + 4, 0, 4); /* no images at all */
    refuse_replaced(images_name, images, 16, "nothing");
    free(images);
    images = idx_images(TRAIN - 1, &size); /* good in itself */
    files_write(images_name, images, size);
    files_refused(files_path(""), NULL, TW_ERR_DAMAGED, "12 labels", "11 images");
    free(images);
    images = idx_images(TRAIN, &size);
    files_write(images_name, images, size);
    free(images);
    uint8_t *labels = idx_labels(TRAIN, 10, &size);
    damage_idx(labels_name, labels, size, 8);
    free(labels);
    dataset_close(files_open(files_path(""), NULL)); /* all is well again */
}

static void test_idx_labels_and_shapes(void **state) {
    (void)state;
    check_scene("labels out of range");
    size_t size;
    uint8_t *labels = idx_labels(TRAIN, 10, &size);
    labels[8 + 7] = 10;
    files_write(labels_name, labels, size);
    free(labels);
    files_refused(files_path(""), NULL, TW_ERR_DAMAGED, labels_name, "label 10 of image 7");
    dataset_close(files_open(files_path(""), &(dataset_options){.classes = 11}));
    check_scene("a test set of another shape");
    uint8_t *images = idx_images(IDX_COLUMNS, &size);
    const uint32_t rows = images[11];
    images[11] = images[15]; /* columns */
    images[15] = (uint8_t)rows;
    files_write("t10k-images-idx3-ubyte", images, size);
    free(images);
    files_refused(files_path(""), &(dataset_options){.classes = 11}, TW_ERR_DAMAGED,
                  "t10k-images-idx3-ubyte", "3 x 5");
}

static void test_damaged_gzip(void **state) {
    (void)state;
    files_clear();
    files_write_idx(TRAIN, TEST, ".gz");
    const char *name = "train-images-idx3-ubyte.gz";
    uint8_t packed[1024];
    FILE *file = fopen(files_path(name), "rb");
    check_true(file != NULL);
    const size_t size = fread(packed, 1, sizeof packed - 4, file);
    fclose(file);
    for (size_t length = 2; length <= size + 4; length++) { /* below: no gzip at all */
        check_scene("gzip cut to %zu of %zu bytes", length, size);
        if (length == size)
            continue;
        file = fopen(files_path(name), "wb");
        check_true(file != NULL);
        check_int("written", (int64_t)fwrite(packed, 1, length, file), (int64_t)length);
        fclose(file);
        files_refused(files_path(""), NULL, TW_ERR_DAMAGED, name, "gzip");
    }
    for (size_t i = 10; i < size; i++) { /* after gzip's header every bit is checked */
        check_scene("gzip with byte %zu altered", i);
        packed[i] ^= 0x10;
        file = fopen(files_path(name), "wb");
        check_true(file != NULL);
        check_int("written", (int64_t)fwrite(packed, 1, size, file), (int64_t)size);
        fclose(file);
        packed[i] ^= 0x10;
        files_refused(files_path(""), NULL, TW_ERR_DAMAGED, name, "gzip");
    }
}

/* ---- Damaged CIFAR-10 ----------------------------------------------------------------------------- */

static void test_damaged_cifar(void **state) {
    (void)state;
    files_clear();
    files_write_cifar(2);
    uint8_t file[2 * CIFAR_RECORD + 1];
    cifar_record(file, 0);
    cifar_record(file + CIFAR_RECORD, 1);
    const size_t cuts[] = {0, 1, 3072, 3074, 2 * CIFAR_RECORD - 1, 2 * CIFAR_RECORD + 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        check_scene("CIFAR-10 file of %zu bytes", cuts[i]);
        refuse_replaced("data_batch_4.bin", file, cuts[i], "records");
    }
    check_scene("CIFAR-10 label");
    file[CIFAR_RECORD] = 10;
    refuse_replaced("data_batch_4.bin", file, 2 * CIFAR_RECORD, "label 10 of image 1");
    file[CIFAR_RECORD] = 9;
    files_write("data_batch_4.bin", file, 2 * CIFAR_RECORD);
    dataset_close(files_open(files_path(""), NULL));
    unlink(files_path("test_batch.bin"));
    files_refused(files_path(""), NULL, TW_ERR_FILE, "test_batch.bin", "No such file");
    unlink(files_path("data_batch_1.bin"));
    files_write("test_batch.bin", file, 2 * CIFAR_RECORD);
    files_refused(files_path(""), NULL, TW_ERR_FILE, "data_batch_1.bin", "No such file");
}

/* ---- Not there ------------------------------------------------------------------------------------ */

static void test_missing(void **state) {
    (void)state;
    check_scene("missing");
    files_clear();
    files_refused(files_path("nowhere"), NULL, TW_ERR_NAME, "nowhere", DATASET_EMBEDDED);
    files_refused("", NULL, TW_ERR_NAME, "No such file", DATASET_EMBEDDED);
    files_refused(files_path(""), NULL, TW_ERR_FILE, "holds none", "data_batch_1.bin");
    const char *names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
    for (int i = 0; i < 4; i++) {
        files_write_idx(TRAIN, TEST, "");
        unlink(files_path(names[i]));
        files_refused(files_path(""), NULL, TW_ERR_FILE, names[i], "not there");
    }
    check_int("pipe", mkfifo(files_path("t10k-labels-idx1-ubyte"), 0600), 0);
    files_refused(files_path(""), NULL, TW_ERR_FILE, "t10k-labels", "regular file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx),          cmocka_unit_test(test_cifar),
        cmocka_unit_test(test_damaged_idx),  cmocka_unit_test(test_idx_labels_and_shapes),
        cmocka_unit_test(test_damaged_gzip), cmocka_unit_test(test_damaged_cifar),
        cmocka_unit_test(test_missing),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
