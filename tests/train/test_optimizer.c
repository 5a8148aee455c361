/* test_optimizer.c - SGD, AdamW and learning rates against their formulas
 *
 * Numbers of SGD and of mean updates are multiples of small powers of two: results are exact. */
#include <math.h>

#include "check.h"
#include "optimizer.h"

enum { WEIGHTS = 3, BIASES = 2, N = WEIGHTS + BIASES, STEPS = 4 };

/* Two tensors: weight decay is for the first. */
typedef struct small_model {
    float values[N], grads[N];
    model_tensor tensors[2];
    model m;
} small_model;

static void model_init(small_model *s) {
    const float values[N] = {1.0f, -2.0f, 0.5f, 4.0f, -0.25f};
    const float grads[N] = {0.5f, 1.0f, -2.0f, 0.25f, -1.0f};
    for (int i = 0; i < N; i++) {
        s->values[i] = values[i];
        s->grads[i] = grads[i];
    }
    s->tensors[0] = (model_tensor){
        .name = "weight", .n = WEIGHTS, .value = s->values, .grad = s->grads, .decay = true};
    s->tensors[1] = (model_tensor){.name = "bias",
                                   .n = BIASES,
                                   .offset = WEIGHTS,
                                   .value = s->values + WEIGHTS,
                                   .grad = s->grads + WEIGHTS};
    s->m = (model){.n = N, .ntensors = 2, .tensors = s->tensors};
}

static void check_sgd(double momentum) {
    const optimizer_spec spec = {.name = "sgd", .momentum = momentum, .weight_decay = 0.25};
    small_model s;
    optimizer o;
    double want[N], velocity[N] = {0};
    model_init(&s);
    for (int i = 0; i < N; i++)
        want[i] = (double)s.values[i];
    check_ok(optimizer_create(&o, &spec, N));
    check_int("slots", o.nslots, momentum != 0.0);
    for (int step = 0; step < STEPS; step++) {
        optimizer_step(&o, &s.m, 0.5);
        for (int i = 0; i < N; i++) {
            double decay = i < WEIGHTS ? 0.25 * want[i] : 0.0;
            velocity[i] = momentum * velocity[i] + (double)s.grads[i] + decay;
            want[i] -= 0.5 * velocity[i];
            check_scene("sgd, momentum %g, step %d, element %d", momentum, step, i);
            check_float("value", s.values[i], (float)want[i]);
        }
    }
    check_int("steps", o.steps, STEPS);
    optimizer_free(&o);
}

static void test_sgd(void **state) {
    (void)state;
    check_sgd(0.0);
    check_sgd(0.5);
}

/* In doubles, so within rounding. Gradients change, or the moments would cancel out. */
static void test_adamw(void **state) {
    (void)state;
    const optimizer_spec spec = {
        .name = "adamw", .weight_decay = 0.25, .beta1 = 0.75, .beta2 = 0.875, .epsilon = 0.125};
    small_model s;
    optimizer o;
    double want[N], first[N] = {0}, second[N] = {0};
    model_init(&s);
    for (int i = 0; i < N; i++)
        want[i] = (double)s.values[i];
    check_ok(optimizer_create(&o, &spec, N));
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++)
            s.grads[i] *= -1.5f;
        optimizer_step(&o, &s.m, 0.5);
        for (int i = 0; i < N; i++) {
            double grad = (double)s.grads[i];
            first[i] = 0.75 * first[i] + 0.25 * grad;
            second[i] = 0.875 * second[i] + 0.125 * grad * grad;
            double unbiased = first[i] / (1.0 - pow(0.75, step));
            double scale = sqrt(second[i] / (1.0 - pow(0.875, step))) + 0.125;
            want[i] = (i < WEIGHTS ? 1.0 - 0.5 * 0.25 : 1.0) * want[i] - 0.5 * unbiased / scale;
            check_scene("adamw, step %d, element %d: %.9g, wanted %.9g", step, i,
                        (double)s.values[i], want[i]);
            check_true(fabs((double)s.values[i] - want[i]) < 1e-6 * (1.0 + fabs(want[i])));
        }
    }
    optimizer_free(&o);
}

/* The gradient is the mean update: the rate is in it. */
static void test_adamw_before(void **state) {
    (void)state;
    const optimizer_spec spec = {.name = "adamw-before", .weight_decay = 0.25};
    small_model s, before;
    optimizer o;
    model_init(&s);
    model_init(&before);
    check_ok(optimizer_create(&o, &spec, N));
    optimizer_step(&o, &s.m, 0.5);
    for (int i = 0; i < N; i++) {
        float decay = i < WEIGHTS ? 0.875f : 1.0f;
        check_scene("element %d", i);
        check_float("value", s.values[i], decay * before.values[i] - before.grads[i]);
    }
    optimizer_free(&o);
}

static void test_names(void **state) {
    (void)state;
    optimizer o;
    for (int i = 0; optimizer_name(i) != NULL; i++) {
        const optimizer_spec spec = {.name = optimizer_name(i)};
        check_ok(optimizer_create(&o, &spec, N));
        optimizer_free(&o);
    }
    const optimizer_spec none = {.name = "adam"};
    check_error(optimizer_create(&o, &none, N), TW_ERR_NAME);
    check_contains(tw_last_error(), "'adam'; take sgd, adamw or adamw-before");
    check_true(optimizer_name(-1) == NULL && schedule_name(-1) == NULL && schedule_name(3) == NULL);
    check_true(optimizer_is_before("adamw-before") && !optimizer_is_before("adamw"));
}

static void check_rate(const schedule_spec *s, int64_t step, double want) {
    const double got = schedule_rate(s, step);
    check_scene("%s, step %lld: %g, wanted %g", s->name, (long long)step, got, want);
    check_true(fabs(got - want) < 1e-12);
}

static void test_schedules(void **state) {
    (void)state;
    schedule_spec s = {.name = "constant", .rate = 8.0, .warmup = 4, .steps = 24};
    const char *names[] = {"constant", "step", "cosine"};
    for (int i = 0; i < 3; i++) { /* the rise, and the first step after it */
        s.name = names[i];
        check_rate(&s, 0, 2.0);
        check_rate(&s, 3, 8.0);
        check_rate(&s, 4, 8.0);
    }
    check_rate(&s, 14, 4.0);
    check_rate(&s, 24, 0.0);
    check_rate(&s, 40, 0.0); /* does not rise again */
    s.steps = s.warmup;
    check_rate(&s, 10, 8.0);
    s = (schedule_spec){.name = "step", .rate = 8.0, .drop_every = 10, .drop_factor = 0.5};
    check_rate(&s, 9, 8.0);
    check_rate(&s, 10, 4.0);
    check_rate(&s, 29, 2.0);
    s.name = "constant";
    check_rate(&s, 29, 8.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),          cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_before), cmocka_unit_test(test_names),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
