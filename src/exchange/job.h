/* job.h - the work of one exchange: selected entries in, sums over ranks out
 *
 *   own ---> [ exchange ] ---> result   sums over ranks, index order, no zeros; the same on all ranks
 *                         ---> left     entries of own that this rank's residual loses
 *                         ---> kept     sums that this rank dropped and must keep (gtopk,
 *                                       butterfly), and what rounding to a wire format took away
 *
 * Over all ranks: result + kept + (own - left) = own. fulltopk takes more from residuals than was
 * selected; read all that it takes as own.
 *
 * Tensors that travel together are segments of one index space, end to end. Each keeps its own k. Its
 * result is the same as if it had travelled alone, except that a wire format may round sums on another
 * rank.
 *
 *   job.c    what all exchanges do with a job
 *   pack.c   lists to messages and back */
#ifndef TW_EXCHANGE_JOB_H
#define TW_EXCHANGE_JOB_H

#include "exchange/entries.h"
#include "transport/transport.h"
#include "wire/wire.h"

/* One tensor within the job's index space. */
typedef struct tw__segment {
    int64_t base; /* the index of its element 0 */
    int64_t n;
    int64_t k;                    /* of this step */
    uint32_t *threshold;          /* oktopk: magnitude bits to reuse, 0 if none; the tensor's */
    struct tw_selector *selector; /* for exchanges that ask for what it has */
    const void *grad;             /* dense: [n] of this type */
    int type;
    float *out; /* dense: [n] */
} tw__segment;

/* The extents of a job. They say how much memory it needs. */
typedef struct tw__shape {
    int nranks;
    int nsegments;
    int64_t span;         /* elements of all segments */
    int64_t k;            /* sum of the segments' k */
    int64_t most;         /* entries that a rank may select at most: k, 4k or n */
    const tw__wire *wire; /* how lists are written; NULL: raw */
    int overlaps;         /* oktopk: lists can be summed while others travel */
    int64_t dense_floats; /* tw__dense_calls.slot_floats */
} tw__shape;

/* Workspace, handed out by layout functions; see base/memory.h. */
typedef struct tw__arenas {
    tw__arena host;  /* bookkeeping */
    tw__arena lists; /* entries, values and messages: memory of the job's backend */
} tw__arenas;

/* A backend's work on whole vectors. They lie in its memory, at any address. Every call is done when
 * it returns. Errors: TW_ERR_DEVICE. */
typedef struct tw__dense_calls {
    /* to[n] = from[n], of this type. */
    int (*load)(void *context, float *to, const void *from, int type, int64_t n);
    /* own[n] becomes the sum over ranks, in their order, divided. Rank r's values lie at received +
     * r * stride; those of `rank` are own. received may be overwritten. */
    int (*sum)(void *context, float *own, float *received, int64_t stride, int rank, int nranks,
               int64_t n, float divisor);
    int (*store)(void *context, void *to, const float *from, int64_t n);
    /* The index of the first NaN or infinity; -1: there is none. */
    int (*find_bad)(void *context, const void *x, int type, int64_t n, int64_t *bad);
    /* Floats that a slot of the pipeline may hold, the pieces of all ranks together. 0: one slot
     * holds everything. */
    int64_t slot_floats;
} tw__dense_calls;

typedef struct tw__job {
    tw_transport *transport;
    tw__message_kind kind;        /* of messages with entries: TW__PAYLOAD or TW__DEVICE */
    tw__lists lists;              /* the backend's calls, and their context */
    const tw__wire_calls *codec;  /* same context */
    const tw__dense_calls *dense; /* same context */
    int rank;
    tw__shape shape;
    tw__segment *segments; /* [shape.nsegments] */
    int global;            /* tw_global */
    float divisor; /* dense divides the sums by it; other exchanges leave that to the caller */
    const float
        *weights;      /* [nranks]; allgather divides each sum by those of its senders; or NULL */
    tw__arenas arenas; /* the lists that the job leaves lie in them too */
    /* Called with sums of the result in the host's memory, as soon as an exchange knows them. Each
     * sum comes once or never. May be NULL. */
    void (*arrived)(void *context, const struct tw__job *job, const tw__list *sums);
    void *arrived_context;

    int64_t *bases;     /* [nsegments + 1] of the segments, and the end of the last one */
    int64_t *positions; /* [nsegments + 1] scratch */
    tw__list *parts[3]; /* [nsegments] each: for tw__job_cut */

    tw__list own;
    tw__list result;
    tw__list left;
    tw__list kept;
    int left_more; /* left has elements that this rank had not selected (fulltopk) */
} tw__job;

/* Take the job's own entries and scratch. */
void tw__job_memory(const tw__shape *shape, tw__arenas *arenas);
/* The same for a job whose segments are set. */
void tw__job_begin(tw__job *job);
/* Each segment's part of a list, to parts[nsegments]. */
int tw__job_cut(const tw__job *job, const tw__list *list, tw__list *parts);
/* Of each segment's part, the best k go to `best`, the others to `dropped`; both are appended to.
 * Without dropped, NULL, best may be where the list is. */
