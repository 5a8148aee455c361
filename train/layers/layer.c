/* layer.c - counts requests or serves them; runs tasks on the process's thread pool. See layer.h
 *
 * Initial values: draw i of tensor t is a function of seed, t and i. There is no state, so a
 * tensor's values do not depend on what was drawn before it.
 */
#include "layers/layer.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/pool.h"
#include "base/random.h"

static void fill(const layout *to, const param *tensor, init kind, double bound) {
    const uint64_t key = tw__random(tw__random(to->seed, 0), (uint64_t)tensor->index - 1);
    for (int64_t i = 0; i < tensor->n; i++) {
        double value = kind == INIT_ONE ? 1.0 : 0.0;
        if (kind == INIT_UNIFORM) /* [-1, 1) in steps of 2^-23 */
            value = bound * ((double)(tw__random(key, (uint64_t)i) >> 40) * 0x1p-23 - 1.0);
        tensor->value[i] = (real)value;
    }
}

part_name name_part(const char *format, ...) {
    part_name name;
    va_list args;
    va_start(args, format);
    vsnprintf(name.text, sizeof name.text, format, args);
    va_end(args);
    return name;
}

static const char *keep_name(layout *to, const char *block, const char *part) {
    char *name = to->names[to->ntensors + to->nstates];
    snprintf(name, LAYOUT_NAME, "%s.%s", block, part);
    return name;
}

param layout_param(layout *to, const char *block, const char *part, int64_t n, init kind,
                   double bound) {
    param made = {.index = to->ntensors, .n = n};
    if (to->m) {
        assert(to->ntensors < to->m->ntensors && to->n + n <= to->m->n);
        made.value = to->m->values + to->n;
        made.grad = to->m->grads + to->n;
        to->m->tensors[to->ntensors] = (model_tensor){
            keep_name(to, block, part), n, to->n, made.value, made.grad, kind == INIT_UNIFORM};
        fill(to, &made, kind, bound);
    }
    to->ntensors++;
    to->n += n;
    return made;
}

real *layout_state(layout *to, const char *block, const char *part, int64_t n, real initial) {
    real *made = NULL;
    if (to->m) {
        assert(to->nstate + n <= to->m->nstate);
        made = to->m->state + to->nstate;
        to->m->states[to->nstates] = (model_tensor){
            .name = keep_name(to, block, part), .n = n, .offset = to->nstate, .value = made};
        for (int64_t i = 0; i < n; i++)
            made[i] = initial;
    }
    to->nstates++;
    to->nstate += n;
    return made;
}

void *layout_memory(layout *to, int64_t count, size_t size) {
    return tw__arena_take(&to->arena, count, size);
}

real *layout_reals(layout *to, int64_t count) {
    return layout_memory(to, count, sizeof(real));
}

void layout_scratch(layout *to, size_t bytes) {
    bytes = (bytes + TW__ALIGNMENT - 1) / TW__ALIGNMENT * TW__ALIGNMENT;
    to->scratch = bytes > to->scratch ? bytes : to->scratch;
}

void layout_common(layout *to, size_t bytes) {
    to->common = bytes > to->common ? bytes : to->common;
}

double bound_he(int inputs) {
    return sqrt(6.0 / inputs);
}

double bound_xavier(int inputs, int outputs) {
    return sqrt(6.0 / (inputs + outputs));
}

size_t pass_bytes(int threads, const layout *measured) {
    return (size_t)threads * measured->scratch + measured->common;
}

void pass_set_memory(pass *p, int threads, const layout *measured, char *memory) {
    p->threads = threads;
    p->scratch = memory;
    p->scratch_bytes = measured->scratch;
    p->common = memory + (size_t)threads * measured->scratch;
}

typedef struct tasks {
    const pass *p;
    int64_t total, each;
    void (*run)(const task *t);
    const void *job;
} tasks;

static void run_task(void *context, int thread, int64_t index) {
    const tasks *all = context;
    task t = {.job = all->job,
              .index = (int)index,
              .r = chunk(all->total, all->each, index),
              .scratch = all->p->scratch + (size_t)thread * all->p->scratch_bytes};
    all->run(&t);
}

void pass_run(const pass *p, int64_t total, int64_t each, void (*run)(const task *t),
              const void *job) {
    assert(total >= 0 && each > 0);
    tasks all = {p, total, each, run, job};
    tw__pool_run(p->threads, chunks(total, each), run_task, &all);
}
