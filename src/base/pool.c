/* pool.c - the thread pool; see pool.h
 *
 * One job at a time, described on its caller's stack. The mutex guards everything but the counter
 * from which items are taken. A worker joins a job while it has places and items left; the caller
 * unhooks the job, then waits for those who joined. */
#include "base/pool.h"
#include "base/error.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct job {
    tw__task *task;
    void *context;
    int64_t items;
    _Atomic int64_t next; /* first item that nobody has taken */
    fenv_t environment;   /* the caller's: rounding and flushing are its choice */
    int places;           /* workers that may join, the caller not counted */
    int joined;           /* workers that joined so far */
    int active;           /* of these, still at work */
} job;

static struct {
    pthread_mutex_t handles_mutex; /* held while threads come and go; workers never take it */
    int handles;
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* a job came, or the end */
    pthread_cond_t idle; /* a job's last worker left */
    job *job;            /* open to workers, or NULL */
    int started;         /* threads[0 .. started-1] run */
    int ending;
    pthread_t threads[TW__MAX_THREADS];
} pool = {.handles_mutex = PTHREAD_MUTEX_INITIALIZER,
          .mutex = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

static void work(job *j, int worker) {
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (item >= j->items)
            return;
        j->task(j->context, worker, item);
    }
}

static int joinable(const job *j) {
    return j != NULL && j->joined < j->places &&
           atomic_load_explicit(&j->next, memory_order_relaxed) < j->items;
}

static void *worker_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        while (!pool.ending && !joinable(pool.job))
            pthread_cond_wait(&pool.wake, &pool.mutex);
        if (pool.ending)
            break;
        job *j = pool.job;
        int worker = ++j->joined;
        j->active++;
        pthread_mutex_unlock(&pool.mutex);
        fesetenv(&j->environment);
        work(j, worker);
        pthread_mutex_lock(&pool.mutex);
        if (--j->active == 0)
            pthread_cond_broadcast(&pool.idle);
    }
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

/* Offers the job to the workers. Returns 0 when the pool is busy with another one. */
static int open_job(job *j) {
    pthread_mutex_lock(&pool.mutex);
    int idle = pool.job == NULL && pool.started > 0;
    if (idle) {
        pool.job = j;
        pthread_cond_broadcast(&pool.wake);
    }
    pthread_mutex_unlock(&pool.mutex);
    return idle;
}

static void close_job(job *j) {
    pthread_mutex_lock(&pool.mutex);
    pool.job = NULL;
    while (j->active > 0)
        pthread_cond_wait(&pool.idle, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

void tw__pool_run(int threads, int64_t items, tw__task *task, void *context) {
    job j = {.task = task, .context = context, .items = items, .places = threads - 1};
    fegetenv(&j.environment);
    int shared = threads > 1 && items > 1 && open_job(&j);
    work(&j, 0);
    if (shared)
        close_job(&j);
}

/* In a forked child the threads are gone and the mutex may be held by one of them. */
static void reset_after_fork(void) {
    pthread_mutex_init(&pool.handles_mutex, NULL);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.job = NULL;
    pool.started = 0;
    pool.ending = 0;
}

static void watch_fork(void) {
    pthread_atfork(NULL, NULL, reset_after_fork);
}

/* The new threads block all signals: those are the application's business. */
static void start_threads(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&pool.mutex);
    while (pool.started < wanted &&
           pthread_create(&pool.threads[pool.started], NULL, worker_main, NULL) == 0)
        pool.started++;
    pthread_mutex_unlock(&pool.mutex);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end_threads(void) {
    pthread_mutex_lock(&pool.mutex);
    pool.ending = 1;
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.mutex);
    for (int i = 0; i < pool.started; i++)
        pthread_join(pool.threads[i], NULL);
    pthread_mutex_lock(&pool.mutex);
    pool.started = 0;
    pool.ending = 0;
    pthread_mutex_unlock(&pool.mutex);
}

void tw__pool_retain(int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_fork);
    pthread_mutex_lock(&pool.handles_mutex);
    pool.handles++;
    start_threads(threads - 1);
    pthread_mutex_unlock(&pool.handles_mutex);
}

void tw__pool_release(void) {
    pthread_mutex_lock(&pool.handles_mutex);
    if (--pool.handles == 0)
        end_threads();
    pthread_mutex_unlock(&pool.handles_mutex);
}

static int usable_cores(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set) < TW__MAX_THREADS ? CPU_COUNT(&set) : TW__MAX_THREADS;
#endif
    return 1;
}

int tw_default_threads(void) {
    int threads = 0;
    if (tw__threads(0, &threads) != TW_OK)
        threads = usable_cores();
    return threads;
}

static int in_range(long threads) {
    return threads >= 1 && threads <= TW__MAX_THREADS;
}

int tw__threads(int asked, int *threads) {
    const char *text = getenv("THINWIRE_THREADS");
    if (asked != 0) {
        if (!in_range(asked))
            return tw__fail(TW_ERR_PARAM, "threads: %d; accepted are 0 (default) and 1 .. %d",
                            asked, TW__MAX_THREADS);
        *threads = asked;
    } else if (text != NULL && *text != '\0') {
        char *end = NULL;
        long value = strtol(text, &end, 10);
        if (*end != '\0' || !in_range(value))
            return tw__fail(TW_ERR_PARAM, "THINWIRE_THREADS: '%s'; accepted are 1 .. %d", text,
                            TW__MAX_THREADS);
        *threads = (int)value;
    } else {
        *threads = usable_cores();
    }
    return TW_OK;
}
