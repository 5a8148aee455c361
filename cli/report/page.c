/* page.c - the frame of the page, its style sheet, sections, legends and figures; pictures */
#include "report/page.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>

#include "cli.h"

#define REASON_SIZE 256

static const char style_sheet[] =
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;"
    "-webkit-text-size-adjust:100%}\n"
    "main{max-width:1200px;margin:0 auto;padding:1.5rem 1rem 3rem}\n"
    "h1{font-size:1.8rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere}\n"
    "h2{font-size:1.3rem;line-height:1.3;margin:0 0 .25rem}\n"
    "p{margin:.25rem 0 .75rem;max-width:46rem;overflow-wrap:anywhere}\n"
    ".soft,figcaption{color:var(--soft)}\n"
    "section{margin-top:2.5rem;padding-top:1.5rem;border-top:1px solid var(--grid)}\n"
    ".notice{border-left:4px solid var(--run4);background:var(--panel);padding:.5rem .75rem}\n"
    ".plots{display:grid;gap:1rem;margin:1rem 0}\n"
    "@media (min-width:760px){.two,.three{grid-template-columns:repeat(2,minmax(0,1fr))}}\n"
    "@media (min-width:1060px){.three{grid-template-columns:repeat(3,minmax(0,1fr))}}\n"
    ".one{max-width:32rem}.two{max-width:64rem}\n"
    "figure{margin:0;min-width:0;background:var(--panel);border:1px solid var(--grid);"
    "border-radius:10px;padding:.75rem;break-inside:avoid}\n"
    "figure strong{display:block;color:var(--ink);overflow-wrap:anywhere}\n"
    "figcaption{font-size:.875rem;line-height:1.4;margin-top:.5rem}\n"
    "svg{display:block;width:100%;height:auto}\n"
    "svg text{font-family:inherit;font-variant-numeric:tabular-nums}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:.5rem 0;"
    "padding:0;font-size:.9rem}\n"
    ".legend li{display:flex;align-items:center;gap:.45rem;overflow-wrap:anywhere}\n"
    ".legend i{flex:none;width:1.5rem;border-top:3px solid}\n"
    ".legend .dashed{border-top-style:dashed}\n"
    ".legend .dotted{border-top-style:dotted}\n"
    ".legend .block{width:.9rem;height:.9rem;border:0;border-radius:3px}\n"
    ".table{overflow-x:auto;margin:1rem 0;border:1px solid var(--grid);border-radius:10px}\n"
    "table{border-collapse:separate;border-spacing:0;width:100%;font-size:.9rem;"
    "font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.45rem .65rem;text-align:right;white-space:nowrap}\n"
    "thead th{background:var(--panel);color:var(--soft);font-weight:600;vertical-align:bottom;"
    "line-height:1.25}\n"
    "tbody th,tbody td{border-top:1px solid var(--grid)}\n"
    "th:first-child{text-align:left;position:sticky;left:0;background:var(--page);"
    "}\n"
    "thead th:first-child{background:var(--panel)}\n"
    ".name{display:inline-flex;align-items:center;gap:.45rem;max-width:min(14rem,40vw);"
    "white-space:normal}\n"
    ".name span{min-width:0;overflow-wrap:break-word}\n"
    ".name i{flex:none;width:.7rem;height:.7rem;border-radius:3px}\n"
    "small{font-weight:400;color:var(--soft)}\n"
    "summary{cursor:pointer;color:var(--soft)}\n"
    "footer{margin-top:2.5rem;font-size:.875rem;color:var(--soft)}\n";

void page_section_begin(report_page *page, const char *id, const char *title, const char *text) {
    fprintf(page->out, "<section id=\"%s\">\n<h2>%s</h2>\n<p>%s</p>\n", id, title, text);
}

void page_row_begin(const report_page *page, int i) {
    fprintf(page->out,
            "<tr><th scope=\"row\"><span class=\"name\"><i style=\"background:var(--%s)\"></i>"
            "<span>",
            color_name((int)page->styles[i].line));
    html_text(page->out, page->labels[i]);
    fputs("</span></span></th>", page->out);
}

void page_legend_item(report_page *page, color mark, const char *style, const char *text) {
    bool is_block = style[0] == 'b';
    fprintf(page->out, "<li><i class=\"%s\" style=\"%s:var(--%s)\"></i><span>", style,
            is_block ? "background" : "border-color", color_name((int)mark));
    html_text(page->out, text);
    fputs("</span></li>", page->out);
}

