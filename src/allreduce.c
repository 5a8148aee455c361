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
#include <math.h>

/* A step travels as at most two jobs: oktopk leaves small tensors to butterfly. */
#define JOBS 2

typedef struct step {
    tw_group *g;
    const int *members; /* [count] tensors */
    int count;
    const tw__way *way;
    tw__job jobs[JOBS];
    const tw__exchange *exchanges[JOBS];
    tw_step_info info;
    double selecting; /* seconds on the transport's clock */
    double agreed;    /* on it, when all had selected */
    int clearing;     /* member whose out is being cleared */
} step;

static int suits(const tw_group *g, const tw__way *way, int64_t k) {
    return tw__exchange_suits(way->exchange, k, g->nranks);
}

static int is_dense(const tw__way *way) {
    return way->exchange == &tw__exchange_dense;
}

/* Where the exchange finds what is to be summed whole, and where it leaves the sum. With a selector
 * the residual goes along; the gradient must then stay until nothing needs to be undone. */
static const void *grad_of(const tw__tensor *t) {
    return t->selector != NULL     ? t->selector->residual
           : t->dense_grad != NULL ? t->dense_grad
                                   : t->grad;
}

static int type_of(const tw__tensor *t) {
    return t->selector != NULL ? TW_F32 : t->params.type;
}

static size_t element_size(const tw__tensor *t) {
    return t->params.type == TW_F32 ? 4 : 2;
}

static int out_is_grad(const tw__tensor *t) {
    uintptr_t out = (uintptr_t)t->out, grad = (uintptr_t)t->grad;
    return out < grad + element_size(t) * (size_t)t->n && grad < out + 4 * (size_t)t->n;
}

static float *out_of(const tw__tensor *t) {
    if (t->selector != NULL && !out_is_grad(t))
        return t->out;
    return t->dense_out != NULL ? t->dense_out : t->out;
}

/* ---- memory: the same jobs, at their largest */

/* Threshold methods may select up to 4k, the others k at most. */
static int64_t most_selected(const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n);
    return t->method->exceeds_k ? tw__at_most(TW__MOST * k, t->n) : k;
}

static void add_to_shape(tw__shape *shape, const tw_group *g, const tw__way *way,
                         const tw__tensor *t, int64_t k) {
    shape->nranks = g->nranks;
    shape->wire = way->wire;
    shape->nsegments++;
    shape->span += t->n;
    if (!is_dense(way)) {
        shape->k += k;
        shape->most += most_selected(t);
    }
}

static void job_memory(const tw__exchange *exchange, const tw__shape *shape, tw__room *room) {
    if (shape->nsegments == 0)
        return;
    tw__job_memory(shape, room);
    exchange->memory(shape, room);
}

/* During warm-up k falls, and a tensor may pass from oktopk to butterfly: it is counted for both. */
tw__workspace tw__allreduce_memory(const tw_group *g, const tw__way *way, int first, int count) {
    tw__shape whole = {0}, small = {0};
    for (int t = first; t < first + count; t++) {
        int64_t k = tw__k_max(&g->tensors[t].params, g->tensors[t].n);
        int64_t last = tw__k_at(&g->tensors[t].params, g->tensors[t].n, INT64_MAX);
        if (suits(g, way, k))
            add_to_shape(&whole, g, way, &g->tensors[t], k);
        if (!suits(g, way, last))
            add_to_shape(&small, g, way, &g->tensors[t], k);
    }
    tw__room room = {0};
    whole.on_gpu = g->resident;
    job_memory(way->exchange, &whole, &room);
    size_t there = g->resident ? room.lists.used : 0;
    job_memory(&tw__exchange_butterfly, &small, &room);
    return (tw__workspace){room.host.used, room.lists.used - there, there};
}

