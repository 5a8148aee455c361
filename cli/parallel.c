/* parallel.c - threads that take chunks from a shared counter
 *
 * Threads are started for each loop and joined at its end: these loops run for milliseconds, and
 * threads that stay would sit in the way of the library's own while it is timed.
 */
#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>

#include "thinwire.h"

#define MAX_HELPERS 63

typedef struct loop {
    int64_t n;
    void (*work)(void *context, int64_t begin, int64_t end);
    void *context;
    atomic_int_least64_t next; /* first element that nobody has taken */
} loop;

static void *run_chunks(void *argument) {
    loop *shared = argument;
    for (;;) {
        int64_t begin = atomic_fetch_add(&shared->next, PARALLEL_CHUNK);
        if (begin >= shared->n)
            return NULL;
        int64_t left = shared->n - begin;
        int64_t end = left > PARALLEL_CHUNK ? begin + PARALLEL_CHUNK : shared->n;
        shared->work(shared->context, begin, end);
    }
}

static int helpers_for(int64_t n) {
    int64_t chunks = (n + PARALLEL_CHUNK - 1) / PARALLEL_CHUNK;
    int64_t helpers = tw_default_threads() - 1;
    helpers = helpers < chunks - 1 ? helpers : chunks - 1;
    return (int)(helpers < MAX_HELPERS ? helpers : MAX_HELPERS);
}

void parallel_for(int64_t n, void (*work)(void *context, int64_t begin, int64_t end),
                  void *context) {
    loop shared = {.n = n, .work = work, .context = context};
    atomic_init(&shared.next, 0);
    pthread_t helpers[MAX_HELPERS];
    int wanted = helpers_for(n);
    int started = 0;
    /* A helper that cannot start is no error: the others take its chunks. */
    while (started < wanted && pthread_create(&helpers[started], NULL, run_chunks, &shared) == 0)
        started++;
    run_chunks(&shared);
    for (int i = 0; i < started; i++)
        pthread_join(helpers[i], NULL);
}
