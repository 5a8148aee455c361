/* local.c - local steps: a rank trains alone, then all exchange what changed
 *
 *     difference = base - values          of this rank, over the inner steps of a round
 *     mean       = exchange(difference)   over all ranks
 *     velocity   = momentum * velocity + mean
 *     base      -= rate * (mean + momentum * velocity)     Nesterov, as in DiLoCo
 *     values     = base                   equal on all ranks
 *
 * Douillard et al., 2023; with a sparse exchange: Sarfi et al., 2025. */
#include "worker.h"

#include <stdlib.h>
#include <string.h>

int local_create(worker *w) {
    size_t n = (size_t)w->model->n;
    if (w->spec->local_steps == 0)
        return TW_OK;
    w->base = malloc(n * sizeof *w->base);
    w->velocity = calloc(n, sizeof *w->velocity);
    if (w->base == NULL || w->velocity == NULL)
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for the outer state");
    memcpy(w->base, w->model->values, n * sizeof *w->base);
    return TW_OK;
}

bool local_ends_round(const worker *w) {
    int64_t every = w->spec->local_steps;
    return every > 0 && ((w->step + 1) % every == 0 || w->step + 1 == w->spec->steps);
}

void local_difference(worker *w) {
    model *m = w->model;
    for (int64_t i = 0; i < m->n; i++)
        m->grads[i] = w->base[i] - m->values[i];
}

void local_apply(worker *w, bool refused) {
    model *m = w->model;
    float rate = (float)w->spec->outer_rate, momentum = (float)w->spec->outer_momentum;
    for (int64_t i = 0; !refused && i < m->n; i++) {
        w->velocity[i] = momentum * w->velocity[i] + m->grads[i];
        w->base[i] -= rate * (m->grads[i] + momentum * w->velocity[i]);
    }
    memcpy(m->values, w->base, sizeof *w->base * (size_t)m->n);
}
