/* members.c - ranks that were lost, left or joined, over the steps of each elastic run
 *
 *     loss   ----.____          over the same steps
 *     ranks  ===v===  ===^===   v lost, o left, ^ joined; each mark tells more when pointed at
 *
 * Drawn here and not by gnuplot: marks need tooltips, and steps and marks are simple shapes. Where no
 * run has changed its ranks there is no section. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>

#include "report/series.h"

/* The drawing, in units of the page. */
enum { WIDTH = 800, LEFT = 46, RIGHT = 780, LOSS_TOP = 24, LOSS_BOTTOM = 104 };
enum { RANKS_TOP = 140, RANKS_BOTTOM = 230, HEIGHT = 270, MARK = 6 };

typedef enum kind { LOST, LEFT_JOB, JOINED, KINDS } kind;

static const struct {
    color color;
    const char *sign; /* of the legend: the mark as a letter */
    const char *name, *text;
} kinds[KINDS] = {
    [LOST] = {COLOR_RUN + 1, "&#9660;", "lost", "lost: killed, stopped or out of reach"},
    [LEFT_JOB] = {COLOR_RUN, "&#9675;", "left", "left, its residual handed over"},
    [JOINED] = {COLOR_RUN + 2, "&#9650;", "joined", "joined"},
};

static const char *ranks_of(const run_members *m, kind which) {
    return which == LOST ? m->lost : which == LEFT_JOB ? m->left : m->joined;
}

/* The scale of one drawing. */
typedef struct scale {
    double steps, ranks; /* the highest */
    double low, high;    /* losses */
} scale;

static double x_of(const scale *s, double step) {
    return LEFT + (RIGHT - LEFT) * fmin(1.0, step / s->steps);
}

static double y_of(const scale *s, double ranks) {
    return RANKS_BOTTOM - (RANKS_BOTTOM - RANKS_TOP) * ranks / s->ranks;
}

static scale scale_of(const run_log *run, const series *loss) {
    scale s = {.steps = fmax(1.0, run->planned_steps), .ranks = fmax(1.0, run->nranks)};
    if (run->nsteps > 0)
        s.steps = fmax(s.steps, run->steps[run->nsteps - 1].step + 1.0);
    for (int64_t i = 0; i < run->nmembers; i++) {
        s.ranks = fmax(s.ranks, run->members[i].nranks);
        s.steps = fmax(s.steps, run->members[i].step);
    }
    s.low = INFINITY;
    s.high = -INFINITY;
    for (int i = 0; i < loss->count; i++) {
        s.low = fmin(s.low, loss->y[i]);
        s.high = fmax(s.high, loss->y[i]);
    }
    return s;
}

static void write_text(FILE *out, double x, double y, const char *anchor, double value) {
    fprintf(out,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"13\" fill=\"var(--ink)\">"
            "%.3g</text>\n",
            x, y, anchor, value);
}

static void write_line(FILE *out, double x, double y, double width, color c) {
    fprintf(out, "<path stroke=\"var(--%s)\" stroke-width=\"0.75\" d=\"M%.1f %.1fh%.1f\"/>\n",
            color_name((int)c), x, y, width);
}

static void write_axes(FILE *out, const scale *s) {
    static const struct {
        double y;
        const char *text;
    } titles[] = {{LOSS_TOP - 10, "training loss"}, {RANKS_TOP - 14, "ranks"}};
    for (int i = 0; i < 2; i++)
        fprintf(out, "<text x=\"8\" y=\"%.0f\" font-size=\"13\" fill=\"var(--soft)\">%s</text>\n",
                titles[i].y, titles[i].text);
    double every = ceil(s->ranks / 4.0);
    for (int i = 0; i <= 4 && i * every <= s->ranks; i++) {
        double r = i * every;
        write_line(out, LEFT, y_of(s, r), RIGHT - LEFT, r > 0 ? COLOR_GRID : COLOR_SOFT);
        write_text(out, LEFT - 8, y_of(s, r) + 4, "end", r);
    }
    write_line(out, LEFT, LOSS_BOTTOM, RIGHT - LEFT, COLOR_GRID);
    for (int i = 0; i <= 4; i++)
        fprintf(out,
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"13\" "
                "fill=\"var(--ink)\">%.0f</text>\n",
                x_of(s, s->steps * i / 4), RANKS_BOTTOM + 18, s->steps * i / 4);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"13\" "
            "fill=\"var(--soft)\">step</text>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 4);
}

static void write_loss(FILE *out, const scale *s, const series *loss) {
    if (!(s->low < s->high))
        return;
    write_text(out, LEFT - 8, LOSS_TOP + 4, "end", s->high);
    write_text(out, LEFT - 8, LOSS_BOTTOM + 4, "end", s->low);
    fputs("<path fill=\"none\" stroke=\"var(--soft)\" stroke-width=\"1.5\" d=\"", out);
    const char *move = "M";
    for (int i = 0; i < loss->count; i++)
        if (isfinite(loss->y[i])) {
            fprintf(out, "%s%.1f %.1f", move, x_of(s, loss->x[i]),
                    LOSS_BOTTOM -
                        (LOSS_BOTTOM - LOSS_TOP) * (loss->y[i] - s->low) / (s->high - s->low));
            move = "L";
        }
    fputs("\"/>\n", out);
}

