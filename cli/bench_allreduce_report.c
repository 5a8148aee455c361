/* bench_allreduce_report.c - the tables and the JSON lines of `thinwire bench allreduce`
 *
 * Columns as in nccl-tests: algbw is the gradient's size over the time, busbw is algbw * 2(P-1)/P,
 * what each link would have carried had the exchange been dense. A sparse one sends less: "wire" is
 * what the busiest rank sent in its worst step, "bound" the most that the papers allow. One table
 * for each pattern, with dense on top.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench_allreduce.h"
#include "errors.h"
#include "patterns.h"
#include "names.h"
#include "thinwire.h"

#define WORD 4 /* bytes */

static const table_column columns[] = {
    {"scheme", "", -9},    {"size", "bytes", 9},  {"count", "elements", 9}, {"type", "", 4},
    {"k", "entries", 8},   {"density", "k/n", 7}, {"time", "us", 8},        {"algbw", "GB/s", 5},
    {"busbw", "GB/s", 5},  {"wire", "bytes", 9},  {"bound", "bytes", 9},    {"select", "us", 8},
    {"exchange", "us", 8}, {"vs dense", "x", 8},  {"#wrong", "", 6},
};

#define COLUMNS ((int)(sizeof columns / sizeof columns[0]))

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : 0.0;
}

void allreduce_report_begin(allreduce_report *report, const allreduce_bench *bench, jsonl *json) {
    *report = (allreduce_report){.bench = bench, .json = json};
    memcpy(report->columns, columns, sizeof columns);
    for (int i = 0; i < bench->ncases; i++) { /* rows are never wider than their head */
        int length = (int)strlen(bench->cases[i].name);
        if (length > -report->columns[0].width)
            report->columns[0].width = -length;
    }
}

void allreduce_report_pattern(allreduce_report *report, int pattern) {
    const allreduce_bench *bench = report->bench;
    FILE *stream = jsonl_table_stream(report->json);
    if (report->rows.stream != NULL)
        fputc('\n', stream);
    bool gpu = bench->device != TW_CPU;
    fprintf(stream, "bench allreduce: %d ranks over %s, pattern %s, %" PRId64 " steps, %s %s%s\n\n",
            bench->nranks, bench->transport, pattern_name(pattern), bench->steps,
            gpu ? "device" : "kernels", gpu ? report->where->name : report->where->arch,
            bench->verify ? ", verified" : "");
    table_begin_narrow(&report->rows, stream, report->columns, COLUMNS);
    report->dense_us = 0.0;
}

/* ---- One row -------------------------------------------------------------------------------- */

typedef struct rates {
    double algbw; /* GB/s */
    double busbw;
    double vs_dense;
    int64_t payload_words; /* sent or received, the larger */
    double density;
} rates;

static rates rates_of(const allreduce_report *report, const allreduce_result *result) {
    const allreduce_bench *bench = report->bench;
    double nranks = bench->nranks;
    double algbw = quotient((double)bench->n * WORD, result->time_us * 1e3);
    int64_t payload = result->payload_sent > result->payload_received ? result->payload_sent
                                                                      : result->payload_received;
    return (rates){
        .algbw = algbw,
        .busbw = algbw * 2.0 * (nranks - 1.0) / nranks,
        .vs_dense = report->dense_us > 0.0 ? quotient(report->dense_us, result->time_us) : NAN,
        .payload_words = (payload + WORD - 1) / WORD,
        .density = (double)result->k / (double)bench->n,
    };
}

static void write_settings(const allreduce_report *report, const allreduce_row *row) {
    jsonl *json = report->json;
    const allreduce_bench *bench = report->bench;
    jsonl_text(json, "scheme", row->what->name);
    jsonl_text(json, "select", row->what->select);
    jsonl_text(json, "exchange", row->what->exchange);
    jsonl_text(json, "transport", bench->transport);
    jsonl_integer(json, "nranks", bench->nranks);
    jsonl_integer(json, "n", bench->n);
    jsonl_text(json, "pattern", pattern_name(row->pattern));
    jsonl_text(json, "global", bench->global == TW_GLOBAL_REUSE ? "reuse" : "exact");
    jsonl_text(json, "device", report->where->name);
    jsonl_integer(json, "threads", report->where->threads);
    jsonl_integer(json, "seed", bench->seed);
    jsonl_integer(json, "step", bench->steps);
}