int64_t tw__allreduce_applied(const tw_group *g, const tw__ways *ways, const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n), most = 0;
    for (int w = 0; w < ways->count; w++) {
        const tw__way *way = &ways->at[w];
        tw__shape shape = {0};
        add_to_shape(&shape, g, way, t, k);
        const tw__exchange *exchange = suits(g, way, k) ? way->exchange : &tw__exchange_butterfly;
        int64_t applied = exchange->applied(&shape);
        most = applied > most ? applied : most;
    }
    return most;
}

void tw__allreduce_shapes(const tw_group *g, const tw__way *way, const int *members, int count,
                          tw__shape shapes[2]) {
    shapes[0] = shapes[1] = (tw__shape){0};
    for (int i = 0; i < count; i++) {
        const tw__tensor *t = &g->tensors[members[i]];
        int64_t k = tw__k_at(&t->params, t->n, t->steps);
        add_to_shape(&shapes[!suits(g, way, k)], g, way, t, k);
    }
}

/* ---- select */

/* The first NaN or infinity of a dense gradient, -1 if none. */
static int find_bad_number(const tw_group *g, const tw__tensor *t, int64_t *bad) {
    const char *grad = grad_of(t); /* there is no selector, which would look for itself */
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
static int follow_caller(tw_group *g, const tw__way *way, tw__tensor *t) {
    if (!tw__on_gpu(t))
        return TW_OK;
    if (t->marked != TW_OK)
        return tw__fail(t->marked, "stream: it cannot be followed; give a stream of GPU %d",
                        t->params.ordinal);
    if (t->out != NULL)
        TW_TRY(tw__device_pointer(t->out, "out", t->params.ordinal, sizeof(float)));
    TW_TRY(tw__lane_follow(g->lane, t->ready));
    if (!is_dense(way))
        return TW_OK;
    TW_TRY(tw__device_pointer(t->grad, "grad", t->params.ordinal, element_size(t)));
    if (g->resident)
        return TW_OK;
    TW_TRY(tw__lane_copy(g->lane, t->dense_grad, t->grad, element_size(t) * (size_t)t->n));
    return tw__lane_wait(g->lane);
}

/* What the caller gave can be used. */
static int prepare_one(step *s, tw__tensor *t) {
    if (t->grad == NULL || ((is_dense(s->way) || s->g->automatic) && t->out == NULL))
        return TW_ERR_NULL;
    return follow_caller(s->g, s->way, t);
}

/* Opens a step of the tensor's selector; on a GPU it is queued then. *bad is the index of a bad
 * number. */
static int select_one(tw_group *g, const tw__way *way, tw__tensor *t, int64_t *bad) {
    tw_sparse sparse = {.count = t->n};
    if (t->selector == NULL) {
        t->selected = t->n;
        TW_TRY(find_bad_number(g, t, bad));
        return *bad < 0 ? TW_OK : TW_ERR_NUMBER;
    }
    int error = is_dense(way) ? tw__selector_fold(t->selector, t->grad)
                              : tw_selector_run(t->selector, t->grad, &sparse);
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

/* The selections of all tensors. An error is that of `tensor`, with the index of a bad number.
 * *took: where the step selects on a GPU, the seconds that this takes there. */
static int select_each(step *s, int *tensor, int64_t *bad, double *took) {
    tw_group *g = s->g;
    int there = g->lane != NULL && !is_dense(s->way);
    if (there)
        TW_TRY(tw__lane_begin(g->lane));
    for (int i = 0; i < s->count; i++) {
        *tensor = s->members[i];
        TW_TRY(select_one(g, s->way, &g->tensors[*tensor], bad));
    }
    if (there)
        TW_TRY(tw__lane_end(g->lane));
    for (int i = 0; i < s->count; i++) {
        *tensor = s->members[i];
        TW_TRY(await_selection(&g->tensors[*tensor], bad));
    }
    return there ? tw__lane_took(g->lane, took) : TW_OK;
}

/* When something began that took so long until now: a GPU may have waited for gradients first. */
static double began(double begin, double now, double took) {
    return now - begin > took ? now - took : begin;
}

static int select_all(step *s) {
    int error = TW_OK, tensor = 0;
    int64_t bad = -1;
    double begin = tw__seconds(), took = HUGE_VAL;
    double from = tw__transport_seconds(s->g->transport);
    for (int i = 0; i < s->count; i++) { /* of all, also where the first is refused */
        tw__tensor *t = &s->g->tensors[s->members[i]];
        t->threshold_before = t->threshold;
        t->has_result = 0;
        t->cleared = 0;
    }
    for (int i = 0; i < s->count && error == TW_OK; i++) {
        tensor = s->members[i];
        error = prepare_one(s, &s->g->tensors[tensor]);
    }
    if (error == TW_OK)
        error = select_each(s, &tensor, &bad, &took);
    double selected = tw__seconds(), met = tw__transport_seconds(s->g->transport);
    begin = began(begin, selected, took);
    s->selecting = met - began(from, met, took);
    double slowest = tw__auto_pending(s->g, s->members);
    error = tw__agree_step(s->g, error, tensor, bad, s->members, s->count, &slowest);
    if (error == TW_OK)
        tw__auto_learn(s->g, s->members, slowest);
    s->agreed = tw__transport_seconds(s->g->transport);
    s->info.began = begin;
    s->info.select_seconds = selected - begin;
    s->info.agree_seconds = tw__seconds() - selected;
    return error;
}

/* What is still open; of a step that fails when some tensors were applied, the others. */
static void undo_open(step *s) {
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        if (t->open)
            (void)tw_selector_undo(t->selector, t->grad);
        t->open = 0;
    }
    if (s->g->lane != NULL) /* gradients are the caller's again */
        (void)tw__lane_wait(s->g->lane);
}

static void undo_all(step *s) {
    undo_open(s);
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        t->threshold = t->threshold_before;
    }
}

