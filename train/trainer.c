/* trainer.c - the loop of one rank; see trainer.h
 *
 * A tensor's gradient goes to the exchange as soon as the backward pass has it, in place: the mean
 * comes back to where the gradient was. When a bucket is refused because some rank's gradient holds
 * NaN or infinity, all ranks skip the step: parameters stay as they are. Buckets of the same step
 * that had gone through already are not lost: their mean is carried, and added to the next gradient
 * on every rank, where it sums to what it was. */
#include "trainer.h"
#include "observe.h"
#include "vector.h"
#include "worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tell_span(const worker *w, const char *name, bool background, double begin,
                      double end) {
    trainer_span span = {name, background, w->step, begin, end};
    if (w->watch != NULL && w->watch->span != NULL)
        w->watch->span(w->watch->context, &span);
}

/* Seconds since *mark, which moves on: the stage that ends here. */
static double lap(const worker *w, const char *stage, double *mark) {
    double before = *mark;
    *mark = now();
    tell_span(w, stage, false, before, *mark);
    return *mark - before;
}

static int group_tensor(const worker *w, int tensor) {
    return w->model->ntensors - 1 - tensor;
}

/* ---- one step */

/* The gradient of a tensor is final: off it goes. */
static void gradient_ready(void *context, int tensor) {
    worker *w = context;
    const model_tensor *t = &w->model->tensors[tensor];
    if (w->carries)
        vector_add(t->grad, w->carry + t->offset, t->n);
    if (w->observed)
        vector_add(w->acc + t->offset, t->grad, t->n);
    int error = tw_allreduce_start(w->group, group_tensor(w, tensor), t->grad, t->grad);
    if (error != TW_OK && w->failed == TW_OK)
        w->failed = worker_fail_library(w, "starting an allreduce", error);
}

/* Before a step that is observed: what the residuals bring to it. */
static int note_residuals(worker *w) {
    for (int t = 0; t < w->model->ntensors; t++) {
        float *to = w->acc + w->model->tensors[t].offset;
        int error = tw_group_get_residual(w->group, group_tensor(w, t), to);
        if (error != TW_OK)
            return worker_fail_library(w, "reading a residual", error);
    }
    return TW_OK;
}

/* Waits for every tensor. *refused: some were, on all ranks alike; the means of the others, which
 * came back to their gradients, are carried then. */
static int collect(worker *w, bool *refused) {
    const model *m = w->model;
    bool arrived = false;
    *refused = false;
    for (int t = m->ntensors - 1; t >= 0; t--) {
        int error = tw_allreduce_wait(w->group, group_tensor(w, t));
        if (error != TW_OK && error != TW_ERR_NUMBER)
            return worker_fail_library(w, "allreduce", error);
        if (error == TW_ERR_NUMBER)
            memset(m->tensors[t].grad, 0, sizeof(float) * (size_t)m->tensors[t].n);
        *refused = *refused || error == TW_ERR_NUMBER;
        arrived = arrived || error == TW_OK;
    }
    w->carries = *refused && arrived;
    if (w->carries)
        memcpy(w->carry, m->grads, sizeof(float) * (size_t)m->n);
    return TW_OK;
}

/* The stages of a bucket, one after the other in the background. */
static void tell_bucket(const worker *w, const tw_step_info *info) {
    double at = info->began;
    tell_span(w, "select", true, at, at + info->select_seconds);
    at += info->select_seconds;
    tell_span(w, "wait for ranks", true, at, at + info->agree_seconds);
    at += info->agree_seconds;
    tell_span(w, "exchange", true, at, at + info->exchange_seconds);
    at += info->exchange_seconds;
    tell_span(w, "apply", true, at, at + info->apply_seconds);
}

/* What the group says of the step, bucket by bucket. */
static int note_exchange(worker *w, trainer_step *s) {
    tw_step_info info;
    double began = 0.0;
    for (int t = 0; t < w->model->ntensors; t++) {
        int error = tw_group_info(w->group, t, &info);
        if (error != TW_OK)
            return worker_fail_library(w, "asking about a step", error);
        s->k += info.k;
        s->selected += info.selected;
        s->applied += info.applied;
        double share = 1.0 / info.tensors; /* each of a bucket's tensors tells the same */
        s->times.select += share * info.select_seconds;
        s->times.wait += share * info.agree_seconds;
        s->times.exchange += share * info.exchange_seconds;
        s->times.apply += share * info.apply_seconds;
        if (t == 0 || info.began != began)
            tell_bucket(w, &info);
        began = info.began;
    }
    return TW_OK;
}

static tw_traffic traffic_of(const worker *w) {
    tw_traffic traffic = {0};
    (void)tw_transport_info(w->transport, NULL, NULL, NULL, &traffic);
    return traffic;
}

