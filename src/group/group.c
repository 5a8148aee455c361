/* group.c - a group's life: create, add tensors, open, free
 *
 * Up to tw_group_open everything is local. Opening compares parameters over all ranks, then takes
 * all memory, then lets all ranks know whether everyone got it. */
#include "group/group.h"
#include "base/memory.h"
#include "base/pool.h"
#include "select/methods.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_TIMEOUT 300.0
#define DEFAULT_BUCKET ((int64_t)4 << 20)

/* ---- parameters */

static int check_choice(const char *field, int value, int last) {
    if (value >= 0 && value <= last)
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "%s: %d; accepted is 0 .. %d", field, value, last);
}

static int check_params(const tw_group_params *p) {
    TW_TRY(check_choice("result", p->result, TW_SUM));
    TW_TRY(check_choice("global", p->global, TW_GLOBAL_REUSE));
    if (!(p->timeout >= 0.0 && p->timeout <= 1e9))
        return tw__fail(TW_ERR_PARAM, "timeout: %g; accepted is 0 (default) .. 1e9 seconds",
                        p->timeout);
    if (p->bucket < 0 || p->bucket > INT32_MAX)
        return tw__fail(TW_ERR_PARAM, "bucket: %lld; accepted is 0 (default) .. %d",
                        (long long)p->bucket, INT32_MAX);
    for (size_t i = 0; i < sizeof p->reserved / sizeof p->reserved[0]; i++)
        if (p->reserved[i] != 0)
            return tw__fail(TW_ERR_PARAM, "reserved: not zero; start from TW_GROUP_PARAMS_INIT");
    return TW_OK;
}

/* How steps travel: as was asked for, or to be chosen. The caller's strings need not outlive the
 * call. */
static int resolve_way(tw_group *g, const tw_group_params *params) {
    const char *exchange = params->exchange != NULL ? params->exchange : g->scheme->exchange;
    TW_TRY(tw__exchange_find(exchange, &g->exchange));
    int any = g->exchange == NULL;
    TW_TRY(tw__wire_name_find(params->wire != NULL ? params->wire : "raw", &g->wire));
    g->automatic = any || strcmp(g->scheme->exchange, TW__AUTO) == 0;
    g->any_wire = g->automatic && params->wire == NULL;
    g->params.exchange = any ? TW__AUTO : g->exchange->name;
    g->params.wire = g->any_wire ? TW__AUTO : g->wire != NULL ? g->wire->name : "raw";
    return TW_OK;
}

static int is_dense(const tw_group *g) {
    return !g->automatic && g->exchange == &tw__exchange_dense;
}

static int resolve(tw_group *g, const tw_group_params *params) {
    g->params = *params;
    TW_TRY(check_params(params));
    TW_TRY(tw__scheme_find(params->scheme != NULL ? params->scheme : "oktopk", &g->scheme));
    TW_TRY(resolve_way(g, params));
    g->params.scheme = g->scheme->name;
    if (params->timeout == 0.0)
        g->params.timeout = DEFAULT_TIMEOUT;
    if (params->bucket == 0 && !g->automatic)
        g->params.bucket = DEFAULT_BUCKET;
    const tw__method *method = NULL;
    const char *name = params->select.method != NULL ? params->select.method : g->scheme->select;
    TW_TRY(tw__method_find(name, &method));
    g->params.select.method = method->name;
    return tw__kernels_choose(&g->kernels);
}

/* ---- create and add */

int tw_group_create(tw_group **group, tw_transport *transport, const tw_group_params *params) {
    TW_REQUIRE(group, "group");
    *group = NULL;
    TW_REQUIRE(transport, "transport");
    TW_REQUIRE(params, "params");
    tw_group *g = tw__alloc(sizeof *g);
    if (g == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *g);
    g->transport = transport;
    g->rank = tw__transport_rank(transport);
    g->nranks = tw__transport_nranks(transport);
    int error = resolve(g, params);
    if (error == TW_OK && (g->agree = tw__reserve(tw__agree_memory(g->nranks))) == NULL)
        error = tw__fail(TW_ERR_MEMORY, "no memory to agree with %d ranks", g->nranks);
    if (error == TW_OK)
        error = tw__transport_acquire(transport);
    if (error != TW_OK) {
        free(g->agree);
        free(g);
        return error;
    }
    tw__transport_set_timeout(transport, g->params.timeout);
    *group = g;
    return TW_OK;
}

