/* worker.h - one rank of a training run, shared by the files that make it up
 *
 *   trainer.c     the loop
 *   worker.c      set up and tear down: model, optimiser, groups, buffers
 *   checkpoint.c  save and resume; manifest.h is what makes files one checkpoint
 *   local.c       local steps: what a round exchanges and applies
 *   elastic.c     ranks that are lost, leave or join
 *   snapshot.c    what a gradient looks like
 */
#ifndef TRAIN_WORKER_H
#define TRAIN_WORKER_H

#include "base/error.h"
#include "manifest.h"
#include "trainer.h"

/* What ranks sum besides gradients. */
enum { SUM_LOSS, SUM_COUNT, SUM_CORRECT, SUM_MEMORY, SUM_FLAG, SUMS };
/* The tensors in which they do: sums[], pieces[], the model's state if it has one. */
enum { METRICS_SUMS, METRICS_PIECES, METRICS_STATE };
enum { WORDS = 2, PIECES = 4 * WORDS };

/* Elastic: where the exchange of a tensor is. */
enum { TENSOR_IDLE, TENSOR_STARTED, TENSOR_ARRIVED };

/* Elastic: from a step on, nranks ranks take the blocks of `batch` examples that follow, one each. */
typedef struct data_plan {
    int64_t step, epoch, block;
    int rank, nranks;
} data_plan;

typedef struct worker {
    const trainer_spec *spec;
    const dataset *data;
    const trainer_watch *watch; /* never NULL */
    trainer_error *error;
    tw_transport *transport; /* of the group */
    int rank, nranks;

    model *model;
    optimizer optimizer;
    tw_group *group;   /* tensor i is the model's tensor ntensors - 1 - i: the order of backward */
    tw_group *metrics; /* dense sums of what METRICS_ names */
    float sums[SUMS];
    float *pieces;       /* [nranks * PIECES]: 16 bits each, so that sums are exact */
    rank_digests *words; /* [nranks]: of which they are the pieces */

    batch_spec train, test;
    batch_buffers buffers; /* in `memory` */
    char *memory;
    int64_t steps_per_epoch;

    float *carry;  /* [n]: means of tensors that arrived in a step that was skipped */
    bool carries;  /* carry holds something */
    float *acc;    /* [n]: residuals, then with the gradient, in a step that is observed */
    bool observed; /* this step is */

    float *base, *velocity; /* [n] of local steps: what the last round left, the outer momentum */
    float *start;           /* [n], delayed: the values at the start of the round */
    bool pending;           /* delayed: the exchange of the last round is under way, in `means` */

    int64_t step; /* the next one */
    int64_t skipped, skipped_in_row;
    double elapsed;
    tw_traffic traffic; /* of the transport, up to the last step */
    int failed;         /* first error of a start within the backward pass */
    trainer_end *end;

    /* [n], apart from the gradients. Elastic: a repeated exchange needs these. Delayed: the next round
     * makes new ones. */
    float *means;

    /* Elastic groups. */
    unsigned char *progress; /* [ntensors]: TENSOR_ */
    bool synced;             /* this rank has the parameters: false on one that joins */
    bool exchanged;          /* the exchange of `step` is complete, or refused */
    bool evaluating;         /* an evaluation is under way */
    int64_t evaluated;       /* the step of the last evaluation that was told; -1: none */
    bool completed;          /* the library has completed the step that had failed */
    bool others_past;        /* another rank has completed the exchange of `step` */
    bool leaving;            /* the others know that this rank is to leave */
    bool change_due;         /* ranks may join or leave after this step */
    int told;                /* ranks that there were when a change was last told */
    double waiting;          /* since when this rank waits for the exchange */
    double looked;           /* when ranks last looked for newcomers; of rank 0 */
    int64_t taken;           /* the first step whose batch this rank has not taken; -1: it is new */
    int64_t blocks;          /* of an epoch */
    data_plan plan, next;    /* next holds from its step on */
    void *shared;            /* records of all ranks */
} worker;

