/* train_trace.h - a timeline that Chrome's tracing page and Perfetto open
 *
 * One row per rank for the training thread and one for the exchange under it. Spans of all ranks
 * of this process go to one file; under mpirun each further rank writes FILE.RANK.
 */
#ifndef CLI_TRAIN_TRACE_H
#define CLI_TRAIN_TRACE_H

#include "trainer.h"

typedef struct train_trace train_trace;

/* path NULL: *out is NULL, which is fine to use. Returns a status; prints why not. */
int train_trace_open(train_trace **out, const char *path, int first_rank);

/* From any thread. */
void train_trace_span(train_trace *trace, int rank, const trainer_span *span);

/* Returns STATUS_OK, or prints that not everything could be written. */
int train_trace_close(train_trace *trace);

#endif
