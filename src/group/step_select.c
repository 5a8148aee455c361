/* step_select.c - the first stage of a step: gradients to selections; see step.h
 *
 * A device's work is queued for all members before any of it is waited for. */
#include "group/step.h"

#include <math.h>
#include <stdio.h>

/* Out may be the gradient itself, if elements are of one size, or lie apart from it. */
static int overlaps(const tw__tensor *t, const void *grad_piece, const float *out_piece,
                    int64_t n) {
    uintptr_t out = (uintptr_t)out_piece, grad = (uintptr_t)grad_piece;
    if (out == grad && t->params.type == TW_F32)
        return 0;
    return out < grad + tw__element_size(t) * (size_t)n && grad < out + sizeof(float) * (size_t)n;
}

static int check_piece(const tw__tensor *t, int piece) {
    const void *grad = tw__grads_of(t)[piece];
    float *const *outs = tw__outs_of(t);
    const int64_t *starts = t->table != NULL ? t->table->pieces.starts : (int64_t[]){0, t->n};
    if (grad == NULL || (outs != NULL && outs[piece] == NULL))
        return TW_ERR_NULL;
    if (outs == NULL)
        return TW_OK;
    if (overlaps(t, grad, outs[piece], starts[piece + 1] - starts[piece]))
        return TW_ERR_PARAM;
    return t->backend->check_pointer(outs[piece], "out", t->params.ordinal, sizeof(float));
}

/* What the caller gave can be used. The device's work from here on comes after what made the
 * gradient. */
static int prepare(tw__step *s, tw__tensor *t) {
    const tw_group *g = s->g;
    const tw__backend *b = t->backend;
    int pieces = t->table != NULL ? t->table->pieces.count : 1;
    if ((tw__is_dense(s->plan) || g->automatic) && t->out == NULL)
        return TW_ERR_NULL;
    for (s->bad_piece = 0; s->bad_piece < pieces; s->bad_piece++)
        TW_TRY(check_piece(t, s->bad_piece));
    s->bad_piece = -1;
    if (t->marked != TW_OK)
        return tw__fail(t->marked, "stream: it cannot be followed; give a stream of device %d",
                        t->params.ordinal);
    TW_TRY(b->stream_follow(g->stream, t->ready));
    if (!tw__is_dense(s->plan))
        return TW_OK;
    TW_TRY(b->check_pointer(t->grad, "grad", t->params.ordinal, tw__element_size(t)));
    if (t->staged_grad == NULL)
        return TW_OK;
    TW_TRY(b->copy(g->stream, t->staged_grad, t->grad, tw__element_size(t) * (size_t)t->n));
    return b->stream_wait(g->stream);
}

/* A dense tensor selects nothing, but its gradient is checked. */
static int check_gradient(tw__step *s, tw__tensor *t) {
    const tw__list_memory *lists = tw__group_lists(s->g);
    t->selected = (int32_t)t->n;
    TW_TRY(lists->backend->dense->find_bad(lists->context, tw__dense_source(t), t->params.type,
                                           t->n, &s->bad_index));
    return s->bad_index < 0 ? TW_OK : TW_ERR_NUMBER;
}

/* Dense: all of it is sent, with the residual where there is one. */
static int fold_one(tw__step *s, tw__tensor *t) {
    if (t->selector == NULL)
        return check_gradient(s, t);
    int error = tw__selector_fold(t->selector, tw__grads_of(t), &t->acc);
    s->bad_index = t->selector->info.bad_index;
    t->selected = (int32_t)t->n;
    t->open = t->selector->open;
    return error;
}

static int fold_all(tw__step *s) {
    for (int i = 0; i < s->count; i++) {
        s->error_tensor = s->members[i];
        TW_TRY(fold_one(s, tw__member(s, i)));
    }
    return TW_OK;
}

/* What has come of member i's selection. */
static void note_task(tw__step *s, int i, const tw__select_task *task) {
    tw__tensor *t = tw__member(s, i);
    t->selected = (int32_t)task->sparse.count;
    t->selector->open = task->open;
    t->open = task->open;
    if (t->open)
        return;
    s->error_tensor = s->members[i];
    s->bad_index = task->info->bad_index;
}

/* Opens a step of some members' selectors, which a device may only queue. */
static int run_some(tw__step *s, int first, int count) {
    tw__select_task tasks[TW__SELECT_AT_ONCE];
    for (int i = 0; i < count; i++) {
        tw__tensor *t = tw__member(s, first + i);
        TW_TRY(tw__selector_begin(t->selector, tw__grads_of(t), &tasks[i]));
    }
    int error = tw__member(s, first)->backend->run(tasks, count);
    for (int i = count - 1; i >= 0; i--) { /* the first that failed is the last noted */
        tw__selector_end(tw__member(s, first + i)->selector, &tasks[i]);
        note_task(s, first + i, &tasks[i]);
    }
    return error;
}

static int wait_for_some(tw__step *s, int first, int count) {
    tw__select_task tasks[TW__SELECT_AT_ONCE];
    for (int i = 0; i < count; i++) {
        tw_selector *selector = tw__member(s, first + i)->selector;
        tasks[i] = (tw__select_task){.state = selector->state, .info = &selector->info, .open = 1};
    }
    int error = tw__member(s, first)->backend->wait(tasks, count);
    for (int i = count - 1; i >= 0; i--)
        note_task(s, first + i, &tasks[i]);
    return error;
}

/* Calls it for neighbours on one backend. */
static int for_neighbours(tw__step *s, int (*call)(tw__step *s, int first, int count)) {
    for (int first = 0, count; first < s->count; first += count) {
        const tw__backend *backend = tw__member(s, first)->backend;
        count = 1;
        while (count < TW__SELECT_AT_ONCE && first + count < s->count &&
               tw__member(s, first + count)->backend == backend)
            count++;
        s->error_tensor = s->members[first];
        TW_TRY(call(s, first, count));
    }
    return TW_OK;
}

/* *took: the seconds that the selections took the device, if it tells. */
static int select_all(tw__step *s, double *took) {
    const tw_group *g = s->g;
    if (tw__is_dense(s->plan))
        return fold_all(s);
    TW_TRY(g->backend->batch_begin(g->stream));
    TW_TRY(for_neighbours(s, run_some));
    TW_TRY(g->backend->batch_end(g->stream));
    TW_TRY(for_neighbours(s, wait_for_some));
    return g->backend->batch_seconds(g->stream, took);
}

int tw__step_select(tw__step *s) {
    int error = TW_OK;
    double begin = tw__transport_seconds(s->g->transport), took = HUGE_VAL;
    for (int i = 0; i < s->count && error == TW_OK; i++) {
        s->error_tensor = s->members[i];
        error = prepare(s, tw__member(s, i));
    }
    if (error == TW_OK)
        error = select_all(s, &took);
    double selected = tw__transport_seconds(s->g->transport);
    /* A device may have waited for gradients first. */
    s->info.began = selected - begin > took ? selected - took : begin;
    s->info.select_seconds = selected - s->info.began;
    return error;
}

void tw__step_undo(tw__step *s) {
    char text[TW__TEXT];
    snprintf(text, sizeof text, "%s", tw_last_error());
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = tw__member(s, i);
        if (t->open) {
            (void)tw__selector_undo(t->selector, tw__grads_of(t));
            t->threshold = t->threshold_before;
        }
        t->open = 0;
    }
    (void)s->g->backend->stream_wait(s->g->stream); /* gradients are the caller's again */
    (void)tw__fail(TW_OK, "%s", text);
}
