/* names.h - names of the rows of the library's tables, for options and reports
 *
 * By position from 0; NULL before the first and past the last.
 */
#ifndef CLI_NAMES_H
#define CLI_NAMES_H

#define COUNT_OF(rows) ((int)(sizeof(rows) / sizeof(rows)[0]))

const char *names_method(int position);
const char *names_exchange(int position);
const char *names_scheme(int position);
const char *names_wire(int position);

/* The position of a scheme that is known to exist. */
int names_find_scheme(const char *name);

#endif
