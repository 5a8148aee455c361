/* team.c - workers that take tasks from a counter under a lock
 *
 * Tasks last tens of microseconds and more, so a lock per task costs nothing that can be measured,
 * and a worker that wakes up late finds no task instead of a stale job. Waiting threads sleep: on
 * shared cores a spinning one takes the core from the one that it waits for.
 */
#include "team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define CACHE_LINE 64

typedef struct worker {
    team *team;
    int number; /* 1 .. threads - 1: the caller is worker 0 */
    pthread_t thread;
} worker;

struct team {
    pthread_mutex_t lock; /* over what follows up to `stop` */
    pthread_cond_t work;  /* there are tasks, or stop */
    pthread_cond_t done;  /* unfinished fell to 0 */
    team_task task;
    void *context;
    int next;       /* first task that nobody has taken */
    int ntasks;     /* of the current job */
    int unfinished; /* tasks that have not returned */
    bool stop;

    int threads;
    int started;     /* of workers[] */
    worker *workers; /* [threads - 1] */
    size_t scratch;  /* bytes per worker, whole cache lines */
    char *memory;    /* [threads][scratch], then the common part */
};

size_t team_round(size_t bytes) {
    return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static void *scratch_of(const team *t, int number) {
    return t->memory + t->scratch * (size_t)number;
}

/* Take and run tasks until none is left. Called and left with the lock held. */
static void run_tasks(team *t, int number) {
    while (t->next < t->ntasks) {
        int mine = t->next++;
        pthread_mutex_unlock(&t->lock);
        t->task(t->context, mine, scratch_of(t, number));
        pthread_mutex_lock(&t->lock);
        if (--t->unfinished == 0)
            pthread_cond_signal(&t->done);
    }
}

static void *work(void *argument) {
    worker *self = argument;
    team *t = self->team;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        run_tasks(t, self->number);
        if (!t->stop)
            pthread_cond_wait(&t->work, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int start_workers(team *t) {
    for (; t->started < t->threads - 1; t->started++) {
        worker *w = &t->workers[t->started];
        *w = (worker){.team = t, .number = t->started + 1};
        if (pthread_create(&w->thread, NULL, work, w) != 0)
            return -1;
    }
    return 0;
}

int team_create(team **out, int threads, size_t scratch, size_t common) {
    *out = NULL;
    team *t = calloc(1, sizeof *t);
    if (!t)
        return -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    t->threads = threads;
    t->scratch = team_round(scratch);
    t->workers = calloc((size_t)threads, sizeof *t->workers);
    t->memory =
        aligned_alloc(CACHE_LINE, t->scratch * (size_t)threads + team_round(common) + CACHE_LINE);
    if (!t->workers || !t->memory || start_workers(t) != 0) {
        team_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void team_free(team *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t->memory);
    free(t);
}

void team_run(team *t, int ntasks, team_task task, void *context) {
    if (t->threads == 1 || ntasks <= 1) {
        for (int i = 0; i < ntasks; i++)
            task(context, i, scratch_of(t, 0));
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->task = task;
    t->context = context;
    t->next = 0;
    t->ntasks = ntasks;
    t->unfinished = ntasks;
    pthread_cond_broadcast(&t->work);
    run_tasks(t, 0);
    while (t->unfinished > 0)
        pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void *team_common(team *t) {
    return t->memory + t->scratch * (size_t)t->threads;
}
