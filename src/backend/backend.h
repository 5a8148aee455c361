/* backend.h - who works on memory: one table of calls for each kind of device
 *
 * A backend owns memory, the order of work, the fold and the selection, operations on lists, the
 * codec of wire formats, dense sums, and the end of a step. The rest of the library calls these and
 * never asks where memory lies.
 *
 *   cpu    backend/cpu    work is done when a call returns; streams and events are empty
 *   cuda   backend/cuda   work is queued on a stream
 *
 * A selector takes its backend when it is created, a group with its first tensor. Methods, exchanges
 * and wire formats say in their rows which backends have them.
 *
 * To add a backend: a folder with its row, the row in backend.c, build lines. */
#ifndef TW_BACKEND_BACKEND_H
#define TW_BACKEND_BACKEND_H

#include "backend/adamw.h"
#include "exchange/entries.h"
#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tw__method;
struct tw__wire_calls;
struct tw__dense_calls;

/* The order in which a group's work runs on a device. NULL on the CPU. */
typedef struct tw__stream tw__stream;

/* Where the elements of a vector lie: starts[p] .. starts[p + 1] - 1 in piece p of memory. */
typedef struct tw__pieces {
    int count;
    const int64_t *starts; /* [count + 1] */
} tw__pieces;

/* The piece of an element. */
static inline int tw__piece_of(const tw__pieces *pieces, int64_t index) {
    int low = 0, high = pieces->count - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (pieces->starts[middle + 1] <= index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Asked while a device works: TW_OK to go on waiting, else the error that ends the wait. first: the
 * wait begins. Does not sleep. */
typedef int tw__check(void *context, int first);

/* What a selector's state holds one of for each element. */
typedef enum {
    TW__RESIDUAL,
    TW__FIRST,  /* velocity of momentum, or AdamW's m */
    TW__SECOND, /* AdamW's v */
} tw__vector;

/* One step, as the selector asks for it. */
typedef struct tw__select_step {
    int64_t step;   /* steps before this one */
    int64_t k;      /* entries to select */
    int64_t next_k; /* in the next step */
    int k_changed;  /* k is not that of the step before */
    int k_changes;  /* next_k is not k */
    tw__adamw adamw;
} tw__select_step;

/* One selector's part of a batch: what it is asked, and what comes of it. */
typedef struct tw__select_task {
    void *state;              /* the backend's */
    const void *const *grads; /* [pieces] */
    tw__select_step step;
    tw_select_info *info;
    tw_sparse sparse; /* the selection; its count is -1 until `wait`, or known at once */
    int open; /* its step is open; 0: it failed, or was not begun, and nothing has changed */
} tw__select_task;

/* Host memory for what a call needs until it returns: the selectors of a group share it. The more of
 * them it has room for, the more are worked on together. */
typedef struct tw__scratch {
    void *memory; /* from tw__reserve */
    size_t bytes;
    int64_t elements; /* of all tensors whose selectors share it */
} tw__scratch;

/* What a selector learns from step to step. An undone step teaches nothing. */
typedef struct tw__learned {
    uint32_t guess;  /* magnitude bits to collect from in the next pass; 0: not known yet */
    double rank;     /* exact: entries that reached the guess when it was made; 0: not known */
    double growth;   /* exact: entries that reach a guess a step later, over that rank */
    double margin;   /* exact: candidates wanted, over k */
    float threshold; /* reuse: the threshold in use */
    int64_t age;     /* reuse: steps since the threshold was last renewed in its turn */
} tw__learned;

/* What an exchange leaves for one tensor. Indices of the lists start at `base`. */
typedef struct tw__outcome {
    int64_t base;
    int64_t selected; /* entries that this rank selected */
    int on_device;    /* the lists lie in the backend's memory, else in the host's */
    int rounded;      /* values travelled rounded: `kept` may hold remainders of applied entries */
    int left_more;    /* `left` has elements that this rank did not select (fulltopk) */
    tw__list left;    /* leaves the residual */
    tw__list kept;    /* is added to the residual afterwards */
    tw__list result;  /* the sums over ranks */
    float divisor;    /* of the sums */
    int32_t *idx;     /* [result.count] gets the indices, from 0; backend's memory */
    float *val;       /* [result.count] gets the sums, divided; likewise */
    float *const *outs; /* [pieces] get the result as a whole vector; may be NULL */
    int64_t cleared;    /* elements of out that are zero already */
    int64_t placed;     /* entries of the result that stand in out already */
} tw__outcome;

/* Elements of out that are cleared in one go while entries travel: 30 us on a CPU. */
#define TW__CLEARED_AT_ONCE ((int64_t)1 << 18)

/* Selections that run and wait get at once: as many as a GPU runs in one launch. If the library was
 * built with CUDA 12, a launch takes 13, see step.cuh. */
#define TW__SELECT_AT_ONCE 110

typedef struct tw__backend {
    const char *name;
    int device; /* the tw_device that it serves */
    /* Lists stay in its memory from this many entries a tensor on: for fewer its launches take longer
     * than the host's work. 0: it has no memory of its own. */
    int64_t resident_k;

    /* ---- devices. check_*: TW_OK, or TW_ERR_DEVICE with the field and what is accepted. */
    int (*check_device)(int ordinal);
    int (*check_pointer)(const void *pointer, const char *field, int ordinal, size_t element);
    int (*device_name)(int ordinal, const char **name);
    /* The bare pass sum += add, queued on a native stream. NULL on the CPU: see tw_accumulate. */
    int (*accumulate)(float *sum, const float *add, int64_t n, void *native);
    /* And that over the memory of AdamW: e, m and v += g. */
    int (*accumulate_adamw)(float *e, float *m, float *v, const float *g, int64_t n, void *native);

    /* ---- order of work. Errors: TW_ERR_DEVICE, TW_ERR_MEMORY.
     * Every wait for a stream within a step asks `check`, unless that is NULL, again and again; if it
     * fails, the stream is given up: later waits fail at once, and what the stream may still use is
     * not freed while it is at work. */
    int (*stream_create)(tw__stream **stream, int ordinal, tw__check *check, void *context);
    void (*stream_free)(tw__stream *stream);
    /* The calling thread, one of the library, works for this stream from now on. */
    void (*stream_adopt)(const tw__stream *stream);
    void *(*stream_native)(const tw__stream *stream); /* as the device's own API has it */
    int (*stream_wait)(tw__stream *stream);           /* for all that was queued */
    /* Give it up. for_good: more may yet be queued, by others, at any time. */
    void (*stream_give_up)(tw__stream *stream, int for_good);
    /* Remember where a native stream is now. *event is made when it is NULL. */
    int (*event_record)(tw__stream *stream, void *native, void **event);
    int (*stream_follow)(tw__stream *stream, void *event); /* later work waits for the event */
    /* 1: yes, 0: not yet, or an error. */
    int (*event_reached)(const tw__stream *stream, void *event);
    void (*event_free)(tw__stream *stream, void *event);
    /* Seconds that the selections between begin and end took the device, once they were waited for.
     * A backend without such a measure leaves *seconds alone. */
    int (*batch_begin)(tw__stream *stream);
    int (*batch_end)(tw__stream *stream);
    int (*batch_seconds)(tw__stream *stream, double *seconds);

    /* ---- memory: the device's, and host memory that the device reads and writes at full speed */
    int (*alloc)(tw__stream *stream, void **memory, size_t bytes);
    void (*free)(tw__stream *stream, void *memory);
    void *(*host_alloc)(tw__stream *stream, size_t bytes); /* NULL when there is none */
    void (*host_free)(tw__stream *stream, void *memory);
    int (*copy)(tw__stream *stream, void *to, const void *from, size_t bytes); /* any to any */

    /* ---- fold and select: one selector's state */
    /* *scratch: bytes of tw__scratch that it needs, beside *memory. Selectors that are never called
     * at the same time can share them. */
    int (*selector_memory)(int64_t n, int pieces, const tw_select_params *params,
                           const struct tw__method *method, tw_memory *memory, size_t *scratch);
    /* pieces: of gradients and outs; params and they outlive the state. stream: the group's, or NULL
     * to work on params->stream. scratch: that of the group, or NULL: it takes its own. On error
     * nothing is left. */
    int (*selector_create)(void **state, const tw__pieces *pieces, const tw_select_params *params,
                           const struct tw__method *method, tw__stream *stream,
                           const tw__scratch *scratch);
    void (*selector_free)(void *state);
    /* acc = gradient + residual, and the selection, for all tasks at once: each has another
     * selector, all of one group or alone. A task that fails does not keep the others from going on.
     * Returns the error of the first that does: TW_ERR_NUMBER with info->bad_index; TW_ERR_DEVICE. */
    int (*run)(tw__select_task *tasks, int count);
    /* For the selections of these tasks. A bad number may come to light only now: then the task's
     * step is not open any more. Errors as run's. */
    int (*wait)(tw__select_task *tasks, int count);
    int (*info)(const void *state, tw_select_info *info);
    /* acc alone: nothing is selected, all of acc is sent. *acc points to it until the step ends.
     * NULL: the backend cannot. */
    int (*fold)(void *state, const void *const *grads, const tw__select_step *step,
                const float **acc, tw_select_info *info);
    /* End the open step: the selection, or its ascending part idx[count], leaves the residual.
     * Errors: TW_ERR_INDEX, TW_ERR_DEVICE; the step stays open. */
    int (*commit)(void *state, const int32_t *idx, int64_t count);
    void (*undo)(void *state, const void *const *grads); /* or it did not happen */
    /* After a step has ended: each element of the residual times params->decay. *lost: its sum
     * before minus its sum after, in double and in the order of kernels.h. Waits. */
    int (*decay)(void *state, double *lost);
    /* End it as an exchange says, and write the result. Clearing out, of which outcome->cleared
     * elements are done, may be begun earlier by `clear`; NULL: it may not. */
    int (*apply)(void *state, const tw__outcome *outcome);
    void (*clear)(void *state, float *out, int64_t first, int64_t count);
    /* Subtract a result, in the backend's memory, from params[pieces]: queued on params->stream. */
    int (*subtract)(void *state, const tw_sparse *result, float *const *params);
    /* The selection as entries with indices from `base` on: all of it, or the `most` largest.
     * *count is how many. To the backend's memory, or to host_alloc's. Queued. */
    int (*pack)(void *state, int64_t selected, int64_t most, int64_t base, int on_device,
                tw__entry *to, int64_t *count);
    /* acc of the open step at the indices of a list in the host's memory, to values[list->count]. */
    int (*gather)(void *state, const tw__list *list, int64_t base, float *values);
    int (*peek)(void *state, int64_t index, float *value); /* one element of acc */
    /* Whether acc overflows when `sent` leaves it and `kept` is added; both in the backend's memory.
     * NULL where lists never are: see tw__selector_overflows. */
    int (*overflows)(void *state, const tw__list *kept, const tw__list *sent, int64_t base,
                     int *yes);

    /* ---- a selector's state between steps. All wait. */
    int (*get)(void *state, tw__vector which, int64_t first, int64_t count, float *to);
    int (*set)(void *state, tw__vector which, const float *from); /* [n] */
    int (*get_learned)(void *state, tw__learned *learned);
    int (*set_learned)(void *state, const tw__learned *learned);
    int (*reset)(void *state); /* as created */

    /* ---- lists, wire formats and whole vectors of an exchange, all with one context */
    const tw__list_calls *lists;
    const struct tw__wire_calls *codec;
    const struct tw__dense_calls *dense;
    /* For lists of `entries` in all, summed from at most `runs` at a time. */
    size_t (*lists_memory)(int64_t entries, int runs);
    int (*lists_create)(void **context, tw__stream *stream, int64_t entries, int runs);
    void (*lists_free)(void *context);
} tw__backend;

extern const tw__backend tw__backend_cpu;

/* The backend of a tw_device. Errors: TW_ERR_PARAM; TW_ERR_DEVICE when this build lacks it. */
int tw__backend_find(int device, const tw__backend **backend);

/* ---- device_transport.c: device memory from rank to rank, one of three ways
 *
 *   lent     the caller's own transfers (tw_transport_set_device), as NCCL
 *   direct   ranks are threads of one process: the receiver copies from the sender's memory
 *   staged   over any transport: chunks are copied to host memory, and each is sent as soon as it is
 *            there, while the next is being copied; received chunks are copied up likewise
 *
 * All begin alike: the sender offers the receiver how many bytes will come, and where they lie. */
typedef struct tw__device_transport tw__device_transport;

/* Lends the transport its device calls, for at most `most` bytes at a time, in and out each. On error
 * *device is there to be freed. */
int tw__device_transport_create(tw__device_transport **device, tw_transport *transport,
                                const tw__backend *backend, tw__stream *stream, size_t most);
/* Takes them away. NULL is fine. */
void tw__device_transport_free(tw__device_transport *d);
/* Host memory that it takes. */
size_t tw__device_transport_memory(const tw_transport *transport, size_t most);

#ifdef __cplusplus
}
#endif

#endif
