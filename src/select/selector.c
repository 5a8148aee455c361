/* selector.c - a selector's life and the order of its calls
 *
 *   run -> commit, or undo        a step is open in between
 *
 * Counts steps, checks what the caller gives, and leaves the work to the backend. */
#include "select/selector.h"

#include "backend/cpu/kernels.h"
#include "base/memory.h"
#include "select/methods.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* ---- create and free */

/* A selector without a group has its parameters beside it. */
typedef struct standalone {
    tw_selector selector; /* first: tw_selector_free frees both */
    tw_select_params params;
} standalone;

int tw__selector_memory(int64_t n, int pieces, const tw_select_params *params, tw_memory *memory,
                        size_t *scratch) {
    tw_select_params p = *params;
    const tw__method *method = NULL;
    const tw__backend *backend = NULL;
    TW_TRY(tw__params_resolve(&p, n, &method, &backend));
    TW_TRY(backend->selector_memory(n, pieces, &p, method, memory, scratch));
    memory->workspace += sizeof(tw_selector);
    return TW_OK;
}

int tw_selector_memory(int64_t n, const tw_select_params *params, tw_memory *memory) {
    size_t scratch = 0;
    TW_REQUIRE(params, "params");
    TW_REQUIRE(memory, "memory");
    TW_TRY(tw__selector_memory(n, 1, params, memory, &scratch));
    memory->workspace += sizeof(tw_select_params) + (scratch > 0 ? tw__footprint(scratch) : 0);
    memory->total = memory->residual + memory->moments + memory->undo + memory->workspace;
    return TW_OK;
}

static int fill(tw_selector *s, int64_t n, const tw__pieces *pieces, const tw_select_params *params,
                const tw__method *method, const tw__backend *backend, tw__stream *stream,
                const tw__scratch *scratch) {
    *s = (tw_selector){.backend = backend,
                       .params = params,
                       .method = method,
                       .extent = {0, n},
                       .rate = params->rate,
                       .info.bad_index = -1};
    s->pieces = pieces != NULL ? *pieces : (tw__pieces){1, s->extent};
    assert(s->pieces.starts[s->pieces.count] == n);
    return backend->selector_create(&s->state, &s->pieces, params, method, stream, scratch);
}

/* The selector, or nothing is left of it. */
static int hand_out(tw_selector **selector, tw_selector *s, int error) {
    *selector = error == TW_OK ? s : NULL;
    if (error != TW_OK)
        free(s);
    return error;
}

int tw__selector_create(tw_selector **selector, int64_t n, const tw__pieces *pieces,
                        const tw_select_params *params, tw__stream *stream,
                        const tw__scratch *scratch) {
    tw_select_params p = *params;
    const tw__method *method = NULL;
    const tw__backend *backend = NULL;
    TW_TRY(tw__params_resolve(&p, n, &method, &backend));
    tw_selector *s = malloc(sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for a selector");
    return hand_out(selector, s, fill(s, n, pieces, params, method, backend, stream, scratch));
}

int tw_selector_create(tw_selector **selector, int64_t n, const tw_select_params *params) {
    const tw__method *method = NULL;
    const tw__backend *backend = NULL;
    TW_REQUIRE(selector, "selector");
    *selector = NULL;
    TW_REQUIRE(params, "params");
    tw_select_params p = *params;
    TW_TRY(tw__params_resolve(&p, n, &method, &backend));
    standalone *s = malloc(sizeof *s);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for a selector");
    s->params = p;
    return hand_out(selector, &s->selector,
                    fill(&s->selector, n, NULL, &s->params, method, backend, NULL, NULL));
}

void tw_selector_free(tw_selector *s) {
    if (s == NULL)
        return;
    s->backend->selector_free(s->state);
    free(s);
}

/* ---- one step */

static int has_feedback(const tw_selector *s) {
    return s->params->feedback == TW_FEEDBACK_ON;
}

/* With feedback a step must be ended before anything else; without, the next one ends it. */
static int check_closed(const tw_selector *s) {
    if (!s->open || !has_feedback(s))
        return TW_OK;
    return tw__fail(TW_ERR_STATE, "a step is open; end it with tw_selector_commit or "
                                  "tw_selector_undo first");
}

static int check_open(const tw_selector *s) {
    if (s->open)
        return TW_OK;
    return tw__fail(TW_ERR_STATE, "no step is open; call tw_selector_run first");
}

static int64_t k_at(const tw_selector *s, int64_t step) {
    return s->k > 0 ? s->k : tw__k_at(s->params, s->extent[1], step);
}

int64_t tw__selector_k(const tw_selector *s) {
    return k_at(s, s->step);
}

static int k_changes_before(const tw_selector *s, int64_t step) {
    return step > 0 && step <= s->params->warmup_steps;
}

/* The same on every machine, which pow() does not promise. */
static double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        result *= exponent % 2 != 0 ? base : 1.0;
    return result;
}

