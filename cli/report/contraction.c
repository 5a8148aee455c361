/* contraction.c - the measured Top-k contraction against both bounds, over steps
 *
 * GaussianK-SGD, Theorem 1: for a bell-shaped u, |u - Top_k(u)|^2 <= (1 - k/n)^2 |u|^2, against
 * 1 - k/n for k random entries. At the usual densities both bounds are close to 1, so a second plot
 * shows what is caught, 1 - contraction, on a logarithmic axis, where they can be told apart.
 */
#include "report/page.h"

#include <math.h>

#include "cli.h"
#include "report/series.h"

#define CAUGHT "caught: 1 - contraction"

/* Dashed and dotted. */
static const struct {
    size_t offset;      /* in run_snapshot */
    const char *dash;   /* of a legend */
    const char *name;   /* against the contraction */
    const char *caught; /* against one minus it */
} bounds[] = {
    {offsetof(run_snapshot, bound_topk), "dashed", "bound for Top-k, (1-k/n)²",
     "bound for Top-k, 1-(1-k/n)²"},
    {offsetof(run_snapshot, bound_random), "dotted", "bound for random k, 1-k/n",
     "bound for random k, k/n"},
};
#define BOUNDS COUNT_OF(bounds)

/* Whether a snapshot selects: dense has nothing to leave behind. */
static bool selects(const run_snapshot *snapshot) {
    return isfinite(snapshot->contraction) && !(snapshot->k >= snapshot->n);
}

/* The member at the offset over steps; thinned like all curves. caught: 1 - value. */
static void add_curve(plot *drawing, const run_log *run, size_t offset, bool caught,
                      plot_style style) {
    series curve = {.count = 0};
    int64_t stride = run->nsnapshots / SERIES_POINTS + 1;
    for (int64_t i = 0; i < run->nsnapshots; i += stride) {
        const run_snapshot *snapshot = &run->snapshots[i];
        if (selects(snapshot)) {
            double value = series_member(snapshot, offset);
            curve.x[curve.count] = snapshot->step;
            curve.y[curve.count++] = caught ? 1.0 - value : value;
        }
    }
    plot_line(drawing, curve.x, curve.y, curve.count, style);
}

/* For each run its bounds in its colour, thin, and on top what was measured. */
static void add_runs(const report_page *page, plot *drawing, bool caught) {
    for (int i = 0; i < page->nruns; i++) {
        plot_style style = page->styles[i];
        for (int b = 0; b < BOUNDS; b++) {
            plot_style thin = {.line = style.line, .dash = 1 + b, .width = 1, .label = -1};
            add_curve(drawing, &page->runs[i], bounds[b].offset, caught, thin);
        }
        style.points = true;
        add_curve(drawing, &page->runs[i], offsetof(run_snapshot, contraction), caught, style);
    }
}

/* The lowest that a bound promises to catch: the axis begins below, so that its line shows. */
static double lowest_caught(const report_page *page) {
    double lowest = 1.0;
    for (int i = 0; i < page->nruns; i++) {
        for (int64_t s = 0; s < page->runs[i].nsnapshots; s++) {
            double caught = 1.0 - page->runs[i].snapshots[s].bound_random;
            lowest = caught > 0 && caught < lowest ? caught : lowest;
        }
    }
    return lowest;
}

static void add_caught(const report_page *page, plot *drawing) {
    plot_logarithmic(drawing, 'y');
    plot_set(drawing, "set yrange [%g:1.2]", lowest_caught(page) / 2.0);
    add_runs(page, drawing, true);
    for (int b = 0; b < BOUNDS; b++) {
        plot_style style = {
            .line = COLOR_SOFT, .dash = 1 + b, .width = 1, .label = page->nruns + b};
        plot_key_entry(drawing, style);
    }
}

