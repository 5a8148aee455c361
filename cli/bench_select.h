/* bench_select.h - what the two halves of `thinwire bench select` share: settings and report */
#ifndef CLI_BENCH_SELECT_H
#define CLI_BENCH_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "json.h"
#include "measure.h"
#include "options.h"
#include "table.h"

/* The settings of a run, as the options gave them. */
typedef struct select_bench {
    choice_list methods; /* positions for tw_select_method */
    real_list densities; /* at least one; k/n when k is given */
    int64_t n;
    int64_t k; /* 0: use the densities */
    int data;  /* position of the kind, see data.h */
    int type;  /* tw_type */
    const char *type_name;
    int device;      /* tw_device */
    int64_t threads; /* 0: the library's default; -1: not given */
    bool cold;
    int64_t steps;
    double drift;
    int64_t seed;
    const char *json_path; /* NULL: none */
} select_bench;

typedef struct select_report {
    const select_bench *bench;
    const place *where;
    jsonl *json; /* NULL: none */
    table rows;
    int64_t nrows;
    double floor_us; /* mean of the rows' medians */
} select_report;

/* Print the title and the head of the table. */
void select_report_begin(select_report *report, const select_bench *bench, const place *where,
                         jsonl *json);

/* One method at one density: a row, and a JSON line if asked for. */
void select_report_row(select_report *report, const char *method, double density,
                       const measurement *result);

/* The last row: the bare pass itself. */
void select_report_end(select_report *report);

#endif
