/* report.c - `thinwire report RUN... --out report.html`: one page from the logs of runs
 *
 * Reads all logs, makes the page in memory, and writes it as a whole. page.h lists the sections.
 * Other options make one plot instead.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "options.h"
#include "report/page.h"
#include "report/plot.h"
#include "report/series.h"

#define DEFAULT_OUT "report.html"
#define LINE_WIDTH 2.0
#define NOT_GIVEN (-1)

/* What can be made of logs, each with an option for its file. */
enum { PAGE, CURVES, ACCURACY, CONTRACTION, HISTOGRAMS, PRODUCTS };

static const struct {
    const char *title; /* if none is given */
    int (*write)(report_page *page);
} products[PRODUCTS] = {
    [PAGE] = {"Thinwire training report", page_write},
    [CURVES] = {"Training loss", convergence_write_loss},
    [ACCURACY] = {"Test accuracy", convergence_write_accuracy},
    [CONTRACTION] = {"What the k largest catch of the squared norm, per step", contraction_write},
    [HISTOGRAMS] = {"Histograms of gradient plus residual", histograms_write},
};

typedef struct report_settings {
    const char *files[PRODUCTS]; /* NULL: not given */
    int wanted;                  /* which product */
    const char *out;             /* its file */
    const char *title;           /* NULL: not given */
    int axis;                    /* a series_axis, or NOT_GIVEN */
    char **paths;                /* [npaths] */
    int npaths;
} report_settings;

