/* summary.c - the head of the page: what ran, what was cut off, one row per run */
#include "report/page.h"

#include <math.h>
#include <string.h>

#include "cli.h"
#include "report/series.h"

/* Whether all runs agree on a text. */
static bool all_same(const report_page *page, size_t offset) {
    const char *first = *(char *const *)((const char *)&page->runs[0] + offset);
    for (int i = 1; i < page->nruns; i++)
        if (strcmp(first, *(char *const *)((const char *)&page->runs[i] + offset)) != 0)
            return false;
    return true;
}

/* "cnn (93,322 parameters) on fashion-mnist", where that holds for all. */
static void write_subject(report_page *page) {
    const run_log *first = &page->runs[0];
    fprintf(page->out, "<p class=\"soft\">%d run%s", page->nruns, page->nruns == 1 ? "" : "s");
    if (all_same(page, offsetof(run_log, model)) && first->model[0] != '\0') {
        fputs(" of ", page->out);
        html_text(page->out, first->model);
        if (isfinite(first->parameters)) {
            fputs(" (", page->out);
            html_count(page->out, first->parameters);
            fputs(" parameters)", page->out);
        }
    }
    if (all_same(page, offsetof(run_log, data)) && first->data[0] != '\0') {
        fputs(" on ", page->out);
        html_text(page->out, first->data);
    }
    fputs(": how well they learn, what they send, and where the time goes.</p>\n", page->out);
}

static void write_notices(report_page *page) {
    for (int i = 0; i < page->nruns; i++) {
        const run_log *run = &page->runs[i];
        if (run->has_end && !(run->end_skipped > 0))
            continue;
        fputs("<p class=\"notice\"><strong>", page->out);
        html_text(page->out, page->labels[i]);
        if (run->has_end) {
            fputs("</strong> skipped ", page->out);
            html_count(page->out, run->end_skipped);
            fputs(" steps because of NaN or infinity.</p>\n", page->out);
            continue;
        }
        fputs("</strong> did not run to its end: the log stops after ", page->out);
        html_count(page->out, series_steps(run));
        if (isfinite(run->planned_steps)) {
            fputs(" of ", page->out);
            html_count(page->out, run->planned_steps);
        }
        fprintf(page->out, " steps%s. What is there is shown.</p>\n",
                run->half_line ? ", in the middle of a line" : "");
    }
    for (int i = 0; i < page->nruns; i++) {
        double missing = series_missing(&page->runs[i]);
        if (missing > 0.0) {
            fputs("<p class=\"notice\"><strong>", page->out);
            html_text(page->out, page->labels[i]);
            fputs("</strong> lacks ", page->out);
            html_count(page->out, missing);
            fputs(" lines of steps. A line after a gap stands for the steps in it.</p>\n",
                  page->out);
        }
    }
    if (!page->has_gnuplot) {
        fputs(
            "<p class=\"notice\">The plots are missing: gnuplot draws them, and it was not found. "
            "Install the package <code>gnuplot-nox</code> (Debian, Ubuntu) or "
            "<code>gnuplot</code> and make the report again.</p>\n",
            page->out);
    }
}

static void write_saved(FILE *out, const run_log *run, double sent) {
    double dense = series_dense_bytes(run);
    if (series_is_dense(run)) {
        html_cell_text(out, "baseline");
    } else if (dense > 0 && sent > 0 && dense / sent >= 1.005) {
        fprintf(out, "<td>%.1f %% <small>(%.*f&times; less)</small></td>",
                100.0 * (1.0 - sent / dense), dense / sent < 10 ? 1 : 0, dense / sent);
    } else {
        html_cell(out, HTML_PERCENT, dense > 0 ? 1.0 - sent / dense : NAN);
    }
}

/* The accuracy, with its distance from that of the first dense run. */
static void write_accuracy(const report_page *page, const run_log *run) {
    double accuracy = series_last_accuracy(run), dense = NAN;
    for (int i = 0; i < page->nruns && isnan(dense); i++)
        dense = series_is_dense(&page->runs[i]) ? series_last_accuracy(&page->runs[i]) : NAN;
    double points = 100.0 * (accuracy - dense);
    if (series_is_dense(run) || !isfinite(points)) {
        html_cell(page->out, HTML_PERCENT, accuracy);
    } else {
        fprintf(page->out, "<td>%.1f %% <small>(", 100.0 * accuracy);
        fprintf(page->out, fabs(points) < 0.05 ? "&plusmn;0.0" : "%+.1f", points);
        fputs(")</small></td>", page->out);
    }
}

