/* html.h - pieces of HTML: escaped text, numbers for people, tables */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include <stdio.h>

/* text as the content of an element or an attribute. */
void html_text(FILE *out, const char *text);

/* The same, cut to `columns` characters of UTF-8 with an ellipsis. */
void html_text_cut(FILE *out, const char *text, int columns);

typedef enum html_number {
    HTML_COUNT, /* 93,322 */
    HTML_REAL3,
    HTML_REAL4,   /* decimals */
    HTML_GENERAL, /* 4 significant digits */
    HTML_PERCENT, /* 0.86: 86.0 % */
    HTML_BYTES,   /* 12.3 kB */
    HTML_SECONDS, /* 9.9 s, 12.3 ms */
} html_number;

/* Table cells: opened, filled and closed. NaN and no text become a dash. */
void html_cell(FILE *out, html_number form, double value);
void html_cell_text(FILE *out, const char *text);

/* value as 93,322 into the open element. */
void html_count(FILE *out, double value);

/* A table that scrolls sideways where it is too wide; headers[nheaders]. */
void html_table_begin(FILE *out, const char *const *headers, int nheaders);
void html_table_end(FILE *out);

#endif
