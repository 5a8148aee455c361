/* trainer.c - the loop of one rank; see trainer.h
 *
 * A tensor's gradient goes to the exchange as soon as the backward pass has it, in place: the mean
 * comes back to where the gradient was. When a bucket is refused because some rank's gradient holds
 * NaN or infinity, all ranks skip the step: parameters stay as they are. Buckets of the same step
 * that had gone through already are not lost: their mean is carried, and added to the next gradient
 * on every rank: the mean over ranks of equal vectors is that vector. With AdamW before selection
 * they are updates, and are applied at once. */
#include "trainer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "layers/vector.h"
#include "worker.h"

static void tell_span(const worker *w, const char *name, bool background, double begin,
                      double end) {
    trainer_span span = {name, background, w->step, begin, end};
    if (w->watch->span != NULL)
        w->watch->span(w->watch->context, &span);
}

/* Seconds since *mark, which moves on: the stage that ends here. */
static double lap(const worker *w, const char *stage, double *mark) {
    double before = *mark;
    *mark = tw__seconds();
    tell_span(w, stage, false, before, *mark);
    return *mark - before;
}

void worker_start(worker *w, int tensor, float *grad) {
    const model_tensor *t = &w->model->tensors[tensor];
    if (w->carries)
        vector_add(grad, w->carry + t->offset, t->n);
    if (w->observed)
        vector_add(w->acc + t->offset, grad, t->n);
    float *out = worker_is_elastic(w) ? w->means + t->offset : grad;
    int error = tw_allreduce_start(w->group, worker_group_tensor(w, tensor), grad, out);
    if (error == TW_OK && worker_is_elastic(w))
        w->progress[tensor] = TENSOR_STARTED;
    if (error != TW_OK && w->failed == TW_OK)
        w->failed = worker_is_elastic(w) ? error : worker_check(w, "starting an allreduce", error);
}

/* The gradient of a tensor is final: its exchange starts. */
static void gradient_ready(void *context, int tensor) {
    worker *w = context;
    worker_start(w, tensor, w->model->tensors[tensor].grad);
}

/* Local steps keep gradients to themselves. */
static void gradient_is_own(void *context, int tensor) {
    (void)context, (void)tensor;
}

/* Before a step that is observed: acc starts from the residuals. */
static int read_residuals(worker *w) {
    for (int t = 0; t < w->model->ntensors; t++) {
        float *to = w->acc + w->model->tensors[t].offset;
        TW_TRY(worker_check(w, "reading a residual",
                            tw_group_get_residual(w->group, worker_group_tensor(w, t), to)));
    }
    return TW_OK;
}

int worker_collect(worker *w, float *means, bool *refused) {
    const model *m = w->model;
    bool arrived = false;
    *refused = false;
    for (int t = m->ntensors - 1; t >= 0; t--) {
        int error = tw_allreduce_wait(w->group, worker_group_tensor(w, t));
        if (error != TW_OK && error != TW_ERR_NUMBER)
            return worker_check(w, "allreduce", error);
        if (error == TW_ERR_NUMBER)
            memset(means + m->tensors[t].offset, 0, sizeof(float) * (size_t)m->tensors[t].n);
        *refused = *refused || error == TW_ERR_NUMBER;
        arrived = arrived || error == TW_OK;
    }
    worker_carry(w, means, *refused && arrived);
    return TW_OK;
}

/* The stages of a bucket, one after the other in the background. */
static void tell_bucket(const worker *w, const tw_step_info *info) {
    static const char *const names[] = {"select", "wait for ranks", "exchange", "apply"};
    const double seconds[] = {info->select_seconds, info->agree_seconds, info->exchange_seconds,
                              info->apply_seconds};
    double at = info->began;
    for (int i = 0; i < 4; i++) {
        tell_span(w, names[i], true, at, at + seconds[i]);
        at += seconds[i];
    }
}

