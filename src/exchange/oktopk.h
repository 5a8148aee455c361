/* oktopk.h - what the parts of exchange oktopk share: its workspace, and the way back
 *
 *   exchange_oktopk.c   the map; entries go to the ranks that sum them
 *   partition.c         where regions begin and end
 *   global.c            which sums are the k largest
 *   oktopk_spread.c     sums go to everyone */
#ifndef TW_EXCHANGE_OKTOPK_H
#define TW_EXCHANGE_OKTOPK_H

#include "exchange/exchange.h"

/* Batches of a region, where it is large enough to be cut. */
#define TW__OKTOPK_BATCHES 4

typedef struct tw__oktopk_space {
    int batches;                         /* of each region */
    int64_t *bounds;                     /* [parts + 1] */
    int64_t *most;                       /* [nranks] */
    int64_t *holdings;                   /* [nranks] */
    int64_t *starts;                     /* [nranks + 1]: of holdings in the result */
    int64_t *shares;                     /* [nranks + 1] */
    uint32_t *expect;                    /* [nranks][batches]: entries that will come */
    uint32_t *counts;                    /* [nranks][batches]: entries that will go */
    tw__buffer *out[TW__OKTOPK_BATCHES]; /* [nranks] each: of the batches */
    tw__buffer *in[TW__OKTOPK_BATCHES];
    void *rotation[TW__OKTOPK_BATCHES];
    tw__list *runs;      /* [nranks] */
    tw__entry *received; /* [2k] */
    tw__entry *reduced;  /* [3k]: sums of the own region */
    tw__entry *result;   /* [k] */
    tw__entry *left;     /* [k] */
    char *sent, *mail;   /* letters: own ones; those of others, k entries a batch, 2k at least */
    float *rounded;      /* [k] of own entries, [k] of sums held here */
    tw__entry *kept[3];  /* remainders of these, and both together */
    int64_t *came;       /* [nranks]: sums of each region that were read */
    tw__list *left_of;   /* [nranks][batches]: of the own entries there, what is in the sums */
    tw__list *kept_of;   /* [nranks][batches]: and their remainders; of the own region, of sums */
    int64_t *cuts;       /* [parts + 1] */
    tw__list *parts;     /* [parts]: own entries of each part */
    void *partition;
    void *global;
} tw__oktopk_space;

/* Everyone gets `held` of all ranks, and learns what becomes of its own entries: the job's lists.
 * w->holdings is known. */
int tw__oktopk_spread(tw__job *job, tw__oktopk_space *w, const tw__list *held);

#endif
