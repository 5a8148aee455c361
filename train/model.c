/* model.c - creates models from their rows and runs their passes; see model.h
 *
 *     spec -> complete (defaults) -> build, measuring -> allocate -> build for good
 */
#include "model.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/pool.h"
#include "models/models.h"

enum { MAX_BATCH = 65536 };

/* What a model keeps to itself. */
struct model_parts {
    model m;
    char *memory;               /* activations, then the memory of passes */
    char (*names)[LAYOUT_NAME]; /* of tensors and states */
    pass pass;                  /* threads and memory to start a pass with */
    model_batch batch;          /* of the last forward */
    bool forwarded;             /* backward may follow */
    max_align_t net[];          /* the layers, as the model's own file has them */
};

static int complete(model_spec *spec, const model_kind **kind) {
    *kind = model_kind_named(spec->name);
    if (!*kind)
        return tw__fail(TW_ERR_NAME, "no model is named '%s'", spec->name ? spec->name : "");
    if (spec->max_batch == 0)
        return tw__fail(TW_ERR_PARAM, "max_batch must be given");
    TW_TRY(complete_field(&spec->max_batch, "max_batch", 0, 1, MAX_BATCH));
    TW_TRY(complete_field(&spec->threads, "threads", 1, 1, TW__MAX_THREADS));
    return (*kind)->complete(spec);
}

/* Builds once without memory: what the model needs. net is the model's own struct. */
static layout measure(const model_kind *kind, const model_spec *spec, void *net) {
    layout measured = {.seed = spec->seed};
    kind->build(net, &measured, spec);
    return measured;
}

int model_measure(const model_spec *given, model_size *size) {
    const model_kind *kind;
    model_spec spec = *given;
    TW_TRY(complete(&spec, &kind));
    void *net = calloc(1, kind->net_bytes);
    if (!net)
        return tw__fail(TW_ERR_MEMORY, "out of memory");
    layout l = measure(kind, &spec, net);
    free(net);
    *size = (model_size){.n = l.n, .nstate = l.nstate, .ntensors = l.ntensors};
    size->bytes =
        (size_t)(2 * l.n + l.nstate) * sizeof(real) + l.arena.used + pass_bytes(spec.threads, &l);
    return TW_OK;
}

/* The blocks that `measured` asks for. False: out of memory. */
static bool allocate(model *m, const layout *measured) {
    struct model_parts *parts = m->parts;
    m->n = measured->n;
    m->nstate = measured->nstate;
    m->ntensors = measured->ntensors;
    m->nstates = measured->nstates;
    m->values = tw__alloc((size_t)m->n * sizeof(real));
    m->grads = tw__alloc((size_t)m->n * sizeof(real));
    m->state = tw__alloc((size_t)m->nstate * sizeof(real));
    m->tensors = tw__alloc((size_t)m->ntensors * sizeof *m->tensors);
    m->states = tw__alloc((size_t)m->nstates * sizeof *m->states);
    parts->names = tw__alloc((size_t)(m->ntensors + m->nstates) * LAYOUT_NAME);
    parts->memory = tw__alloc(measured->arena.used + pass_bytes(m->spec.threads, measured));
    return m->values && m->grads && m->state && m->tensors && m->states && parts->names &&
           parts->memory;
}

int model_create(model **out, const model_spec *spec) {
    *out = NULL;
    const model_kind *kind;
    model_spec full = *spec;
    TW_TRY(complete(&full, &kind));
    struct model_parts *parts = calloc(1, sizeof *parts + kind->net_bytes);
    if (!parts)
        return tw__fail(TW_ERR_MEMORY, "out of memory");
    model *m = &parts->m;
    *m = (model){.kind = kind, .spec = full, .parts = parts};
    m->spec.name = kind->name; /* the caller's text may go */
    gemm_on_calling_thread();
    tw__pool_retain(full.threads);
    layout measured = measure(kind, &m->spec, parts->net);
    if (!allocate(m, &measured)) {
        model_free(m);
        return tw__fail(TW_ERR_MEMORY, "no memory for %lld parameters", (long long)measured.n);
    }
    layout l = {.m = m, .seed = full.seed, .names = parts->names, .arena = {parts->memory, 0}};
    kind->build(parts->net, &l, &m->spec);
    assert(l.n == m->n && l.nstate == m->nstate && l.arena.used == measured.arena.used);
    pass_set_memory(&parts->pass, full.threads, &l, parts->memory + l.arena.used);
    *out = m;
    return TW_OK;
}

