/* selector.c - the map of one step
 *
 *   tw_selector_run      clip -> guess -> fold (acc = g + e, collecting) -> choose
 *   tw_selector_commit   what was sent will leave the residual
 *   tw_selector_undo     or nothing happened
 *
 * A step is open between run and one of the other two: the residual then holds acc. */
#include "base/memory.h"
#include "base/pool.h"
#include "select/methods.h"
#include "select/selector.h"

#include <assert.h>
#include <stdlib.h>

/* ---- memory: what a selector needs, in elements */

typedef struct extents {
    size_t residual, velocity, lossy, log; /* 0 where the parameters do without */
    size_t chunks, sample, marks;
    size_t found; /* entries per worker, slack included */
    size_t share; /* of these, touched beforehand */
    size_t chosen;
} extents;

static extents extents_of(int64_t n, const tw_select_params *p, const tw__method *method) {
    int feedback = p->feedback == TW_FEEDBACK_ON;
    int64_t chunks = tw__chunks(n), most = tw__at_most(TW__MOST * tw__k_max(p, n), n);
    extents e = {
        .residual = feedback ? (size_t)n : 0,
        .velocity = p->momentum != 0.0f ? (size_t)n : 0,
        .lossy = feedback ? (size_t)(n / 8 + 1) : 0,
        .log = feedback ? (size_t)(n + chunks * TW__LANES) : 0,
        .chunks = (size_t)chunks,
        .sample = (size_t)tw__sample_of(n, method->samples ? p->dgc_sample : 0.0),
        .marks = method->wants_marks ? (size_t)(n / 64 + 1) : 0,
        .found = (size_t)(tw__at_most(most + TW__BLOCK, n) + TW__SLACK),
        .chosen = (size_t)(most + TW__SLACK),
    };
    size_t share = (size_t)(most / p->threads / 2 + TW__BLOCK);
    e.share = share < e.found ? share : e.found;
    return e;
}

static size_t bytes_of(size_t count, size_t size) {
    return count == 0 ? 0 : tw__footprint(count * size);
}

static size_t bytes_of_workers(const extents *e, int threads) {
    size_t each = bytes_of(e->found, sizeof(int32_t)) + bytes_of(e->found, sizeof(float)) +
                  bytes_of((size_t)TW__BLOCK, sizeof(float)) + bytes_of((size_t)TW__BLOCK / 8, 1);
    return (size_t)threads * each + bytes_of((size_t)threads, sizeof(tw__worker));
}

int tw_selector_memory(int64_t n, const tw_select_params *params, tw_memory *memory) {
    TW_REQUIRE(params, "params");
    TW_REQUIRE(memory, "memory");
    tw_select_params p = *params;
    const tw__method *method = NULL;
    const tw__kernels *kernels = NULL;
    TW_TRY(tw__params_resolve(&p, n, &method));
    TW_TRY(tw__kernels_choose(&kernels));
    if (p.device == TW_CUDA)
        return tw__device_memory(n, tw__k_max(&p, n), &p, memory);
    extents e = extents_of(n, &p, method);
    memory->residual = bytes_of(e.residual, sizeof(float));
    memory->velocity = 2 * bytes_of(e.velocity, sizeof(float));
    memory->undo = bytes_of(e.lossy, 1) + bytes_of(e.log, 1) + bytes_of(e.log, sizeof(float));
    memory->workspace = bytes_of_workers(&e, p.threads) + bytes_of(1, sizeof(tw_selector)) +
                        bytes_of(e.chunks, 1) + bytes_of(e.chunks, sizeof(int64_t)) +
                        bytes_of(e.chunks, sizeof(tw__sums)) +
                        bytes_of(e.sample, sizeof(uint32_t)) + bytes_of(e.marks, sizeof(uint64_t)) +
                        bytes_of(e.chosen, sizeof(int32_t)) + bytes_of(e.chosen, sizeof(float));
    memory->total = memory->residual + memory->velocity + memory->undo + memory->workspace;
    return TW_OK;
}

