/* allreduce.c - the map of one step over all ranks
 *
 *   gradients -> select -> agree -> exchange -> apply
 *                acc=g+e   all or   sums over   residuals keep what did not arrive,
 *                k of n    none     ranks       the mean goes to the caller
 *
 * A step takes one tensor or a bucket of them. Until `apply` everything can be taken back: an error
 * on any rank before the exchange, and a sum that overflows, leave all residuals as they were. */
#include "backend/cpu/kth.h"
#include "select/methods.h"
#include "group/step.h"

#include <assert.h>

static int suits(const tw_group *g, const tw__plan *way, int64_t k) {
    return tw__exchange_suits(way->exchange, k, g->nranks);
}

/* ---- memory: the same jobs, at their largest */

/* Threshold methods may select up to 4k, the others k at most. */
static int64_t most_selected(const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n);
    return t->method->exceeds_k ? tw__at_most(TW__MOST * k, t->n) : k;
}

static void add_to_shape(tw__shape *shape, const tw_group *g, const tw__plan *way,
                         const tw__tensor *t, int64_t k) {
    shape->nranks = g->nranks;
    shape->wire = way->wire;
    shape->nsegments++;
    shape->span += t->n;
    if (!tw__is_dense(way)) {
        shape->k += k;
        shape->most += most_selected(t);
    }
}

static void job_memory(const tw__exchange *exchange, const tw__shape *shape, tw__arenas *room) {
    if (shape->nsegments == 0)
        return;
    tw__job_memory(shape, room);
    exchange->memory(shape, room);
}

/* During warm-up k falls, and a tensor may pass from oktopk to butterfly: it is counted for both. */
tw__workspace tw__allreduce_memory(const tw_group *g, const tw__plan *way, int first, int count) {
    tw__shape whole = {0}, small = {0};
    for (int t = first; t < first + count; t++) {
        int64_t k = tw__k_max(&g->tensors[t].params, g->tensors[t].n);
        int64_t last = tw__k_at(&g->tensors[t].params, g->tensors[t].n, INT64_MAX);
        if (suits(g, way, k))
            add_to_shape(&whole, g, way, &g->tensors[t], k);
        if (!suits(g, way, last))
            add_to_shape(&small, g, way, &g->tensors[t], k);
    }
    tw__arenas room = {0};
    whole.on_gpu = g->resident;
    job_memory(way->exchange, &whole, &room);
    size_t there = g->resident ? room.lists.used : 0;
    job_memory(&tw__exchange_butterfly, &small, &room);
    return (tw__workspace){room.host.used, room.lists.used - there, there};
}

int64_t tw__allreduce_applied(const tw_group *g, const tw__plans *ways, const tw__tensor *t) {
    int64_t k = tw__k_max(&t->params, t->n), most = 0;
    for (int w = 0; w < ways->count; w++) {
        const tw__plan *way = &ways->at[w];
        tw__shape shape = {0};
        add_to_shape(&shape, g, way, t, k);
        const tw__exchange *exchange = suits(g, way, k) ? way->exchange : &tw__exchange_butterfly;
        int64_t applied = exchange->applied(&shape);
        most = applied > most ? applied : most;
    }
    return most;
}

void tw__allreduce_shapes(const tw_group *g, const tw__plan *way, const int *members, int count,
                          tw__shape shapes[2]) {
    shapes[0] = shapes[1] = (tw__shape){0};
    for (int i = 0; i < count; i++) {
        const tw__tensor *t = &g->tensors[members[i]];
        int64_t k = tw__k_at(&t->params, t->n, t->steps);
        add_to_shape(&shapes[!suits(g, way, k)], g, way, t, k);
    }
}

/* ---- exchange */

static int64_t k_now(const tw__step *s, const tw__tensor *t) {
    return tw__is_dense(s->way) ? t->n : t->selector->k;
}

static void add_segment(tw__step *s, int job_at, int tensor) {
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
                                      .grad = tw__whole_grad(t),
                                      .type = tw__whole_type(t),
                                      .out = tw__whole_out(t)};
    add_to_shape(&job->shape, g, s->way, t, k_now(s, t));
}

static void make_jobs(tw__step *s) {
    tw_group *g = s->g;
    for (int j = 0; j < TW__JOBS; j++) {
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
                               .arrived = there ? NULL : tw__step_arrived,
                               .arrived_context = s,
                               .global = g->params.global,
                               .divisor = g->params.result == TW_MEAN ? (float)g->nranks : 1.0f};
    }
    for (int i = 0; i < s->count; i++) {
        const tw__tensor *t = &g->tensors[s->members[i]];
        add_segment(s, !suits(g, s->way, k_now(s, t)), s->members[i]);
    }
}

/* A tensor's selection as entries; of more than `most` the largest, ties to the smaller index.
 * Returns how many. */