void page_legend(report_page *page, bool (*shows)(const run_log *run)) {
    if (!page->has_gnuplot)
        return;
    fputs(LEGEND_BEGIN, page->out);
    for (int i = 0; i < page->nruns; i++) {
        if (shows == NULL || shows(&page->runs[i])) {
            page_legend_item(page, page->styles[i].line,
                             page->styles[i].dash > 0 ? "dashed" : "solid", page->labels[i]);
        }
    }
    fputs(LEGEND_END, page->out);
}

int page_plots_begin(report_page *page, int across) {
    static const char *const names[] = {"one", "two", "three"};
    assert(across >= 1 && across <= COUNT_OF(names));
    fprintf(page->out, "<div class=\"plots %s\">\n", names[across - 1]);
    return page->nplots + page->nfailed;
}

void page_plots_end(report_page *page, int before) {
    fputs("</div>\n", page->out);
    if (page->nplots + page->nfailed == before) {
        fprintf(page->out, "<p class=\"soft\">%s</p>\n",
                page->has_gnuplot ? "The logs hold nothing to plot here."
                                  : "The plots of this section need gnuplot.");
    }
}

bool page_figure_begin(report_page *page, plot *drawing, int height, const char *x, const char *y) {
    if (!page->has_gnuplot)
        return false;
    if (!plot_begin(drawing, PLOT_WIDTH, height, x, y)) {
        plot_end(drawing);
        page->nfailed++;
        return false;
    }
    return true;
}

bool page_figure_draw(report_page *page, plot *drawing, const char *title) {
    char reason[REASON_SIZE];
    const svg_settings settings = {
        .description = title, .labels = (const char *const *)page->labels, .nlabels = page->nruns};
    bool worth_it = drawing->nseries > 0;
    if (worth_it)
        fputs("<figure>\n", page->out);
    if (worth_it && plot_draw(drawing, page->out, settings, reason, sizeof reason)) {
        page->nplots++;
    } else if (worth_it) {
        fputs("<p>This plot could not be drawn: ", page->out);
        html_text(page->out, reason);
        fputs("</p>\n", page->out);
        page->nfailed++;
        (void)error_report("report: warning: a plot could not be drawn: %s", reason);
    }
    plot_end(drawing);
    return worth_it;
}

void page_figure_caption(report_page *page, const char *title, const char *caption, ...) {
    fputs("<figcaption><strong>", page->out);
    html_text(page->out, title);
    fputs("</strong> ", page->out);
    va_list arguments;
    va_start(arguments, caption);
    vfprintf(page->out, caption, arguments);
    va_end(arguments);
    fputs("</figcaption>\n</figure>\n", page->out);
}

int page_write(report_page *page) {
    static void (*const sections[])(report_page * page) = {convergence_section, breakdown_section,
                                                           traffic_section, contraction_section,
                                                           histograms_section};
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          page->out);
    html_text(page->out, page->title);
    fputs("</title>\n<style>\n", page->out);
    color_write_css(page->out);
    fputs(style_sheet, page->out);
    fputs("</style>\n</head>\n<body>\n<main>\n", page->out);
    summary_section(page);
    for (int i = 0; i < COUNT_OF(sections); i++) {
        sections[i](page);
        fputs("</section>\n", page->out);
        if (sections[i] == convergence_section)
            members_section(page);
    }
    fprintf(page->out,
            "<footer>Made by thinwire %s from %d run log%s. Bytes are decimal (1 kB = 1000 B). "
            "Colours follow your browser's choice of light or dark.</footer>\n"
            "</main>\n</body>\n</html>\n",
            tw_version(), page->nruns, page->nruns == 1 ? "" : "s");
    return ferror(page->out) ? error_report("report: out of memory for the page") : STATUS_OK;
}

int page_picture_write(report_page *page, const page_picture *what) {
    plot drawing;
    char reason[REASON_SIZE];
    int status = STATUS_OK;
    if (!page->has_gnuplot)
        return error_report("report: plots need gnuplot; install gnuplot-nox");
    const svg_settings settings = {
        .description = page->title,
        .labels = what->labels != NULL ? what->labels : (const char *const *)page->labels,
        .nlabels = what->labels != NULL ? what->nlabels : page->nruns,
        .is_file = true};
    if (plot_begin(&drawing, PLOT_FILE_WIDTH, PLOT_FILE_HEIGHT, what->x, what->y)) {
        plot_key(&drawing, settings.labels, settings.nlabels);
        what->add(page, &drawing);
        if (drawing.nseries == 0) {
            status =
                error_report("report: the logs hold no %s to draw; %s", what->name, what->hint);
        } else if (!plot_draw(&drawing, page->out, settings, reason, sizeof reason)) {
            status = error_report("report: the %s could not be drawn: %s", what->name, reason);
        }
        page->nplots++;
    } else {
        status = error_report("report: out of memory");
    }
    plot_end(&drawing);
    return status;
}
