/* background.c - start and wait: steps under the caller's computation
 *
 * Tensors are merged into buckets of neighbours, and buckets are launched in their order, round
 * after round, so that all ranks exchange the same tensors in the same order however their
 * gradients come in. A bucket is launched when it is complete and the ones before it were; waiting
 * for a tensor launches what was started so far, up to its bucket. A thread, started when it is
 * first needed, runs what was launched. A caller that waits runs it itself if the thread has not
 * begun: to wake a thread, and to be woken by it, takes longer than many a step.
 *
 *   caller   start 0  start 2  start 1  wait TW_ALL         buckets {0, 1}, {2}
 *   cursor      0        0      0 -> 1 -> 0                 {0, 1} is launched, then {2}
 *
 * Everything here is under the worker's mutex, but for the steps themselves: a launched tensor
 * belongs to whoever runs its step until it is finished. */
#include "group/group.h"

#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

/* ---- the thread */

/* Keeps the text of the last error for so many tensors. Returns where, or -1. */
static int note_failure(tw_group *g, int tensors) {
    int at = 0;
    while (at < TW__FAILURES && g->worker.failures[at].tensors > 0)
        at++;
    if (at == TW__FAILURES)
        return -1;
    g->worker.failures[at].tensors = tensors;
    snprintf(g->worker.failures[at].text, TW__TEXT, "%s", tw_last_error());
    return at;
}

/* The status of a finished tensor, with the text of its error. */
static int tell_status(tw_group *g, const tw__tensor *t) {
    if (t->status == TW_OK)
        return TW_OK;
    if (t->failure < 0)
        return tw__fail(t->status, "%s",
                        g->broken != TW_OK ? g->broken_text : tw_error_text(t->status));
    tw__failure *failure = &g->worker.failures[t->failure];
    assert(failure->tensors > 0);
    failure->tensors--;
    return tw__fail(t->status, "%s", failure->text);
}

static void finish(tw__tensor *t, int status, int failure) {
    assert(t->progress == TW__LAUNCHED);
    t->status = status;
    t->failure = failure;
    t->progress = TW__FINISHED;
}

/* The tensors of a launch, into g->members. Those whose step was completed late need no other, whatever
 * becomes of the rest. */
static int collect(tw_group *g, int64_t launch, const tw__bucket *bucket) {
    int count = 0;
    for (int t = bucket->first; t < bucket->first + bucket->count; t++) {
        tw__tensor *tensor = &g->tensors[t];
        if (tensor->progress != TW__LAUNCHED || tensor->launch != launch)
            continue;
        if (tw__tensor_take_completed(tensor))
            finish(tensor, TW_OK, -1);
        else
            g->members[count++] = t;
    }
    return count;
}

/* Runs the tensors of one launch. Called with the mutex held; lets go of it meanwhile. */
static void run_launch(tw_group *g, int64_t launch) {
    assert(launch < g->worker.launched);
    const tw__launch *queued = &g->worker.queue[launch % g->ntensors];
    int count = collect(g, launch, &g->buckets[queued->bucket]);
    if (count == 0)
        return;
    fesetenv(&queued->environment);
    pthread_mutex_unlock(&g->worker.mutex);
    tw__transport_begin_computing(g->transport);
    int error = g->broken;
    if (error == TW_OK)
        error = tw__allreduce_run(g, g->members, count);
    else
        tw__fail(error, "an earlier bucket failed: %s", g->broken_text);
    tw__transport_end_computing(g->transport);
    pthread_mutex_lock(&g->worker.mutex);
    int failure = error != TW_OK ? note_failure(g, count) : -1;
    for (int i = 0; i < count; i++) {
        tw__tensor *t = &g->tensors[g->members[i]];
        assert(!t->open || g->elastic.in_doubt);
        finish(t, error, failure);
    }
}

static int has_work(const tw__worker_thread *w) {
    return !w->busy && w->done < w->launched;
}

static void run_next(tw_group *g) {
    tw__worker_thread *w = &g->worker;
    assert(has_work(w));
    w->busy = 1;
    run_launch(g, w->done++);
    w->busy = 0;
    pthread_cond_broadcast(&w->changed);
}

