/* group.h - what a group holds, and the stages of its step
 *
 *   group.c       create, add, open, free: the tensors and their memory
 *   agree.c       ranks compare parameters and errors, so that all end alike
 *   auto.c        which exchange and wire format, where the group is to choose
 *   allreduce.c   the map: one step of some tensors, select -> agree -> exchange -> apply (step.h)
 *   background.c  start and wait: a thread that runs steps in the order of buckets
 *   state.c       save and load; state_file.c the file of one rank
 */
#ifndef TW_GROUP_H
#define TW_GROUP_H

#include "group/auto.h"
#include "backend/cuda/device_transport.h"
#include "exchange/exchange.h"
#include "select/selector.h"

#include <fenv.h>
#include <pthread.h>

#define TW__TEXT 512

/* Where a tensor is between two calls of the caller. */
typedef enum {
    TW__IDLE = 0,
    TW__STARTED,  /* waits for the rest of its bucket */
    TW__LAUNCHED, /* its bucket is with the thread */
    TW__FINISHED, /* status and text are set; tw_allreduce_wait makes it idle */
} tw__progress;

typedef struct tw__tensor {
    int64_t n;
    tw_select_params params; /* resolved */
    const struct tw__method *method;
    tw_selector *selector; /* NULL with dense */
    tw__entries result;    /* of the last step; cap 0 with dense */
    int has_result;
    int64_t steps;             /* that succeeded; with a selector as many as it committed */
    uint32_t threshold;        /* oktopk: global threshold to reuse, 0 if none */
    uint32_t threshold_before; /* as it was when the step began */
    int bucket;
    tw__auto_steps plan; /* auto: of the steps that begin with this tensor */
    int leader;          /* the tensor with which this one's steps begin */

    /* The step under way. */
    tw__progress progress;
    int64_t launch;   /* number of the launch that took it */
    const void *grad; /* [n], the caller's */
    float *out;       /* [n], the caller's, or NULL */
    int64_t cleared;  /* so many elements of out were made zero by now */
    int64_t early;    /* so many sums were put there since */
    int64_t selected;
    int open;         /* its selector holds an open step */
    void *ready;      /* on a GPU: the event at which the gradient is there */
    int marked;       /* whether that could be recorded: all ranks are told in the step */
    void *dense_grad; /* dense on a GPU: [n] of the type, pinned */
    float *dense_out; /* [n], pinned; with auto: where sums wait while out is the gradient */
    int status;
    char text[TW__TEXT]; /* of an error in the background */
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
    fenv_t environment; /* of the caller: the thread computes in it */
} tw__launch;

#define TW__LEAST_BUCKET ((double)(64 << 10)) /* elements, when the group chooses */

/* The thread that runs buckets, and what it shares with the caller: under the mutex. */
typedef struct tw__worker_thread {
    pthread_t thread;
    int running;
    int ending;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    tw__launch *queue; /* [ntensors]: launch i is at i % ntensors */
    int64_t launched;  /* launches so far */
    int64_t done;      /* of these, begun by the thread */
    int cursor;        /* the next bucket to launch */
} tw__worker_thread;

/* Bytes of a step's workspace. */
typedef struct tw__workspace {
    size_t host;  /* bookkeeping */
    size_t here;  /* entries in the host's memory */
    size_t there; /* and on the GPU */
} tw__workspace;

struct tw_group {
    tw_transport *transport;
    tw_group_params params; /* with defaults filled in */
    const tw__scheme *scheme;
    int automatic;                /* it chooses */
    int any_wire;                 /* the wire format too */
    const tw__exchange *exchange; /* NULL: any */
    const tw__wire *wire;         /* NULL: raw */
    tw__plans ways;               /* once it is open: what it chooses from, or the one that it is */
    tw__probe probe;
    const tw__kernels *kernels;
    tw__device_stream *lane;       /* NULL unless tensors lie on a GPU */
    tw__device_transport *carrier; /* NULL unless entries stay there */
    int rank;
    int nranks;

    tw__tensor *tensors; /* [ntensors] */
    int ntensors;
    int room;            /* tensors that fit */
    tw__bucket *buckets; /* [nbuckets] */
    int nbuckets;
    int widest; /* tensors of the largest bucket */

    void *agree; /* tw__agree_memory: ranks can tell each other even that memory is out */
    int opened;
    _Atomic int broken; /* the error that ended it, or TW_OK; set after its text */
    char *broken_text;  /* [TW__TEXT] */

    /* Workspace of a step. */
    tw__workspace workspace;
    void *host_memory;     /* bookkeeping */
    void *lists_memory;    /* entries; with a GPU, pinned */
    void *memory_there;    /* entries on the GPU */
    int resident;          /* entries stay on the GPU */
    tw__lists lists;       /* who works on them */
    tw__lists lists_there; /* on the GPU */
    int *members;          /* [widest]: tensors of the step */
    tw__segment *segments; /* [2][widest] */
    int *owners;           /* [2][widest]: the tensor of each segment */
    float *scratch;        /* [TW__BLOCK] */
    tw__worker_thread worker;
};

/* ---- agree.c */

/* Compare group and tensors over all ranks. Errors: TW_ERR_MISMATCH, the same on all. */
int tw__agree_params(tw_group *g);
/* Every rank brings its error, TW_OK or the result of a failed call whose text is in
 * tw_last_error. Returns the error of the lowest rank that has one, with its text, on all. */
int tw__agree_error(tw_group *g, int error);
/* The same for a step, without room for texts: `tensor` and `index` say what was wrong. Also
 * compares which tensors the ranks are about to exchange. *seconds becomes the largest of all
 * ranks'. */
int tw__agree_step(tw_group *g, int error, int tensor, int64_t index, const int *members, int count,
                   double *seconds);
size_t tw__agree_memory(int nranks);

/* ---- allreduce.c */

/* One step of these tensors, ascending, whose grad and out are set. */
int tw__allreduce_run(tw_group *g, const int *members, int count);
/* Memory of a step of tensors first .. first+count-1 this way, all on board or each alone. */
tw__workspace tw__allreduce_memory(const tw_group *g, const tw__plan *way, int first, int count);
/* Entries that a tensor's result can have, any of these ways. */
int64_t tw__allreduce_applied(const tw_group *g, const tw__plans *ways, const tw__tensor *tensor);
/* The jobs of a step of these tensors: shapes[0] is what the way's exchange takes, shapes[1] what it
 * leaves to butterfly. */
void tw__allreduce_shapes(const tw_group *g, const tw__plan *way, const int *members, int count,
                          tw__shape shapes[2]);

/* ---- background.c */

void tw__background_end(tw_group *g);
/* Whether the tensor, or with TW_ALL any, is between start and wait. */
int tw__background_busy(tw_group *g, int tensor);

/* ---- group.c */

/* It was opened, at least so far that it can be asked; it may be broken. Errors: TW_ERR_STATE. */
int tw__group_check_open(const tw_group *g);
/* Errors: TW_ERR_INDEX; TW_ERR_STATE when not open; the error that broke the group. */
int tw__group_check(const tw_group *g, int tensor);
/* The same for a tensor that is not under way, of a group that may be broken. */
int tw__group_check_idle(tw_group *g, int tensor);
static inline int tw__on_gpu(const tw__tensor *t) {
    return t->params.device == TW_CUDA;
}
void tw__group_break(tw_group *g, int error);
/* On a GPU: the tensor's gradient is what the caller's stream has made by now. */
void tw__group_mark(tw_group *g, int tensor);

#endif
