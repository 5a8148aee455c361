/* worker.c - what a rank needs for training, from its model to its buffers; see worker.h */
#include "worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int worker_fail(worker *w, int error, const char *format, ...) {
    va_list args;
    if (w->error->text[0] == '\0') {
        va_start(args, format);
        vsnprintf(w->error->text, sizeof w->error->text, format, args);
        va_end(args);
    }
    return error;
}

int worker_fail_library(worker *w, const char *doing, int error) {
    return worker_fail(w, error, "%s: %s", doing, tw_last_error());
}

void worker_note(const worker *w, const char *format, ...) {
    char text[1024];
    va_list args;
    if (w->watch == NULL || w->watch->note == NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    w->watch->note(w->watch->context, text);
}

/* ---- groups */

static int open_group(worker *w, tw_transport *transport) {
    int error = tw_group_create(&w->group, transport, &w->spec->group);
    for (int t = w->model->ntensors - 1; t >= 0 && error == TW_OK; t--)
        error = tw_group_add(w->group, w->model->tensors[t].n, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(w->group);
    return error == TW_OK ? TW_OK : worker_fail_library(w, "opening the group", error);
}

static int open_beside(worker *w, tw_transport *transport) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "dense";
    params.result = TW_SUM;
    params.timeout = w->spec->group.timeout;
    int error = tw_group_create(&w->beside, transport, &params);
    if (error == TW_OK)
        error = tw_group_add(w->beside, SUMS, NULL, NULL);
    if (error == TW_OK && w->model->nstate > 0)
        error = tw_group_add(w->beside, w->model->nstate, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(w->beside);
    return error == TW_OK ? TW_OK : worker_fail_library(w, "opening the second group", error);
}

int worker_add_up(worker *w) {
    int error = tw_allreduce(w->beside, 0, w->sums, w->sums);
    return error == TW_OK ? TW_OK : worker_fail_library(w, "adding up losses", error);
}

/* ---- data */

bool trainer_fits(const model_kind *kind, const dataset_info *info) {
    bool images = info->kind == DATASET_IMAGES;
    bool same_shape = info->height == kind->height && info->width == kind->width &&
                      info->channels == kind->channels;
    return images == (kind->input == MODEL_IMAGES) && (!images || same_shape);
}

static int plan_batches(worker *w) {
    const trainer_spec *s = w->spec;
    dataset_error error = {{0}};
    if (!trainer_fits(w->model->kind, dataset_get_info(w->data)))
        return worker_fail(w, TW_ERR_PARAM, "data: not of the shape that model %s takes",
                           w->model->kind->name);
    w->train = (batch_plan){.form = s->form,
                            .split = DATASET_TRAIN,
                            .count = s->batch,
                            .length = s->length,
                            .worker = w->rank,
                            .workers = w->nranks,
                            .augment = s->augment,
                            .seed = s->seed};
    w->test = w->train;
    w->test.split = DATASET_TEST;
    w->test.augment = false;
    int status = dataset_steps(w->data, &w->train, &w->steps_per_epoch, &error);
    return status == TW_OK ? TW_OK : worker_fail(w, status, "%s", error.text);
}

static int32_t *integers(int64_t count) {
    return calloc((size_t)(count > 0 ? count : 1), sizeof(int32_t));
}

static int obtain_buffers(worker *w) {
    const dataset_info *info = dataset_get_info(w->data);
    int64_t batch = w->spec->batch, tokens = batch * w->spec->length;
    int64_t pixels = batch * info->height * info->width * info->channels;
    batch_buffers *b = &w->buffers;
    b->images = calloc((size_t)(pixels > 0 ? pixels : 1), sizeof *b->images);
    b->tokens = integers(tokens);
    b->labels = integers(tokens > batch ? tokens : batch);
    b->segments = integers(tokens);
    b->lengths = integers(batch);
    b->follows = integers(batch);
    w->carry = calloc((size_t)w->model->n, sizeof *w->carry);
    w->acc = w->spec->snapshot_every > 0 ? calloc((size_t)w->model->n, sizeof *w->acc) : NULL;
    if (!b->images || !b->tokens || !b->labels || !b->segments || !b->lengths || !b->follows ||
        !w->carry || (w->spec->snapshot_every > 0 && !w->acc))
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for the buffers of a worker");
    return TW_OK;
}

int worker_batch(worker *w, const batch_plan *plan, int64_t epoch, int64_t step,
                 model_batch *batch) {
    dataset_error error = {{0}};
    int32_t filled = 0;
    int status = dataset_batch(w->data, plan, epoch, step, &w->buffers, &filled, &error);
    if (status != TW_OK)
        return worker_fail(w, status, "%s", error.text);
    *batch = (model_batch){.count = filled,
                           .images = w->buffers.images,
                           .tokens = w->buffers.tokens,
                           .labels = w->buffers.labels,
                           .segments = w->buffers.segments,
                           .lengths = w->buffers.lengths,
                           .follows = w->buffers.follows};
    return TW_OK;
}

/* ---- create and free */

static int make_model(worker *w) {
    model_error error = {{0}};
    int status = model_create(&w->model, &w->spec->model, &error);
    if (status != MODEL_OK)
        return worker_fail(w, status == MODEL_ERR_MEMORY ? TW_ERR_MEMORY : TW_ERR_PARAM,
                           "model: %s", error.text);
    status = optimizer_create(&w->optimizer, &w->spec->optimizer, w->model->n);
    if (status == MODEL_ERR_NAME)
        return worker_fail(w, TW_ERR_NAME, "optimizer: there is no '%s'; take sgd or adamw",
                           w->spec->optimizer.name);
    if (status != MODEL_OK)
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for the optimiser");
    return TW_OK;
}

int worker_create(worker *w, tw_transport *transport, tw_transport *beside) {
    (void)tw_transport_info(transport, NULL, &w->rank, &w->nranks, NULL);
    int status = make_model(w);
    if (status == TW_OK)
        status = plan_batches(w);
    if (status == TW_OK)
        status = obtain_buffers(w);
    if (status == TW_OK)
        status = open_beside(w, beside);
    if (status == TW_OK)
        status = open_group(w, transport);
    return status;
}

void worker_free(worker *w) {
    tw_group_free(w->group);
    tw_group_free(w->beside);
    optimizer_free(&w->optimizer);
    model_free(w->model);
    free(w->buffers.images);
    free(w->buffers.tokens);
    free(w->buffers.labels);
    free(w->buffers.segments);
    free(w->buffers.lengths);
    free(w->buffers.follows);
    free(w->carry);
    free(w->acc);
}
