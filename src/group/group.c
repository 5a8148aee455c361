/* group.c - a group's parameters and tensors, the checks before its calls, and information
 *
 * Everything here is local: ranks meet in open.c. */
#include "group/step.h"
#include "base/clock.h"
#include "base/pool.h"
#include "select/methods.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#define DEFAULT_TIMEOUT 300.0
#define DEFAULT_BUCKET ((int64_t)4 << 20)

/* ---- parameters */

/* With TW_COUNT_PER_RANK: as many entries as cost what k of allgather cost. Where a step applies what
 * each rank selected, k is per rank already. */
static void count_per_rank(const tw_group *g, tw__tensor *t) {
    tw_select_params *p = &t->params;
    double n = (double)t->n, k = (double)tw__k_at(p, t->n, INT64_MAX), ranks = (double)g->nranks;
    double own = g->exchange->applied == NULL ? g->exchange->cost(n, k, ranks).most : 0.0;
    double factor = own > 0.0 ? tw__exchange_allgather.cost(n, k, ranks).most / own : 1.0;
    t->per_rank = factor;
    if (p->k > 0)
        p->k = (int64_t)fmax(1.0, fmin(factor * k, n));
    else
        p->density = fmin(factor * p->density, 1.0);
    p->warmup_density = fmin(factor * p->warmup_density, 1.0);
}

static int check_params(const tw_group_params *p) {
    TW_TRY(tw__check_choice("result", p->result, TW_MEAN_OF_SENDERS));
    TW_TRY(tw__check_choice("global", p->global, TW_GLOBAL_REUSE));
    TW_TRY(tw__check_choice("count", p->count, TW_COUNT_PER_RANK));
    TW_TRY(tw__check_choice("checksum", p->checksum, TW_CHECKSUM_OFF));
    TW_TRY(tw__check_choice("membership", p->membership, TW_MEMBERSHIP_ELASTIC));
    if (p->membership == TW_MEMBERSHIP_ELASTIC && p->count == TW_COUNT_PER_RANK)
        return tw__fail(TW_ERR_PARAM, "membership: elastic, but TW_COUNT_PER_RANK needs a fixed "
                                      "number of ranks");
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

/* The plan, or that it is to be chosen. The caller's strings need not outlive the call. */
static int resolve_plan(tw_group *g, const tw_group_params *params) {
    const char *exchange = params->exchange != NULL ? params->exchange : g->scheme->exchange;
    TW_TRY(tw__exchange_find(exchange, &g->exchange));
    int any = g->exchange == NULL;
    TW_TRY(tw__wire_name_find(params->wire != NULL ? params->wire : "raw", &g->wire));
    g->automatic = any || strcmp(g->scheme->exchange, TW__AUTO) == 0;
    g->any_wire = g->automatic && params->wire == NULL;
    g->params.exchange = any ? TW__AUTO : g->exchange->name;
    if (params->result == TW_MEAN_OF_SENDERS &&
        (g->automatic ||
         (g->exchange != &tw__exchange_allgather && g->exchange != &tw__exchange_dense)))
        return tw__fail(TW_ERR_PARAM,
                        "result: TW_MEAN_OF_SENDERS needs exchange allgather or dense, which know "
                        "who sent an entry; not %s",
                        g->params.exchange);
    if (g->automatic && params->count != TW_COUNT_OF_SCHEME)
        return tw__fail(TW_ERR_PARAM, "count: TW_COUNT_PER_RANK needs a fixed exchange, not auto");
    g->params.wire = g->any_wire ? TW__AUTO : g->wire != NULL ? g->wire->name : "raw";
    return TW_OK;
}

int tw__group_is_dense(const tw_group *g) {
    return !g->automatic && g->exchange == &tw__exchange_dense;
}

static int resolve(tw_group *g, const tw_group_params *params) {
    const tw__kernels *kernels = NULL;
    g->params = *params;
    TW_TRY(tw__kernels_choose(&kernels)); /* or no tensor could be added */
    TW_TRY(check_params(params));
    TW_TRY(tw__scheme_find(params->scheme != NULL ? params->scheme : "oktopk", &g->scheme));
    TW_TRY(resolve_plan(g, params));
    g->params.scheme = g->scheme->name;
    if (params->timeout == 0.0)
        g->params.timeout = DEFAULT_TIMEOUT;
    if (params->bucket == 0 && !g->automatic)
        g->params.bucket = DEFAULT_BUCKET;
    g->bucket_asked = g->params.bucket;
    const tw__method *method = NULL;
    const char *name = params->select.method != NULL ? params->select.method : g->scheme->select;
    TW_TRY(tw__method_find(name, &method));
    g->params.select.method = method->name;
    return tw__params_check(&params->select);
}

/* ---- create and add */

/* What is needed when something fails, be it the opening. */
static int create_broken(tw_group *g) {
    g->broken_text = calloc(1, TW__TEXT);
    int complete = g->broken_text != NULL;
    if (tw__group_is_elastic(g)) {
        g->elastic.doubt = calloc(1, sizeof *g->elastic.doubt);
        g->elastic.norms = calloc((size_t)g->nranks, sizeof *g->elastic.norms);
        complete &= g->elastic.doubt != NULL && g->elastic.norms != NULL;
        for (int r = 0; r < g->nranks && complete; r++)
            g->elastic.norms[r].norm = -1.0;
    }
    return complete ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory for a group");
}

/* Another for each group. Not secret: without the system's random numbers a clock and an address do. */
static uint64_t choose_key(const tw_group *g) {
    uint64_t key = 0;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) == sizeof key)
        return key;
    return tw__mix((uint64_t)tw__clock(), (uint64_t)(uintptr_t)g);
}

