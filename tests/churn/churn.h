/* churn.h - processes that come, work and die, and what they leave in shared memory
 *
 *   life.c        one process: joins the job, steps, leaves
 *   faults.c      it dies at its n-th fault point
 *   ledger.c      what each of them must hold after every step, and the comparison
 *   jobs.c        starts them, and notes what became of them
 *   test_churn.c  kills them at random
 *   test_kill_matrix.c  kills them at every point */
#ifndef CHURN_H
#define CHURN_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "thinwire.h"

enum { N = 480, K = 80, MOST = 10, LIVES = 512, RING = 8, AHEAD = 4, VERSIONS = 256 };

/* How a process ends by itself. */
enum {
    ENDED = 0,
    LEFT = 10,
    EXCLUDED = 11,
    NOT_ADMITTED = 12,
    FAILED = 13,
    NOT_MET = 14,
    NO_QUORUM = 15
};

/* How a process is ended by others, and two that are none. */
typedef enum { EXIT_0, EXIT_1, ABORT, KILL, TERM, STOP, WAYS, LEAVE = WAYS, NOTHING } way;

/* X(name): the call in which a process is. A step has stages; those of one that tw_group_shrink
 * completes are part of it. */
/* clang-format off */
#define PHASES(X) \
    X(meet) X(open) X(step) X(select) X(agree) X(exchange) X(complete) X(apply) \
    X(save) X(load) X(grow) X(leave) X(join) X(verify) X(shrink) X(end)
/* clang-format on */

typedef enum {
#define PHASE_ENUM(name) IN_##name,
    PHASES(PHASE_ENUM)
#undef PHASE_ENUM
        NPHASES,
} phase;
extern const char *const phase_names[NPHASES];

/* A completed step, as one process saw it. */
typedef struct record {
    int64_t step;
    uint32_t version; /* of the membership that completed it */
    int nranks;
    double when;    /* CLOCK_MONOTONIC */
    uint64_t chain; /* hash of all results since the job began */
    float out[N], residual[N];
} record;

/* A process. */
typedef struct life {
    /* what it is told */
    int joins;        /* it comes when the job runs */
    int rank, nranks; /* with which it begins */
    _Atomic int leave;
    int64_t die_at; /* the fault point at which it dies; 0: none */
    int die_way;
    int die_in_shrink; /* points are counted from its first tw_group_shrink on */
    int64_t die_after; /* steps: it dies then; 0: it does not */

    /* what it tells */
    _Atomic int phase;
    int died_in;  /* phase */
    int died_at;  /* in an exchange: the number of the message that it was to send, from 1 */
    double died;  /* when */
    int messages; /* that it has begun to send in this exchange */
    _Atomic int64_t points; /* fault points while it may die */
    char misnamed[256];     /* an error that names another rank than the lost one */
    int blamed;             /* the life that it names; unless that gave up, the error is wrong */
    int heir;               /* the life that inherits its residual */
    _Atomic int gave_up;    /* it has ended by itself: met nobody, no quorum, excluded */
    int leaving;            /* it has asked to leave, and has not heard that it stays */
    _Atomic int64_t begun;  /* steps that it has begun */
    float before[RING][N];  /* its residual before each */
    _Atomic int64_t done;   /* steps that it has completed */
    record records[RING];   /* of step i (counted by this process): [i % RING] */
    char text[512];         /* of its error, if it ends with FAILED */
} life;

typedef struct job {
    const char *exchange;
    int tcp;
    char meet[256], folder[32];
    int nlives; /* so far */
    int faults; /* processes die at given points, save and load */
    double timeout;
    _Atomic int64_t checked; /* steps that the ledger has seen */
    _Atomic int64_t stop_at; /* all end after this step */
    _Atomic int finished;
    uint64_t chains[RING];       /* after step i: [i % RING] */
    int who[VERSIONS][MOST * 2]; /* the life that has this rank in this version, and 1 */
    life lives[LIVES];
} job;

extern job *j;

double seconds_now(void);

/* ---- faults.c */

extern life *fault_life; /* this process; NULL: none of the job */
void fault_die(way how);

/* ---- life.c */

/* If not tcp: the sockets of each process. They are not in shared memory. */
extern int life_sockets[MOST][MOST];

/* The gradient of a life in its i-th step: integers, of which sums are exact. */
void life_gradient(int number, int64_t i, float *grad);
/* Of every group of this job. */
tw_group_params life_params(void);
/* In a child process. Does not return. */
void life_run(int number);

/* ---- ledger.c */

typedef struct ledger ledger;

typedef struct step_members {
    int lives[MOST * 2];
    int nranks;
    double when; /* the last of them had completed the step */
} step_members;

ledger *ledger_open(void);
/* Returns how many have died in a step that was completed with them. */
int ledger_close(ledger *l);
/* Looks at the next step. 1: all have completed it, and *m are those that took part. 0: not yet.
 * -1: something is wrong, and text says what. */
int ledger_next(ledger *l, step_members *m, char *text, size_t size);

/* ---- jobs.c */

typedef struct process {
    pid_t pid;
    way fate;
    double when;   /* of its fate */
    double resume; /* of a stopped one; 0: it runs */
    double gone;   /* when it ended */
    int64_t done;  /* steps until it went on */
    int was_member, counted;
} process;

enum { MAX_TIMES = 65536 };

typedef struct times {
    double values[MAX_TIMES];
    int count;
} times;

typedef struct job_counts {
    int kills[WAYS], back, leaves, joins, refused, late, doubts, jobs, violations;
    long long steps;
    double longest_poll; /* seconds from one job_poll to the next */
    times closed,
        stopped; /* seconds from a kill to the end of the next step without that process */
} job_counts;

extern process processes[LIVES];
extern int ended[LIVES]; /* exit codes; -1: runs */
extern step_members members;
extern job_counts counts;

/* hosts: of scripts/netlab-hosts; the prefix of their namespaces. NULL: all run on this one. */
void jobs_open(const char *hosts);
/* Before processes are started. */
void job_begin(const char *exchange, int tcp, double timeout);
/* The first processes of the job, with what j->lives tells them. */
void job_start(int nranks);
int job_start_newcomer(void);
/* Moves the books on. 0: something is wrong. */
int job_poll(double stalled);
/* Ends the job after some more steps, once those that are to go have gone. */
void job_end(int sound, double stalled);
/* Processes that run. Those that are to go, and members of the last step that have gone. */
int job_running(void);
int job_going(void);
__attribute__((format(printf, 1, 2))) void violation(const char *format, ...);

#endif
