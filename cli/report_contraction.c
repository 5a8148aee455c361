/* report_contraction.c - the measured Top-k contraction against both bounds, over steps
 *
 * GaussianK-SGD, Theorem 1: for a bell-shaped u, |u - Top_k(u)|^2 <= (1 - k/n)^2 |u|^2, against
 * 1 - k/n for k random entries. At the usual densities both bounds are close to 1, so a second plot
 * shows what is caught, 1 - contraction, on a logarithmic axis, where they can be told apart.
 */
#include <math.h>
#include <stdlib.h>

#include "errors.h"
#include "report_html.h"
#include "report_picture.h"
#include "report_series.h"

#define CAUGHT "caught: 1 - contraction"
#define BOUND_TOPK "bound for Top-k, (1-k/n)\xc2\xb2"
#define BOUND_RANDOM "bound for random k, 1-k/n"

typedef double (*snapshot_value)(const run_snapshot *snapshot);

static double contraction(const run_snapshot *snapshot) {
    return snapshot->contraction;
}

static double bound_topk(const run_snapshot *snapshot) {
    return snapshot->bound_topk;
}

static double bound_random(const run_snapshot *snapshot) {
    return snapshot->bound_random;
}

/* Whether a snapshot selects: dense has nothing to leave behind. */
static bool selects(const run_snapshot *snapshot) {
    return isfinite(snapshot->contraction) && !(snapshot->k >= snapshot->n);
}

/* value over steps; thinned like all curves. caught: 1 - value. */
static void make_curve(series *curve, const run_log *run, snapshot_value value, bool caught) {
    int64_t stride = run->nsnapshots / SERIES_POINTS + 1;
    curve->count = 0;
    for (int64_t i = 0; i < run->nsnapshots; i += stride) {
        const run_snapshot *snapshot = &run->snapshots[i];
        if (selects(snapshot)) {
            curve->x[curve->count] = snapshot->step;
            curve->y[curve->count++] = caught ? 1.0 - value(snapshot) : value(snapshot);
        }
    }
}

/* Whether an earlier run has the same bounds over at least as many steps. */
static bool bounds_shown(const report_page *page, int i) {
    const run_log *run = &page->runs[i];
    for (int j = 0; j < i && run->nsnapshots > 0; j++) {
        const run_log *other = &page->runs[j];
        if (other->nsnapshots >= run->nsnapshots &&
            other->snapshots[0].bound_topk == run->snapshots[0].bound_topk &&
            other->snapshots[other->nsnapshots - 1].step >=
                run->snapshots[run->nsnapshots - 1].step) {
            return true;
        }
    }
    return false;
}

/* Labels behind those of the runs: the bounds, named once. */
static void add_bounds(const report_page *page, plot *drawing, int i, bool caught, bool named) {
    static const snapshot_value bounds[] = {bound_topk, bound_random};
    series curve;
    for (int b = 0; b < 2; b++) {
        make_curve(&curve, &page->runs[i], bounds[b], caught);
        plot_line(drawing, curve.x, curve.y, curve.count,
                  (plot_style){.line = COLOR_SOFT,
                               .dash = 1 + b,
                               .width = 1.5,
                               .label = named ? page->nruns + b : -1});
    }
}

static void add_curves(const report_page *page, plot *drawing, bool caught) {
    series curve;
    for (int i = 0; i < page->nruns; i++) {
        if (!bounds_shown(page, i)) {
            add_bounds(page, drawing, i, caught, plot_is_empty(drawing));
        }
    }
    for (int i = 0; i < page->nruns; i++) {
        plot_style style = page->styles[i];
        style.points = true;
        make_curve(&curve, &page->runs[i], contraction, caught);
        plot_line(drawing, curve.x, curve.y, curve.count, style);
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
    add_curves(page, drawing, true);
}

static void write_figure(report_page *page, bool caught) {
    plot drawing;
    const char *y = caught ? CAUGHT : "contraction: left behind / whole";
    if (!figure_begin(page, &drawing, PLOT_HEIGHT, "step", y)) {
        return;
    }
    if (caught) {
        add_caught(page, &drawing);
        figure_end(page, &drawing, "What the k largest catch",
                   "The same as one minus the ratio, logarithmic, where the bounds come apart: "
                   "higher is better, and the curves should stay above both.");
    } else {
        plot_set(&drawing, "set yrange [0:1.02]");
        add_curves(page, &drawing, false);
        figure_end(page, &drawing, "Contraction",
                   "|u &minus; Top<sub>k</sub>(u)|&sup2; / |u|&sup2; of u = gradient + residual on "
                   "rank 0: lower is better. For bell-shaped u theory promises less than "
                   "(1&minus;k/n)&sup2;.");
    }
}

/* ---- The table ------------------------------------------------------------------------------ */

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
    if (last == NULL) {
        return;
    }
    row_begin(page, i);
    html_cell_general(page->out, last->k / last->n);
    html_cell_real(page->out, first->contraction, 4);
    html_cell_real(page->out, last->contraction, 4);
    html_cell_real(page->out, last->bound_topk, 4);
    html_cell_real(page->out, last->bound_random, 4);
    fprintf(page->out, "<td>%lld of %lld</td></tr>\n", (long long)held, (long long)count);
}

static bool any_snapshot(const report_page *page) {
    for (int i = 0; i < page->nruns; i++) {
        for (int64_t s = 0; s < page->runs[i].nsnapshots; s++) {
            if (selects(&page->runs[i].snapshots[s])) {
                return true;
            }
        }
    }
    return false;
}

void section_contraction(report_page *page) {
    static const char *const headers[] = {"run",
                                          "k/n",
                                          "first<br>snapshot",
                                          "last<br>snapshot",
                                          "(1&minus;k/n)&sup2;",
                                          "1&minus;k/n",
                                          "snapshots within<br>(1&minus;k/n)&sup2;"};
    section_begin(page, "contraction", "Contraction against theory",
                  "What share of the squared norm Top-k leaves behind, as measured, and the bounds "
                  "of GaussianK-SGD (Theorem 1) and of k random entries.");
    legend_write(page);
    if (page->has_gnuplot) {
        fputs("<ul class=\"legend\">", page->out);
        legend_item(page, COLOR_SOFT, "dashed", BOUND_TOPK);
        legend_item(page, COLOR_SOFT, "dotted", BOUND_RANDOM);
        fputs("</ul>\n", page->out);
    }
    int before = plots_begin(page, 2);
    write_figure(page, false);
    write_figure(page, true);
    plots_end(page, before);
    if (any_snapshot(page)) {
        html_table_begin(page->out, headers, sizeof headers / sizeof headers[0]);
        for (int i = 0; i < page->nruns; i++) {
            write_row(page, i);
        }
        html_table_end(page->out);
    }
    section_end(page);
}

int contraction_write(report_page *page) {
    const char **labels = calloc((size_t)page->nruns + 2, sizeof *labels);
    if (labels == NULL) {
        return failure("report: out of memory");
    }
    for (int i = 0; i < page->nruns; i++) {
        labels[i] = page->labels[i];
    }
    labels[page->nruns] = BOUND_TOPK;
    labels[page->nruns + 1] = BOUND_RANDOM;
    const picture caught = {.name = "snapshots",
                            .x = "step",
                            .y = CAUGHT,
                            .key = "top right maxrows 2 width 10",
                            .labels = labels,
                            .nlabels = page->nruns + 2,
                            .add = add_caught};
    int status = picture_write(page, &caught);
    free(labels);
    return status;
}