#define PRECISELY 1000 /* ns */

/* A device is waited for by short sleeps, to which Linux adds up to 50 us if it is not told. Returns
 * how much this thread has allowed before. */
static int set_timer_slack(int ns) {
#ifdef __linux__
    int before = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
    if (ns > 0) /* negative: prctl had failed */
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)ns, 0UL, 0UL, 0UL);
    return before;
#else
    return ns;
#endif
}

static void *worker_main(void *group) {
    tw_group *g = group;
    tw__worker_thread *w = &g->worker;
    (void)set_timer_slack(PRECISELY);
    g->backend->stream_adopt(g->stream);
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!has_work(w) && !w->ending)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (w->ending)
            break;
        run_next(g);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static void forget_thread(tw__worker_thread *w) {
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    w->running = 0;
}

/* The thread blocks all signals, which are the application's business. */
static int begin_thread(tw_group *g) {
    tw__worker_thread *w = &g->worker;
    if (w->running)
        return TW_OK;
    sigset_t all, before;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, worker_main, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        forget_thread(w);
        return tw__fail(TW_ERR_MEMORY, "no thread can be started for the background");
    }
    w->running = 1;
    return TW_OK;
}

/* Whether a tensor of first .. end - 1 has come so far. */
static int has_progress(tw_group *g, int first, int end, tw__progress least, tw__progress most) {
    int found = 0;
    pthread_mutex_lock(&g->worker.mutex);
    for (int t = first; t < end && !found; t++)
        found = g->tensors[t].progress >= least && g->tensors[t].progress <= most;
    pthread_mutex_unlock(&g->worker.mutex);
    return found;
}

void tw__background_end(tw_group *g) {
    tw__worker_thread *w = &g->worker;
    if (!w->running)
        return;
    if (has_progress(g, 0, g->ntensors, TW__STARTED, TW__FINISHED))
        tw__transport_interrupt(g->transport); /* a step that waits for others ends at once */
    pthread_mutex_lock(&w->mutex);
    w->ending = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    if (g->nranks > 1 && has_progress(g, 0, g->ntensors, TW__LAUNCHED, TW__LAUNCHED) &&
        !tw__transport_has_failed(g->transport)) /* others may wait for a step that nobody begins */
        tw__transport_abort(g->transport,
                            tw__fail(TW_ERR_STATE, "the group was freed while tensors "
                                                   "were under way"));
    forget_thread(w);
}

int tw__background_busy(tw_group *g, int tensor) {
    int first = tensor == TW_ALL ? 0 : tensor, end = tensor == TW_ALL ? g->ntensors : tensor + 1;
    return g->worker.running && has_progress(g, first, end, TW__STARTED, TW__FINISHED);
}

/* ---- launching */

/* Hands over what was started of the bucket under the cursor. */
static void launch_next(tw_group *g) {
    tw__worker_thread *w = &g->worker;
    tw__bucket *bucket = &g->buckets[w->cursor];
    if (bucket->started > 0) {
        for (int t = bucket->first; t < bucket->first + bucket->count; t++)
            if (g->tensors[t].progress == TW__STARTED) {
                g->tensors[t].progress = TW__LAUNCHED;
                g->tensors[t].launch = w->launched;
            }
        bucket->started = 0;
        assert(w->launched - w->done < g->ntensors); /* the queue has room */
        tw__launch *launch = &w->queue[w->launched++ % g->ntensors];
        launch->bucket = w->cursor;
        fegetenv(&launch->environment);
        pthread_cond_broadcast(&w->changed);
    }
    w->cursor = (w->cursor + 1) % g->nbuckets;
}

static void launch_complete(tw_group *g) {
    for (;;) {
        const tw__bucket *bucket = &g->buckets[g->worker.cursor];
        if (bucket->started < bucket->count)
            return;
        launch_next(g);
    }
}

static void launch_up_to(tw_group *g, int bucket) {
    assert(bucket >= 0 && bucket < g->nbuckets);
    while (g->worker.cursor != bucket)
        launch_next(g);
    launch_next(g);
}