static void write_json(const allreduce_report *report, const allreduce_row *row,
                       const allreduce_result *result, const rates *derived) {
    jsonl *json = report->json;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, result->hash);
    write_settings(report, row);
    jsonl_integer(json, "k", result->k);
    jsonl_real(json, "density", derived->density);
    jsonl_integer(json, "selected", result->selected);
    jsonl_integer(json, "applied", result->applied);
    jsonl_integer(json, "payload_sent_max", result->payload_sent);
    jsonl_integer(json, "payload_recv_max", result->payload_received);
    jsonl_integer(json, "control_max", result->control);
    jsonl_real(json, "bound_words", result->bound_words);
    jsonl_integer(json, "payload_words_max", derived->payload_words);
    jsonl_real(json, "time_us", result->time_us);
    jsonl_real(json, "select_us", result->select_us);
    jsonl_real(json, "agree_us", result->agree_us);
    jsonl_real(json, "exchange_us", result->exchange_us);
    jsonl_real(json, "apply_us", result->apply_us);
    jsonl_real(json, "algbw", derived->algbw);
    jsonl_real(json, "busbw", derived->busbw);
    jsonl_real(json, "vs_dense", derived->vs_dense);
    jsonl_flag(json, "baseline", row->what->dense);
    if (result->wrong >= 0)
        jsonl_integer(json, "wrong", result->wrong);
    else
        jsonl_null(json, "wrong");
    jsonl_text(json, "hash", hash);
    jsonl_text(json, "exchange_used", result->exchange);
    jsonl_text(json, "wire", result->wire);
    if (row->what->automatic) {
        jsonl_real(json, "predicted_us", result->choice.predicted * 1e6);
        jsonl_real(json, "measured_us", result->choice.measured * 1e6);
        jsonl_real(json, "measured_latency_us", result->choice.latency * 1e6);
        jsonl_real(json, "measured_bandwidth_Bps", result->choice.bandwidth);
        jsonl_flag(json, "dense_is_faster", result->choice.dense_is_faster != 0);
    }
    jsonl_write(json);
}

static void print_row(table *rows, const allreduce_bench *bench, const allreduce_row *row,
                      const allreduce_result *result, const rates *derived) {
    table_text(rows, row->what->name);
    table_integer(rows, bench->n * WORD);
    table_integer(rows, bench->n);
    table_text(rows, "f32");
    table_integer(rows, result->k);
    table_general(rows, derived->density);
    table_real(rows, result->time_us, 1);
    table_real(rows, derived->algbw, 2);
    table_real(rows, derived->busbw, 2);
    table_integer(rows, result->payload_sent);
    table_integer(rows, (int64_t)(result->bound_words * WORD + 0.5));
    table_real(rows, result->select_us, 1);
    table_real(rows, result->exchange_us, 1);
    if (row->what->dense)
        table_text(rows, "baseline");
    else if (isnan(derived->vs_dense))
        table_text(rows, "-");
    else
        table_real(rows, derived->vs_dense, 2);
    if (result->wrong >= 0)
        table_integer(rows, result->wrong);
    else
        table_text(rows, "-");
}

/* What auto chose, for the lines below the tables. */
static void note_choice(allreduce_report *report, const allreduce_row *row,
                        const allreduce_result *result) {
    const tw_choice *c = &result->choice;
    if (report->nchoices < OPTION_LIST_MAX) {
        snprintf(report->choices[report->nchoices++], sizeof report->choices[0],
                 "%s, %s, k %" PRId64 ": %s, %s entries; predicted %.1f us, measured %.1f us, "
                 "latency %.1f us, %.3g GB/s; %s",
                 row->what->name, pattern_name(row->pattern), row->k, result->exchange,
                 result->wire, c->predicted * 1e6, c->measured * 1e6, c->latency * 1e6,
                 c->bandwidth * 1e-9, c->words);
    }
}

void allreduce_report_row(allreduce_report *report, const allreduce_row *row,
                          const allreduce_result *result) {
    if (row->what->dense)
        report->dense_us = result->time_us;
    rates derived = rates_of(report, result);
    print_row(&report->rows, report->bench, row, result, &derived);
    write_json(report, row, result, &derived);
    report->wrong += result->wrong > 0 ? result->wrong : 0;
    if (row->what->automatic) { /* its steps may have gone several ways */
        note_choice(report, row, result);
        return;
    }
    if (strcmp(row->what->exchange, result->exchange) != 0) {
        report->small_k = result->k;
        snprintf(report->instead, sizeof report->instead, "%s", result->exchange);
    }
    if (strcmp(result->exchange, "oktopk") == 0 &&
        (double)derived.payload_words > result->bound_words)
        report->over_bound++;
}

int allreduce_report_end(allreduce_report *report) {
    int status = STATUS_OK;
    for (int i = 0; i < report->nchoices; i++)
        fprintf(jsonl_table_stream(report->json), "%s%s\n", i == 0 ? "\n" : "", report->choices[i]);
    if (report->small_k > 0) {
        fprintf(jsonl_table_stream(report->json),
                "\noktopk used %s where k is small (k < 8 ranks), as for k %" PRId64 "\n",
                report->instead, report->small_k);
    }
    if (report->over_bound > 0) {
        status = failure("oktopk moved more than 6k words in %d rows: please report it",
                         report->over_bound);
    }
    if (report->wrong > 0) {
        status = failure("%" PRId64 " values are wrong, see column #wrong: please report it",
                         report->wrong);
    }
    return status;
}
