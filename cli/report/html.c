/* html.c - pieces of HTML: escaped text, numbers for people, tables */
#include "report/html.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "names.h"

static const char dash[] = "\xe2\x80\x93";
static const char ellipsis[] = "\xe2\x80\xa6";

static void put_escaped(FILE *out, char letter) {
    static const char letters[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    const char *found = strchr(letters, letter);
    if (found != NULL)
        fputs(names[found - letters], out);
    else
        fputc(letter, out);
}

void html_text(FILE *out, const char *text) {
    for (; *text != '\0'; text++)
        put_escaped(out, *text);
}

static bool begins_character(char byte) {
    return ((unsigned char)byte & 0xc0u) != 0x80u;
}

void html_text_cut(FILE *out, const char *text, int columns) {
    int length = 0;
    for (const char *at = text; *at != '\0'; at++)
        length += begins_character(*at);
    int shown = length > columns ? columns - 1 : columns;
    int column = 0;
    for (; *text != '\0'; text++) {
        column += begins_character(*text);
        if (column > shown) {
            fputs(ellipsis, out);
            return;
        }
        put_escaped(out, *text);
    }
}

/* ---- Numbers -------------------------------------------------------------------------------- */

void html_count(FILE *out, double value) {
    char digits[64];
    if (!(fabs(value) < 1e15)) {
        fprintf(out, "%g", value);
        return;
    }
    snprintf(digits, sizeof digits, "%.0f", value);
    size_t length = strlen(digits);
    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            fputc(',', out);
        fputc(digits[i], out);
    }
}

/* value in the largest of units[nunits], each 1000 of the one before, that leaves at least 1. */
static void put_scaled(FILE *out, double value, const char *const *units, int nunits) {
    int unit = 0;
    while (unit + 1 < nunits && fabs(value) >= 1000.0) {
        value /= 1000.0;
        unit++;
    }
    int decimals = fabs(value) >= 100 || unit == 0 ? 0 : fabs(value) >= 10 ? 1 : 2;
    fprintf(out, "%.*f %s", decimals, value, units[unit]);
}

/* Begins a cell. A value that is not finite becomes a dash; returns false then. */
static bool cell_begin(FILE *out, double value) {
    fputs("<td>", out);
    if (!isfinite(value)) {
        fputs(dash, out);
        return false;
    }
    return true;
}

void html_cell_text(FILE *out, const char *text) {
    fputs("<td>", out);
    html_text(out, text[0] != '\0' ? text : dash);
    fputs("</td>", out);
}

void html_cell_count(FILE *out, double value) {
    if (cell_begin(out, value))
        html_count(out, value);
    fputs("</td>", out);
}

void html_cell_real(FILE *out, double value, int decimals) {
    if (cell_begin(out, value))
        fprintf(out, fabs(value) < 1e6 ? "%.*f" : "%.*g", decimals, value);
    fputs("</td>", out);
}

void html_cell_general(FILE *out, double value) {
    if (cell_begin(out, value))
        fprintf(out, "%.4g", value);
    fputs("</td>", out);
}

void html_difference(FILE *out, double value) {
    if (fabs(value) < 0.05)
        fputs("&plusmn;0.0", out);
    else
        fprintf(out, "%+.1f", value);
}

void html_cell_percent(FILE *out, double share) {
    if (cell_begin(out, share))
        fprintf(out, "%.1f %%", round(1000.0 * share) / 10.0 + 0.0); /* + 0.0: never "-0.0" */
    fputs("</td>", out);
}

void html_cell_bytes(FILE *out, double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    if (cell_begin(out, bytes))
        put_scaled(out, bytes, units, COUNT_OF(units));
    fputs("</td>", out);
}

void html_cell_seconds(FILE *out, double seconds) {
    static const char *const units[] = {"\xc2\xb5s", "ms", "s"};
    if (cell_begin(out, seconds)) {
        if (seconds >= 999.5)
            fprintf(out, "%.0f s", seconds);
        else
            put_scaled(out, seconds * 1e6, units, COUNT_OF(units));
    }
    fputs("</td>", out);
}

/* ---- Tables --------------------------------------------------------------------------------- */

void html_table_begin(FILE *out, const char *const *headers, int nheaders) {
    fputs("<div class=\"table\" tabindex=\"0\"><table>\n<thead><tr>", out);
    for (int i = 0; i < nheaders; i++)
        fprintf(out, "<th scope=\"col\">%s</th>", headers[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
}

void html_table_end(FILE *out) {
    fputs("</tbody></table></div>\n", out);
}
