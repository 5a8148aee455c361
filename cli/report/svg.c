/* svg.c - the colours of a report, and a small filter over the tags of gnuplot's SVG
 *
 * The filter keeps what draws. Names (id) go, since many plots share a page, and so do titles,
 * definitions and empty groups; the one marker in use becomes a circle. Colours, which gnuplot was
 * given as numbers, become variables of the page's CSS; a file of its own has no page, so there
 * they are those of light pages. Texts that SVG_LABEL wrote stand for the names of runs. gnuplot's
 * SVG has no comments or CDATA inside the root.
 */
#include "report/plot.h"

#include <ctype.h>
#include <string.h>

#include "report/page.h"

static const struct {
    const char *name;
    const char *light;
    const char *dark;
} rows[COLOR_COUNT] = {
    [COLOR_INK] = {"ink", "#1b1f24", "#e6e9ed"},
    [COLOR_SOFT] = {"soft", "#59636e", "#9aa5b1"},
    [COLOR_GRID] = {"grid", "#d5dbe1", "#363e47"},
    [COLOR_PAGE] = {"page", "#ffffff", "#101418"},
    [COLOR_PANEL] = {"panel", "#f7f9fb", "#181d23"},
    [COLOR_RUN] = {"run0", "#0072b2", "#4ba3e0"},
    [COLOR_RUN + 1] = {"run1", "#d55e00", "#f27d30"},
    [COLOR_RUN + 2] = {"run2", "#009e73", "#2bc496"},
    [COLOR_RUN + 3] = {"run3", "#c8609a", "#e592c3"},
    [COLOR_RUN + 4] = {"run4", "#e69f00", "#f3b93f"},
    [COLOR_RUN + 5] = {"run5", "#56b4e9", "#a5defc"},
    [COLOR_RUN + 6] = {"run6", "#7f7d1f", "#cfcd6a"},
    [COLOR_RUN + 7] = {"run7", "#6b4a9e", "#a98be0"},
    [COLOR_SNAPSHOT] = {"snap0", "#a6cbe6", "#2c4f6e"},
    [COLOR_SNAPSHOT + 1] = {"snap1", "#74a9d3", "#3f749f"},
    [COLOR_SNAPSHOT + 2] = {"snap2", "#4384bb", "#5f9ccb"},
    [COLOR_SNAPSHOT + 3] = {"snap3", "#1f5d97", "#93c3e6"},
    [COLOR_SNAPSHOT + 4] = {"snap4", "#0a2f5c", "#d6ecff"},
    [COLOR_DATA] = {"data", "#8b949e", "#8b949e"},
    [COLOR_FORWARD] = {"forward", "#7cc4ee", "#7cc4ee"},
    [COLOR_BACKWARD] = {"backward", "#0072b2", "#2f8fd3"},
    [COLOR_EXPOSED] = {"exposed", "#d55e00", "#ee7a2e"},
    [COLOR_OPTIMISER] = {"optimiser", "#009e73", "#22b98b"},
    [COLOR_OTHER] = {"other", "#c9d1d9", "#4a545e"},
    [COLOR_SELECT] = {"select", "#e69f00", "#f0b13a"},
    [COLOR_WAIT] = {"wait", "#d3a3bf", "#d49cbd"},
    [COLOR_EXCHANGE] = {"exchange", "#8c2d64", "#b8558f"},
    [COLOR_APPLY] = {"apply", "#8f8d2a", "#b9b74f"},
};

const char *color_name(int number) {
    return number >= 0 && number < COLOR_COUNT ? rows[number].name : NULL;
}

void color_write_css(FILE *out) {
    fputs(":root{color-scheme:light dark", out);
    for (int i = 0; i < COLOR_COUNT; i++)
        fprintf(out, ";--%s:%s", rows[i].name, rows[i].light);
    fputs("}\n@media (prefers-color-scheme:dark){:root{", out);
    for (int i = 0; i < COLOR_COUNT; i++)
        fprintf(out, "%s--%s:%s", i > 0 ? ";" : "", rows[i].name, rows[i].dark);
    fputs("}}\n", out);
}

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

/* After the end of the tag that begins at '<'. */
static const char *tag_end(const char *tag) {
    const char *end = strchr(tag, '>');
    return end != NULL ? end + 1 : tag + strlen(tag);
}

/* After the closing tag of the element whose opening tag begins at tag, if it has one. */
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

/* rgb(0, 0, number) becomes var(--name), with the light colour where there is no page around.
 * Few programs but browsers know variables, so a file names the colour itself. */
static void write_value(FILE *out, span value, const svg_settings *settings) {
    int red, green, number;
    bool is_color = begins_with(value, "rgb(") &&
                    sscanf(value.at, "rgb( %d , %d , %d )", &red, &green, &number) == 3 &&
                    red == 0 && green == 0 && color_name(number) != NULL;
    if (is_text(value, "black")) {
        fputs("currentColor", out);
    } else if (is_color && settings->is_file) {
        fputs(rows[number].light, out);
    } else if (is_color) {
        fprintf(out, "var(--%s,%s)", rows[number].name, rows[number].light);
    } else {
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

/* After the closing tag if nothing stands in the group that begins at tag, else NULL. */
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
                settings->width, settings->height, rows[COLOR_PAGE].light);
    } else {
        fputs("\">", out);
    }
}

void svg_write(FILE *out, const char *raw, const svg_settings *settings) {
    const char *root = strstr(raw, "<svg");
    open_root(out, settings);
    for (const char *at = root != NULL ? tag_end(root) : ""; *at != '\0';) {
        if (*at != '<') {
            span text = {at, strcspn(at, "<")};
            write_text(out, text, settings);
            at += text.length;
            continue;
        }
        span name = tag_name(at);
        const char *empty = empty_group_end(at);
        if (is_text(name, "/svg"))
            break;
        if (empty != NULL)
            at = empty;
        else if (is_text(name, "title") || is_text(name, "desc") || is_text(name, "defs"))
            at = element_end(at);
        else
            at = write_tag(out, at, settings);
    }
    fputs("</svg>\n", out);
}
