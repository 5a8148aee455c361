/* train_log.h - the run log of the trainer: JSON lines that `thinwire report` reads
 *
 * Kinds of lines: run, step, evaluation, snapshot, end; see docs/training.md.
 */
#ifndef CLI_TRAIN_LOG_H
#define CLI_TRAIN_LOG_H

#include "train_settings.h"

typedef struct run_facts {
    const train_settings *settings;
    const trainer_spec *spec;
    const char *select, *exchange;
    int64_t parameters;
    int nranks;
    const char *transport;
} run_facts;

void train_log_run(jsonl *log, const run_facts *facts);
void train_log_step(jsonl *log, const trainer_step *step);
void train_log_evaluation(jsonl *log, const trainer_evaluation *evaluation);
void train_log_snapshot(jsonl *log, const trainer_snapshot *snapshot);
void train_log_end(jsonl *log, const trainer_end *end, bool same);

#endif
