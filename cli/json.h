/* json.h - JSON lines: one object per line, to a file or to stdout (`--json -`)
 *
 * Written by the jansson library where the build has it. Every call but those that open accepts
 * NULL and does nothing, so callers need not ask whether --json was given.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct jsonl jsonl;

/* Whether this build can write JSON. */
bool jsonl_available(void);

/* Open path ("-": stdout) for writing; path NULL: *out is NULL, which is fine to use.
 * Returns STATUS_OK, or prints why not and returns another status. */
int jsonl_open(jsonl **out, const char *path);

/* The same behind what an earlier run wrote to path; a line that it left unfinished is cut off. */
int jsonl_resume(jsonl **out, const char *path);

/* Where the table for humans goes: stdout, or stderr when the JSON goes to stdout. */
FILE *jsonl_table_stream(const jsonl *out);

/* Set a key of the object under way. A real that is not finite becomes null. */
void jsonl_text(jsonl *out, const char *key, const char *value);
void jsonl_integer(jsonl *out, const char *key, int64_t value);
void jsonl_real(jsonl *out, const char *key, double value);
void jsonl_flag(jsonl *out, const char *key, bool value);
void jsonl_null(jsonl *out, const char *key);

/* Add a string or a number to the array under key, which starts empty. */
void jsonl_append(jsonl *out, const char *key, const char *value);
void jsonl_append_integer(jsonl *out, const char *key, int64_t value);

/* Write the object as one line and begin the next. */
void jsonl_write(jsonl *out);

/* Close and free. Returns STATUS_OK, or prints that not everything could be written. */
int jsonl_close(jsonl *out);

#endif
