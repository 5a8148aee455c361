/* test_models.c - the models of the trainer: parameters, gradients, bits, bad input
 *
 * Built in float, as the trainer runs, and in double, where gradients are compared with differences.
 * Models with sizes to choose are tiny here; the big ones are counted without allocating them.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gradient_check.h"
#include "model.h"

enum { COUNT = 3, NMODELS = 6 };

static const model_spec specs[NMODELS] = {
    {.name = "cnn", .max_batch = COUNT, .seed = 1},
    {.name = "vgg16", .max_batch = COUNT, .seed = 2},
    {.name = "resnet20", .max_batch = COUNT, .seed = 3},
    {.name = "lstm", .max_batch = COUNT, .seed = 4, .vocabulary = 13, .length = 5, .width = 6},
    {.name = "bert",
     .max_batch = COUNT,
     .seed = 5,
     .vocabulary = 17,
     .length = 6,
     .width = 8,
     .layers = 2,
     .heads = 2,
     .inner = 12},
    {.name = "mlp", .max_batch = COUNT, .seed = 6},
};

/* ---- A counting allocator: the linker puts it before malloc and the like, see models.cmake --------- */

static _Atomic int64_t allocations, failing; /* failing: the call that fails, from 1; 0: none */

static bool admit(void) {
    return ++allocations != failing;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size) {
    return admit() ? __real_malloc(size) : NULL;
}
void *__wrap_calloc(size_t count, size_t size) {
    return admit() ? __real_calloc(count, size) : NULL;
}
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return admit() ? __real_aligned_alloc(alignment, size) : NULL;
}

/* ---- A model with a batch ------------------------------------------------------------------------- */

enum { MOST_TOKENS = COUNT * 8 };

typedef struct subject {
    model *m;
    model_batch batch;
    real *images;
    int32_t tokens[MOST_TOKENS], labels[MOST_TOKENS], segments[MOST_TOKENS];
    int32_t lengths[COUNT], follows[COUNT];
} subject;

static void fill_text(subject *s) {
    const int length = s->m->spec.length, words = s->m->spec.vocabulary;
    const bool masked = s->m->kind->input == MODEL_MASKED;
    for (int i = 0; i < COUNT * length; i++) {
        s->tokens[i] = (i * 7 + 3) % words;
        s->labels[i] = masked && i % 3 != 0 ? MODEL_IGNORE : (i * 5 + 1) % words;
        s->segments[i] = i % length >= length / 2;
    }
    for (int i = 0; i < COUNT; i++) {
        s->lengths[i] = length - i;
        s->follows[i] = i % 2;
    }
}

static void open_subject(subject *s, const model_spec *spec) {
    if (model_create(&s->m, spec) != TW_OK)
        check_fail("%s: %s", spec->name, tw_last_error());
    const model_kind *kind = s->m->kind;
    const int64_t pixels = (int64_t)COUNT * kind->height * kind->width * kind->channels;
    s->images = check_alloc(pixels + 1, sizeof(real));
    gradient_fill(s->images, pixels, 11);
    if (kind->input == MODEL_IMAGES)
        for (int i = 0; i < COUNT; i++)
            s->labels[i] = (3 * i + 1) % kind->classes;
    else
        fill_text(s);
    s->batch = (model_batch){.count = COUNT,
                             .images = s->images,
                             .tokens = s->tokens,
                             .labels = s->labels,
                             .segments = s->segments,
                             .lengths = s->lengths,
                             .follows = s->follows};
}

static void close_subject(subject *s) {
    model_free(s->m);
    free(s->images);
}

static double step_loss(subject *s) {
    model_result result;
    check_int("forward", model_forward(s->m, &s->batch, &result), TW_OK);
    return result.loss;
}

/* Steps of plain gradient descent. */
static void train(subject *s, int steps, real rate) {
    for (int i = 0; i < steps; i++) {
        step_loss(s);
        check_int("backward", model_backward(s->m, NULL, NULL), TW_OK);
        for (int64_t j = 0; j < s->m->n; j++)
            s->m->values[j] -= rate * s->m->grads[j];
    }
}

static void check_same_model(const model *got, const model *want) {
    gradient_same("value", got->values, want->values, want->n);
    gradient_same("gradient", got->grads, want->grads, want->n);
    gradient_same("state", got->state, want->state, want->nstate);
}

/* ---- Parameters ------------------------------------------------------------------------------------ */

static void check_count(model_spec spec, int64_t want) {
    model_size size;
    spec.max_batch = 1;
    check_scene("%s %s", spec.name, spec.size ? spec.size : "");
    check_int("measured", model_measure(&spec, &size), TW_OK);
    check_int("parameters", size.n, want);
    check_true(size.bytes > 2 * (size_t)want * sizeof(real));
}

