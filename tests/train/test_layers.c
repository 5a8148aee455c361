/* test_layers.c - backward passes of all layers against differences, and bits against threads
 *
 * The loss of a case is sum w[i] y[i] with fixed random w: its gradient by x and by every parameter
 * must be what backward makes of dy = w. Built in double: see gradient.h.
 */
#include <stdlib.h>
#include <string.h>

#include "layer_cases.h"

enum { SAMPLES = 40 };

static real *reals(int64_t n) {
    return check_alloc(n + 1, sizeof(real));
}

static layer_run open_run(const layer_case *c, int threads) {
    layer_run r = {.c = c, .layer = check_alloc(1, (int64_t)c->bytes)};
    memset(r.layer, 0, c->bytes);
    layer_fixture_open(&r.fixture, threads, c->build, r.layer);
    r.x = reals(c->nx);
    r.y = reals(c->ny);
    r.dy = reals(c->ny);
    r.dx = reals(c->nx);
    gradient_fill(r.x, c->nx, 1);
    for (int i = 0; i < r.fixture.m.ntensors; i++) { /* biases and norms at work, too */
        model_tensor *t = &r.fixture.m.tensors[i];
        if (!t->decay)
            gradient_fill(t->value, t->n, 7 + (uint64_t)i);
    }
    return r;
}

static void close_run(layer_run *r) {
    layer_fixture_close(&r->fixture);
    free(r->layer);
    free(r->x);
    free(r->y);
    free(r->dy);
    free(r->dx);
}

static double run_loss(void *context) {
    layer_run *r = context;
    r->c->forward(r);
    if (r->c->own_loss)
        return r->loss;
    gradient_fill(r->dy, r->c->ny, 2);
    double loss = 0;
    for (int64_t i = 0; i < r->c->ny; i++)
        loss += (double)(r->dy[i] * r->y[i]);
    return loss;
}

/* Forward and backward: grads and dx are set. */
static void run_both(layer_run *r) {
    memset(r->fixture.m.grads, 0xff,
           (size_t)r->fixture.m.n * sizeof(real)); /* NaN: all must be written */
    run_loss(r);
    r->c->backward(r);
}

static void test_gradients(void **state) {
    const layer_case *c = *state;
    layer_run r = open_run(c, 1);
    check_scene("%s", c->name);
    run_both(&r);
    real *dx = reals(c->nx), *grads = reals(r.fixture.m.n);
    memcpy(dx, r.dx, (size_t)c->nx * sizeof(real));
    memcpy(grads, r.fixture.m.grads, (size_t)r.fixture.m.n * sizeof(real));
    gradient_check("x", GRADIENT_LAYER, run_loss, &r, r.x, dx, c->nx, SAMPLES);
    for (int i = 0; i < r.fixture.m.ntensors; i++) {
        const model_tensor *t = &r.fixture.m.tensors[i];
        gradient_check(t->name, GRADIENT_LAYER, run_loss, &r, t->value, grads + t->offset, t->n,
                       SAMPLES);
    }
    free(dx);
    free(grads);
    close_run(&r);
}

/* One thread and four give the same bits, and so does a second run. */
static void test_threads(void **state) {
    const layer_case *c = *state;
    layer_run one = open_run(c, 1), four = open_run(c, 4);
    run_both(&one);
    for (int again = 0; again < 2; again++) {
        check_scene("%s, run %d with 4 threads", c->name, again);
        run_both(&four);
        gradient_same("y", four.y, one.y, c->ny);
        gradient_same("dx", four.dx, one.dx, c->nx);
        gradient_same("gradient", four.fixture.m.grads, one.fixture.m.grads, one.fixture.m.n);
        gradient_same("state", four.fixture.m.state,
                      again ? four.fixture.m.state : one.fixture.m.state, one.fixture.m.nstate);
    }
    close_run(&one);
    close_run(&four);
}

/* Every tensor is announced once, the last first. */
typedef struct order {
    int next;
} order;

static void take_order(void *context, int tensor) {
    order *o = context;
    check_int("tensor announced", tensor, o->next);
    o->next--;
}

static void test_order(void **state) {
    const layer_case *c = *state;
    layer_run r = open_run(c, 1);
    check_scene("%s", c->name);
    order o = {.next = r.fixture.m.ntensors - 1};
    run_loss(&r);
    r.fixture.pass.ready = take_order;
    r.fixture.pass.context = &o;
    c->backward(&r);
    check_int("tensors left", o.next, -1);
    close_run(&r);
}

/* The check can fail: a gradient off by 1e-5 of itself is told apart. */
static void test_check_can_fail(void **state) {
    (void)state;
    layer_run r = open_run(&layer_cases[0], 1);
    run_both(&r);
    real *dx = reals(r.c->nx);
    memcpy(dx, r.dx, (size_t)r.c->nx * sizeof(real));
    check_true(gradient_error(GRADIENT_LAYER, run_loss, &r, r.x, dx, r.c->nx, SAMPLES) <= 1);
    for (int64_t i = 0; i < r.c->nx; i++)
        dx[i] *= (real)(1 + 1e-5);
    check_true(gradient_error(GRADIENT_LAYER, run_loss, &r, r.x, dx, r.c->nx, SAMPLES) > 1);
    free(dx);
    close_run(&r);
}

int main(void) {
    enum { EACH = 3 };
    struct CMUnitTest *tests = calloc(EACH * (size_t)layer_ncases + 1, sizeof *tests);
    int n = 0;
    for (int i = 0; tests && i < layer_ncases; i++) {
        void *state = (void *)(uintptr_t)&layer_cases[i];
        const char *name = layer_cases[i].name;
        tests[n++] = (struct CMUnitTest){name, test_gradients, NULL, NULL, state};
        tests[n++] = (struct CMUnitTest){name, test_threads, NULL, NULL, state};
        tests[n++] = (struct CMUnitTest){name, test_order, NULL, NULL, state};
    }
    if (!tests)
        return 1;
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_check_can_fail);
    int failed = _cmocka_run_group_tests("layers", tests, (size_t)n, NULL, NULL);
    free(tests);
    return failed;
}
