/* simulate_plot.c - time of a step over the number of ranks, one line for each scheme, as SVG */
#include <stdio.h>
#include <stdlib.h>

#include "errors.h"
#include "names.h"
#include "report_file.h"
#include "report_gnuplot.h"
#include "report_plot.h"
#include "report_svg.h"
#include "simulate.h"

#define WIDTH 640
#define HEIGHT 360

static void add_lines(const simulate_settings *settings, plot *drawing,
                      double seconds[][OPTION_LIST_MAX]) {
    for (int i = 0; i < settings->schemes.count; i++) {
        double ms[OPTION_LIST_MAX];
        for (int j = 0; j < settings->ranks.count; j++)
            ms[j] = seconds[i][j] * 1e3;
        plot_line(drawing, settings->ranks.at, ms, settings->ranks.count,
                  (plot_style){.line = (color)(COLOR_RUN + i % RUN_COLORS),
                               .dash = i / RUN_COLORS % 5,
                               .width = 2,
                               .points = true,
                               .label = i});
    }
}

/* The numbers of ranks themselves as ticks, and the names to the right of the lines. */
static void set_axes(const simulate_settings *settings, plot *drawing) {
    plot_logarithmic(drawing, 'x');
    plot_logarithmic(drawing, 'y');
    plot_key(drawing);
    plot_set(drawing, "set key outside right center");
    plot_set(drawing, "set rmargin at screen 0.8");
    plot_set(drawing, "set xtics ()");
    for (int i = 0; i < settings->ranks.count; i++)
        plot_set(drawing, "set xtics add ('%g' %g)", settings->ranks.at[i], settings->ranks.at[i]);
}

static int write_svg(const simulate_settings *settings, const char *raw) {
    const char *labels[OPTION_LIST_MAX];
    char network[320], description[400];
    for (int i = 0; i < settings->schemes.count; i++)
        labels[i] = scheme_at(settings->schemes.at[i]);
    simulate_describe(network, sizeof network, settings);
    snprintf(description, sizeof description, "time of a step over ranks, %s", network);
    const svg_settings look = {.width = WIDTH,
                               .height = HEIGHT,
                               .description = description,
                               .labels = labels,
                               .nlabels = settings->schemes.count,
                               .is_file = true};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return failure("simulate: out of memory");
    svg_write(out, raw, &look);
    int status = fclose(out) == 0 ? report_file_write(settings->plot_path, text, size)
                                  : failure("simulate: out of memory");
    free(text);
    return status;
}

static int draw(const simulate_settings *settings, plot *drawing) {
    char reason[256] = "out of memory";
    char *svg = NULL;
    const char *script = plot_script(drawing);
    if (script != NULL)
        gnuplot_run(script, &svg, reason, sizeof reason);
    int status = svg != NULL ? write_svg(settings, svg)
                             : failure("simulate: the plot could not be drawn: %s", reason);
    free(svg);
    return status;
}

int simulate_plot(const simulate_settings *settings, double seconds[][OPTION_LIST_MAX]) {
    if (!gnuplot_available()) {
        fputs("thinwire: no plot: --plot needs gnuplot; install gnuplot-nox\n", stderr);
        return STATUS_OK;
    }
    char y[64];
    snprintf(y, sizeof y, "time of a step, ms (%s)", settings->network_name);
    plot drawing;
    int status = STATUS_OK;
    if (plot_begin(&drawing, WIDTH, HEIGHT, "ranks", y)) {
        set_axes(settings, &drawing);
        add_lines(settings, &drawing, seconds);
        status = plot_is_empty(&drawing) ? failure("simulate: no times to draw")
                                         : draw(settings, &drawing);
    } else {
        status = failure("simulate: out of memory");
    }
    plot_end(&drawing);
    return status;
}
