/* train_run.c - one training run on all ranks: settings to specification, ranks, log
 *
 * Rank 0 writes the log and the lines for humans; all ranks write the timeline. At the end the
 * ranks compare the hashes of their parameters: replicas must be bitwise equal. In an elastic job
 * another process may become rank 0: it goes on with the log, if it was given one.
 */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "cli.h"

const char *train_model_name(int position) {
    const model_kind *kind = model_kind_at(position);
    return kind != NULL ? kind->name : NULL;
}

/* What a model is usually trained with, by its input. */
static const struct {
    batch_form form;
    int batch;
    const char *optimizer;
    double rate;
} usual_for[] = {
    [MODEL_IMAGES] = {BATCH_IMAGES, 32, "sgd", 0.05},
    [MODEL_WORDS] = {BATCH_WORDS, 16, "adamw", 2e-3},
    [MODEL_MASKED] = {BATCH_MASKED, 16, "adamw", 1e-3},
};

const char *train_optimizer(const train_settings *s) {
    const model_kind *kind = model_kind_named(train_model_name(s->model));
    return s->optimizer >= 0 ? optimizer_name(s->optimizer) : usual_for[kind->input].optimizer;
}

static int64_t first_of(int64_t given, int64_t otherwise) {
    return given > 0 ? given : otherwise;
}

/* Of AdamW, after the exchange or before selection. */
#define BETA1 0.9
#define BETA2 0.999
#define EPSILON 1e-8

/* Of a round. By default as thinwire.LocalSteps: docs/local_steps.md has figures of both. */
static int result_of(const train_settings *s) {
    if (s->result >= 0)
        return s->result == 0 ? TW_MEAN : TW_MEAN_OF_SENDERS;
    const char *exchange = names_exchange(s->exchange);
    if (exchange == NULL)
        (void)tw_scheme(s->scheme, NULL, NULL, &exchange, NULL);
    bool tells = exchange != NULL && strcmp(exchange, "allgather") == 0;
    return tells && !s->delayed ? TW_MEAN_OF_SENDERS : TW_MEAN;
}

static tw_group_params group_of(const train_settings *s, const char *rule) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = names_scheme(s->scheme);
    params.exchange = names_exchange(s->exchange);
    params.wire = names_wire(s->wire);
    params.select.method = names_method(s->select);
    params.count = s->per_rank ? TW_COUNT_PER_RANK : TW_COUNT_OF_SCHEME;
    params.select.density = s->density;
    params.select.threads = 1;
    params.select.seed = (uint64_t)s->seed;
    params.select.momentum = s->correct_momentum ? (float)s->momentum : 0.0f;
    params.select.warmup = s->density_schedule;
    params.select.warmup_steps = (int32_t)s->density_warmup;
    if (optimizer_is_before(rule)) {
        params.select.before = TW_BEFORE_ADAMW;
        params.select.beta1 = BETA1;
        params.select.beta2 = BETA2;
        params.select.eps = EPSILON;
    }
    if (s->local_steps > 0)
        params.result = result_of(s);
    if (s->local_steps > 0 && strcmp(params.scheme, "dense") != 0)
        params.select.decay = (float)s->decay;
    params.timeout = s->timeout;
    params.checksum = s->checksum;
    params.membership = s->tcp.elastic ? TW_MEMBERSHIP_ELASTIC : TW_MEMBERSHIP_FIXED;
    return params;
}

/* The steps to train; needs the data set. */
static int count_steps(const train_settings *s, const dataset *data, trainer_spec *spec,
                       int nranks) {
    batch_spec plan = {.form = spec->form,
                       .split = DATASET_TRAIN,
                       .count = spec->batch,
                       .length = spec->length,
                       .workers = nranks,
                       .seed = spec->seed};
    int64_t epoch = 0;
    if (dataset_steps(data, &plan, &epoch) != TW_OK)
        return error_report("%s", tw_last_error());
    spec->steps = s->steps > 0 ? s->steps : epoch * first_of(s->epochs, 1);
    spec->schedule.steps = spec->steps;
    spec->schedule.drop_every = first_of(s->drop_every, spec->steps / 3 + 1);
    spec->evaluate_every = first_of(s->evaluate_every, epoch);
    if (s->local_steps > 0) /* replicas are equal after rounds */
        spec->evaluate_every =
            (spec->evaluate_every + s->local_steps - 1) / s->local_steps * s->local_steps;
    return STATUS_OK;
}