static void write_figure(report_page *page, bool caught) {
    plot drawing;
    const char *title = caught ? "What the k largest catch" : "Contraction";
    const char *y = caught ? CAUGHT : "contraction: left behind / whole";
    if (!page_figure_begin(page, &drawing, PLOT_HEIGHT, "step", y))
        return;
    if (caught) {
        add_caught(page, &drawing);
    } else {
        plot_set(&drawing, "set yrange [0:1.02]");
        add_runs(page, &drawing, false);
    }
    if (page_figure_draw(page, &drawing, title)) {
        fputs(LEGEND_BEGIN, page->out);
        for (int b = 0; b < BOUNDS; b++)
            page_legend_item(page, COLOR_SOFT, bounds[b].dash,
                             caught ? bounds[b].caught : bounds[b].name);
        fputs(LEGEND_END, page->out);
        page_figure_caption(
            page, title, "%s",
            caught ? "The same as one minus the ratio, logarithmic, where the bounds come apart: "
                     "higher is better, and the curves should stay above both."
                   : "|u &minus; Top<sub>k</sub>(u)|&sup2; / |u|&sup2; of u = gradient + residual "
                     "on rank 0, where less is better. For bell-shaped u theory promises less than "
                     "(1&minus;k/n)&sup2;.");
    }
}

static void write_row(report_page *page, int i) {
    const run_log *run = &page->runs[i];
    const run_snapshot *first = NULL, *last = NULL;
    int64_t count = 0, held = 0;
    for (int64_t s = 0; s < run->nsnapshots; s++) {
        if (selects(&run->snapshots[s])) {
            last = &run->snapshots[s];
            first = first != NULL ? first : last;
            held += last->contraction <= last->bound_topk;
            count++;
        }
    }
    if (last == NULL)
        return;
    page_row_begin(page, i);
    html_cell(page->out, HTML_GENERAL, last->k / last->n);
    html_cell(page->out, HTML_REAL4, first->contraction);
    html_cell(page->out, HTML_REAL4, last->contraction);
    html_cell(page->out, HTML_REAL4, last->bound_topk);
    html_cell(page->out, HTML_REAL4, last->bound_random);
    fprintf(page->out, "<td>%lld of %lld</td></tr>\n", (long long)held, (long long)count);
}

static bool run_selects(const run_log *run) {
    for (int64_t s = 0; s < run->nsnapshots; s++)
        if (selects(&run->snapshots[s]))
            return true;
    return false;
}

void contraction_section(report_page *page) {
    static const char *const headers[] = {"run",
                                          "k/n",
                                          "first<br>snapshot",
                                          "last<br>snapshot",
                                          "(1&minus;k/n)&sup2;",
                                          "1&minus;k/n",
                                          "snapshots within<br>(1&minus;k/n)&sup2;"};
    page_section_begin(
        page, "contraction", "Contraction against theory",
        "What share of the squared norm Top-k leaves behind, as measured, and the bounds "
        "of GaussianK-SGD (Theorem 1) and of k random entries. Bounds have the colour of "
        "their run; those of runs with the same k cover each other. Sparse runs trained with "
        "<code>--snapshots N</code> are shown.");
    page_legend(page, run_selects);
    int before = page_plots_begin(page, 2);
    write_figure(page, false);
    write_figure(page, true);
    page_plots_end(page, before);
    bool any = false;
    for (int i = 0; i < page->nruns; i++)
        any = any || run_selects(&page->runs[i]);
    if (any) {
        html_table_begin(page->out, headers, COUNT_OF(headers));
        for (int i = 0; i < page->nruns; i++)
            write_row(page, i);
        html_table_end(page->out);
    }
}

int contraction_write(report_page *page) {
    const char *labels[MAX_RUNS + BOUNDS];
    for (int i = 0; i < page->nruns; i++)
        labels[i] = page->labels[i];
    for (int b = 0; b < BOUNDS; b++)
        labels[page->nruns + b] = bounds[b].caught;
    const page_picture caught = {.name = "snapshots",
                                 .hint = "train a sparse scheme with --snapshots N",
                                 .x = "step",
                                 .y = CAUGHT,
                                 .labels = labels,
                                 .nlabels = page->nruns + BOUNDS,
                                 .add = add_caught};
    return page_picture_write(page, &caught);
}
