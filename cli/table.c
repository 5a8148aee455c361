/* table.c - prints fixed-width tables
 *
 * Knows nothing of what the cells mean; every other cell function ends in table_text.
 */
#include "table.h"

#include <inttypes.h>
#include <stdbool.h>

#define CELL_SIZE 64

/* Left-aligned last columns get no trailing blanks: they would wrap on narrow terminals. */
void table_text(table *out, const char *text) {
    int gap = out->next > 0 ? out->gap : 0;
    bool last = out->next + 1 == out->ncolumns;
    int width = out->columns[out->next].width;
    if (last && width < 0)
        width = 0;
    fprintf(out->stream, "%*s%*s%s", gap, "", width, text, last ? "\n" : "");
    out->next = last ? 0 : out->next + 1;
    if (last)
        fflush(out->stream);
}

static void begin(table *out, FILE *stream, const table_column *columns, int ncolumns, int gap) {
    *out = (table){.stream = stream, .columns = columns, .ncolumns = ncolumns, .gap = gap};
    for (int i = 0; i < ncolumns; i++)
        table_text(out, columns[i].name);
    for (int i = 0; i < ncolumns; i++)
        table_text(out, columns[i].unit);
}

void table_begin(table *out, FILE *stream, const table_column *columns, int ncolumns) {
    begin(out, stream, columns, ncolumns, 2);
}

void table_begin_narrow(table *out, FILE *stream, const table_column *columns, int ncolumns) {
    begin(out, stream, columns, ncolumns, 1);
}

void table_integer(table *out, int64_t value) {
    char cell[CELL_SIZE];
    snprintf(cell, sizeof cell, "%" PRId64, value);
    table_text(out, cell);
}

void table_real(table *out, double value, int decimals) {
    char cell[CELL_SIZE];
    snprintf(cell, sizeof cell, "%.*f", decimals, value);
    table_text(out, cell);
}

void table_general(table *out, double value) {
    char cell[CELL_SIZE];
    snprintf(cell, sizeof cell, "%.4g", value);
    table_text(out, cell);
}
