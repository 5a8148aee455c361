/* ranks_threads.c - all ranks of a job as threads of this process
 *
 * No rank starts before all threads exist: a thread that cannot be started would leave the others
 * waiting for it. A rank that fails leaves; the others notice by their deadlines.
 */
#include "ranks_kinds.h"

#include <pthread.h>
#include <stdlib.h>

#include "errors.h"

/* Where threads wait until it is known that all of them could be started. */
typedef struct starting_gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool open;
    bool called_off;
} starting_gate;

typedef struct rank_thread {
    pthread_t thread;
    rank_seat seat;
    starting_gate *gate;
    rank_work work;
    void *context;
    int status;
} rank_thread;

static bool pass_gate(starting_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->moved, &gate->lock);
    bool passed = !gate->called_off;
    pthread_mutex_unlock(&gate->lock);
    return passed;
}

static void open_gate(starting_gate *gate, bool called_off) {
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    gate->called_off = called_off;
    pthread_cond_broadcast(&gate->moved);
    pthread_mutex_unlock(&gate->lock);
}

static void *play_rank(void *argument) {
    rank_thread *self = argument;
    if (pass_gate(self->gate))
        self->status = self->work(&self->seat, self->context);
    tw_transport_free(self->seat.transport);
    tw_transport_free(self->seat.beside);
    return NULL;
}

/* The failure of the lowest rank that has one. */
static int report(const rank_thread *threads, int nranks) {
    bool failed = false;
    for (int r = 0; r < nranks; r++) {
        if (threads[r].seat.text[0] != '\0')
            return failure("rank %d: %s", r, threads[r].seat.text);
        failed = failed || threads[r].status != STATUS_OK;
    }
    return failed ? STATUS_FAILED : STATUS_OK;
}

static int play_all(rank_thread *threads, int nranks) {
    starting_gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    int started = 0;
    while (started < nranks) {
        rank_thread *next = &threads[started];
        next->gate = &gate;
        if (pthread_create(&next->thread, NULL, play_rank, next) != 0)
            break;
        started++;
    }
    open_gate(&gate, started < nranks);
    for (int r = 0; r < started; r++)
        pthread_join(threads[r].thread, NULL);
    for (int r = started; r < nranks; r++) {
        tw_transport_free(threads[r].seat.transport);
        tw_transport_free(threads[r].seat.beside);
    }
    if (started < nranks) {
        return failure("only %d of %d threads could be started; try fewer --ranks", started,
                       nranks);
    }
    return report(threads, nranks);
}

/* Two sets of transports: [nranks] for what is measured, then [nranks] beside it. */
static int make_transports(tw_transport **transports, int nranks) {
    int error = tw_transport_threads(transports, nranks);
    if (error != TW_OK)
        return library_failure("connecting the ranks", error);
    error = tw_transport_threads(transports + nranks, nranks);
    if (error != TW_OK) {
        int status = library_failure("connecting the ranks", error);
        for (int r = 0; r < nranks; r++)
            tw_transport_free(transports[r]);
        return status;
    }
    return STATUS_OK;
}

static int fill_and_play(const rank_job *job, rank_thread *threads, tw_transport **transports,
                         rank_work work, void *context) {
    int status = make_transports(transports, job->nranks);
    if (status != STATUS_OK)
        return status;
    for (int r = 0; r < job->nranks; r++) {
        threads[r].work = work;
        threads[r].context = context;
        threads[r].seat = (rank_seat){
            .rank = r,
            .nranks = job->nranks,
            .neighbours = job->nranks,
            .transport = transports[r],
            .beside = transports[r + job->nranks],
        };
    }
    return play_all(threads, job->nranks);
}

int ranks_threads_run(const rank_job *job, rank_work work, void *context) {
    size_t nranks = (size_t)job->nranks;
    rank_thread *threads = calloc(nranks, sizeof *threads);
    tw_transport **transports = calloc(2 * nranks, sizeof(tw_transport *));
    int status = threads != NULL && transports != NULL
                     ? fill_and_play(job, threads, transports, work, context)
                     : failure("not enough memory for %d ranks; try fewer --ranks", job->nranks);
    free(threads);
    free(transports);
    return status;
}
