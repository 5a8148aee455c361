/* handover.c - a rank that leaves hands its residuals and moments to another
 *
 * The arithmetic is that of tw_group_load with several files: residuals and velocities are added, of
 * AdamW's moments the mean is taken. What the heir has received changes nothing until the ranks have
 * agreed that the other one goes: then it is set. */
#include "group/membership.h"

#include "backend/cpu/kernels.h"

#include <stdlib.h>

#define PART ((int64_t)1 << 16) /* elements of a message */

/* Vectors of a tensor: its residual, then its moments. */
static int vectors_of(const tw__tensor *t) {
    if (t->selector == NULL)
        return 0;
    return (t->params.feedback == TW_FEEDBACK_ON) + (int)tw__moments_of(&t->params);
}

/* The kind of a tensor's vector; without feedback there are moments alone. */
static tw__vector kind_of(const tw__tensor *t, int vector) {
    int at = vector + (t->params.feedback != TW_FEEDBACK_ON);
    return at == 0 ? TW__RESIDUAL : at == 1 ? TW__FIRST : TW__SECOND;
}

typedef int visit(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context);

/* All vectors of all tensors, one behind the other from `at` on. */
static int each_vector(tw_group *g, float *at, visit *visit_one, void *context) {
    for (int i = 0; i < g->ntensors; i++) {
        tw__tensor *t = &g->tensors[i];
        for (int v = 0; v < vectors_of(t); v++) {
            TW_TRY(visit_one(g, t, kind_of(t, v), at, context));
            at += at != NULL ? t->n : 0;
        }
    }
    return TW_OK;
}

static int count_elements(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    (void)g, (void)kind, (void)at;
    *(size_t *)context += (size_t)t->n;
    return TW_OK;
}

/* ---- the rank that leaves */

static int send_vector(tw_group *g, tw__tensor *t, tw__vector kind, float *part, void *context) {
    (void)part;
    float *buffer = ((tw__handover *)context)->buffer;
    for (int64_t first = 0; first < t->n; first += PART) {
        int64_t count = t->n - first < PART ? t->n - first : PART;
        tw__message message;
        TW_TRY(t->backend->get(t->selector->state, kind, first, count, buffer));
        TW_TRY(tw__transport_send(g->transport, ((tw__handover *)context)->heir, TW__PAYLOAD,
                                  buffer, sizeof(float) * (size_t)count, &message));
        TW_TRY(tw__transport_wait(g->transport, &message, 1));
    }
    return TW_OK;
}

/* ---- the heir */

static int take_own(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    (void)g, (void)context;
    return t->backend->get(t->selector->state, kind, 0, t->n, at);
}

static int receive_vector(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    const tw__handover *h = context;
    (void)kind;
    for (int64_t first = 0; first < t->n; first += PART) {
        int64_t count = t->n - first < PART ? t->n - first : PART;
        tw__message message;
        TW_TRY(tw__transport_recv(g->transport, h->from, TW__PAYLOAD, h->buffer,
                                  sizeof(float) * (size_t)count, &message));
        TW_TRY(tw__transport_wait(g->transport, &message, 1));
        if (message.bytes != sizeof(float) * (size_t)count)
            return tw__transport_abort(
                g->transport,
                tw__fail(TW_ERR_PROTOCOL, "rank %d hands over %zu bytes", h->from, message.bytes));
        h->kernels->add(at + first, h->buffer, count);
    }
    return TW_OK;
}

/* AdamW's moments are means over gradients: of several ranks' the mean is taken. */
static int finish_vector(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    const tw__handover *h = context;
    (void)g;
    if (kind != TW__RESIDUAL && t->params.before == TW_BEFORE_ADAMW)
        h->kernels->scale(at, at, 1.0f / (float)(1 + h->received), t->n);
    if (h->kernels->count(at, t->n, TW__INFINITY_BITS) > 0)
        return tw__fail(TW_ERR_NUMBER, "the residuals that are handed over overflow with this "
                                       "rank's; name another heir");
    return TW_OK;
}

static int set_vector(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    (void)g, (void)context;
    return t->backend->set(t->selector->state, kind, at);
}

/* ---- for membership.c */

/* Memory for this rank's part; without any part there is none. */
static int set_up(tw_group *g, tw__handover *h, int heirs) {
    size_t elements = 0;
    TW_TRY(tw__kernels_choose(&h->kernels));
    TW_TRY(each_vector(g, NULL, count_elements, &elements));
    h->buffer = malloc(sizeof(float) * (size_t)PART);
    h->sum = heirs ? malloc(sizeof(float) * (elements + 1)) : NULL;
    if (h->buffer == NULL || (heirs && h->sum == NULL))
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu elements that are handed over", elements);
    return heirs ? each_vector(g, h->sum, take_own, h) : TW_OK;
}

int tw__handover_run(tw_group *g, const int *heirs, tw__handover *h) {
    int heir = 0;
    *h = (tw__handover){.heir = heirs[g->rank]};
    for (int r = 0; r < g->nranks; r++)
        heir |= heirs[r] == g->rank;
    int error = h->heir >= 0 || heir ? set_up(g, h, heir) : TW_OK;
    TW_TRY(tw__agree_error(g, error));
    if (h->heir >= 0)
        TW_TRY(each_vector(g, NULL, send_vector, h));
    for (h->from = 0; h->from < g->nranks; h->from++)
        if (heirs[h->from] == g->rank) {
            TW_TRY(each_vector(g, h->sum, receive_vector, h));
            h->received++;
        }
    return tw__agree_error(g, heir ? each_vector(g, h->sum, finish_vector, h) : TW_OK);
}

int tw__handover_apply(tw_group *g, tw__handover *h) {
    return h->sum != NULL ? each_vector(g, h->sum, set_vector, h) : TW_OK;
}

void tw__handover_free(tw__handover *h) {
    free(h->buffer);
    free(h->sum);
}
