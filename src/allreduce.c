/* allreduce.c - the map of one step over all ranks
 *
 *   gradients -> select -> agree -> exchange -> apply
 *                acc=g+e   all or   sums over   residuals keep what did not arrive,
 *                k of n    none     ranks       the mean goes to the caller
 *
 * A step takes one tensor or a bucket of them. Until `apply` everything can be taken back: an error
 * on any rank before the exchange, and a sum that overflows, leave all residuals as they were. */
#include "base/clock.h"
#include "group.h"
#include "select/methods.h"

#include <assert.h>

/* A step travels as at most two jobs: oktopk leaves small tensors to butterfly. */
#define JOBS 2

typedef struct step {
    tw_group *g;
    const int *members; /* [count] tensors */
    int count;
    tw__job jobs[JOBS];
    const tw__exchange *exchanges[JOBS];
    tw_step_info info;
} step;

static const tw__exchange *exchange_for(const tw_group *g, int64_t k) {
    return tw__exchange_suits(g->exchange, k, g->nranks) ? g->exchange : &tw__exchange_butterfly;
}

static int is_dense(const tw_group *g) {
    return g->exchange == &tw__exchange_dense;
}

/* Where the exchange finds a dense gradient, and where it leaves the sum. */
static const void *grad_of(const tw__tensor *t) {
    return t->dense_grad != NULL ? t->dense_grad : t->grad;
}

static float *out_of(const tw__tensor *t) {
    return t->dense_out != NULL ? t->dense_out : t->out;
}

/* ---- memory: the same jobs, at their largest */

/* Threshold methods may select up to 4k, the others k at most. */
static int64_t most_selected(const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n);
    return t->method->exceeds_k ? tw__at_most(TW__MOST * k, t->n) : k;
}

static void add_to_shape(tw__shape *shape, const tw_group *g, const tw__tensor *t, int64_t k) {
    shape->nranks = g->nranks;
    shape->wire = g->wire;
    shape->nsegments++;
    shape->span += t->n;
    if (!is_dense(g)) {
        shape->k += k;
        shape->most += most_selected(t);
    }
}

static size_t job_memory(const tw__exchange *exchange, const tw__shape *shape) {
    tw__arena counting = {0};
    if (shape->nsegments == 0)
        return 0;
    tw__arena_take(&counting, shape->most, sizeof(tw__entry));
    tw__arena_take(&counting, 1, exchange->memory(shape));
    return counting.used;
}

/* During warm-up k falls, and a tensor may pass from oktopk to butterfly: it is counted for both. */
size_t tw__allreduce_memory(const tw_group *g, int first, int count) {
    tw__shape whole = {0}, small = {0};
    for (int t = first; t < first + count; t++) {
        int64_t k = tw__k_max(&g->tensors[t].params, g->tensors[t].n);
        int64_t last = tw__k_at(&g->tensors[t].params, g->tensors[t].n, INT64_MAX);
        if (tw__exchange_suits(g->exchange, k, g->nranks))
            add_to_shape(&whole, g, &g->tensors[t], k);
        if (!tw__exchange_suits(g->exchange, last, g->nranks))
            add_to_shape(&small, g, &g->tensors[t], k);
    }
    return job_memory(g->exchange, &whole) + job_memory(&tw__exchange_butterfly, &small);
}

int64_t tw__allreduce_applied(const tw_group *g, const tw__tensor *t) {
    tw__shape shape = {0};
    int64_t k = tw__k_max(&t->params, t->n);
    add_to_shape(&shape, g, t, k);
    return exchange_for(g, k)->applied(&shape);
}

/* ---- select */

/* The first NaN or infinity of a dense gradient, -1 if none. */
static int64_t find_bad_number(const tw_group *g, const tw__tensor *t) {
    const char *grad = grad_of(t);
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
            if (tw__magnitude(g->scratch[i]) >= TW__INFINITY_BITS)
                return lo + i;
    }
    return -1;
}

static size_t element_size(const tw__tensor *t) {
    return t->params.type == TW_F32 ? 4 : 2;
}

