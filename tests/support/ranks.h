/* ranks.h - P ranks as threads of the test, each with its end of a transport and its group
 *
 * cmocka fails by longjmp, which must not leave another thread: what ranks do in their threads
 * therefore returns a status, and the main thread checks statuses and results once all have come
 * back. Threads live for one ranks_run each; the handles stay.
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

/* What one rank does, in a thread of its own. No cmocka check in there. */
typedef int (*ranks_call)(ranks *r, int rank, void *context);

/* Seconds that groups of the tests wait before they call it a hang. */
#define RANKS_TIMEOUT 60.0

/* Transports for so many ranks, no groups yet. */
void ranks_init(ranks *r, int nranks);
/* The same with transports of the test's own, which are freed with the ranks. */
void ranks_adopt(ranks *r, int nranks, tw_transport *const *transports);
/* Groups with params (timeout 0: RANKS_TIMEOUT) and tensors of sizes[tensors] elements, open. */
void ranks_open(ranks *r, int nranks, const tw_group_params *params, const int64_t *sizes,
                int tensors);
/* The same on ranks that have transports. Statuses are left to be checked. */
void ranks_try_open(ranks *r, const tw_group_params *params, const int64_t *sizes, int tensors);
/* Free groups and transports, or the groups alone. */
void ranks_close(ranks *r);
void ranks_free_groups(ranks *r);

/* Parameters of a usual group: the exact k largest, by this exchange (NULL: the scheme's). */
tw_group_params ranks_params(const char *exchange, int64_t k);

/* All ranks at the same time; comes back when the last one has. */
void ranks_run(ranks *r, ranks_call call, void *context);
/* What they returned must be TW_OK, or this error, on every rank. */
void ranks_ok(const ranks *r);
void ranks_error(const ranks *r, int want);
/* Every rank's text must contain this part, made as by printf. */
__attribute__((format(printf, 2, 3))) void ranks_say(const ranks *r, const char *format, ...);

/* tw_allreduce on every rank. Statuses are left to be checked.
 *   grads [nranks], outs [nranks] or NULL. */
void ranks_allreduce(ranks *r, int tensor, void *const *grads, float *const *outs);

/* Every rank's residual of n elements equals rows[rank], or is copied there. */
void ranks_check_residuals(ranks *r, int tensor, float *const *rows, int64_t n);
void ranks_get_residuals(ranks *r, int tensor, float **rows, int64_t n);

/* One vector of n zeros for each rank. */
float **rows_alloc(int nranks, int64_t n);
void rows_free(float **rows);
/* Data of a kind, another for each rank and step. */
void rows_fill(float **rows, int nranks, int64_t n, oracle_data kind, int step);
void rows_copy(float **to, float *const *from, int nranks, int64_t n);

#endif
