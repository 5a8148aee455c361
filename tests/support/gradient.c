/* gradient.c - central differences; see gradient.h */
#include "gradient.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

void gradient_fill(real *x, int64_t n, uint64_t seed) {
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (real)((double)(state >> 11) * 0x1p-52 - 1.0);
    }
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

static void *zeros(int64_t count, size_t size) {
    size_t bytes = team_round((size_t)count * size + 1);
    void *made = aligned_alloc(64, bytes);
    check_true(made);
    return memset(made, 0, bytes);
}

void lab_open(lab *l, int threads, void (*build)(void *layer, plan *p), void *layer) {
    plan sizes = {.seed = 5};
    gemm_on_calling_thread();
    build(layer, &sizes);
    model *m = &l->m;
    *m = (model){.n = sizes.n, .ntensors = sizes.ntensors, .nstate = sizes.nstate};
    m->values = zeros(sizes.n, sizeof(real));
    m->grads = zeros(sizes.n, sizeof(real));
    m->state = zeros(sizes.nstate, sizeof(real));
    m->tensors = zeros(sizes.ntensors, sizeof *m->tensors);
    m->states = zeros(sizes.nstates, sizeof *m->states);
    l->names = zeros(sizes.ntensors + sizes.nstates, PLAN_NAME);
    l->memory = zeros((int64_t)sizes.work, 1);
    l->pass = (pass){.training = true};
    check_int("team", team_create(&l->pass.team, threads, sizes.scratch, sizes.common), 0);
    plan p = {.m = m, .seed = 5, .names = l->names, .memory = l->memory};
    build(layer, &p);
}

void lab_close(lab *l) {
    team_free(l->pass.team);
    free(l->memory);
    free(l->names);
    free(l->m.states);
    free(l->m.tensors);
    free(l->m.state);
    free(l->m.grads);
    free(l->m.values);
}
