/* table.h - fixed-width tables: a header row, a units row, then the rows
 *
 * Rows appear as they are finished, so widths are given beforehand rather than fitted; a cell that
 * is too long pushes its row to the right rather than being cut.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdint.h>
#include <stdio.h>

typedef struct table_column {
    const char *name;
    const char *unit; /* "" if it has none */
    int width;        /* characters; negative: left-aligned */
} table_column;

typedef struct table {
    FILE *stream;
    const table_column *columns; /* [ncolumns] */
    int ncolumns;
    int gap; /* blanks between columns */
} table;

/* Print header and units. columns must outlive the table. gap: blanks between columns, usually
 * 2. */
void table_begin(table *out, FILE *stream, const table_column *columns, int ncolumns, int gap);

/* Print a row: its cells as printf makes them, separated by '|'. */
void table_row(const table *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append to text[size], as printf does; what does not fit is cut off. */
void text_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
