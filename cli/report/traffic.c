/* traffic.c - over steps: bytes that rank 0 sends, and how many entries a selector
 * takes for the k that it was asked for */
#include "report/page.h"

#include <math.h>

#include "report/series.h"

/* A level line over all steps. */
static void add_level(const report_page *page, plot *drawing, double y, plot_style style) {
    double last = 1.0;
    for (int i = 0; i < page->nruns; i++) {
        const run_log *run = &page->runs[i];
        if (run->nsteps > 0 && run->steps[run->nsteps - 1].step > last)
            last = run->steps[run->nsteps - 1].step;
    }
    const double xs[] = {0.0, last}, ys[] = {y, y};
    plot_line(drawing, xs, ys, 2, style);
}

/* The cost of dense, once for each size that occurs. */
static void add_dense(const report_page *page, plot *drawing) {
    for (int i = 0; i < page->nruns; i++) {
        double bytes = series_dense_bytes(&page->runs[i]);
        bool known = false;
        for (int j = 0; j < i && !known; j++)
            known = series_dense_bytes(&page->runs[j]) == bytes;
        if (!known) {
            add_level(page, drawing, bytes,
                      (plot_style){.line = COLOR_SOFT, .dash = 1, .width = 1});
        }
    }
}

static void write_bytes(report_page *page, const char *points) {
    static const char title[] = "Bytes per step";
    plot drawing;
    if (!page_figure_begin(page, &drawing, PLOT_HEIGHT, "step", "sent by rank 0 per step"))
        return;
    plot_logarithmic(&drawing, 'y');
    plot_set(&drawing, "set format y '%%.0s %%cB'; set lmargin at screen 0.15");
    add_dense(page, &drawing);
    for (int i = 0; i < page->nruns; i++) {
        series curve;
        series_binned(&curve, &page->runs[i], offsetof(run_step, sent), page->bin);
        plot_line(&drawing, curve.x, curve.y, curve.count, page->styles[i]);
    }
    if (page_figure_draw(page, &drawing, title))
        page_figure_caption(
            page, title,
            "Payload and control bytes, logarithmic. The dashed line is what dense costs, "
            "2n(P&minus;1)/P words: the distance below it is the traffic saved; peaks are steps "
            "that re-partition or take thresholds anew.%s",
            points);
}

static void write_counts(report_page *page, const char *points) {
    static const char title[] = "Count over k";
    plot drawing;
    if (!page_figure_begin(page, &drawing, PLOT_HEIGHT, "step", "selected entries / k"))
        return;
    double high = 1.4;
    for (int i = 0; i < page->nruns; i++) {
        series curve;
        if (!series_is_dense(&page->runs[i])) {
            series_binned(&curve, &page->runs[i], offsetof(run_step, share), page->bin);
            plot_line(&drawing, curve.x, curve.y, curve.count, page->styles[i]);
            for (int p = 0; p < curve.count; p++)
                high = fmax(high, curve.y[p]);
        }
    }
    if (drawing.nseries > 0)
        add_level(page, &drawing, 1.0, (plot_style){.line = COLOR_SOFT, .dash = 1, .width = 1});
    plot_set(&drawing, "set yrange [0:%g]", high * 1.05);
    if (page_figure_draw(page, &drawing, title))
        page_figure_caption(
            page, title,
            "1 is the k of the step. Exact selection stays there, or below where fewer values are "
            "not "
            "zero, as can be while k falls from much of n; thresholds that are estimated or reused "
            "drift, and the further from 1, the more of the wire or of the gradient is wasted.%s",
            points);
}

void traffic_section(report_page *page) {
    page_section_begin(page, "traffic", "Traffic and selection",
                       "What rank 0 sends in each step, and how many entries the selectors "
                       "take for the k that they were asked for. Dense does not select.");
    page_legend(page, NULL);
    if (page->has_gnuplot) {
        fputs(LEGEND_BEGIN, page->out);
        page_legend_item(page, COLOR_SOFT, "dashed", "what dense costs; count = k");
        fputs(LEGEND_END, page->out);
    }
    char points[64] = "";
    if (page->bin != 1)
        snprintf(points, sizeof points, " Each point is the mean of %.0f steps.", page->bin);
    int before = page_plots_begin(page, 2);
    write_bytes(page, points);
    write_counts(page, points);
    page_plots_end(page, before);
}
