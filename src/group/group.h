/* group.h - what a group holds
 *
 *   group.c       create, add tensors, checks, information
 *   open.c        buckets, memory, open, free
 *   agree.c       ranks compare errors and steps, so that all end alike; agree_params.c parameters
 *   allreduce.c   the map: one step of some tensors (step.h)
 *   auto.c        which exchange and wire format, where the group is to choose
 *   background.c  start and wait: a thread that runs steps in the order of buckets
 *   membership.c  ranks that are lost, leave and join; handover.c
 *   state.c       save and load; state_file.c the file of one rank
 */
#ifndef TW_GROUP_H
#define TW_GROUP_H

#include "backend/backend.h"
#include "backend/extent.h"
#include "base/memory.h"
#include "base/random.h"
#include "exchange/exchange.h"
#include "group/auto.h"
#include "select/selector.h"

#include <assert.h>
#include <fenv.h>
#include <pthread.h>

#define TW__TEXT 512

/* Where a tensor is between two calls of the caller. */
typedef enum {
    TW__IDLE = 0,
    TW__STARTED,  /* waits for the rest of its bucket */
    TW__LAUNCHED, /* its bucket is queued or runs */
    TW__FINISHED, /* status and text are set; tw_allreduce_wait makes it idle */
} tw__progress;

/* Gradient and out of a tensor that lies in pieces. */
typedef struct tw__piece_table {
    tw__pieces pieces;
    const void **grads; /* [pieces.count], the caller's */
    float **outs;       /* [pieces.count], the caller's */
    int has_outs;
} tw__piece_table;

typedef struct tw__tensor {
    int64_t n;
    tw__piece_table *table;  /* NULL: it lies in one piece */
    tw_select_params params; /* resolved */
    double per_rank;         /* by which TW_COUNT_PER_RANK has multiplied k and densities; else 1 */
    const struct tw__method *method;
    const tw__backend *backend;
    tw_selector *selector;     /* NULL with dense */
    tw__entries result;        /* of the last step; cap 0 with dense */
    int64_t steps;             /* that succeeded; with a selector as many as it committed */
    uint32_t threshold;        /* oktopk: global threshold to reuse, 0 if none */
    uint32_t threshold_before; /* as it was when the step began */
    int bucket;
    int leader; /* auto: the tensor with which this one's steps begin */

    _Bool has_result; /* a byte each: there may be thousands of tensors */
    _Bool completed;  /* its failed step was completed later: repeating it does nothing */
    _Bool open;       /* its selector holds an open step */

    /* The step under way. */
    tw__progress progress;
    int status;        /* of its last step in the background */
    int failure;       /* of a failed one: where its text is; -1: nowhere */
    int marked;        /* the error of recording `ready`: all ranks are told in the step */
    int32_t selected;  /* entries; -1 while a device has not told */
    int32_t cleared;   /* elements of out that were made zero while entries travelled */
    int32_t placed;    /* sums that were put there since */
    int64_t launch;    /* number of the launch that took it */
    const void *grad;  /* [n], the caller's; NULL with a table */
    float *out;        /* [n], the caller's, or NULL; NULL with a table */
    void *ready;       /* the event at which the gradient is there */
    const float *acc;  /* dense with a selector: [n] gradient and residual */
    void *staged_grad; /* dense: [n] of the type, the host's copy of a device's gradient; or NULL */
    float *staged_out; /* dense: [n] where sums wait for the way to out; or NULL */
    tw_step_info info;
} tw__tensor;

/* Tensors that travel together: first .. first+count-1. */
typedef struct tw__bucket {
    int first;
    int count;
    int started; /* tensors that were started and not launched yet */
} tw__bucket;

/* Those of a bucket that were started when it was its turn. */
typedef struct tw__launch {
    int bucket;
    fenv_t environment; /* of the caller: the step is computed in it */
} tw__launch;

/* Why a launch failed, until all its tensors were waited for. Where more than these fail, the others
 * are told their error's own text. */
#define TW__FAILURES 64
typedef struct tw__failure {
    int tensors; /* that were not waited for; 0: this one is free */
    char text[TW__TEXT];
} tw__failure;

#define TW__LEAST_BUCKET ((double)(64 << 10)) /* elements, when the group chooses */

/* The thread that runs launches, and what it shares with the caller: under the mutex. */
typedef struct tw__worker_thread {
    pthread_t thread;
    int running;
    int ending;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    tw__launch *queue;     /* [ntensors]: launch i is at i % ntensors */
    tw__failure *failures; /* [TW__FAILURES] */
    int64_t launched;      /* launches so far */
    int64_t done;          /* of these, begun */
    int busy;              /* one of them is run, by the thread or by a caller that waits */
    int cursor;            /* the next bucket to launch */
} tw__worker_thread;

