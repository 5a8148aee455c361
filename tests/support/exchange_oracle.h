/* exchange_oracle.h - what every exchange must give, computed for all ranks in one place
 *
 * Written to be obviously right: dense arrays, full sorts, ranks in a loop. It shares no line with
 * the library and knows no test framework. The selection is that of "exact" with k.
 *
 *   dense      the gradients summed in the order of ranks; no residual
 *   allgather, dsa
 *              all selected entries summed in the order of ranks; they leave the residuals
 *   gtopk      a binomial tree towards rank 0: at distance d = 1, 2, 4 ... rank r with r % 2d == 0
 *              merges the list of rank r + d into its own and keeps the best k; what it drops is
 *              summed in the order of merging and goes to its own residual
 *   oktopk     the best k of the sums; of its selection a rank loses what is in the result
 *   fulltopk   the same indices; sums over all of acc at these, which every rank loses
 *   butterfly  the indices are interleaved, then cut into a range for each rank; groups of ranks
 *              split into up to 8 groups, whose ranks send each other the entries in the other's
 *              ranges, down to single ranks; then the sums are gathered back up to all ranks. A
 *              message holds no more than a share, the best; sums that are not sent stay behind
 *   twolevel   the same, where all ranks are on one host
 *
 * Sums that are zero are no entries. Entries that leave a residual leave the velocity too.
 */
#ifndef EXCHANGE_ORACLE_H
#define EXCHANGE_ORACLE_H

#include "oracle.h"

/* ---- The exchanges --------------------------------------------------------------------------- */

/* Does the oracle know this exchange? A new exchange needs a row in exchange_oracle.c. */
int exchange_oracle_knows(const char *exchange);

typedef struct oracle_entries {
    int64_t count;
    int32_t *idx; /* ascending */
    float *val;
} oracle_entries;

typedef struct exchange_oracle {
    const char *exchange; /* as asked for */
    const char *used;     /* in the last step: oktopk leaves k < oktopk_from to butterfly */
    int nranks;
    int64_t n, k;           /* k may be changed between steps */
    int64_t oktopk_from;    /* 8P */
    int result;             /* tw_result */
    int feedback;           /* tw_feedback */
    float momentum;         /* 0: none */
    int adamw;              /* with beta1 0.75, beta2 0.875, eps 1e-6: powers are exact */
    double rate;            /* of AdamW */
    int steps;              /* of AdamW so far */
    float **residual;       /* [nranks][n] */
    float **velocity;       /* [nranks][n], or m */
    float **second;         /* [nranks][n]: v */
    float **undelivered;    /* [nranks][n] gtopk, butterfly: sums of what a rank dropped */
    oracle_entries *lists;  /* [nranks] of at most n */
    oracle_entries *own;    /* [nranks] gtopk, butterfly: lists before any merge */
    oracle_entries *next;   /* [nranks] butterfly: lists after a round */
    int64_t *element;       /* [n] butterfly: index at each interleaved position */
    oracle_entries applied; /* the result before the division by P */
    oracle_entries kept;    /* scratch of a merge */
    oracle_entries dropped; /* scratch of a merge */
    float *sum;             /* [n] scratch */
    unsigned char *present; /* [n] scratch */
    float *out;             /* [n] what the call gives */
} exchange_oracle;

void exchange_oracle_open(exchange_oracle *o, const char *exchange, int nranks, int64_t n,
                          int64_t k, int result);
void exchange_oracle_close(exchange_oracle *o);

/* One step: residual, velocity, applied and out become what they must be. grads [nranks][n]. */
void exchange_oracle_step(exchange_oracle *o, float *const *grads);

/* ---- Gradients ------------------------------------------------------------------------------- */

/* X(name, text): where the large entries of the ranks lie. */
#define ORACLE_SUPPORTS(X)                                                                         \
    X(SUPPORT_RANDOM, "random")           /* anywhere */                                           \
    X(SUPPORT_DRIFT, "drift")             /* in a quarter of the vector that moves on */           \
    X(SUPPORT_IDENTICAL, "identical")     /* at the same indices on all ranks */                   \
    X(SUPPORT_DISJOINT, "disjoint")       /* no index on two ranks */                              \
    X(SUPPORT_REGION, "one region")       /* all within 2k elements */                             \
    X(SUPPORT_NEIGHBOUR, "neighbour")     /* of rank r in the (r+1)-th of P equal parts */         \
    X(SUPPORT_CLUMPS, "clumps")           /* in P narrow clumps */                                 \
    X(SUPPORT_NEEDLES, "needles")         /* P/2.2 dense clumps, the same on all ranks */          \
    X(SUPPORT_START, "start")             /* the first k elements */                               \
    X(SUPPORT_MIDDLE, "middle")           /* k elements side by side */                            \
    X(SUPPORT_END, "end")                 /* the last k elements */                                \
    X(SUPPORT_ALTERNATING, "alternating") /* start, end, random ... and each rank another */

typedef enum {
#define ORACLE_SUPPORT_ENUM(name, text) name,
    ORACLE_SUPPORTS(ORACLE_SUPPORT_ENUM)
#undef ORACLE_SUPPORT_ENUM
        SUPPORT_KINDS,
} support_kind;

const char *support_name(support_kind kind);

typedef struct support {
    support_kind kind;
    int nranks;
    int64_t n, k;
    uint64_t seed;
    int summable; /* values are 125 .. 3000 times 2^-10, noise 100 at most; else gaussian */
    int noise;    /* small values everywhere else; else zeros */
} support;

/* The gradient x[n] of a rank in a step: k large entries, fewer where indices coincide. */
void support_fill(const support *s, int rank, int step, float *x);

#endif