/* Memory for count things, NULL for none. What cannot be had is added to *short_of. */
static void *obtain(void *(*from)(size_t), size_t count, size_t size, size_t *short_of) {
    if (count == 0)
        return NULL;
    void *memory = from(count * size);
    if (memory == NULL)
        *short_of += count * size;
    return memory;
}

static void obtain_entries(tw__entries *entries, void *(*from)(size_t), size_t count,
                           size_t *short_of) {
    entries->idx = obtain(from, count, sizeof(int32_t), short_of);
    entries->val = obtain(from, count, sizeof(float), short_of);
    entries->cap = (int64_t)count - TW__SLACK;
}

/* A worker may have to hold all candidates but usually holds its share: only that is touched. */
static void obtain_worker(tw__worker *w, const extents *e, size_t *short_of) {
    tw__entries *found = &w->collector.found;
    obtain_entries(found, tw__reserve, e->found, short_of);
    if (found->idx != NULL && found->val != NULL) {
        memset(found->idx, 0, e->share * sizeof *found->idx);
        memset(found->val, 0, e->share * sizeof *found->val);
    }
    w->scratch = obtain(tw__alloc, (size_t)TW__BLOCK, sizeof(float), short_of);
    w->keep = obtain(tw__alloc, (size_t)TW__BLOCK / 8, 1, short_of);
    if (w->keep != NULL)
        memset(w->keep, 0xff, (size_t)TW__BLOCK / 8);
}

static int obtain_all(tw_selector *s, const extents *e) {
    size_t short_of = 0;
    s->residual = obtain(tw__alloc, e->residual, sizeof(float), &short_of);
    s->velocity[0] = obtain(tw__alloc, e->velocity, sizeof(float), &short_of);
    s->velocity[1] = obtain(tw__alloc, e->velocity, sizeof(float), &short_of);
    s->lossy = obtain(tw__alloc, e->lossy, 1, &short_of);
    s->near = obtain(tw__reserve, e->log, 1, &short_of);
    s->far = obtain(tw__reserve, e->log, sizeof(float), &short_of);
    s->owner = obtain(tw__alloc, e->chunks, 1, &short_of);
    s->end = obtain(tw__alloc, e->chunks, sizeof(int64_t), &short_of);
    s->sums = obtain(tw__alloc, e->chunks, sizeof(tw__sums), &short_of);
    s->sample = obtain(tw__alloc, e->sample, sizeof(uint32_t), &short_of);
    s->marks = obtain(tw__alloc, e->marks, sizeof(uint64_t), &short_of);
    obtain_entries(&s->chosen, tw__alloc, e->chosen, &short_of);
    s->workers = obtain(tw__alloc, (size_t)s->threads, sizeof(tw__worker), &short_of);
    for (int i = 0; s->workers != NULL && i < s->threads; i++)
        obtain_worker(&s->workers[i], e, &short_of);
    if (short_of > 0)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had; lower n, k or threads",
                        short_of);
    return TW_OK;
}

/* ---- create and free */

static int fill(tw_selector *s, int64_t n, const tw_select_params *params,
                const tw__method *method) {
    s->params = *params;
    s->method = method;
    s->n = n;
    s->chunks = tw__chunks(n);
    s->threads = params->threads;
    s->info.bad_index = -1;
    TW_TRY(tw__kernels_choose(&s->kernels)); /* residuals come and go by the host, a GPU's too */
    if (params->device == TW_CUDA)
        return tw__device_create(&s->device, n, tw__k_max(params, n), params);
    extents e = extents_of(n, params, method);
    s->sample_size = (int64_t)e.sample;
    TW_TRY(obtain_all(s, &e));
    tw__feedback_leave(s, 0);
    return TW_OK;
}

int tw_selector_create(tw_selector **selector, int64_t n, const tw_select_params *params) {
    TW_REQUIRE(selector, "selector");
    *selector = NULL;
    TW_REQUIRE(params, "params");
    tw_select_params p = *params;
    const tw__method *method = NULL;
    TW_TRY(tw__params_resolve(&p, n, &method));
    tw_selector *s = tw__alloc(sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *s);
    tw__pool_retain(p.threads);
    int error = fill(s, n, &p, method);
    if (error != TW_OK) {
        tw_selector_free(s);
        return error;
    }
    *selector = s;
    return TW_OK;
}

