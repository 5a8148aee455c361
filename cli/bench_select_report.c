/* bench_select_report.c - the table and the JSON lines of `thinwire bench select`
 *
 * The bare pass closes the table as the row that nothing can beat. Its GB/s are a check of the
 * machine: far below the memory's rate, something else was running or pages were small.
 */
#include <inttypes.h>

#include "bench_select.h"
#include "data.h"

#define BYTES_PER_ELEMENT 12.0 /* the bare pass reads e and g and writes e */

static const table_column columns[] = {
    {"method", "", -16},   {"density", "k/n", 8}, {"k", "entries", 8},  {"count", "entries", 8},
    {"min", "count/k", 7}, {"max", "count/k", 7}, {"exact", "", 5},     {"time", "us", 9},
    {"floor", "us", 9},    {"ratio", "x", 6},     {"floor", "GB/s", 5},
};

static double quotient(double over, double under) {
    return under > 0.0 ? over / under : 0.0;
}

static double gigabytes_per_second(const select_bench *bench, double floor_us) {
    return quotient(BYTES_PER_ELEMENT * (double)bench->n, floor_us * 1e3);
}

void select_report_begin(select_report *report, const select_bench *bench, const place *where,
                         jsonl *json) {
    FILE *stream = jsonl_table_stream(json);
    *report = (select_report){.bench = bench, .where = where, .json = json};
    fprintf(stream, "bench select: n %" PRId64 ", data %s, type %s, ", bench->n,
            data_kind_name(bench->data), bench->type_name);
    if (bench->device == TW_CPU)
        fprintf(stream, "kernels %s, threads %d, ", where->arch, where->threads);
    else
        fprintf(stream, "device %s, ", where->name);
    fprintf(stream, "%" PRId64 " steps %s", bench->steps, bench->cold ? "cold" : "warm");
    if (bench->drift != 1.0)
        fprintf(stream, ", drift %g", bench->drift);
    fputs("\n\n", stream);
    table_begin(&report->rows, stream, columns, sizeof columns / sizeof columns[0]);
}

static void write_json(const select_report *report, const char *method, double density,
                       const measurement *result) {
    jsonl *json = report->json;
    const select_bench *bench = report->bench;
    jsonl_text(json, "method", method);
    jsonl_text(json, "arch", report->where->arch);
    jsonl_text(json, "device", report->where->name);
    jsonl_integer(json, "threads", report->where->threads);
    jsonl_integer(json, "n", bench->n);
    jsonl_integer(json, "k", result->k);
    jsonl_integer(json, "count", result->count);
    jsonl_flag(json, "exact", result->exact);
    jsonl_real(json, "time_us", result->time_us);
    jsonl_real(json, "floor_us", result->floor_us);
    jsonl_real(json, "ratio", quotient(result->time_us, result->floor_us));
    jsonl_text(json, "data", data_kind_name(bench->data));
    jsonl_text(json, "type", bench->type_name);
    jsonl_real(json, "density", density);
    jsonl_flag(json, "cold", bench->cold);
    jsonl_integer(json, "steps", bench->steps);
    jsonl_integer(json, "count_min", result->count_min);
    jsonl_integer(json, "count_max", result->count_max);
    jsonl_real(json, "count_mean", result->count_mean);
    jsonl_integer(json, "candidates", result->candidates);
    jsonl_integer(json, "rescans", result->rescans);
    jsonl_real(json, "run_us", result->run_us);
    jsonl_real(json, "commit_us", result->commit_us);
    jsonl_real(json, "drift", bench->drift);
    jsonl_write(json);
}

void select_report_row(select_report *report, const char *method, double density,
                       const measurement *result) {
    table *rows = &report->rows;
    double k = (double)result->k;
    table_text(rows, method);
    table_general(rows, density);
    table_integer(rows, result->k);
    table_integer(rows, result->count);
    table_real(rows, (double)result->count_min / k, 2);
    table_real(rows, (double)result->count_max / k, 2);
    table_text(rows, result->exact ? "yes" : "no");
    table_real(rows, result->time_us, 1);
    table_real(rows, result->floor_us, 1);
    table_real(rows, quotient(result->time_us, result->floor_us), 2);
    table_real(rows, gigabytes_per_second(report->bench, result->floor_us), 1);
    report->nrows++;
    report->floor_us += (result->floor_us - report->floor_us) / (double)report->nrows;
    write_json(report, method, density, result);
}

void select_report_end(select_report *report) {
    if (report->nrows == 0)
        return;
    table *rows = &report->rows;
    table_text(rows, "bare pass e += g");
    for (int i = 0; i < 6; i++)
        table_text(rows, "-");
    table_real(rows, report->floor_us, 1);
    table_real(rows, report->floor_us, 1);
    table_real(rows, 1.0, 2);
    table_real(rows, gigabytes_per_second(report->bench, report->floor_us), 1);
    if (report->bench->cold && report->bench->device == TW_CPU) {
        fputs("cold: the writes of a commit fall into the next run and are not in these times\n",
              rows->stream);
    }
}
