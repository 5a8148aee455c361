/* worker.h - one rank of a training run, shared by the files that make it up
 *
 *   trainer.c     the loop
 *   worker.c      set up and tear down: model, optimiser, groups, buffers
 *   checkpoint.c  save and resume
 */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include "trainer.h"

/* What ranks add up beside the gradients. */
enum { SUM_LOSS, SUM_COUNT, SUM_CORRECT, SUM_MEMORY, SUM_FLAG, SUMS };

typedef struct worker {
    const trainer_spec *spec;
    const dataset *data;
    const trainer_watch *watch;
    trainer_error *error;
    tw_transport *transport; /* of the group */
    int rank, nranks;

    model *model;
    optimizer optimizer;
    tw_group *group;  /* tensor i is the model's tensor ntensors - 1 - i: the order of backward */
    tw_group *beside; /* dense sums: tensor 0 is sums[SUMS], tensor 1 the model's state */
    float sums[SUMS];

    batch_plan train, test;
    batch_buffers buffers;
    int64_t steps_per_epoch;

    float *carry;  /* [n]: means that were applied in a step that was skipped after all */
    bool carries;  /* carry holds something */
    float *acc;    /* [n]: residuals, then with the gradient, in a step that is observed */
    bool observed; /* this step is */

    int64_t step; /* the next one */
    int64_t skipped, skipped_in_row;
    double elapsed;
    int failed; /* first error of a start within the backward pass */
} worker;

/* Keep the words of an error, once; returns the error. */
int worker_fail(worker *w, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, with tw_last_error(). */
int worker_fail_library(worker *w, const char *doing, int error);
void worker_note(const worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

int worker_create(worker *w, tw_transport *transport, tw_transport *beside);
void worker_free(worker *w);

/* sums[] over all ranks. Collective. */
int worker_add_up(worker *w);

/* Fill the buffers and make a batch of them. */
int worker_batch(worker *w, const batch_plan *plan, int64_t epoch, int64_t step,
                 model_batch *batch);

/* ---- checkpoint.c */

int checkpoint_save(worker *w);
/* Go on from the newest checkpoint that is whole; from the start where there is none at all. */
int checkpoint_resume(worker *w);

#endif
