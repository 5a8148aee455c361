/* vector_file.h - vectors from files of raw little-endian float32, as numpy's tofile writes them */
#ifndef CLI_VECTOR_FILE_H
#define CLI_VECTOR_FILE_H

#include <stdint.h>

/* Read the whole file: *values[*n], to be freed by the caller. Refuses an empty file, a size that
 * is not a multiple of 4, more than 2147483647 values, NaN and infinity.
 * Returns STATUS_OK, or prints why not; *values is NULL then. */
int vector_file_read(const char *path, float **values, int64_t *n);

#endif
