/* simulate_report.c - table, JSON lines and plot of `thinwire simulate` */
#include "simulate/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/patterns.h"
#include "cli.h"
#include "report/plot.h"

static const table_column columns[] = {
    {"scheme", "", -9},      {"P", "ranks", 5},        {"time", "ms", 10},
    {"formula", "ms", 17},   {"payload", "bytes", 11}, {"control", "bytes", 9},
    {"messages", "sent", 8}, {"vs dense", "x", 8},     {"size", "of n", 7},
};

/* Three significant digits for times that span six decades. */
static void print_time(char *text, size_t size, double seconds) {
    double ms = seconds * 1e3;
    int decimals = ms >= 100.0 ? 1 : ms >= 10.0 ? 2 : ms >= 0.1 ? 3 : 5;
    snprintf(text, size, "%.*f", decimals, ms);
}

static void print_formula(char text[48], const simulate_result *result) {
    char least[20], most[20];
    print_time(least, sizeof least, result->least);
    print_time(most, sizeof most, result->formula);
    if (isnan(result->formula))
        snprintf(text, 48, "-");
    else if (result->least < result->formula)
        snprintf(text, 48, "%s-%s", least, most);
    else
        snprintf(text, 48, "%s", most);
}

static void print_rate(char *text, size_t size, double bytes_per_second) {
    double bits = bytes_per_second * 8.0;
    if (bits >= 1e9)
        snprintf(text, size, "%.4g Gbit/s", bits * 1e-9);
    else
        snprintf(text, size, "%.4g Mbit/s", bits * 1e-6);
}

static void describe(char *text, size_t size, const simulate_settings *settings) {
    const tw_network *network = &settings->network;
    char rate[32], local[32];
    print_rate(rate, sizeof rate, network->bandwidth);
    snprintf(text, size, "%s, %.6g us, %s", settings->network_name, network->latency * 1e6, rate);
    if (network->host_ranks > 1) {
        bool own = network->local_bandwidth > 0.0;
        print_rate(local, sizeof local, own ? network->local_bandwidth : network->bandwidth);
        text_append(text, size, ", %d ranks a host with %.6g us and %s", network->host_ranks,
                    1e6 *
                        (network->local_latency > 0.0 ? network->local_latency : network->latency),
                    local);
    }
    if (network->overhead > 0.0)
        text_append(text, size, ", %.6g us a message", network->overhead * 1e6);
    if (network->computing > 0.0)
        text_append(text, size, ", computing %g times", network->computing);
    if (network->jitter > 0.0)
        text_append(text, size, ", jitter %g", network->jitter);
    if (network->slowdown > 0.0)
        text_append(text, size, ", rank %d %g times slower", network->straggler, network->slowdown);
}

void simulate_report_begin(simulate_report *report, const simulate_settings *settings,
                           jsonl *json) {
    char network[320];
    FILE *stream = jsonl_table_stream(json);
    *report = (simulate_report){.settings = settings, .json = json};
    describe(network, sizeof network, settings);
    fprintf(stream,
            "simulate: %s; n %" PRId64 ", k %" PRId64 ", pattern %s, %" PRId64
            " steps of which the first is not counted\n\n",
            network, settings->n, settings->k, pattern_name(settings->pattern), settings->steps);
    table_begin(&report->rows, stream, columns, COUNT_OF(columns), 2);
}

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : NAN;
}

static void print_row(table *rows, const simulate_row *row, const simulate_result *result,
                      double dense) {
    char time[20], formula[48], size[24] = "1", faster[24] = "-";
    double ratio = quotient(dense, result->time);
    print_time(time, sizeof time, result->time);
    print_formula(formula, result);
    if (result->size.scale > 1.0) {
        snprintf(size, sizeof size, result->size.scale < 9.95 ? "1/%.1f" : "1/%.0f",
                 result->size.scale);
    }
    if (row->dense)
        snprintf(faster, sizeof faster, "baseline");
    else if (!isnan(ratio))
        snprintf(faster, sizeof faster, "%.*f", ratio < 100.0 ? 2 : 1, ratio);
    table_row(rows, "%s|%d|%s|%s|%" PRId64 "|%" PRId64 "|%" PRId64 "|%s|%s", row->scheme,
              row->nranks, time, formula, result->payload, result->control, result->messages,
              faster, size);
}

void simulate_write_json(jsonl *json, const simulate_settings *settings, const simulate_row *row,
                         const simulate_result *result, double dense) {
    jsonl_set(json, J_TEXT("scheme", row->scheme), J_TEXT("select", row->select),
              J_TEXT("exchange", row->exchange), J_TEXT("exchange_used", result->exchange),
              J_INT("nranks", row->nranks), J_INT("n", row->n), J_INT("k", row->k),
              J_REAL("density", (double)row->k / (double)row->n), J_TEXT("wire", result->wire),
              J_TEXT("pattern", pattern_name(settings->pattern)),
              J_TEXT("network", settings->network_name),
              J_REAL("latency_s", settings->network.latency),
              J_REAL("bandwidth_Bps", settings->network.bandwidth),
              J_REAL("overhead_s", settings->network.overhead),
              J_REAL("computing", settings->network.computing),
              J_INT("host_ranks", settings->network.host_ranks),
              J_REAL("jitter", settings->network.jitter),
              J_REAL("slowdown", settings->network.slowdown > 0.0 ? settings->network.slowdown : 1),
              J_INT("steps", settings->steps), J_INT("seed", settings->seed),
              J_REAL("scale", result->size.scale), J_INT("simulated_n", result->size.n),
              J_INT("simulated_k", result->size.k), J_REAL("time_s", result->time),
              J_REAL("exchange_s", result->exchanging), J_REAL("formula_s", result->formula),
              J_REAL("formula_least_s", result->least), J_INT("payload_sent_max", result->payload),
              J_INT("control_max", result->control), J_INT("messages_max", result->messages),
              J_REAL("speedup_dense", quotient(dense, result->time)));
    if (row->automatic) {
        jsonl_set(json, J_REAL("predicted_s", result->choice.predicted),
                  J_REAL("measured_s", result->choice.measured),
                  J_REAL("measured_latency_s", result->choice.latency),
                  J_REAL("measured_bandwidth_Bps", result->choice.bandwidth),
                  J_FLAG("dense_is_faster", result->choice.dense_is_faster != 0));
    }
    jsonl_write(json);
}