static tw_traffic difference(const tw_traffic *a, const tw_traffic *b) {
    return (tw_traffic){
        a->payload_sent - b->payload_sent, a->payload_received - b->payload_received,
        a->control_sent - b->control_sent, a->control_received - b->control_received,
        a->messages_sent - b->messages_sent};
}

/* The losses of all ranks, in sums[]. */
static int share_loss(worker *w, const model_result *result, trainer_step *s) {
    memset(w->sums, 0, sizeof w->sums);
    /* Another rank's bad number is refused by the exchange; a bad loss is told as a flag. */
    w->sums[SUM_LOSS] = isfinite(result->loss) ? (float)result->loss : 0.0f;
    w->sums[SUM_FLAG] = isfinite(result->loss) ? 0.0f : 1.0f;
    w->sums[SUM_COUNT] = (float)result->count;
    w->sums[SUM_CORRECT] = (float)result->correct;
    int status = worker_add_up(w);
    s->loss = w->sums[SUM_FLAG] > 0.0f ? NAN : (double)w->sums[SUM_LOSS] / w->nranks;
    s->accuracy =
        w->sums[SUM_COUNT] > 0.0f ? (double)(w->sums[SUM_CORRECT] / w->sums[SUM_COUNT]) : 0.0;
    return status;
}

static int count_skipped(worker *w) {
    w->skipped++;
    w->skipped_in_row++;
    if (w->skipped_in_row <= w->spec->most_skipped)
        return TW_OK;
    return worker_fail(w, TW_ERR_NUMBER,
                       "the loss diverges: %lld steps in a row held NaN or infinity; try a lower "
                       "learning rate, or a warm-up",
                       (long long)w->skipped_in_row);
}

static int apply_step(worker *w, bool refused, double rate) {
    if (refused)
        return count_skipped(w);
    w->skipped_in_row = 0;
    optimizer_step(&w->optimizer, w->model, rate);
    return TW_OK;
}

/* Forward and backward, with the exchange under it; the mean gradient is there afterwards. */
static int compute(worker *w, trainer_step *s, model_result *result, bool *refused) {
    model_batch batch;
    double mark = now();
    int status = worker_batch(w, &w->train, s->epoch, s->step % w->steps_per_epoch, &batch);
    if (status != TW_OK)
        return status;
    s->times.data = lap(w, "data", &mark);
    if (model_forward(w->model, &batch, result) != MODEL_OK)
        return worker_fail(w, TW_ERR_PARAM, "forward: %s", w->model->error.text);
    s->times.forward = lap(w, "forward", &mark);
    w->failed = TW_OK;
    if (model_backward(w->model, gradient_ready, w) != MODEL_OK)
        return worker_fail(w, TW_ERR_PARAM, "backward: %s", w->model->error.text);
    if (w->failed != TW_OK)
        return w->failed;
    s->times.backward = lap(w, "backward", &mark);
    status = collect(w, refused);
    s->times.exposed = lap(w, "wait for exchange", &mark);
    return status;
}

static void tell_snapshot(const worker *w, const trainer_step *s) {
    trainer_snapshot snapshot = {.step = s->step, .n = w->model->n, .k = s->k};
    if (w->watch == NULL || w->watch->snapshot == NULL)
        return;
    observe(w->acc, &snapshot);
    w->watch->snapshot(w->watch->context, &snapshot);
}

static int train_step(worker *w) {
    trainer_step s = {.step = w->step, .epoch = w->step / w->steps_per_epoch};
    model_result result = {0};
    bool refused = false;
    w->observed = w->spec->snapshot_every > 0 && w->step % w->spec->snapshot_every == 0;
    int status = w->observed ? note_residuals(w) : TW_OK;
    if (status != TW_OK)
        return status;
    tw_traffic before = traffic_of(w);
    double begin = now();
    status = compute(w, &s, &result, &refused);
    double mark = now();
    s.rate = schedule_rate(&w->spec->schedule, w->step);
    if (status == TW_OK)
        status = apply_step(w, refused, s.rate);
    s.times.optimiser = lap(w, "optimiser", &mark);
    w->elapsed += mark - begin;
    tw_traffic after = traffic_of(w);
    s.traffic = difference(&after, &before);
    if (status == TW_OK)
        status = share_loss(w, &result, &s);
    if (status == TW_OK && !refused)
        status = note_exchange(w, &s);
    if (status != TW_OK)
        return status;
    s.elapsed = w->elapsed;
    s.skipped = w->skipped;
    if (w->watch != NULL && w->watch->step != NULL)
        w->watch->step(w->watch->context, &s);
    if (w->observed && !refused)
        tell_snapshot(w, &s);
    w->step++;
    return TW_OK;
}

/* ---- evaluation */