static void write_run(const report_page *page, int i) {
    const run_log *run = &page->runs[i];
    FILE *out = page->out;
    double sent = series_mean(run, offsetof(run_step, sent));
    page_row_begin(page, i);
    html_cell_text(out, run->scheme);
    html_cell(out, HTML_COUNT, run->nranks);
    html_cell(out, HTML_GENERAL, series_is_dense(run) ? 1.0 : run->density);
    html_cell(out, HTML_REAL4, series_last(run, offsetof(run_step, loss), page->window));
    write_accuracy(page, run);
    html_cell(out, HTML_BYTES, sent);
    html_cell(out, HTML_BYTES, series_mean(run, offsetof(run_step, control)));
    write_saved(out, run, sent);
    html_cell(out, HTML_SECONDS, series_seconds(run));
    html_cell(out, HTML_SECONDS, series_mean(run, offsetof(run_step, time_s)));
    fputs("</tr>\n", out);
}

static void write_settings(const report_page *page, int i) {
    const run_log *run = &page->runs[i];
    FILE *out = page->out;
    page_row_begin(page, i);
    html_cell_text(out, run->model);
    html_cell(out, HTML_COUNT, run->parameters);
    html_cell_text(out, run->data);
    html_cell_text(out, run->select);
    html_cell_text(out, run->exchange);
    html_cell_text(out, run->transport);
    html_cell(out, HTML_COUNT, run->batch);
    html_cell(out, HTML_COUNT, series_steps(run));
    html_cell_text(out, run->optimizer);
    html_cell(out, HTML_GENERAL, run->lr);
    html_cell(out, HTML_GENERAL, run->momentum);
    html_cell(out, HTML_GENERAL, run->weight_decay);
    html_cell(out, HTML_COUNT, run->local_steps);
    html_cell(out, HTML_COUNT, run->seed);
    html_cell_text(out, run->path);
    fputs("</tr>\n", out);
}

/* What the columns hold. */
static void write_definitions(report_page *page) {
    FILE *out = page->out;
    double gap = series_gap(page->runs, page->nruns);
    fputs("<p class=\"soft\">Final loss: training loss, ", out);
    if (page->window > 1)
        fprintf(out, "mean of the last %.0f steps", page->window);
    else
        fputs("that of the last step", out);
    fputs(". Sent: payload (entries) and control (counts, agreement), mean over all steps, those "
          "of a density warm-up included. Dense: 2n(P&minus;1)/P words of 4 bytes per step and "
          "rank.",
          out);
    if (gap > 1) {
        fprintf(out,
                " Not all steps are logged, of some runs one in %.0f: each stands for those since "
                "the one before.",
                gap);
    }
    fputs("</p>\n", out);
}

void summary_section(report_page *page) {
    static const char *const headers[] = {"run",
                                          "scheme",
                                          "ranks",
                                          "density",
                                          "final loss",
                                          "test accuracy<br><small>(points from dense)</small>",
                                          "sent per step<br>by rank 0",
                                          "of it<br>control",
                                          "saved against<br>dense",
                                          "time",
                                          "time per<br>step"};
    static const char *const settings[] = {
        "run",          "model",       "parameters", "data",      "selection",     "exchange",
        "transport",    "batch",       "steps",      "optimizer", "learning rate", "momentum",
        "weight decay", "local steps", "seed",       "log"};
    FILE *out = page->out;
    fputs("<h1>", out);
    html_text(out, page->title);
    fputs("</h1>\n", out);
    write_subject(page);
    write_notices(page);
    html_table_begin(out, headers, COUNT_OF(headers));
    for (int i = 0; i < page->nruns; i++)
        write_run(page, i);
    html_table_end(out);
    write_definitions(page);
    fputs("<details><summary>Settings of the runs</summary>\n", out);
    html_table_begin(out, settings, COUNT_OF(settings));
    for (int i = 0; i < page->nruns; i++)
        write_settings(page, i);
    html_table_end(out);
    fputs("</details>\n", out);
}