static tw__adamw adamw_at(const tw_selector *s) {
    const tw_select_params *p = s->params;
    int64_t t = s->moment_steps + 1;
    return (tw__adamw){.beta1 = (float)p->beta1,
                       .fresh1 = (float)(1.0 - p->beta1),
                       .beta2 = (float)p->beta2,
                       .fresh2 = (float)(1.0 - p->beta2),
                       .rate = (float)(s->rate / (1.0 - power(p->beta1, t))),
                       .root = (float)(1.0 / sqrt(1.0 - power(p->beta2, t))),
                       .eps = (float)p->eps};
}

static tw__select_step begin_step(tw_selector *s) {
    assert(!s->open);
    int64_t k = k_at(s, s->step), next_k = k_at(s, s->step + 1);
    int set = s->last_k > 0 && s->k > 0 && k != s->last_k;
    const tw__select_step step = {.step = s->step,
                                  .k = k,
                                  .next_k = next_k,
                                  .k_changed = set || k_changes_before(s, s->step),
                                  .k_changes = k_changes_before(s, s->step + 1),
                                  .adamw = adamw_at(s)};
    s->info =
        (tw_select_info){.step = s->step, .k = k, .bad_index = -1, .refused = s->info.refused};
    return step;
}

static void end_step(tw_selector *s) {
    s->step += s->open;
    s->moment_steps += s->open;
    s->last_k = s->open ? s->info.k : s->last_k;
    s->open = 0;
    s->info.step = s->step;
}

int tw__selector_begin(tw_selector *s, const void *const *grads, tw__select_task *task) {
    TW_TRY(check_closed(s));
    end_step(s); /* without feedback: the step before is over now */
    *task = (tw__select_task){
        .state = s->state, .grads = grads, .step = begin_step(s), .info = &s->info};
    return TW_OK;
}

void tw__selector_end(tw_selector *s, const tw__select_task *task) {
    s->open = task->open;
    s->info.step += task->open && !has_feedback(s);
}

int tw_selector_run(tw_selector *s, const void *grad, tw_sparse *sparse) {
    tw__select_task task;
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(grad, "grad");
    TW_REQUIRE(sparse, "sparse");
    TW_TRY(tw__selector_begin(s, &grad, &task));
    int error = s->backend->run(&task, 1);
    tw__selector_end(s, &task);
    if (error == TW_OK)
        *sparse = task.sparse;
    return error;
}

int tw_selector_wait(tw_selector *s, tw_sparse *sparse) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(sparse, "sparse");
    TW_TRY(check_open(s));
    tw__select_task task = {.state = s->state, .info = &s->info, .open = 1};
    int error = s->backend->wait(&task, 1);
    s->open = task.open;
    if (error == TW_OK)
        *sparse = task.sparse;
    return error;
}

static int decay(tw_selector *s) {
    return s->params->decay != 0.0f ? s->backend->decay(s->state, &s->info.decayed) : TW_OK;
}

/* A residual decays only if the step was not refused, which a device must have told. */
static int commit(tw_selector *s, const int32_t *idx, int64_t count) {
    tw__select_task task = {.state = s->state, .info = &s->info, .open = 1};
    int error = s->params->decay != 0.0f ? s->backend->wait(&task, 1) : TW_OK;
    if (error != TW_OK && task.open)
        return error;
    TW_TRY(s->backend->commit(s->state, idx, count));
    return task.open ? decay(s) : TW_OK;
}

int tw_selector_commit(tw_selector *s, const int32_t *idx, int64_t count) {
    TW_REQUIRE(s, "selector");
    if (has_feedback(s))
        TW_TRY(check_open(s));
    if (idx == NULL && count != 0)
        return tw__fail(TW_ERR_NULL, "idx: is NULL with count %lld; NULL goes with 0",
                        (long long)count);
    if (count < 0)
        return tw__fail(TW_ERR_INDEX, "count: %lld; accepted is 0 .. what was selected",
                        (long long)count);
    if (s->open)
        TW_TRY(commit(s, idx, count));
    end_step(s);
    return TW_OK;
}

int tw__selector_undo(tw_selector *s, const void *const *grads) {
    TW_TRY(check_open(s));
    s->backend->undo(s->state, grads);
    s->open = 0;
    s->info.step = s->step;
    return TW_OK;
}

