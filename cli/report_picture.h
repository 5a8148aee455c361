/* report_picture.h - one plot as an SVG file, for documents
 *
 * A plot of the page, larger, with the names of its lines in it and nothing around it.
 */
#ifndef CLI_REPORT_PICTURE_H
#define CLI_REPORT_PICTURE_H

#include "report_page.h"

typedef struct picture {
    const char *name;          /* for the error when there is nothing of it */
    const char *hint;          /* behind it: how a run gets some, or why it has none */
    const char *x, *y;         /* what the axes show */
    const char *key;           /* where lines leave room for their names, as gnuplot says it */
    const char *const *labels; /* [nlabels] */
    int nlabels;
    void (*add)(const report_page *page, plot *drawing);
} picture;

/* Draw it to page->out. Returns STATUS_OK, or prints why not and returns another status. */
int picture_write(report_page *page, const picture *what);

#endif
