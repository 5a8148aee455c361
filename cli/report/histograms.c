/* histograms.c - acc = gradient + residual over time: a few snapshots of each run, overlaid
 *
 * Snapshots have bins of different width where the range of acc changes. Counts are scaled to the
 * widest bin of the plot, so that heights compare and none is below 1. Empty bins are drawn at half
 * an entry, the floor of the logarithmic axis; the outermost, which hold all beyond them, are not.
 */
#include "report/page.h"

#include <math.h>

#include "report/series.h"

#define VALUE "value of acc = gradient + residual"
#define PER_BIN "entries per %.2g of value" /* of the widest bin */
#define FLOOR 0.5
#define LABEL_SIZE 48

/* gnuplot's own mix 100000 and 1e+06. */
#define POWERS_OF_TEN                                                                               \
    "('1' 1, '10' 10, '10²' 1e2, '10³' 1e3, '10⁴' 1e4, '10⁵' 1e5, '10⁶' 1e6, '10⁷' 1e7, " \
    "'10⁸' 1e8, '10⁹' 1e9)"

typedef struct selection {
    const run_snapshot *at[SNAPSHOT_COLORS];
    int count;
    double width; /* of the widest bin */
} selection;

/* Bins that a point stands for: groups of them in long histograms. */
static int stride_of(const run_snapshot *snapshot) {
    return snapshot->ncounts / SERIES_POINTS + 1;
}

/* Of as many bins. */
static double width_of(const run_snapshot *snapshot) {
    return (snapshot->high - snapshot->low) / snapshot->ncounts * stride_of(snapshot);
}

/* Whether there are bins between the outermost. */
static bool is_usable(const run_snapshot *snapshot) {
    return snapshot->ncounts >= stride_of(snapshot) + 2;
}

/* Up to SNAPSHOT_COLORS snapshots with a histogram, evenly spaced, first and last included. */
static selection choose(const run_log *run) {
    selection chosen = {.count = 0};
    int64_t usable = 0, seen = 0;
    for (int64_t i = 0; i < run->nsnapshots; i++)
        usable += is_usable(&run->snapshots[i]);
    int64_t wanted = usable < SNAPSHOT_COLORS ? usable : SNAPSHOT_COLORS;
    for (int64_t i = 0; i < run->nsnapshots; i++) {
        const run_snapshot *snapshot = &run->snapshots[i];
        if (!is_usable(snapshot))
            continue;
        int64_t next = wanted > 1 ? chosen.count * (usable - 1) / (wanted - 1) : 0;
        if (seen++ == next && chosen.count < SNAPSHOT_COLORS) {
            chosen.at[chosen.count++] = snapshot;
            chosen.width = fmax(chosen.width, width_of(snapshot));
        }
    }
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
    int stride = stride_of(snapshot);
    double width = width_of(snapshot);
    for (int first = 1; first + stride < snapshot->ncounts; first += stride) {
        double sum = 0.0;
        for (int i = first; i < first + stride; i++)
            sum += isnan(snapshot->counts[i]) ? 0.0 : snapshot->counts[i];
        curve.x[curve.count] = snapshot->low + ((double)first / stride + 0.5) * width;
        curve.y[curve.count++] = fmax(sum * chosen->width / width, FLOOR);
    }
    plot_line(drawing, curve.x, curve.y, curve.count,
              (plot_style){.line = shade(s, chosen->count), .width = 1.75, .label = s});
}

static void add_histograms(const selection *chosen, plot *drawing) {
    plot_logarithmic(drawing, 'y');
    plot_set(drawing, "set yrange [%g:*]; set ytics " POWERS_OF_TEN, FLOOR);
    for (int s = 0; s < chosen->count; s++)
        add_histogram(drawing, chosen, s);
}

static void write_figure(report_page *page, int i) {
    selection chosen = choose(&page->runs[i]);
    plot drawing;
    char y[LABEL_SIZE], step[LABEL_SIZE];
    snprintf(y, sizeof y, PER_BIN, chosen.width);
    if (chosen.count == 0 || !page_figure_begin(page, &drawing, PLOT_HEIGHT, VALUE, y))
        return;
    add_histograms(&chosen, &drawing);
    if (page_figure_draw(page, &drawing, page->labels[i])) {
        fputs(LEGEND_BEGIN, page->out);
        for (int s = 0; s < chosen.count; s++) {
            snprintf(step, sizeof step, "step %.0f", chosen.at[s]->step);
            page_legend_item(page, shade(s, chosen.count), "solid", step);
        }
        fputs(LEGEND_END, page->out);
        page_figure_caption(page, page->labels[i],
                            "A bell that widens means that the residual holds back more and more; "
                            "corners or gaps would break the assumption of the bound.");
    }
}

void histograms_section(report_page *page) {
    page_section_begin(
        page, "histograms", "Histograms of acc",
        "What the selection sees on rank 0: gradient plus residual, counts on a "
        "logarithmic axis, empty bins at its floor. The outermost bins, which hold all "
        "that lies beyond them, are left out. Runs trained with <code>--snapshots N</code> have "
        "them.");
    int before = page_plots_begin(page, 3);
    for (int i = 0; i < page->nruns; i++)
        write_figure(page, i);
    page_plots_end(page, before);
}

static void add_first(const report_page *page, plot *drawing) {
    selection chosen = choose(&page->runs[0]);
    add_histograms(&chosen, drawing);
}

int histograms_write(report_page *page) {
    char y[LABEL_SIZE], steps[SNAPSHOT_COLORS][LABEL_SIZE];
    const char *labels[SNAPSHOT_COLORS];
    selection chosen = choose(&page->runs[0]);
    snprintf(y, sizeof y, PER_BIN, chosen.width);
    for (int s = 0; s < chosen.count; s++) {
        snprintf(steps[s], LABEL_SIZE, "step %.0f", chosen.at[s]->step);
        labels[s] = steps[s];
    }
    const page_picture histograms = {.name = "histograms",
                                     .hint = "train with --snapshots N",
                                     .x = VALUE,
                                     .y = y,
                                     .labels = labels,
                                     .nlabels = chosen.count,
                                     .add = add_first};
    return page_picture_write(page, &histograms);
}
