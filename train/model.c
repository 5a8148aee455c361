/* model.c - creates models from their rows and runs their passes; see model.h
 *
 *     spec -> complete (defaults) -> build, measuring -> allocate -> build for good
 */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "batch_check.h"
#include "gemm.h"
#include "model_calls.h"

enum { MAX_BATCH = 65536, MAX_THREADS = 256, LINE = 64 };

/* What a model keeps to itself. */
struct model_parts {
    team *team;
    void *net;                /* the layers, as the model's own file has them */
    char *memory;             /* activations and the like: what plan_work gave out */
    char (*names)[PLAN_NAME]; /* of tensors and states */
    model_batch batch;        /* of the last forward */
    bool forwarded;           /* backward may follow */
};

/* ---- Creation ---------------------------------------------------------------------------------- */

static int complete(model_spec *spec, const model_kind **kind, model_error *error) {
    *kind = model_kind_named(spec->name);
    if (!*kind) {
        return model_refuse(error, MODEL_ERR_NAME, "no model is named '%s'",
                            spec->name ? spec->name : "");
    }
    if (spec->max_batch == 0)
        return model_refuse(error, MODEL_ERR_SPEC, "max_batch must be given");
    int status = model_complete_field(&spec->max_batch, "max_batch", 0, 1, MAX_BATCH, error);
    if (status == MODEL_OK)
        status = model_complete_field(&spec->threads, "threads", 1, 1, MAX_THREADS, error);
    return status == MODEL_OK ? (*kind)->calls->complete(spec, error) : status;
}

/* Build once without memory: what the model needs. net is the model's own struct. */
static plan measure(const model_kind *kind, const model_spec *spec, void *net) {
    plan p = {.seed = spec->seed};
    kind->calls->build(net, &p, spec);
    return p;
}

int model_measure(const model_spec *given, model_size *size, model_error *error) {
    const model_kind *kind;
    model_spec spec = *given;
    int status = complete(&spec, &kind, error);
    if (status != MODEL_OK)
        return status;
    void *net = calloc(1, kind->calls->bytes);
    if (!net)
        return model_refuse(error, MODEL_ERR_MEMORY, "out of memory");
    plan p = measure(kind, &spec, net);
    free(net);
    *size = (model_size){.n = p.n, .nstate = p.nstate, .ntensors = p.ntensors};
    size->bytes = (size_t)(2 * p.n + p.nstate) * sizeof(real) + p.work + p.common +
                  (size_t)spec.threads * p.scratch;
    return MODEL_OK;
}

/* Whole cache lines of zeros; never NULL for want of bytes. */
static void *zeros(size_t bytes) {
    size_t whole = team_round(bytes + 1);
    void *made = aligned_alloc(LINE, whole);
    return made ? memset(made, 0, whole) : NULL;
}

static int allocate(model *m, const plan *p) {
    struct model_parts *parts = m->parts;
    m->values = zeros((size_t)p->n * sizeof(real));
    m->grads = zeros((size_t)p->n * sizeof(real));
    m->state = zeros((size_t)p->nstate * sizeof(real));
    m->tensors = zeros((size_t)p->ntensors * sizeof *m->tensors);
    m->states = zeros((size_t)p->nstates * sizeof *m->states);
    parts->names = zeros((size_t)(p->ntensors + p->nstates) * PLAN_NAME);
    parts->memory = zeros(p->work);
    bool all = m->values && m->grads && m->state && m->tensors && m->states && parts->names &&
               parts->memory;
    return all ? team_create(&parts->team, m->spec.threads, p->scratch, p->common) : -1;
}

static void build(model *m, const plan *measured) {
    plan p = {.m = m, .seed = m->spec.seed, .names = m->parts->names, .memory = m->parts->memory};
    m->n = measured->n;
    m->nstate = measured->nstate;
    m->ntensors = measured->ntensors;
    m->nstates = measured->nstates;
    m->kind->calls->build(m->parts->net, &p, &m->spec);
}

int model_create(model **out, const model_spec *spec, model_error *error) {
    *out = NULL;
    const model_kind *kind;
    model_spec full = *spec;
    int status = complete(&full, &kind, error);
    if (status != MODEL_OK)
        return status;
    model *m = calloc(1, sizeof *m);
    struct model_parts *parts = calloc(1, sizeof *parts);
    void *net = calloc(1, kind->calls->bytes);
    if (!m || !parts || !net) {
        free(m);
        free(parts);
        free(net);
        return model_refuse(error, MODEL_ERR_MEMORY, "out of memory");
    }
    *m = (model){.kind = kind, .spec = full, .parts = parts};
    m->spec.name = kind->name; /* the caller's text may go */
    parts->net = net;
    gemm_on_calling_thread();
    plan p = measure(kind, &m->spec, net);
    if (allocate(m, &p) != 0) {
        model_free(m);
        return model_refuse(error, MODEL_ERR_MEMORY, "no memory or threads for %lld parameters",
                            (long long)p.n);
    }
    build(m, &p);
    *out = m;
    return MODEL_OK;
}

void model_free(model *m) {
    if (!m)
        return;
    team_free(m->parts->team);
    free(m->parts->memory);
    free(m->parts->names);
    free(m->parts->net);
    free(m->parts);
    free(m->states);
    free(m->tensors);
    free(m->state);
    free(m->grads);
    free(m->values);
    free(m);
}

/* ---- Passes ------------------------------------------------------------------------------------ */

static int run_forward(model *m, const model_batch *batch, model_result *result, bool training) {
    struct model_parts *parts = m->parts;
    int status = batch_check(m, batch, &m->error);
    if (status != MODEL_OK)
        return status;
    pass p = {.team = parts->team, .training = training};
    model_result made = m->kind->calls->forward(parts->net, &p, batch);
    if (result)
        *result = made;
    parts->batch = *batch;
    parts->forwarded = training;
    return MODEL_OK;
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
        return model_refuse(&m->error, MODEL_ERR_STATE, "backward needs a forward pass before it");
    parts->forwarded = false; /* it uses up what forward has left */
    pass p = {.team = parts->team, .training = true, .ready = ready, .context = context};
    m->kind->calls->backward(parts->net, &p, &parts->batch);
    return MODEL_OK;
}
