/* file.c - files as a whole; see file.h */
#include "base/file.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int cannot(const char *path, const char *done) {
    return tw__fail(TW_ERR_FILE, "path: '%.200s' cannot be %s: %s", path, done, strerror(errno));
}

static int not_ordinary(const char *path) {
    return tw__fail(TW_ERR_FILE, "path: '%.200s' is not an ordinary file", path);
}

/* ---- read */

int tw__file_open(const char *path, FILE **file, size_t *size) {
    struct stat status;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* no wait for a pipe */
    if (opened < 0)
        return cannot(path, "read");
    int error = fstat(opened, &status) != 0 ? cannot(path, "read")
                : !S_ISREG(status.st_mode)  ? not_ordinary(path)
                                            : TW_OK;
    if (error == TW_OK && (*file = fdopen(opened, "rb")) == NULL)
        error = cannot(path, "read");
    if (error != TW_OK)
        (void)close(opened);
    else
        *size = (size_t)status.st_size;
    return error;
}

int tw__file_read(const char *path, size_t most, char **bytes, size_t *size) {
    FILE *file = NULL;
    *bytes = NULL;
    TW_TRY(tw__file_open(path, &file, size));
    char *read = *size > most ? NULL : malloc(*size + 1);
    int error = TW_OK;
    if (*size > most)
        error = tw__fail(TW_ERR_DAMAGED, "path: '%.200s' is longer than %zu bytes", path, most);
    else if (read == NULL)
        error = tw__fail(TW_ERR_MEMORY, "no memory to read '%.200s'", path);
    else if (fread(read, 1, *size, file) != *size)
        error = tw__fail(TW_ERR_FILE, "path: '%.200s' cannot be read to its end", path);
    (void)fclose(file);
    if (error != TW_OK)
        free(read);
    else
        *bytes = read;
    return error;
}

/* ---- write */

/* A name of its own each time: it follows no link, and what a killed process left is not in its way. */
static int create_part(tw__output *out) {
    static atomic_uint number;
    size_t room = strlen(out->path) + 48;
    int opened = -1;
    out->part = malloc(room);
    if (out->part == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the name of a file");
    do {
        snprintf(out->part, room, "%s.part-%ld-%u", out->path, (long)getpid(),
                 atomic_fetch_add(&number, 1));
        opened = open(out->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    } while (opened < 0 && errno == EEXIST);
    out->file = opened < 0 ? NULL : fdopen(opened, "wb");
    if (out->file != NULL)
        return TW_OK;
    int error = cannot(out->path, "written");
    if (opened >= 0) {
        (void)close(opened);
        (void)unlink(out->part);
    }
    free(out->part);
    return error;
}

int tw__output_open(tw__output *out, const char *path) {
    struct stat status;
    *out = (tw__output){.path = path};
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return not_ordinary(path);
    return create_part(out);
}

int tw__output_put(tw__output *out, const void *data, size_t bytes) {
    return fwrite(data, 1, bytes, out->file) == bytes ? TW_OK : cannot(out->path, "written");
}

/* Some file systems cannot: EINVAL. */
static int sync_opened(int opened) {
    return fsync(opened) == 0 || errno == EINVAL;
}

int tw__output_close(tw__output *out, int error) {
    if (error == TW_OK && (fflush(out->file) != 0 || !sync_opened(fileno(out->file))))
        error = cannot(out->path, "written");
    if (fclose(out->file) != 0 && error == TW_OK)
        error = cannot(out->path, "written");
    if (error == TW_OK && rename(out->part, out->path) != 0)
        error = cannot(out->path, "written");
    if (error != TW_OK)
        (void)unlink(out->part);
    free(out->part);
    return error == TW_OK ? tw__file_sync_name(out->path) : error;
}

int tw__file_sync_name(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    char *directory = length == 0 ? strdup(".") : strndup(path, length);
    if (directory == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the name of a directory");
    int opened = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int done = opened >= 0 ? sync_opened(opened) : errno == EACCES; /* writable, but not readable */
    int error = done ? TW_OK : cannot(path, "made durable");
    if (opened >= 0)
        (void)close(opened);
    free(directory);
    return error;
}
