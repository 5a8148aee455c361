/* breakdown.c - where the time of an iteration goes: stacked bars and the same as a table
 *
 * Two bars a run. The upper one adds up to the iteration: data, forward, backward, communication
 * that the backward pass did not hide, optimiser, and what no part accounts for. The lower one is
 * the work of the exchange itself, hidden or not: select, wait for the slowest rank, exchange,
 * apply.
 */
#include "report/page.h"

#include <math.h>

#include "cli.h"
#include "report/series.h"

#define NOWHERE ((size_t)-1) /* of what is left over */
#define MILLISECONDS 1e3

/* Heights in the plot, from the top of a run's row. */
#define ROW 54.0
#define NAME_AT 12.0
#define UPPER_FROM 22.0
#define UPPER_TO 38.0
#define LOWER_FROM 40.0
#define LOWER_TO 49.0

typedef struct part {
    const char *name;
    const char *header; /* of the table: HTML */
    size_t offset;      /* in run_step, or NOWHERE */
    color fill;
    bool behind; /* on the lower bar */
} part;

static const part parts[] = {
    {"data", "data", offsetof(run_step, data_s), COLOR_DATA, false},
    {"forward", "forward", offsetof(run_step, forward_s), COLOR_FORWARD, false},
    {"backward", "backward", offsetof(run_step, backward_s), COLOR_BACKWARD, false},
    {"exposed communication", "exposed<br>comm.", offsetof(run_step, exposed_s), COLOR_EXPOSED,
     false},
    {"optimiser", "optimiser", offsetof(run_step, optimiser_s), COLOR_OPTIMISER, false},
    {"other", "other", NOWHERE, COLOR_OTHER, false},
    {"select", "select", offsetof(run_step, select_s), COLOR_SELECT, true},
    {"wait for the slowest", "wait for<br>slowest", offsetof(run_step, wait_s), COLOR_WAIT, true},
    {"exchange", "exchange", offsetof(run_step, exchange_s), COLOR_EXCHANGE, true},
    {"apply", "apply", offsetof(run_step, apply_s), COLOR_APPLY, true},
};

#define PARTS COUNT_OF(parts)

/* Mean milliseconds of each part of a run's steps. */
static void measure(const run_log *run, double ms[PARTS]) {
    double rest = series_mean(run, offsetof(run_step, time_s)) * MILLISECONDS;
    for (int p = 0; p < PARTS; p++) {
        /* What is left over comes after all that is subtracted from it. */
        double mean = parts[p].offset == NOWHERE ? fmax(rest, 0.0)
                                                 : series_mean(run, parts[p].offset) * MILLISECONDS;
        ms[p] = isnan(mean) ? 0.0 : mean;
        rest -= parts[p].behind ? 0.0 : ms[p];
    }
}

/* Boxes of part p: one for each run, where the parts before it on the same bar end. */
static void add_boxes(plot *drawing, double ms[][PARTS], int nruns, int p) {
    plot_box boxes[MAX_RUNS];
    bool behind = parts[p].behind;
    for (int i = 0; i < nruns; i++) {
        double low = 0.0;
        for (int q = 0; q < p; q++)
            low += parts[q].behind == behind ? ms[i][q] : 0.0;
        boxes[i] = (plot_box){.low = low,
                              .high = low + ms[i][p],
                              .bottom = i * ROW + (behind ? LOWER_FROM : UPPER_FROM),
                              .top = i * ROW + (behind ? LOWER_TO : UPPER_TO)};
    }
    plot_boxes(drawing, boxes, nruns, parts[p].fill);
}

static void write_bars(report_page *page, double ms[][PARTS]) {
    plot drawing;
    int height = (int)(page->nruns * ROW) + 52;
    if (!page_figure_begin(page, &drawing, height, "mean time of an iteration, ms", ""))
        return;
    plot_set(&drawing, "set tmargin at screen %g", 1.0 - 4.0 / height);
    plot_set(&drawing, "set lmargin at screen 0.025");
    plot_set(&drawing, "unset ytics; set grid xtics");
    plot_set(&drawing, "set xrange [0:*]; set yrange [%g:0]", page->nruns * ROW);
    for (int p = 0; p < PARTS; p++)
        add_boxes(&drawing, ms, page->nruns, p);
    for (int i = 0; i < page->nruns; i++)
        plot_label(&drawing, i, i * ROW + NAME_AT);
    static const char title[] = "Breakdown of an iteration";
    if (page_figure_draw(page, &drawing, title))
        page_figure_caption(
            page, title,
            "Upper bar: what the iteration waits for, from data to optimiser. Lower, thinner bar: "
            "work of the exchange, in the background, hidden or not. Look at the exposed "
            "communication: it is all that a better exchange can still save.");
}

static void write_table(report_page *page, double ms[][PARTS]) {
    const char *headers[PARTS + 2] = {"mean ms<br>per step", "whole<br>iteration"};
    for (int p = 0; p < PARTS; p++)
        headers[p + 2] = parts[p].header;
    html_table_begin(page->out, headers, PARTS + 2);
    for (int i = 0; i < page->nruns; i++) {
        page_row_begin(page, i);
        html_cell(page->out, HTML_REAL3,
                  series_mean(&page->runs[i], offsetof(run_step, time_s)) * MILLISECONDS);
        for (int p = 0; p < PARTS; p++)
            html_cell(page->out, HTML_REAL3, page->runs[i].nsteps > 0 ? ms[i][p] : NAN);
        fputs("</tr>\n", page->out);
    }
    html_table_end(page->out);
}

static void write_legend(report_page *page, bool behind) {
    fprintf(page->out, LEGEND_BEGIN "<li><strong>%s</strong></li>",
            behind ? "background" : "iteration");
    for (int p = 0; p < PARTS; p++)
        if (parts[p].behind == behind)
            page_legend_item(page, parts[p].fill, "block", parts[p].name);
    fputs(LEGEND_END, page->out);
}

void breakdown_section(report_page *page) {
    page_section_begin(
        page, "breakdown", "Where the time goes",
        "Means over all steps. Gradients are exchanged in the background: what of it "
        "falls into the backward pass is hidden, the rest is exposed.");
    double ms[MAX_RUNS][PARTS] = {{0}};
    for (int i = 0; i < page->nruns; i++)
        measure(&page->runs[i], ms[i]);
    if (page->has_gnuplot) {
        write_legend(page, false);
        write_legend(page, true);
    }
    int before = page_plots_begin(page, 1);
    write_bars(page, ms);
    page_plots_end(page, before);
    write_table(page, ms);
}
