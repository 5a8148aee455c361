/* exchange.h - who sends what to whom, as rows
 *
 * An exchange gets a job: the entries that this rank selected from one or more tensors, and leaves
 * the result, the same on all ranks, and what becomes of this rank's entries. Tensors that travel
 * together are laid end to end into one index space; each keeps its own k, and its result is the
 * same as if it had travelled alone, but for which rank rounds a sum where the wire format does.
 *
 *   own ---> [ exchange ] ---> result   sums over ranks, index order, no zeros
 *                         ---> left     entries of own that this rank's residual loses
 *                         ---> kept     sums that this rank dropped and must keep (gtopk,
 *                                       butterfly), and what rounding to a wire format took away
 *
 * so that over all ranks: result + kept + (own - left) = own. fulltopk takes more from residuals than
 * was selected: there own stands for all of them.
 *
 * To add one: a file exchange_<name>.c, a line here, a row in exchanges.c, a build line. */
#ifndef TW_EXCHANGE_EXCHANGE_H
#define TW_EXCHANGE_EXCHANGE_H

#include "exchange/entries.h"
#include "transport/transport.h"
#include "wire/wire.h"

/* One tensor within the job's index space. */
typedef struct tw__segment {
    int64_t base; /* the index of its element 0 */
    int64_t n;
    int64_t k;           /* of this step */
    uint32_t *threshold; /* oktopk: magnitude bits to reuse, 0 if none; belongs to the tensor */
    struct tw_selector *selector; /* gtopk, butterfly: has gradient + residual */
    const void *grad;             /* dense: [n] of this type */
    int type;
    float *out; /* dense: [n] */
} tw__segment;

/* The extents that a job can have, for asking how much memory it needs. */
typedef struct tw__shape {
    int nranks;
    int nsegments;
    int64_t span;         /* elements of all segments */
    int64_t k;            /* sum of the segments' k */
    int64_t most;         /* entries that a rank may select at most: k, or up to 4k */
    const tw__wire *wire; /* how lists are written; NULL: as they lie */
    int on_gpu;           /* lists lie there */
} tw__shape;

/* Workspace, handed out by layout functions; see base/arena.h. */
typedef struct tw__arenas {
    tw__arena host;  /* bookkeeping */
    tw__arena lists; /* entries, wherever those of the job lie */
} tw__arenas;

/* What a step of some shape costs the rank that has the most to do, when ranks select at random:
 * from this `auto` predicts its time (docs/auto.md). */
typedef struct tw__cost_terms {
    double rounds;   /* waits for a message under way, one after the other */
    double messages; /* sent, or received, one after the other */
    double bytes;    /* sent, or received: payload and control */
    double entries;  /* written to or read from wire formats */
    double merged;   /* entries summed or merged */
    double elements; /* of whole vectors that are read or written */
} tw__cost_terms;

typedef struct tw__job {
    tw_transport *transport;
    tw__message_kind cargo; /* of entries: TW__PAYLOAD, or TW__DEVICE where they lie on a GPU */
    tw__lists lists;        /* who works on entries */
    const tw__wire_calls *codec; /* and who writes them in wire formats */
    const tw__kernels *kernels;
    int rank;
    tw__shape shape;       /* of this job */
    tw__segment *segments; /* [shape.nsegments] */
    int global;            /* tw_global */
    float divisor;         /* dense: of the sums; the others leave that to the caller */
    tw__arenas room;       /* what the job leaves lies in it too */
    /* Told of sums of the result, in the host's memory, as soon as an exchange knows them, each once;
     * or never. May be NULL. */
    void (*arrived)(void *context, const struct tw__job *job, const tw__list *sums);
    void *arrived_context;

    int64_t *bases;     /* [nsegments + 1] of the segments, and where the last one ends */
    int64_t *positions; /* [nsegments + 1] */
    tw__list *parts[3]; /* [nsegments] each: see tw__job_cut */

    tw__list own;
    tw__list result;
    tw__list left;
    tw__list kept;
    int left_more; /* left has elements that this rank had not selected (fulltopk) */
} tw__job;