int tw_selector_undo(tw_selector *s, const void *grad) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(grad, "grad");
    return tw__selector_undo(s, &grad);
}

int tw_selector_set_rate(tw_selector *s, double rate) {
    TW_REQUIRE(s, "selector");
    TW_TRY(check_closed(s));
    TW_TRY(tw__check_rate(s->params, rate));
    s->rate = rate;
    return TW_OK;
}

int tw__selector_set_density(tw_selector *s, double density, double factor) {
    int64_t k = 0;
    TW_TRY(check_closed(s));
    TW_TRY(tw__k_from_caller(s->params, s->extent[1], density, factor, &k));
    s->k = k;
    return TW_OK;
}

int tw_selector_set_density(tw_selector *s, double density) {
    TW_REQUIRE(s, "selector");
    return tw__selector_set_density(s, density, 1.0);
}

/* ---- one step of a group */

int tw__selector_fold(tw_selector *s, const void *const *grads, const float **acc) {
    assert(has_feedback(s) && s->backend->fold != NULL);
    tw__select_step step = begin_step(s);
    TW_TRY(s->backend->fold(s->state, grads, &step, acc, &s->info));
    s->open = 1;
    return TW_OK;
}

/* What was learned about sums of many steps does not fit the next ones. */
int tw__selector_close_whole(tw_selector *s) {
    assert(s->open && s->params->momentum == 0.0f && s->params->before == TW_BEFORE_NOTHING);
    TW_TRY(s->backend->reset(s->state));
    end_step(s);
    return TW_OK;
}

int tw__selector_apply(tw_selector *s, const tw__outcome *outcome) {
    assert(s->open);
    TW_TRY(s->backend->apply(s->state, outcome));
    TW_TRY(decay(s));
    end_step(s);
    return TW_OK;
}

int tw__selector_overflows(tw_selector *s, int on_device, const tw__list *kept,
                           const tw__list *sent, int64_t base, int *yes) {
    int64_t at = 0;
    *yes = 0;
    if (on_device)
        return s->backend->overflows(s->state, kept, sent, base, yes);
    for (int64_t i = 0; i < kept->count && !*yes; i++) {
        if (tw__magnitude(kept->at[i].val) < tw__magnitude(TW__HARMLESS))
            continue;
        while (at < sent->count && sent->at[at].idx < kept->at[i].idx)
            at++;
        int own = at < sent->count && sent->at[at].idx == kept->at[i].idx;
        float stays = 0.0f;
        if (!own && has_feedback(s))
            TW_TRY(s->backend->peek(s->state, kept->at[i].idx - base, &stays));
        *yes = tw__magnitude(stays + kept->at[i].val) >= TW__INFINITY_BITS;
    }
    return TW_OK;
}

/* ---- state */

int tw__selector_reset(tw_selector *s, int64_t steps) {
    s->step = steps;
    s->last_k = 0;
    s->moment_steps = 0;
    s->open = 0;
    return s->backend->reset(s->state);
}

int tw__selector_forget(tw_selector *s) {
    static const tw__learned nothing;
    s->last_k = 0;
    return s->backend->set_learned(s->state, &nothing);
}

int tw_selector_get_residual(tw_selector *s, float *residual) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(residual, "residual");
    TW_TRY(check_closed(s));
    if (has_feedback(s))
        return s->backend->get(s->state, TW__RESIDUAL, 0, s->extent[1], residual);
    memset(residual, 0, sizeof *residual * (size_t)s->extent[1]);
    return TW_OK;
}

int tw_selector_set_residual(tw_selector *s, const float *residual) {
    static const tw__learned nothing;
    const tw__kernels *kernels = NULL;
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(residual, "residual");
    TW_TRY(check_closed(s));
    if (!has_feedback(s))
        return tw__fail(TW_ERR_STATE, "feedback is off: this selector has no residual");
    TW_TRY(tw__kernels_choose(&kernels));
    int64_t bad = kernels->count(residual, s->extent[1], TW__INFINITY_BITS);
    if (bad > 0)
        return tw__fail(TW_ERR_NUMBER, "residual: %lld elements are NaN or infinite",
                        (long long)bad);
    TW_TRY(s->backend->set_learned(s->state, &nothing));
    return s->backend->set(s->state, TW__RESIDUAL, residual);
}

/* ---- information */

int tw_selector_info(const tw_selector *s, tw_select_info *info) {
    TW_REQUIRE(s, "selector");
    TW_REQUIRE(info, "info");
    *info = s->info;
    return s->backend->info(s->state, info);
}