static const char *axis_name(int position) {
    static const char *const names[] = {
        [AXIS_STEP] = "step", [AXIS_MEGABYTES] = "bytes", [AXIS_SECONDS] = "seconds"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

static int parse(report_settings *settings, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_TEXT("out", "FILE", &settings->files[PAGE],
                    "the page to write (default " DEFAULT_OUT "), or - for stdout"),
        OPTION_TEXT("curves", "FILE", &settings->files[CURVES],
                    "instead of the page write the training loss alone, as an SVG for a document"),
        OPTION_TEXT("accuracy", "FILE", &settings->files[ACCURACY],
                    "the same of the accuracy on the test data"),
        OPTION_CHOICE("axis", "AXIS", &settings->axis, axis_name,
                      "horizontal axis of --curves and --accuracy (default step)."),
        OPTION_TEXT("contraction", "FILE", &settings->files[CONTRACTION],
                    "the same of what the k largest catch of the squared norm, and both bounds"),
        OPTION_TEXT("histograms", "FILE", &settings->files[HISTOGRAMS],
                    "the same of gradient plus residual over time, of one run"),
        OPTION_TEXT("title", "TEXT", &settings->title,
                    "headline of the page; of a plot what a reader who cannot see it is told"),
    };
    return OPTIONS_PARSE(
        options, argc, argv, .command = "report", .operands = "RUN...", .paths = settings->paths,
        .npaths = &settings->npaths,
        .summary = "Make one self-contained HTML page from the logs (JSON lines) of training runs: "
                   "convergence per step, byte and second, the breakdown of an iteration, traffic, "
                   "selection, contraction against theory, histograms. gnuplot draws the plots; "
                   "without it the tables remain. A log that was cut off is shown as far as it "
                   "goes. The page is replaced as a whole or not at all.",
        .examples = "  thinwire report dense.jsonl oktopk.jsonl --out report.html\n"
                    "  thinwire report runs/*.jsonl --title 'VGG-16, 8 workers'\n"
                    "  thinwire report dense.jsonl oktopk.jsonl --curves loss.svg\n"
                    "  thinwire report dense.jsonl oktopk.jsonl --accuracy accuracy.svg\n"
                    "  thinwire report dense.jsonl oktopk.jsonl --accuracy bytes.svg --axis bytes\n"
                    "  thinwire report oktopk.jsonl --histograms histograms.svg\n");
}

/* A page in place of a log that it was made from would lose the log. */
static int refuse_own_log(const report_settings *settings) {
    struct stat out, log;
    bool exists = stat(settings->out, &out) == 0;
    for (int i = 0; i < settings->npaths && exists; i++) {
        if (stat(settings->paths[i], &log) == 0 && log.st_dev == out.st_dev &&
            log.st_ino == out.st_ino) {
            return error_usage("report: %s is one of the logs; write to another file",
                               settings->out);
        }
    }
    return STATUS_OK;
}

static int check_axis(report_settings *settings) {
    if (settings->axis == NOT_GIVEN)
        settings->axis = AXIS_STEP;
    else if (settings->wanted != CURVES && settings->wanted != ACCURACY)
        return error_usage("report: --axis is for --curves and --accuracy; the page has all three");
    return STATUS_OK;
}

/* Which product it is; fills in what was not given. */
static int settle(report_settings *settings) {
    int given = 0;
    if (settings->npaths == 0)
        return error_usage("report: give the logs of one or more runs: report RUN... --out FILE");
    if (settings->npaths > MAX_RUNS) {
        return error_usage("report: %d runs are too many for one page; give at most %d",
                           settings->npaths, MAX_RUNS);
    }
    for (int i = 0; i < PRODUCTS; i++) {
        if (settings->files[i] != NULL) {
            settings->wanted = i;
            settings->out = settings->files[i];
            given++;
        }
    }
    if (given > 1) {
        return error_usage("report: give one of --out, --curves, --accuracy, --contraction and "
                           "--histograms");
    }
    if (settings->wanted == HISTOGRAMS && settings->npaths > 1)
        return error_usage("report: --histograms shows one run over time; give one log");
    if (settings->title == NULL)
        settings->title = products[settings->wanted].title;
    int status = check_axis(settings);
    return status == STATUS_OK ? refuse_own_log(settings) : status;
}

/* The run's name, or its file's; the second of a name gets a number. */
static char *make_label(const run_log *runs, int i) {
    const char *slash = strrchr(runs[i].path, '/');
    const char *file = slash != NULL ? slash + 1 : runs[i].path;
    const char *name = runs[i].name[0] != '\0' ? runs[i].name : file;
    int earlier = 0;
    for (int j = 0; j < i; j++)
        earlier += strcmp(runs[j].name, runs[i].name) == 0;
    char *label = NULL;
    if (earlier == 0)
        return strdup(name);
    return asprintf(&label, "%s (%d)", name, earlier + 1) >= 0 ? label : NULL;
}

/* The first dense run is drawn in ink, the others in the palette, with other dashes each time that
 * it is used up. */
static void choose_styles(const run_log *runs, int nruns, plot_style *styles) {
    bool has_dense = false;
    int used = 0;
    for (int i = 0; i < nruns; i++) {
        styles[i] = (plot_style){.line = COLOR_INK, .width = LINE_WIDTH, .label = i};
        if (has_dense || !series_is_dense(&runs[i])) {
            styles[i].line = (color)(COLOR_RUN + used % RUN_COLORS);
            styles[i].dash = used / RUN_COLORS % PLOT_DASHES;
            used++;
        }
        has_dense = has_dense || series_is_dense(&runs[i]);
    }
}

static int read_runs(const report_settings *settings, run_log *runs, char **labels) {
    int status = STATUS_OK;
    for (int i = 0; i < settings->npaths && status == STATUS_OK; i++) {
        status = run_log_read(&runs[i], settings->paths[i]);
        if (status == STATUS_OK) {
            labels[i] = make_label(runs, i);
            status = labels[i] != NULL ? STATUS_OK : error_report("report: out of memory");
        }
        if (status == STATUS_OK && !runs[i].has_end) {
            (void)error_report("report: warning: %s: cut off after %.0f steps", settings->paths[i],
                               series_steps(&runs[i]));
        }
        if (status == STATUS_OK && series_missing(&runs[i]) > 0.0) {
            (void)error_report("report: warning: %s: %.0f lines of steps are missing",
                               settings->paths[i], series_missing(&runs[i]));
        }
    }
    return status;
}

static int write_file(const report_settings *settings, report_page *page) {
    char *text = NULL;
    size_t size = 0;
    page->out = open_memstream(&text, &size);
    if (page->out == NULL)
        return error_report("report: out of memory");
    int status = products[settings->wanted].write(page);
    if (fclose(page->out) != 0 && status == STATUS_OK)
        status = error_report("report: out of memory for %s", settings->out);
    if (status == STATUS_OK)
        status = plot_write_file(settings->out, text, size);
    free(text);
    if (status == STATUS_OK && !page->has_gnuplot)
        (void)error_report(
            "report: warning: no plots, since gnuplot is missing; install gnuplot-nox");
    if (status == STATUS_OK && strcmp(settings->out, "-") != 0) {
        printf("%s: %d plot%s of %d log%s, %zu kB\n", settings->out, page->nplots,
               page->nplots == 1 ? "" : "s", page->nruns, page->nruns == 1 ? "" : "s",
               (size + 999) / 1000);
    }
    return status;
}

static int report_runs(const report_settings *settings) {
    run_log runs[MAX_RUNS] = {0};
    char *labels[MAX_RUNS] = {0};
    plot_style styles[MAX_RUNS];
    int status = read_runs(settings, runs, labels);
    if (status == STATUS_OK) {
        choose_styles(runs, settings->npaths, styles);
        report_page page = {.runs = runs,
                            .nruns = settings->npaths,
                            .labels = labels,
                            .styles = styles,
                            .title = settings->title,
                            .has_gnuplot = gnuplot_available(),
                            .window = series_window(runs, settings->npaths),
                            .bin = series_bin(runs, settings->npaths),
                            .axis = (series_axis)settings->axis};
        status = write_file(settings, &page);
    }
    for (int i = 0; i < settings->npaths; i++) {
        run_log_free(&runs[i]);
        free(labels[i]);
    }
    return status;
}

int command_report(int argc, char **argv) {
    report_settings settings = {
        .out = DEFAULT_OUT, .axis = NOT_GIVEN, .paths = calloc((size_t)argc, sizeof(char *))};
    if (settings.paths == NULL)
        return error_report("report: out of memory");
    int status = parse(&settings, argc, argv);
    if (status == STATUS_OK)
        status = settle(&settings);
    if (status == STATUS_OK)
        status = report_runs(&settings);
    free(settings.paths);
    return status;
}