typedef struct tw__exchange {
    const char *name;
    const char *description;
    /* Words that a rank sends and receives, as the papers say. */
    tw_cost (*cost)(double n, double k, double nranks);
    int best_k; /* it takes the best k of each segment's own entries; the others stay with the rank */
    int on_host; /* its lists lie in the host's memory, also where tensors lie on a GPU */
    /* For two ranks and more. NULL: `auto` does not choose it. */
    tw__cost_terms (*effort)(const tw__shape *shape);
    /* Take the workspace of a job of this shape, job->own apart. */
    void (*memory)(const tw__shape *shape, tw__arenas *room);
    /* Entries that the result can have. */
    int64_t (*applied)(const tw__shape *shape);
    /* Collective. Errors: TW_ERR_TIMEOUT, TW_ERR_TRANSPORT, TW_ERR_PROTOCOL, TW_ERR_DEVICE; and
     * TW_ERR_NUMBER, on all ranks, when one cannot keep what it would have to. */
    int (*run)(tw__job *job);
} tw__exchange;

extern const tw__exchange tw__exchange_dense;
extern const tw__exchange tw__exchange_allgather;
extern const tw__exchange tw__exchange_dsa;
extern const tw__exchange tw__exchange_gtopk;
extern const tw__exchange tw__exchange_oktopk;
extern const tw__exchange tw__exchange_fulltopk;
extern const tw__exchange tw__exchange_butterfly;
extern const tw__exchange tw__exchange_twolevel;

/* By position from 0; NULL past the last. */
const tw__exchange *tw__exchange_at(int position);
/* Entries that nranks selections of k out of span have in all, if they are random. */
double tw__expected_union(const tw__shape *shape);

/* How a step travels. */
typedef struct tw__plan {
    const tw__exchange *exchange;
    const tw__wire *wire; /* NULL: raw */
} tw__plan;

/* The exchange that stands for a choice among all: no row, see auto.h. */
#define TW__AUTO "auto"

/* A scheme of the papers: a selection method and an exchange. */
typedef struct tw__scheme {
    const char *name;
    const char *select;
    const char *exchange;
    const char *description;
} tw__scheme;

/* Errors: TW_ERR_NAME, listing the names. An exchange is NULL for "auto". */
int tw__exchange_find(const char *name, const tw__exchange **exchange);
int tw__scheme_find(const char *name, const tw__scheme **scheme);
/* NULL for "raw". */
int tw__wire_name_find(const char *name, const tw__wire **wire);

/* oktopk keeps its bound from k = 8P on; tensors below that go by butterfly, of fulltopk too. */
int tw__exchange_suits(const tw__exchange *exchange, int64_t k, int nranks);

/* A received message as entries. Errors: TW_ERR_PROTOCOL for a length that is not a whole number
 * of them. */
int tw__buffer_list(const tw__buffer *parcel, int rank, tw__list *list);

/* Take what every job needs, own entries and cuts; for a job, once its segments are there. */
void tw__job_memory(const tw__shape *shape, tw__arenas *room);
void tw__job_begin(tw__job *job);
/* Each segment's part of a list: parts[nsegments], as are job->parts. */
int tw__job_cut(const tw__job *job, const tw__list *list, tw__list *parts);
/* Keep the best k of every segment's own entries. */
int tw__job_trim_own(tw__job *job);
/* A list that another rank sent: within the index space, and at most k entries for a segment. */
int tw__job_check_list(tw__job *job, const tw__list *list, int rank);
/* The latter alone. */
int tw__job_check_counts(tw__job *job, const tw__list *list, int rank);

/* Whether job->kept would overflow this rank's residual, which loses job->left. */
int tw__job_overflows(tw__job *job, int *yes);

/* Whether lists may be so long that they go from rank to rank. */
static inline int tw__job_is_long(const tw__shape *shape) {
    return (int64_t)sizeof(tw__entry) * shape->most >= TW__LONG_BUFFER;
}
/* Latencies of a gathering, one after the other. */
static inline double tw__gather_rounds(const tw__shape *shape) {
    return tw__job_is_long(shape) ? shape->nranks - 1.0 : 1.0;
}
/* Everyone sends `own` to all: from rank to rank where entries are many, else everyone to everyone.
 * out, in: [nranks], in as in a rotation. */
