/* plan.c - counts requests, or serves them from the blocks that were allocated for them
 *
 * Initial values: draw i of tensor t is SplitMix64 (Steele, Lea and Flood, 2014) of seed, t and i;
 * there is no state, so a tensor's values do not depend on what was drawn before it.
 */
#include "plan.h"

#include <math.h>
#include <stdio.h>

#include "team.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Uniform in [-1, 1), a multiple of 2^-23. */
static double draw(uint64_t seed, uint64_t tensor, uint64_t i) {
    const uint64_t stride = UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */
    uint64_t key = mix(mix(seed + stride) + tensor * stride);
    return (double)(mix(key + (i + 1) * stride) >> 40) * 0x1p-23 - 1.0;
}

static void fill(const plan *p, const param *tensor, plan_init init, double bound) {
    for (int64_t i = 0; i < tensor->n; i++) {
        double value = init == INIT_ONE ? 1.0 : 0.0;
        if (init == INIT_UNIFORM)
            value = bound * draw(p->seed, (uint64_t)tensor->index, (uint64_t)i);
        tensor->value[i] = (real)value;
    }
}

static const char *keep_name(plan *p, int position, const char *block, const char *part) {
    snprintf(p->names[position], PLAN_NAME, "%s.%s", block, part);
    return p->names[position];
}

param plan_param(plan *p, const char *block, const char *part, int64_t n, plan_init init,
                 double bound) {
    param made = {.index = p->ntensors, .n = n};
    if (p->m) {
        made.value = p->m->values + p->n;
        made.grad = p->m->grads + p->n;
        const char *name = keep_name(p, p->ntensors + p->nstates, block, part);
        p->m->tensors[p->ntensors] = (model_tensor){.name = name,
                                                    .n = n,
                                                    .offset = p->n,
                                                    .value = made.value,
                                                    .grad = made.grad,
                                                    .decay = init == INIT_UNIFORM};
        fill(p, &made, init, bound);
    }
    p->ntensors++;
    p->n += n;
    return made;
}

real *plan_state(plan *p, const char *block, const char *part, int64_t n, real initial) {
    real *made = NULL;
    if (p->m) {
        made = p->m->state + p->nstate;
        const char *name = keep_name(p, p->ntensors + p->nstates, block, part);
        p->m->states[p->nstates] =
            (model_tensor){.name = name, .n = n, .offset = p->nstate, .value = made};
        for (int64_t i = 0; i < n; i++)
            made[i] = initial;
    }
    p->nstates++;
    p->nstate += n;
    return made;
}

void *plan_work(plan *p, int64_t count, size_t size) {
    char *made = p->memory ? p->memory + p->work : NULL;
    p->work += team_round((size_t)count * size);
    return made;
}

real *plan_reals(plan *p, int64_t count) {
    return plan_work(p, count, sizeof(real));
}

void plan_scratch(plan *p, size_t bytes) {
    p->scratch = bytes > p->scratch ? bytes : p->scratch;
}

void plan_common(plan *p, size_t bytes) {
    p->common = bytes > p->common ? bytes : p->common;
}

double plan_he(int inputs) {
    return sqrt(6.0 / inputs);
}

double plan_xavier(int inputs, int outputs) {
    return sqrt(6.0 / (inputs + outputs));
}
