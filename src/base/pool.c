/* pool.c - the thread pool; see pool.h
 *
 * The pool has one job at a time, on its caller's stack. The mutex guards all but the counter of
 * items. A worker joins a job that may have another worker and has items left. The caller closes
 * the job, then waits for the workers that joined. */
#include "base/pool.h"
#include "base/error.h"

#include <assert.h>
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
    _Atomic int64_t next; /* first item that is not taken */
    fenv_t environment;   /* the caller's rounding and flushing modes */
    int most;             /* workers that may join, without the caller */
    int joined;           /* workers that joined so far */
    int active;           /* of these, still working */
} job;

static struct {
    pthread_mutex_t handles_mutex; /* held while threads start and end; workers never take it */
    int handles;
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* there is a job, or the pool ends */
    pthread_cond_t idle; /* a job's last worker is done */
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
    return j != NULL && j->joined < j->most &&
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
        assert(worker <= j->most && worker < TW__MAX_THREADS);
        j->active++;
        pthread_mutex_unlock(&pool.mutex);
        fesetenv(&j->environment);
        work(j, worker);
        pthread_mutex_lock(&pool.mutex);
        assert(j->active > 0 && j->active <= j->joined);
        if (--j->active == 0)
            pthread_cond_broadcast(&pool.idle);
    }
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

/* Offers the job to the workers. Returns 0 if the pool has another job. */
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
    assert(pool.job == j && j->next >= j->items);
    pool.job = NULL;
    while (j->active > 0)
        pthread_cond_wait(&pool.idle, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

void tw__pool_run(int threads, int64_t items, tw__task *task, void *context) {
    assert(threads >= 1 && threads <= TW__MAX_THREADS && items >= 0 && task != NULL);
    job j = {.task = task, .context = context, .items = items, .most = threads - 1};
    fegetenv(&j.environment);
    int shared = threads > 1 && items > 1 && open_job(&j);
    work(&j, 0);
    if (shared)
        close_job(&j);
}

/* A forked child has no workers, and one of them may have held the mutex. */
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

/* The new threads block all signals, which belong to the application. */
static void start_threads(int wanted) {
    sigset_t all, before;
    assert(wanted < TW__MAX_THREADS);
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
    assert(pool.handles > 0);
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
    int threads = usable_cores();
    (void)tw__threads(0, &threads);
    return threads;
}

static int in_range(long threads) {
    return threads >= 1 && threads <= TW__MAX_THREADS;
}

int tw__threads(int asked, int *threads) {
    const char *text = getenv("THINWIRE_THREADS");
    char *end = NULL;
    if (asked != 0 && !in_range(asked))
        return tw__fail(TW_ERR_PARAM, "threads: %d; accepted are 0 (default) and 1 .. %d", asked,
                        TW__MAX_THREADS);
    *threads = asked != 0 ? asked : usable_cores();
    if (asked != 0 || text == NULL || *text == '\0')
        return TW_OK;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || !in_range(value))
        return tw__fail(TW_ERR_PARAM, "THINWIRE_THREADS: '%s'; accepted are 1 .. %d", text,
                        TW__MAX_THREADS);
    *threads = (int)value;
    return TW_OK;
}
