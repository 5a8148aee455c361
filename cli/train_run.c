/* train_run.c - one training run on all ranks: settings to specification, ranks, log
 *
 * Rank 0 writes the log and the lines for humans; all ranks write the timeline. At the end the
 * ranks compare the hashes of their parameters: replicas must be bitwise equal.
 */
#include "train_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "names.h"
#include "progress.h"
#include "side.h"
#include "train_log.h"
#include "train_trace.h"

const char *train_model_at(int position) {
    const model_kind *kind = model_kind_at(position);
    return kind != NULL ? kind->name : NULL;
}

/* ---- Settings to specification --------------------------------------------------------------- */

/* What a model is usually trained with. */
typedef struct habits {
    int batch;
    const char *optimizer;
    double rate;
} habits;

static habits habits_of(const model_kind *kind) {
    if (kind->input == MODEL_MASKED)
        return (habits){16, "adamw", 1e-3};
    if (kind->input == MODEL_WORDS)
        return (habits){16, "adamw", 2e-3};
    return (habits){32, "sgd", 0.05};
}

static int64_t first_of(int64_t given, int64_t otherwise) {
    return given > 0 ? given : otherwise;
}

static model_spec model_of(const train_settings *s, const dataset_info *info, int batch) {
    return (model_spec){.name = train_model_at(s->model),
                        .size = s->size,
                        .max_batch = batch,
                        .seed = (uint64_t)s->seed,
                        .vocabulary = (int)info->vocabulary,
                        .length = (int)s->length,
                        .width = (int)s->width,
                        .layers = (int)s->layers};
}

static tw_group_params group_of(const train_settings *s) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme_at(s->scheme);
    params.exchange = exchange_at(s->exchange);
    params.wire = wire_at(s->wire);
    params.select.method = method_at(s->select);
    params.select.density = s->density;
    params.select.threads = 1;
    params.select.seed = (uint64_t)s->seed;
    params.select.momentum = s->correct_momentum ? (float)s->momentum : 0.0f;
    params.select.warmup_steps = (int32_t)s->density_warmup;
    params.timeout = s->timeout;
    return params;
}

/* The steps to train; needs the data set. */
static int count_steps(const train_settings *s, const dataset *data, trainer_spec *spec,
                       int nranks) {
    batch_plan plan = {.form = spec->form,
                       .split = DATASET_TRAIN,
                       .count = spec->batch,
                       .length = spec->length,
                       .workers = nranks,
                       .seed = spec->seed};
    dataset_error error = {{0}};
    int64_t epoch = 0;
    if (dataset_steps(data, &plan, &epoch, &error) != TW_OK)
        return failure("%s", error.text);
    spec->steps = s->steps > 0 ? s->steps : epoch * first_of(s->epochs, 1);
    spec->schedule.steps = spec->steps;
    spec->schedule.drop_every = first_of(s->drop_every, spec->steps / 3 + 1);
    spec->evaluate_every = first_of(s->evaluate_every, epoch);
    return STATUS_OK;
}

static int settle(const train_settings *s, const dataset *data, int nranks, trainer_spec *spec) {
    const model_kind *kind = model_kind_named(train_model_at(s->model));
    habits usual = habits_of(kind);
    int batch = (int)first_of(s->batch, usual.batch);
    *spec = (trainer_spec){
        .model = model_of(s, dataset_get_info(data), batch),
        .optimizer = {.name = s->optimizer >= 0 ? optimizer_name(s->optimizer) : usual.optimizer,
                      .momentum = s->correct_momentum ? 0.0 : s->momentum,
                      .weight_decay = s->weight_decay,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .epsilon = 1e-8},
        .schedule = {.name = schedule_name(s->schedule),
                     .rate = s->rate > 0.0 ? s->rate : usual.rate,
                     .warmup = s->warmup,
                     .drop_factor = s->drop_factor},
        .group = group_of(s),
        .form = kind->input == MODEL_IMAGES  ? BATCH_IMAGES
                : kind->input == MODEL_WORDS ? BATCH_WORDS
                                             : BATCH_MASKED,
        .batch = batch,
        .augment = s->augment,
        .seed = (uint64_t)s->seed,
        .snapshot_every = s->snapshot_every,
        .most_skipped = 20,
        .checkpoints = s->checkpoints,
        .checkpoint_every = s->checkpoint_every,
        .resume = s->resume,
    };
    spec->length = kind->input == MODEL_IMAGES ? 0 : (int)first_of(s->length, 32);
    spec->model.length = spec->length;
    return count_steps(s, data, spec, nranks);
}

