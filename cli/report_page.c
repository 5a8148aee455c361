/* report_page.c - the frame of the page, its style sheet, sections, legends and figures */
#include "report_page.h"

#include <stdarg.h>
#include <stdlib.h>

#include "errors.h"
#include "report_gnuplot.h"
#include "report_html.h"
#include "report_svg.h"
#include "thinwire.h"

#define REASON_SIZE 256
#define CAPTION_SIZE 1024

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

/* ---- Sections and legends ------------------------------------------------------------------- */

void section_begin(report_page *page, const char *id, const char *title, const char *text) {
    fprintf(page->out, "<section id=\"%s\">\n<h2>%s</h2>\n<p>%s</p>\n", id, title, text);
}

void section_end(report_page *page) {
    fputs("</section>\n", page->out);
}

void row_begin(const report_page *page, int i) {
    fprintf(page->out,
            "<tr><th scope=\"row\"><span class=\"name\"><i style=\"background:var(--%s)\"></i>"
            "<span>",
            color_name((int)page->styles[i].line));
    html_text(page->out, page->labels[i]);
    fputs("</span></span></th>", page->out);
}

void legend_item(report_page *page, color mark, const char *style, const char *text) {
    bool is_block = style[0] == 'b';
    fprintf(page->out, "<li><i class=\"%s\" style=\"%s:var(--%s)\"></i><span>", style,
            is_block ? "background" : "border-color", color_name((int)mark));
    html_text(page->out, text);
    fputs("</span></li>", page->out);
}

void legend_write(report_page *page, bool (*shows)(const run_log *run)) {
    if (!page->has_gnuplot)
        return;
    fputs("<ul class=\"legend\">", page->out);
    for (int i = 0; i < page->nruns; i++) {
        if (shows == NULL || shows(&page->runs[i])) {
            legend_item(page, page->styles[i].line, page->styles[i].dash > 0 ? "dashed" : "solid",
                        page->labels[i]);
        }
    }
    fputs("</ul>\n", page->out);
}

/* ---- Figures -------------------------------------------------------------------------------- */

int plots_begin(report_page *page, int across) {
    static const char *const names[] = {"one", "two", "three"};
    fprintf(page->out, "<div class=\"plots %s\">\n", names[across - 1]);
    return page->nplots + page->nfailed;
}

void plots_end(report_page *page, int before) {
    fputs("</div>\n", page->out);
    if (page->nplots + page->nfailed == before) {
        fprintf(page->out, "<p class=\"soft\">%s</p>\n",
                page->has_gnuplot ? "The logs hold nothing to plot here."
                                  : "The plots of this section need gnuplot.");
    }
}

bool figure_begin(report_page *page, plot *drawing, int height, const char *x, const char *y) {
    if (!page->has_gnuplot)
        return false;
    if (!plot_begin(drawing, PLOT_WIDTH, height, x, y)) {
        plot_end(drawing);
        page->nfailed++;
        return false;
    }
    return true;
}

/* The plot, or in its place why there is none. */
static void draw(report_page *page, plot *drawing, const char *title) {
    char reason[REASON_SIZE] = "out of memory";
    char *svg = NULL;
    const svg_settings settings = {.width = drawing->width,
                                   .height = drawing->height,
                                   .description = title,
                                   .labels = (const char *const *)page->labels,
                                   .nlabels = page->nruns};
    const char *script = plot_script(drawing);
    if (script != NULL)
        gnuplot_run(script, &svg, reason, sizeof reason);
    if (svg != NULL) {
        svg_write(page->out, svg, &settings);
        page->nplots++;
    } else {
        fputs("<p>This plot could not be drawn: ", page->out);
        html_text(page->out, reason);
        fputs("</p>\n", page->out);
        page->nfailed++;
        (void)failure("report: warning: a plot could not be drawn: %s", reason);
    }
    free(svg);
}

bool figure_draw(report_page *page, plot *drawing, const char *title) {
    bool worth_it = !plot_is_empty(drawing);
    if (worth_it) {
        fputs("<figure>\n", page->out);
        draw(page, drawing, title);
    }
    plot_end(drawing);
    return worth_it;
}

void figure_caption(report_page *page, const char *title, const char *caption) {
    fputs("<figcaption><strong>", page->out);
    html_text(page->out, title);
    fprintf(page->out, "</strong> %s</figcaption>\n</figure>\n", caption);
}

void figure_end(report_page *page, plot *drawing, const char *title, const char *caption, ...) {
    char text[CAPTION_SIZE];
    va_list arguments;
    va_start(arguments, caption);
    vsnprintf(text, sizeof text, caption, arguments);
    va_end(arguments);
    if (figure_draw(page, drawing, title))
        figure_caption(page, title, text);
}

/* ---- The page ------------------------------------------------------------------------------- */

static void write_head(report_page *page) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          page->out);
    html_text(page->out, page->title);
    fputs("</title>\n<style>\n", page->out);
    colors_write_css(page->out);
    fputs(style_sheet, page->out);
    fputs("</style>\n</head>\n<body>\n<main>\n", page->out);
}

int page_write(report_page *page) {
    page->has_gnuplot = gnuplot_available();
    page->window = series_window(page->runs, page->nruns);
    page->bin = series_bin(page->runs, page->nruns);
    write_head(page);
    section_summary(page);
    section_convergence(page);
    section_breakdown(page);
    section_traffic(page);
    section_contraction(page);
    section_histograms(page);
    fprintf(page->out,
            "<footer>Made by thinwire %s from %d run log%s. Bytes are decimal (1 kB = 1000 B). "
            "Colours follow your browser's choice of light or dark.</footer>\n"
            "</main>\n</body>\n</html>\n",
            tw_version(), page->nruns, page->nruns == 1 ? "" : "s");
    return ferror(page->out) ? failure("report: out of memory for the page") : STATUS_OK;
}
