/* local.c - local steps: a rank trains alone, then all exchange what changed
 *
 *     difference = start - values         of this rank, over the inner steps of a round
 *     mean       = exchange(difference)   over all ranks
 *     velocity   = momentum * velocity + mean
 *     base      -= rate * (mean + momentum * velocity)     Nesterov, as in DiLoCo
 *     values     = base                   equal on all ranks; start of the next round
 *
 * Douillard et al., 2023; with a sparse exchange: Sarfi et al., 2025.
 *
 * Delayed: the exchange runs while the next round computes, and its mean reaches base at the end of
 * that round. Until then a rank keeps its own progress: values = base - difference. The last round
 * waits for its exchange, so replicas end equal. */
#include "worker.h"

#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const worker *w) {
    return sizeof(float) * (size_t)w->model->n;
}

int local_create(worker *w) {
    if (w->spec->local_steps == 0)
        return TW_OK;
    w->base = malloc(bytes_of(w));
    w->velocity = calloc((size_t)w->model->n, sizeof *w->velocity);
    if (w->spec->delayed) {
        w->start = malloc(bytes_of(w));
        w->means = malloc(bytes_of(w));
    }
    if (w->base == NULL || w->velocity == NULL ||
        (w->spec->delayed && (w->start == NULL || w->means == NULL)))
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for the outer state");
    memcpy(w->base, w->model->values, bytes_of(w));
    if (w->spec->delayed)
        memcpy(w->start, w->model->values, bytes_of(w));
    return TW_OK;
}

bool local_ends_round(const worker *w) {
    int64_t every = w->spec->local_steps;
    return every > 0 && ((w->step + 1) % every == 0 || w->step + 1 == w->spec->steps);
}

/* What the exchange of a round reads and overwrites. */
static float *difference_of(const worker *w) {
    return w->spec->delayed ? w->means : w->model->grads;
}

/* Until the mean is there, values keep this rank's own progress. */
static int begin_exchange(worker *w) {
    model *m = w->model;
    const float *start = w->spec->delayed ? w->start : w->base;
    float *difference = difference_of(w);
    for (int64_t i = 0; i < m->n; i++) {
        difference[i] = start[i] - m->values[i];
        m->values[i] = w->base[i] - difference[i];
    }
    w->pending = true;
    w->failed = TW_OK;
    for (int t = m->ntensors - 1; t >= 0; t--)
        worker_start(w, t, difference + m->tensors[t].offset);
    return w->failed;
}

/* Waits for the mean, then makes the outer step. */
static int finish_exchange(worker *w, trainer_step *s, bool *refused) {
    const float *mean = difference_of(w);
    float rate = (float)w->spec->outer_rate, momentum = (float)w->spec->outer_momentum;
    w->pending = false;
    TW_TRY(worker_collect(w, difference_of(w), refused));
    if (*refused)
        return TW_OK;
    for (int64_t i = 0; i < w->model->n; i++) {
        w->velocity[i] = momentum * w->velocity[i] + mean[i];
        w->base[i] -= rate * (mean[i] + momentum * w->velocity[i]);
    }
    return worker_note_exchange(w, s);
}

/* If a delayed exchange was refused, the round that ends now goes with it: it began with values that
 * some rank could not tell the others. */
int local_end_round(worker *w, trainer_step *s, bool *refused) {
    bool waits = !w->spec->delayed || w->step + 1 == w->spec->steps;
    if (w->pending)
        TW_TRY(finish_exchange(w, s, refused));
    if (!*refused)
        TW_TRY(begin_exchange(w));
    if (!*refused && waits)
        TW_TRY(finish_exchange(w, s, refused));
    if (!w->pending)
        memcpy(w->model->values, w->base, bytes_of(w));
    if (w->spec->delayed)
        memcpy(w->start, w->model->values, bytes_of(w));
    return TW_OK;
}
