/* gradient_check.c - central differences; see gradient_check.h */
#include "gradient_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/random.h"

void gradient_fill(real *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        x[i] = (real)((double)(tw__random(seed, (uint64_t)i) >> 11) * 0x1p-52 - 1.0);
}

static double difference(double step, double (*loss)(void *), void *context, real *at) {
    const real before = *at;
    *at = (real)((double)before + step);
    double above = loss(context);
    *at = (real)((double)before - step);
    double below = loss(context);
    *at = before;
    return (above - below) / (2 * step);
}

/* The worst coordinate. */
typedef struct verdict {
    int64_t at;
    double error, analytic, numeric;
} verdict;

static double largest(const real *grad, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)grad[i]));
    return most;
}

static verdict judge(gradient_rule rule, double (*loss)(void *), void *context, real *at,
                     const real *grad, int64_t n, int samples) {
    const double least = 0.01 * largest(grad, n) + 1e-3;
    verdict worst = {0};
    for (int s = 0; s < samples && s < n; s++) {
        int64_t i = n <= samples ? s : (s * n + n / 3) / samples;
        double numeric = difference(rule.step, loss, context, at + i), analytic = (double)grad[i];
        double scale = fmax(fmax(fabs(numeric), fabs(analytic)), least);
        double error = fabs(numeric - analytic) / (rule.tolerance * scale);
        if (!(error <= worst.error))
            worst = (verdict){i, error, analytic, numeric};
    }
    return worst;
}

double gradient_error(gradient_rule rule, double (*loss)(void *), void *context, real *at,
                      const real *grad, int64_t n, int samples) {
    return judge(rule, loss, context, at, grad, n, samples).error;
}

void gradient_check(const char *what, gradient_rule rule, double (*loss)(void *), void *context,
                    real *at, const real *grad, int64_t n, int samples) {
    verdict v = judge(rule, loss, context, at, grad, n, samples);
    if (!(v.error <= 1)) {
        check_fail("gradient of %s[%lld]: %.12g, by differences %.12g: %.1f tolerances of %g", what,
                   (long long)v.at, v.analytic, v.numeric, v.error, rule.tolerance);
    }
}

static uint64_t bits_of(real x) {
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

void gradient_same(const char *what, const real *got, const real *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (bits_of(got[i]) != bits_of(want[i])) {
            check_fail("%s[%lld]: %.17g, should be %.17g", what, (long long)i, (double)got[i],
                       (double)want[i]);
        }
    }
}

static void *zeros(size_t bytes) {
    void *made = tw__alloc(bytes);
    check_true(made);
    return made;
}

void layer_fixture_open(layer_fixture *l, int threads, void (*build)(void *layer, layout *to),
                        void *layer) {
    layout sizes = {.seed = 5};
    gemm_on_calling_thread();
    tw__pool_retain(threads);
    build(layer, &sizes);
    model *m = &l->m;
    *m = (model){
        .n = sizes.n, .ntensors = sizes.ntensors, .nstate = sizes.nstate, .nstates = sizes.nstates};
    m->values = zeros((size_t)sizes.n * sizeof(real));
    m->grads = zeros((size_t)sizes.n * sizeof(real));
    m->state = zeros((size_t)sizes.nstate * sizeof(real));
    m->tensors = zeros((size_t)sizes.ntensors * sizeof *m->tensors);
    m->states = zeros((size_t)sizes.nstates * sizeof *m->states);
    l->names = zeros((size_t)(sizes.ntensors + sizes.nstates) * LAYOUT_NAME);
    l->memory = zeros(sizes.arena.used + pass_bytes(threads, &sizes));
    l->pass = (pass){.training = true};
    pass_set_memory(&l->pass, threads, &sizes, l->memory + sizes.arena.used);
    layout to = {.m = m, .seed = 5, .names = l->names, .arena = {l->memory, 0}};
    build(layer, &to);
}

void layer_fixture_close(layer_fixture *l) {
    tw__pool_release();
    free(l->memory);
    free(l->names);
    free(l->m.states);
    free(l->m.tensors);
    free(l->m.state);
    free(l->m.grads);
    free(l->m.values);
}
