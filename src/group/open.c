/* open.c - a group comes to life: buckets, memory, all of it or nothing on every rank; and its end
 *
 * Opening compares parameters over all ranks, then takes all memory, then lets all ranks know whether
 * everyone got it. */
#include "group/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- buckets: neighbours, as long as they fit */

/* Until their size is chosen there is one. */
static int count_buckets(const tw_group *g, tw__bucket *buckets, int *widest) {
    int count = 0, first = 0;
    int64_t elements = 0, most = g->params.bucket > 0 ? g->params.bucket : INT32_MAX;
    *widest = 1;
    for (int t = 0; t <= g->ntensors; t++) {
        int full = t == g->ntensors || elements + g->tensors[t].n > most;
        if (full && t > first) {
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

#define CACHE_LINE ((size_t)64)

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static tw__workspace step_memory(const tw_group *g, const tw__plans *plans,
                                 const tw__bucket *buckets, int nbuckets) {
    tw__workspace most = {0};
    for (int b = 0; b < nbuckets; b++)
        for (int p = 0; p < plans->count; p++) {
            tw__workspace one =
                tw__allreduce_memory(g, &plans->at[p], buckets[b].first, buckets[b].count);
            most.host = larger(most.host, one.host);
            for (int where = 0; where < 2; where++)
                most.lists[where] = larger(most.lists[where], one.lists[where]);
        }
    return most;
}

/* Results of all tensors on a backend lie end to end. Indices begin on a cache line, and so do values:
 * each take so many bytes. */
static int64_t result_entries(const tw_group *g, const tw__plans *plans, const tw__tensor *t) {
    int64_t now = t->has_result ? t->result.count : 0, most = tw__allreduce_applied(g, plans, t);
    return now > most ? now : most;
}

static size_t result_half(const tw_group *g, const tw__plans *plans, const tw__tensor *t) {
    size_t bytes = sizeof(float) * (size_t)result_entries(g, plans, t);
    return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static size_t result_memory(const tw_group *g, const tw__plans *plans, const tw__backend *backend) {
    size_t bytes = 0;
    for (int t = 0; t < g->ntensors; t++)
        if (g->tensors[t].backend == backend)
            bytes += 2 * result_half(g, plans, &g->tensors[t]);
    return bytes;
}

/* Where a tensor's result lies in the new memory, the next one behind it. */
static tw__entries place_result(const tw_group *g, const tw__tensor *t, char **at) {
    size_t half = result_half(g, &g->plans, t);
    tw__entries place = {.cap = result_entries(g, &g->plans, t),
                         .count = t->result.count,
                         .idx = (void *)*at,
                         .val = (void *)(*at + half)};
    *at += 2 * half;
    return place;
}

static int copy_results(tw_group *g, const tw__backend *backend, char *at) {
    for (int i = 0; i < g->ntensors; i++) {
        const tw__tensor *t = &g->tensors[i];
        size_t bytes = t->has_result ? sizeof(float) * (size_t)t->result.count : 0;
        if (t->backend != backend)
            continue;
        tw__entries to = place_result(g, t, &at);
        if (bytes > 0) {
            TW_TRY(backend->copy(g->stream, to.idx, t->result.idx, bytes));
            TW_TRY(backend->copy(g->stream, to.val, t->result.val, bytes));
        }
    }
    return backend->stream_wait(g->stream);
}

/* The results that there are move to the new memory. After an error they are where they were. */
static int open_results(tw_group *g, const tw__backend *backend, void **memory) {
    size_t bytes = result_memory(g, &g->plans, backend);
    void *fresh = NULL;
    if (bytes == 0)
        return TW_OK;
    int error = backend->alloc(g->stream, &fresh, bytes);
    if (error == TW_OK && *memory != NULL)
        error = copy_results(g, backend, fresh);
    if (error != TW_OK) {
        backend->free(g->stream, fresh);
        return error;
    }
    char *at = fresh;
    for (int i = 0; i < g->ntensors; i++)
        if (g->tensors[i].backend == backend)
            g->tensors[i].result = place_result(g, &g->tensors[i], &at);
    assert(at == (char *)fresh + bytes);
    backend->free(g->stream, *memory);
    *memory = fresh;
    return TW_OK;
}

/* Whether a tensor with a selector may travel whole. */
static int dense_at_times(const tw_group *g, const tw__plans *plans) {
    int any = 0;
    for (int p = 0; p < plans->count; p++)
        any |= plans->at[p].exchange == &tw__exchange_dense;
    return g->automatic && any;
}

/* Whether a dense tensor travels through copies in the host's memory. */
static int is_staged(const tw_group *g, const tw__tensor *t) {
    return tw__group_is_dense(g) && !g->resident && t->backend->resident_k > 0;
}

/* Tensors that are dense at times have room for sums that must not overwrite their gradient yet. */
static size_t dense_memory(const tw_group *g, const tw__plans *plans) {
    size_t bytes = 0;
    for (int t = 0; t < g->ntensors; t++) {
        size_t n = (size_t)g->tensors[t].n;
        if (dense_at_times(g, plans))
            bytes += tw__footprint(n * sizeof(float));
        if (is_staged(g, &g->tensors[t]))
            bytes += n * (g->tensors[t].params.type == TW_F32 ? 8 : 6);
    }
    return bytes;
}

static int64_t elements_of(const tw_group *g) {
    int64_t elements = 0;
    for (int t = 0; t < g->ntensors; t++)
        elements += g->tensors[t].n;
    return elements;
}

/* Scratch that all selectors together may take: a quarter of a byte for each element. */
static size_t batch_scratch(const tw_group *g) {
    return smaller((size_t)elements_of(g) / 4, (size_t)4 << 20);
}

/* Bytes of all selectors, without scratch; and of the scratch that they share: enough for any of
 * them, and for all together if that is not much. */
static int selectors_memory(const tw_group *g, tw_memory *memory, size_t *scratch) {
    size_t largest = 0, all = 0;
    *memory = (tw_memory){0};
    for (int t = 0; t < g->ntensors && !tw__group_is_dense(g); t++) {
        tw_memory one;
        size_t bytes;
        const tw__piece_table *table = g->tensors[t].table;
        TW_TRY(tw__selector_memory(g->tensors[t].n, table != NULL ? table->pieces.count : 1,
                                   &g->tensors[t].params, &one, &bytes));
        memory->residual += one.residual;
        memory->moments += one.moments;
        memory->undo += one.undo;
        memory->workspace += one.workspace;
        largest = larger(largest, bytes);
        all += bytes;
    }
    *scratch = larger(largest, smaller(all, batch_scratch(g)));
    return TW_OK;
}

/* Lists that are summed at a time at most: one of each rank, or of a few messages. */
static int most_runs(const tw_group *g) {
    return g->nranks + 32;
}

/* Entries that a device works on at a time; dense has none. */
static int64_t device_entries(const tw_group *g, const tw__workspace *space) {
    size_t bytes = space->lists[TW__DEVICE_LISTS];
    return tw__group_is_dense(g) ? 1 : (int64_t)(bytes / sizeof(tw__entry));
}

/* With the contexts of list calls, and what moves lists between devices. */
static size_t workspace_bytes(const tw_group *g, const tw__workspace *space) {
    size_t device = space->lists[TW__DEVICE_LISTS];
    size_t bytes = tw__footprint(space->host) + tw__footprint(space->lists[TW__HOST_LISTS]) +
                   tw__backend_cpu.lists_memory(0, most_runs(g));
    if (g->resident)
        bytes += device + g->backend->lists_memory(device_entries(g, space), most_runs(g)) +
                 tw__device_transport_memory(g->transport, device);
    return bytes;
}

/* What each tensor and bucket has, and what the members of a step have. */
static size_t bookkeeping_bytes(const tw_group *g, int widest) {
    size_t tensor = sizeof *g->buckets + sizeof *g->worker.queue;
    size_t member = sizeof *g->members + 2 * (sizeof *g->segments + sizeof *g->owners);
    if (g->automatic)
        tensor += sizeof *g->tuners;
    size_t elastic = tw__group_is_elastic(g)
                         ? sizeof *g->elastic.doubt + (size_t)g->nranks * sizeof(tw__norm) +
                               (size_t)widest * sizeof *g->elastic.members
                         : 0;
    return elastic + (size_t)g->ntensors * tensor + (size_t)widest * member +
           TW__FAILURES * sizeof *g->worker.failures + TW__TEXT;
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
    size_t scratch;
    tw__plans plans;
    int nbuckets = count_buckets(g, buckets, &widest);
    tw__auto_plans(g, &plans);
    tw__workspace space = step_memory(g, &plans, buckets, nbuckets);
    free(buckets);
    TW_TRY(selectors_memory(g, memory, &scratch));
    memory->workspace += workspace_bytes(g, &space) + bookkeeping_bytes(g, widest) +
                         tw__footprint(scratch) + result_memory(g, &plans, g->backend) +
                         tw__footprint(tw__agree_memory(g->nranks)) + dense_memory(g, &plans);
    if (g->backend != &tw__backend_cpu)
        memory->workspace += result_memory(g, &plans, &tw__backend_cpu);
    memory->total = memory->residual + memory->moments + memory->undo + memory->workspace;
    return TW_OK;
}

/* ---- open */

static int open_staging(tw_group *g, tw__tensor *t) {
    size_t element = t->params.type == TW_F32 ? 4 : 2;
    t->staged_grad = t->backend->host_alloc(g->stream, element * (size_t)t->n);
    t->staged_out = t->backend->host_alloc(g->stream, sizeof(float) * (size_t)t->n);
    if (t->staged_grad == NULL || t->staged_out == NULL)
        return tw__fail(TW_ERR_MEMORY, "no host memory for %lld dense elements", (long long)t->n);
    return TW_OK;
}

static int open_tensor(tw_group *g, tw__tensor *t) {
    assert(t->selector == NULL && t->staged_out == NULL);
    if (tw__group_is_dense(g))
        return is_staged(g, t) ? open_staging(g, t) : TW_OK;
    TW_TRY(tw__selector_create(&t->selector, t->n, t->table != NULL ? &t->table->pieces : NULL,
                               &t->params, g->stream, &g->scratch));
    if (dense_at_times(g, &g->plans) &&
        (t->staged_out = t->backend->host_alloc(g->stream, sizeof(float) * (size_t)t->n)) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %lld dense sums", (long long)t->n);
    return TW_OK;
}

static int open_tensors(tw_group *g) {
    tw_memory memory;
    size_t bytes;
    TW_TRY(selectors_memory(g, &memory, &bytes));
    g->scratch = (tw__scratch){tw__reserve(bytes), bytes, elements_of(g)};
    if (g->scratch.memory == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes of scratch", bytes);
    memset(g->scratch.memory, 0, smaller(bytes, batch_scratch(g))); /* steps touch no new page */
    for (int t = 0; t < g->ntensors; t++)
        TW_TRY(open_tensor(g, &g->tensors[t]));
    TW_TRY(open_results(g, g->backend, &g->results[0]));
    return g->backend == &tw__backend_cpu ? TW_OK
                                          : open_results(g, &tw__backend_cpu, &g->results[1]);
}

static int open_buckets(tw_group *g) {
    g->buckets = calloc((size_t)g->ntensors, sizeof *g->buckets);
    if (g->buckets == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d buckets", g->ntensors);
    g->nbuckets = count_buckets(g, g->buckets, &g->widest);
    assert(g->nbuckets >= 1 && g->widest >= 1 && g->widest <= g->ntensors);
    for (int b = 0; b < g->nbuckets; b++)
        for (int t = 0; t < g->buckets[b].count; t++)
            g->tensors[g->buckets[b].first + t].bucket = b;
    if (g->automatic && (g->tuners = calloc((size_t)g->ntensors, sizeof *g->tuners)) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to choose for %d tensors", g->ntensors);
    return TW_OK;
}

/* The host's lists: where a device reads and writes them too. */
static int open_host_lists(tw_group *g) {
    tw__list_memory *lists = &g->lists[TW__HOST_LISTS];
    size_t bytes = g->workspace.lists[TW__HOST_LISTS];
    lists->backend = &tw__backend_cpu;
    lists->memory = g->backend->host_alloc(g->stream, bytes);
    if (lists->memory == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes of entries", bytes);
    return tw__backend_cpu.lists_create(&lists->context, NULL, 0, most_runs(g));
}

/* The caller's functions must be for the group's device. */
static int check_lent(const tw_group *g) {
    const tw__lent *lent = tw__transport_lent(g->transport);
    if (lent == NULL || lent->calls.check == NULL)
        return TW_OK;
    tw__transport_clear_error();
    int error = lent->calls.check(lent->context, g->tensors[g->leading].params.ordinal);
    if (error >= 0)
        return TW_OK;
    return tw__fail(TW_ERR_DEVICE, "tw_transport_set_device: %s", tw__transport_error_text(error));
}

static int open_device_lists(tw_group *g) {
    assert(g->backend->resident_k > 0 && !g->automatic);
    TW_TRY(check_lent(g));
    tw__list_memory *lists = &g->lists[TW__DEVICE_LISTS];
    size_t bytes = g->workspace.lists[TW__DEVICE_LISTS];
    lists->backend = g->backend;
    TW_TRY(g->backend->alloc(g->stream, &lists->memory, bytes));
    TW_TRY(g->backend->lists_create(&lists->context, g->stream, device_entries(g, &g->workspace),
                                    most_runs(g)));
    return tw__device_transport_create(&g->device_transport, g->transport, g->backend, g->stream,
                                       bytes);
}

static void free_lists(tw_group *g) {
    tw__device_transport_free(g->device_transport);
    g->device_transport = NULL;
    if (g->lists[TW__DEVICE_LISTS].backend != NULL) {
        g->backend->lists_free(g->lists[TW__DEVICE_LISTS].context);
        g->backend->free(g->stream, g->lists[TW__DEVICE_LISTS].memory);
    }
    if (g->lists[TW__HOST_LISTS].backend != NULL) {
        tw__backend_cpu.lists_free(g->lists[TW__HOST_LISTS].context);
        g->backend->host_free(g->stream, g->lists[TW__HOST_LISTS].memory);
    }
    memset(g->lists, 0, sizeof g->lists);
}

static int open_workspace(tw_group *g) {
    g->workspace = step_memory(g, &g->plans, g->buckets, g->nbuckets);
    g->host_memory = tw__reserve(g->workspace.host);
    g->members = calloc((size_t)g->widest, sizeof *g->members);
    if (tw__group_is_elastic(g))
        g->elastic.members = calloc((size_t)g->widest, sizeof *g->elastic.members);
    g->segments = calloc(2 * (size_t)g->widest, sizeof *g->segments);
    g->owners = calloc(2 * (size_t)g->widest, sizeof *g->owners);
    if (g->host_memory == NULL || g->members == NULL ||
        (tw__group_is_elastic(g) && g->elastic.members == NULL) || g->segments == NULL ||
        g->owners == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes of workspace", g->workspace.host);
    TW_TRY(open_host_lists(g));
    return g->resident ? open_device_lists(g) : TW_OK;
}

/* What does not depend on the number of ranks. */
static int open_bookkeeping(tw_group *g) {
    g->worker.queue = calloc((size_t)g->ntensors, sizeof *g->worker.queue);
    g->worker.failures = calloc(TW__FAILURES, sizeof *g->worker.failures);
    if (g->worker.queue == NULL || g->worker.failures == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d tensors", g->ntensors);
    return TW_OK;
}

/* A wait for the device ends at the deadline, with the group, or with another rank's failure: unless
 * only this rank is left in the step, which then ends whole. */
static int check_wait(void *group, int first) {
    tw_group *g = group;
    if (first)
        g->device_deadline = (tw__deadline){0};
    return tw__transport_check_device(g->transport, &g->device_deadline, g->is_ending);
}

/* Gives back the room for tensors that will not be added. */
static int trim(tw_group *g) {
    tw__tensor *tensors = realloc(g->tensors, sizeof *tensors * (size_t)g->ntensors);
    if (tensors == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d tensors", g->ntensors);
    g->tensors = tensors;
    g->room = g->ntensors;
    return TW_OK;
}

static int open_all(tw_group *g) {
    TW_TRY(trim(g));
    int ordinal = g->tensors[g->leading].params.ordinal;
    TW_TRY(g->backend->stream_create(&g->stream, ordinal, check_wait, g));
    TW_TRY(open_bookkeeping(g));
    TW_TRY(open_buckets(g));
    TW_TRY(open_workspace(g));
    TW_TRY(open_tensors(g));
    tw__auto_predict(g);
    g->elastic.built = 1;
    return TW_OK;
}

/* All that ranks do together when a group opens, for the first time or with other ranks. What has opened
 * once can be opened anew as often as it takes. */
static int open_together(tw_group *g, int (*open_local)(tw_group *)) {
    TW_TRY(tw__agree_params(g));
    TW_TRY(tw__auto_open(g));
    int error = open_local(g);
    if (error != TW_OK && !g->elastic.built)
        g->elastic.damaged = 1; /* only a part is there */
    return tw__agree_error(g, error);
}

int tw_group_open(tw_group *g) {
    TW_REQUIRE(g, "group");
    if (g->opened)
        return tw__fail(TW_ERR_STATE, "the group is open already, or failed to open");
    if (g->ntensors == 0)
        return tw__fail(TW_ERR_STATE, "the group has no tensors; add one with tw_group_add");
    g->opened = 1;
    g->broken = TW_ERR_STATE; /* until all went well */
    int error = open_together(g, open_all);
    if (error == TW_OK && tw__transport_is_new(g->transport))
        error = tw__group_share_steps(g, 1);
    if (error != TW_OK) {
        snprintf(g->broken_text, TW__TEXT, "%s", tw_last_error());
        g->broken = error;
        if (tw__transport_is_new(g->transport))
            tw__group_withdraw(g);
        return tw__fail(error, "%s", g->broken_text);
    }
    tw__transport_set_known(g->transport);
    g->broken = TW_OK;
    return TW_OK;
}

/* ---- open anew, with other ranks */

static void free_workspace(tw_group *g) {
    void **const parts[] = {(void **)&g->buckets,  (void **)&g->tuners,
                            (void **)&g->agree,    &g->host_memory,
                            (void **)&g->members,  (void **)&g->elastic.members,
                            (void **)&g->segments, (void **)&g->owners};
    free_lists(g);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        free(*parts[i]);
        *parts[i] = NULL;
    }
    g->nbuckets = 0;
}

/* Results stay where they are if there is room for those of the new ranks. */
static int renew_results(tw_group *g, const tw__backend *backend, void **memory) {
    int enough = 1;
    for (int t = 0; t < g->ntensors; t++)
        if (g->tensors[t].backend == backend)
            enough &=
                tw__allreduce_applied(g, &g->plans, &g->tensors[t]) <= g->tensors[t].result.cap;
    return enough ? TW_OK : open_results(g, backend, memory);
}

static int renew_tensor(tw_group *g, tw__tensor *t) {
    t->threshold = 0;
    t->leader = 0;
    if (t->selector == NULL)
        return TW_OK;
    if (dense_at_times(g, &g->plans) && t->staged_out == NULL &&
        (t->staged_out = t->backend->host_alloc(g->stream, sizeof(float) * (size_t)t->n)) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %lld dense sums", (long long)t->n);
    return tw__selector_forget(t->selector);
}

static int reopen_all(tw_group *g) {
    TW_TRY(open_buckets(g));
    TW_TRY(open_workspace(g));
    for (int t = 0; t < g->ntensors; t++)
        TW_TRY(renew_tensor(g, &g->tensors[t]));
    TW_TRY(renew_results(g, g->backend, &g->results[0]));
    if (g->backend != &tw__backend_cpu)
        TW_TRY(renew_results(g, &tw__backend_cpu, &g->results[1]));
    tw__auto_predict(g);
    return TW_OK;
}

int tw__group_reopen(tw_group *g, int joined) {
    free_workspace(g);
    (void)tw_transport_info(g->transport, NULL, &g->rank, &g->nranks, NULL);
    g->params.bucket = g->bucket_asked;
    g->worker.cursor = 0;
    if ((g->agree = tw__reserve(tw__agree_memory(g->nranks))) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to agree with %d ranks", g->nranks);
    tw__transport_set_checksum(g->transport, g->params.checksum == TW_CHECKSUM_ON);
    TW_TRY(open_together(g, g->elastic.built ? reopen_all : open_all));
    if (joined > 0)
        TW_TRY(tw__group_share_steps(g, 0));
    g->broken_text[0] = '\0';
    g->broken = TW_OK;
    return TW_OK;
}

/* ---- free */

static void free_tensor(tw_group *g, tw__tensor *t) {
    const tw__backend *backend = t->backend;
    tw_selector_free(t->selector);
    free(t->table);
    backend->host_free(g->stream, t->staged_grad);
    backend->host_free(g->stream, t->staged_out);
    backend->event_free(g->stream, t->ready);
}

void tw_group_free(tw_group *g) {
    if (g == NULL)
        return;
    tw__background_end(g);
    for (int t = 0; t < g->ntensors; t++)
        free_tensor(g, &g->tensors[t]);
    free_workspace(g);
    if (g->ntensors > 0)
        g->backend->free(g->stream, g->results[0]);
    tw__backend_cpu.free(NULL, g->results[1]);
    if (g->stream != NULL)
        g->backend->stream_free(g->stream);
    tw__transport_release(g->transport);
    void *const parts[] = {
        g->tensors, g->worker.failures, g->worker.queue,  g->broken_text,    g->scratch.memory,
        g->common,  g->elastic.doubt,   g->elastic.norms, g->elastic.before, g->elastic.lost,
        g};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]);
}