void tw_selector_free(tw_selector *s) {
    if (s == NULL)
        return;
    tw__device_free(s->device);
    for (int i = 0; s->workers != NULL && i < s->threads; i++) {
        free(s->workers[i].collector.found.idx);
        free(s->workers[i].collector.found.val);
        free(s->workers[i].scratch);
        free(s->workers[i].keep);
    }
    free(s->workers);
    free(s->chosen.idx);
    free(s->chosen.val);
    free(s->marks);
    free(s->sample);
    free(s->sums);
    free(s->end);
    free(s->owner);
    free(s->near);
    free(s->far);
    free(s->lossy);
    free(s->velocity[0]);
    free(s->velocity[1]);
    free(s->residual);
    free(s);
    tw__pool_release();
}

/* ---- one step */

static void begin_info(tw_selector *s) {
    s->info =
        (tw_select_info){.step = s->step, .k = s->k, .bad_index = -1, .refused = s->info.refused};
}

static void end_info(tw_selector *s) {
    assert(s->chosen.count <= s->chosen.cap);
    s->info.count = s->chosen.count;
    s->info.candidates = tw__candidates_total(s);
}

/* With feedback a step must be ended before anything else; without, the next one ends it. */
static int check_closed(const tw_selector *s) {
    if (!s->open || s->params.feedback == TW_FEEDBACK_OFF)
        return TW_OK;
    return tw__fail(TW_ERR_STATE, "a step is open; end it with tw_selector_commit or "
                                  "tw_selector_undo first");
}

static int k_changed(const tw_selector *s, int64_t step) {
    return step > 0 && step <= s->params.warmup_steps;
}

static int run_on_device(tw_selector *s, const void *grad, tw_sparse *sparse) {
    tw__device_plan plan = {.step = s->step,
                            .k = s->k,
                            .next_k = tw__k_at(&s->params, s->n, s->step + 1),
                            .k_changed = k_changed(s, s->step),
                            .k_changes = k_changed(s, s->step + 1)};
    TW_TRY(tw__device_run(s->device, grad, &plan, sparse));
    s->open = 1;
    return TW_OK;
}

static int run_here(tw_selector *s, const void *grad, tw_sparse *sparse) {
    s->grad = grad;
    s->before = s->learned;
    tw__feedback_clip(s);
    TW_TRY(tw__feedback_fold(s, s->method->guess(s)));
    s->method->choose(s);
    end_info(s);
    *sparse = (tw_sparse){s->chosen.count, s->chosen.idx, s->chosen.val};
    s->open = 1;
    s->info.step = s->step + (s->residual == NULL);
    return TW_OK;
}

int tw__selector_fold(tw_selector *s, const void *grad) {
    assert(s->residual != NULL && s->device == NULL && !s->open);
    s->k = tw__k_at(&s->params, s->n, s->step);
    begin_info(s);
    s->grad = grad;
    s->before = s->learned;
    tw__feedback_clip(s);
    TW_TRY(tw__feedback_fold(s, TW__INFINITY_BITS)); /* which no element reaches */
    s->chosen.count = 0;
    s->open = 1;
    return TW_OK;
}

/* What was learned about sums of many steps does not fit the next ones. */
void tw__selector_close_whole(tw_selector *s) {
    memset(s->residual, 0, sizeof *s->residual * (size_t)s->n);
    s->learned = (tw__learned){0};
    tw__selector_count(s);
}

int tw_selector_run(tw_selector *s, const void *grad, tw_sparse *sparse) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(grad, "grad");
    TW_REQUIRE(sparse, "sparse");
    TW_TRY(check_closed(s));
    s->step += s->open; /* without feedback: the step before is over now */
    s->open = 0;
    s->k = tw__k_at(&s->params, s->n, s->step);
    begin_info(s);
    return s->device != NULL ? run_on_device(s, grad, sparse) : run_here(s, grad, sparse);
}

static int check_open(const tw_selector *s) {
    if (s->open)
        return TW_OK;
    return tw__fail(TW_ERR_STATE, "no step is open; call tw_selector_run first");
}

