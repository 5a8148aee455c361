/* convergence.c - training loss and test accuracy per step, per byte sent and per second; each as a
 * picture */
#include "report/page.h"

#include <math.h>

#include "report/series.h"

#define BEYOND " Beyond twice the highest first loss curves leave the plot."
#define LOG_FROM 20 /* bytes that differ more than this are shown on a logarithmic axis */

static const struct {
    const char *label; /* of the axis */
    const char *title; /* of the figure, after "Loss" */
    const char *look;  /* what to look for */
} axes[] = {
    [AXIS_STEP] = {"step", "per step",
                   "How close a sparse run stays to the dense one: the gap is what sparsification "
                   "costs in learning."},
    [AXIS_MEGABYTES] = {"sent by rank 0, MB", "per byte sent",
                        "The further left a curve turns, the less traffic the same result needs."},
    [AXIS_SECONDS] = {"time, s", "per second",
                      "What counts in the end, on this machine and its links: a fast network "
                      "favours dense, a thin wire the sparse runs."},
};

static void make_curve(const report_page *page, int i, series_axis axis, bool accuracy,
                       series *curve) {
    if (accuracy)
        series_accuracy(curve, &page->runs[i], axis);
    else
        series_loss(curve, &page->runs[i], axis, page->window);
}

/* Whether the finite positive x of all curves differ enough for a logarithmic axis. */
static bool spread_out(const report_page *page, series_axis axis, bool accuracy) {
    double low = INFINITY, high = 0.0;
    series curve;
    for (int i = 0; i < page->nruns; i++) {
        make_curve(page, i, axis, accuracy, &curve);
        for (int p = 0; p < curve.count; p++) {
            low = curve.x[p] > 0 && curve.x[p] < low ? curve.x[p] : low;
            high = curve.x[p] > high ? curve.x[p] : high;
        }
    }
    return high > LOG_FROM * low;
}

static void add_curves(const report_page *page, plot *drawing, series_axis axis, bool accuracy,
                       bool points) {
    series curve;
    double limit = series_loss_limit(page->runs, page->nruns);
    if (!accuracy && limit > 0) /* or before; lines beyond leave the plot */
        plot_set(drawing, "set yrange [*:*<%.7g]", limit);
    for (int i = 0; i < page->nruns; i++) {
        plot_style style = page->styles[i];
        style.points = points;
        make_curve(page, i, axis, accuracy, &curve);
        plot_line(drawing, curve.x, curve.y, curve.count, style);
    }
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

static void write_figure(report_page *page, series_axis axis, bool accuracy) {
    plot drawing;
    char title[64], what[192];
    const char *y = accuracy ? "test accuracy, %" : "training loss";
    if (!page_figure_begin(page, &drawing, PLOT_HEIGHT, axes[axis].label, y))
        return;
    bool logarithmic = axis == AXIS_MEGABYTES && spread_out(page, axis, accuracy);
    if (logarithmic)
        plot_logarithmic(&drawing, 'x');
    add_curves(page, &drawing, axis, accuracy, accuracy);
    snprintf(title, sizeof title, "%s %s", accuracy ? "Accuracy" : "Loss", axes[axis].title);
    describe(page, accuracy, what, sizeof what);
    if (page_figure_draw(page, &drawing, title))
        page_figure_caption(page, title, "%s %s%s", what, axes[axis].look,
                            logarithmic ? " Logarithmic axis." : "");
}

void convergence_section(report_page *page) {
    page_section_begin(page, "convergence", "Convergence",
                       "The same curves over three currencies: steps, bytes and seconds.");
    page_legend(page, NULL);
    int before = page_plots_begin(page, 3);
    for (int accuracy = 0; accuracy <= 1; accuracy++)
        for (int axis = AXIS_STEP; axis <= AXIS_SECONDS; axis++)
            write_figure(page, (series_axis)axis, accuracy == 1);
    page_plots_end(page, before);
}

static void add_picture(const report_page *page, plot *drawing, bool accuracy) {
    if (page->axis == AXIS_MEGABYTES && spread_out(page, page->axis, accuracy))
        plot_logarithmic(drawing, 'x');
    add_curves(page, drawing, page->axis, accuracy, false);
}

static void add_losses(const report_page *page, plot *drawing) {
    add_picture(page, drawing, false);
}

static void add_accuracies(const report_page *page, plot *drawing) {
    add_picture(page, drawing, true);
}

int convergence_write_loss(report_page *page) {
    char y[64] = "training loss";
    if (page->window > 1)
        snprintf(y, sizeof y, "training loss, mean of %.0f steps", page->window);
    return page_picture_write(page, &(page_picture){.name = "training loss",
                                                    .hint = "it was NaN in every step",
                                                    .x = axes[page->axis].label,
                                                    .y = y,
                                                    .add = add_losses});
}

int convergence_write_accuracy(report_page *page) {
    return page_picture_write(page, &(page_picture){.name = "test accuracy",
                                                    .hint = "train with --evaluate N",
                                                    .x = axes[page->axis].label,
                                                    .y = "test accuracy, %",
                                                    .add = add_accuracies});
}
