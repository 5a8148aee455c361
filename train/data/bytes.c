/* bytes.c - reads a file, unpacks it with zlib when it starts as gzip does
 *
 * All at once: the largest canonical file unpacks to 47 MB. What is read or unpacked may not pass
 * MOST_BYTES, so that a small file that unpacks without end is an error and not a full memory.
 */
#include "bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <zlib.h>

#define MOST_BYTES ((size_t)1 << 30)
#define FIRST_ROOM ((size_t)1 << 20) /* of an unpacked file; doubles as needed */
#define WINDOW_GZIP (15 + 16)        /* zlib's way to say: gzip, any window */

void data_say(dataset_error *error, const char *format, ...) {
    if (error == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

int data_alloc(void **out, const char *name, int64_t count, size_t size, dataset_error *error) {
    *out = calloc(count > 0 ? (size_t)count : 1, size);
    if (*out == NULL)
        return data_fail(error, TW_ERR_MEMORY,
                         "%s: not enough memory for %" PRId64 " x %zu bytes; use less of the data",
                         name, count, size);
    return TW_OK;
}

void bytes_free(bytes *b) {
    free(b->at);
    *b = (bytes){0};
}

static int too_much(dataset_error *error, const char *name) {
    return data_fail(error, TW_ERR_FILE, "%s: more than %zu MiB; use a smaller file", name,
                     MOST_BYTES >> 20);
}

/* ---- gzip ----------------------------------------------------------------------------------------- */

static int is_gzip(const uint8_t *at, size_t size) {
    return size >= 2 && at[0] == 0x1f && at[1] == 0x8b;
}

/* Room for at least one more byte after `used`, and for the 0 at the end. */
static int grow(bytes *out, size_t used, const char *name, dataset_error *error) {
    if (used < out->size)
        return TW_OK;
    if (out->size >= MOST_BYTES)
        return too_much(error, name);
    const size_t size = out->size ? 2 * out->size : FIRST_ROOM;
    uint8_t *at = realloc(out->at, size + 1);
    if (at == NULL)
        return data_fail(error, TW_ERR_MEMORY, "%s: not enough memory to unpack it", name);
    out->at = at;
    out->size = size;
    return TW_OK;
}

/* zlib counts in 32 bits; bigger pieces are given in turns. */
static uInt piece(size_t size) {
    return size > INT_MAX ? INT_MAX : (uInt)size;
}

/* Unpack all members, one after the other, as gunzip does. *used gets the bytes that came out. */
static int inflate_all(z_stream *z, bytes *out, size_t *used, const char *name, size_t packed,
                       dataset_error *error) {
    size_t left = packed;
    int result = Z_OK;
    while (result != Z_STREAM_END || left > 0) {
        if (result == Z_STREAM_END)
            inflateReset(z);
        const int status = grow(out, *used, name, error);
        if (status != TW_OK)
            return status;
        const uInt in = z->avail_in = piece(left);
        const uInt room = z->avail_out = piece(out->size - *used);
        z->next_out = out->at + *used;
        result = inflate(z, Z_NO_FLUSH);
        left -= in - z->avail_in;
        *used += room - z->avail_out;
        if (result != Z_OK && result != Z_STREAM_END)
            return data_fail(
                error, TW_ERR_DAMAGED, "%s: %s after %zu of %zu bytes of gzip; get the file again",
                name, result == Z_BUF_ERROR ? "ends too early" : "damaged", packed - left, packed);
    }
    return TW_OK;
}

static int gunzip(bytes *out, const char *name, const uint8_t *packed, size_t size,
                  dataset_error *error) {
    z_stream z = {.next_in = (z_const Bytef *)packed};
    if (inflateInit2(&z, WINDOW_GZIP) != Z_OK)
        return data_fail(error, TW_ERR_MEMORY, "%s: not enough memory to unpack it", name);
    size_t used = 0;
    const int status = inflate_all(&z, out, &used, name, size, error);
    inflateEnd(&z);
    if (status != TW_OK) {
        bytes_free(out);
        return status;
    }
    out->size = used;
    out->at[used] = 0;
    return TW_OK;
}

int bytes_unpack(bytes *out, const char *name, const uint8_t *packed, size_t size,
                 dataset_error *error) {
    *out = (bytes){0};
    if (is_gzip(packed, size))
        return gunzip(out, name, packed, size, error);
    void *copy;
    const int status = data_alloc(&copy, name, (int64_t)size + 1, 1, error);
    if (status != TW_OK)
        return status;
    memcpy(copy, packed, size);
    *out = (bytes){copy, size};
    return TW_OK;
}

/* ---- Files ---------------------------------------------------------------------------------------- */

static int read_open(bytes *out, const char *path, FILE *file, dataset_error *error) {
    struct stat about;
    if (fstat(fileno(file), &about) != 0)
        return data_fail(error, TW_ERR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return data_fail(error, TW_ERR_FILE, "%s: not a regular file; give the file itself", path);
    if ((uint64_t)about.st_size > MOST_BYTES)
        return too_much(error, path);
    void *at;
    const size_t size = (size_t)about.st_size;
    const int status = data_alloc(&at, path, about.st_size + 1, 1, error);
    if (status != TW_OK)
        return status;
    *out = (bytes){at, size};
    if (fread(at, 1, size, file) != size)
        return data_fail(error, TW_ERR_FILE, "%s: could not be read to its end; is it changing?",
                         path);
    return TW_OK;
}

int bytes_read(bytes *out, const char *path, dataset_error *error) {
    *out = (bytes){0};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no wait for a pipe */
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (file == NULL)
        return data_fail(error, TW_ERR_FILE, "%s: %s; check the path", path, strerror(errno));
    bytes raw = {0};
    int status = read_open(&raw, path, file, error);
    fclose(file);
    if (status == TW_OK && is_gzip(raw.at, raw.size)) {
        status = gunzip(out, path, raw.at, raw.size, error);
    } else if (status == TW_OK) {
        *out = raw;
        return TW_OK;
    }
    bytes_free(&raw);
    return status;
}
