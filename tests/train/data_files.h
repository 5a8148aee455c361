/* data_files.h - small data files for tests, in a directory of their own
 *
 * Images carry their number in their pixels, so that a batch tells which ones it holds.
 */
#ifndef DATA_FILES_H
#define DATA_FILES_H

#include "check.h"
#include "data/dataset.h"

enum { IDX_ROWS = 3, IDX_COLUMNS = 5, CIFAR_RECORD = 3073 };

/* Group setup and teardown: makes the directory, removes it with all that is in it. */
int files_setup(void **state);
int files_teardown(void **state);

/* A path in the directory; one of a few buffers. An empty name: the directory itself. */
const char *files_path(const char *name);

/* Write size bytes, as gzip where the name ends so. */
void files_write(const char *name, const void *data, size_t size);
void files_write_text(const char *name, const char *text);

/* Remove all files of the directory. */
void files_clear(void);

/* IDX files in memory; *size gets their length. Label i is i % classes. free() them. */
uint8_t *idx_images(int64_t count, size_t *size);
uint8_t *idx_labels(int64_t count, int classes, size_t *size);

/* All four IDX files, with `suffix` ("" or ".gz"). */
void files_write_idx(int64_t train, int64_t test, const char *suffix);

/* Six files of CIFAR-10, the images numbered on through them; `each` records in a file. */
void files_write_cifar(int64_t each);
void cifar_record(uint8_t record[CIFAR_RECORD], int64_t number);

/* The number of an image of IDX or CIFAR-10, from a row of a batch. */
int64_t image_number(const dataset *set, const float *image);

/* Open, or a failed test. */
dataset *files_open(const char *name, const dataset_options *options);

/* Opening must fail with this status, and say these parts in one line that has a remedy. */
void files_refused(const char *name, const dataset_options *options, int status,
                   const char *first_part, const char *second_part);

#endif
