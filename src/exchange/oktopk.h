/* oktopk.h - the parts of exchange oktopk, in the order of a step
 *
 *   exchange_oktopk.c    the map; entries go to the ranks that sum them
 *   oktopk_partition.c   where regions begin and end
 *   oktopk_topk.c        which sums are the k largest of all ranks
 *   oktopk_gather.c      these sums go to everyone */
#ifndef TW_EXCHANGE_OKTOPK_H
#define TW_EXCHANGE_OKTOPK_H

#include "exchange/exchange.h"

/* Its bound holds from k = 8P on. */
#define TW__OKTOPK_LEAST_K 8

/* Batches of a region, where it is large enough to be cut. */
#define TW__OKTOPK_BATCHES 4

/* A part is a batch of a region: parts = nranks * batches, region by region. */
typedef struct tw__oktopk_space {
    int batches;                         /* of each region */
    int64_t *bounds;                     /* [parts + 1] */
    int64_t *most;                       /* [nranks]: entries that a region can hold */
    int64_t *holdings;                   /* [nranks]: sums of the result that each rank holds */
    int64_t *starts;                     /* [nranks + 1]: of holdings in the result */
    int64_t *shares;                     /* [nranks + 1]: of what each rank sends in gather */
    uint32_t *incoming;                  /* [nranks][batches]: entries that will arrive */
    uint32_t *outgoing;                  /* [nranks][batches]: entries that will be sent */
    tw__buffer *out[TW__OKTOPK_BATCHES]; /* [nranks] each: of the batches */
    tw__buffer *in[TW__OKTOPK_BATCHES];
    void *alltoall[TW__OKTOPK_BATCHES];
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [2k] */
    tw__entry *reduced;  /* [3k]: sums of the own region */
    tw__entry *result;   /* [k] */
    tw__entry *left;     /* [k] */
    char *sent;          /* own messages, packed */
    char *packed;        /* those of others: k entries a batch, 2k at least */
    float *rounded;      /* [k] of own entries, [k] of sums held by this rank */
    tw__entry *kept[3];  /* remainders of these, and both together */
    int64_t *arrived;    /* [nranks]: sums of each region that were read */
    tw__list *left_of;   /* [parts]: own entries that are in the sums of the part */
    tw__list *kept_of;   /* [parts]: and their remainders; of the own region, those of sums */
    int64_t *cuts;       /* [parts + 1] */
    tw__list *parts;     /* [parts]: own entries of each part */
    void *partition;     /* scratch of tw__partition */
    void *topk;          /* and of tw__topk_* */
} tw__oktopk_space;

/* ---- oktopk_partition.c */

/* Cut the index space into `parts` parts, a multiple of nranks, with about as many entries of all
 * ranks together in each: bounds[parts + 1]. most[nranks] says how many entries the parts of each
 * rank can hold, all its parts together. *rounds is the number of histograms that it took, of 2 KiB
 * each way. Control messages. scratch: tw__partition_memory bytes. */
#define TW__PARTITION_ROUNDS 4 /* at most */
int tw__partition(tw__job *job, int parts, int64_t *bounds, int64_t *most, int *rounds,
                  void *scratch);
size_t tw__partition_memory(int nranks);

/* ---- oktopk_topk.c */

/* Begin a selection with so many messages. entries[capacity] is used until the selection is made. */
void tw__topk_begin(tw__job *job, int messages, tw__entry *entries, int64_t capacity,
                    void *scratch);
/* Count the sums that the selection will be about: each once, in any number of pieces. */
int tw__topk_count(tw__job *job, const tw__list *sums, void *scratch);
/* Every rank holds sums of its own range of indices, in the order of ranks. Keep in `reduced` the
 * segments' k largest over all ranks, ties to the smaller index. holdings[nranks] gets the number of
 * entries that each rank kept. Control messages: for a segment at most `messages` of 2 KiB each way,
 * TW__TOPK_ROUNDS or more, and a short one. */
#define TW__TOPK_ROUNDS 4
int tw__topk_select(tw__job *job, tw__list *reduced, int messages, int64_t *holdings,
                    void *scratch);
size_t tw__topk_memory(int nranks, int nsegments);

/* ---- oktopk_gather.c */

/* Everyone gets what all ranks hold, and learns what becomes of its own entries: the job's lists.
 * w->holdings is known. */
int tw__oktopk_gather(tw__job *job, tw__oktopk_space *w, const tw__list *held);

#endif
