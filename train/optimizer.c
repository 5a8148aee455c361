/* optimizer.c - see optimizer.h. AdamW after Loshchilov and Hutter, 2019 */
#include "optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const char *const names[] = {"sgd", "adamw", "adamw-before"};
enum { SGD, ADAMW, ADAMW_BEFORE, OPTIMIZERS };

const char *optimizer_name(int position) {
    return position >= 0 && position < OPTIMIZERS ? names[position] : NULL;
}

static int is(const optimizer_spec *spec, int kind) {
    return strcmp(spec->name, names[kind]) == 0;
}

int optimizer_create(optimizer *o, const optimizer_spec *spec, int64_t n) {
    *o = (optimizer){.spec = *spec, .n = n};
    if (!is(spec, SGD) && !is(spec, ADAMW) && !is(spec, ADAMW_BEFORE))
        return tw__fail(TW_ERR_NAME, "optimizer: there is no '%s'; take sgd, adamw or adamw-before",
                        spec->name);
    o->nslots = is(spec, ADAMW) ? 2 : is(spec, SGD) && spec->momentum != 0.0;
    for (int i = 0; i < o->nslots; i++) {
        o->slots[i] = calloc((size_t)n, sizeof(float));
        if (o->slots[i] == NULL) {
            optimizer_free(o);
            return tw__fail(TW_ERR_MEMORY, "not enough memory for the optimiser");
        }
    }
    return TW_OK;
}

void optimizer_free(optimizer *o) {
    free(o->slots[0]);
    free(o->slots[1]);
    o->slots[0] = o->slots[1] = NULL;
}

static void sgd(optimizer *o, const model_tensor *t, float rate) {
    float momentum = (float)o->spec.momentum;
    float decay = t->decay ? (float)o->spec.weight_decay : 0.0f;
    float *velocity = o->nslots > 0 ? o->slots[0] + t->offset : NULL;
    for (int64_t i = 0; i < t->n; i++) {
        float step = t->grad[i] + decay * t->value[i];
        if (velocity != NULL)
            step = velocity[i] = momentum * velocity[i] + step;
        t->value[i] -= rate * step;
    }
}

static void adamw(optimizer *o, const model_tensor *t, float rate) {
    float beta1 = (float)o->spec.beta1, beta2 = (float)o->spec.beta2;
    float epsilon = (float)o->spec.epsilon;
    float decay = t->decay ? 1.0f - rate * (float)o->spec.weight_decay : 1.0f;
    float unbias1 = (float)(1.0 - pow(o->spec.beta1, (double)o->steps));
    float unbias2 = (float)(1.0 - pow(o->spec.beta2, (double)o->steps));
    float *first = o->slots[0] + t->offset, *second = o->slots[1] + t->offset;
    for (int64_t i = 0; i < t->n; i++) {
        float grad = t->grad[i];
        first[i] = beta1 * first[i] + (1.0f - beta1) * grad;
        second[i] = beta2 * second[i] + (1.0f - beta2) * grad * grad;
        float step = (first[i] / unbias1) / (sqrtf(second[i] / unbias2) + epsilon);
        t->value[i] = decay * t->value[i] - rate * step;
    }
}

/* The gradient holds the mean update, rate included. */
static void apply_update(const optimizer *o, const model_tensor *t, float rate) {
    float decay = t->decay ? 1.0f - rate * (float)o->spec.weight_decay : 1.0f;
    for (int64_t i = 0; i < t->n; i++)
        t->value[i] = decay * t->value[i] - t->grad[i];
}

int optimizer_is_before(const char *name) {
    return strcmp(name, names[ADAMW_BEFORE]) == 0;
}

void optimizer_step(optimizer *o, model *m, double learning_rate) {
    assert(o->n == m->n);
    o->steps++;
    for (int t = 0; t < m->ntensors; t++)
        if (is(&o->spec, ADAMW))
            adamw(o, &m->tensors[t], (float)learning_rate);
        else if (is(&o->spec, ADAMW_BEFORE))
            apply_update(o, &m->tensors[t], (float)learning_rate);
        else
            sgd(o, &m->tensors[t], (float)learning_rate);
}

static const char *const schedules[] = {"constant", "step", "cosine"};

const char *schedule_name(int position) {
    return position >= 0 && position < 3 ? schedules[position] : NULL;
}

double schedule_rate(const schedule_spec *s, int64_t step) {
    if (step < s->warmup)
        return s->rate * (double)(step + 1) / (double)s->warmup;
    int64_t drops = s->drop_every > 0 ? step / s->drop_every : 0;
    if (strcmp(s->name, "step") == 0)
        return s->rate * pow(s->drop_factor, (double)drops);
    if (strcmp(s->name, "cosine") == 0 && s->steps > s->warmup) {
        double progress = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
        return s->rate * 0.5 * (1.0 + cos(3.14159265358979323846 * fmin(progress, 1.0)));
    }
    return s->rate;
}
