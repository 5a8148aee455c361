/* json.c - JSON lines through jansson
 *
 * Without TW_HAVE_JANSSON only the refusal remains. A failed write is remembered and reported once,
 * by jsonl_close.
 */
#include "json.h"

#include "cli.h"

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

static void note_error(jsonl *out, int error) {
    if (out->error == 0)
        out->error = error;
}

/* Cut the file off after its last newline; a pipe has nothing to cut. Returns false with errno. */
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
static FILE *open_stream(const char *path, bool append) {
    if (strcmp(path, "-") == 0)
        return stdout;
    FILE *stream = fopen(path, append ? "a+" : "w");
    if (stream != NULL && append && !cut_half_line(stream)) {
        int error = errno;
        (void)fclose(stream);
        errno = error;
        return NULL;
    }
    return stream;
}

int jsonl_open(jsonl **out, const char *path, bool append) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    jsonl *created = calloc(1, sizeof *created);
    json_t *record = json_object();
    FILE *stream = NULL;
    int status = STATUS_OK;
    if (created == NULL || record == NULL)
        status = error_report("%s: out of memory", path);
    else if ((stream = open_stream(path, append)) == NULL)
        status = error_report("%s: cannot write: %s", path, strerror(errno));
    if (stream == NULL) {
        free(created);
        json_decref(record);
        return status;
    }
    *created = (jsonl){.stream = stream, .path = path, .record = record};
    *out = created;
    return STATUS_OK;
}

FILE *jsonl_table_stream(const jsonl *out) {
    return out != NULL && out->stream == stdout ? stderr : stdout;
}

/* Takes the reference to value; NULL means that making it failed. */
static void set(jsonl *out, const char *key, json_t *value) {
    if (json_object_set_new(out->record, key, value) != 0)
        note_error(out, ENOMEM);
}

static json_t *value_of(const jsonl_field *field) {
    if (field->type == JSONL_TEXT)
        return json_string(field->text);
    if (field->type == JSONL_INTEGER)
        return json_integer(field->integer);
    if (field->type == JSONL_FLAG)
        return json_boolean(field->integer);
    /* NULL for NaN and infinity, which JSON lacks. */
    json_t *number = field->type == JSONL_REAL ? json_real(field->real) : NULL;
    return number != NULL ? number : json_null();
}

void jsonl_set_fields(jsonl *out, const jsonl_field *fields, int count) {
    for (int i = 0; i < count && out != NULL; i++)
        set(out, fields[i].key, value_of(&fields[i]));
}

void jsonl_append(jsonl *out, jsonl_field field) {
    if (out == NULL)
        return;
    if (json_object_get(out->record, field.key) == NULL)
        set(out, field.key, json_array());
    if (json_array_append_new(json_object_get(out->record, field.key), value_of(&field)) != 0)
        note_error(out, ENOMEM);
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

int jsonl_close(jsonl *out, int status) {
    if (out == NULL)
        return status;
    if (out->stream != stdout && fclose(out->stream) != 0)
        note_error(out, errno);
    if (out->error != 0) {
        int failed =
            error_report("%s: not everything was written: %s", out->path, strerror(out->error));
        status = status == STATUS_OK ? failed : status;
    }
    json_decref(out->record);
    free(out);
    return status;
}

#else

/* jsonl_open never makes a handle, so the functions after it have nothing to do. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

int jsonl_open(jsonl **out, const char *path, bool append) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    return error_usage("%s: this build lacks JSON; install libjansson-dev and rebuild", path);
}

FILE *jsonl_table_stream(const jsonl *out) {
    return stdout;
}

void jsonl_set_fields(jsonl *out, const jsonl_field *fields, int count) {
}
void jsonl_append(jsonl *out, jsonl_field field) {
}
void jsonl_write(jsonl *out) {
}

int jsonl_close(jsonl *out, int status) {
    return status;
}

#endif