/* ---- public */

static int start_locked(tw_group *g, int tensor, const void *const *grads, float *const *outs) {
    tw__tensor *t = &g->tensors[tensor];
    if (t->progress != TW__IDLE)
        return tw__fail(TW_ERR_STATE, "tensor %d is under way; call tw_allreduce_wait first",
                        tensor);
    tw__group_begin_tensor(g, tensor, grads, outs);
    t->progress = TW__STARTED;
    g->buckets[t->bucket].started++;
    assert(g->buckets[t->bucket].started <= g->buckets[t->bucket].count);
    launch_complete(g);
    return TW_OK;
}

int tw_allreduce_start_pieces(tw_group *g, int tensor, const void *const *grads, float *const *outs,
                              int npieces) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(grads, "grads");
    TW_TRY(tw__group_check(g, tensor));
    TW_TRY(tw__group_check_pieces(g, tensor, npieces));
    TW_TRY(begin_thread(g));
    pthread_mutex_lock(&g->worker.mutex);
    int error = start_locked(g, tensor, grads, outs);
    pthread_mutex_unlock(&g->worker.mutex);
    return error;
}

int tw_allreduce_start(tw_group *g, int tensor, const void *grad, float *out) {
    return tw_allreduce_start_pieces(g, tensor, &grad, out != NULL ? &out : NULL, 1);
}

/* Runs the next launch in the caller's thread. Its settings and last error stay as they were. */
static void run_as_caller(tw_group *g) {
    char text[TW__TEXT];
    fenv_t own;
    const int slack = set_timer_slack(PRECISELY);
    fegetenv(&own);
    snprintf(text, sizeof text, "%s", tw_last_error());
    run_next(g);
    tw__fail(TW_OK, "%s", text);
    fesetenv(&own);
    (void)set_timer_slack(slack);
}

/* Waits for one tensor that was started, by running launches or for the thread that runs one. */
static int wait_one(tw_group *g, int tensor) {
    tw__tensor *t = &g->tensors[tensor];
    assert(t->progress != TW__IDLE);
    if (t->progress == TW__STARTED)
        launch_up_to(g, t->bucket);
    while (t->progress != TW__FINISHED)
        if (has_work(&g->worker))
            run_as_caller(g);
        else
            pthread_cond_wait(&g->worker.changed, &g->worker.mutex);
    t->progress = TW__IDLE;
    return tell_status(g, t);
}

/* All that were started; the next round begins with the first bucket. Returns the first error. */
static int wait_all(tw_group *g) {
    int error = TW_OK;
    char text[TW__TEXT];
    for (int b = 0; b < g->nbuckets; b++)
        launch_next(g);
    g->worker.cursor = 0;
    for (int t = 0; t < g->ntensors; t++) {
        int status = g->tensors[t].progress == TW__IDLE ? TW_OK : wait_one(g, t);
        if (status != TW_OK && error == TW_OK) {
            error = status;
            snprintf(text, sizeof text, "%s", tw_last_error());
        }
    }
    return error == TW_OK ? TW_OK : tw__fail(error, "%s", text);
}

int tw_allreduce_wait(tw_group *g, int tensor) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check_open(g));
    if (tensor != TW_ALL && (tensor < 0 || tensor >= g->ntensors))
        return tw__fail(TW_ERR_INDEX, "tensor: %d; accepted is 0 .. %d and TW_ALL", tensor,
                        g->ntensors - 1);
    if (!g->worker.running)
        return tensor == TW_ALL ? TW_OK
                                : tw__fail(TW_ERR_STATE, "tensor %d was not started", tensor);
    pthread_mutex_lock(&g->worker.mutex);
    int error;
    if (tensor == TW_ALL)
        error = wait_all(g);
    else if (g->tensors[tensor].progress == TW__IDLE)
        error = tw__fail(TW_ERR_STATE, "tensor %d was not started", tensor);
    else
        error = wait_one(g, tensor);
    pthread_mutex_unlock(&g->worker.mutex);
    return error;
}