int tw_group_create(tw_group **group, tw_transport *transport, const tw_group_params *params) {
    TW_REQUIRE(group, "group");
    *group = NULL;
    TW_REQUIRE(transport, "transport");
    TW_REQUIRE(params, "params");
    tw_group *g = tw__alloc(sizeof *g);
    if (g == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for a group");
    g->transport = transport;
    g->weight = 1.0;
    g->key = choose_key(g);
    (void)tw_transport_info(transport, NULL, &g->rank, &g->nranks, NULL);
    int error = resolve(g, params);
    if (error == TW_OK && (g->agree = tw__reserve(tw__agree_memory(g->nranks))) == NULL)
        error = tw__fail(TW_ERR_MEMORY, "no memory to agree with %d ranks", g->nranks);
    if (error == TW_OK)
        error = create_broken(g);
    if (error == TW_OK && tw__group_is_elastic(g))
        error = tw__transport_check_elastic(transport);
    if (error == TW_OK)
        error = tw__transport_acquire(transport);
    if (error != TW_OK) {
        void *const parts[] = {g->agree, g->broken_text, g->elastic.doubt, g->elastic.norms, g};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            free(parts[i]);
        return error;
    }
    tw__transport_set_timeout(transport, g->params.timeout);
    tw__transport_set_checksum(transport, g->params.checksum == TW_CHECKSUM_ON);
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

/* Errors: TW_ERR_PARAM for what dense cannot do. */
static int check_dense(const tw_select_params *p) {
    if (p->before == TW_BEFORE_NOTHING)
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "before: with dense nothing comes before the exchange; give "
                                  "scheme \"topka\" and density 1");
}

/* A group uses one device at most, beside the host. */
static int check_device(const tw_group *g, const tw__tensor *t) {
    TW_TRY(t->backend->check_device(t->params.ordinal));
    if (t->backend->resident_k == 0 || g->backend != t->backend)
        return TW_OK;
    int ordinal = g->tensors[g->leading].params.ordinal;
    if (ordinal != t->params.ordinal)
        return tw__fail(TW_ERR_PARAM, "ordinal: %d; tensor %d of this group lies on %s %d",
                        t->params.ordinal, g->leading, t->backend->name, ordinal);
    return TW_OK;
}

/* Whether lists stay in the device's memory: not if they are few, unless the caller lends transfers
 * between devices; nor with `auto`, whose predictions are the CPU's. */
static int stays_on_device(const tw_group *g) {
    if (g->automatic || g->backend->resident_k == 0 || g->on_backend < g->ntensors ||
        !tw__has_backend(g->exchange->backends, g->backend->device) ||
        (g->wire != NULL && !tw__has_backend(g->wire->backends, g->backend->device)))
        return 0;
    return tw__transport_lent(g->transport) != NULL ||
           g->entries >= g->backend->resident_k * g->ntensors;
}

/* A device's backend takes the place of the host's. */
static void append(tw_group *g, const tw__tensor *t) {
    if (g->backend == NULL || (g->backend != t->backend && t->backend->resident_k > 0)) {
        g->backend = t->backend;
        g->leading = g->ntensors;
        g->on_backend = 0;
    }
    g->on_backend += t->backend == g->backend;
    g->entries += tw__k_at(&t->params, t->n, INT64_MAX);
    g->tensors[g->ntensors++] = *t;
    g->resident = stays_on_device(g);
}

static int add(tw_group *g, int64_t n, const tw_select_params *select, int *tensor) {
    if (g->opened)
        return tw__fail(TW_ERR_STATE, "the group is open; add tensors before tw_group_open");
    TW_TRY(make_room(g));
    tw__tensor t = {.n = n, .per_rank = 1.0, .params = select != NULL ? *select : g->params.select};
    if (tw__group_is_dense(g)) {
        TW_TRY(check_dense(&t.params));
        t.params = dense_params(&t.params);
    } else if (t.params.method == NULL)
        t.params.method = g->params.select.method;
    TW_TRY(tw__params_resolve(&t.params, n, &t.method, &t.backend));
    if (g->params.count == TW_COUNT_PER_RANK && !tw__group_is_dense(g))
        count_per_rank(g, &t);
    TW_TRY(check_device(g, &t));
    if (g->automatic && g->exchange == &tw__exchange_dense &&
        !tw__auto_sends_whole(&t.params, t.backend))
        return tw__fail(TW_ERR_PARAM,
                        "exchange: dense goes with scheme \"auto\" on the CPU alone, "
                        "with feedback, and without momentum and AdamW; give scheme \"dense\"");
    if (tensor != NULL)
        *tensor = g->ntensors;
    append(g, &t);
    return TW_OK;
}

int tw_group_add(tw_group *g, int64_t n, const tw_select_params *select, int *tensor) {
    TW_REQUIRE(g, "group");
    return add(g, n, select, tensor);
}

/* Table, starts and pointers in one block. */
static tw__piece_table *create_table(const int64_t *sizes, int npieces) {
    size_t count = (size_t)npieces;
    size_t starts = sizeof(tw__piece_table), grads = starts + (count + 1) * sizeof(int64_t);
    char *block = calloc(1, grads + count * (sizeof(void *) + sizeof(float *)));
    if (block == NULL)
        return NULL;
    int64_t *start = (void *)(block + starts);
    for (int p = 0; p < npieces; p++)
        start[p + 1] = start[p] + sizes[p];
    tw__piece_table *table = (void *)block;
    *table = (tw__piece_table){.pieces = {npieces, start},
                               .grads = (void *)(block + grads),
                               .outs = (void *)(block + grads + count * sizeof(void *))};
    return table;
}

static int check_sizes(const int64_t *sizes, int npieces, int64_t *n) {
    *n = 0;
    if (npieces < 1)
        return tw__fail(TW_ERR_PARAM, "npieces: %d; accepted is 1 and more", npieces);
    for (int p = 0; p < npieces; p++) {
        if (sizes[p] < 1 || sizes[p] > INT32_MAX - *n)
            return tw__fail(TW_ERR_SIZE, "sizes[%d]: %lld; accepted is 1 .. %d, in all pieces", p,
                            (long long)sizes[p], INT32_MAX);
        *n += sizes[p];
    }
    return TW_OK;
}

int tw_group_add_pieces(tw_group *g, const int64_t *sizes, int npieces,
                        const tw_select_params *select, int *tensor) {
    int64_t n;
    TW_REQUIRE(g, "group");
    TW_REQUIRE(sizes, "sizes");
    TW_TRY(check_sizes(sizes, npieces, &n));
    if (g->automatic || tw__group_is_dense(g))
        return tw__fail(TW_ERR_PARAM, "scheme: pieces need a sparse exchange, not dense or auto");
    tw__piece_table *table = create_table(sizes, npieces);
    if (table == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d pieces", npieces);
    int error = add(g, n, select, tensor);
    if (error == TW_OK)
        g->tensors[g->ntensors - 1].table = table;
    else
        free(table);
    return error;
}

/* ---- for the other calls */

int tw__group_check_open(const tw_group *g) {
    if (!g->opened)
        return tw__fail(TW_ERR_STATE, "the group is not open; call tw_group_open first");
    if (g->elastic.built || g->lists[TW__HOST_LISTS].context != NULL)
        return TW_OK;
    if (tw__group_is_elastic(g))
        return tw__fail(g->broken, "the group failed to open; call tw_group_shrink: %s",
                        g->broken_text);
    return tw__fail(TW_ERR_STATE, "the group failed to open and can only be freed");
}

int tw__group_check_settled(const tw_group *g) {
    if (!g->elastic.in_doubt)
        return TW_OK;
    return tw__fail(TW_ERR_STATE, "the last step is in doubt: other ranks may have completed it; "
                                  "call tw_group_shrink first");
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
        return tw__fail(g->broken,
                        tw__group_is_elastic(g) ? "the group is broken; call tw_group_shrink: %s"
                                                : "the group is broken and can only be freed: %s",
                        g->broken_text[0] != '\0' ? g->broken_text : "it failed to open");
    return TW_OK;
}

void tw__group_break(tw_group *g, int error) {
    assert(error != TW_OK && g->broken_text != NULL);
    snprintf(g->broken_text, TW__TEXT, "%s", tw_last_error());
    g->broken = error;
    (void)tw__transport_abort(g->transport, error);
}

int tw__group_check_pieces(const tw_group *g, int tensor, int npieces) {
    const tw__piece_table *table = g->tensors[tensor].table;
    int own = table != NULL ? table->pieces.count : 1;
    if (npieces == own)
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "tensor %d has %d pieces, %d were given", tensor, own, npieces);
}

void tw__group_begin_tensor(tw_group *g, int tensor, const void *const *grads, float *const *outs) {
    tw__tensor *t = &g->tensors[tensor];
    tw__piece_table *table = t->table;
    assert(!t->open);
    if (table == NULL) {
        t->grad = grads[0];
        t->out = outs != NULL ? outs[0] : NULL;
    } else {
        size_t bytes = sizeof(void *) * (size_t)table->pieces.count;
        memcpy(table->grads, grads, bytes);
        table->has_outs = outs != NULL;
        if (outs != NULL)
            memcpy(table->outs, outs, bytes);
    }
    t->marked = t->backend->event_record(g->stream, t->params.stream, &t->ready);
}

int tw__group_check_idle(tw_group *g, int tensor) {
    TW_TRY(check_readable(g, tensor));
    if (tw__background_busy(g, tensor))
        return tw__fail(TW_ERR_STATE, "tensor %d is under way; call tw_allreduce_wait first",
                        tensor);
    return TW_OK;
}

/* ---- rate and density of the next steps */

/* Calls `set` for the tensor, or with TW_ALL for each that is `meant`. Either all change or none. */
static int set_each(tw_group *g, int tensor, double value,
                    int (*meant)(const tw_select_params *params),
                    int (*check)(const tw__tensor *t, double value),
                    int (*set)(const tw__tensor *t, double value)) {
    int first = tensor == TW_ALL ? 0 : tensor, end = tensor == TW_ALL ? g->ntensors : tensor + 1;
    int count = 0;
    TW_TRY(tw__group_check(g, first));
    if (tw__background_busy(g, tensor))
        return tw__fail(TW_ERR_STATE, "tensors are under way; call tw_allreduce_wait first");
    for (int t = first; t < end; t++) {
        if (tensor == TW_ALL && !meant(&g->tensors[t].params))
            continue;
        TW_TRY(check(&g->tensors[t], value));
        count++;
    }
    if (count == 0)
        return check(&g->tensors[0], value); /* says what is missing */
    for (int t = first; t < end; t++)
        if (meant(&g->tensors[t].params))
            TW_TRY(set(&g->tensors[t], value));
    return TW_OK;
}

static int has_adamw(const tw_select_params *p) {
    return p->before == TW_BEFORE_ADAMW;
}

static int check_rate(const tw__tensor *t, double rate) {
    return tw__check_rate(&t->params, rate);
}

static int set_rate(const tw__tensor *t, double rate) {
    return tw_selector_set_rate(t->selector, rate);
}

int tw_group_set_rate(tw_group *g, int tensor, double rate) {
    TW_REQUIRE(g, "group");
    return set_each(g, tensor, rate, has_adamw, check_rate, set_rate);
}

static int has_callers_density(const tw_select_params *p) {
    return p->warmup == TW_WARMUP_CALLER;
}

static int check_density(const tw__tensor *t, double density) {
    int64_t k = 0;
    return tw__k_from_caller(&t->params, t->n, density, t->per_rank, &k);
}

static int set_density(const tw__tensor *t, double density) {
    return tw__selector_set_density(t->selector, density, t->per_rank);
}

int tw_group_set_density(tw_group *g, int tensor, double density) {
    TW_REQUIRE(g, "group");
    return set_each(g, tensor, density, has_callers_density, check_density, set_density);
}

int tw_group_set_weight(tw_group *g, double weight) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, 0));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; call tw_allreduce_wait first");
    if (!tw__is_weight(weight))
        return tw__fail(TW_ERR_PARAM, "weight: %g; accepted is 1e-30 .. 1e30", weight);
    g->weight = weight;
    return TW_OK;
}