int tw__job_split_best(tw__job *job, const tw__list *list, tw__list *best, tw__list *dropped);
/* Check a list of another rank: within the index space, and at most k entries for a segment.
 * Errors: TW_ERR_PROTOCOL. */
int tw__job_check_list(tw__job *job, const tw__list *list, int rank);
/* The latter alone. */
int tw__job_check_counts(tw__job *job, const tw__list *list, int rank);
/* Check that every other rank's message has filled its buffer. Errors: TW_ERR_PROTOCOL. */
int tw__job_check_lengths(const tw__job *job, const tw__buffer *in);

/* Whether job->kept would overflow this rank's residual, which loses job->left. */
int tw__job_overflows(tw__job *job, int *yes);

/* Whether lists may be long. All ranks decide alike, by what they may have selected. */
static inline int tw__job_is_long(const tw__shape *shape) {
    return (int64_t)sizeof(tw__entry) * shape->most >= TW__LONG_BUFFER;
}

/* Whether an allgather goes around a ring: there are others, lists may be long, and they lie in the
 * host's memory. */
int tw__job_uses_ring(const tw__job *job);

/* Entries of a piece at most, where allgather cuts the k entries of a list that goes around the ring.
 * A piece is long enough for a line to be busy, and short enough to be read while the next one travels:
 * 160 kB with q2 and density 1/64 take 13 ms at 100 Mbit/s, and 1 ms to read. Part of the format of
 * messages: all ranks must cut alike. */
#define TW__PIECE_ENTRIES ((int64_t)1 << 17)
static inline int tw__gather_pieces(const tw__shape *shape) {
    int64_t pieces = (shape->k + TW__PIECE_ENTRIES - 1) / TW__PIECE_ENTRIES;
    return pieces > 1 ? (int)pieces : 1;
}

/* Latencies of an allgather, one after the other; of a ring at most. */
static inline double tw__gather_rounds(const tw__shape *shape, int pieces) {
    if (!tw__job_is_long(shape) || shape->nranks == 1)
        return 1.0;
    int abreast = tw__ring_abreast(shape->nranks), groups = (pieces + abreast - 1) / abreast;
    return shape->nranks - 2 + groups; /* slots */
}

/* Everyone sends `own` to all. out[nranks] is scratch, in[nranks] and alltoall as in
 * tw__alltoall_run. */
int tw__job_gather(tw__job *job, const tw__buffer *own, tw__buffer *out, tw__buffer *in,
                   void *alltoall);

/* First index of part `part` of `parts` equal ones. */
static inline int64_t tw__part_start(int64_t span, int64_t part, int64_t parts) {
    return span * part / parts;
}

/* Elements of the longest of these. */
static inline int64_t tw__longest_part(int64_t span, int64_t parts) {
    return (span + parts - 1) / parts;
}

/* ---- pack.c: lists to messages and back
 *
 * Raw entries, shape.wire == NULL, are sent from where they lie and used where they arrive. In a wire
 * format lists are packed into memory for messages. */

/* Bytes of memory for so many messages with so many entries in all. Raw: none. */
size_t tw__pack_capacity(const tw__wire *wire, int64_t entries, int64_t messages);
/* Bytes of one message at most; and those to expect of random indices, if no value is huge. */
size_t tw__pack_bound(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi);
size_t tw__pack_bytes(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi);
/* The message of a list within lo .. hi-1, packed at *memory, which moves on. rounded[count] gets the
 * values that the receiver will see; raw: it is not written. */
int tw__pack_list(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi, char **memory,
                  float *rounded, tw__buffer *message);
/* The same for a piece of a list in the host's memory. In a wire format the message says where the
 * piece ends.
 *   lo     the end of the piece before; 0 for the first one
 *   plain  all pieces of a list are written as they are, because a value of the list is huge */
int tw__pack_piece(const tw__job *job, const tw__list *piece, int64_t lo, int plain, char **memory,
                   float *rounded, tw__buffer *message);
/* Where a message of `most` entries arrives: raw at entries[most], else at packed. */
tw__buffer tw__pack_receive(const tw__wire *wire, int64_t most, int64_t lo, int64_t hi,
                            tw__entry *entries, char *packed);
/* The list of a message from `rank`, of `most` entries at most: where it lies, or decoded to
 * entries[most]. A piece ends at hi or before. Errors: TW_ERR_PROTOCOL. */
int tw__unpack_list(const tw__job *job, const tw__buffer *message, int64_t lo, int64_t hi,
                    int64_t most, int rank, tw__entry *entries, tw__list *list);
/* The entries of a raw message. Errors: TW_ERR_PROTOCOL if the last one is not whole. */
int tw__unpack_raw(const tw__buffer *message, int rank, tw__list *list);

/* The following do nothing with raw entries. */

/* Append to out what rounding took from each value of a list. */
int tw__pack_remainders(const tw__job *job, const tw__list *list, const float *rounded,
                        tw__list *out);
/* Values of the list become the rounded ones. */
int tw__pack_set_rounded(const tw__job *job, const tw__list *list, const float *rounded);
/* Values that are not sent lose nothing: rounded[count] = the list's values. */
int tw__pack_keep_values(const tw__job *job, const tw__list *list, float *rounded);

#endif
