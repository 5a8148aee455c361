/* report_histograms.c - acc = gradient + residual over time: a few snapshots of each run, overlaid
 *
 * Snapshots have bins of different width where the range of acc changes. Counts are scaled to the
 * narrowest bin of the plot, so that heights compare. Empty bins are drawn at half an entry of the
 * widest, the floor of the logarithmic axis.
 */
#include <math.h>

#include "report_html.h"
#include "report_picture.h"
#include "report_series.h"

#define VALUE "value of acc = gradient + residual"
#define LABEL_SIZE 48

typedef struct selection {
    const run_snapshot *at[SNAPSHOT_COLORS];
    int count;
    double width; /* of the narrowest bin */
    double floor; /* half an entry of the widest, scaled to it */
} selection;

static double bin_width(const run_snapshot *snapshot) {
    return (snapshot->high - snapshot->low) / snapshot->ncounts;
}

/* Up to SNAPSHOT_COLORS snapshots with a histogram, evenly spaced, first and last included. */
static selection choose(const run_log *run) {
    selection chosen = {.width = INFINITY};
    double widest = 0.0;
    int64_t usable = 0, seen = 0;
    for (int64_t i = 0; i < run->nsnapshots; i++) {
        usable += run->snapshots[i].ncounts > 0;
    }
    int64_t wanted = usable < SNAPSHOT_COLORS ? usable : SNAPSHOT_COLORS;
    for (int64_t i = 0; i < run->nsnapshots; i++) {
        const run_snapshot *snapshot = &run->snapshots[i];
        if (snapshot->ncounts == 0) {
            continue;
        }
        int64_t next = wanted > 1 ? chosen.count * (usable - 1) / (wanted - 1) : 0;
        if (seen++ == next && chosen.count < SNAPSHOT_COLORS) {
            chosen.at[chosen.count++] = snapshot;
            chosen.width = fmin(chosen.width, bin_width(snapshot));
            widest = fmax(widest, bin_width(snapshot));
        }
    }
    chosen.floor = 0.5 * chosen.width / widest;
    return chosen;
}

/* The ramp's colour of snapshot s of count: the last is always the strongest. */
static color shade(int s, int count) {
    int steps = count > 1 ? s * (SNAPSHOT_COLORS - 1) / (count - 1) : SNAPSHOT_COLORS - 1;
    return (color)(COLOR_SNAPSHOT + steps);
}

static void add_histogram(plot *drawing, const selection *chosen, int s) {
    const run_snapshot *snapshot = chosen->at[s];
    series curve = {.count = 0};
    int stride = snapshot->ncounts / SERIES_POINTS + 1; /* of long histograms, groups of bins */
    double scale = chosen->width / (bin_width(snapshot) * stride);
    for (int first = 0; first + stride <= snapshot->ncounts; first += stride) {
        double sum = 0.0;
        for (int i = first; i < first + stride; i++) {
            sum += isnan(snapshot->counts[i]) ? 0.0 : snapshot->counts[i];
        }
        curve.x[curve.count] = snapshot->low + (first + 0.5 * stride) * bin_width(snapshot);
        curve.y[curve.count++] = fmax(sum * scale, chosen->floor);
    }
    plot_line(drawing, curve.x, curve.y, curve.count,
              (plot_style){.line = shade(s, chosen->count), .width = 1.75, .label = s});
}

static void add_histograms(const selection *chosen, plot *drawing) {
    plot_logarithmic(drawing, 'y');
    plot_set(drawing, "set yrange [%g:*]; set lmargin at screen 0.14", chosen->floor);
    for (int s = 0; s < chosen->count; s++) {
        add_histogram(drawing, chosen, s);
    }
}

static void describe_bins(const selection *chosen, char *text) {
    snprintf(text, LABEL_SIZE, "entries per bin of %.2g", chosen->width);
}

static void describe_step(const selection *chosen, int s, char *text) {
    snprintf(text, LABEL_SIZE, "step %.0f", chosen->at[s]->step);
}

/* "step 0, 100, ..." with the colours of the lines. */
static void write_steps(report_page *page, const selection *chosen) {
    char text[LABEL_SIZE];
    fputs("<ul class=\"legend\">", page->out);
    for (int s = 0; s < chosen->count; s++) {
        describe_step(chosen, s, text);
        legend_item(page, shade(s, chosen->count), "solid", text);
    }
    fputs("</ul>\n", page->out);
}

static void write_figure(report_page *page, int i) {
    selection chosen = choose(&page->runs[i]);
    plot drawing;
    char y[LABEL_SIZE];
    describe_bins(&chosen, y);
    if (chosen.count == 0 || !figure_begin(page, &drawing, PLOT_HEIGHT, VALUE, y)) {
        return;
    }
    add_histograms(&chosen, &drawing);
    if (figure_draw(page, &drawing, page->labels[i])) {
        write_steps(page, &chosen);
        figure_caption(page, page->labels[i],
                       "A bell that widens means that the residual holds back more and more; "
                       "corners or gaps would break the assumption of the bound.");
    }
}

void section_histograms(report_page *page) {
    section_begin(page, "histograms", "Histograms of acc",
                  "What the selection sees on rank 0: gradient plus residual, counts on a "
                  "logarithmic axis. The outermost bins hold all that lies beyond them.");
    int before = plots_begin(page, 3);
    for (int i = 0; i < page->nruns; i++) {
        write_figure(page, i);
    }
    plots_end(page, before);
    section_end(page);
}

/* ---- The only run's as a picture ------------------------------------------------------------ */

static void add_first(const report_page *page, plot *drawing) {
    selection chosen = choose(&page->runs[0]);
    add_histograms(&chosen, drawing);
}

int histograms_write(report_page *page) {
    char y[LABEL_SIZE], steps[SNAPSHOT_COLORS][LABEL_SIZE];
    const char *labels[SNAPSHOT_COLORS];
    selection chosen = choose(&page->runs[0]);
    describe_bins(&chosen, y);
    for (int s = 0; s < chosen.count; s++) {
        describe_step(&chosen, s, steps[s]);
        labels[s] = steps[s];
    }
    const picture histograms = {.name = "histograms",
                                .x = VALUE,
                                .y = y,
                                .key = "top right",
                                .labels = labels,
                                .nlabels = chosen.count,
                                .add = add_first};
    return picture_write(page, &histograms);
}