/* ---- exchange */

static int64_t k_now(const step *s, const tw__tensor *t) {
    return is_dense(s->way) ? t->n : t->selector->k;
}

static void add_segment(step *s, int job_at, int tensor) {
    tw_group *g = s->g;
    tw__job *job = &s->jobs[job_at];
    tw__tensor *t = &g->tensors[tensor];
    int at = job->shape.nsegments;
    g->owners[job_at * g->widest + at] = tensor;
    job->segments[at] = (tw__segment){.base = job->shape.span,
                                      .n = t->n,
                                      .k = k_now(s, t),
                                      .threshold = &t->threshold,
                                      .selector = t->selector,
                                      .grad = grad_of(t),
                                      .type = type_of(t),
                                      .out = out_of(t)};
    add_to_shape(&job->shape, g, s->way, t, k_now(s, t));
}

static void make_jobs(step *s) {
    tw_group *g = s->g;
    for (int j = 0; j < JOBS; j++) {
        s->exchanges[j] = j == 0 ? s->way->exchange : &tw__exchange_butterfly;
        int there = j == 0 && g->resident;
        s->jobs[j] = (tw__job){.transport = g->transport,
                               .cargo = there ? TW__DEVICE : TW__PAYLOAD,
                               .lists = there ? g->lists_there : g->lists,
                               .codec = there ? &tw__wire_cuda : &tw__wire_host,
                               .kernels = g->kernels,
                               .rank = g->rank,
                               .shape.nranks = g->nranks,
                               .shape.on_gpu = there,
                               .segments = g->segments + j * g->widest,
                               .global = g->params.global,
                               .divisor = g->params.result == TW_MEAN ? (float)g->nranks : 1.0f};
    }
    for (int i = 0; i < s->count; i++) {
        const tw__tensor *t = &g->tensors[s->members[i]];
        add_segment(s, !suits(g, s->way, k_now(s, t)), s->members[i]);
    }
}