static int open_data(const train_settings *s, dataset **data) {
    const model_kind *kind = model_kind_named(train_model_at(s->model));
    dataset_options options = {.train_limit = s->limit,
                               .test_limit = s->test_limit,
                               .vocabulary = (int32_t)s->vocabulary,
                               .masked = kind->input == MODEL_MASKED};
    dataset_error error = {{0}};
    if (dataset_open(data, s->data != NULL ? s->data : DATASET_EMBEDDED, &options, &error) != TW_OK)
        return failure("%s", error.text);
    const dataset_info *info = dataset_get_info(*data);
    bool images = info->kind == DATASET_IMAGES;
    if (images != (kind->input == MODEL_IMAGES)) {
        return failure("model %s learns from %s, but '%s' holds %s; give other --data", kind->name,
                       images ? "text" : "images", s->data != NULL ? s->data : DATASET_EMBEDDED,
                       images ? "images" : "text");
    }
    if (!trainer_fits(kind, info)) {
        return failure("model %s takes images of %dx%dx%d, '%s' has %dx%dx%d; give other --data",
                       kind->name, kind->height, kind->width, kind->channels,
                       s->data != NULL ? s->data : DATASET_EMBEDDED, info->height, info->width,
                       info->channels);
    }
    return STATUS_OK;
}

/* ---- One rank ------------------------------------------------------------------------------- */

/* What all ranks of this process share; the outcome and the log are rank 0's. */
typedef struct train_shared {
    const train_settings *settings;
    const trainer_spec *spec;
    const dataset *data;
    jsonl *log;
    train_trace *trace;
    train_outcome *outcome;
} train_shared;

typedef struct train_seat {
    const train_shared *shared;
    int rank;
    int64_t steps;
    double bytes;
    trainer_times times; /* sums */
} train_seat;

static void on_step(void *context, const trainer_step *step) {
    train_seat *seat = context;
    const trainer_times *t = &step->times;
    seat->steps++;
    seat->bytes += (double)(step->traffic.payload_sent + step->traffic.control_sent);
    seat->times.data += t->data;
    seat->times.forward += t->forward;
    seat->times.backward += t->backward;
    seat->times.exposed += t->exposed;
    seat->times.optimiser += t->optimiser;
    seat->times.select += t->select;
    seat->times.wait += t->wait;
    seat->times.exchange += t->exchange;
    seat->times.apply += t->apply;
    if (seat->rank == 0) {
        train_log_step(seat->shared->log, step);
        progress_to(step->step + 1);
    }
}

static void on_evaluation(void *context, const trainer_evaluation *e) {
    train_seat *seat = context;
    if (seat->rank != 0)
        return;
    train_log_evaluation(seat->shared->log, e);
    if (!seat->shared->settings->quiet) {
        progress_clear();
        fprintf(jsonl_table_stream(seat->shared->log),
                "step %6" PRId64 "  test loss %.4f  accuracy %.2f %%  %.1f s\n", e->step, e->loss,
                100.0 * e->accuracy, e->elapsed);
    }
}

static void on_snapshot(void *context, const trainer_snapshot *snapshot) {
    train_seat *seat = context;
    if (seat->rank == 0)
        train_log_snapshot(seat->shared->log, snapshot);
}

static void on_span(void *context, const trainer_span *span) {
    train_seat *seat = context;
    train_trace_span(seat->shared->trace, seat->rank, span);
}

static void on_note(void *context, const char *text) {
    train_seat *seat = context;
    if (seat->rank == 0) {
        progress_clear();
        fprintf(stderr, "thinwire: %s\n", text);
    }
}

/* Whether all ranks ended with the same parameters. Collective. */
static int compare_replicas(rank_seat *seat, const train_settings *s, uint64_t hash, bool *same) {
    side beside;
    int64_t told = (int64_t)hash;
    int status = side_open(&beside, seat, 0, s->timeout);
    if (status == STATUS_OK)
        status = side_tell(&beside, &told, 1);
    *same = status == STATUS_OK;
    for (int r = 0; r < seat->nranks && status == STATUS_OK; r++)
        *same = *same && side_told(&beside, r, 0) == told;
    side_close(&beside);
    return status;
}

static void divide_times(trainer_times *t, double by) {
    double *all[] = {&t->data,   &t->forward, &t->backward, &t->exposed, &t->optimiser,
                     &t->select, &t->wait,    &t->exchange, &t->apply};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] /= by;
}