static int64_t pack(const tw_group *g, const tw__tensor *t, int32_t base, int64_t most,
                    tw__entry *to) {
    const tw__entries *chosen = &t->selector->chosen;
    tw__edge edge = {0, t->selected}; /* takes all */
    int64_t count = 0;
    if (t->selected > most) {
        tw__kth worst = tw__kth_of_values(g->kernels, chosen->val, t->selected, most);
        edge = (tw__edge){worst.bits, most - worst.greater};
    }
    for (int64_t e = 0; e < t->selected; e++) {
        to[count] = (tw__entry){base + chosen->idx[e], chosen->val[e]};
        count += tw__edge_takes(&edge, chosen->val[e]);
    }
    return count;
}

/* The selections of all segments, end to end. */
static int gather_own(tw__step *s, int job_at) {
    tw__job *job = &s->jobs[job_at];
    int best_k = s->exchanges[job_at]->best_k;
    if (tw__is_dense(s->way))
        return TW_OK;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__tensor *t = tw__owner(s, job_at, i);
        tw__entry *to = job->own.at + job->own.count;
        int32_t base = (int32_t)job->segments[i].base;
        int64_t count = t->selected;
        assert(job->own.count + count <= job->shape.most);
        if (job->shape.on_gpu)
            TW_TRY(tw__device_pack(t->selector->device, count, base, to));
        else if (tw__on_gpu(t))
            TW_TRY(tw__device_fetch(t->selector->device, count, base, to));
        else
            count = pack(s->g, t, base, best_k ? job->segments[i].k : count, to);
        job->own.count += count;
    }
    if (s->g->lane != NULL)
        TW_TRY(tw__stream_wait(s->g->lane));
    return best_k ? tw__job_trim_own(job) : TW_OK;
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
static int check_sums(const tw__step *s) {
    for (int j = 0; j < TW__JOBS; j++) {
        int yes = 1;
        TW_TRY(sums_finite(&s->jobs[j], tw__is_dense(s->way), &yes));
        if (!yes)
            return tw__fail(TW_ERR_NUMBER, "the sum over ranks overflows in this step; skip it or "
                                           "lower the loss scale");
    }
    return TW_OK;
}

static int run_exchange(tw__step *s, const tw__exchange *exchange, tw__job *job) {
    tw__transport_set_overlap(s->g->transport, tw__step_clear, s);
    int error = exchange->run(job);
    tw__transport_set_overlap(s->g->transport, NULL, NULL);
    return error;
}

static int exchange_all(tw__step *s) {
    tw_group *g = s->g;
    tw__arena host = {g->host_memory, 0}, here = {g->lists_memory, 0}, there = {g->memory_there, 0};
    double begin = tw__transport_seconds(g->transport);
    make_jobs(s);
    for (int j = 0; j < TW__JOBS; j++) {
        tw__job *job = &s->jobs[j];
        if (job->shape.nsegments == 0)
            continue;
        tw__arena *lists = job->shape.on_gpu ? &there : &here;
        job->room = (tw__arenas){host, *lists};
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
    s->info.exchange_seconds = tw__transport_seconds(g->transport) - begin;
    return check_sums(s);
}

static tw_traffic traffic_since(const tw_group *g, const tw_traffic *before) {
    tw_traffic now = tw__transport_traffic(g->transport);
    return (tw_traffic){
        now.payload_sent - before->payload_sent, now.payload_received - before->payload_received,
        now.control_sent - before->control_sent, now.control_received - before->control_received,
        now.messages_sent - before->messages_sent};
}

/* What the tensors share, beside what is each one's own. */
static void publish_info(tw__step *s, const tw_traffic *before) {
    s->info.traffic = traffic_since(s->g, before);
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = &s->g->tensors[s->members[i]];
        tw_step_info info = s->info;
        info.step = t->steps;
        info.k = t->info.k;
        info.selected = t->selected;
        info.applied = t->info.applied;
        info.exchange = t->info.exchange;
        info.wire = s->way->wire != NULL && !tw__is_dense(s->way) ? s->way->wire->name : "raw";
        info.tensors = s->count;
        t->info = info;
    }
}

int tw__allreduce_run(tw_group *g, const int *members, int count) {
    tw__step s = {.g = g, .members = members, .count = count};
    s.way = tw__auto_begin(g, members, count);
    tw_traffic before = tw__transport_traffic(g->transport);
    int error = tw__step_select(&s);
    int goes_on = error == TW_ERR_NUMBER || error == TW_ERR_NULL || error == TW_ERR_DEVICE;
    if (error == TW_OK) {
        error = exchange_all(&s);
        goes_on = error == TW_ERR_NUMBER; /* all ranks see that, but nothing else */
    }
    if (error != TW_OK) {
        tw__step_undo(&s);
        if (!goes_on || tw__transport_has_failed(g->transport))
            tw__group_break(g, error);
        return error;
    }
    error = tw__step_apply(&s); /* fails only with a GPU */
    if (error != TW_OK) {
        tw__step_undo_open(&s);
        tw__group_break(g, error);
        return error;
    }
    if (g->automatic)
        tw__auto_note(g, members, s.way, tw__transport_seconds(g->transport) - s.agreed);
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
