/* table.h - fixed-width tables: a header row, a units row, then rows cell by cell
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
    int next; /* column of the next cell */
    int gap;  /* blanks between columns */
} table;

/* Print header and units. columns must outlive the table. */
void table_begin(table *out, FILE *stream, const table_column *columns, int ncolumns);

/* The same with one blank between columns instead of two, for tables of many. */
void table_begin_narrow(table *out, FILE *stream, const table_column *columns, int ncolumns);

/* The next cell of the row. The last column ends the line. */
void table_text(table *out, const char *text);
void table_integer(table *out, int64_t value);
void table_real(table *out, double value, int decimals);
void table_general(table *out, double value); /* 4 significant digits: densities */

#endif