/* The last known norm of a rank's residuals. */
typedef struct tw__norm {
    double norm; /* -1: not known */
    int64_t step;
} tw__norm;

/* Elastic groups: see membership.c. */
typedef struct tw__elastic {
    int64_t step;           /* steps of any tensors or bucket that were completed */
    struct tw__step *doubt; /* the step that this rank could complete; others may have, or not */
    int in_doubt;           /* there is such a step */
    int *members;           /* [widest]: tensors of the step under way, or in doubt */
    int built;              /* all that does not depend on the ranks is there */
    int damaged;            /* a step has failed half applied, or an opening half done */
    int has_listener;       /* at the last poll a rank listened for others that join */
    tw__norm *norms;        /* [nranks] */
    int untold;             /* the caller has not been told of a change, or of several */

    /* Of tw_members: since the caller was told. */
    int rank_before, nranks_before;
    int *before;        /* [nranks] */
    tw_lost_rank *lost; /* [nlost] */
    int nlost;
} tw__elastic;

/* Where lists may lie during an exchange. */
enum { TW__HOST_LISTS, TW__DEVICE_LISTS };

/* Bytes of a step's workspace. */
typedef struct tw__workspace {
    size_t host;     /* bookkeeping */
    size_t lists[2]; /* entries in the host's memory, and in the device's */
} tw__workspace;

/* Memory for lists, and who works on it. */
typedef struct tw__list_memory {
    const tw__backend *backend;
    void *context; /* of its lists, codec and dense calls */
    void *memory;
} tw__list_memory;

struct tw_group {
    tw_transport *transport;
    tw_group_params params; /* with defaults filled in */
    int64_t bucket_asked;   /* params.bucket, before auto chooses */
    tw__elastic elastic;
    const tw__scheme *scheme;
    int automatic;                /* it chooses */
    int any_wire;                 /* the wire format too */
    const tw__exchange *exchange; /* NULL: any */
    const tw__wire *wire;         /* NULL: raw */
    tw__plans plans; /* once it is open: the plans to choose from, or the one that it has */
    tw__probe probe;
    const tw__backend *backend; /* of its tensors; where some lie on a device, the device's */
    int leading;                /* the first tensor on it */
    int on_backend;             /* tensors on it */
    int64_t entries;            /* that all tensors select in a step, after warm-up */
    tw__stream *stream;         /* of the backend */
    int resident;               /* lists stay in the device's memory during an exchange */
    tw__device_transport *device_transport; /* moves them between ranks; NULL unless resident */
    int rank;
    int nranks;
    double weight;  /* of this rank */
    double *common; /* [common_room]: tw_group_set_common */
    int ncommon, common_room;
    uint64_t common_hash; /* of their number and values; 0 if there are none */
    uint64_t key;         /* a random number, the same on all ranks */
    uint32_t run;         /* what saved states carry: they belong together if it is the same */
    int is_loaded;        /* the state is one that was loaded, and `run` is its own */

    tw__tensor *tensors; /* [ntensors] */
    int ntensors;
    int room;            /* tensors that fit */
    tw__tuner *tuners;   /* [ntensors] of the steps that begin with a tensor; auto alone */
    tw__bucket *buckets; /* [nbuckets] */
    int nbuckets;
    int widest; /* tensors of the largest bucket */

    void *agree; /* tw__agree_memory: ranks can tell each other even that memory is out */
    int opened;
    _Atomic int broken; /* the error that ended it, or TW_OK; set after its text */
    char *broken_text;  /* [TW__TEXT] */

    tw__deadline device_deadline; /* of the wait for the device that is under way */
    int is_ending;                /* the step is applied or undone: other ranks no longer matter */

    void *results[2]; /* of tensors on the backend, and of the CPU's where that is another */

    /* Workspace of a step. */
    tw__scratch scratch; /* of all selectors */
    tw__workspace workspace;
    void *host_memory;        /* bookkeeping */
    tw__list_memory lists[2]; /* TW__HOST_LISTS, TW__DEVICE_LISTS: none unless resident */
    int *members;             /* [widest]: tensors of the launch */
    tw__segment *segments;    /* [2][widest] */
    int *owners;              /* [2][widest]: the tensor of each segment */
    tw__worker_thread worker;
};

/* ---- agree_params.c */

/* Compare group and tensors over all ranks. Errors: TW_ERR_MISMATCH, the same on all. */
int tw__agree_params(tw_group *g);

/* Two numbers that differ, with as many digits as that takes to see. */
typedef struct tw__two_texts {
    char one[40], other[40];
} tw__two_texts;
tw__two_texts tw__tell_apart(double one, double other);

