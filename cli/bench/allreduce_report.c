/* allreduce_report.c - the tables and the JSON lines of `thinwire bench allreduce`
 *
 * Columns as in nccl-tests: algbw is the gradient's size over the time, busbw is algbw * 2(P-1)/P,
 * what each link would have carried had the exchange been dense. A sparse one sends less: "wire" is
 * what the busiest rank sent in its worst step, "bound" the most that the papers allow. One table
 * for each pattern, with dense on top.
 */
#include "bench/bench_allreduce.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli.h"
#include "vector.h"

#define WORD 4 /* bytes */

static const table_column columns[] = {
    {"scheme", "", -9},    {"size", "bytes", 9},  {"count", "elements", 9}, {"type", "", 4},
    {"k", "entries", 8},   {"density", "k/n", 7}, {"time", "us", 8},        {"algbw", "GB/s", 5},
    {"busbw", "GB/s", 5},  {"wire", "bytes", 9},  {"bound", "bytes", 9},    {"select", "us", 8},
    {"exchange", "us", 8}, {"vs dense", "x", 8},  {"#wrong", "", 6},
};

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : 0.0;
}

void allreduce_report_begin(allreduce_report *report, const allreduce_bench *bench, jsonl *json) {
    *report = (allreduce_report){.bench = bench, .json = json};
    memcpy(report->columns, columns, sizeof columns);
    for (int i = 0; i < bench->ncases; i++) { /* rows are never wider than their head */
        int length = (int)strlen(bench->cases[i].name) + (int)strlen(" off");
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
            gpu ? "device" : "kernels", gpu ? report->device->name : report->device->arch,
            bench->verify ? ", verified" : "");
    table_begin(&report->rows, stream, report->columns, COUNT_OF(columns), 1);
    report->dense_us = 0.0;
}

static void derive(const allreduce_report *report, allreduce_result *result) {
    double n = (double)report->bench->n, nranks = report->bench->nranks;
    int64_t payload = larger(result->payload_sent, result->payload_received);
    result->algbw = quotient(n * WORD, result->time_us * 1e3);
    result->busbw = result->algbw * 2.0 * (nranks - 1.0) / nranks;
    result->vs_dense = report->dense_us > 0.0 ? quotient(report->dense_us, result->time_us) : NAN;
    result->payload_words = (payload + WORD - 1) / WORD;
    result->density = (double)result->k / n;
}

static void write_json(const allreduce_report *report, const allreduce_row *row,
                       const allreduce_result *result) {
    jsonl *json = report->json;
    const allreduce_bench *bench = report->bench;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, result->hash);
    jsonl_set(json, J_TEXT("scheme", row->what->name), J_TEXT("select", row->what->select),
              J_TEXT("exchange", row->what->exchange), J_TEXT("transport", bench->transport),
              J_INT("nranks", bench->nranks), J_INT("n", bench->n),
              J_TEXT("pattern", pattern_name(row->pattern)),
              J_TEXT("global", bench->global == TW_GLOBAL_REUSE ? "reuse" : "exact"),
              J_TEXT("checksum", names_checksum(row->checksum)),
              J_TEXT("device", report->device->name), J_INT("threads", report->device->threads),
              J_INT("seed", bench->seed), J_INT("step", bench->steps));
    jsonl_set(json, J_INT("k", result->k), J_REAL("density", result->density),
              J_INT("selected", result->selected), J_INT("applied", result->applied),
              J_INT("payload_sent_max", result->payload_sent),
              J_INT("payload_recv_max", result->payload_received),
              J_INT("control_max", result->control), J_REAL("bound_words", result->bound_words),
              J_INT("payload_words_max", result->payload_words), J_REAL("time_us", result->time_us),
              J_REAL("select_us", result->select_us), J_REAL("agree_us", result->agree_us),
              J_REAL("exchange_us", result->exchange_us), J_REAL("apply_us", result->apply_us),
              J_REAL("algbw", result->algbw), J_REAL("busbw", result->busbw),
              J_REAL("vs_dense", result->vs_dense), J_FLAG("baseline", row->what->dense),
              result->wrong >= 0 ? J_INT("wrong", result->wrong) : J_NULL("wrong"),
              J_TEXT("hash", hash), J_TEXT("exchange_used", result->exchange),
              J_TEXT("wire", result->wire));
    if (row->what->automatic) {
        jsonl_set(json, J_REAL("predicted_us", result->choice.predicted * 1e6),
                  J_REAL("measured_us", result->choice.measured * 1e6),
                  J_REAL("measured_latency_us", result->choice.latency * 1e6),
                  J_REAL("measured_bandwidth_Bps", result->choice.bandwidth),
                  J_FLAG("dense_is_faster", result->choice.dense_is_faster != 0));
    }
    jsonl_write(json);
}

static void print_row(table *rows, const allreduce_bench *bench, const allreduce_row *row,
                      const allreduce_result *result) {
    char faster[32] = "-", wrong[32] = "-";
    if (row->what->dense)
        snprintf(faster, sizeof faster, "baseline");
    else if (!isnan(result->vs_dense))
        snprintf(faster, sizeof faster, "%.2f", result->vs_dense);
    if (result->wrong >= 0)
        snprintf(wrong, sizeof wrong, "%" PRId64, result->wrong);
    const char *off = row->checksum == TW_CHECKSUM_OFF ? " off" : "";
    table_row(rows,
              "%s%s|%" PRId64 "|%" PRId64 "|f32|%" PRId64 "|%.4g|%.1f|%.2f|%.2f|%" PRId64 "|%.0f|"
              "%.1f|%.1f|%s|%s",
              row->what->name, off, bench->n * WORD, bench->n, result->k, result->density,
              result->time_us, result->algbw, result->busbw, result->payload_sent,
              floor(result->bound_words * WORD + 0.5), result->select_us, result->exchange_us,
              faster, wrong);
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
                          allreduce_result *result) {
    if (row->what->dense)
        report->dense_us = result->time_us;
    derive(report, result);
    print_row(&report->rows, report->bench, row, result);
    write_json(report, row, result);
    report->wrong += result->wrong > 0 ? result->wrong : 0;
    if (row->what->automatic) { /* its steps may have used several exchanges */
        note_choice(report, row, result);
        return;
    }
    if (strcmp(row->what->exchange, result->exchange) != 0) {
        report->small_k = result->k;
        snprintf(report->instead, sizeof report->instead, "%s", result->exchange);
    }
    if (strcmp(result->exchange, "oktopk") == 0 &&
        (double)result->payload_words > result->bound_words)
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
        status = error_report("oktopk moved more than 6k words in %d rows: please report it",
                              report->over_bound);
    }
    if (report->wrong > 0) {
        status = error_report("%" PRId64 " values are wrong, see column #wrong: please report it",
                              report->wrong);
    }
    return status;
}
