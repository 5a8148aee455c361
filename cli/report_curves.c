/* report_curves.c - the training loss of all runs as one SVG file, for documents
 *
 * The first plot of a page, larger, with the names of the runs in it and nothing around it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "errors.h"
#include "report_gnuplot.h"
#include "report_page.h"
#include "report_series.h"
#include "report_svg.h"

#define CURVES_WIDTH 640
#define CURVES_HEIGHT 360

static int add_lines(const report_page *page, plot *drawing, int64_t window) {
    series *curve = calloc(1, sizeof *curve);
    if (curve == NULL) {
        return failure("report: out of memory");
    }
    for (int i = 0; i < page->nruns; i++) {
        series_smoothed(curve, &page->runs[i], AXIS_STEP, step_loss, window);
        plot_line(drawing, curve->x, curve->y, curve->count, page->styles[i]);
    }
    free(curve);
    return plot_is_empty(drawing) ? failure("report: the logs hold no training loss to draw")
                                  : STATUS_OK;
}

static int draw(report_page *page, plot *drawing) {
    char reason[256] = "out of memory";
    char *svg = NULL;
    const svg_settings settings = {.width = CURVES_WIDTH,
                                   .height = CURVES_HEIGHT,
                                   .description = page->title,
                                   .labels = (const char *const *)page->labels,
                                   .nlabels = page->nruns,
                                   .is_file = true};
    const char *script = plot_script(drawing);
    if (script != NULL) {
        gnuplot_run(script, &svg, reason, sizeof reason);
    }
    if (svg == NULL) {
        return failure("report: the curves could not be drawn: %s", reason);
    }
    svg_write(page->out, svg, &settings);
    page->nplots++;
    free(svg);
    return STATUS_OK;
}

int curves_write(report_page *page) {
    page->has_gnuplot = gnuplot_available();
    if (!page->has_gnuplot) {
        return failure("report: --curves needs gnuplot; install gnuplot-nox");
    }
    int64_t window = series_window(page->runs, page->nruns);
    char loss[64] = "training loss";
    if (window > 1) {
        snprintf(loss, sizeof loss, "training loss, mean of %lld steps", (long long)window);
    }
    plot drawing;
    int status = STATUS_OK;
    if (plot_begin(&drawing, CURVES_WIDTH, CURVES_HEIGHT, "step", loss)) {
        plot_key(&drawing);
        status = add_lines(page, &drawing, window);
    } else {
        status = failure("report: out of memory");
    }
    if (status == STATUS_OK) {
        status = draw(page, &drawing);
    }
    plot_end(&drawing);
    return status;
}
