/* cpu_selector.c - a selector on the CPU: one step, as the backend's calls
 *
 *   run      clip -> guess -> fold (acc = g + e, collecting) -> choose
 *   commit   what was sent will leave the residual
 *   undo     or nothing happened
 *   apply    or it ends as an exchange says, with the result written out
 *
 * While a step is open the residual holds acc. */
#include "backend/cpu/cpu_selector.h"
#include "base/pool.h"
#include "select/methods.h"

#include <assert.h>
#include <sched.h>
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

int tw__cpu_selector_memory(int64_t n, const tw_select_params *p, const tw__method *method,
                            tw_memory *memory) {
    const tw__kernels *kernels = NULL;
    TW_TRY(tw__kernels_choose(&kernels));
    extents e = extents_of(n, p, method);
    memory->residual = bytes_of(e.residual, sizeof(float));
    memory->velocity = 2 * bytes_of(e.velocity, sizeof(float));
    memory->undo = bytes_of(e.lossy, 1) + bytes_of(e.log, 1) + bytes_of(e.log, sizeof(float));
    memory->workspace = bytes_of_workers(&e, p->threads) + bytes_of(1, sizeof(tw__cpu_selector)) +
                        bytes_of(e.chunks, 1) + bytes_of(e.chunks, sizeof(int64_t)) +
                        bytes_of(e.chunks, sizeof(tw__sums)) +
                        bytes_of(e.sample, sizeof(uint32_t)) + bytes_of(e.marks, sizeof(uint64_t)) +
                        bytes_of(e.chosen, sizeof(int32_t)) + bytes_of(e.chosen, sizeof(float));
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

static int obtain_all(tw__cpu_selector *s, const extents *e) {
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
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are missing; lower n, k or threads", short_of);
    return TW_OK;
}

/* ---- create and free */

int tw__cpu_selector_create(void **state, int64_t n, const tw_select_params *params,
                            const tw__method *method, tw__stream *stream) {
    const tw__kernels *kernels = NULL;
    (void)stream;
    TW_TRY(tw__kernels_choose(&kernels));
    tw__cpu_selector *s = tw__alloc(sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", sizeof *s);
    extents e = extents_of(n, params, method);
    s->params = *params;
    s->method = method;
    s->kernels = kernels;
    s->n = n;
    s->chunks = tw__chunks(n);
    s->threads = params->threads;
    s->sample_size = (int64_t)e.sample;
    tw__pool_retain(s->threads);
    int error = obtain_all(s, &e);
    if (error != TW_OK) {
        tw__cpu_selector_free(s);
        return error;
    }
    tw__feedback_leave(s, 0);
    *state = s;
    return TW_OK;
}

void tw__cpu_selector_free(void *state) {
    tw__cpu_selector *s = state;
    if (s == NULL)
        return;
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

/* The pass. On a bad number nothing has changed. */
static int fold(tw__cpu_selector *s, const void *grad, const tw__select_step *step,
                uint32_t (*guess)(tw__cpu_selector *), tw_select_info *info) {
    assert(step->k >= 1 && step->k <= s->n);
    s->now = *step;
    s->grad = grad;
    s->before = s->learned;
    s->rescans = 0;
    tw__feedback_clip(s);
    info->bad_index = tw__feedback_fold(s, guess(s));
    if (info->bad_index < 0)
        return TW_OK;
    info->refused++;
    return tw__fail_number(info->bad_index);
}

static tw_sparse selection(const tw__cpu_selector *s) {
    return (tw_sparse){s->chosen.count, s->chosen.idx, s->chosen.val};
}

int tw__cpu_selector_run(void *state, const void *grad, const tw__select_step *step,
                         tw_sparse *sparse, tw_select_info *info) {
    tw__cpu_selector *s = state;
    TW_TRY(fold(s, grad, step, s->method->guess, info));
    s->method->choose(s);
    assert(s->chosen.count <= s->chosen.cap);
    assert(s->chosen.count <= (s->method->exceeds_k ? TW__MOST : 1) * step->k);
    info->count = s->chosen.count;
    info->candidates = tw__candidates_total(s);
    info->rescans = s->rescans;
    *sparse = selection(s);
    return TW_OK;
}

int tw__cpu_selector_wait(void *state, tw_sparse *sparse, tw_select_info *info) {
    (void)info;
    *sparse = selection(state);
    return TW_OK;
}

static uint32_t collect_nothing(tw__cpu_selector *s) {
    (void)s;
    return TW__INFINITY_BITS; /* which no element reaches */
}

int tw__cpu_selector_fold(void *state, const void *grad, const tw__select_step *step,
                          const float **acc, tw_select_info *info) {
    tw__cpu_selector *s = state;
    assert(s->residual != NULL);
    TW_TRY(fold(s, grad, step, collect_nothing, info));
    s->chosen.count = 0;
    *acc = s->residual;
    return TW_OK;
}

/* Element i of the caller's idx, which may be misaligned. */
static int32_t load_index(const int32_t *idx, int64_t i) {
    int32_t index;
    memcpy(&index, (const char *)idx + 4 * i, sizeof index);
    return index;
}

/* idx must be an ascending part of what was chosen. */
static int check_subset(const tw__cpu_selector *s, const int32_t *idx, int64_t count) {
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
static void leave(tw__cpu_selector *s, int64_t leaving) {
    assert(leaving <= s->chosen.cap);
    if (s->residual != NULL)
        tw__feedback_leave(s, leaving);
    float *velocity = s->velocity[0];
    s->velocity[0] = s->velocity[1];
    s->velocity[1] = velocity;
}

int tw__cpu_selector_commit(void *state, const int32_t *idx, int64_t count) {
    tw__cpu_selector *s = state;
    if (idx != NULL) {
        TW_TRY(check_subset(s, idx, count));
        memmove(s->chosen.idx, idx, sizeof *idx * (size_t)count);
    }
    leave(s, idx != NULL ? count : s->chosen.count);
    return TW_OK;
}

void tw__cpu_selector_undo(void *state, const void *grad) {
    tw__cpu_selector *s = state;
    if (s->residual != NULL) {
        s->grad = grad;
        tw__feedback_unfold(s);
        tw__feedback_leave(s, 0);
    }
    s->learned = s->before;
}

/* ---- one step of a group */

/* A selection that exceeds `most` gives its largest; ties go to the smaller index. */
int tw__cpu_selector_pack(void *state, int64_t selected, int64_t most, int64_t base, int on_device,
                          tw__entry *to, int64_t *count) {
    const tw__cpu_selector *s = state;
    const tw__entries *chosen = &s->chosen;
    tw__edge edge = {0, selected}; /* takes all */
    int64_t taken = 0;
    assert(!on_device && selected == chosen->count && base + s->n <= INT32_MAX);
    (void)on_device;
    if (selected > most) {
        tw__kth worst = tw__kth_of_values(s->kernels, chosen->val, selected, most);
        edge = (tw__edge){worst.bits, most - worst.greater};
    }
    for (int64_t e = 0; e < selected; e++) {
        to[taken] = (tw__entry){(int32_t)base + chosen->idx[e], chosen->val[e]};
        taken += tw__edge_takes(&edge, chosen->val[e]);
    }
    *count = taken;
    return TW_OK;
}

int tw__cpu_selector_gather(void *state, const tw__list *list, int64_t base, float *values) {
    const tw__cpu_selector *s = state;
    assert(s->residual != NULL);
    for (int64_t i = 0; i < list->count; i++)
        values[i] = s->residual[list->at[i].idx - base];
    return TW_OK;
}

int tw__cpu_selector_peek(void *state, int64_t index, float *value) {
    const tw__cpu_selector *s = state;
    assert(s->residual != NULL && index >= 0 && index < s->n);
    *value = s->residual[index];
    return TW_OK;
}

/* `left` leaves the residual, then `kept` is added to it. What left for good loses its velocity: all
 * that is not kept, and of that what was applied, rounded. The entries that leave take the place of
 * the selection, which nobody needs any more. */
static void settle_residual(tw__cpu_selector *s, const tw__outcome *o) {
    const tw__list *left = &o->left, *kept = &o->kept, none = {0};
    const tw__list *applied = o->rounded ? &o->result : &none;
    int64_t leaving = 0, at = 0, seen = 0;
    for (int64_t i = 0; i < kept->count && s->residual != NULL; i++) {
        int64_t index = kept->at[i].idx - o->base;
        for (; at < left->count && left->at[at].idx < kept->at[i].idx; at++)
            s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - o->base);
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
        s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - o->base);
    leave(s, leaving);
}

void tw__cpu_selector_clear(void *state, float *out, int64_t first, int64_t count) {
    const tw__cpu_selector *s = state;
    assert(first >= 0 && first + count <= s->n);
    s->kernels->clear((char *)out + 4 * first, 4 * count);
}

/* The result, divided, into the tensor's arrays and into out, where it does not stand yet. */
static void deliver(tw__cpu_selector *s, const tw__outcome *o) {
    char *out = o->placed < o->result.count ? (char *)o->out : NULL; /* of any alignment */
    for (int64_t lo = o->cleared; o->out != NULL && lo < s->n; lo += TW__CLEARED_AT_ONCE) {
        tw__cpu_selector_clear(s, o->out, lo, tw__at_most(TW__CLEARED_AT_ONCE, s->n - lo));
        sched_yield(); /* on a shared core, ranks that still wait for entries come first */
    }
    for (int64_t i = 0; i < o->result.count; i++) {
        int64_t index = o->result.at[i].idx - o->base;
        float value = o->result.at[i].val / o->divisor;
        assert(index >= 0 && index < s->n);
        o->idx[i] = (int32_t)index;
        o->val[i] = value;
        if (out != NULL)
            memcpy(out + 4 * index, &value, sizeof value);
    }
}

int tw__cpu_selector_apply(void *state, const tw__outcome *o) {
    assert(!o->on_device && o->placed <= o->result.count);
    settle_residual(state, o);
    deliver(state, o);
    return TW_OK;
}

/* ---- state */

static float *vector_of(const tw__cpu_selector *s, tw__vector which) {
    float *vector = which == TW__RESIDUAL ? s->residual : s->velocity[0];
    assert(vector != NULL);
    return vector;
}

int tw__cpu_selector_get(void *state, tw__vector which, int64_t first, int64_t count, float *to) {
    tw__cpu_selector *s = state;
    assert(first >= 0 && first + count <= s->n);
    tw__feedback_settle(s);
    memcpy(to, vector_of(s, which) + first, sizeof *to * (size_t)count);
    return TW_OK;
}

int tw__cpu_selector_set(void *state, tw__vector which, const float *from) {
    tw__cpu_selector *s = state;
    tw__feedback_settle(s);
    memcpy(vector_of(s, which), from, sizeof *from * (size_t)s->n);
    return TW_OK;
}

int tw__cpu_selector_get_learned(void *state, tw__learned *learned) {
    *learned = ((const tw__cpu_selector *)state)->learned;
    return TW_OK;
}

int tw__cpu_selector_set_learned(void *state, const tw__learned *learned) {
    ((tw__cpu_selector *)state)->learned = *learned;
    return TW_OK;
}

int tw__cpu_selector_reset(void *state) {
    tw__cpu_selector *s = state;
    size_t bytes = sizeof(float) * (size_t)s->n;
    s->learned = (tw__learned){0};
    tw__feedback_leave(s, 0);
    if (s->residual != NULL)
        memset(s->residual, 0, bytes);
    if (s->velocity[0] != NULL)
        memset(s->velocity[0], 0, bytes);
    return TW_OK;
}

/* ---- information */

int tw__cpu_selector_info(const void *state, tw_select_info *info) {
    const tw__cpu_selector *s = state;
    uint32_t smallest = info->count > 0 ? TW__INFINITY_BITS : 0;
    for (int64_t i = 0; i < info->count; i++)
        if (tw__magnitude(s->chosen.val[i]) < smallest)
            smallest = tw__magnitude(s->chosen.val[i]);
    info->threshold = tw__from_bits(smallest);
    return TW_OK;
}