int tw__job_gather(tw__job *job, const tw__buffer *own, tw__buffer *out, tw__buffer *in,
                   void *rotation);

/* First index of part `part` of `parts` equal ones. */
static inline int64_t tw__part_start(int64_t span, int64_t part, int64_t parts) {
    return span * part / parts;
}

/* Elements of the longest of these. */
static inline int64_t tw__longest_part(int64_t span, int64_t parts) {
    return (span + parts - 1) / parts;
}

/* ---- dense_gpu.c: dense, where vectors lie on a GPU */

void tw__dense_gpu_memory(const tw__shape *shape, tw__arenas *room);
int tw__dense_gpu_run(tw__job *job);

/* ---- letter.c: lists as messages */

/* Bytes that so many letters take, with so many entries in all; none without a wire format. */
size_t tw__pack_room(const tw__wire *wire, int64_t entries, int64_t letters);
/* Bytes of one letter at most. */
size_t tw__pack_bound(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi);
/* Bytes of one letter as it usually is, of values that are not huge. */
size_t tw__pack_bytes(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi);
/* A list within lo .. hi-1 as a parcel, written at *mail, which moves on; without a wire format it
 * is the list itself. rounded[count] gets the values as others will see them; without, nothing. */
int tw__pack_list(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi, char **mail,
                  float *rounded, tw__buffer *parcel);
/* The list of a parcel from `rank`, of `most` entries at most: where it lies, or decoded to room.
 * Errors: TW_ERR_PROTOCOL. */
int tw__unpack_list(const tw__job *job, const tw__buffer *parcel, int64_t lo, int64_t hi,
                    int64_t most, int rank, tw__entry *room, tw__list *list);
/* Without a wire format, the following do nothing. */

/* What rounding took away of a list, appended to out. */
int tw__pack_remainders(const tw__job *job, const tw__list *list, const float *rounded,
                        tw__list *out);
/* The list as others see it. */
int tw__pack_round(const tw__job *job, const tw__list *list, const float *rounded);
/* Values that are not sent, and so not rounded. */
int tw__pack_keep(const tw__job *job, const tw__list *list, float *rounded);

/* ---- deal.c: butterfly's order of indices */

/* Indices of a list, in order, become their places in the dealt tensors, and back; both ways the
 * list is in order again. scratch has room for all. */
int tw__interleave(tw__job *job, tw__list *list, tw__entry *scratch);
int tw__deinterleave(tw__job *job, tw__list *list, tw__entry *scratch);

/* ---- partition.c */

/* Cut the index space into `parts` parts, a multiple of nranks, in each about as many entries of
 * all ranks together: bounds[parts + 1]. most[nranks] says how many entries the parts of each rank
 * can hold at most, all its parts together. *rounds is the number of histograms that it took, of
 * 2 KiB each way. Control messages. scratch: tw__partition_memory bytes. */
#define TW__PARTITION_ROUNDS 4 /* at most */
int tw__partition(tw__job *job, int parts, int64_t *bounds, int64_t *most, int *rounds,
                  void *scratch);
size_t tw__partition_memory(int nranks);

/* ---- global.c */

/* What each rank holds of the result. */
typedef struct tw__holding {
    uint32_t above; /* entries above the threshold */
    uint32_t equal; /* entries of exactly its magnitude */
} tw__holding;

/* Begin a selection with so many messages, and count the sums that it will be about: all of them, in
 * as many pieces as they come in. room[size] is used until the selection is made. */
void tw__global_begin(tw__job *job, int messages, tw__entry *room, int64_t size, void *scratch);
int tw__global_count(tw__job *job, const tw__list *sums, void *scratch);
/* Of `reduced`, which every rank holds for a range of indices of its own, in the order of ranks,
 * keep the segments' k largest over all ranks, ties to the smaller index. holdings[nranks] gets
 * the number of entries that each rank kept. Control messages: at most `messages` of 2 KiB each way
 * for a segment, which must be TW__GLOBAL_ROUNDS or more, and a short one. */
#define TW__GLOBAL_ROUNDS 4
int tw__global_select(tw__job *job, tw__list *reduced, int messages, int64_t *holdings,
                      void *scratch);
size_t tw__global_memory(int nranks, int nsegments);

#endif
