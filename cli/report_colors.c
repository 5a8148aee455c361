/* report_colors.c - the table of colours and its CSS */
#include "report_colors.h"

#include <stddef.h>

typedef struct color_row {
    const char *name;
    const char *light;
    const char *dark;
} color_row;

static const color_row rows[COLOR_COUNT] = {
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

const char *color_light(int number) {
    return rows[number].light;
}

void colors_write_css(FILE *out) {
    fputs(":root{color-scheme:light dark", out);
    for (int i = 0; i < COLOR_COUNT; i++)
        fprintf(out, ";--%s:%s", rows[i].name, rows[i].light);
    fputs("}\n@media (prefers-color-scheme:dark){:root{", out);
    for (int i = 0; i < COLOR_COUNT; i++)
        fprintf(out, "%s--%s:%s", i > 0 ? ";" : "", rows[i].name, rows[i].dark);
    fputs("}}\n", out);
}
