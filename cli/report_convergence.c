/* report_convergence.c - training loss and test accuracy per step, per byte sent and per second */
#include <math.h>
#include <stdlib.h>

#include "report_page.h"
#include "report_series.h"

#define BEYOND " Beyond twice the highest first loss curves leave the plot."
#define LOG_FROM 20 /* bytes that differ more than this are shown on a logarithmic axis */

typedef struct axis_text {
    const char *label; /* of the axis */
    const char *title; /* of the figure, after "Loss" */
    const char *look;  /* what to look for */
} axis_text;

static const axis_text axes[] = {
    [AXIS_STEP] = {"step", "per step",
                   "How close a sparse run stays to the dense one: the gap is what sparsification "
                   "costs in learning."},
    [AXIS_MEGABYTES] = {"sent by rank 0, MB", "per byte sent",
                        "The further left a curve turns, the less traffic the same result "
                        "needs."},
    [AXIS_SECONDS] = {"time, s", "per second",
                      "What counts in the end, on this machine and its links: a fast network "
                      "favours dense, a thin wire the sparse runs."},
};

/* Whether the finite positive x of all curves differ enough for a logarithmic axis. */
static bool spread_out(const series *curves, int count) {
    double low = INFINITY, high = 0.0;
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < curves[i].count; p++) {
            double x = curves[i].x[p];
            low = x > 0 && x < low ? x : low;
            high = x > high ? x : high;
        }
    }
    return high > LOG_FROM * low;
}

static void compute(const report_page *page, series *curves, series_axis axis, bool accuracy) {
    for (int i = 0; i < page->nruns; i++)
        if (accuracy)
            series_accuracy(&curves[i], &page->runs[i], axis);
        else
            series_smoothed(&curves[i], &page->runs[i], axis, step_loss, page->window);
}

/* What the y axis shows, in words for the caption. */
static void describe(const report_page *page, bool accuracy, char *text, size_t size) {
    if (accuracy) {
        snprintf(text, size, "Accuracy on the test data at each evaluation.");
    } else if (page->window == 1) {
        snprintf(text, size, "Training loss of each step." BEYOND);
    } else {
        snprintf(text, size, "Training loss, each point the mean of the last %.0f steps." BEYOND,
                 page->window);
    }
}

static void write_figure(report_page *page, series *curves, series_axis axis, bool accuracy) {
    plot drawing;
    const char *y = accuracy ? "test accuracy, %" : "training loss";
    if (!figure_begin(page, &drawing, PLOT_HEIGHT, axes[axis].label, y))
        return;
    compute(page, curves, axis, accuracy);
    if (!accuracy)
        plot_limit(&drawing, series_loss_limit(page->runs, page->nruns));
    bool logarithmic = axis == AXIS_MEGABYTES && spread_out(curves, page->nruns);
    if (logarithmic)
        plot_logarithmic(&drawing, 'x');
    for (int i = 0; i < page->nruns; i++) {
        plot_style style = page->styles[i];
        style.points = accuracy;
        plot_line(&drawing, curves[i].x, curves[i].y, curves[i].count, style);
    }
    char title[64], what[192];
    snprintf(title, sizeof title, "%s %s", accuracy ? "Accuracy" : "Loss", axes[axis].title);
    describe(page, accuracy, what, sizeof what);
    figure_end(page, &drawing, title, "%s %s%s", what, axes[axis].look,
               logarithmic ? " Logarithmic axis." : "");
}

void section_convergence(report_page *page) {
    section_begin(page, "convergence", "Convergence",
                  "The same curves over three currencies: steps, bytes and seconds.");
    legend_write(page, NULL);
    series *curves = calloc((size_t)page->nruns, sizeof *curves);
    int before = plots_begin(page, 3);
    for (int accuracy = 0; accuracy <= 1 && curves != NULL; accuracy++)
        for (int axis = AXIS_STEP; axis <= AXIS_SECONDS; axis++)
            write_figure(page, curves, (series_axis)axis, accuracy == 1);
    plots_end(page, before);
    free(curves);
    section_end(page);
}