static int play_rank(rank_seat *seat, void *context) {
    const train_shared *shared = context;
    train_seat mine = {.shared = shared, .rank = seat->rank};
    trainer_watch watch = {.context = &mine,
                           .step = on_step,
                           .evaluation = on_evaluation,
                           .snapshot = seat->rank == 0 ? on_snapshot : NULL,
                           .span = shared->trace != NULL ? on_span : NULL,
                           .note = on_note};
    trainer_end end;
    trainer_error error;
    bool same = false;
    int status = trainer_run(shared->spec, shared->data, seat->transport, seat->beside, &watch,
                             &end, &error);
    if (status != TW_OK) {
        seat->broken = status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT ||
                       status == TW_ERR_PROTOCOL || status == TW_ERR_MEMORY;
        return rank_failure(seat, "%s", error.text);
    }
    status = compare_replicas(seat, shared->settings, end.hash, &same);
    if (seat->rank == 0 && status == STATUS_OK) {
        double steps = fmax(1.0, (double)mine.steps);
        divide_times(&mine.times, steps);
        shared->outcome->end = end;
        shared->outcome->same = same;
        shared->outcome->steps = mine.steps;
        shared->outcome->bytes_per_step = mine.bytes / steps;
        shared->outcome->times = mine.times;
        train_log_end(shared->log, &end, same);
    }
    return status;
}

/* ---- The run -------------------------------------------------------------------------------- */

static void log_run(const train_shared *shared, const rank_job *job) {
    const train_settings *s = shared->settings;
    run_facts facts = {.settings = s,
                       .spec = shared->spec,
                       .parameters = shared->outcome->parameters,
                       .nranks = job->nranks,
                       .transport = ranks_transport(job)};
    (void)tw_scheme(s->scheme, NULL, &facts.select, &facts.exchange, NULL);
    facts.select = s->select >= 0 ? method_at(s->select) : facts.select;
    facts.exchange = s->exchange >= 0 ? exchange_at(s->exchange) : facts.exchange;
    train_log_run(shared->log, &facts);
}

/* A run that starts at step 0 must not mix with what another saved. */
static int check_directory(const train_settings *s) {
    if (s->checkpoints == NULL || s->resume || trainer_checkpoints(s->checkpoints) == 0)
        return STATUS_OK;
    return failure("'%s' holds checkpoints of another run; give --resume to go on with it, or "
                   "another directory",
                   s->checkpoints);
}

static int prepare(const train_settings *s, const rank_job *job, dataset **data, trainer_spec *spec,
                   train_outcome *outcome) {
    model_size size;
    model_error error = {{0}};
    int status = check_directory(s);
    if (status == STATUS_OK)
        status = open_data(s, data);
    if (status == STATUS_OK)
        status = settle(s, *data, job->nranks, spec);
    if (status == STATUS_OK && model_measure(&spec->model, &size, &error) != MODEL_OK)
        status = failure("model: %s", error.text);
    if (status == STATUS_OK)
        outcome->parameters = size.n;
    return status;
}

int train_execute(const train_settings *settings, const rank_job *job, train_outcome *outcome) {
    dataset *data = NULL;
    trainer_spec spec;
    train_shared shared = {.settings = settings, .spec = &spec, .outcome = outcome};
    *outcome = (train_outcome){.same = false};
    int status = prepare(settings, job, &data, &spec, outcome);
    if (status == STATUS_OK && ranks_speaks(job)) {
        status = settings->resume ? jsonl_resume(&shared.log, settings->log_path)
                                  : jsonl_open(&shared.log, settings->log_path);
    }
    if (status == STATUS_OK)
        status = train_trace_open(&shared.trace, settings->trace_path, job->first);
    status = ranks_worst(job, status);
    if (status == STATUS_OK) {
        shared.data = data;
        if (ranks_speaks(job)) {
            log_run(&shared, job);
            progress_begin(settings->name != NULL ? settings->name : "train", spec.steps);
        }
        status = ranks_run(job, play_rank, &shared);
        progress_end();
    }
    int closed = jsonl_close(shared.log);
    int traced = train_trace_close(shared.trace);
    dataset_close(data);
    if (status == STATUS_OK && ranks_speaks(job) && !outcome->same)
        status = failure("replicas differ at the end of the run: please report it");
    return status != STATUS_OK ? status : closed != STATUS_OK ? closed : traced;
}
