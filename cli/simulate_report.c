/* simulate_report.c - the table and the JSON lines of `thinwire simulate` */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "patterns.h"
#include "simulate.h"

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

static void print_size(char text[24], double scale) {
    if (scale > 1.0)
        snprintf(text, 24, scale < 9.95 ? "1/%.1f" : "1/%.0f", scale);
    else
        snprintf(text, 24, "1");
}

static void print_rate(char *text, size_t size, double bytes_per_second) {
    double bits = bytes_per_second * 8.0;
    if (bits >= 1e9)
        snprintf(text, size, "%.4g Gbit/s", bits * 1e-9);
    else
        snprintf(text, size, "%.4g Mbit/s", bits * 1e-6);
}

void simulate_describe(char *text, size_t size, const simulate_settings *settings) {
    const tw_network *network = &settings->network;
    char rate[32], hosts[96] = "", odd[128] = "";
    print_rate(rate, sizeof rate, network->bandwidth);
    if (network->host_ranks > 1) {
        char local[32];
        bool own = network->local_bandwidth > 0.0;
        print_rate(local, sizeof local, own ? network->local_bandwidth : network->bandwidth);
        snprintf(hosts, sizeof hosts, ", %d ranks a host with %.6g us and %s", network->host_ranks,
                 1e6 * (network->local_latency > 0.0 ? network->local_latency : network->latency),
                 local);
    }
    if (network->overhead > 0.0)
        snprintf(odd, sizeof odd, ", %.6g us a message", network->overhead * 1e6);
    if (network->computing > 0.0) {
        size_t used = strlen(odd);
        snprintf(odd + used, sizeof odd - used, ", computing %g times", network->computing);
    }
    if (network->jitter > 0.0) {
        size_t used = strlen(odd);
        snprintf(odd + used, sizeof odd - used, ", jitter %g", network->jitter);
    }
    if (network->slowdown > 0.0) {
        size_t used = strlen(odd);
        snprintf(odd + used, sizeof odd - used, ", rank %d %g times slower", network->straggler,
                 network->slowdown);
    }
    snprintf(text, size, "%s, %.6g us, %s%s%s", settings->network_name, network->latency * 1e6,
             rate, hosts, odd);
}

void simulate_report_begin(simulate_report *report, const simulate_settings *settings,
                           jsonl *json) {
    char network[320];
    FILE *stream = jsonl_table_stream(json);
    *report = (simulate_report){.settings = settings, .json = json};
    simulate_describe(network, sizeof network, settings);
    fprintf(stream,
            "simulate: %s; n %" PRId64 ", k %" PRId64 ", pattern %s, %" PRId64
            " steps of which the first is not counted\n\n",
            network, settings->n, settings->k, pattern_name(settings->pattern), settings->steps);
    table_begin(&report->rows, stream, columns, sizeof columns / sizeof columns[0]);
}

/* ---- One row -------------------------------------------------------------------------------- */

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : NAN;
}

static void print_row(table *rows, const simulate_row *row, const simulate_result *result,
                      double dense) {
    char text[48];
    table_text(rows, row->scheme);
    table_integer(rows, row->nranks);
    print_time(text, sizeof text, result->time);
    table_text(rows, text);
    print_formula(text, result);
    table_text(rows, text);
    table_integer(rows, result->payload);
    table_integer(rows, result->control);
    table_integer(rows, result->messages);
    double faster = quotient(dense, result->time);
    if (row->dense || isnan(faster))
        table_text(rows, row->dense ? "baseline" : "-");
    else
        table_real(rows, faster, faster < 100.0 ? 2 : 1);
    print_size(text, result->size.scale);
    table_text(rows, text);
}

void simulate_write_json(jsonl *json, const simulate_settings *settings, const simulate_row *row,
                         const simulate_result *result, double dense) {
    jsonl_text(json, "scheme", row->scheme);
    jsonl_text(json, "select", row->select);
    jsonl_text(json, "exchange", row->exchange);
    jsonl_text(json, "exchange_used", result->exchange);
    jsonl_integer(json, "nranks", row->nranks);
    jsonl_integer(json, "n", row->n);
    jsonl_integer(json, "k", row->k);
    jsonl_real(json, "density", (double)row->k / (double)row->n);
    jsonl_text(json, "wire", result->wire);
    jsonl_text(json, "pattern", pattern_name(settings->pattern));
    jsonl_text(json, "network", settings->network_name);
    jsonl_real(json, "latency_s", settings->network.latency);
    jsonl_real(json, "bandwidth_Bps", settings->network.bandwidth);
    jsonl_real(json, "overhead_s", settings->network.overhead);
    jsonl_real(json, "computing", settings->network.computing);
    jsonl_integer(json, "host_ranks", settings->network.host_ranks);
    jsonl_real(json, "jitter", settings->network.jitter);
    jsonl_real(json, "slowdown", settings->network.slowdown > 0.0 ? settings->network.slowdown : 1);
    jsonl_integer(json, "steps", settings->steps);
    jsonl_integer(json, "seed", settings->seed);
    jsonl_real(json, "scale", result->size.scale);
    jsonl_integer(json, "simulated_n", result->size.n);
    jsonl_integer(json, "simulated_k", result->size.k);
    jsonl_real(json, "time_s", result->time);
    jsonl_real(json, "exchange_s", result->exchanging);
    jsonl_real(json, "formula_s", result->formula);
    jsonl_real(json, "formula_least_s", result->least);
    jsonl_integer(json, "payload_sent_max", result->payload);
    jsonl_integer(json, "control_max", result->control);
    jsonl_integer(json, "messages_max", result->messages);
    jsonl_real(json, "speedup_dense", quotient(dense, result->time));
    if (row->automatic) {
        jsonl_real(json, "predicted_s", result->choice.predicted);
        jsonl_real(json, "measured_s", result->choice.measured);
        jsonl_real(json, "measured_latency_s", result->choice.latency);
        jsonl_real(json, "measured_bandwidth_Bps", result->choice.bandwidth);
        jsonl_flag(json, "dense_is_faster", result->choice.dense_is_faster != 0);
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
