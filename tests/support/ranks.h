/* ranks.h - P ranks as threads of the test, each with its transport and its group
 *
 * cmocka fails by longjmp, which must not leave a thread other than the main one. So what ranks do
 * in their threads returns a status, and the main thread checks statuses and results after all have
 * returned. Threads live for one ranks_run; transports and groups stay.
 */
#ifndef RANKS_H
#define RANKS_H

#include "check.h"

typedef struct ranks {
    int nranks;
    tw_transport **transports; /* [nranks] */
    tw_group **groups;         /* [nranks]; NULL where there is none */
    int *status;               /* [nranks] what each returned in the last ranks_run */
    char (*text)[256];         /* [nranks] tw_last_error() of those that failed, else "" */
} ranks;

/* What one rank does, in its own thread. It must not call cmocka's checks. */
typedef int (*ranks_call)(ranks *r, int rank, void *context);

/* Seconds: the timeout of groups in tests. */
#define RANKS_TIMEOUT 60.0

/* Transports for nranks ranks, no groups yet. */
void ranks_init(ranks *r, int nranks);
/* The same with transports of the caller, which are freed with the ranks. */
void ranks_adopt(ranks *r, int nranks, tw_transport *const *transports);
/* Groups with params (timeout 0: RANKS_TIMEOUT) and tensors of sizes[tensors] elements, open. */
void ranks_open(ranks *r, int nranks, const tw_group_params *params, const int64_t *sizes,
                int tensors);
/* The same on ranks that have transports. The caller checks statuses. */
void ranks_try_open(ranks *r, const tw_group_params *params, const int64_t *sizes, int tensors);
/* Free groups and transports, or the groups alone. */
void ranks_close(ranks *r);
void ranks_free_groups(ranks *r);

/* Method "exact" with k, and this exchange (NULL: the default scheme's). */
tw_group_params ranks_params(const char *exchange, int64_t k);

/* Calls all ranks at the same time; returns when the last has. */
void ranks_run(ranks *r, ranks_call call, void *context);
/* Every rank's status must be TW_OK, or this error. */
void ranks_ok(const ranks *r);
void ranks_error(const ranks *r, int want);
/* Every rank's text must contain this part, made as by printf. */
__attribute__((format(printf, 2, 3))) void ranks_say(const ranks *r, const char *format, ...);

/* tw_allreduce on every rank. The caller checks statuses.
 *   grads [nranks], outs [nranks] or NULL. */
void ranks_allreduce(ranks *r, int tensor, void *const *grads, float *const *outs);

/* Every rank's residual must equal rows[rank][n], or is copied to it. */
void ranks_check_residuals(ranks *r, int tensor, float *const *rows, int64_t n);
void ranks_get_residuals(ranks *r, int tensor, float **rows, int64_t n);

/* One vector of n zeros for each rank; rows_free(NULL) is fine. */
float **rows_alloc(int nranks, int64_t n);
void rows_free(float **rows);
/* Data of a kind, another for each rank and step. */
void rows_fill(float **rows, int nranks, int64_t n, oracle_data kind, int step);
void rows_copy(float **to, float *const *from, int nranks, int64_t n);

#endif
