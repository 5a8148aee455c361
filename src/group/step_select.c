/* step_select.c - the first half of a step, which can be taken back; see step.h */
#include "select/methods.h"
#include "group/step.h"

#include <math.h>
#include <stdio.h>

/* The first NaN or infinity of a dense gradient, -1 if none. */
static int find_bad_number(const tw_group *g, const tw__tensor *t, int64_t *bad) {
    const char *grad = tw__whole_grad(t); /* there is no selector, which would look for itself */
    *bad = -1;
    if (g->resident)
        return tw__device_find_bad(g->lists_there.context, grad, t->params.type, t->n, bad);
    for (int64_t lo = 0; lo < t->n; lo += TW__BLOCK) {
        int64_t len = tw__at_most(TW__BLOCK, t->n - lo);
        if (t->params.type == TW_F32)
            memcpy(g->scratch, grad + 4 * lo, sizeof(float) * (size_t)len);
        else if (t->params.type == TW_F16)
            g->kernels->widen_f16(g->scratch, grad + 2 * lo, len);
        else
            g->kernels->widen_bf16(g->scratch, grad + 2 * lo, len);
        if (g->kernels->count(g->scratch, len, TW__INFINITY_BITS) == 0)
            continue;
        for (int64_t i = 0; i < len; i++)
            if (tw__magnitude(g->scratch[i]) >= TW__INFINITY_BITS && *bad < 0)
                *bad = lo + i;
        return TW_OK;
    }
    return TW_OK;
}

/* What a GPU does from here on comes after what made the gradient. */
static int follow_caller(tw_group *g, const tw__plan *way, tw__tensor *t) {
    if (!tw__on_gpu(t))
        return TW_OK;
    if (t->marked != TW_OK)
        return tw__fail(t->marked, "stream: it cannot be followed; give a stream of GPU %d",
                        t->params.ordinal);
    if (t->out != NULL)
        TW_TRY(tw__device_pointer(t->out, "out", t->params.ordinal, sizeof(float)));
    TW_TRY(tw__stream_follow(g->lane, t->ready));
    if (!tw__is_dense(way))
        return TW_OK;
    TW_TRY(tw__device_pointer(t->grad, "grad", t->params.ordinal, tw__element_size(t)));
    if (g->resident)
        return TW_OK;
    TW_TRY(tw__stream_copy(g->lane, t->dense_grad, t->grad, tw__element_size(t) * (size_t)t->n));
    return tw__stream_wait(g->lane);
}

/* What the caller gave can be used. */
static int prepare_one(tw__step *s, tw__tensor *t) {
    if (t->grad == NULL || ((tw__is_dense(s->way) || s->g->automatic) && t->out == NULL))
        return TW_ERR_NULL;
    return follow_caller(s->g, s->way, t);
}

/* Opens a step of the tensor's selector; on a GPU it is queued then. *bad is the index of a bad
 * number. */
static int select_one(tw_group *g, const tw__plan *way, tw__tensor *t, int64_t *bad) {
    tw_sparse sparse = {.count = t->n};
    if (t->selector == NULL) {
        t->selected = t->n;
        TW_TRY(find_bad_number(g, t, bad));
        return *bad < 0 ? TW_OK : TW_ERR_NUMBER;
    }
    int error = tw__is_dense(way) ? tw__selector_fold(t->selector, t->grad)
                                  : tw_selector_run(t->selector, t->grad, &sparse);
    *bad = t->selector->info.bad_index;
    t->selected = sparse.count;
    t->open = t->selector->open;
    return error;
}

/* How many entries a GPU has selected. */
static int await_selection(tw__tensor *t, int64_t *bad) {
    tw_sparse sparse = {0};
    if (!tw__on_gpu(t) || !t->open)
        return TW_OK;
    int error = tw_selector_wait(t->selector, &sparse);
    *bad = t->selector->info.bad_index;
    t->selected = sparse.count;
    t->open = t->selector->open; /* also after a failure to wait for it */
    return error;
}

/* The selections of all tensors. An error is that of `tensor`, with the index of a bad number.
 * *took: where the step selects on a GPU, the seconds that this takes there. */
static int select_each(tw__step *s, int *tensor, int64_t *bad, double *took) {
    tw_group *g = s->g;
    int there = g->lane != NULL && !tw__is_dense(s->way);
    if (there)
        TW_TRY(tw__stream_begin(g->lane));
    for (int i = 0; i < s->count; i++) {
        *tensor = s->members[i];
        TW_TRY(select_one(g, s->way, &g->tensors[*tensor], bad));
    }
    if (there)
        TW_TRY(tw__stream_end(g->lane));
    for (int i = 0; i < s->count; i++) {
        *tensor = s->members[i];
        TW_TRY(await_selection(&g->tensors[*tensor], bad));
    }
    return there ? tw__stream_took(g->lane, took) : TW_OK;
}

/* When something began that took so long until now: a GPU may have waited for gradients first. */
static double began(double begin, double now, double took) {
    return now - begin > took ? now - took : begin;
}

int tw__step_select(tw__step *s) {
    int error = TW_OK, tensor = 0;
    int64_t bad = -1;
    double begin = tw__transport_seconds(s->g->transport), took = HUGE_VAL;
    for (int i = 0; i < s->count; i++) { /* of all, also where the first is refused */
        tw__tensor *t = &s->g->tensors[s->members[i]];
        t->threshold_before = t->threshold;
        t->has_result = 0;
        t->cleared = t->early = 0;
    }
    for (int i = 0; i < s->count && error == TW_OK; i++) {
        tensor = s->members[i];
        error = prepare_one(s, &s->g->tensors[tensor]);
    }
    if (error == TW_OK)
        error = select_each(s, &tensor, &bad, &took);
    double selected = tw__transport_seconds(s->g->transport);
    begin = began(begin, selected, took);
    double slowest = tw__auto_pending(s->g, s->members);
    error = tw__agree_step(s->g, error, tensor, bad, s->members, s->count, &slowest);
    if (error == TW_OK)
        tw__auto_learn(s->g, s->members, slowest);
    s->agreed = tw__transport_seconds(s->g->transport);
    s->info.began = begin;
    s->info.select_seconds = selected - begin;
    s->info.agree_seconds = s->agreed - selected;
    return error;
}

/* What fails in here says less than the error that led here: that one's text stays. */
void tw__step_undo_open(tw__step *s) {
    char text[TW__TEXT];
    snprintf(text, sizeof text, "%s", tw_last_error());
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        if (t->open)
            (void)tw_selector_undo(t->selector, t->grad);
        t->open = 0;
    }
    if (s->g->lane != NULL) /* gradients are the caller's again */
        (void)tw__stream_wait(s->g->lane);
    (void)tw__fail(TW_OK, "%s", text);
}

void tw__step_undo(tw__step *s) {
    tw__step_undo_open(s);
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        t->threshold = t->threshold_before;
    }
}
