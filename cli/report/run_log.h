/* run_log.h - reads the log of a training run: JSON lines, as `thinwire train` writes them
 *
 * Kinds of lines: run (what was run, first), step, evaluation, snapshot, members, end; others and
 * unknown keys are ignored. A log that stops early is read as far as it goes, a half-written last line
 * included; a damaged line before that is an error that names the file and the line. Where a
 * resumed run repeats steps, the later ones count. A log may leave out steps: each line then stands
 * for the steps since the line before.
 *
 * All numbers are doubles, NaN where the log has null or nothing; sums cannot overflow, and whole
 * numbers stay exact up to 2^53.
 */
#ifndef CLI_RUN_LOG_H
#define CLI_RUN_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define RUN_LOG_VERSION 1
#define RUN_RANKS 48 /* letters of a list of ranks */

typedef struct run_step {
    double step, epoch;
    double stands_for; /* steps, this one included */
    double loss, accuracy, lr;
    double k, selected, applied;                /* entries */
    double payload_sent, payload_recv, control; /* bytes of rank 0 in this step */
    double time_s, data_s, forward_s, backward_s, optimiser_s;
    double exposed_s; /* communication that the backward pass did not hide */
    double select_s, wait_s, exchange_s, apply_s; /* partly hidden by the backward pass */
    double elapsed_s;                             /* since the start, at the end of the step */
    double skipped;
    double sent;  /* bytes: payload and control */
    double share; /* selected / k */
} run_step;

typedef struct run_evaluation {
    double step, epoch; /* after that many steps */
    double loss, accuracy;
    double elapsed_s;
} run_evaluation;

typedef struct run_snapshot {
    double step;
    double n, k;
    double low, high;   /* range of the histogram */
    double *counts;     /* [ncounts], of acc on rank 0 */
    int ncounts;        /* 0 if there is no histogram */
    double contraction; /* |u - Top_k(u)|^2 / |u|^2 as measured */
    double bound_topk, bound_random;
} run_snapshot;

/* Ranks were lost, left or joined: their numbers, as "2" or "0, 2"; "" for none. */
typedef struct run_members {
    double step; /* the next one, or the one that was repeated */
    double nranks, nranks_before;
    double seconds; /* in which no training went on */
    char lost[RUN_RANKS], left[RUN_RANKS], joined[RUN_RANKS];
} run_members;

typedef struct run_log {
    char *path;
    char *name, *model, *data, *scheme, *select, *exchange, *transport, *optimizer;
    double version, parameters, density, nranks, batch, planned_steps, epochs, seed;
    double lr, momentum, weight_decay, local_steps;
    run_step *steps; /* [nsteps] that are logged, step increases */
    int64_t nsteps;
    run_evaluation *evaluations; /* [nevaluations] */
    int64_t nevaluations;
    run_snapshot *snapshots; /* [nsnapshots] */
    int64_t nsnapshots;
    run_members *members; /* [nmembers] */
    int64_t nmembers;
    bool has_end;     /* the run went through to its end */
    bool half_line;   /* the last line was cut off */
    double end_steps; /* NaN without an end, as all that follow */
    double end_seconds;
    double end_accuracy;
    double end_skipped;
} run_log;

/* Read the log at path. Returns STATUS_OK, or prints why not and returns another status. Free with
 * run_log_free in either case. */
int run_log_read(run_log *run, const char *path);

/* Free what the log holds; a zeroed one is fine. */
void run_log_free(run_log *run);

#endif
