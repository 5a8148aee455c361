/* report_curves.c - training loss or test accuracy of all runs, each as a picture */
#include <stdio.h>

#include "report_picture.h"
#include "report_series.h"

static void add_losses(const report_page *page, plot *drawing) {
    double window = series_window(page->runs, page->nruns);
    series curve;
    plot_limit(drawing, series_loss_limit(page->runs, page->nruns));
    for (int i = 0; i < page->nruns; i++) {
        series_smoothed(&curve, &page->runs[i], AXIS_STEP, step_loss, window);
        plot_line(drawing, curve.x, curve.y, curve.count, page->styles[i]);
    }
}

static void add_accuracies(const report_page *page, plot *drawing) {
    series curve;
    for (int i = 0; i < page->nruns; i++) {
        series_accuracy(&curve, &page->runs[i], AXIS_STEP);
        plot_line(drawing, curve.x, curve.y, curve.count, page->styles[i]);
    }
}

int curves_write(report_page *page) {
    double window = series_window(page->runs, page->nruns);
    char y[64] = "training loss";
    if (window > 1)
        snprintf(y, sizeof y, "training loss, mean of %.0f steps", window);
    const picture losses = {.name = "training loss",
                            .hint = "it was NaN in every step",
                            .x = "step",
                            .y = y,
                            .key = "top right",
                            .labels = (const char *const *)page->labels,
                            .nlabels = page->nruns,
                            .add = add_losses};
    return picture_write(page, &losses);
}

int curves_write_accuracy(report_page *page) {
    const picture accuracies = {.name = "test accuracy",
                                .hint = "train with --evaluate N",
                                .x = "step",
                                .y = "test accuracy, %",
                                .key = "bottom right",
                                .labels = (const char *const *)page->labels,
                                .nlabels = page->nruns,
                                .add = add_accuracies};
    return picture_write(page, &accuracies);
}
