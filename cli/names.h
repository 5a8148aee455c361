/* names.h - what the library's tables call their rows, for options and tables
 *
 * By position from 0; NULL before the first and past the last.
 */
#ifndef CLI_NAMES_H
#define CLI_NAMES_H

const char *method_at(int position);
const char *exchange_at(int position);
const char *scheme_at(int position);
const char *wire_at(int position);

/* The position of a scheme that is known to exist. */
int scheme_named(const char *name);

#endif
