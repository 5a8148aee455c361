/* train.h - what `thinwire train` and `thinwire demo` run, and how it is run
 *
 *     train.c       options of `thinwire train`
 *     demo.c        `thinwire demo`: six schemes in turn
 *     train_run.c   settings to the trainer's specification, ranks
 *     train_log.c   run log and timeline
 */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "job.h"
#include "json.h"
#include "trainer.h"

typedef struct train_settings {
    const char *name;     /* of the run, in logs; NULL: the scheme */
    int model;            /* position */
    const char *size;     /* of bert */
    const char *data;     /* path, or DATASET_EMBEDDED */
    int scheme;           /* position */
    int select, exchange; /* positions; -1: the scheme's */
    int wire;             /* position; -1: raw, and auto chooses */
    double density;
    bool per_rank; /* density counts what a rank sends: tw_count */
    int64_t ranks;
    job_tcp tcp; /* with elastic and join */
    int64_t batch;
    int64_t epochs, steps; /* one of them; both 0: one epoch */
    int64_t limit;         /* training examples; 0: all */
    int64_t test_limit;
    int64_t length, vocabulary, width, layers;
    int optimizer; /* position; -1: the model's */
    double rate;   /* 0: the model's */
    double momentum, weight_decay;
    int schedule;           /* position */
    int64_t warmup;         /* steps of the learning rate */
    int64_t density_warmup; /* steps in which density falls from 0.25 */
    int density_schedule;   /* tw_warmup */
    int64_t drop_every;
    double drop_factor;
    bool correct_momentum; /* momentum before selection, not in the optimiser */
    bool augment;
    int64_t local_steps; /* of a round; 0: an exchange in each step */
    double outer_rate, outer_momentum, decay;
    bool delayed; /* a round's exchange runs while the next round computes */
    int result;   /* of a round: position; -1: what suits the exchange */
    int64_t evaluate_every, snapshot_every;
    int64_t seed;
    double timeout;
    int checksum;           /* tw_checksum */
    const char *log_path;   /* run log, NULL: none */
    const char *trace_path; /* timeline, NULL: none */
    const char *checkpoints;
    int64_t checkpoint_every;
    bool resume;
    bool quiet; /* no line per evaluation */
} train_settings;

#define TRAIN_SETTINGS_INIT                                                                        \
    {                                                                                              \
        .data = DATASET_EMBEDDED, .select = -1, .exchange = -1, .wire = -1, .density = 0.01,       \
        .result = -1, .optimizer = -1, .momentum = 0.9, .weight_decay = 5e-4, .drop_factor = 0.1,  \
        .seed = 1, .outer_rate = 1.0, .decay = 0.95, .timeout = 300, .tcp = JOB_TCP_INIT           \
    }

/* How a run ended, as rank 0 saw it. */
typedef struct train_outcome {
    bool prints; /* rank 0 is in this process; an elastic job may have got another one */
    trainer_end end;
    bool same; /* all replicas have bitwise the same parameters */
    int64_t parameters;
    double bytes_per_step; /* that rank 0 sent, payload and control */
    trainer_times times;   /* per step, mean */
} train_outcome;

/* Run on the ranks of the job. Prints failures. Returns a status. */
int train_execute(const train_settings *settings, const job_handle *job, train_outcome *outcome);

/* The optimiser that is given, or the model's usual one. */
const char *train_optimizer(const train_settings *settings);

/* Names of models by position, NULL past the last one. */
const char *train_model_name(int position);

/* ---- The run log: JSON lines that `thinwire report` reads, see docs/training.md ------------- */

/* The first line: what is run. */
void train_log_run(jsonl *log, const train_settings *settings, const trainer_spec *spec,
                   int64_t parameters, const job_handle *job);
void train_log_step(jsonl *log, const trainer_step *step);
void train_log_evaluation(jsonl *log, const trainer_evaluation *evaluation);
void train_log_snapshot(jsonl *log, const trainer_snapshot *snapshot);
void train_log_members(jsonl *log, const trainer_members *members);
void train_log_end(jsonl *log, const trainer_end *end, bool same);

/* ---- The timeline, which Chrome's tracing page and Perfetto open ---------------------------- */

/* One row per rank for the training thread and one for the exchange under it. Spans of all ranks of
 * this process go to one file; of several processes each further rank writes FILE.RANK, and one that
 * joins FILE.new-PID. */
typedef struct train_trace train_trace;

/* path NULL: *out is NULL, which is fine to use. Returns a status; prints why not. */
int train_trace_open(train_trace **out, const char *path, const job_handle *job);

/* From any thread. */
void train_trace_span(train_trace *trace, int rank, const trainer_span *span);

/* Returns the status of the run; where that is STATUS_OK but not everything could be written,
 * prints so and returns STATUS_FAILED. */
int train_trace_close(train_trace *trace, int status);

#endif