static inline int64_t tw__bits_of_real(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- agree.c */

/* Every rank brings its error: TW_OK, or that of a failed call, whose text is in tw_last_error.
 * Returns the error of the lowest rank that has one, with its text, on all ranks. */
int tw__agree_error(tw_group *g, int error);
/* Every rank brings a short record; *all gets [nranks] of them, valid until the next call. */
int tw__agree_share(tw_group *g, const void *own, size_t bytes, const void **all);
/* An elastic group: all ranks have the result of the step and could complete it. */
int tw__agree_complete(tw_group *g);
/* Bytes of tw_group.agree. */
size_t tw__agree_memory(int nranks);

static inline int tw__is_weight(double weight) {
    return weight >= 1e-30 && weight <= 1e30; /* as a float it is no infinity and not 0 */
}

/* ---- allreduce.c */

/* One step of these tensors, ascending, whose grad and out are set. */
int tw__allreduce_run(tw_group *g, const int *members, int count);
/* Whether the tensor's failed step was completed later. Then the call that repeats it has nothing to do:
 * asks once. */
static inline int tw__tensor_take_completed(tw__tensor *t) {
    int completed = t->completed;
    t->completed = 0;
    return completed;
}

/* A step in doubt: as if it had not failed, or as if it had not been. Errors: TW_ERR_DEVICE. */
int tw__allreduce_complete(tw_group *g);
void tw__allreduce_undo(tw_group *g);

/* ---- open.c */

/* The transport has other ranks: as a fresh group of these, with residuals, moments and step counters.
 * Collective. Errors: as tw_group_open.
 *   joined  ranks that are new, and are in tw_group_open meanwhile */
int tw__group_reopen(tw_group *g, int joined);

/* ---- membership.c */

static inline int tw__group_is_elastic(const tw_group *g) {
    return g->params.membership == TW_MEMBERSHIP_ELASTIC;
}
/* Ranks that are new, this one or others, take the step counters of the others. Collective.
 * Errors, the same on all ranks: TW_ERR_MEMORY; TW_ERR_PROTOCOL; those of the new ranks' devices; those
 * of tw__transport_wait. */
int tw__group_share_steps(tw_group *g, int is_new);
/* A rank is new, and its group did not open. It is a member already, so when the others agree on who
 * goes on, its vote counts: it votes for them, without itself. */
void tw__group_withdraw(tw_group *g);
/* After a step: now and then this rank's norm. */
void tw__group_note_norm(tw_group *g);

/* ---- step_jobs.c */

/* Memory of a step of tensors first .. first+count-1 with this plan, all together or each alone. */
tw__workspace tw__allreduce_memory(const tw_group *g, const tw__plan *plan, int first, int count);
/* Entries that a tensor's result can have, with any of these plans. */
int64_t tw__allreduce_applied(const tw_group *g, const tw__plans *plans, const tw__tensor *tensor);
/* The jobs of a step of these tensors: shapes[0] is what the plan's exchange takes, shapes[1] what it
 * leaves to its fallback. */
void tw__allreduce_shapes(const tw_group *g, const tw__plan *plan, const int *members, int count,
                          tw__shape shapes[2]);

/* ---- background.c */

void tw__background_end(tw_group *g);
/* Whether the tensor, or with TW_ALL any, is between start and wait. */
int tw__background_busy(tw_group *g, int tensor);

/* ---- group.c */

/* It was opened, at least so far that it can be asked; it may be broken. Errors: TW_ERR_STATE. */
int tw__group_check_open(const tw_group *g);
/* It has no step in doubt. Errors: TW_ERR_STATE. */
int tw__group_check_settled(const tw_group *g);
/* Errors: TW_ERR_INDEX; TW_ERR_STATE when not open; the error that broke the group. */
int tw__group_check(const tw_group *g, int tensor);
/* The same for a tensor that is not under way, of a group that may be broken. */
int tw__group_check_idle(tw_group *g, int tensor);
/* Whether its exchange is dense and stays so. */
int tw__group_is_dense(const tw_group *g);
/* States that are saved from now on do not go with those before. */
static inline void tw__group_renew_run(tw_group *g) {
    uint64_t next = tw__mix(g->key, g->run);
    g->run = (uint32_t)(next ^ next >> 32) | 1; /* 0 is that of files which have none */
    g->is_loaded = 0;
}
/* The group cannot go on: all later calls fail with this error, and the other ranks are told. */
void tw__group_break(tw_group *g, int error);
/* The caller's pointers are as many as the tensor has pieces. Errors: TW_ERR_PARAM. */
int tw__group_check_pieces(const tw_group *g, int tensor, int npieces);
/* The caller lends grads[] and outs[], one for each piece, for a step; NULL: none. The gradient is
 * what the caller's stream has made of it by now. */
void tw__group_begin_tensor(tw_group *g, int tensor, const void *const *grads, float *const *outs);

/* Where the lists of the plan's exchange lie. */
static inline const tw__list_memory *tw__group_lists(const tw_group *g) {
    return &g->lists[g->resident ? TW__DEVICE_LISTS : TW__HOST_LISTS];
}

#endif
