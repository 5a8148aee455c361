/* file.h - files that are read as a whole, and replaced as a whole or not at all
 *
 * Only ordinary files: a pipe would block, a device has no end, and a rename would replace either.
 * Texts of errors begin with "path: ". */
#ifndef TW_BASE_FILE_H
#define TW_BASE_FILE_H

#include <stddef.h>
#include <stdio.h>

/* Open an ordinary file for reading. Never blocks. Errors: TW_ERR_FILE. */
int tw__file_open(const char *path, FILE **file, size_t *size);

/* Read an ordinary file of at most so many bytes. *bytes is the caller's to free; NULL after an
 * error. Errors: TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DAMAGED when it is longer. */
int tw__file_read(const char *path, size_t most, char **bytes, size_t *size);

/* A file that is being written, under another name in the same directory. */
typedef struct tw__output {
    const char *path; /* as it will be called */
    char *part;       /* as it is called now: PATH.part-PID-NUMBER */
    FILE *file;
} tw__output;

/* Begin. What lies at path must be an ordinary file, or nothing.
 * Errors: TW_ERR_FILE; TW_ERR_MEMORY. Nothing is left to close then. */
int tw__output_open(tw__output *out, const char *path);
/* Errors: TW_ERR_FILE. */
int tw__output_put(tw__output *out, const void *data, size_t bytes);
/* End. With error TW_OK the file is on disk under its name when this returns. With another error, or
 * if that fails, it is removed and what lay at path remains. Returns the first error. */
int tw__output_close(tw__output *out, int error);

/* Make the name of a file, which was created or renamed, as durable as the file.
 * Errors: TW_ERR_FILE. */
int tw__file_sync_name(const char *path);

#endif