/* How many ranks there are, step by step. */
static void write_ranks(FILE *out, const scale *s, const run_log *run) {
    double now = run->nmembers > 0 ? run->members[0].nranks_before : run->nranks;
    double last = run->nsteps > 0 ? run->steps[run->nsteps - 1].step + 1.0 : s->steps;
    fprintf(out, "<path fill=\"none\" stroke=\"var(--ink)\" stroke-width=\"2.5\" d=\"M%.1f %.1f",
            x_of(s, 0), y_of(s, now));
    for (int64_t i = 0; i < run->nmembers; i++)
        fprintf(out, "H%.1fV%.1f", x_of(s, run->members[i].step), y_of(s, run->members[i].nranks));
    fprintf(out, "H%.1f\"/>\n", x_of(s, last));
}

static void write_mark(FILE *out, double x, double y, kind which) {
    const char *c = color_name((int)kinds[which].color);
    if (which == LEFT_JOB)
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"var(--panel)\" "
                "stroke=\"var(--%s)\" stroke-width=\"3\"/>",
                x, y, MARK - 1, c);
    else
        fprintf(out, "<path fill=\"var(--%s)\" d=\"M%.1f %.1fl%d %dh%dz\"/>", c, x,
                which == LOST ? y + MARK : y - MARK, MARK + 1, which == LOST ? -2 * MARK : 2 * MARK,
                -2 * (MARK + 1));
}

/* What happened, in words: of the mark, and of its row. */
static void write_words(FILE *out, const run_members *m) {
    fprintf(out, "step %.0f:", m->step);
    for (int k = 0; k < KINDS; k++)
        if (ranks_of(m, (kind)k)[0] != '\0')
            fprintf(out, " rank %s %s;", ranks_of(m, (kind)k), kinds[k].name);
    fprintf(out, " %.0f go on after %.3g s", m->nranks, m->seconds);
}

static void write_marks(FILE *out, const scale *s, const run_log *run) {
    for (int64_t i = 0; i < run->nmembers; i++) {
        const run_members *m = &run->members[i];
        double x = x_of(s, m->step), y = y_of(s, m->nranks);
        fputs("<g><title>", out);
        write_words(out, m);
        fprintf(out,
                "</title><path stroke=\"var(--soft)\" stroke-dasharray=\"2 3\" d=\"M%.1f %dV%d\"/>"
                "<rect x=\"%.1f\" y=\"%d\" width=\"8\" height=\"%d\" fill=\"transparent\"/>",
                x, LOSS_TOP, RANKS_BOTTOM, x - 4, LOSS_TOP, RANKS_BOTTOM - LOSS_TOP);
        for (int k = 0; k < KINDS; k++)
            if (ranks_of(m, (kind)k)[0] != '\0') {
                write_mark(out, x, y, (kind)k);
                y -= 2 * MARK + 3;
            }
        fputs("</g>\n", out);
    }
}

static void write_figure(report_page *page, int i) {
    const run_log *run = &page->runs[i];
    FILE *out = page->out;
    series loss;
    series_loss(&loss, run, AXIS_STEP, page->window);
    scale s = scale_of(run, &loss);
    fprintf(out,
            "<figure>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-label=\"Ranks of ",
            WIDTH, HEIGHT);
    html_text(out, page->labels[i]);
    fputs(" over steps\">\n", out);
    write_axes(out, &s);
    write_loss(out, &s, &loss);
    write_ranks(out, &s, run);
    write_marks(out, &s, run);
    fputs("</svg>\n", out);
    page_figure_caption(page, page->labels[i],
                        "Training loss above, ranks below, over the same steps. Point at a mark to "
                        "read what happened there.");
}

static void write_row(const report_page *page, int i, const run_members *m) {
    page_row_begin(page, i);
    html_cell(page->out, HTML_COUNT, m->step);
    html_cell(page->out, HTML_COUNT, m->nranks_before);
    html_cell(page->out, HTML_COUNT, m->nranks);
    for (int k = 0; k < KINDS; k++)
        html_cell_text(page->out, ranks_of(m, (kind)k));
    html_cell(page->out, HTML_SECONDS, m->seconds);
    fputs("</tr>\n", page->out);
}

/* What a table shows of a run that changes all the time. */
#define MOST_ROWS 200

static void write_table(report_page *page) {
    static const char *const headers[] = {"run",  "step", "ranks before", "ranks after",
                                          "lost", "left", "joined",       "time lost"};
    fputs("<details><summary>All changes</summary>\n", page->out);
    html_table_begin(page->out, headers, (int)(sizeof headers / sizeof headers[0]));
    for (int i = 0; i < page->nruns; i++)
        for (int64_t j = 0; j < page->runs[i].nmembers && j < MOST_ROWS; j++)
            write_row(page, i, &page->runs[i].members[j]);
    html_table_end(page->out);
    fputs("</details>\n", page->out);
}

void members_section(report_page *page) {
    bool any = false;
    for (int i = 0; i < page->nruns; i++)
        any = any || page->runs[i].nmembers > 0;
    if (!any)
        return;
    page_section_begin(page, "ranks", "Ranks",
                       "Ranks that were lost, left or joined while the others trained on.");
    fputs(LEGEND_BEGIN, page->out);
    for (int k = 0; k < KINDS; k++) {
        fprintf(page->out,
                "<li><span style=\"color:var(--%s)\" "
                "aria-hidden=\"true\">%s</span><span>%s</span></li>",
                color_name((int)kinds[k].color), kinds[k].sign, kinds[k].text);
    }
    fputs(LEGEND_END, page->out);
    fputs("<div class=\"plots\" style=\"max-width:52rem\">\n", page->out);
    for (int i = 0; i < page->nruns; i++)
        if (page->runs[i].nmembers > 0)
            write_figure(page, i);
    fputs("</div>\n", page->out);
    write_table(page);
    fputs("</section>\n", page->out);
}
