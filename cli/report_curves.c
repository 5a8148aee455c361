/* report_curves.c - training loss or test accuracy of all runs as one SVG file, for documents
 *
 * A plot of the page, larger, with the names of the runs in it and nothing around it.
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

/* What is drawn. */
typedef struct subject {
    const char *label; /* of the axis */
    const char *name;  /* for the error when there is none of it */
    const char *key;   /* where curves leave room for the names */
    void (*compute)(series *curve, const run_log *run, int64_t window);
} subject;

static void compute_loss(series *curve, const run_log *run, int64_t window) {
    series_smoothed(curve, run, AXIS_STEP, step_loss, window);
}

static void compute_accuracy(series *curve, const run_log *run, int64_t window) {
    (void)window; /* evaluations are few */
    series_accuracy(curve, run, AXIS_STEP);
}

static int add_lines(const report_page *page, plot *drawing, const subject *what) {
    int64_t window = series_window(page->runs, page->nruns);
    series *curve = calloc(1, sizeof *curve);
    if (curve == NULL) {
        return failure("report: out of memory");
    }
    for (int i = 0; i < page->nruns; i++) {
        what->compute(curve, &page->runs[i], window);
        plot_line(drawing, curve->x, curve->y, curve->count, page->styles[i]);
    }
    free(curve);
    return plot_is_empty(drawing) ? failure("report: the logs hold no %s to draw", what->name)
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

static int write_curves(report_page *page, const subject *what) {
    plot drawing;
    int status = STATUS_OK;
    page->has_gnuplot = gnuplot_available();
    if (!page->has_gnuplot) {
        return failure("report: curves need gnuplot; install gnuplot-nox");
    }
    if (plot_begin(&drawing, CURVES_WIDTH, CURVES_HEIGHT, "step", what->label)) {
        plot_key(&drawing);
        plot_set(&drawing, "set key %s", what->key);
        status = add_lines(page, &drawing, what);
    } else {
        status = failure("report: out of memory");
    }
    if (status == STATUS_OK) {
        status = draw(page, &drawing);
    }
    plot_end(&drawing);
    return status;
}

int curves_write(report_page *page) {
    int64_t window = series_window(page->runs, page->nruns);
    char label[64] = "training loss";
    if (window > 1) {
        snprintf(label, sizeof label, "training loss, mean of %lld steps", (long long)window);
    }
    const subject loss = {label, "training loss", "top right", compute_loss};
    return write_curves(page, &loss);
}

int curves_write_accuracy(report_page *page) {
    const subject accuracy = {"test accuracy, %", "test accuracy", "bottom right",
                              compute_accuracy};
    return write_curves(page, &accuracy);
}
