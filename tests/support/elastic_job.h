/* elastic_job.h - elastic groups whose ranks are lost, leave, or stop in the middle of a step
 *
 * For tests with INTERNAL: it looks into groups and transports. With the argument "sockets" of a test,
 * which elastic_begin reads, ranks are joined by sockets instead of queues. */
#ifndef ELASTIC_JOB_H
#define ELASTIC_JOB_H

#include "group/membership.h"
#include "ranks.h"
#include "transport/transport_internal.h"

enum { MOST = 9, N = 1201 }; /* ranks, elements of all tensors */

extern int on_sockets;
extern int ends[MOST][MOST]; /* with sockets: ends[a][b] is that of rank a towards rank b */

/* Of main. */
void elastic_begin(int argc, char **argv);
void nap(double seconds);

/* ---- ranks, some of them lost */

typedef struct job {
    ranks r;
    int lost[MOST];
    float **grads, **outs; /* [nranks][N] */
    int shrinks[MOST];     /* statuses of tw_group_shrink */
    tw_members members[MOST];
    int steps;
    double late[MOST];                             /* seconds before a rank makes its call */
    float first_outs[MOST][N], residuals[MOST][N]; /* after the first of two steps */
} job;

void job_open(job *j, int nranks, const tw_group_params *params, const int64_t *sizes, int tensors);
void job_close(job *j);
/* Frees the group and the transport of a rank. */
void lose_rank(job *j, int rank);
tw_group_params elastic_params(const char *exchange);
/* Whether tw_group_shrink helps. */
int is_broken(int error);

/* For ranks_run with a job as context: one step; after a loss shrinks and repeats it. */
int step_rank(ranks *r, int rank, void *context);
/* The same on all ranks, with new gradients. */
void job_step(job *j);
void check_equal_outs(const job *j, int first, const float *want);
/* Rank 2 agrees on the ranks that are left, and is lost before the group opens with them. */
int agree_and_die(job *j, const tw__intent *intent);

/* ---- a fresh group with the residuals of those that are left */

typedef struct fresh {
    job job;
    int ranks[MOST]; /* of the job that it follows */
} fresh;

void fresh_open(fresh *f, job *j, const tw_group_params *params, int64_t steps);
/* The same gradients in both, and the same results. */
void fresh_step(fresh *f, job *j);

/* ---- a rank that does not send all that it should */

typedef int send_call(void *, int, int, const void *, size_t, void **);

extern struct elastic_cut {
    send_call *send; /* the transport's */
    int (*test)(void *, void *, size_t *);
    int told; /* ranks below it */
    int64_t step;
    char nothing; /* its address: the request of a message that was not sent */
} cut;

/* step: whose end is told to `told` ranks only. `send` replaces the transport's. */
void cut_off(job *j, int rank, int told, int64_t step, send_call *send);

#endif