/* Running statistics become the mean over ranks, the same on all. */
static int average_state(worker *w) {
    model *m = w->model;
    if (m->nstate == 0)
        return TW_OK;
    int error = tw_allreduce(w->beside, 1, m->state, m->state);
    if (error != TW_OK)
        return worker_fail_library(w, "averaging running statistics", error);
    for (int64_t i = 0; i < m->nstate; i++)
        m->state[i] /= (float)w->nranks;
    return TW_OK;
}

static int evaluate_share(worker *w, double *loss) {
    int64_t batches = 0;
    dataset_error error = {{0}};
    int status = dataset_steps(w->data, &w->test, &batches, &error);
    if (status != TW_OK)
        return worker_fail(w, status, "%s", error.text);
    memset(w->sums, 0, sizeof w->sums);
    *loss = 0.0;
    for (int64_t b = 0; b < batches; b++) {
        model_batch batch;
        model_result result = {0};
        status = worker_batch(w, &w->test, 0, b, &batch);
        if (status != TW_OK)
            return status;
        if (batch.count == 0)
            continue;
        if (model_evaluate(w->model, &batch, &result) != MODEL_OK)
            return worker_fail(w, TW_ERR_PARAM, "evaluation: %s", w->model->error.text);
        *loss += result.loss * (double)result.count;
        w->sums[SUM_COUNT] += (float)result.count;
        w->sums[SUM_CORRECT] += (float)result.correct;
    }
    return TW_OK;
}

static int evaluate(worker *w, trainer_end *end) {
    double loss = 0.0;
    int status = average_state(w);
    if (status == TW_OK)
        status = evaluate_share(w, &loss);
    if (status != TW_OK)
        return status;
    w->sums[SUM_LOSS] = isfinite(loss) ? (float)loss : 0.0f;
    w->sums[SUM_FLAG] = isfinite(loss) ? 0.0f : 1.0f;
    status = worker_add_up(w);
    double count = fmax(1.0, (double)w->sums[SUM_COUNT]);
    end->loss = w->sums[SUM_FLAG] > 0.0f ? NAN : (double)w->sums[SUM_LOSS] / count;
    end->accuracy = (double)w->sums[SUM_CORRECT] / count;
    trainer_evaluation e = {.step = w->step,
                            .epoch = w->step / w->steps_per_epoch,
                            .loss = end->loss,
                            .accuracy = end->accuracy,
                            .elapsed = w->elapsed};
    if (status == TW_OK && w->watch != NULL && w->watch->evaluation != NULL)
        w->watch->evaluation(w->watch->context, &e);
    return status;
}

/* ---- the run */

static int due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static int train(worker *w, trainer_end *end) {
    int status = w->spec->resume && w->spec->checkpoints != NULL ? checkpoint_resume(w) : TW_OK;
    bool evaluated = false;
    while (status == TW_OK && w->step < w->spec->steps) {
        status = train_step(w);
        evaluated = false;
        if (status == TW_OK && due(w->spec->evaluate_every, w->step)) {
            status = evaluate(w, end);
            evaluated = true;
        }
        if (status == TW_OK && w->spec->checkpoints != NULL &&
            due(w->spec->checkpoint_every, w->step))
            status = checkpoint_save(w);
    }
    if (status == TW_OK && !evaluated)
        status = evaluate(w, end);
    return status;
}

static uint64_t hash_parameters(const model *m) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < m->n; i++) {
        uint32_t bits;
        memcpy(&bits, &m->values[i], sizeof bits);
        hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* What auto chose, bucket by bucket: tensors that travelled together follow each other. */
static void note_choices(const worker *w, trainer_end *end) {
    tw_step_info info = {.tensors = 1};
    int ntensors = w->model->ntensors;
    for (int t = 0; t < ntensors && end->nchoices < TRAINER_CHOICES; t += info.tensors) {
        trainer_choice *c = &end->choices[end->nchoices];
        if (tw_group_choice(w->group, t, &c->choice) != TW_OK ||
            tw_group_info(w->group, t, &info) != TW_OK || info.tensors == 0)
            return; /* the scheme is fixed, or there was no step */
        c->tensors = info.tensors;
        for (int i = t; i < t + info.tensors; i++)
            c->n += w->model->tensors[group_tensor(w, i)].n;
        end->nchoices++;
    }
}

int trainer_run(const trainer_spec *spec, const dataset *data, tw_transport *transport,
                tw_transport *beside, const trainer_watch *watch, trainer_end *end,
                trainer_error *error) {
    worker w = {.spec = spec, .data = data, .watch = watch, .error = error, .transport = transport};
    error->text[0] = '\0';
    *end = (trainer_end){0};
    int status = worker_create(&w, transport, beside);
    if (status == TW_OK)
        status = train(&w, end);
    if (status == TW_OK)
        end->hash = hash_parameters(w.model);
    if (status == TW_OK)
        note_choices(&w, end);
    end->steps = w.step;
    end->skipped = w.skipped;
    end->seconds = w.elapsed;
    worker_free(&w);
    return status;
}
