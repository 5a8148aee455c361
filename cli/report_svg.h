/* report_svg.h - makes of gnuplot's SVG what can stand inside a page, many times over, or alone
 *
 * Goes through the tags and keeps what draws. Names (id) go, since many plots share a page, and so
 * do titles, definitions and empty groups; the one marker in use becomes a circle. Colours, which
 * gnuplot was given as numbers, become variables of the page's CSS, see report_colors.h; a file of
 * its own has no page, so there they are those of light pages. Texts that SVG_LABEL wrote stand for
 * the run's names: gnuplot never sees a text from a log.
 */
#ifndef CLI_REPORT_SVG_H
#define CLI_REPORT_SVG_H

#include <stdbool.h>
#include <stdio.h>

#define SVG_COLOR "#0000%02x" /* printf format of a color for gnuplot */
#define SVG_LABEL "TWLABEL%d" /* printf format of the text that stands for labels[...] */
#define SVG_LABEL_COLUMNS 44  /* characters of a label that fit */

typedef struct svg_settings {
    int width, height;
    const char *description;   /* for readers who do not see the plot */
    const char *const *labels; /* [nlabels] */
    int nlabels;
    bool is_file; /* stands alone: brings its own size, font, colours and background */
} svg_settings;

/* Write raw, a whole SVG document by gnuplot, as an element of a page or as a file. */
void svg_write(FILE *out, const char *raw, const svg_settings *settings);

#endif