static void test_counts(void **state) {
    (void)state;
    check_count((model_spec){.name = "cnn"}, 105866);
    check_count((model_spec){.name = "mlp"}, 109386);
    check_count((model_spec){.name = "vgg16"}, 14728266);
    check_count((model_spec){.name = "resnet20"}, 269722);
    check_count((model_spec){.name = "lstm"}, 4651600);
    check_count((model_spec){.name = "bert", .size = "base"}, 133547324);
    check_count((model_spec){.name = "bert", .vocabulary = 1000}, 753130);
}

/* Tensors tile the blocks in order, names are unique, initial values are finite and seeded. */
static void test_tensors(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    const model *m = s.m;
    check_scene("%s", spec->name);
    int64_t at = 0;
    for (int i = 0; i < m->ntensors; i++) {
        const model_tensor *t = &m->tensors[i];
        check_int(t->name, t->offset, at);
        check_true(t->value == m->values + at && t->grad == m->grads + at);
        for (int j = 0; j < i; j++)
            check_true(strcmp(t->name, m->tensors[j].name) != 0);
        at += t->n;
    }
    check_int("all tensors", at, m->n);
    check_true((uintptr_t)m->values % 64 == 0 && (uintptr_t)m->grads % 64 == 0);
    model_spec other = *spec;
    other.seed++;
    subject o;
    open_subject(&o, &other);
    check_true(memcmp(m->values, o.m->values, (size_t)m->n * sizeof(real)) != 0);
    close_subject(&o);
    close_subject(&s);
}

#ifdef TRAIN_DOUBLE /* differences are noise in float */

/* ---- Gradients ------------------------------------------------------------------------------------- */

static double loss_again(void *context) {
    return step_loss(context);
}

static void test_gradients(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    check_scene("%s", spec->name);
    train(&s, 2, (real)0.01); /* away from zero biases and even norms */
    step_loss(&s);
    model_backward(s.m, NULL, NULL);
    real *grads = check_alloc(s.m->n, sizeof(real));
    memcpy(grads, s.m->grads, (size_t)s.m->n * sizeof(real));
    const int samples = s.m->n > 1000000 ? 2 : 12;
    for (int i = 0; i < s.m->ntensors; i++) {
        const model_tensor *t = &s.m->tensors[i];
        gradient_check(t->name, GRADIENT_MODEL, loss_again, &s, t->value, grads + t->offset, t->n,
                       samples);
    }
    free(grads);
    close_subject(&s);
}

#endif

/* ---- Announcements --------------------------------------------------------------------------------- */

/* Every tensor is announced once, the last first, and its gradient is final then. */
typedef struct listener {
    const model *m;
    int next;
    real *seen; /* [n] gradients as they were when announced */
} listener;

static void hear(void *context, int tensor) {
    listener *l = context;
    const model_tensor *t = &l->m->tensors[tensor];
    check_int("tensor announced", tensor, l->next--);
    memcpy(l->seen + t->offset, t->grad, (size_t)t->n * sizeof(real));
}

static void test_ready(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    check_scene("%s", spec->name);
    listener l = {.m = s.m, .next = s.m->ntensors - 1};
    l.seen = check_alloc(s.m->n, sizeof(real));
    step_loss(&s);
    memset(s.m->grads, 0xff, (size_t)s.m->n * sizeof(real)); /* NaN: all must be written */
    check_int("backward", model_backward(s.m, hear, &l), TW_OK);
    check_int("tensors left", l.next, -1);
    gradient_same("gradient when announced", l.seen, s.m->grads, s.m->n);
    for (int64_t i = 0; i < s.m->n; i++)
        check_true(isfinite((double)s.m->grads[i]));
    free(l.seen);
    close_subject(&s);
}

/* ---- Bits ------------------------------------------------------------------------------------------ */

/* The same seed and batch: the same bits in a second run, with 3 threads, and in a larger model. */
static void test_same_bits(void **state) {
    const model_spec *spec = *state;
    subject one, other;
    open_subject(&one, spec);
    train(&one, 3, (real)0.01);
    const model_spec variants[] = {*spec, *spec, *spec};
    for (int i = 0; i < 3; i++) {
        model_spec variant = variants[i];
        variant.threads = i == 1 ? 3 : 1;
        variant.max_batch = i == 2 ? COUNT + 2 : COUNT;
        check_scene("%s, %d threads, room for %d", spec->name, variant.threads, variant.max_batch);
        open_subject(&other, &variant);
        train(&other, 3, (real)0.01);
        check_same_model(other.m, one.m);
        close_subject(&other);
    }
    close_subject(&one);
}

static void *train_apart(void *argument) {
    train(argument, 2, (real)0.01);
    return NULL;
}

