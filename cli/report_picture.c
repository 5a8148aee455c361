/* report_picture.c - one plot as an SVG file; see report_picture.h */
#include "report_picture.h"

#include <stdlib.h>

#include "errors.h"
#include "report_gnuplot.h"
#include "report_svg.h"

#define PICTURE_WIDTH 640
#define PICTURE_HEIGHT 360

static int draw(report_page *page, plot *drawing, const picture *what) {
    char reason[256] = "out of memory";
    char *svg = NULL;
    const svg_settings settings = {.width = PICTURE_WIDTH,
                                   .height = PICTURE_HEIGHT,
                                   .description = page->title,
                                   .labels = what->labels,
                                   .nlabels = what->nlabels,
                                   .is_file = true};
    const char *script = plot_script(drawing);
    if (script != NULL)
        gnuplot_run(script, &svg, reason, sizeof reason);
    if (svg == NULL)
        return failure("report: the %s could not be drawn: %s", what->name, reason);
    svg_write(page->out, svg, &settings);
    page->nplots++;
    free(svg);
    return STATUS_OK;
}

int picture_write(report_page *page, const picture *what) {
    plot drawing;
    int status = STATUS_OK;
    page->has_gnuplot = gnuplot_available();
    if (!page->has_gnuplot)
        return failure("report: plots need gnuplot; install gnuplot-nox");
    if (plot_begin(&drawing, PICTURE_WIDTH, PICTURE_HEIGHT, what->x, what->y)) {
        plot_key(&drawing);
        plot_set(&drawing, "set key %s", what->key);
        what->add(page, &drawing);
        if (plot_is_empty(&drawing))
            status = failure("report: the logs hold no %s to draw; %s", what->name, what->hint);
    } else {
        status = failure("report: out of memory");
    }
    if (status == STATUS_OK)
        status = draw(page, &drawing, what);
    plot_end(&drawing);
    return status;
}
