/* html.c - pieces of HTML: escaped text, numbers for people, tables */
#include "report/page.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cli.h"

static const char dash[] = "\xe2\x80\x93";
static const char ellipsis[] = "\xe2\x80\xa6";

void html_text(FILE *out, const char *text) {
    html_text_cut(out, text, INT_MAX);
}

static bool begins_character(char byte) {
    return ((unsigned char)byte & 0xc0u) != 0x80u;
}

void html_text_cut(FILE *out, const char *text, int columns) {
    static const char letters[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    int length = 0, column = 0;
    for (const char *at = text; *at != '\0'; at++)
        length += begins_character(*at);
    int shown = length > columns ? columns - 1 : columns;
    for (; *text != '\0'; text++) {
        column += begins_character(*text);
        if (column > shown) {
            fputs(ellipsis, out);
            return;
        }
        const char *found = strchr(letters, *text);
        if (found != NULL)
            fputs(names[found - letters], out);
        else
            fputc(*text, out);
    }
}

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

static void put_seconds(FILE *out, double seconds) {
    static const char *const units[] = {"\xc2\xb5s", "ms", "s"};
    if (seconds >= 999.5)
        fprintf(out, "%.0f s", seconds);
    else
        put_scaled(out, seconds * 1e6, units, COUNT_OF(units));
}

void html_cell(FILE *out, html_number form, double value) {
    static const char *const bytes[] = {"B", "kB", "MB", "GB", "TB"};
    fputs("<td>", out);
    if (!isfinite(value))
        fputs(dash, out);
    else if (form == HTML_COUNT)
        html_count(out, value);
    else if (form == HTML_GENERAL)
        fprintf(out, "%.4g", value);
    else if (form == HTML_PERCENT)
        fprintf(out, "%.1f %%", round(1000.0 * value) / 10.0 + 0.0); /* + 0.0: never "-0.0" */
    else if (form == HTML_BYTES)
        put_scaled(out, value, bytes, COUNT_OF(bytes));
    else if (form == HTML_SECONDS)
        put_seconds(out, value);
    else
        fprintf(out, fabs(value) < 1e6 ? "%.*f" : "%.*g", form == HTML_REAL3 ? 3 : 4, value);
    fputs("</td>", out);
}

void html_cell_text(FILE *out, const char *text) {
    fputs("<td>", out);
    html_text(out, text[0] != '\0' ? text : dash);
    fputs("</td>", out);
}

void html_table_begin(FILE *out, const char *const *headers, int nheaders) {
    fputs("<div class=\"table\" tabindex=\"0\"><table>\n<thead><tr>", out);
    for (int i = 0; i < nheaders; i++)
        fprintf(out, "<th scope=\"col\">%s</th>", headers[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
}

void html_table_end(FILE *out) {
    fputs("</tbody></table></div>\n", out);
}
