/* report_file.c - writes a file as a whole or not at all */
#include "report_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "errors.h"

static int refuse(const char *path, int error) {
    return failure("report: %s: cannot write: %s", path, strerror(error));
}

/* What mkstemp made is for its owner alone; a page is for whoever may read a new file here. */
static int set_mode(int file) {
    mode_t mask = umask(0);
    (void)umask(mask);
    return fchmod(file, 0666 & ~mask);
}

/* Returns 0 or an errno; closes the file in either case. */
static int fill(int file, const char *text, size_t size) {
    int error = set_mode(file) == 0 ? 0 : errno;
    while (size > 0 && error == 0) {
        ssize_t written = write(file, text, size);
        if (written < 0 && errno != EINTR) {
            error = errno;
        } else if (written > 0) {
            text += written;
            size -= (size_t)written;
        }
    }
    if (error == 0 && fsync(file) != 0 && errno != EINVAL) /* some file systems cannot */
        error = errno;
    if (close(file) != 0 && error == 0)
        error = errno;
    return error;
}

/* Write to a temporary file beside path, then rename it. Returns 0 or an errno. */
static int replace(const char *path, const char *text, size_t size) {
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return ENOMEM;
    int file = mkstemp(temporary);
    int error = file >= 0 ? fill(file, text, size) : errno;
    if (file >= 0 && error == 0 && rename(temporary, path) != 0)
        error = errno;
    if (file >= 0 && error != 0)
        (void)unlink(temporary);
    free(temporary);
    return error;
}

int report_file_write(const char *path, const char *text, size_t size) {
    if (strcmp(path, "-") == 0)
        return fwrite(text, 1, size, stdout) == size ? STATUS_OK : refuse(path, errno);
    struct stat before;
    bool exists = stat(path, &before) == 0;
    if (exists && !S_ISREG(before.st_mode))
        return failure("report: %s: not an ordinary file; give the name of one, or -", path);
    char *target = exists ? realpath(path, NULL) : strdup(path); /* a link stays a link */
    int error = target != NULL ? replace(target, text, size) : errno;
    free(target);
    return error == 0 ? STATUS_OK : refuse(path, error);
}