static inline bool worker_is_elastic(const worker *w) {
    return w->spec->group.membership == TW_MEMBERSHIP_ELASTIC;
}

/* The group's number of the model's tensor, and the other way round. */
static inline int worker_group_tensor(const worker *w, int tensor) {
    return w->model->ntensors - 1 - tensor;
}

/* Keeps the text of the first error; returns the error. Not tw__fail: the library calls that follow on
 * this thread would overwrite it. */
int worker_fail(worker *w, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Passes a status on. An error keeps "doing: " and tw_last_error(); doing may be empty. */
int worker_check(worker *w, const char *doing, int status);
void worker_note(const worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

int worker_create(worker *w, tw_transport *transport, tw_transport *metrics);
void worker_free(worker *w);

/* sums[] over all ranks. Collective. */
int worker_allreduce_sums(worker *w);

/* Starts the exchange of a tensor: the mean comes back to where its gradient was or, if the group is
 * elastic, to means. w->failed keeps the first error. */
void worker_start(worker *w, int tensor, float *grad);
/* Waits until means[n] holds all of them. *refused: some tensors were refused, the same ones on all
 * ranks. The means of the others are then carried to the next step. */
int worker_collect(worker *w, float *means, bool *refused);
/* Adds what the group reports of the exchange that has ended. */
int worker_note_exchange(worker *w, trainer_step *s);
/* After a step that was refused: with `arrived` the means of other tensors are carried to the next
 * one. */
void worker_carry(worker *w, const float *means, bool arrived);

/* Fills the buffers and makes a batch of them. */
int worker_batch(worker *w, const batch_spec *spec, int64_t epoch, int64_t step,
                 model_batch *batch);

/* ---- checkpoint.c */

/* Makes the directory for checkpoints. With spec->resume, goes on from the newest checkpoint that is
 * whole; from step 0 if there is no checkpoint. Collective. */
int checkpoint_begin(worker *w);
int checkpoint_save(worker *w);

/* ---- local.c */

/* base, if the run has local steps. */
int local_create(worker *w);
/* Whether the step under way is the last of a round; without local steps never. */
bool local_ends_round(const worker *w);
/* The end of a round: exchange and outer step. Delayed: the outer step of the round before, and the
 * exchange of this one begins. *refused: a round is dropped. */
int local_end_round(worker *w, trainer_step *s, bool *refused);

/* ---- trainer.c */

/* One evaluation; fills w->end. Collective. */
int evaluate_once(worker *w);

/* ---- elastic.c */

int elastic_create(worker *w);
/* The ranks of an open group; a rank that joins gets the parameters. Collective. */
int elastic_begin(worker *w, int status);
/* After `status` of a call that began at `since`: TW_OK when the ranks that are left have agreed on
 * where they are. Other errors than the loss of a rank are passed on. */
int elastic_recover(worker *w, int status, double since);
/* Waits for all tensors; as collect in trainer.c, but for lost ranks. */
int elastic_collect(worker *w, bool *refused);
/* Sums over ranks, as share_loss of trainer.c, and whether hashes are equal. Not repeated when a rank
 * is lost: others may have the sums. */
int elastic_share_loss(worker *w, double loss, int64_t count, int64_t correct, uint64_t hash,
                       double *total);
/* The mean over ranks of the model's state. */
int elastic_average_state(worker *w);
/* After a step: ranks may leave and join. */
int elastic_change(worker *w);
/* At the end: no rank goes before all have their results. */
int elastic_finish(worker *w);
/* Epoch of a step, and the block of examples that this rank takes. */
int64_t elastic_block(const worker *w, int64_t step, int64_t *epoch);

/* ---- snapshot.c */

/* Fills low, high, counts and contraction from u[n]; snapshot->n and k are set. */
void snapshot_fill(trainer_snapshot *snapshot, const float *u);

#endif
