/* pool.h - one pool of threads for the process, shared by all handles
 *
 * Work is a number of items, handed out in increasing order to whoever asks next; the caller works
 * too. So a core that is taken away delays one item, not the whole pass, and a call never depends
 * on a worker waking up: with the pool busy, gone (after fork) or not started, the caller does it
 * all. There is one join per call and no barrier within. */
#ifndef TW_BASE_POOL_H
#define TW_BASE_POOL_H

#include <stdint.h>

#define TW__MAX_THREADS 256

/* Does item `item` as worker `worker`, 0 <= worker < threads. A worker gets its items in
 * increasing order. */
typedef void tw__task(void *context, int worker, int64_t item);

/* Runs items 0 .. items-1 on at most `threads` threads and returns when all are done. */
void tw__pool_run(int threads, int64_t items, tw__task *task, void *context);

/* How many threads a call uses that asks for `asked`: 0 means THINWIRE_THREADS, or the cores that
 * this process may run on. Errors: TW_ERR_PARAM. */
int tw__threads(int asked, int *threads);

/* A handle that will ask for this many threads comes and goes. Threads that cannot be started are
 * done without. */
void tw__pool_retain(int threads);
void tw__pool_release(void);

#endif
