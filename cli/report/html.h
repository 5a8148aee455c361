/* html.h - pieces of HTML: escaped text, numbers for people, tables */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include <stdio.h>

/* text as the content of an element or an attribute. */
void html_text(FILE *out, const char *text);

/* The same, cut to `columns` characters of UTF-8 with an ellipsis. */
void html_text_cut(FILE *out, const char *text, int columns);

/* Table cells: opened, filled and closed. NaN becomes a dash. */
void html_cell_text(FILE *out, const char *text);
void html_cell_count(FILE *out, double value); /* 93,322 */
void html_cell_real(FILE *out, double value, int decimals);
void html_cell_general(FILE *out, double value);   /* 4 significant digits */
void html_cell_percent(FILE *out, double share);   /* 0.86: 86.0 % */
void html_cell_bytes(FILE *out, double bytes);     /* 12.3 kB */
void html_cell_seconds(FILE *out, double seconds); /* 9.9 s, 12.3 ms */

/* value as 93,322 into the open element. */
void html_count(FILE *out, double value);

/* value with its sign and one decimal, +0.4, into the open element. */
void html_difference(FILE *out, double value);

/* A table that scrolls sideways where it is too wide; headers[nheaders]. */
void html_table_begin(FILE *out, const char *const *headers, int nheaders);
void html_table_end(FILE *out);

#endif