/* The selections of all segments, end to end. */
static int gather_own(step *s, int job_at) {
    tw__job *job = &s->jobs[job_at];
    if (is_dense(s->way))
        return TW_OK;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__tensor *t = &s->g->tensors[s->g->owners[job_at * s->g->widest + i]];
        const tw__entries *chosen = &t->selector->chosen;
        tw__entry *to = job->own.at + job->own.count;
        int32_t base = (int32_t)job->segments[i].base;
        assert(job->own.count + t->selected <= job->shape.most);
        if (job->shape.on_gpu)
            TW_TRY(tw__device_pack(t->selector->device, t->selected, base, to));
        else if (tw__on_gpu(t))
            TW_TRY(tw__device_fetch(t->selector->device, t->selected, base, to));
        for (int64_t e = 0; e < t->selected && !tw__on_gpu(t); e++)
            to[e] = (tw__entry){base + chosen->idx[e], chosen->val[e]};
        job->own.count += t->selected;
    }
    return s->g->lane != NULL ? tw__lane_wait(s->g->lane) : TW_OK;
}

static int sums_finite(const tw__job *job, int dense, int *yes) {
    TW_TRY(tw__list_finite(&job->lists, &job->result, yes));
    for (int i = 0; i < job->shape.nsegments && dense; i++) { /* sums are in the caller's memory */
        const tw__segment *s = &job->segments[i];
        int64_t bad = -1;
        if (job->shape.on_gpu)
            TW_TRY(tw__device_find_bad(job->lists.context, s->out, TW_F32, s->n, &bad));
        else if (job->kernels->count(s->out, s->n, TW__INFINITY_BITS) > 0)
            bad = 0;
        *yes &= bad < 0;
    }
    return TW_OK;
}

/* An overflow is among the largest sums, so every exchange has it in its result: all ranks see it
 * alike. */
static int check_sums(const step *s) {
    for (int j = 0; j < JOBS; j++) {
        int yes = 1;
        TW_TRY(sums_finite(&s->jobs[j], is_dense(s->way), &yes));
        if (!yes)
            return tw__fail(TW_ERR_NUMBER, "the sum over ranks overflows in this step; skip it or "
                                           "lower the loss scale");
    }
    return TW_OK;
}

/* Elements that are cleared in one go: 50 us. */
#define CLEARED_AT_ONCE ((int64_t)1 << 18)

/* A chore, while entries travel: most of out will be zero. What it takes is longer than the rest of
 * `apply`: 59 MB at n = 14.7 M. Not where the gradient is still needed. */
static int clear_some(void *context) {
    step *s = context;
    for (; s->clearing < s->count; s->clearing++) {
        tw__tensor *t = &s->g->tensors[s->members[s->clearing]];
        int64_t many = tw__at_most(CLEARED_AT_ONCE, t->n - t->cleared);
        if (t->out == NULL || many == 0 || tw__on_gpu(t) || is_dense(s->way) || out_is_grad(t))
            continue;
        memset((char *)t->out + 4 * t->cleared, 0, 4 * (size_t)many);
        t->cleared += many;
        return 1;
    }
    return 0;
}

static int run_exchange(step *s, const tw__exchange *exchange, tw__job *job) {
    tw__transport_set_chore(s->g->transport, clear_some, s);
    int error = exchange->run(job);
    tw__transport_set_chore(s->g->transport, NULL, NULL);
    return error;
}

static int exchange_all(step *s) {
    tw_group *g = s->g;
    tw__arena host = {g->host_memory, 0}, here = {g->lists_memory, 0}, there = {g->memory_there, 0};
    double begin = tw__seconds();
    make_jobs(s);
    for (int j = 0; j < JOBS; j++) {
        tw__job *job = &s->jobs[j];
        if (job->shape.nsegments == 0)
            continue;
        tw__arena *lists = job->shape.on_gpu ? &there : &here;
        job->room = (tw__room){host, *lists};
        tw__job_begin(job);
        TW_TRY(gather_own(s, j));
        TW_TRY(run_exchange(s, s->exchanges[j], job));
        if (job->shape.wire != NULL) /* sums may be rounded to nothing */
            TW_TRY(tw__list_keep_above(&job->lists, &job->result, 0, 0));
        host = job->room.host;
        *lists = job->room.lists;
    }
    assert(host.used <= g->workspace.host && here.used <= g->workspace.here &&
           there.used <= g->workspace.there);
    s->info.exchange_seconds = tw__seconds() - begin;
    return check_sums(s);
}