/* Four models at work at the same time, each in its thread, give the bits of one alone. */
static void test_side_by_side(void **state) {
    enum { SIDES = 4 };
    const model_spec *spec = *state;
    subject alone, side[SIDES];
    pthread_t threads[SIDES];
    open_subject(&alone, spec);
    train(&alone, 2, (real)0.01);
    for (int i = 0; i < SIDES; i++)
        open_subject(&side[i], spec);
    for (int i = 0; i < SIDES; i++)
        check_int("thread", pthread_create(&threads[i], NULL, train_apart, &side[i]), 0);
    for (int i = 0; i < SIDES; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SIDES; i++) {
        check_scene("%s, number %d of %d", spec->name, i, SIDES);
        check_same_model(side[i].m, alone.m);
        close_subject(&side[i]);
    }
    close_subject(&alone);
}

/* ---- Learning and evaluation ------------------------------------------------------------------------ */

static void test_learns(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    check_scene("%s", spec->name);
    const double first = step_loss(&s);
    if (strcmp(spec->name, "lstm") == 0)
        train(&s, 200, 2);
    else
        train(&s, strcmp(spec->name, "vgg16") == 0 ? 8 : 30, (real)0.02);
    const double last = step_loss(&s);
    if (!(last < 0.9 * first))
        check_fail("the loss went from %g to %g", first, last);
    close_subject(&s);
}

/* Evaluation changes nothing, repeats itself, and cannot be followed by backward. */
static void test_evaluate(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    check_scene("%s", spec->name);
    train(&s, 1, (real)0.01);
    model *m = s.m;
    real *kept = check_alloc(m->n + m->nstate + 1, sizeof(real));
    memcpy(kept, m->values, (size_t)m->n * sizeof(real));
    memcpy(kept + m->n, m->state, (size_t)m->nstate * sizeof(real));
    model_result one, two;
    check_int("evaluate", model_evaluate(m, &s.batch, &one), TW_OK);
    check_int("evaluate", model_evaluate(m, &s.batch, &two), TW_OK);
    check_true(one.loss == two.loss && one.correct == two.correct && one.count == two.count);
    check_true(isfinite(one.loss) && one.correct <= one.count && one.count > 0);
    gradient_same("value", m->values, kept, m->n);
    gradient_same("state", m->state, kept + m->n, m->nstate);
    check_int("backward", model_backward(m, NULL, NULL), TW_ERR_STATE);
    check_contains(tw_last_error(), "forward");
    free(kept);
    close_subject(&s);
}

/* ---- Memory ------------------------------------------------------------------------------------------ */

static void test_no_allocation(void **state) {
    const model_spec *spec = *state;
    model_spec two = *spec;
    two.threads = 2;
    subject s;
    open_subject(&s, &two);
    check_scene("%s", spec->name);
    const int64_t before = allocations;
    train(&s, 2, (real)0.01);
    model_evaluate(s.m, &s.batch, NULL);
    check_int("allocations in steps", allocations - before, 0);
    close_subject(&s);
}

/* Each allocation of a creation fails in turn: an error, no model, nothing lost (ASan looks). */
static void test_out_of_memory(void **state) {
    (void)state;
    model_spec spec = specs[4];
    spec.threads = 2;
    for (int64_t i = 1;; i++) {
        model *m;
        allocations = 0;
        failing = i;
        int status = model_create(&m, &spec);
        failing = 0;
        if (status == TW_OK) {
            check_true(i > 5);
            model_free(m);
            return;
        }
        check_int("status", status, TW_ERR_MEMORY);
        check_true(m == NULL);
    }
}

/* What stands in the padding does not matter to bert. */
static void test_padding(void **state) {
    (void)state;
    subject s;
    open_subject(&s, &specs[4]);
    const int length = s.m->spec.length;
    for (int i = 0; i < COUNT; i++)
        for (int j = s.lengths[i]; j < length; j++)
            s.labels[i * length + j] = MODEL_IGNORE;
    const double before = step_loss(&s);
    for (int i = 0; i < COUNT; i++)
        for (int j = s.lengths[i]; j < length; j++)
            s.tokens[i * length + j] = 16 - s.tokens[i * length + j];
    check_true(step_loss(&s) == before);
    close_subject(&s);
}

/* ---- Bad input ---------------------------------------------------------------------------------------- */

static void check_refused(model_spec spec, int want, const char *words) {
    model *m = (model *)&spec; /* anything but NULL */
    check_scene("%s: %s", spec.name ? spec.name : "NULL", words);
    check_int("create", model_create(&m, &spec), want);
    check_true(m == NULL);
    check_contains(tw_last_error(), words);
}