/* What auto chose, for the lines below the table. */
static void note_choice(simulate_report *report, const simulate_row *row,
                        const simulate_result *result) {
    const tw_choice *c = &result->choice;
    char predicted[20], measured[20];
    print_time(predicted, sizeof predicted, c->predicted);
    print_time(measured, sizeof measured, c->measured);
    if (report->nchoices < OPTION_LIST_MAX) {
        snprintf(report->choices[report->nchoices++], sizeof report->choices[0],
                 "auto, P %d: %s, %s entries; predicted %s ms, measured %s ms; %s", row->nranks,
                 result->exchange, result->wire, predicted, measured, c->words);
    }
}

void simulate_report_row(simulate_report *report, const simulate_row *row,
                         const simulate_result *result) {
    if (row->dense)
        report->dense = result->time;
    print_row(&report->rows, row, result, report->dense);
    simulate_write_json(report->json, report->settings, row, result, report->dense);
    report->is_scaled = report->is_scaled || result->size.scale > 1.0;
    if (row->automatic) {
        note_choice(report, row, result);
    } else if (strcmp(row->exchange, result->exchange) != 0) {
        report->small_k = row->k;
        snprintf(report->instead, sizeof report->instead, "%s", result->exchange);
    }
}

void simulate_report_end(const simulate_report *report) {
    FILE *stream = jsonl_table_stream(report->json);
    if (report->is_scaled || report->small_k > 0 || report->nchoices > 0)
        fputc('\n', stream);
    for (int i = 0; i < report->nchoices; i++)
        fprintf(stream, "%s\n", report->choices[i]);
    if (report->is_scaled) {
        fputs("size 1/s: simulated at 1/s of the size, a byte of payload taking the time of s; "
              "bytes of payload are those of the whole\n",
              stream);
    }
    if (report->small_k > 0) {
        fprintf(stream, "oktopk used %s where k is small (k < 8 ranks), as for k %" PRId64 "\n",
                report->instead, report->small_k);
    }
}

static void add_lines(const simulate_settings *settings, plot *drawing,
                      double seconds[][OPTION_LIST_MAX]) {
    for (int i = 0; i < settings->schemes.count; i++) {
        double ms[OPTION_LIST_MAX];
        for (int j = 0; j < settings->ranks.count; j++)
            ms[j] = seconds[i][j] * 1e3;
        plot_line(drawing, settings->ranks.at, ms, settings->ranks.count,
                  (plot_style){.line = (color)(COLOR_RUN + i % RUN_COLORS),
                               .dash = i / RUN_COLORS % PLOT_DASHES,
                               .width = 2,
                               .points = true,
                               .label = i});
    }
}

/* The numbers of ranks themselves as ticks, and the names of the lines. labels[schemes.count] */
static void set_axes(const simulate_settings *settings, const char *const *labels, plot *drawing) {
    plot_logarithmic(drawing, 'x');
    plot_logarithmic(drawing, 'y');
    plot_key(drawing, labels, settings->schemes.count);
    plot_set(drawing, "set xtics ()");
    for (int i = 0; i < settings->ranks.count; i++)
        plot_set(drawing, "set xtics add ('%g' %g)", settings->ranks.at[i], settings->ranks.at[i]);
}

static int draw(const simulate_settings *settings, const char *const *labels, plot *drawing) {
    char network[320], description[400], reason[256];
    describe(network, sizeof network, settings);
    snprintf(description, sizeof description, "time of a step over ranks, %s", network);
    const svg_settings look = {.description = description,
                               .labels = labels,
                               .nlabels = settings->schemes.count,
                               .is_file = true};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return error_report("simulate: out of memory");
    bool drawn = plot_draw(drawing, out, look, reason, sizeof reason);
    int status = STATUS_OK;
    if (fclose(out) != 0)
        status = error_report("simulate: out of memory");
    else if (!drawn)
        status = error_report("simulate: the plot could not be drawn: %s", reason);
    else
        status = plot_write_file(settings->plot_path, text, size);
    free(text);
    return status;
}

int simulate_plot(const simulate_settings *settings, double seconds[][OPTION_LIST_MAX]) {
    if (!gnuplot_available()) {
        (void)error_report("no plot: --plot needs gnuplot; install gnuplot-nox");
        return STATUS_OK;
    }
    const char *labels[OPTION_LIST_MAX];
    char y[64];
    plot drawing;
    int status = STATUS_OK;
    for (int i = 0; i < settings->schemes.count; i++)
        labels[i] = names_scheme(settings->schemes.at[i]);
    snprintf(y, sizeof y, "time of a step, ms (%s)", settings->network_name);
    if (plot_begin(&drawing, PLOT_FILE_WIDTH, PLOT_FILE_HEIGHT, "ranks", y)) {
        set_axes(settings, labels, &drawing);
        add_lines(settings, &drawing, seconds);
        status = drawing.nseries == 0 ? error_report("simulate: no times to draw")
                                      : draw(settings, labels, &drawing);
    } else {
        status = error_report("simulate: out of memory");
    }
    plot_end(&drawing);
    return status;
}