int tw_selector_wait(tw_selector *s, tw_sparse *sparse) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(sparse, "sparse");
    TW_TRY(check_open(s));
    if (s->device == NULL) {
        *sparse = (tw_sparse){s->chosen.count, s->chosen.idx, s->chosen.val};
        return TW_OK;
    }
    TW_TRY(tw__device_wait(s->device, &s->info));
    if (s->info.bad_index >= 0) {
        s->open = 0;
        return tw__fail_number(s->info.bad_index);
    }
    sparse->count = s->info.count;
    return TW_OK;
}

/* Element i of the caller's idx, which may be misaligned. */
static int32_t load_index(const int32_t *idx, int64_t i) {
    int32_t index;
    memcpy(&index, (const char *)idx + 4 * i, sizeof index);
    return index;
}

/* idx must be an ascending part of what was chosen. */
static int check_subset(const tw_selector *s, const int32_t *idx, int64_t count) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t index = load_index(idx, i);
        while (at < s->chosen.count && s->chosen.idx[at] < index)
            at++;
        if (at == s->chosen.count || s->chosen.idx[at] != index)
            return tw__fail(
                TW_ERR_INDEX,
                "idx: entry %lld is %d, which is not an ascending part of the selection",
                (long long)i, index);
        at++;
    }
    return TW_OK;
}

/* The first `leaving` of chosen.idx were sent. */
static void leave(tw_selector *s, int64_t leaving) {
    if (s->residual != NULL)
        tw__feedback_leave(s, leaving);
    float *velocity = s->velocity[0];
    s->velocity[0] = s->velocity[1];
    s->velocity[1] = velocity;
}

void tw__selector_count(tw_selector *s) {
    s->step += s->open;
    s->open = 0;
    s->info.step = s->step;
}

static int commit_here(tw_selector *s, const int32_t *idx, int64_t count) {
    if (idx != NULL) {
        TW_TRY(check_subset(s, idx, count));
        memmove(s->chosen.idx, idx, sizeof *idx * (size_t)count);
    }
    leave(s, idx != NULL ? count : s->chosen.count);
    return TW_OK;
}

static int commit_on_device(tw_selector *s, const int32_t *idx, int64_t count) {
    if (!s->open)
        return TW_OK;
    return idx != NULL ? tw__device_commit_part(s->device, idx, count)
                       : tw__device_commit(s->device);
}

int tw_selector_commit(tw_selector *s, const int32_t *idx, int64_t count) {
    TW_REQUIRE(s, "selector");
    if (s->params.feedback == TW_FEEDBACK_ON)
        TW_TRY(check_open(s));
    if (idx == NULL && count != 0)
        return tw__fail(TW_ERR_NULL, "idx: is NULL with count %lld; NULL goes with 0",
                        (long long)count);
    if (count < 0)
        return tw__fail(TW_ERR_INDEX, "count: %lld; accepted is 0 .. what was selected",
                        (long long)count);
    TW_TRY(s->device != NULL ? commit_on_device(s, idx, count) : commit_here(s, idx, count));
    tw__selector_count(s);
    return TW_OK;
}

/* Element `index` of acc; 0 without feedback. */
static int peek(tw_selector *s, int64_t index, float *value) {
    *value = 0.0f;
    if (s->params.feedback == TW_FEEDBACK_OFF)
        return TW_OK;
    if (s->device != NULL)
        return tw__device_peek(s->device, index, value);
    *value = s->residual[index];
    return TW_OK;
}

int tw__selector_overflows(tw_selector *s, int there, const tw__list *kept, const tw__list *sent,
                           int64_t base, int *yes) {
    int64_t at = 0;
    *yes = 0;
    if (there)
        return tw__device_overflows(s->device, kept, sent, base, yes);
    for (int64_t i = 0; i < kept->count && !*yes; i++) {
        if (tw__magnitude(kept->at[i].val) < tw__magnitude(TW__HARMLESS))
            continue;
        while (at < sent->count && sent->at[at].idx < kept->at[i].idx)
            at++;
        int own = at < sent->count && sent->at[at].idx == kept->at[i].idx;
        float stays = 0.0f;
        if (!own)
            TW_TRY(peek(s, kept->at[i].idx - base, &stays));
        *yes = tw__magnitude(stays + kept->at[i].val) >= TW__INFINITY_BITS;
    }
    return TW_OK;
}

