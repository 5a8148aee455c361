/* bench_allreduce.h - what the parts of `thinwire bench allreduce` share
 *
 *     bench_allreduce.c     options, which pairs of selection and exchange are measured, the sweep
 *     allreduce_measure.c   one row, and whether a step lost or invented anything
 *     allreduce_report.c    table and JSON
 */
#ifndef CLI_BENCH_ALLREDUCE_H
#define CLI_BENCH_ALLREDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench_device.h"
#include "bench/patterns.h"
#include "job.h"
#include "json.h"
#include "options.h"
#include "cli.h"

#define ALLREDUCE_WARM_STEPS 3

/* A pair of selection and exchange. */
typedef struct allreduce_case {
    char name[64];      /* the scheme's, or "select+exchange" */
    const char *scheme; /* for tw_group_params; NULL: only the pair counts */
    const char *select; /* "" for dense */
    const char *exchange;
    bool dense;
    bool automatic; /* the group chooses: exchange is "auto" */
} allreduce_case;

/* The settings of a run, as the options gave them. */
typedef struct allreduce_bench {
    choice_list schemes;  /* positions for tw_scheme; none: all, or the pair alone */
    int select;           /* position for tw_select_method, -1: the scheme's */
    int exchange;         /* position for tw_exchange, -1: the scheme's */
    int wire;             /* position for tw_wire; -1: raw, and auto chooses */
    choice_list patterns; /* positions for pattern_name */
    real_list densities;
    int64_t n;
    int64_t k; /* 0: use the densities */
    int64_t ranks;
    job_tcp tcp;
    int64_t steps;   /* timed, after ALLREDUCE_WARM_STEPS */
    int device;      /* tw_device */
    int64_t threads; /* of a rank's selector; 0: the library's default; -1: not given */
    int64_t seed;
    double timeout;        /* seconds */
    choice_list checksums; /* tw_checksum: a row for each */
    int joined;            /* ranks as threads: by 0 the transport of threads, 1 sockets */
    int global;            /* tw_global */
    bool verify;
    bool no_dense;         /* only what was asked for */
    const char *json_path; /* NULL: none */

    const char *transport; /* settled by the job */
    int nranks;
    allreduce_case cases[OPTION_LIST_MAX + 1]; /* [ncases], dense first */
    int ncases;
} allreduce_bench;

/* One row of the table. */
typedef struct allreduce_row {
    const allreduce_case *what;
    int pattern;
    int64_t k;
    int checksum; /* tw_checksum */
} allreduce_row;

/* What was measured, the same on all ranks. Bytes are those of the busiest rank in its worst step;
 * times are medians over the timed steps of the largest over ranks. */
typedef struct allreduce_result {
    int64_t k;
    int64_t selected; /* in the last step */
    int64_t applied;
    int64_t payload_sent;
    int64_t payload_received;
    int64_t control;
    double bound_words; /* of payload, by the papers */
    double time_us;     /* the whole call */
    double select_us;
    double agree_us;
    double exchange_us;
    double apply_us;
    int64_t wrong;     /* -1: not checked */
    uint64_t hash;     /* of all results of all steps */
    char exchange[32]; /* that was used */
    char wire[32];
    tw_choice choice; /* of auto */

    double algbw, busbw, vs_dense, density; /* filled in by the report; GB/s */
    int64_t payload_words;                  /* sent or received, the larger */
} allreduce_result;

typedef struct allreduce_report {
    const allreduce_bench *bench;
    jsonl *json;                /* NULL: none */
    const bench_device *device; /* of rank 0; valid until all rows are reported */
    table_column columns[16];   /* as wide as the names */
    table rows;
    double dense_us;                    /* of the pattern under way; 0: not measured */
    int64_t wrong;                      /* over all rows */
    int over_bound;                     /* rows of oktopk that sent more than they may */
    int64_t small_k;                    /* a k for which oktopk used another exchange; 0: none */
    char instead[32];                   /* which one */
    char choices[OPTION_LIST_MAX][600]; /* [nchoices]: what auto chose */
    int nchoices;
} allreduce_report;

void allreduce_report_begin(allreduce_report *report, const allreduce_bench *bench, jsonl *json);
/* The title and the head of one pattern's table. */
void allreduce_report_pattern(allreduce_report *report, int pattern);
void allreduce_report_row(allreduce_report *report, const allreduce_row *row,
                          allreduce_result *result);
/* Prints what was wrong, if anything. Returns the status. */
int allreduce_report_end(allreduce_report *report);

/* What a rank keeps from row to row. */
typedef struct allreduce_rank {
    const allreduce_bench *bench;
    job_rank *job;
    gather_group gather;
    bench_device device; /* that the library works on */
    float *grad;         /* [n] */
    float *out;          /* [n] */
    void *device_grad;   /* [n] both on the device */
    void *device_out;    /* [n] */
    double *samples;     /* [5][steps] in us: call, select, agree, exchange, apply */
    int64_t progress;    /* steps done, all rows */

    /* The row under way. */
    tw_group *group;
    pattern_spec made; /* the gradients */
    allreduce_result *result;

    /* With --verify: this rank checks elements begin .. end-1 for all ranks. */
    int64_t begin, end;
    bool dense;            /* the step: it has no sparse result, and nothing stays behind */
    selection_copy sparse; /* copy of the step's sparse result */
    float *residual;       /* [n] of this rank, after the step; the memory of all that follow */
    float *kept;           /* [n] sum over ranks of the residuals */
    float *before;         /* [end - begin] the same before the step */
    int64_t units_before;  /* its largest residual then, of any rank; see find_slack */
    float *given;          /* [end - begin] sum over ranks of the gradients */
    float *gradient;       /* [end - begin] of one rank */
} allreduce_rank;

/* Collective, all but the last. Return a status. */
int allreduce_rank_create(allreduce_rank *self, const allreduce_bench *bench, job_rank *job);
int allreduce_measure(allreduce_rank *self, const allreduce_row *row, allreduce_result *result);
void allreduce_rank_free(allreduce_rank *self);

#endif
