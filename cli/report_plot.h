/* report_plot.h - a plot as a gnuplot script under way
 *
 * Between begin and end, lines and boxes are added in drawing order. Nothing but numbers and the
 * fixed texts of this program go into a script, so no text of a log has to be made safe for gnuplot;
 * names inside a plot are labels that are put in afterwards.
 */
#ifndef CLI_REPORT_PLOT_H
#define CLI_REPORT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "report_colors.h"
#include "report_series.h"

#define PLOT_WIDTH 400 /* units of a page's drawings; text is 13 high, so 11 px on a phone */
#define PLOT_HEIGHT 260

typedef struct plot {
    FILE *script; /* settings and data */
    char *text;   /* of the script, once it is closed */
    size_t size;
    FILE *command; /* what follows "plot" */
    char *command_text;
    size_t command_size;
    int width, height;
    int nseries;
    bool has_key;
    bool log_x, log_y;  /* such an axis shows positive values only */
    bool has_range;     /* of the lines, below */
    double left, right; /* x */
} plot;

typedef struct plot_style {
    color line;
    int dash; /* 0 solid, 1 to 4 patterns */
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

/* The axis of y ends at `highest`, if that is positive, or before; lines beyond leave the plot. */
void plot_limit(plot *drawing, double highest);

/* Name the lines at the top right, where falling curves leave room; before its lines. */
void plot_key(plot *drawing);

/* A name in the key for a style that lines of several colours have; after its lines. */
void plot_key_entry(plot *drawing, plot_style style);

/* The page's label at the left edge, at height y of the axis. */
void plot_label(plot *drawing, int label, double y);

/* x[count] against y[count]; values that the axes cannot show leave a gap, and a line without any
 * other is left out. The axis of x fits the lines, from 0 where they are positive. */
void plot_line(plot *drawing, const double *x, const double *y, int count, plot_style style);

/* One colour's boxes of a bar chart: [count] each. */
void plot_boxes(plot *drawing, const double *low, const double *high, const double *bottom,
                const double *top, int count, color fill);

/* Whether anything was added. */
bool plot_is_empty(const plot *drawing);

/* Close the script. Returns it, owned by the plot, or NULL if there was no memory. */
const char *plot_script(plot *drawing);

/* Free what the plot holds. */
void plot_end(plot *drawing);

#endif