/* What a GPU does from here on comes after what made the gradient. */
static int follow_caller(tw_group *g, tw__tensor *t) {
    if (!tw__on_gpu(t))
        return TW_OK;
    if (t->marked != TW_OK)
        return tw__fail(t->marked, "stream: it cannot be followed; give a stream of GPU %d",
                        t->params.ordinal);
    if (t->out != NULL)
        TW_TRY(tw__device_pointer(t->out, "out", t->params.ordinal, sizeof(float)));
    TW_TRY(tw__lane_follow(g->lane, t->ready));
    if (!is_dense(g))
        return TW_OK;
    TW_TRY(tw__device_pointer(t->grad, "grad", t->params.ordinal, element_size(t)));
    TW_TRY(tw__lane_copy(g->lane, t->dense_grad, t->grad, element_size(t) * (size_t)t->n));
    return tw__lane_wait(g->lane);
}

/* Opens a step of the tensor's selector; on a GPU it is under way then. *bad is the index of a bad
 * number. */
static int select_one(tw_group *g, tw__tensor *t, int64_t *bad) {
    tw_sparse sparse = {0};
    t->threshold_before = t->threshold;
    t->has_result = 0;
    if (t->grad == NULL || (is_dense(g) && t->out == NULL))
        return TW_ERR_NULL;
    TW_TRY(follow_caller(g, t));
    if (is_dense(g)) {
        *bad = find_bad_number(g, t);
        t->selected = t->n;
        return *bad < 0 ? TW_OK : TW_ERR_NUMBER;
    }
    int error = tw_selector_run(t->selector, t->grad, &sparse);
    *bad = t->selector->info.bad_index;
    t->selected = sparse.count;
    t->open = error == TW_OK;
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
    t->open = error == TW_OK;
    return error;
}

static int select_all(step *s) {
    int error = TW_OK, tensor = 0;
    int64_t bad = -1;
    double begin = tw__seconds();
    for (int i = 0; i < s->count && error == TW_OK; i++) {
        tensor = s->members[i];
        error = select_one(s->g, &s->g->tensors[tensor], &bad);
    }
    for (int i = 0; i < s->count && error == TW_OK; i++) {
        tensor = s->members[i];
        error = await_selection(&s->g->tensors[tensor], &bad);
    }
    double selected = tw__seconds();
    error = tw__agree_step(s->g, error, tensor, bad, s->members, s->count);
    s->info.began = begin;
    s->info.select_seconds = selected - begin;
    s->info.agree_seconds = tw__seconds() - selected;
    return error;
}

static void undo_all(step *s) {
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        if (t->open)
            (void)tw_selector_undo(t->selector, t->grad);
        t->open = 0;
        t->threshold = t->threshold_before;
    }
}

/* ---- exchange */

static int64_t k_now(const tw_group *g, const tw__tensor *t) {
    return is_dense(g) ? t->n : t->selector->k;
}

static void add_segment(step *s, int job_at, int tensor) {
    tw_group *g = s->g;
    tw__job *job = &s->jobs[job_at];
    tw__tensor *t = &g->tensors[tensor];
    int at = job->shape.nsegments;
    g->owners[job_at * g->widest + at] = tensor;
    job->segments[at] = (tw__segment){.base = job->shape.span,
                                      .n = t->n,
                                      .k = k_now(g, t),
                                      .threshold = &t->threshold,
                                      .selector = t->selector,
                                      .grad = grad_of(t),
                                      .type = t->params.type,
                                      .out = out_of(t)};
    add_to_shape(&job->shape, g, t, k_now(g, t));
}

static void make_jobs(step *s) {
    tw_group *g = s->g;
    for (int j = 0; j < JOBS; j++) {
        s->exchanges[j] = j == 0 ? g->exchange : &tw__exchange_butterfly;
        s->jobs[j] = (tw__job){.transport = g->transport,
                               .kernels = g->kernels,
                               .rank = g->rank,
                               .shape.nranks = g->nranks,
                               .segments = g->segments + j * g->widest,
                               .global = g->params.global,
                               .divisor = g->params.result == TW_MEAN ? (float)g->nranks : 1.0f};
    }
    for (int i = 0; i < s->count; i++) {
        const tw__tensor *t = &g->tensors[s->members[i]];
        int small = !tw__exchange_suits(g->exchange, k_now(g, t), g->nranks);
        add_segment(s, small, s->members[i]);
    }
}

