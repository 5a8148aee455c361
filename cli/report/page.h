/* page.h - the page of `thinwire report` under way, and its sections in reading order
 *
 * One HTML file that needs nothing else: no scripts, no fonts, no pictures from elsewhere. Sections
 * write to page->out; figures draw their plot at once and put it inline. Without gnuplot no figure
 * begins and the tables remain.
 */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "report/plot.h"
#include "report/run_log.h"
#include "report/series.h"

#define MAX_RUNS 64

typedef struct report_page {
    FILE *out;
    const run_log *runs; /* [nruns] */
    int nruns;
    char **labels;      /* [nruns] names, made unique */
    plot_style *styles; /* [nruns] the line of each run in all plots */
    const char *title;
    bool has_gnuplot;
    int nplots;       /* drawn */
    int nfailed;      /* could not be drawn */
    double window;    /* steps that a loss is smoothed over */
    double bin;       /* steps that a point of other curves stands for */
    series_axis axis; /* of a picture of loss or accuracy */
} report_page;

/* Write the whole page. Returns STATUS_OK, or prints why not and returns another status. */
int page_write(report_page *page);

/* Write one plot alone as an SVG file: loss, accuracy, what is caught, histograms of the one run.
 * Return as page_write does. */
int convergence_write_loss(report_page *page);
int convergence_write_accuracy(report_page *page);
int contraction_write(report_page *page);
int histograms_write(report_page *page);

/* ---- For the sections */

void page_section_begin(report_page *page, const char *id, const char *title, const char *text);

/* Begin the row of run i in a table: its name and colour. */
void page_row_begin(const report_page *page, int i);

/* Which line is which run, of those for which shows is true, or of all if it is NULL; nothing where
 * there are no lines. */
void page_legend(report_page *page, bool (*shows)(const run_log *run));

/* A legend of its own: its entries stand between LEGEND_BEGIN and LEGEND_END. */
#define LEGEND_BEGIN "<ul class=\"legend\">"
#define LEGEND_END "</ul>\n"
void page_legend_item(report_page *page, color mark, const char *style, const char *text);

/* Figures stand between page_plots_begin and page_plots_end, `across` of them in a row on a wide
 * screen. page_plots_end says in the page if none was drawn since. */
int page_plots_begin(report_page *page, int across);
void page_plots_end(report_page *page, int before);

/* Begin a figure's plot. Returns false if it cannot be drawn: then it has no end either. */
bool page_figure_begin(report_page *page, plot *drawing, int height, const char *x, const char *y);

/* Draw it and free the plot. Returns false for a figure without a line, which is left out and has
 * no caption either. */
bool page_figure_draw(report_page *page, plot *drawing, const char *title);

/* End the figure. The title is text and gets escaped; the caption, format and all, is HTML. */
void page_figure_caption(report_page *page, const char *title, const char *caption, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- The sections: page_write closes what each begins */

void summary_section(report_page *page);
void convergence_section(report_page *page);
void members_section(report_page *page); /* a whole section, or nothing */
void breakdown_section(report_page *page);
void traffic_section(report_page *page);
void contraction_section(report_page *page);
void histograms_section(report_page *page);

/* ---- Pictures */

/* One plot of the page as an SVG file, for documents: larger, with the names of its lines in it and
 * nothing around it. */
typedef struct page_picture {
    const char *name;          /* for the error when there is nothing of it */
    const char *hint;          /* after it: how a run gets some, or why it has none */
    const char *x, *y;         /* what the axes show */
    const char *const *labels; /* [nlabels]; NULL: the page's */
    int nlabels;
    void (*add)(const report_page *page, plot *drawing);
} page_picture;

/* Draw it to page->out. Returns STATUS_OK, or prints why not and returns another status. */
int page_picture_write(report_page *page, const page_picture *what);

/* ---- html.c: pieces of HTML */

/* text as the content of an element or an attribute. */
void html_text(FILE *out, const char *text);

/* The same, cut to `columns` characters of UTF-8 with an ellipsis. */
void html_text_cut(FILE *out, const char *text, int columns);

typedef enum html_number {
    HTML_COUNT, /* 93,322 */
    HTML_REAL3,
    HTML_REAL4,   /* decimals */
    HTML_GENERAL, /* 4 significant digits */
    HTML_PERCENT, /* 0.86: 86.0 % */
    HTML_BYTES,   /* 12.3 kB */
    HTML_SECONDS, /* 9.9 s, 12.3 ms */
} html_number;

/* Table cells: opened, filled and closed. NaN and no text become a dash. */
void html_cell(FILE *out, html_number form, double value);
void html_cell_text(FILE *out, const char *text);

/* value as 93,322 into the open element. */
void html_count(FILE *out, double value);

/* A table that scrolls sideways where it is too wide; headers[nheaders]. */
void html_table_begin(FILE *out, const char *const *headers, int nheaders);
void html_table_end(FILE *out);

#endif