void model_free(model *m) {
    if (!m)
        return;
    tw__pool_release();
    free(m->parts->memory);
    free(m->parts->names);
    free(m->states);
    free(m->tensors);
    free(m->state);
    free(m->grads);
    free(m->values);
    free(m->parts); /* m is in there */
}

/* An index out of range would read and write beyond tables, so all are looked at: a few thousand
 * comparisons against the millions of products of a step. */

/* values[samples][each] all in low .. high. */
static int check_range(const int32_t *values, int64_t samples, int each, int32_t low, int32_t high,
                       const char *what) {
    for (int64_t i = 0; i < samples * each; i++)
        if (values[i] < low || values[i] > high)
            return tw__fail(TW_ERR_PARAM, "%s of sample %d is %d; %d .. %d is accepted", what,
                            (int)(i / each), (int)values[i], (int)low, (int)high);
    return TW_OK;
}

static int check_batch(const model *m, const model_batch *b) {
    const bool images = m->kind->input == MODEL_IMAGES, masked = m->kind->input == MODEL_MASKED;
    const int length = images ? 1 : m->spec.length;
    const int last = images ? m->kind->classes - 1 : m->spec.vocabulary - 1;
    if (b->count < 1 || b->count > m->spec.max_batch)
        return tw__fail(TW_ERR_PARAM, "a batch of %d; 1 .. %d is accepted", b->count,
                        m->spec.max_batch);
    if (!b->labels || (images ? !b->images : !b->tokens))
        return tw__fail(TW_ERR_PARAM, "%s needs %s and labels", m->kind->name,
                        images ? "images" : "tokens");
    if (!images)
        TW_TRY(check_range(b->tokens, b->count, length, 0, last, "token"));
    TW_TRY(check_range(b->labels, b->count, length, MODEL_IGNORE, last, "label"));
    if (masked && b->segments)
        TW_TRY(check_range(b->segments, b->count, length, 0, 1, "segment"));
    if (masked && b->lengths)
        TW_TRY(check_range(b->lengths, b->count, 1, 1, length, "length"));
    if (masked && b->follows)
        TW_TRY(check_range(b->follows, b->count, 1, MODEL_IGNORE, 1, "follows"));
    return TW_OK;
}

static int run_forward(model *m, const model_batch *batch, model_result *result, bool training) {
    struct model_parts *parts = m->parts;
    TW_TRY(check_batch(m, batch));
    pass p = parts->pass;
    p.training = training;
    model_result made = m->kind->forward(parts->net, &p, batch);
    if (result)
        *result = made;
    parts->batch = *batch;
    parts->forwarded = training;
    return TW_OK;
}

int model_forward(model *m, const model_batch *batch, model_result *result) {
    return run_forward(m, batch, result, true);
}

int model_evaluate(model *m, const model_batch *batch, model_result *result) {
    return run_forward(m, batch, result, false);
}

int model_backward(model *m, model_ready ready, void *context) {
    struct model_parts *parts = m->parts;
    if (!parts->forwarded)
        return tw__fail(TW_ERR_STATE, "backward needs a forward pass before it");
    parts->forwarded = false; /* it uses up what forward has left */
    pass p = parts->pass;
    p.training = true;
    p.ready = ready;
    p.context = context;
    m->kind->backward(parts->net, &p, &parts->batch);
    return TW_OK;
}