static void test_bad_specs(void **state) {
    (void)state;
    check_refused((model_spec){.name = "alexnet", .max_batch = 1}, TW_ERR_NAME, "alexnet");
    check_refused((model_spec){.max_batch = 1}, TW_ERR_NAME, "no model");
    check_refused((model_spec){.name = "cnn"}, TW_ERR_PARAM, "max_batch");
    check_refused((model_spec){.name = "cnn", .max_batch = -1}, TW_ERR_PARAM, "-1");
    check_refused((model_spec){.name = "cnn", .max_batch = 1, .threads = 1000}, TW_ERR_PARAM,
                  "threads");
    check_refused((model_spec){.name = "cnn", .max_batch = 1, .size = "big"}, TW_ERR_NAME, "big");
    check_refused((model_spec){.name = "vgg16", .max_batch = 1, .width = 3}, TW_ERR_PARAM, "text");
    check_refused((model_spec){.name = "lstm", .max_batch = 1, .layers = 3}, TW_ERR_PARAM,
                  "layers");
    check_refused((model_spec){.name = "lstm", .max_batch = 1, .heads = 3}, TW_ERR_PARAM, "heads");
    check_refused((model_spec){.name = "bert", .max_batch = 1, .size = "huge"}, TW_ERR_NAME,
                  "huge");
    check_refused((model_spec){.name = "bert", .max_batch = 1, .heads = 3}, TW_ERR_PARAM,
                  "multiple");
    check_refused((model_spec){.name = "bert", .max_batch = 1, .length = 513}, TW_ERR_PARAM, "513");
}

static void check_batch(subject *s, model_batch batch, const char *words) {
    model_result untouched = {.loss = 42};
    check_scene("%s: %s", s->m->kind->name, words);
    check_int("forward", model_forward(s->m, &batch, &untouched), TW_ERR_PARAM);
    check_int("evaluate", model_evaluate(s->m, &batch, &untouched), TW_ERR_PARAM);
    check_contains(tw_last_error(), words);
    check_true(untouched.loss == 42);
}

static void test_bad_batches(void **state) {
    (void)state;
    subject cnn, bert;
    open_subject(&cnn, &specs[0]);
    open_subject(&bert, &specs[4]);
    model_batch batch = cnn.batch;
    batch.count = COUNT + 1;
    check_batch(&cnn, batch, "batch of 4");
    batch.count = 0;
    check_batch(&cnn, batch, "batch of 0");
    check_batch(&cnn, (model_batch){.count = 1, .labels = cnn.labels}, "images");
    check_batch(&cnn, (model_batch){.count = 1, .images = cnn.images}, "labels");
    cnn.labels[1] = 10;
    check_batch(&cnn, cnn.batch, "label of sample 1 is 10");
    cnn.labels[1] = -2;
    check_batch(&cnn, cnn.batch, "-2");
    bert.tokens[7] = 17;
    check_batch(&bert, bert.batch, "token of sample 1 is 17");
    bert.tokens[7] = 0;
    bert.segments[3] = 2;
    check_batch(&bert, bert.batch, "segment");
    bert.segments[3] = 1;
    bert.lengths[2] = 0;
    check_batch(&bert, bert.batch, "length");
    bert.lengths[2] = 1;
    bert.follows[0] = 2;
    check_batch(&bert, bert.batch, "follows");
    close_subject(&cnn);
    close_subject(&bert);
}

/* A batch in which nothing counts: loss 0, all gradients 0. */
static void test_nothing_counts(void **state) {
    const model_spec *spec = *state;
    subject s;
    open_subject(&s, spec);
    check_scene("%s", spec->name);
    for (int i = 0; i < MOST_TOKENS; i++)
        s.labels[i] = MODEL_IGNORE;
    s.batch.follows = NULL;
    check_true(step_loss(&s) == 0);
    model_backward(s.m, NULL, NULL);
    for (int64_t i = 0; i < s.m->n; i++)
        check_true(s.m->grads[i] == 0);
    close_subject(&s);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void **state);
    } each[] = {{"tensors", test_tensors},
#ifdef TRAIN_DOUBLE
                {"gradients", test_gradients},
#endif
                {"ready", test_ready},
                {"same_bits", test_same_bits},
                {"learns", test_learns},
                {"side_by_side", test_side_by_side},
                {"evaluate", test_evaluate},
                {"nothing_counts", test_nothing_counts},
                {"no_allocation", test_no_allocation}};
    enum { EACH = sizeof each / sizeof each[0], OTHERS = 5 };
    struct CMUnitTest tests[EACH * NMODELS + OTHERS] = {
        cmocka_unit_test(test_counts), cmocka_unit_test(test_padding),
        cmocka_unit_test(test_bad_specs), cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_bad_batches)};
    for (int i = 0; i < EACH * NMODELS; i++) {
        void *spec = (void *)(uintptr_t)&specs[i % NMODELS];
        tests[OTHERS + i] =
            (struct CMUnitTest){each[i / NMODELS].name, each[i / NMODELS].run, NULL, NULL, spec};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
