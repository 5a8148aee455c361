/* table.c - prints fixed-width tables; knows nothing of what the cells mean */
#include "cli.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#define ROW_SIZE 1024

/* length -1: all of the text. Left-aligned last columns get no trailing blanks: they would wrap on narrow terminals. */
static void print_cell(const table *out, int column, const char *text, int length) {
    int gap = column > 0 ? out->gap : 0, width = out->columns[column].width;
    if (column + 1 == out->ncolumns && width < 0)
        width = 0;
    fprintf(out->stream, "%*s%*.*s", gap, "", width, length, text);
}

void table_begin(table *out, FILE *stream, const table_column *columns, int ncolumns, int gap) {
    *out = (table){.stream = stream, .columns = columns, .ncolumns = ncolumns, .gap = gap};
    for (int unit = 0; unit <= 1; unit++) {
        for (int i = 0; i < ncolumns; i++)
            print_cell(out, i, unit ? columns[i].unit : columns[i].name, -1);
        fputc('\n', stream);
    }
    fflush(stream);
}

void table_row(const table *out, const char *format, ...) {
    char row[ROW_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(row, sizeof row, format, arguments);
    va_end(arguments);
    const char *cell = row;
    for (int i = 0; i < out->ncolumns; i++) {
        int length = (int)(i + 1 < out->ncolumns ? strcspn(cell, "|") : strlen(cell));
        assert(i + 1 == out->ncolumns || cell[length] == '|');
        print_cell(out, i, cell, length);
        cell += length + (cell[length] == '|');
    }
    fputc('\n', out->stream);
    fflush(out->stream);
}

void text_append(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    assert(used < size);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}
