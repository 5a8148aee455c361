/* report_colors.h - every colour of a report, by role, for light and for dark pages
 *
 * The page holds them as CSS variables --NAME, so plots follow the reader's choice of light or
 * dark. Runs are told apart by the palette of Okabe and Ito, made for colour-blind readers, less
 * its yellow, which is lost on white. gnuplot is given only the number of a colour, see
 * report_svg.h.
 */
#ifndef CLI_REPORT_COLORS_H
#define CLI_REPORT_COLORS_H

#include <stdio.h>

#define RUN_COLORS 8
#define SNAPSHOT_COLORS 5

typedef enum color {
    COLOR_INK,
    COLOR_SOFT,                              /* text of second rank */
    COLOR_GRID,                              /* lines of second rank */
    COLOR_PAGE,                              /* behind everything */
    COLOR_PANEL,                             /* behind plots */
    COLOR_RUN,                               /* the first of RUN_COLORS */
    COLOR_SNAPSHOT = COLOR_RUN + RUN_COLORS, /* the first of SNAPSHOT_COLORS, from early to late */
    COLOR_DATA = COLOR_SNAPSHOT + SNAPSHOT_COLORS,
    COLOR_FORWARD,
    COLOR_BACKWARD,
    COLOR_EXPOSED,
    COLOR_OPTIMISER,
    COLOR_OTHER,
    COLOR_SELECT,
    COLOR_WAIT,
    COLOR_EXCHANGE,
    COLOR_APPLY,
    COLOR_COUNT
} color;

/* The variable's name without the dashes; NULL if number is no colour. */
const char *color_name(int number);

/* The colour as #rrggbb on a light page. */
const char *color_light(int number);

/* The rules that set the variables, light and dark. */
void colors_write_css(FILE *out);

#endif
