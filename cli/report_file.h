/* report_file.h - writes a file as a whole or not at all
 *
 * To a temporary file beside it, which then takes its name: whatever happens, a good file is never
 * replaced by half of one. Only ordinary files are replaced; "-" is stdout.
 */
#ifndef CLI_REPORT_FILE_H
#define CLI_REPORT_FILE_H

#include <stddef.h>

/* Write text[size] to path. Returns STATUS_OK, or prints why not and returns another status. */
int report_file_write(const char *path, const char *text, size_t size);

#endif
