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

/* ---- rounds
 *
 * In a round every rank sends every other a message: one that leaves the next part to its heir, else an
 * empty one. So no rank gets ahead of an heir behind a slow link, and no wait is longer than one part
 * takes. An heir of several ranks receives from one after the other, in turns. */

static int take_own(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    (void)g, (void)context;
    return t->backend->get(t->selector->state, kind, 0, t->n, at);
}

static int run_round(tw_group *g, tw__handover *h, size_t bytes) {
    char nothing = 0;
    for (int r = 0; r < g->nranks; r++) {
        h->out[r] = (tw__buffer){.data = &nothing};
        h->in[r] = (tw__buffer){.data = &nothing};
    }
    if (h->heir >= 0)
        h->out[h->heir] = (tw__buffer){.data = h->buffer, .bytes = bytes};
    if (h->from >= 0)
        h->in[h->from] = (tw__buffer){.data = h->buffer, .capacity = bytes};
    TW_TRY(tw__alltoall_run(g->transport, TW__PAYLOAD, h->out, h->in, h->recvs));
    if (h->from >= 0 && h->in[h->from].bytes != bytes)
        return tw__transport_abort(g->transport,
                                   tw__fail(TW_ERR_PROTOCOL, "rank %d hands over %zu bytes",
                                            h->from, h->in[h->from].bytes));
    return TW_OK;
}

/* at: of the sum; NULL on ranks that inherit nothing in this turn. */
static int pass_vector(tw_group *g, tw__tensor *t, tw__vector kind, float *at, void *context) {
    tw__handover *h = context;
    for (int64_t first = 0; first < t->n; first += PART) {
        int64_t count = t->n - first < PART ? t->n - first : PART;
        int error = h->heir < 0
                        ? TW_OK
                        : t->backend->get(t->selector->state, kind, first, count, h->buffer);
        if (error != TW_OK) /* the heir waits for it */
            return tw__transport_abort(g->transport, error);
        TW_TRY(run_round(g, h, sizeof(float) * (size_t)count));
        if (at != NULL)
            h->kernels->add(at + first, h->buffer, count);
    }
    return TW_OK;
}

/* In each turn an heir receives from the next of its ranks. Returns whether there is such a turn. */
static int begin_turn(const tw_group *g, const int *heirs, int turn, tw__handover *h) {
    int any = 0;
    h->heir = h->from = -1;
    for (int r = 0; r < g->nranks; r++) {
        int before = 0;
        for (int other = 0; other < r && heirs[r] >= 0; other++)
            before += heirs[other] == heirs[r];
        if (heirs[r] < 0 || before != turn)
            continue;
        any = 1;
        h->heir = r == g->rank ? heirs[r] : h->heir;
        h->from = heirs[r] == g->rank ? r : h->from;
    }
    return any;
}

/* ---- the heir's sums */

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

/* Memory for the agreement that follows, for messages, and of an heir for its sums. */
static int set_up(tw_group *g, tw__handover *h, int inherits) {
    size_t elements = 0, nranks = (size_t)g->nranks;
    TW_TRY(tw__transport_reserve_change(g->transport));
    TW_TRY(tw__kernels_choose(&h->kernels));
    TW_TRY(each_vector(g, NULL, count_elements, &elements));
    h->buffer = malloc(sizeof(float) * (size_t)PART);
    h->out = calloc(nranks, sizeof *h->out);
    h->in = calloc(nranks, sizeof *h->in);
    h->recvs = calloc(1, tw__alltoall_memory(g->nranks));
    h->sum = inherits ? malloc(sizeof(float) * (elements + 1)) : NULL;
    if (h->buffer == NULL || h->out == NULL || h->in == NULL || h->recvs == NULL ||
        (inherits && h->sum == NULL))
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu elements that are handed over", elements);
    return inherits ? each_vector(g, h->sum, take_own, h) : TW_OK;
}

int tw__handover_run(tw_group *g, const int *heirs, tw__handover *h) {
    int inherits = 0;
    *h = (tw__handover){0};
    for (int r = 0; r < g->nranks; r++)
        inherits |= heirs[r] == g->rank;
    TW_TRY(tw__agree_error(g, set_up(g, h, inherits)));
    for (int turn = 0; begin_turn(g, heirs, turn, h); turn++) {
        TW_TRY(each_vector(g, h->from >= 0 ? h->sum : NULL, pass_vector, h));
        h->received += h->from >= 0;
    }
    return tw__agree_error(g, inherits ? each_vector(g, h->sum, finish_vector, h) : TW_OK);
}

int tw__handover_apply(tw_group *g, tw__handover *h) {
    return h->sum != NULL ? each_vector(g, h->sum, set_vector, h) : TW_OK;
}

void tw__handover_free(tw__handover *h) {
    void *const parts[] = {h->buffer, h->sum, h->out, h->in, h->recvs};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]);
}
