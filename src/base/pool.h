/* pool.h - one pool of threads for the process, shared by all handles
 *
 * A job is a number of items. Workers and the caller take items in increasing order until none is
 * left. A core that the system takes away delays one item, not the whole job. A call never depends
 * on a worker that has to wake up: if the pool is busy, not started, or gone after fork, the caller
 * does all items. There is one join per call and no barrier inside. */
#ifndef TW_BASE_POOL_H
#define TW_BASE_POOL_H

#include <stdint.h>

#define TW__MAX_THREADS 256

/* Does one item as worker 0 <= worker < threads. A worker gets its items in increasing order. */
typedef void tw__task(void *context, int worker, int64_t item);

/* Runs items 0 .. items-1 on at most `threads` threads and returns when all are done. */
void tw__pool_run(int threads, int64_t items, tw__task *task, void *context);

/* The number of threads for a request of `asked`. 0: THINWIRE_THREADS, or the cores that this
 * process may use. Errors: TW_ERR_PARAM. */
int tw__threads(int asked, int *threads);

/* Create and free a handle that runs jobs on this many threads. If the system refuses threads, jobs
 * run on fewer. */
void tw__pool_retain(int threads);
void tw__pool_release(void);

#endif
