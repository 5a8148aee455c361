/* file.c - reads a file, unpacks it with zlib when it starts as gzip does
 *
 * All at once: the largest canonical file unpacks to 47 MB. What is read or unpacked may not pass
 * MOST_BYTES, so that a small file that unpacks without end is an error and not a full memory.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <zlib.h>

#include "data/data.h"

#define MOST_BYTES ((size_t)1 << 30)
#define FIRST_ROOM ((size_t)1 << 20) /* of an unpacked file; doubles as needed */
#define WINDOW_GZIP (15 + 16)        /* tells zlib: gzip, any window */

void *data_alloc(const char *name, int64_t count, size_t size) {
    void *made = calloc(count > 0 ? (size_t)count : 1, size);
    if (made == NULL)
        (void)tw__fail(TW_ERR_MEMORY,
                       "%s: not enough memory for %" PRId64 " x %zu bytes; use less of the data",
                       name, count, size);
    return made;
}

void bytes_free(bytes *b) {
    free(b->at);
    *b = (bytes){0};
}

static int too_much(const char *name) {
    return tw__fail(TW_ERR_FILE, "%s: more than %zu MiB; use a smaller file", name,
                    MOST_BYTES >> 20);
}

/* Room for at least one more byte after `used`, and for the 0 at the end. */
static int grow(bytes *out, size_t used, const char *name) {
    if (used < out->size)
        return TW_OK;
    if (out->size >= MOST_BYTES)
        return too_much(name);
    const size_t size = out->size ? 2 * out->size : FIRST_ROOM;
    uint8_t *at = realloc(out->at, size + 1);
    if (at == NULL)
        return tw__fail(TW_ERR_MEMORY, "%s: not enough memory to unpack it", name);
    out->at = at;
    out->size = size;
    return TW_OK;
}

/* zlib counts in 32 bits; bigger pieces are given in turns. */
static uInt piece(size_t size) {
    return size > INT_MAX ? INT_MAX : (uInt)size;
}

/* Unpack all members, one after the other, as gunzip does. *used gets the bytes that came out. */
static int inflate_all(z_stream *z, bytes *out, size_t *used, const char *name, size_t packed) {
    size_t left = packed;
    int result = Z_OK;
    while (result != Z_STREAM_END || left > 0) {
        if (result == Z_STREAM_END)
            inflateReset(z);
        TW_TRY(grow(out, *used, name));
        const uInt in = z->avail_in = piece(left);
        const uInt room = z->avail_out = piece(out->size - *used);
        z->next_out = out->at + *used;
        result = inflate(z, Z_NO_FLUSH);
        left -= in - z->avail_in;
        *used += room - z->avail_out;
        if (result != Z_OK && result != Z_STREAM_END)
            return tw__fail(
                TW_ERR_DAMAGED, "%s: %s after %zu of %zu bytes of gzip; get the file again", name,
                result == Z_BUF_ERROR ? "ends too early" : "damaged", packed - left, packed);
    }
    return TW_OK;
}

int bytes_unpack(bytes *out, const char *name, const uint8_t *packed, size_t size) {
    *out = (bytes){0};
    z_stream z = {.next_in = (z_const Bytef *)packed};
    if (inflateInit2(&z, WINDOW_GZIP) != Z_OK)
        return tw__fail(TW_ERR_MEMORY, "%s: not enough memory to unpack it", name);
    size_t used = 0;
    const int status = inflate_all(&z, out, &used, name, size);
    inflateEnd(&z);
    if (status != TW_OK) {
        bytes_free(out);
        return status;
    }
    assert(used <= out->size);
    out->size = used;
    out->at[used] = 0;
    return TW_OK;
}

static int read_open(bytes *out, const char *path, FILE *file) {
    struct stat about;
    if (fstat(fileno(file), &about) != 0)
        return tw__fail(TW_ERR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return tw__fail(TW_ERR_FILE, "%s: not a regular file; give the file itself", path);
    if ((uint64_t)about.st_size > MOST_BYTES)
        return too_much(path);
    const size_t size = (size_t)about.st_size;
    void *at = data_alloc(path, about.st_size + 1, 1);
    if (at == NULL)
        return TW_ERR_MEMORY;
    *out = (bytes){at, size};
    if (fread(at, 1, size, file) != size)
        return tw__fail(TW_ERR_FILE, "%s: could not be read to its end; is it changing?", path);
    return TW_OK;
}

int bytes_read(bytes *out, const char *path) {
    *out = (bytes){0};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no wait for a pipe */
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (file == NULL)
        return tw__fail(TW_ERR_FILE, "%s: %s; check the path", path, strerror(errno));
    bytes raw = {0};
    int status = read_open(&raw, path, file);
    fclose(file);
    if (status == TW_OK && raw.size >= 2 && raw.at[0] == 0x1f && raw.at[1] == 0x8b) {
        status = bytes_unpack(out, path, raw.at, raw.size);
    } else if (status == TW_OK) {
        *out = raw;
        return TW_OK;
    }
    bytes_free(&raw);
    return status;
}

void data_path(char *path, const char *directory, const char *file) {
    snprintf(path, PATH_ROOM, "%s/%s", directory, file);
}

bool data_is_file(const char *directory, const char *file) {
    char path[PATH_ROOM];
    struct stat about;
    data_path(path, directory, file);
    return stat(path, &about) == 0 && !S_ISDIR(about.st_mode);
}
