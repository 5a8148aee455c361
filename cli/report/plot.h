/* plot.h - a plot: a script for gnuplot, and what becomes of its SVG
 *
 *     plot.c      writes the script
 *     gnuplot.c   runs gnuplot; writes files as a whole or not at all
 *     svg.c       makes of gnuplot's SVG what can stand inside a page, many times over, or alone
 *
 * Between begin and end, lines and boxes are added in drawing order. Nothing but numbers and the
 * fixed texts of this program go into a script, so no text of a log has to be made safe for
 * gnuplot; names inside a plot are labels that are put in afterwards.
 */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* ---- Colours -------------------------------------------------------------------------------- */

/* Every colour of a report, by role, for light and for dark pages. The page holds them as CSS
 * variables --NAME, so plots follow the reader's choice of light or dark. Runs are told apart by
 * the palette of Okabe and Ito, made for colour-blind readers, less its yellow, which is lost on
 * white. gnuplot is given only the number of a colour. */
#define RUN_COLORS 8
#define SNAPSHOT_COLORS 5

typedef enum color {
    COLOR_INK,
    COLOR_SOFT,                              /* less important text */
    COLOR_GRID,                              /* less important lines */
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

/* The rules that set the variables, light and dark. */
void color_write_css(FILE *out);

/* ---- The script ----------------------------------------------------------------------------- */

#define PLOT_WIDTH 400 /* units of a page's drawings; text is 13 high, so 11 px on a phone */
#define PLOT_HEIGHT 260
#define PLOT_FILE_WIDTH 640 /* of a file of its own */
#define PLOT_FILE_HEIGHT 360
#define PLOT_DASHES 5 /* patterns, the solid line included */

typedef struct plot {
    FILE *script; /* settings and data */
    char *text;   /* of the script, once it is closed */
    size_t size;
    FILE *command; /* what follows "plot" */
    char *command_text;
    size_t command_size;
    int width, height;
    int nseries; /* 0: nothing was added */
    bool has_key;
    bool log_x, log_y;  /* such an axis shows positive values only */
    bool has_range;     /* of the lines, below */
    double left, right; /* x */
} plot;

typedef struct plot_style {
    color line;
    int dash; /* 0 solid, 1 to PLOT_DASHES - 1 patterns */
    double width;
    bool points; /* markers on the line */
    int label;   /* the line's name in a key; -1: none */
} plot_style;

/* x and y say what the axes show, with units. Returns false if there is no memory: end it then. */
bool plot_begin(plot *drawing, int width, int height, const char *x, const char *y);

/* A setting in gnuplot's language. */
void plot_set(plot *drawing, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Make an axis, 'x' or 'y', logarithmic; before its lines. */
void plot_logarithmic(plot *drawing, char axis);

/* Name the lines below the plot, which grows by as much; before its lines. labels[nlabels]: the names
 * that labels of styles stand for. */
void plot_key(plot *drawing, const char *const *labels, int nlabels);

/* A name in the key for a style that lines of several colours have; after its lines. */
void plot_key_entry(plot *drawing, plot_style style);

/* The page's label at the left edge, at height y of the axis. */
void plot_label(plot *drawing, int label, double y);

/* x[count] against y[count]; values that the axes cannot show leave a gap, and a line without any
 * other is left out. The axis of x fits the lines, from 0 where they are positive. */
void plot_line(plot *drawing, const double *x, const double *y, int count, plot_style style);

typedef struct plot_box {
    double low, high, bottom, top;
} plot_box;

/* boxes[count] of one colour in a bar chart. */
void plot_boxes(plot *drawing, const plot_box *boxes, int count, color fill);

/* Free what the plot holds. */
void plot_end(plot *drawing);

/* ---- The drawing ---------------------------------------------------------------------------- */

#define SVG_COLOR "#0000%02x" /* printf format of a color for gnuplot */
#define SVG_LABEL "TWLABEL%d" /* printf format of the text that stands for labels[...] */
#define SVG_LABEL_LETTERS 8   /* of that text, which gnuplot makes room for */
#define SVG_LABEL_COLUMNS 44  /* letters of a label that are shown */

typedef struct svg_settings {
    int width, height;
    const char *description;   /* for readers who do not see the plot */
    const char *const *labels; /* [nlabels] */
    int nlabels;
    bool is_file; /* stands alone: brings its own size, font, colours and background */
} svg_settings;

/* Draw the plot to out, as an element of a page or as a file; width and height are the plot's.
 * Returns false if that fails: reason[size] says why in one line. */
bool plot_draw(plot *drawing, FILE *out, svg_settings settings, char *reason, size_t size);

/* Whether there is a gnuplot to run. */
bool gnuplot_available(void);

/* Run the script. Returns the SVG document, to be freed, or NULL and the reason. */
char *gnuplot_run(const char *script, char *reason, size_t size);

/* Write raw, a whole SVG document by gnuplot. */
void svg_write(FILE *out, const char *raw, const svg_settings *settings);

/* Write text[size] to path, "-" for stdout: to a temporary file next to it, which then takes its
 * name. Whatever happens, a good file is never replaced by half of one. Only ordinary files are
 * replaced. Returns STATUS_OK, or prints why not and returns another status. */
int plot_write_file(const char *path, const char *text, size_t size);

#endif