int tw__selector_peek(tw_selector *s, const tw__list *list, int64_t base, float *values) {
    if (s->device != NULL)
        return tw__device_gather(s->device, list, base, values);
    for (int64_t i = 0; i < list->count; i++)
        values[i] = s->residual[list->at[i].idx - base];
    return TW_OK;
}

/* The entries that leave take the place of the selection, which nobody needs any more. */
void tw__selector_close(tw_selector *s, const tw__list *left, const tw__list *kept,
                        const tw__list *applied, int64_t base) {
    int64_t leaving = 0, at = 0, seen = 0;
    for (int64_t i = 0; i < kept->count && s->residual != NULL; i++) {
        int64_t index = kept->at[i].idx - base;
        for (; at < left->count && left->at[at].idx < kept->at[i].idx; at++)
            s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - base);
        int sent = at < left->count && left->at[at].idx == kept->at[i].idx;
        s->residual[index] = (sent ? 0.0f : s->residual[index]) + kept->at[i].val;
        while (seen < applied->count && applied->at[seen].idx < kept->at[i].idx)
            seen++;
        int gone = sent && seen < applied->count && applied->at[seen].idx == kept->at[i].idx;
        if (gone && s->velocity[1] != NULL)
            s->velocity[1][index] = 0.0f;
        at += sent; /* it does not leave after all */
    }
    for (; at < left->count; at++)
        s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - base);
    leave(s, leaving);
    tw__selector_count(s);
}

int tw_selector_undo(tw_selector *s, const void *grad) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(grad, "grad");
    TW_TRY(check_open(s));
    if (s->residual != NULL) {
        s->grad = grad;
        tw__feedback_unfold(s);
        tw__feedback_leave(s, 0);
    }
    s->learned = s->before;
    s->open = 0;
    s->info.step = s->step;
    return TW_OK;
}

/* ---- state */

int tw_selector_get_residual(tw_selector *s, float *residual) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(residual, "residual");
    TW_TRY(check_closed(s));
    size_t bytes = sizeof(float) * (size_t)s->n;
    if (s->params.feedback == TW_FEEDBACK_OFF) {
        memset(residual, 0, bytes);
        return TW_OK;
    }
    if (s->device != NULL)
        return tw__device_get(s->device, TW__RESIDUAL, residual);
    tw__feedback_settle(s);
    memcpy(residual, s->residual, bytes);
    return TW_OK;
}

int tw_selector_set_residual(tw_selector *s, const float *residual) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(residual, "residual");
    TW_TRY(check_closed(s));
    if (s->params.feedback == TW_FEEDBACK_OFF)
        return tw__fail(TW_ERR_STATE, "feedback is off: this selector has no residual");
    if (s->kernels->count(residual, s->n, TW__INFINITY_BITS) > 0)
        return tw__fail(TW_ERR_NUMBER, "residual: %lld elements are NaN or infinite",
                        (long long)s->kernels->count(residual, s->n, TW__INFINITY_BITS));
    if (s->device != NULL) {
        TW_TRY(tw__device_forget(s->device));
        return tw__device_set(s->device, TW__RESIDUAL, residual);
    }
    tw__feedback_settle(s);
    memcpy(s->residual, residual, sizeof(float) * (size_t)s->n);
    s->learned = (tw__learned){0};
    return TW_OK;
}

/* ---- information */

static uint32_t smallest_chosen(const tw_selector *s) {
    uint32_t smallest = s->info.count > 0 ? TW__INFINITY_BITS : 0;
    for (int64_t i = 0; i < s->info.count; i++)
        smallest =
            tw__magnitude(s->chosen.val[i]) < smallest ? tw__magnitude(s->chosen.val[i]) : smallest;
    return smallest;
}

int tw_selector_info(const tw_selector *s, tw_select_info *info) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(info, "info");
    *info = s->info;
    if (s->device != NULL)
        return tw__device_wait(s->device, info);
    info->threshold = tw__from_bits(smallest_chosen(s));
    return TW_OK;
}