int worker_note_exchange(worker *w, trainer_step *s) {
    tw_step_info info;
    double began = 0.0;
    for (int t = 0; t < w->model->ntensors; t++) {
        TW_TRY(worker_check(w, "asking about a step", tw_group_info(w->group, t, &info)));
        s->k += info.k;
        s->density += (double)info.k / (double)w->model->n;
        s->selected += info.selected;
        s->applied += info.applied;
        double share = 1.0 / info.tensors; /* all tensors of a bucket report the same */
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

/* What the group has sent and received since the last step, between steps too: delayed rounds go on
 * then. */
static tw_traffic traffic_since_last(worker *w) {
    tw_traffic now = {0}, before = w->traffic;
    (void)tw_transport_info(w->transport, NULL, NULL, NULL, &now);
    w->traffic = now;
    return (tw_traffic){.payload_sent = now.payload_sent - before.payload_sent,
                        .payload_received = now.payload_received - before.payload_received,
                        .control_sent = now.control_sent - before.control_sent,
                        .control_received = now.control_received - before.control_received,
                        .messages_sent = now.messages_sent - before.messages_sent};
}

/* Sums loss, count and correct over all ranks, in sums[]. The exchange would refuse NaN: a bad loss
 * travels as a flag, and *total is NaN then. */
static int share_loss(worker *w, double loss, int64_t count, int64_t correct, double *total) {
    if (worker_is_elastic(w))
        return elastic_share_loss(w, loss, count, correct, 0, total);
    memset(w->sums, 0, sizeof w->sums);
    w->sums[SUM_LOSS] = isfinite(loss) ? (float)loss : 0.0f;
    w->sums[SUM_FLAG] = isfinite(loss) ? 0.0f : 1.0f;
    w->sums[SUM_COUNT] = (float)count;
    w->sums[SUM_CORRECT] = (float)correct;
    int status = worker_allreduce_sums(w);
    *total = w->sums[SUM_FLAG] > 0.0f ? NAN : (double)w->sums[SUM_LOSS];
    return status;
}

/* Counts steps, or rounds, that were refused. Too many in a row end the run. */
static int note_refused(worker *w, bool refused) {
    if (!refused) {
        w->skipped_in_row = 0;
        return TW_OK;
    }
    w->skipped++;
    if (++w->skipped_in_row <= w->spec->most_skipped)
        return TW_OK;
    return worker_fail(w, TW_ERR_NUMBER,
                       "the loss diverges: %lld steps in a row held NaN or infinity; try a lower "
                       "learning rate, or a warm-up",
                       (long long)w->skipped_in_row);
}

static int apply_step(worker *w, bool refused, double rate) {
    if (!refused || optimizer_is_before(w->spec->optimizer.name))
        optimizer_step(&w->optimizer, w->model, rate); /* before: what was refused is zero */
    return note_refused(w, refused);
}

static int exchange_round(worker *w, trainer_step *s, bool *refused) {
    double mark = tw__seconds();
    TW_TRY(local_end_round(w, s, refused));
    s->times.exposed = lap(w, "round", &mark);
    return note_refused(w, *refused);
}

/* Forward, then backward with the exchange in the background, then the wait for mean gradients. */
static int compute(worker *w, trainer_step *s, model_result *result, bool *refused) {
    model_batch batch;
    double mark = tw__seconds();
    int64_t at = s->step % w->steps_per_epoch;
    if (worker_is_elastic(w))
        at = elastic_block(w, s->step, &s->epoch);
    TW_TRY(worker_batch(w, &w->train, s->epoch, at, &batch));
    w->taken = s->step + 1;
    s->times.data = lap(w, "data", &mark);
    TW_TRY(worker_check(w, "forward", model_forward(w->model, &batch, result)));
    s->times.forward = lap(w, "forward", &mark);
    bool local = w->spec->local_steps > 0;
    w->failed = TW_OK;
    TW_TRY(worker_check(w, "backward",
                        model_backward(w->model, local ? gradient_is_own : gradient_ready, w)));
    TW_TRY(worker_is_elastic(w) ? TW_OK : w->failed);
    s->times.backward = lap(w, "backward", &mark);
    if (local)
        return TW_OK;
    int status = worker_is_elastic(w) ? elastic_collect(w, refused)
                                      : worker_collect(w, w->model->grads, refused);
    s->times.exposed = lap(w, "wait for exchange", &mark);
    return status;
}

/* With local steps nobody waits for another rank's loss. A rank that is lost now takes the sums of this
 * step along: the log has null. */
static int share_losses(worker *w, const model_result *result, trainer_step *s) {
    if (w->spec->local_steps > 0) {
        s->loss = result->loss;
        s->accuracy = (double)result->correct / fmax(1.0, (double)result->count);
        return TW_OK;
    }
    double begin = tw__seconds();
    int status = share_loss(w, result->loss, result->count, result->correct, &s->loss);
    s->loss /= w->nranks;
    s->accuracy =
        w->sums[SUM_COUNT] > 0.0f ? (double)(w->sums[SUM_CORRECT] / w->sums[SUM_COUNT]) : 0.0;
    if (status == TW_OK || !worker_is_elastic(w))
        return status;
    s->loss = s->accuracy = NAN;
    return elastic_recover(w, status, begin);
}

static int train_step(worker *w) {
    trainer_step s = {.step = w->step, .epoch = w->step / w->steps_per_epoch};
    model_result result = {0};
    bool refused = false, round = local_ends_round(w);
    assert(w->step < w->spec->steps);
    w->observed = w->spec->snapshot_every > 0 && w->step % w->spec->snapshot_every == 0;
    TW_TRY(w->observed ? read_residuals(w) : TW_OK);
    double begin = tw__seconds();
    s.rate = schedule_rate(&w->spec->schedule, w->step);
    if (optimizer_is_before(w->spec->optimizer.name))
        TW_TRY(worker_check(w, "setting the rate", tw_group_set_rate(w->group, TW_ALL, s.rate)));
    TW_TRY(compute(w, &s, &result, &refused));
    double mark = tw__seconds();
    TW_TRY(apply_step(w, refused, s.rate));
    s.times.optimiser = lap(w, "optimiser", &mark);
    TW_TRY(round ? exchange_round(w, &s, &refused) : TW_OK);
    w->elapsed += tw__seconds() - begin;
    s.traffic = traffic_since_last(w);
    TW_TRY(share_losses(w, &result, &s));
    TW_TRY(!refused && w->spec->local_steps == 0 ? worker_note_exchange(w, &s) : TW_OK);
    s.elapsed = w->elapsed;
    s.skipped = w->skipped;
    if (w->watch->step != NULL)
        w->watch->step(w->watch->context, &s);
    if (w->observed && !refused && w->watch->snapshot != NULL) {
        trainer_snapshot snapshot = {.step = s.step, .n = w->model->n, .k = s.k};
        snapshot_fill(&snapshot, w->acc);
        w->watch->snapshot(w->watch->context, &snapshot);
    }
    w->step++;
    w->exchanged = false;
    return TW_OK;
}

/* Running statistics become the mean over ranks, the same on all. */
static int average_state(worker *w) {
    model *m = w->model;
    if (m->nstate == 0)
        return TW_OK;
    if (worker_is_elastic(w))
        return elastic_average_state(w);
    TW_TRY(worker_check(w, "averaging running statistics",
                        tw_allreduce(w->metrics, METRICS_STATE, m->state, m->state)));
    for (int64_t i = 0; i < m->nstate; i++)
        m->state[i] /= (float)w->nranks;
    return TW_OK;
}

static void tell_evaluation(worker *w) {
    trainer_evaluation e = {w->step, w->step / w->steps_per_epoch, w->end->loss, w->end->accuracy,
                            w->elapsed};
    if (worker_is_elastic(w))
        (void)elastic_block(w, w->step, &e.epoch);
    if (w->watch->evaluation != NULL && w->evaluated != w->step)
        w->watch->evaluation(w->watch->context, &e);
    w->evaluated = w->step;
}

int evaluate_once(worker *w) {
    model_result sum = {0}; /* of this rank's share of the test data; its loss is not divided */
    trainer_end *end = w->end;
    int64_t batches = 0;
    TW_TRY(average_state(w));
    TW_TRY(worker_check(w, "", dataset_steps(w->data, &w->test, &batches)));
    for (int64_t b = 0; b < batches; b++) {
        model_batch batch;
        model_result result = {0};
        TW_TRY(worker_batch(w, &w->test, 0, b, &batch));
        if (batch.count == 0)
            continue;
        TW_TRY(worker_check(w, "evaluation", model_evaluate(w->model, &batch, &result)));
        sum.loss += result.loss * (double)result.count;
        sum.count += result.count;
        sum.correct += result.correct;
    }
    if (worker_is_elastic(w)) {
        end->hash = hash_words(0, w->model->values, sizeof(float) * (size_t)w->model->n);
        TW_TRY(elastic_share_loss(w, sum.loss, sum.count, sum.correct, end->hash, &end->loss));
    } else
        TW_TRY(share_loss(w, sum.loss, sum.count, sum.correct, &end->loss));
    double count = fmax(1.0, (double)w->sums[SUM_COUNT]);
    end->loss /= count;
    end->accuracy = (double)w->sums[SUM_CORRECT] / count;
    tell_evaluation(w);
    return TW_OK;
}

/* If a rank is lost meanwhile, all that are left evaluate once more, in elastic_recover. */
static int evaluate(worker *w) {
    double begin = tw__seconds();
    w->evaluating = true;
    int status = evaluate_once(w);
    if (status != TW_OK && worker_is_elastic(w))
        status = elastic_recover(w, status, begin);
    w->evaluating = false;
    return status;
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static int train(worker *w) {
    bool evaluated = false, checkpoints = w->spec->checkpoints != NULL;
    TW_TRY(checkpoints ? checkpoint_begin(w) : TW_OK);
    (void)traffic_since_last(w); /* opening the group is not part of a step */
    while (w->step < w->spec->steps) {
        TW_TRY(train_step(w));
        evaluated = due(w->spec->evaluate_every, w->step);
        TW_TRY(evaluated ? evaluate(w) : TW_OK);
        if (checkpoints && due(w->spec->checkpoint_every, w->step))
            TW_TRY(checkpoint_save(w));
        if (worker_is_elastic(w) && w->step < w->spec->steps)
            TW_TRY(elastic_change(w));
        if (w->end->left)
            return TW_OK;
    }
    TW_TRY(evaluated ? TW_OK : evaluate(w));
    return worker_is_elastic(w) ? elastic_finish(w) : TW_OK;
}

/* What auto chose, bucket by bucket: the tensors of a bucket follow each other. */
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
            c->n += w->model->tensors[worker_group_tensor(w, i)].n;
        end->nchoices++;
    }
}

int trainer_run(const trainer_spec *spec, const dataset *data, tw_transport *transport,
                tw_transport *metrics, const trainer_watch *watch, trainer_end *end,
                trainer_error *error) {
    static const trainer_watch nobody;
    worker w = {.spec = spec, .data = data, .error = error, .transport = transport, .end = end};
    w.watch = watch != NULL ? watch : &nobody;
    w.evaluated = -1;
    error->text[0] = '\0';
    *end = (trainer_end){0};
    int status = worker_create(&w, transport, metrics);
    if (status == TW_OK)
        status = train(&w);
    if (status == TW_OK) {
        end->hash = hash_words(0, w.model->values, sizeof(float) * (size_t)w.model->n);
        note_choices(&w, end);
    }
    end->steps = w.step;
    end->skipped = w.skipped;
    end->seconds = w.elapsed;
    worker_free(&w);
    return status;
}
