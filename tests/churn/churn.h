/* churn.h - processes that come, work and die, and what they leave in shared memory
 *
 *   life.c        one process: joins the job, steps, leaves
 *   ledger.c      what each of them must hold after every step, and the comparison
 *   test_churn.c  starts them, kills them, prints the table */
#ifndef CHURN_H
#define CHURN_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "thinwire.h"

enum { N = 480, K = 80, MOST = 10, LIVES = 512, RING = 8, AHEAD = 4, VERSIONS = 256 };

/* How a process ends by itself. */
enum { ENDED = 0, LEFT = 10, EXCLUDED = 11, NOT_ADMITTED = 12, FAILED = 13 };

/* A completed step, as one process saw it. */
typedef struct record {
    int64_t step;
    uint32_t version; /* of the membership that completed it */
    int nranks;
    double when;    /* CLOCK_MONOTONIC */
    uint64_t chain; /* hash of all results since the job began */
    float out[N], residual[N];
} record;

/* A process. It writes all fields but the first four. */
typedef struct life {
    int joins;        /* it comes when the job runs */
    int rank, nranks; /* with which it begins */
    _Atomic int leave;
    int heir;               /* the life that inherits its residual */
    _Atomic int64_t begun;  /* steps that it has begun */
    float before[RING][N];  /* its residual before each */
    _Atomic int64_t done;   /* steps that it has completed */
    record records[RING];   /* of step i (counted by this process): [i % RING] */
    _Atomic int is_working; /* its group is open */
    char text[512];         /* of its error, if it ends with FAILED */
} life;

typedef struct job {
    const char *exchange;
    int tcp;
    char meet[32];
    int nlives; /* so far */
    double timeout;
    _Atomic int64_t checked; /* steps that the ledger has seen */
    _Atomic int64_t stop_at; /* all end after this step */
    _Atomic int finished;
    uint64_t chains[RING];       /* after step i: [i % RING] */
    int who[VERSIONS][MOST * 2]; /* the life that has this rank in this version */
    life lives[LIVES];
} job;

double seconds_now(void);

/* ---- life.c */

/* If not tcp: the sockets of each process. They are not in shared memory. */
extern int life_sockets[MOST][MOST];

/* The gradient of a life in its i-th step: integers, of which sums are exact. */
void life_gradient(int number, int64_t i, float *grad);
/* Of every group of this job. */
tw_group_params life_params(const job *j);
/* In a child process. Does not return. */
void life_run(job *j, int number);

/* ---- ledger.c */

typedef struct ledger ledger;

typedef struct step_members {
    int lives[MOST * 2];
    int nranks;
    double when; /* the last of them had completed the step */
} step_members;

ledger *ledger_open(job *j);
/* Returns how many have died in a step that was completed with them. */
int ledger_close(ledger *l);
/* Looks at the next step. 1: all have completed it, and `members` are those that took part. 0: not yet.
 * -1: something is wrong, and text says what.
 *   ended [LIVES] exit codes of processes, -1: it runs. Those that died by a signal have any other. */
int ledger_next(ledger *l, const int *ended, step_members *members, char *text, size_t size);

#endif
