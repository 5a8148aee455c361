/* json.h - JSON lines: one object per line, to a file or to stdout (`--json -`)
 *
 * Written by the jansson library where the build has it. Every call but jsonl_open accepts NULL and
 * does nothing, so callers need not ask whether --json was given.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct jsonl jsonl;

/* Open path ("-": stdout) for writing; path NULL: *out is NULL, which is fine to use. append: after
 * what an earlier run wrote there, less a line that it left unfinished.
 * Returns STATUS_OK, or prints why not and returns another status. */
int jsonl_open(jsonl **out, const char *path, bool append);

/* Where the table for humans goes: stdout, or stderr when the JSON goes to stdout. */
FILE *jsonl_table_stream(const jsonl *out);

/* A key of an object and its value. A real that is not finite becomes null. */
typedef struct jsonl_field {
    const char *key;
    enum { JSONL_TEXT, JSONL_INTEGER, JSONL_REAL, JSONL_FLAG, JSONL_NULL } type;
    const char *text;
    int64_t integer; /* or flag */
    double real;
} jsonl_field;

#define J_TEXT(k, value) ((jsonl_field){.key = (k), .type = JSONL_TEXT, .text = (value)})
#define J_INT(k, value) ((jsonl_field){.key = (k), .type = JSONL_INTEGER, .integer = (value)})
#define J_REAL(k, value) ((jsonl_field){.key = (k), .type = JSONL_REAL, .real = (value)})
#define J_FLAG(k, value) ((jsonl_field){.key = (k), .type = JSONL_FLAG, .integer = (value)})
#define J_NULL(k) ((jsonl_field){.key = (k), .type = JSONL_NULL})

/* Set keys of the object under way: jsonl_set(json, J_TEXT("scheme", name), J_REAL(...), ...). */
#define jsonl_set(out, ...)                                                                        \
    jsonl_set_fields(out, (const jsonl_field[]){__VA_ARGS__},                                      \
                     (int)(sizeof((const jsonl_field[]){__VA_ARGS__}) / sizeof(jsonl_field)))
void jsonl_set_fields(jsonl *out, const jsonl_field *fields, int count);

/* Add the field's value to the array under its key, which starts empty. */
void jsonl_append(jsonl *out, jsonl_field field);

/* Write the object as one line and begin the next. */
void jsonl_write(jsonl *out);

/* Close and free. Returns the status of the work that wrote to it; where that is STATUS_OK but not
 * everything could be written, prints so and returns STATUS_FAILED. */
int jsonl_close(jsonl *out, int status);

#endif
