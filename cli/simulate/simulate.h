/* simulate.h - what the parts of `thinwire simulate` share
 *
 *     simulate.c           rows, their size and formula, the sweep over ranks and schemes
 *     simulate_options.c   options, networks by name
 *     simulate_run.c       one row: ranks as threads on simulated clocks
 *     simulate_report.c    table, JSON, plot of time over ranks
 *     simulate_papers.c    published experiments
 *     simulate_rounds.c    hours of training with local steps
 *     simulate_grid.c      auto against the best fixed scheme
 */
#ifndef CLI_SIMULATE_H
#define CLI_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "json.h"
#include "options.h"
#include "cli.h"
#include "thinwire_sim.h"

#define SIMULATE_RANKS_MAX 2048
#define SIMULATE_WORD 4 /* bytes */

typedef struct simulate_settings {
    int paper;           /* position, -1: none */
    bool grid;           /* n, density, ranks.count and network_name may then be 0: all of them */
    choice_list schemes; /* positions for tw_scheme, dense first */
    real_list ranks;
    int64_t n;
    int64_t k; /* never 0 once settled */
    double density;
    int pattern;
    int wire;      /* position for tw_wire; -1: raw, and auto chooses */
    int64_t steps; /* of which the first is not counted */
    int64_t seed;
    const char *network_name;
    tw_network network;
    int64_t local_steps;   /* inner steps of a round; 0: no hours of training are asked for */
    int64_t batch_tokens;  /* of a worker's inner step */
    double token_rate;     /* of a worker, per second */
    double tokens;         /* of the run */
    const char *json_path; /* NULL: none */
    const char *plot_path; /* NULL: none */
} simulate_settings;

/* What is really exchanged. Payload counts `scale` times. */
typedef struct simulate_size {
    int64_t n;
    int64_t k;
    double scale;
} simulate_size;

/* One row: what is asked for. */
typedef struct simulate_row {
    const char *scheme;
    const char *select; /* "" for dense */
    const char *exchange;
    const char *wire; /* NULL: the library's own choice */
    bool dense;
    bool automatic; /* auto */
    int nranks;
    int64_t n;
    int64_t k;          /* n for dense */
    simulate_size size; /* scale 0: simulate_size_of */
} simulate_row;

/* What came out. Bytes and messages are those of the busiest rank in its worst step; payload is
 * that of the row's n and k. */
typedef struct simulate_result {
    simulate_size size;
    double time;           /* seconds of a step */
    double exchanging;     /* and of its exchange */
    double formula, least; /* seconds, at most and at least; NaN where the papers have no formula */
    int64_t payload;       /* sent */
    int64_t control;       /* sent or received, the larger */
    int64_t messages;      /* sent */
    char exchange[32];     /* that was used */
    char wire[32];
    tw_choice choice; /* of auto */
    int64_t trials;   /* steps until it had chosen */
} simulate_result;

/* Read the options and settle how they go together. Returns as options_parse. */
int simulate_options(simulate_settings *settings, int argc, char **argv);

/* The row for the scheme at a position. */
simulate_row simulate_row_of(int scheme, int nranks, int64_t n, int64_t k);

/* As much of the row as this machine exchanges in seconds. */
simulate_size simulate_size_of(const simulate_row *row);

/* Simulate one row. Returns STATUS_OK, or prints why not. */
int simulate_run(const simulate_settings *settings, const simulate_row *row,
                 simulate_result *result);

/* Seconds by the papers' cost table, for the exchange that was used. */
void simulate_formula(const simulate_row *row, const tw_network *network, simulate_result *result);

typedef struct simulate_report {
    const simulate_settings *settings;
    jsonl *json;
    table rows;
    double dense;                       /* seconds at the same number of ranks */
    bool is_scaled;                     /* some row is */
    int64_t small_k;                    /* a k for which oktopk used another exchange; 0: none */
    char instead[32];                   /* which one */
    char choices[OPTION_LIST_MAX][600]; /* [nchoices]: what auto chose */
    int nchoices;
} simulate_report;

void simulate_report_begin(simulate_report *report, const simulate_settings *settings, jsonl *json);
void simulate_report_row(simulate_report *report, const simulate_row *row,
                         const simulate_result *result);
void simulate_report_end(const simulate_report *report);

/* The row as a JSON line, behind the keys that were set before. */
void simulate_write_json(jsonl *json, const simulate_settings *settings, const simulate_row *row,
                         const simulate_result *result, double dense);

/* Time over ranks, one line for each scheme, to settings->plot_path; seconds[scheme][ranks].
 * Without gnuplot it only says so. Returns a status. */
int simulate_plot(const simulate_settings *settings, double seconds[][OPTION_LIST_MAX]);

/* The network of this name; k for a density. */
void simulate_take_network(simulate_settings *settings, const char *name);
int64_t simulate_k(int64_t n, double density);

/* Auto against the best fixed scheme, over all cells or those that settings ask for. Fails where
 * auto is slower by more than a tenth. */
int simulate_grid(const simulate_settings *asked, jsonl *json);

/* Hours of training with rounds and without, dense and sparse. */
int simulate_rounds(const simulate_settings *settings, jsonl *json);
int simulate_streaming_diloco(simulate_settings *settings, jsonl *json);

/* The published experiments by position from 0, NULL past the last. */
const char *simulate_paper_name(int position);
int simulate_paper(simulate_settings *settings, jsonl *json);

#endif