/* The selections of all segments, end to end. */
static int gather_own(step *s, int job_at) {
    tw__job *job = &s->jobs[job_at];
    if (is_dense(s->g))
        return TW_OK;
    job->own.at = tw__arena_take(&job->arena, job->shape.most, sizeof(tw__entry));
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__tensor *t = &s->g->tensors[s->g->owners[job_at * s->g->widest + i]];
        const tw__entries *chosen = &t->selector->chosen;
        tw__entry *to = job->own.at + job->own.count;
        int32_t base = (int32_t)job->segments[i].base;
        assert(job->own.count + t->selected <= job->shape.most);
        if (tw__on_gpu(t))
            TW_TRY(tw__device_fetch(t->selector->device, t->selected, base, to));
        for (int64_t e = 0; e < t->selected && !tw__on_gpu(t); e++)
            to[e] = (tw__entry){base + chosen->idx[e], chosen->val[e]};
        job->own.count += t->selected;
    }
    return s->g->lane != NULL ? tw__lane_wait(s->g->lane) : TW_OK;
}

static int finite(const tw__job *job) {
    for (int64_t i = 0; i < job->result.count; i++)
        if (tw__magnitude(job->result.at[i].val) >= TW__INFINITY_BITS)
            return 0;
    for (int i = 0; i < job->shape.nsegments && job->segments[i].out != NULL; i++)
        if (job->own.at == NULL && /* dense: the sums are in the caller's memory */
            job->kernels->count(job->segments[i].out, job->segments[i].n, TW__INFINITY_BITS) > 0)
            return 0;
    return 1;
}

/* An overflow is among the largest sums, so every exchange has it in its result: all ranks see it
 * alike. */
static int check_sums(const step *s) {
    for (int j = 0; j < JOBS; j++)
        if (!finite(&s->jobs[j]))
            return tw__fail(TW_ERR_NUMBER, "the sum over ranks overflows in this step; skip it or "
                                           "lower the loss scale");
    return TW_OK;
}

/* Sums may be rounded to nothing. */
static void drop_zeros(tw__list *list) {
    int64_t kept = 0;
    for (int64_t i = 0; i < list->count; i++) {
        list->at[kept] = list->at[i];
        kept += list->at[i].val != 0.0f;
    }
    list->count = kept;
}

static int exchange_all(step *s) {
    tw__arena arena = {s->g->arena, 0};
    double begin = tw__seconds();
    make_jobs(s);
    for (int j = 0; j < JOBS; j++) {
        tw__job *job = &s->jobs[j];
        if (job->shape.nsegments == 0)
            continue;
        job->arena = arena;
        TW_TRY(gather_own(s, j));
        TW_TRY(s->exchanges[j]->run(job));
        if (job->shape.wire != NULL)
            drop_zeros(&job->result);
        arena = job->arena;
        assert(arena.used <= s->g->arena_bytes);
    }
    s->info.exchange_seconds = tw__seconds() - begin;
    return check_sums(s);
}

/* ---- apply */

/* The segment's part of the result, divided, into the tensor's arrays and the caller's. */
static void deliver(tw__tensor *t, const tw__list *part, int64_t base, float divisor) {
    char *out = (char *)t->out; /* of any alignment */
    if (out != NULL)
        memset(out, 0, sizeof(float) * (size_t)t->n);
    assert(part->count <= t->result.cap);
    t->result.count = part->count;
    for (int64_t i = 0; i < part->count; i++) {
        int64_t index = part->at[i].idx - base;
        float value = part->at[i].val / divisor;
        t->result.idx[i] = (int32_t)index;
        t->result.val[i] = value;
        if (out != NULL)
            memcpy(out + 4 * index, &value, sizeof value);
    }
}

/* The same on a GPU. */
static int deliver_there(tw__tensor *t, const tw__list *result, const tw__list *left,
                         const tw__list *kept, int64_t base, float divisor) {
    const tw__device_outcome outcome = {.base = base,
                                        .selected = t->selected,
                                        .left = *left,
                                        .kept = *kept,
                                        .result = *result,
                                        .divisor = divisor,
                                        .idx = t->result.idx,
                                        .val = t->result.val,
                                        .out = t->out};
    TW_TRY(tw__device_apply(t->selector->device, &outcome));
    tw__selector_count(t->selector);
    t->result.count = result->count;
    return TW_OK;
}