/* Room for one more tensor. */
static int make_room(tw_group *g) {
    if (g->ntensors < g->room)
        return TW_OK;
    int room = g->room == 0 ? 16 : 2 * g->room;
    tw__tensor *tensors = realloc(g->tensors, sizeof *tensors * (size_t)room);
    if (tensors == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for tensor %d", g->ntensors);
    g->tensors = tensors;
    g->room = room;
    return TW_OK;
}

/* Dense selects nothing: whatever was asked for, k = n stands for it. */
static tw_select_params dense_params(const tw_select_params *params) {
    tw_select_params p = TW_SELECT_PARAMS_INIT;
    p.type = params->type;
    p.threads = params->threads;
    p.device = params->device;
    p.ordinal = params->ordinal;
    p.stream = params->stream;
    p.density = 1.0;
    return p;
}

/* A group uses one GPU at most. */
static int check_gpu(const tw_group *g, const tw__tensor *t) {
    if (!tw__on_gpu(t))
        return TW_OK;
    if (g->wire != NULL && t->params.momentum != 0.0f)
        return tw__fail(TW_ERR_PARAM, "momentum: %g; on a GPU it goes with wire \"raw\" alone",
                        t->params.momentum);
    TW_TRY(tw__device_check(t->params.ordinal));
    for (int i = 0; i < g->ntensors; i++)
        if (tw__on_gpu(&g->tensors[i]) && g->tensors[i].params.ordinal != t->params.ordinal)
            return tw__fail(TW_ERR_PARAM, "ordinal: %d; tensor %d of this group lies on GPU %d",
                            t->params.ordinal, i, g->tensors[i].params.ordinal);
    return TW_OK;
}

/* Entries of a tensor, on average, from which a GPU works on them faster than the host, for all its
 * launches. */
#ifndef TW__RESIDENT_K
#define TW__RESIDENT_K 16384
#endif

/* Whether entries stay on the GPU: not if they are few, unless the caller has lent a way between
 * GPUs; nor with `auto`, whose predictions are the CPU's. */
static int stays_on_gpu(const tw_group *g) {
    void *context;
    int lent = tw__transport_device(g->transport, &context) != NULL;
    int all = !g->automatic && !g->exchange->on_host;
    int64_t entries = 0;
    for (int t = 0; t < g->ntensors; t++) {
        all &= tw__on_gpu(&g->tensors[t]);
        entries += tw__k_at(&g->tensors[t].params, g->tensors[t].n, INT64_MAX);
    }
    return all && (lent || entries >= (int64_t)TW__RESIDENT_K * g->ntensors);
}

int tw_group_add(tw_group *g, int64_t n, const tw_select_params *select, int *tensor) {
    TW_REQUIRE(g, "group");
    if (g->opened)
        return tw__fail(TW_ERR_STATE, "the group is open; add tensors before tw_group_open");
    TW_TRY(make_room(g));
    tw__tensor t = {.n = n, .params = select != NULL ? *select : g->params.select};
    if (is_dense(g))
        t.params = dense_params(&t.params);
    else if (t.params.method == NULL)
        t.params.method = g->params.select.method;
    TW_TRY(tw__params_resolve(&t.params, n, &t.method));
    TW_TRY(check_gpu(g, &t));
    if (g->automatic && g->exchange == &tw__exchange_dense && !tw__auto_sends_whole(&t.params))
        return tw__fail(TW_ERR_PARAM, "exchange: dense goes with scheme \"auto\" on the CPU alone, "
                                      "with feedback and without momentum; give scheme \"dense\"");
    if (tensor != NULL)
        *tensor = g->ntensors;
    g->tensors[g->ntensors++] = t;
    g->resident = stays_on_gpu(g);
    return TW_OK;
}

/* ---- buckets: neighbours, as long as they fit */

/* Until their size is chosen there is one. */
static int count_buckets(const tw_group *g, tw__bucket *buckets, int *widest) {
    int count = 0, first = 0;
    int64_t elements = 0, most = g->params.bucket > 0 ? g->params.bucket : INT32_MAX;
    *widest = 1;
    for (int t = 0; t <= g->ntensors; t++) {
        int full = t == g->ntensors || elements + g->tensors[t].n > most;
        if (full && t > first) {
            if (buckets != NULL)
                buckets[count] = (tw__bucket){.first = first, .count = t - first};
            *widest = t - first > *widest ? t - first : *widest;
            count++;
            first = t;
            elements = 0;
        }
        if (t < g->ntensors)
            elements += g->tensors[t].n;
    }
    return count;
}

/* ---- memory */

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static tw__workspace step_memory(const tw_group *g, const tw__plans *ways,
                                 const tw__bucket *buckets, int nbuckets) {
    tw__workspace most = {0};
    for (int b = 0; b < nbuckets; b++)
        for (int w = 0; w < ways->count; w++) {
            tw__workspace one =
                tw__allreduce_memory(g, &ways->at[w], buckets[b].first, buckets[b].count);
            most = (tw__workspace){larger(most.host, one.host), larger(most.here, one.here),
                                   larger(most.there, one.there)};
        }
    return most;
}

static size_t result_memory(const tw_group *g, const tw__plans *ways) {
    size_t bytes = 0;
    for (int t = 0; t < g->ntensors; t++) {
        size_t applied = (size_t)tw__allreduce_applied(g, ways, &g->tensors[t]);
        bytes += tw__footprint(applied * sizeof(int32_t)) + tw__footprint(applied * sizeof(float));
    }
    return bytes;
}

/* Whether a tensor with a selector may travel whole. */
static int dense_at_times(const tw_group *g, const tw__plans *ways) {
    int any = 0;
    for (int w = 0; w < ways->count; w++)
        any |= ways->at[w].exchange == &tw__exchange_dense;
    return g->automatic && any;
}

/* Dense tensors on a GPU have copies on the host, if they travel by way of it; those that are dense
 * at times have room for sums that must not overwrite their gradient yet. */
static size_t dense_memory(const tw_group *g, const tw__plans *ways) {
    size_t bytes = 0;
    for (int t = 0; t < g->ntensors && dense_at_times(g, ways); t++)
        bytes += tw__footprint((size_t)g->tensors[t].n * sizeof(float));
    for (int t = 0; t < g->ntensors && is_dense(g) && !g->resident; t++)
        if (tw__on_gpu(&g->tensors[t]))
            bytes += (size_t)g->tensors[t].n * (g->tensors[t].params.type == TW_F32 ? 8 : 6);
    return bytes;
}

static int add_selectors(const tw_group *g, tw_memory *memory) {
    for (int t = 0; t < g->ntensors && !is_dense(g); t++) {
        tw_memory one;
        TW_TRY(tw_selector_memory(g->tensors[t].n, &g->tensors[t].params, &one));
        memory->residual += one.residual;
        memory->velocity += one.velocity;
        memory->undo += one.undo;
        memory->workspace += one.workspace;
    }
    return TW_OK;
}

/* Runs that a list is summed of at most: one of each rank, or of a few letters. */
static int most_runs(const tw_group *g) {
    return g->nranks + 32;
}

/* Entries that a GPU works on at a time; dense has none. */
static int64_t entries_there(const tw_group *g, const tw__workspace *space) {
    return is_dense(g) ? 1 : (int64_t)(space->there / sizeof(tw__entry));
}

/* With what works on entries, and what moves them between GPUs. */
static size_t workspace_bytes(const tw_group *g, const tw__workspace *space) {
    size_t bytes = tw__footprint(space->host) + tw__footprint(space->here) + space->there +
                   tw__footprint(tw__lists_host_memory(most_runs(g)));
    if (g->resident)
        bytes += tw__device_lists_memory(entries_there(g, space)) +
                 tw__device_transport_memory(g->transport, space->there);
    return bytes;
}

int tw_group_memory(const tw_group *g, tw_memory *memory) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(memory, "memory");
    if (g->ntensors == 0)
        return tw__fail(TW_ERR_STATE, "the group has no tensors; add one with tw_group_add");
    tw__bucket *buckets = calloc((size_t)g->ntensors, sizeof *buckets);
    if (buckets == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d buckets", g->ntensors);
    int widest;
    tw__plans ways;
    int nbuckets = count_buckets(g, buckets, &widest);
    tw__auto_plans(g, &ways);
    *memory = (tw_memory){0};
    tw__workspace space = step_memory(g, &ways, buckets, nbuckets);
    memory->workspace = workspace_bytes(g, &space) + result_memory(g, &ways) +
                        tw__footprint(tw__agree_memory(g->nranks)) + dense_memory(g, &ways);
    free(buckets);
    TW_TRY(add_selectors(g, memory));
    memory->total = memory->residual + memory->velocity + memory->undo + memory->workspace;
    return TW_OK;
}

/* ---- open */

/* The stream of the group's own, where a tensor lies on a GPU. */
static int open_lane(tw_group *g) {
    for (int t = 0; t < g->ntensors && g->lane == NULL; t++)
        if (tw__on_gpu(&g->tensors[t]))
            TW_TRY(tw__stream_create(&g->lane, g->tensors[t].params.ordinal));
    return TW_OK;
}

static int open_dense_there(tw_group *g, tw__tensor *t) {
    size_t element = t->params.type == TW_F32 ? 4 : 2;
    t->dense_grad = tw__stream_pinned(g->lane, element * (size_t)t->n);
    t->dense_out = tw__stream_pinned(g->lane, sizeof(float) * (size_t)t->n);
    if (t->dense_grad == NULL || t->dense_out == NULL)
        return tw__fail(TW_ERR_MEMORY, "no pinned memory for %lld dense elements", (long long)t->n);
    return TW_OK;
}

static int open_there(tw_group *g, tw__tensor *t) {
    tw_select_params params = t->params;
    params.stream = tw__stream_native(g->lane);
    TW_TRY(tw_selector_create(&t->selector, t->n, &params));
    tw__device_join(t->selector->device, g->lane);
    t->result.cap = tw__allreduce_applied(g, &g->ways, t);
    TW_TRY(tw__stream_alloc(g->lane, (void **)&t->result.idx,
                            (size_t)t->result.cap * sizeof(int32_t)));
    return tw__stream_alloc(g->lane, (void **)&t->result.val,
                            (size_t)t->result.cap * sizeof(float));
}

static int open_tensor(tw_group *g, tw__tensor *t) {
    if (is_dense(g))
        return tw__on_gpu(t) && !g->resident ? open_dense_there(g, t) : TW_OK;
    if (tw__on_gpu(t))
        return open_there(g, t);
    TW_TRY(tw_selector_create(&t->selector, t->n, &t->params));
    if (dense_at_times(g, &g->ways) &&
        (t->dense_out = tw__reserve(sizeof(float) * (size_t)t->n)) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %lld dense sums", (long long)t->n);
    t->result.cap = tw__allreduce_applied(g, &g->ways, t);
    t->result.idx = tw__reserve((size_t)t->result.cap * sizeof(int32_t));
    t->result.val = tw__reserve((size_t)t->result.cap * sizeof(float));
    if (t->result.idx == NULL || t->result.val == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the result of %lld entries",
                        (long long)t->result.cap);
    return TW_OK;
}

static int open_buckets(tw_group *g) {
    g->buckets = calloc((size_t)g->ntensors, sizeof *g->buckets);
    if (g->buckets == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d buckets", g->ntensors);
    g->nbuckets = count_buckets(g, g->buckets, &g->widest);
    for (int b = 0; b < g->nbuckets; b++)
        for (int t = 0; t < g->buckets[b].count; t++)
            g->tensors[g->buckets[b].first + t].bucket = b;
    return TW_OK;
}

static int open_lists(tw_group *g) {
    size_t bytes = g->workspace.here;
    g->lists_memory = g->lane != NULL ? tw__stream_pinned(g->lane, bytes) : tw__reserve(bytes);
    g->lists = (tw__lists){&tw__lists_host, calloc(1, tw__lists_host_memory(most_runs(g)))};
    if (g->lists_memory == NULL || g->lists.context == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes for entries are not to be had", bytes);
    return TW_OK;
}

static int open_lists_there(tw_group *g) {
    tw__device_lists *lists = NULL;
    size_t bytes = g->workspace.there;
    TW_TRY(tw__stream_alloc(g->lane, &g->memory_there, bytes));
    int error = tw__device_lists_create(&lists, g->lane, entries_there(g, &g->workspace));
    g->lists_there = (tw__lists){&tw__lists_cuda, lists};
    TW_TRY(error);
    return tw__device_transport_create(&g->carrier, g->transport, g->lane, bytes);
}

static void free_lists(tw_group *g) {
    tw__device_transport_free(g->carrier);
    tw__device_lists_free(g->lists_there.context);
    tw__stream_release(g->memory_there);
    free(g->lists.context);
    if (g->lane != NULL)
        tw__stream_unpin(g->lists_memory);
    else
        free(g->lists_memory);
}

static int open_workspace(tw_group *g) {
    g->workspace = step_memory(g, &g->ways, g->buckets, g->nbuckets);
    g->host_memory = tw__reserve(g->workspace.host);
    g->members = calloc((size_t)g->widest, sizeof *g->members);
    g->segments = calloc(2 * (size_t)g->widest, sizeof *g->segments);
    g->owners = calloc(2 * (size_t)g->widest, sizeof *g->owners);
    g->worker.queue = calloc((size_t)g->ntensors, sizeof *g->worker.queue);
    g->broken_text = calloc(1, TW__TEXT);
    g->scratch = tw__alloc(sizeof(float) * (size_t)TW__BLOCK);
    if (g->host_memory == NULL || g->members == NULL || g->segments == NULL || g->owners == NULL ||
        g->worker.queue == NULL || g->broken_text == NULL || g->scratch == NULL)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes of workspace are not to be had",
                        g->workspace.host);
    TW_TRY(open_lists(g));
    return g->resident ? open_lists_there(g) : TW_OK;
}

static int open_all(tw_group *g) {
    TW_TRY(open_lane(g));
    TW_TRY(open_buckets(g));
    TW_TRY(open_workspace(g));
    for (int t = 0; t < g->ntensors; t++)
        TW_TRY(open_tensor(g, &g->tensors[t]));
    tw__auto_plan(g);
    return TW_OK;
}

int tw_group_open(tw_group *g) {
    TW_REQUIRE(g, "group");
    if (g->opened)
        return tw__fail(TW_ERR_STATE, "the group is open already, or failed to open");
    if (g->ntensors == 0)
        return tw__fail(TW_ERR_STATE, "the group has no tensors; add one with tw_group_add");
    g->opened = 1;
    g->broken = TW_ERR_STATE; /* until all went well */
    TW_TRY(tw__agree_params(g));
    TW_TRY(tw__auto_open(g));
    TW_TRY(tw__agree_error(g, open_all(g)));
    g->broken = TW_OK;
    return TW_OK;
}

/* ---- free */

static void free_tensor(tw__tensor *t) {
    tw_selector_free(t->selector);
    if (tw__on_gpu(t)) {
        tw__stream_release(t->result.idx);
        tw__stream_release(t->result.val);
        tw__stream_unpin(t->dense_grad);
        tw__stream_unpin(t->dense_out);
        tw__stream_forget(t->ready);
    } else {
        free(t->result.idx);
        free(t->result.val);
        free(t->dense_out);
    }
}

void tw_group_free(tw_group *g) {
    if (g == NULL)
        return;
    tw__background_end(g);
    for (int t = 0; t < g->ntensors; t++)
        free_tensor(&g->tensors[t]);
    free(g->buckets);
    free(g->tensors);
    free(g->agree);
    free(g->host_memory);
    free_lists(g);
    tw__stream_free(g->lane);
    free(g->members);
    free(g->segments);
    free(g->owners);
    free(g->worker.queue);
    free(g->broken_text);
    free(g->scratch);
    tw__transport_release(g->transport);
    free(g);
}

/* ---- for the other calls */

int tw__group_check_open(const tw_group *g) {
    if (!g->opened)
        return tw__fail(TW_ERR_STATE, "the group is not open; call tw_group_open first");
    if (g->scratch == NULL || g->broken_text == NULL)
        return tw__fail(TW_ERR_STATE, "the group failed to open and can only be freed");
    return TW_OK;
}

/* What can still be asked of a broken group. */
static int check_readable(const tw_group *g, int tensor) {
    TW_TRY(tw__group_check_open(g));
    if (tensor < 0 || tensor >= g->ntensors)
        return tw__fail(TW_ERR_INDEX, "tensor: %d; accepted is 0 .. %d", tensor, g->ntensors - 1);
    return TW_OK;
}

int tw__group_check(const tw_group *g, int tensor) {
    TW_TRY(check_readable(g, tensor));
    if (g->broken != TW_OK)
        return tw__fail(g->broken, "the group is broken and can only be freed: %s",
                        g->broken_text[0] != '\0' ? g->broken_text : "it failed to open");
    return TW_OK;
}

void tw__group_break(tw_group *g, int error) {
    snprintf(g->broken_text, TW__TEXT, "%s", tw_last_error());
    g->broken = error;
    (void)tw__transport_give_up(g->transport, error);
}

void tw__group_mark(tw_group *g, int tensor) {
    tw__tensor *t = &g->tensors[tensor];
    if (tw__on_gpu(t))
        t->marked = tw__stream_mark(g->lane, t->params.stream, &t->ready);
}

int tw__group_check_idle(tw_group *g, int tensor) {
    TW_TRY(check_readable(g, tensor));
    if (tw__background_busy(g, tensor))
        return tw__fail(TW_ERR_STATE, "tensor %d is under way; call tw_allreduce_wait first",
                        tensor);
    return TW_OK;
}

int tw_group_result(tw_group *g, int tensor, tw_sparse *result) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(result, "result");
    TW_TRY(tw__group_check_idle(g, tensor));
    const tw__tensor *t = &g->tensors[tensor];
    if (!t->has_result)
        return tw__fail(TW_ERR_STATE,
                        "tensor %d has no sparse result: there was no step yet, or the last one "
                        "failed or was dense",
                        tensor);
    *result = (tw_sparse){t->result.count, t->result.idx, t->result.val};
    return TW_OK;
}

int tw_group_info(tw_group *g, int tensor, tw_step_info *info) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(info, "info");
    TW_TRY(tw__group_check_idle(g, tensor));
    *info = g->tensors[tensor].info;
    if (info->exchange == NULL)
        info->exchange = g->params.exchange;
    if (info->wire == NULL)
        info->wire = g->params.wire;
    return TW_OK;
}

int tw_group_get_residual(tw_group *g, int tensor, float *residual) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(residual, "residual");
    TW_TRY(tw__group_check_idle(g, tensor));
    if (g->tensors[tensor].selector != NULL)
        return tw_selector_get_residual(g->tensors[tensor].selector, residual);
    memset(residual, 0, sizeof(float) * (size_t)g->tensors[tensor].n);
    return TW_OK;
}
