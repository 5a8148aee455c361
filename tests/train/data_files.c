/* data_files.c - see data_files.h */
#include "data_files.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

enum { PATHS = 8, PATH = 400 };

static char directory[64];

const char *files_path(const char *name) {
    static char paths[PATHS][PATH];
    static int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH, "%s%s%s", directory, *name ? "/" : "", name);
    return path;
}

int files_setup(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/thinwire-data-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

void files_clear(void) {
    DIR *entries = opendir(directory);
    for (struct dirent *e; entries && (e = readdir(entries));)
        unlink(files_path(e->d_name)); /* "." and ".." stay */
    if (entries)
        closedir(entries);
}

int files_teardown(void **state) {
    (void)state;
    files_clear();
    return rmdir(directory);
}

/* ---- Writing -------------------------------------------------------------------------------------- */

void files_write(const char *name, const void *data, size_t size) {
    const char *suffix = strrchr(name, '.');
    const bool packed = suffix != NULL && strcmp(suffix, ".gz") == 0;
    gzFile file = gzopen(files_path(name), packed ? "wb6" : "wbT"); /* T: as it is */
    check_true(file != NULL);
    if (size > 0)
        check_int("bytes written", gzwrite(file, data, (unsigned)size), (int64_t)size);
    check_int("close", gzclose(file), Z_OK);
}

void files_write_text(const char *name, const char *text) {
    files_write(name, text, strlen(text));
}

static uint8_t *put_u32(uint8_t *at, int64_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

/* pixels[size] that tell the number and are otherwise its own. */
static void number_pixels(uint8_t *pixels, int64_t size, int64_t number) {
    for (int64_t i = 0; i < size; i++)
        pixels[i] = (uint8_t)(i == 0 ? number % 256 : i == 1 ? number / 256 : number * 7 + i * 31);
}

uint8_t *idx_images(int64_t count, size_t *size) {
    const int64_t each = IDX_ROWS * IDX_COLUMNS;
    *size = (size_t)(16 + count * each);
    uint8_t *file = check_alloc((int64_t)*size, 1);
    uint8_t *at = put_u32(put_u32(file, 0x803), count);
    at = put_u32(put_u32(at, IDX_ROWS), IDX_COLUMNS);
    for (int64_t i = 0; i < count; i++)
        number_pixels(at + i * each, each, i);
    return file;
}

uint8_t *idx_labels(int64_t count, int classes, size_t *size) {
    *size = (size_t)(8 + count);
    uint8_t *file = check_alloc((int64_t)*size, 1);
    uint8_t *at = put_u32(put_u32(file, 0x801), count);
    for (int64_t i = 0; i < count; i++)
        at[i] = (uint8_t)(i % classes);
    return file;
}

static void write_idx_part(const char *part, int64_t count, const char *suffix) {
    char name[64];
    size_t size;
    uint8_t *file = idx_images(count, &size);
    snprintf(name, sizeof name, "%s-images-idx3-ubyte%s", part, suffix);
    files_write(name, file, size);
    free(file);
    file = idx_labels(count, 10, &size);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte%s", part, suffix);
    files_write(name, file, size);
    free(file);
}

void files_write_idx(int64_t train, int64_t test, const char *suffix) {
    write_idx_part("train", train, suffix);
    write_idx_part("t10k", test, suffix);
}

/* The number is in the first red byte and the first green one: the first pixel. */
void cifar_record(uint8_t record[CIFAR_RECORD], int64_t number) {
    number_pixels(record + 1, CIFAR_RECORD - 1, number);
    record[0] = (uint8_t)(number % 10);
    record[1 + 1] = (uint8_t)(number * 3);
    record[1 + 1024] = (uint8_t)(number / 256);
}

void files_write_cifar(int64_t each) {
    uint8_t *file = check_alloc(each, CIFAR_RECORD);
    for (int64_t part = 0; part < 6; part++) {
        for (int64_t i = 0; i < each; i++)
            cifar_record(file + i * CIFAR_RECORD, part * each + i);
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", (int)part + 1);
        files_write(part < 5 ? name : "test_batch.bin", file, (size_t)(each * CIFAR_RECORD));
    }
    free(file);
}

/* ---- Reading -------------------------------------------------------------------------------------- */

int64_t image_number(const dataset *set, const float *image) {
    const dataset_info *info = dataset_get_info(set);
    const int second = info->channels > 1 ? 1 : 0; /* the channel of the second number */
    const long low = lroundf((image[0] * info->std[0] + info->mean[0]) * 255);
    const long high = lroundf((image[1] * info->std[second] + info->mean[second]) * 255);
    return low + 256 * high;
}

dataset *files_open(const char *name, const dataset_options *options) {
    dataset *set;
    if (dataset_open(&set, name, options) != TW_OK)
        check_fail("dataset_open(%s): %s", name, tw_last_error());
    return set;
}

void files_refused(const char *name, const dataset_options *options, int status,
                   const char *first_part, const char *second_part) {
    dataset *set = (dataset *)&status; /* must become NULL */
    check_error(dataset_open(&set, name, options), status);
    check_true(set == NULL);
    check_contains(tw_last_error(), first_part);
    check_contains(tw_last_error(), second_part);
    check_contains(tw_last_error(), ";"); /* what to do comes after it */
    check_true(strchr(tw_last_error(), '\n') == NULL);
}
