/* exchange.h - who sends what to whom: the tables of exchanges and schemes
 *
 * An exchange sums the entries that ranks selected. It is a row with its name, its cost and its
 * functions; job.h says what it is given and what it leaves.
 *
 * To add one: exchange_<name>.c with its row, its name in the table of exchanges.c (and a scheme, if
 * it is to have one), a build line, and what it must compute in tests/support/exchange_oracle.c. */
#ifndef TW_EXCHANGE_EXCHANGE_H
#define TW_EXCHANGE_EXCHANGE_H

#include "exchange/job.h"

/* What a step costs the busiest rank, when ranks select at random. `auto` predicts the step's time
 * from it (docs/auto.md). */
typedef struct tw__cost_terms {
    double rounds;   /* latencies, one after the other */
    double messages; /* sent, or received, one after the other */
    double bytes;    /* sent, or received: payload and control */
    double entries;  /* coded to, or decoded from, wire formats */
    double merged;   /* entries summed or merged */
    double elements; /* of whole vectors that are read or written */
} tw__cost_terms;

typedef struct tw__exchange {
    const char *name;
    const char *description;
    /* Whose memory its lists may lie in (TW__ALL_BACKENDS). Those of other backends pass through the
     * host. */
    unsigned backends;
    int best_k; /* it takes the best k of each segment's own entries; the others stay with the rank */
    int least_k;                         /* entries per rank that it needs: ... */
    const struct tw__exchange *fallback; /* ... for k < least_k * nranks this one takes over */
    /* Words and latencies, as the papers say. */
    tw_cost (*cost)(double n, double k, double nranks);
    /* For two ranks and more. NULL: `auto` does not choose it. */
    tw__cost_terms (*terms)(const tw__shape *shape);
    /* Take the workspace of a job of this shape. tw__job_memory has taken the job's own. */
    void (*memory)(const tw__shape *shape, tw__arenas *arenas);
    /* Entries that the result can have. NULL: k. */
    int64_t (*applied)(const tw__shape *shape);
    /* Collective. Errors: TW_ERR_TIMEOUT, TW_ERR_TRANSPORT, TW_ERR_PROTOCOL, TW_ERR_DEVICE; and
     * TW_ERR_NUMBER, on all ranks, when one cannot keep what it would have to. */
    int (*run)(tw__job *job);
} tw__exchange;

/* Those that other files name. exchanges.c has the table of all. */
extern const tw__exchange tw__exchange_dense;
extern const tw__exchange tw__exchange_allgather;
extern const tw__exchange tw__exchange_oktopk;
extern const tw__exchange tw__exchange_butterfly;

/* By position from 0; NULL past the last. */
const tw__exchange *tw__exchange_at(int position);
/* The exchange that runs a tensor of this k: the one asked for, or its fallback. */
const tw__exchange *tw__exchange_for(const tw__exchange *exchange, int64_t k, int nranks);
/* Entries of the union of all ranks' selections: at most, and when these are random. */
int64_t tw__most_union(const tw__shape *shape);
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
/* Names by position from 0, NULL past the last: "auto" is the last exchange, "raw" the first format. */
const char *tw__exchange_name(int position);
const char *tw__scheme_name(int position);
const char *tw__wire_name(int position);

#endif
