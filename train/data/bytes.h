/* bytes.h - a whole file in memory, unpacked where it was gzip'd, and the way errors are told */
#ifndef TRAIN_DATA_BYTES_H
#define TRAIN_DATA_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "../dataset.h"

typedef struct bytes {
    uint8_t *at; /* [size], then one 0 */
    size_t size;
} bytes;

/* Fail: a line for *error (may be NULL), as printf. The value is `status`, for all to see. */
#define data_fail(error, status, ...) (data_say((error), __VA_ARGS__), (status))
void data_say(dataset_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* count * size zeroed bytes into *out, free() them. `name` is what they are for. */
int data_alloc(void **out, const char *name, int64_t count, size_t size, dataset_error *error);

/* Read the regular file `path`. Unpacks gzip by its magic, whatever the name. */
int bytes_read(bytes *out, const char *path, dataset_error *error);

/* A copy of packed[size], unpacked where it is gzip. `name` is what errors call it. */
int bytes_unpack(bytes *out, const char *name, const uint8_t *packed, size_t size,
                 dataset_error *error);

void bytes_free(bytes *b);

/* Big endian, as IDX has it. */
static inline uint32_t bytes_u32(const uint8_t at[4]) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

#endif
