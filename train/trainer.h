/* trainer.h - data-parallel training of one rank, through the public API of libthinwire alone
 *
 *     batch -> forward -> backward --ready--> tw_allreduce_start     (in the background)
 *                             |                    |
 *                             +-------> tw_allreduce_wait -> optimiser -> next batch
 *
 * All ranks start from the same parameters and apply the same mean gradients, so they stay bitwise
 * equal. A gradient with NaN or infinity on any rank makes all ranks skip the step. Each rank
 * reports what happens to a watcher; nothing is printed.
 *
 * With local steps each rank applies its own gradients, and a round exchanges what changed; replicas
 * are equal after each round; if rounds are delayed, after the last one. A round with NaN or infinity
 * on any rank is dropped on all of them. Losses of steps are this rank's own then.
 *
 * With an elastic group the ranks may change: see elastic.c.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <signal.h>

#include "data/dataset.h"
#include "model.h"
#include "optimizer.h"
#include "thinwire.h"

#define TRAINER_BINS 64

typedef struct trainer_spec {
    model_spec model;
    optimizer_spec optimizer;
    schedule_spec schedule;
    tw_group_params group; /* elastic: without checkpoints and local steps */
    bool joins;            /* elastic: the transport is one of tw_transport_join */
    const volatile sig_atomic_t
        *leaves; /* elastic: not 0 when this rank is to leave; NULL: never */
    batch_form form;
    int batch;  /* samples a rank takes per step */
    int length; /* tokens in a sequence; 0 for images */
    bool augment;
    uint64_t seed;
    int64_t steps;          /* to train */
    int64_t evaluate_every; /* steps; 0: only at the end */
    int64_t snapshot_every; /* steps; 0: never */
    int64_t most_skipped;   /* steps in a row that may be skipped; then the run stops */
    int64_t local_steps;    /* of a round, in which each rank trains alone; 0: exchange each step */
    double outer_rate, outer_momentum; /* of the outer step, with Nesterov's momentum */
    bool delayed;            /* the exchange of a round runs while the next one computes */
    const char *checkpoints; /* directory, or NULL; holds none of another run unless resume */
    int64_t checkpoint_every;
    bool resume;
} trainer_spec;

/* Where a step's time goes, in seconds. The first five are one after the other and make up the
 * step; the others run in the background. */
typedef struct trainer_times {
    double data, forward, backward;
    double exposed; /* waiting for the exchange after the backward pass */
    double optimiser;
    double select;
    double wait; /* for the slowest rank */
    double exchange, apply;
} trainer_times;

typedef struct trainer_step {
    int64_t step, epoch;
    double loss, accuracy; /* of all ranks' batches; with local steps of this rank's own */
    double rate;
    int64_t k, selected, applied; /* all tensors; selected by this rank */
    double density;               /* k over all elements */
    tw_traffic traffic;           /* of this rank, in this step */
    trainer_times times;
    double elapsed;  /* since the run began, evaluations and checkpoints left out */
    int64_t skipped; /* skipped steps so far */
} trainer_step;

typedef struct trainer_evaluation {
    int64_t step, epoch;
    double loss, accuracy;
    double elapsed;
} trainer_evaluation;

/* acc = gradient + residual of this rank, and what top-k leaves of it. */
typedef struct trainer_snapshot {
    int64_t step, n, k;
    double low, high;
    int64_t counts[TRAINER_BINS];
    double contraction; /* |u - Top_k(u)|^2 / |u|^2 */
} trainer_snapshot;

/* The ranks have changed, or, on a rank that has just joined, are known. */
typedef struct trainer_members {
    int64_t step; /* the next one, or the one that is repeated */
    int rank, nranks, nranks_before;
    int joined;               /* new ranks: the last of them */
    const tw_lost_rank *lost; /* [nlost], with an heir: it has left */
    int nlost;
    double seconds; /* in which no training went on */
    double elapsed;
} trainer_members;

/* One stage of a step on the clock, for a timeline. */
typedef struct trainer_span {
    const char *name; /* "forward", "exchange" ... */
    bool background;
    int64_t step;
    double begin, end; /* seconds on CLOCK_MONOTONIC */
} trainer_span;

/* Called on every rank, from the thread that runs the rank. Any may be NULL. */
typedef struct trainer_watch {
    void *context;
    void (*step)(void *context, const trainer_step *step);
    void (*evaluation)(void *context, const trainer_evaluation *evaluation);
    void (*snapshot)(void *context, const trainer_snapshot *snapshot);
    void (*span)(void *context, const trainer_span *span);
    void (*members)(void *context, const trainer_members *members);
    void (*note)(void *context, const char *text); /* worth a line: resumed, damaged checkpoint */
} trainer_watch;

/* What a group with scheme auto chose for the tensors of a bucket. */
typedef struct trainer_choice {
    int64_t n; /* elements of these */
    int tensors;
    tw_choice choice;
} trainer_choice;
#define TRAINER_CHOICES 8

typedef struct trainer_end {
    int64_t steps, skipped;
    double loss, accuracy; /* on the test data */
    double seconds;
    uint64_t hash; /* of the parameters */
    bool same;     /* elastic: all ranks have this hash */
    bool left;     /* elastic: this rank has left before the end */
    int nchoices;
    trainer_choice choices[TRAINER_CHOICES]; /* of the first buckets; none but with auto */
} trainer_end;

/* Whether the model can learn from the data: text or images, and of what shape. */
bool trainer_fits(const model_kind *kind, const dataset_info *info);

/* How many complete checkpoints the directory holds; 0 where there is no such directory. */
int trainer_checkpoints(const char *directory);

typedef struct trainer_error {
    char text[1200];
} trainer_error;

/* Train one rank. `transport` is for gradients, `metrics` for losses and running statistics; both have
 * the same ranks. With an elastic group `transport` is for both, and `metrics` NULL. Collective. Returns TW_OK, or an error of tw_errors with words in *error. */
int trainer_run(const trainer_spec *spec, const dataset *data, tw_transport *transport,
                tw_transport *metrics, const trainer_watch *watch, trainer_end *end,
                trainer_error *error);

#endif
