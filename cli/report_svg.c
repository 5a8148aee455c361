/* report_svg.c - a small filter over tags; gnuplot's SVG has no comments or CDATA inside the root */
#include "report_svg.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "report_colors.h"
#include "report_html.h"

typedef struct span {
    const char *at;
    size_t length;
} span;

static bool is_text(span part, const char *text) {
    return strlen(text) == part.length && memcmp(part.at, text, part.length) == 0;
}

static bool begins_with(span part, const char *text) {
    return strlen(text) <= part.length && memcmp(part.at, text, strlen(text)) == 0;
}

/* The name of the tag that begins at '<', with the slash of a closing one. */
static span tag_name(const char *tag) {
    span name = {tag + 1, 0};
    name.length = strcspn(name.at + 1, " \t\r\n/>") + 1;
    return name;
}

/* Behind the end of the tag that begins at '<'. */
static const char *tag_end(const char *tag) {
    const char *end = strchr(tag, '>');
    return end != NULL ? end + 1 : tag + strlen(tag);
}

/* Behind the closing tag of the element whose opening tag begins at tag, if it has one. */
static const char *element_end(const char *tag) {
    span name = tag_name(tag);
    const char *end = tag_end(tag);
    if (end[-2] == '/')
        return end;
    for (const char *at = strchr(end, '<'); at != NULL; at = strchr(at + 1, '<')) {
        span closing = tag_name(at);
        if (closing.at[0] == '/' && closing.length == name.length + 1 &&
            memcmp(closing.at + 1, name.at, name.length) == 0)
            return tag_end(at);
    }
    return end + strlen(end);
}

/* ---- Attributes ----------------------------------------------------------------------------- */

/* rgb(0, 0, number) becomes var(--name), with the light colour where there is no page around.
 * Few programs but browsers know variables, so a file names the colour itself. */
static bool write_color(FILE *out, span value, const svg_settings *settings) {
    int red, green, number;
    if (!begins_with(value, "rgb(") ||
        sscanf(value.at, "rgb( %d , %d , %d )", &red, &green, &number) != 3 || red != 0 ||
        green != 0 || color_name(number) == NULL)
        return false;
    if (settings->is_file)
        fputs(color_light(number), out);
    else
        fprintf(out, "var(--%s,%s)", color_name(number), color_light(number));
    return true;
}

static void write_value(FILE *out, span value, const svg_settings *settings) {
    if (is_text(value, "black")) {
        fputs("currentColor", out);
    } else if (!write_color(out, value, settings)) {
        for (size_t i = 0; i < value.length; i++) {
            char letter = value.at[i];
            fputc(isspace((unsigned char)letter) ? ' ' : letter == '"' ? '\'' : letter, out);
        }
    }
}

/* A marker takes its colour as fill; elsewhere `color` would hide that of the page. */
static void write_attribute(FILE *out, span name, span value, bool is_marker,
                            const svg_settings *settings) {
    if (is_marker && is_text(name, "color"))
        name = (span){"fill", 4};
    else if (is_text(name, "id") || is_text(name, "class") || is_text(name, "color") ||
             is_text(name, "font-family") || begins_with(name, "xmlns") ||
             begins_with(name, "xlink"))
        return;
    fprintf(out, " %.*s=\"", (int)name.length, name.at);
    write_value(out, value, settings);
    fputc('"', out);
}

static void write_attributes(FILE *out, const char *at, const char *end, bool is_marker,
                             const svg_settings *settings) {
    while (at < end) {
        at += strspn(at, " \t\r\n/>");
        span name = {at, strcspn(at, "= \t\r\n/>")};
        at += name.length;
        at += strspn(at, " \t\r\n");
        if (at >= end || *at != '=')
            return;
        at += 1 + strspn(at + 1, " \t\r\n"); /* to the quote */
        span value = {at + 1, 0};
        value.length = strcspn(value.at, *at == '\'' ? "'" : "\"");
        at = value.at + value.length + 1;
        write_attribute(out, name, value, is_marker, settings);
    }
}

/* ---- Elements ------------------------------------------------------------------------------- */

static const char *write_tag(FILE *out, const char *tag, const svg_settings *settings) {
    span name = tag_name(tag);
    const char *end = tag_end(tag);
    if (name.at[0] == '/') {
        fprintf(out, "<%.*s>", (int)name.length, name.at);
        return end;
    }
    bool is_marker = is_text(name, "use");
    if (is_marker)
        fputs("<circle r=\"1\" stroke=\"none\"", out);
    else
        fprintf(out, "<%.*s", (int)name.length, name.at);
    write_attributes(out, name.at + name.length, end, is_marker, settings);
    fputs(end[-2] == '/' ? "/>" : ">", out);
    return end;
}

static bool is_dropped(span name) {
    return is_text(name, "title") || is_text(name, "desc") || is_text(name, "defs");
}

/* Behind the closing tag if nothing stands in the group that begins at tag, else NULL. */
static const char *empty_group_end(const char *tag) {
    const char *next = tag_end(tag);
    next += strspn(next, " \t\r\n");
    return is_text(tag_name(tag), "g") && is_text(tag_name(next), "/g") ? tag_end(next) : NULL;
}

static void write_text(FILE *out, span text, const svg_settings *settings) {
    int label;
    while (text.length > 0 && isspace((unsigned char)text.at[0]))
        text = (span){text.at + 1, text.length - 1};
    if (begins_with(text, "TWLABEL") && sscanf(text.at, SVG_LABEL, &label) == 1 && label >= 0 &&
        label < settings->nlabels)
        html_text_cut(out, settings->labels[label], SVG_LABEL_COLUMNS);
    else
        fwrite(text.at, 1, text.length, out);
}

/* Behind the root's opening tag. */
static const char *root_content(const char *raw) {
    const char *root = strstr(raw, "<svg");
    return root != NULL ? tag_end(root) : raw + strlen(raw);
}

static void open_root(FILE *out, const svg_settings *settings) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"",
            settings->width, settings->height);
    html_text(out, settings->description);
    if (settings->is_file) {
        fprintf(out,
                "\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\">"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"%s\"/>",
                settings->width, settings->height, color_light(COLOR_PAGE));
    } else {
        fputs("\">", out);
    }
}

void svg_write(FILE *out, const char *raw, const svg_settings *settings) {
    open_root(out, settings);
    const char *at = root_content(raw);
    while (*at != '\0') {
        if (*at != '<') {
            span text = {at, strcspn(at, "<")};
            write_text(out, text, settings);
            at += text.length;
            continue;
        }
        const char *empty = empty_group_end(at);
        if (is_text(tag_name(at), "/svg"))
            break;
        if (empty != NULL)
            at = empty;
        else
            at = is_dropped(tag_name(at)) ? element_end(at) : write_tag(out, at, settings);
    }
    fputs("</svg>\n", out);
}