/* It only grows: steps with as many values as before take no memory. */
static int make_room_for_common(tw_group *g, int count) {
    if (count <= g->common_room)
        return TW_OK;
    double *memory = realloc(g->common, sizeof *memory * (size_t)count);
    if (memory == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d common values", count);
    g->common = memory;
    g->common_room = count;
    return TW_OK;
}

int tw_group_set_common(tw_group *g, const double *values, int count) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, 0));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; call tw_allreduce_wait first");
    if (count < 0 || count > TW_MOST_COMMON)
        return tw__fail(TW_ERR_PARAM, "count: %d; accepted is 0 .. %d", count, TW_MOST_COMMON);
    if (count > 0) {
        TW_REQUIRE(values, "values");
        TW_TRY(make_room_for_common(g, count));
        memcpy(g->common, values, sizeof *values * (size_t)count);
    }
    g->ncommon = count;
    g->common_hash = (uint64_t)count;
    for (int i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        g->common_hash = tw__mix(g->common_hash, bits);
    }
    return TW_OK;
}

/* ---- information */

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
    *result = (tw_sparse){.count = t->result.count, .idx = t->result.idx, .val = t->result.val};
    return TW_OK;
}

int tw_group_subtract(tw_group *g, int tensor, float *const *params, int npieces) {
    tw_sparse result;
    TW_REQUIRE(params, "params");
    TW_TRY(tw_group_result(g, tensor, &result));
    TW_TRY(tw__group_check_pieces(g, tensor, npieces));
    const tw__tensor *t = &g->tensors[tensor];
    for (int p = 0; p < npieces; p++)
        TW_REQUIRE(params[p], "params");
    return t->backend->subtract(t->selector->state, &result, params);
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
    if (tw__background_busy(g, TW_ALL)) /* an elastic group's step may read all residuals */
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait "
                                      "before tw_group_get_residual");
    TW_TRY(tw__group_check_settled(g));
    if (g->tensors[tensor].selector != NULL)
        return tw_selector_get_residual(g->tensors[tensor].selector, residual);
    memset(residual, 0, sizeof(float) * (size_t)g->tensors[tensor].n);
    return TW_OK;
}
