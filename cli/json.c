/* json.c - JSON lines through jansson
 *
 * Without TW_HAVE_JANSSON only the refusal remains. A failed write is remembered and reported once,
 * by jsonl_close.
 */
#include "json.h"

#include "errors.h"

#ifdef TW_HAVE_JANSSON

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL_DIGITS 12 /* enough for any time and ratio, and 0.1 stays 0.1 */

struct jsonl {
    FILE *stream;
    const char *path;
    json_t *record; /* the object under way */
    int error;      /* errno of the first failure, 0 if none */
};

bool jsonl_available(void) {
    return true;
}

static void note_error(jsonl *out, int error) {
    if (out->error == 0)
        out->error = error;
}

/* Cut the file off behind its last newline; a pipe has nothing to cut. Returns false with errno. */
static bool cut_half_line(FILE *stream) {
    struct stat status;
    if (fstat(fileno(stream), &status) != 0 || !S_ISREG(status.st_mode))
        return true;
    off_t length = 0, whole = 0;
    for (int c = getc(stream); c != EOF; c = getc(stream)) {
        length++;
        whole = c == '\n' ? length : whole;
    }
    return !ferror(stream) && (whole == length || ftruncate(fileno(stream), whole) == 0);
}

/* The stream to write to, NULL with errno. */
static FILE *open_stream(const char *path, bool resumed) {
    if (strcmp(path, "-") == 0)
        return stdout;
    FILE *stream = fopen(path, resumed ? "a+" : "w");
    if (stream != NULL && resumed && !cut_half_line(stream)) {
        int error = errno;
        (void)fclose(stream);
        errno = error;
        return NULL;
    }
    return stream;
}

static int open_path(jsonl **out, const char *path, bool resumed) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    jsonl *created = calloc(1, sizeof *created);
    json_t *record = json_object();
    if (created == NULL || record == NULL) {
        free(created);
        json_decref(record);
        return failure("%s: out of memory", path);
    }
    FILE *stream = open_stream(path, resumed);
    if (stream == NULL) {
        free(created);
        json_decref(record);
        return failure("%s: cannot write: %s", path, strerror(errno));
    }
    *created = (jsonl){.stream = stream, .path = path, .record = record, .error = 0};
    *out = created;
    return STATUS_OK;
}

int jsonl_open(jsonl **out, const char *path) {
    return open_path(out, path, false);
}

int jsonl_resume(jsonl **out, const char *path) {
    return open_path(out, path, true);
}

FILE *jsonl_table_stream(const jsonl *out) {
    return out != NULL && out->stream == stdout ? stderr : stdout;
}

/* Takes the reference to value; NULL means that making it failed. */
static void set(jsonl *out, const char *key, json_t *value) {
    if (json_object_set_new(out->record, key, value) != 0)
        note_error(out, ENOMEM);
}

void jsonl_text(jsonl *out, const char *key, const char *value) {
    if (out != NULL)
        set(out, key, json_string(value));
}

void jsonl_integer(jsonl *out, const char *key, int64_t value) {
    if (out != NULL)
        set(out, key, json_integer(value));
}

void jsonl_real(jsonl *out, const char *key, double value) {
    if (out != NULL) {
        json_t *number = json_real(value); /* NULL for NaN and infinity, which JSON lacks */
        set(out, key, number != NULL ? number : json_null());
    }
}

void jsonl_flag(jsonl *out, const char *key, bool value) {
    if (out != NULL)
        set(out, key, json_boolean(value));
}

void jsonl_null(jsonl *out, const char *key) {
    if (out != NULL)
        set(out, key, json_null());
}

static void append(jsonl *out, const char *key, json_t *value) {
    if (json_object_get(out->record, key) == NULL)
        set(out, key, json_array());
    if (json_array_append_new(json_object_get(out->record, key), value) != 0)
        note_error(out, ENOMEM);
}

void jsonl_append(jsonl *out, const char *key, const char *value) {
    if (out != NULL)
        append(out, key, json_string(value));
}

void jsonl_append_integer(jsonl *out, const char *key, int64_t value) {
    if (out != NULL)
        append(out, key, json_integer(value));
}

void jsonl_write(jsonl *out) {
    if (out == NULL)
        return;
    size_t format = JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS);
    /* Flushed line by line, so that a reader at the other end of a pipe sees results at once. */
    if (json_dumpf(out->record, out->stream, format) != 0 || fputc('\n', out->stream) == EOF ||
        fflush(out->stream) != 0)
        note_error(out, errno);
    json_object_clear(out->record);
}

int jsonl_close(jsonl *out) {
    if (out == NULL)
        return STATUS_OK;
    if (out->stream != stdout && fclose(out->stream) != 0)
        note_error(out, errno);
    int status = STATUS_OK;
    if (out->error != 0)
        status = failure("%s: not everything was written: %s", out->path, strerror(out->error));
    json_decref(out->record);
    free(out);
    return status;
}

#else

bool jsonl_available(void) {
    return false;
}

int jsonl_open(jsonl **out, const char *path) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    return usage_error("%s: this build lacks JSON; install libjansson-dev and rebuild", path);
}

int jsonl_resume(jsonl **out, const char *path) {
    return jsonl_open(out, path);
}

FILE *jsonl_table_stream(const jsonl *out) {
    (void)out;
    return stdout;
}

/* jsonl_open never makes a handle, so nothing below is ever called with one. */
void jsonl_text(jsonl *out, const char *key, const char *value) {
    (void)out, (void)key, (void)value;
}

void jsonl_integer(jsonl *out, const char *key, int64_t value) {
    (void)out, (void)key, (void)value;
}

void jsonl_real(jsonl *out, const char *key, double value) {
    (void)out, (void)key, (void)value;
}

void jsonl_flag(jsonl *out, const char *key, bool value) {
    (void)out, (void)key, (void)value;
}

void jsonl_null(jsonl *out, const char *key) {
    (void)out, (void)key;
}

void jsonl_append(jsonl *out, const char *key, const char *value) {
    (void)out, (void)key, (void)value;
}

void jsonl_append_integer(jsonl *out, const char *key, int64_t value) {
    (void)out, (void)key, (void)value;
}

void jsonl_write(jsonl *out) {
    (void)out;
}

int jsonl_close(jsonl *out) {
    (void)out;
    return STATUS_OK;
}

#endif
