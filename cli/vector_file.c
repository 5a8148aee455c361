/* vector_file.c - reads and checks raw float32 files
 *
 * Regular files only: their size says beforehand whether the vector fits.
 */
#include "vector_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "buffer.h"
#include "errors.h"
#include "float_bits.h"

#define VALUE_BYTES 4

static int check_size(const char *path, const struct stat *status) {
    if (!S_ISREG(status->st_mode))
        return failure("%s: not a regular file", path);
    int64_t bytes = status->st_size;
    if (bytes == 0 || bytes % VALUE_BYTES != 0) {
        return failure("%s: %" PRId64 " bytes; raw float32 has a positive multiple of 4", path,
                       bytes);
    }
    if (bytes / VALUE_BYTES > INT32_MAX) {
        return failure("%s: %" PRId64 " values; at most 2147483647 are accepted", path,
                       bytes / VALUE_BYTES);
    }
    return STATUS_OK;
}

/* Bytes in file order become values in place, on any byte order of the machine. */
static void decode(float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        unsigned char bytes[VALUE_BYTES];
        memcpy(bytes, &values[i], sizeof bytes);
        uint32_t bits = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                        (uint32_t)bytes[3] << 24;
        values[i] = float_from_bits(bits);
    }
}

static int check_finite(const char *path, const float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) {
            return failure("%s: value %" PRId64 " is %f; only finite numbers are accepted", path, i,
                           (double)values[i]);
        }
    }
    return STATUS_OK;
}

static int read_values(const char *path, FILE *file, float *values, int64_t n) {
    if (fread(values, VALUE_BYTES, (size_t)n, file) != (size_t)n)
        return failure("%s: could not be read to its end", path);
    decode(values, n);
    return check_finite(path, values, n);
}

/* The part after opening, so that one place closes the file. */
static int read_open_file(const char *path, FILE *file, float **values, int64_t *n) {
    struct stat status;
    if (fstat(fileno(file), &status) != 0)
        return failure("%s: %s", path, strerror(errno));
    int result = check_size(path, &status);
    if (result != STATUS_OK)
        return result;
    *n = status.st_size / VALUE_BYTES;
    float *buffer = buffer_create(*n, sizeof *buffer);
    if (buffer == NULL)
        return failure("%s: not enough memory for %" PRId64 " values", path, *n);
    result = read_values(path, file, buffer, *n);
    if (result != STATUS_OK) {
        free(buffer);
        return result;
    }
    *values = buffer;
    return STATUS_OK;
}

int vector_file_read(const char *path, float **values, int64_t *n) {
    *values = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return failure("%s: %s", path, strerror(errno));
    int result = read_open_file(path, file, values, n);
    fclose(file);
    return result;
}