/* ---- apply */

/* The segment's part of the result, divided, into the tensor's arrays and the caller's. */
static void deliver(tw__tensor *t, const tw__list *part, int64_t base, float divisor) {
    char *out = (char *)t->out; /* of any alignment */
    if (out != NULL)
        memset(out + 4 * t->cleared, 0, sizeof(float) * (size_t)(t->n - t->cleared));
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
                         const tw__list *kept, int64_t base, const tw__job *job) {
    const tw__device_outcome outcome = {.base = base,
                                        .there = job->shape.on_gpu,
                                        .left_more = job->left_more,
                                        .selected = t->selected,
                                        .left = *left,
                                        .kept = *kept,
                                        .result = *result,
                                        .divisor = job->divisor,
                                        .idx = t->result.idx,
                                        .val = t->result.val,
                                        .out = t->out};
    TW_TRY(tw__device_apply(t->selector->device, &outcome));
    tw__selector_count(t->selector);
    t->result.count = result->count;
    return TW_OK;
}

/* The job's lists are cut. */
static int apply_segment(const tw__job *job, int at, tw__tensor *t) {
    int64_t lo = job->segments[at].base;
    tw__list result = job->parts[0][at], left = job->parts[1][at], kept = job->parts[2][at];
    if (tw__on_gpu(t)) {
        TW_TRY(deliver_there(t, &result, &left, &kept, lo, job));
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
    size_t bytes = sizeof(float) * (size_t)t->n;
    if (g->resident)
        return TW_OK;
    if (tw__on_gpu(t))
        return tw__lane_copy(g->lane, t->out, t->dense_out, bytes);
    if (t->selector == NULL)
        return TW_OK;
    if (out_of(t) != t->out)
        memcpy((void *)t->out, t->dense_out, bytes);
    tw__selector_close_whole(t->selector);
    t->open = 0;
    return TW_OK;
}

static int cut_lists(tw__job *job) {
    if (job->shape.nsegments == 0)
        return TW_OK;
    TW_TRY(tw__job_cut(job, &job->result, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    return tw__job_cut(job, &job->kept, job->parts[2]);
}

static int apply_all(step *s) {
    double begin = tw__seconds();
    for (int j = 0; j < JOBS; j++) {
        tw__job *job = &s->jobs[j];
        TW_TRY(cut_lists(job));
        for (int i = 0; i < job->shape.nsegments; i++) {
            tw__tensor *t = &s->g->tensors[s->g->owners[j * s->g->widest + i]];
            int dense = is_dense(s->way);
            TW_TRY(dense ? apply_dense(s->g, t) : apply_segment(job, i, t));
            t->steps++;
            t->info.k = job->segments[i].k;
            t->info.applied = dense ? t->n : t->result.count;
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
        info.wire = s->way->wire != NULL && !is_dense(s->way) ? s->way->wire->name : "raw";
        info.tensors = s->count;
        t->info = info;
    }
}

int tw__allreduce_run(tw_group *g, const int *members, int count) {
    step s = {.g = g, .members = members, .count = count};
    s.way = tw__auto_begin(g, members, count);
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
    if (error != TW_OK) {
        undo_open(&s);
        tw__group_break(g, error);
        return error;
    }
    if (g->automatic)
        tw__auto_note(g, members, s.way, s.selecting,
                      tw__transport_seconds(g->transport) - s.agreed);
    publish_info(&s, &before);
    return TW_OK;
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
