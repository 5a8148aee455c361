/* worker.c - what a rank needs for training, from its model to its buffers; see worker.h */
#include "worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

int worker_fail(worker *w, int error, const char *format, ...) {
    va_list args;
    if (w->error->text[0] == '\0') {
        va_start(args, format);
        vsnprintf(w->error->text, sizeof w->error->text, format, args);
        va_end(args);
    }
    return error;
}

int worker_check(worker *w, const char *doing, int status) {
    const char *between = doing[0] != '\0' ? ": " : "";
    return status == TW_OK ? TW_OK
                           : worker_fail(w, status, "%s%s%s", doing, between, tw_last_error());
}

void worker_note(const worker *w, const char *format, ...) {
    char text[1024];
    va_list args;
    if (w->watch->note == NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    w->watch->note(w->watch->context, text);
}

static int open_group(worker *w, tw_transport *transport) {
    int error = tw_group_create(&w->group, transport, &w->spec->group);
    for (int t = w->model->ntensors - 1; t >= 0 && error == TW_OK; t--)
        error = tw_group_add(w->group, w->model->tensors[t].n, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(w->group);
    if (worker_is_elastic(w) && w->group != NULL)
        error = elastic_begin(w, error);
    return worker_check(w, "opening the group", error);
}

static int open_metrics(worker *w, tw_transport *transport) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "dense";
    params.result = TW_SUM;
    params.timeout = w->spec->group.timeout;
    int error = tw_group_create(&w->metrics, transport, &params);
    if (error == TW_OK)
        error = tw_group_add(w->metrics, SUMS, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_add(w->metrics, (int64_t)w->nranks * PIECES, NULL, NULL);
    if (error == TW_OK && w->model->nstate > 0)
        error = tw_group_add(w->metrics, w->model->nstate, NULL, NULL);
    if (error == TW_OK)
        error = tw_group_open(w->metrics);
    return worker_check(w, "preparing to add up the losses of all workers", error);
}

int worker_allreduce_sums(worker *w) {
    return worker_check(w, "adding up losses",
                        tw_allreduce(w->metrics, METRICS_SUMS, w->sums, w->sums));
}

bool trainer_fits(const model_kind *kind, const dataset_info *info) {
    bool images = info->kind == DATASET_IMAGES;
    bool same_shape = info->height == kind->height && info->width == kind->width &&
                      info->channels == kind->channels;
    return images == (kind->input == MODEL_IMAGES) && (!images || same_shape);
}

static int specify_batches(worker *w) {
    const trainer_spec *s = w->spec;
    if (!trainer_fits(w->model->kind, dataset_get_info(w->data)))
        return worker_fail(w, TW_ERR_PARAM, "data: not of the shape that model %s takes",
                           w->model->kind->name);
    w->train = (batch_spec){.form = s->form,
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
    if (worker_is_elastic(w)) /* elastic_block */
        w->train.worker = 0, w->train.workers = 1;
    return worker_check(w, "", dataset_steps(w->data, &w->train, &w->steps_per_epoch));
}

void worker_carry(worker *w, const float *means, bool arrived) {
    w->carries = arrived && !optimizer_is_before(w->spec->optimizer.name);
    if (w->carries)
        memcpy(w->carry, means, sizeof(float) * (size_t)w->model->n);
}

/* The buffers of a batch as parts of one block. memory NULL: only counts. Returns its bytes. */
static size_t place_buffers(worker *w, char *memory) {
    const dataset_info *info = dataset_get_info(w->data);
    const int64_t batch = w->spec->batch, tokens = batch * w->spec->length;
    const int64_t pixels = batch * info->height * info->width * info->channels;
    tw__arena arena = {memory, 0};
    batch_buffers *b = &w->buffers;
    b->images = tw__arena_take(&arena, pixels, sizeof *b->images);
    b->tokens = tw__arena_take(&arena, tokens, sizeof *b->tokens);
    b->labels = tw__arena_take(&arena, tokens > batch ? tokens : batch, sizeof *b->labels);
    b->segments = tw__arena_take(&arena, tokens, sizeof *b->segments);
    b->lengths = tw__arena_take(&arena, batch, sizeof *b->lengths);
    b->follows = tw__arena_take(&arena, batch, sizeof *b->follows);
    return arena.used;
}

int worker_batch(worker *w, const batch_spec *spec, int64_t epoch, int64_t step,
                 model_batch *batch) {
    int32_t filled = 0;
    const batch_buffers *b = &w->buffers;
    TW_TRY(worker_check(w, "", dataset_batch(w->data, spec, epoch, step, b, &filled)));
    *batch =
        (model_batch){filled, b->images, b->tokens, b->labels, b->segments, b->lengths, b->follows};
    return TW_OK;
}

int worker_create(worker *w, tw_transport *transport, tw_transport *metrics) {
    (void)tw_transport_info(transport, NULL, &w->rank, &w->nranks, NULL);
    int status = model_create(&w->model, &w->spec->model);
    if (status != TW_OK)
        return worker_fail(w, status == TW_ERR_MEMORY ? TW_ERR_MEMORY : TW_ERR_PARAM, "model: %s",
                           tw_last_error());
    TW_TRY(worker_check(w, "", optimizer_create(&w->optimizer, &w->spec->optimizer, w->model->n)));
    TW_TRY(specify_batches(w));
    w->memory = tw__alloc(place_buffers(w, NULL));
    w->carry = calloc((size_t)w->model->n, sizeof *w->carry); /* few runs touch its pages */
    w->acc = calloc(w->spec->snapshot_every > 0 ? (size_t)w->model->n : 1, sizeof *w->acc);
    w->pieces = calloc((size_t)w->nranks * PIECES, sizeof *w->pieces);
    w->words = calloc((size_t)w->nranks, sizeof *w->words);
    if (w->memory == NULL || w->carry == NULL || w->acc == NULL || w->pieces == NULL ||
        w->words == NULL)
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for the buffers of a worker");
    place_buffers(w, w->memory);
    TW_TRY(local_create(w));
    TW_TRY(worker_is_elastic(w) ? elastic_create(w) : open_metrics(w, metrics));
    return open_group(w, transport);
}

void worker_free(worker *w) {
    tw_group_free(w->group);
    tw_group_free(w->metrics);
    optimizer_free(&w->optimizer);
    model_free(w->model);
    free(w->memory);
    free(w->carry);
    free(w->acc);
    free(w->pieces);
    free(w->words);
    free(w->base);
    free(w->velocity);
    free(w->start);
    free(w->means);
    free(w->progress);
    free(w->shared);
}
