/* train_settings.h - what `thinwire train` and `thinwire demo` run, and how it is run
 *
 * Settings are what the command line says. train_execute turns them into the specification of the
 * trainer, with the defaults of the model, and runs it on all ranks.
 */
#ifndef CLI_TRAIN_SETTINGS_H
#define CLI_TRAIN_SETTINGS_H

#include "json.h"
#include "ranks.h"
#include "trainer.h"

typedef struct train_settings {
    const char *name;     /* of the run, in logs; NULL: the scheme */
    int model;            /* position */
    const char *size;     /* of bert */
    const char *data;     /* NULL: the embedded set */
    int scheme;           /* position */
    int select, exchange; /* positions; -1: the scheme's */
    int wire;             /* position; -1: raw, and auto chooses */
    double density;
    int64_t ranks;
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
    int64_t drop_every;
    double drop_factor;
    bool correct_momentum; /* momentum before selection, not in the optimiser */
    bool augment;
    int64_t evaluate_every, snapshot_every;
    int64_t seed;
    double timeout;
    const char *log_path;   /* run log, NULL: none */
    const char *trace_path; /* timeline, NULL: none */
    const char *checkpoints;
    int64_t checkpoint_every;
    bool resume;
    bool quiet; /* no line per evaluation */
} train_settings;

#define TRAIN_SETTINGS_INIT                                                                        \
    {                                                                                              \
        .select = -1, .exchange = -1, .wire = -1, .density = 0.01, .optimizer = -1,                \
        .momentum = 0.9, .weight_decay = 5e-4, .drop_factor = 0.1, .seed = 1, .timeout = 300       \
    }

/* How a run ended, as rank 0 saw it. */
typedef struct train_outcome {
    trainer_end end;
    bool same; /* all replicas have bitwise the same parameters */
    int64_t parameters;
    int64_t steps;
    double bytes_per_step; /* that rank 0 sent, payload and control */
    trainer_times times;   /* per step, mean */
} train_outcome;

/* Run on the ranks of the job. Prints failures. Returns a status. */
int train_execute(const train_settings *settings, const rank_job *job, train_outcome *outcome);

/* Names of models by position, NULL past the last one. */
const char *train_model_at(int position);

#endif