static int apply_segment(const tw__job *job, const tw__segment *segment, tw__tensor *t) {
    int64_t lo = segment->base, hi = segment->base + segment->n;
    tw__list result = tw__list_between(&job->result, lo, hi);
    tw__list left = tw__list_between(&job->left, lo, hi);
    tw__list kept = tw__list_between(&job->kept, lo, hi);
    if (tw__on_gpu(t)) {
        TW_TRY(deliver_there(t, &result, &left, &kept, lo, job->divisor));
    } else {
        /* With raw entries, what a rank keeps came back to it; else it is a rounding remainder. */
        const tw__list none = {0};
        tw__selector_close(t->selector, &left, &kept, job->shape.wire != NULL ? &result : &none,
                           lo);
        deliver(t, &result, lo, job->divisor);
    }
    t->open = 0;
    t->has_result = 1;
    return TW_OK;
}

static int apply_dense(tw_group *g, tw__tensor *t) {
    if (!tw__on_gpu(t))
        return TW_OK;
    return tw__lane_copy(g->lane, t->out, t->dense_out, sizeof(float) * (size_t)t->n);
}

static int apply_all(step *s) {
    double begin = tw__seconds();
    for (int j = 0; j < JOBS; j++) {
        tw__job *job = &s->jobs[j];
        for (int i = 0; i < job->shape.nsegments; i++) {
            tw__tensor *t = &s->g->tensors[s->g->owners[j * s->g->widest + i]];
            TW_TRY(t->selector != NULL ? apply_segment(job, &job->segments[i], t)
                                       : apply_dense(s->g, t));
            t->steps++;
            t->info.k = job->segments[i].k;
            t->info.applied = t->selector != NULL ? t->result.count : t->n;
            t->info.exchange = s->exchanges[j]->name;
        }
    }
    if (s->g->lane != NULL)
        TW_TRY(tw__lane_wait(s->g->lane));
    s->info.apply_seconds = tw__seconds() - begin;
    return TW_OK;
}

static tw_traffic traffic_since(const tw_group *g, const tw_traffic *before) {
    tw_traffic now = tw__transport_traffic(g->transport);
    return (tw_traffic){
        now.payload_sent - before->payload_sent, now.payload_received - before->payload_received,
        now.control_sent - before->control_sent, now.control_received - before->control_received,
        now.messages_sent - before->messages_sent};
}

/* What the tensors share, beside what is each one's own. */
static void publish_info(step *s, const tw_traffic *before) {
    s->info.traffic = traffic_since(s->g, before);
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        tw_step_info info = s->info;
        info.step = t->steps;
        info.k = t->info.k;
        info.selected = t->selected;
        info.applied = t->info.applied;
        info.exchange = t->info.exchange;
        info.tensors = s->count;
        t->info = info;
    }
}

int tw__allreduce_run(tw_group *g, const int *members, int count) {
    step s = {.g = g, .members = members, .count = count};
    tw_traffic before = tw__transport_traffic(g->transport);
    int error = select_all(&s);
    int goes_on = error == TW_ERR_NUMBER || error == TW_ERR_NULL || error == TW_ERR_DEVICE;
    if (error == TW_OK) {
        error = exchange_all(&s);
        goes_on = error == TW_ERR_NUMBER; /* all ranks see that, but nothing else */
    }
    if (error != TW_OK) {
        undo_all(&s);
        if (!goes_on)
            tw__group_break(g, error);
        return error;
    }
    error = apply_all(&s); /* fails only with a GPU */
    if (error != TW_OK)
        tw__group_break(g, error);
    publish_info(&s, &before);
    return error;
}

/* ---- public */

int tw_allreduce(tw_group *g, int tensor, const void *grad, float *out) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, tensor));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait "
                                      "before tw_allreduce");
    tw__group_mark(g, tensor);
    g->tensors[tensor].grad = grad;
    g->tensors[tensor].out = out;
    return tw__allreduce_run(g, &tensor, 1);
}