/* SIGTERM came: an elastic trainer leaves its job after the next step. */
static volatile sig_atomic_t is_terminated;

static void note_termination(int signal) {
    (void)signal;
    is_terminated = 1;
}

/* A second SIGTERM ends the process. */
static void leave_on_termination(void) {
    struct sigaction action = {.sa_handler = note_termination,
                               .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    (void)sigaction(SIGTERM, &action, NULL);
}

static int settle(const train_settings *s, const dataset *data, int nranks, trainer_spec *spec) {
    const model_kind *kind = model_kind_named(train_model_name(s->model));
    const char *rule = train_optimizer(s);
    int batch = (int)first_of(s->batch, usual_for[kind->input].batch);
    int length = kind->input == MODEL_IMAGES ? 0 : (int)first_of(s->length, 32);
    *spec =
        (trainer_spec){.model = {.name = kind->name,
                                 .size = s->size,
                                 .max_batch = batch,
                                 .seed = (uint64_t)s->seed,
                                 .vocabulary = (int)dataset_get_info(data)->vocabulary,
                                 .length = length,
                                 .width = (int)s->width,
                                 .layers = (int)s->layers},
                       .optimizer = {.name = rule,
                                     .momentum = s->correct_momentum ? 0.0 : s->momentum,
                                     .weight_decay = s->weight_decay,
                                     .beta1 = BETA1,
                                     .beta2 = BETA2,
                                     .epsilon = EPSILON},
                       .schedule = {.name = schedule_name(s->schedule),
                                    .rate = s->rate > 0.0 ? s->rate : usual_for[kind->input].rate,
                                    .warmup = s->warmup,
                                    .drop_factor = s->drop_factor},
                       .group = group_of(s, rule),
                       .joins = s->tcp.join,
                       .leaves = s->tcp.elastic ? &is_terminated : NULL,
                       .form = usual_for[kind->input].form,
                       .batch = batch,
                       .length = length,
                       .augment = s->augment,
                       .seed = (uint64_t)s->seed,
                       .snapshot_every = s->snapshot_every,
                       .most_skipped = 20,
                       .local_steps = s->local_steps,
                       .outer_rate = s->outer_rate,
                       .outer_momentum = s->outer_momentum,
                       .delayed = s->delayed,
                       .checkpoints = s->checkpoints,
                       .checkpoint_every = s->checkpoint_every,
                       .resume = s->resume};
    return count_steps(s, data, spec, nranks);
}

/* What to give as --data. */
static const char text_data[] =
    "FILE, a text, or --data DIRECTORY with train.txt and test.txt, as WikiText-2 has them";

static const char *image_data(const model_kind *kind) {
    return kind->channels == 3 ? "DIRECTORY with the binary batches of CIFAR-10"
                               : "fashion-mnist, or --data DIRECTORY with IDX files";
}

static int open_data(const train_settings *s, dataset **data) {
    const model_kind *kind = model_kind_named(train_model_name(s->model));
    dataset_options options = {.train_limit = s->limit,
                               .test_limit = s->test_limit,
                               .vocabulary = (int32_t)s->vocabulary,
                               .masked = kind->input == MODEL_MASKED};
    if (dataset_open(data, s->data, &options) != TW_OK)
        return error_report("%s", tw_last_error());
    const dataset_info *info = dataset_get_info(*data);
    bool images = info->kind == DATASET_IMAGES;
    if (images != (kind->input == MODEL_IMAGES)) {
        return error_report("model %s learns from %s, but '%s' holds %s; give --data %s",
                            kind->name, images ? "text" : "images", s->data,
                            images ? "images" : "text", images ? text_data : image_data(kind));
    }
    if (!trainer_fits(kind, info)) {
        return error_report("model %s takes images of %dx%dx%d, '%s' has %dx%dx%d; give --data %s",
                            kind->name, kind->height, kind->width, kind->channels, s->data,
                            info->height, info->width, info->channels, image_data(kind));
    }
    return STATUS_OK;
}

/* What all ranks of this process share; the outcome and the log are rank 0's. */
typedef struct train_shared {
    const train_settings *settings;
    const job_handle *job;
    const trainer_spec *spec;
    const dataset *data;
    jsonl *log;
    train_trace *trace;
    train_outcome *outcome;
} train_shared;

typedef struct train_rank {
    train_shared *shared;
    int rank; /* -1: not known yet, it joins */
    int row;  /* in the timeline */
    int64_t steps;
    double bytes;
    trainer_times times; /* sums */
} train_rank;

/* trainer_times holds doubles alone. */
#define TIMES ((int)(sizeof(trainer_times) / sizeof(double)))

static void on_step(void *context, const trainer_step *step) {
    train_rank *self = context;
    self->steps++;
    self->bytes += (double)(step->traffic.payload_sent + step->traffic.control_sent);
    for (int i = 0; i < TIMES; i++)
        ((double *)&self->times)[i] += ((const double *)&step->times)[i];
    if (self->rank == 0) {
        train_log_step(self->shared->log, step);
        progress_to(step->step + 1);
    }
}

static void on_evaluation(void *context, const trainer_evaluation *e) {
    train_rank *self = context;
    if (self->rank != 0)
        return;
    train_log_evaluation(self->shared->log, e);
    if (!self->shared->settings->quiet) {
        progress_clear();
        fprintf(jsonl_table_stream(self->shared->log),
                "step %6" PRId64 "  test loss %.4f  accuracy %.2f %%  %.1f s\n", e->step, e->loss,
                100.0 * e->accuracy, e->elapsed);
    }
}

static void on_snapshot(void *context, const trainer_snapshot *snapshot) {
    const train_rank *self = context;
    if (self->rank == 0)
        train_log_snapshot(self->shared->log, snapshot);
}

static void on_span(void *context, const trainer_span *span) {
    train_rank *self = context;
    train_trace_span(self->shared->trace, self->row, span);
}

static void on_note(void *context, const char *text) {
    train_rank *self = context;
    if (self->rank == 0) {
        progress_clear();
        fprintf(stderr, "thinwire: %s\n", text);
    }
}

/* This process is rank 0 now. Its log begins like any other, and goes on with one that is there. A log
 * that cannot be written does not end the training. */
static void take_over(train_shared *shared) {
    const train_settings *s = shared->settings;
    if (shared->log == NULL && jsonl_open(&shared->log, s->log_path, true) == STATUS_OK)
        train_log_run(shared->log, s, shared->spec, shared->outcome->parameters, shared->job);
    progress_begin(s->name != NULL ? s->name : "train", shared->spec->steps);
}

static void print_members(const trainer_members *m) {
    fprintf(stderr, "thinwire: step %" PRId64 ":", m->step);
    for (int i = 0; i < m->nlost; i++) {
        const tw_lost_rank *lost = &m->lost[i];
        if (lost->heir >= 0)
            fprintf(stderr, " rank %d left, rank %d has its residual;", lost->rank, lost->heir);
        else
            fprintf(stderr, " rank %d was lost;", lost->rank);
    }
    if (m->joined > 0)
        fprintf(stderr, " %d joined;", m->joined);
    fprintf(stderr, " %d go on after %.2f s\n", m->nranks, m->seconds);
}

static void on_members(void *context, const trainer_members *m) {
    train_rank *self = context;
    int before = self->rank;
    self->rank = m->rank;
    progress_clear();
    if (before < 0)
        fprintf(stderr, "thinwire: joined at step %" PRId64 " as rank %d of %d\n", m->step, m->rank,
                m->nranks);
    if (m->rank != 0)
        return;
    if (before != 0)
        take_over(self->shared);
    print_members(m);
    train_log_members(self->shared->log, m);
}

/* Whether all ranks ended with the same parameters. Collective. */
static int compare_replicas(job_rank *job, double timeout, uint64_t hash, bool *same) {
    gather_group gather;
    int64_t own = (int64_t)hash;
    int status = gather_open(&gather, job, 0, timeout);
    if (status == STATUS_OK)
        status = gather_values(&gather, &own, 1);
    *same = status == STATUS_OK;
    for (int r = 0; r < job->nranks && status == STATUS_OK; r++)
        *same = *same && gather_value(&gather, r, 0) == own;
    gather_close(&gather);
    return status;
}

/* What rank 0 tells at the end. */
static void conclude(train_rank *mine, const trainer_end *end, bool same) {
    train_outcome *outcome = mine->shared->outcome;
    double steps = fmax(1.0, (double)mine->steps);
    for (int i = 0; i < TIMES; i++)
        ((double *)&mine->times)[i] /= steps;
    outcome->prints = true;
    outcome->end = *end;
    outcome->same = same;
    outcome->bytes_per_step = mine->bytes / steps;
    outcome->times = mine->times;
    train_log_end(mine->shared->log, end, same);
}

static int run_rank(job_rank *job, void *context) {
    train_shared *shared = context;
    bool elastic = shared->settings->tcp.elastic, joins = shared->settings->tcp.join;
    train_rank mine = {.shared = shared,
                       .rank = joins ? -1 : job->rank,
                       .row = joins ? shared->job->nranks : job->rank};
    trainer_watch watch = {.context = &mine,
                           .step = on_step,
                           .evaluation = on_evaluation,
                           .snapshot = job->rank == 0 || elastic ? on_snapshot : NULL,
                           .span = shared->trace != NULL ? on_span : NULL,
                           .members = on_members,
                           .note = on_note};
    trainer_end end;
    trainer_error error;
    if (elastic)
        leave_on_termination();
    int status = trainer_run(shared->spec, shared->data, job->transport, job->gather_transport,
                             &watch, &end, &error);
    if (status != TW_OK) {
        job->error.broken = status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT ||
                            status == TW_ERR_PROTOCOL || status == TW_ERR_MEMORY;
        return error_report("%s", error.text);
    }
    if (end.left) {
        fprintf(stderr,
                "thinwire: left the job after step %" PRId64 "; another rank has the residual\n",
                end.steps);
        return STATUS_OK;
    }
    bool same = end.same;
    if (!elastic)
        TW_TRY(compare_replicas(job, shared->settings->timeout, end.hash, &same));
    if (mine.rank == 0)
        conclude(&mine, &end, same);
    return STATUS_OK;
}

static int prepare(const train_settings *s, const job_handle *job, dataset **data,
                   trainer_spec *spec, train_outcome *outcome) {
    model_size size;
    /* A run that starts at step 0 must not mix with what another saved. */
    if (s->checkpoints != NULL && !s->resume && trainer_checkpoints(s->checkpoints) > 0)
        return error_report("'%s' holds checkpoints of another run; give --resume to go on with "
                            "it, or another directory",
                            s->checkpoints);
    TW_TRY(open_data(s, data));
    TW_TRY(settle(s, *data, job->nranks, spec));
    if (model_measure(&spec->model, &size) != TW_OK)
        return error_report("model: %s", tw_last_error());
    outcome->parameters = size.n;
    return STATUS_OK;
}

int train_execute(const train_settings *settings, const job_handle *job, train_outcome *outcome) {
    dataset *data = NULL;
    trainer_spec spec = {0};
    train_shared shared = {.settings = settings, .job = job, .spec = &spec, .outcome = outcome};
    *outcome = (train_outcome){.same = false};
    int status = prepare(settings, job, &data, &spec, outcome);
    if (status == STATUS_OK && job_prints(job))
        status = jsonl_open(&shared.log, settings->log_path, settings->resume);
    if (status == STATUS_OK)
        status = train_trace_open(&shared.trace, settings->trace_path, job);
    status = job_worst(job, status);
    if (status == STATUS_OK) {
        shared.data = data;
        if (job_prints(job)) {
            train_log_run(shared.log, settings, &spec, outcome->parameters, job);
            progress_begin(settings->name != NULL ? settings->name : "train", spec.steps);
        }
        status = job_run(job, run_rank, &shared);
        progress_end();
    }
    bool complete = status == STATUS_OK;
    status = train_trace_close(shared.trace, jsonl_close(shared.log, status));
    dataset_close(data);
    if (complete && outcome->prints && !outcome->same)
        status = error_report("replicas differ at the end of the run: please report it");
    return status;
}
