/* elastic.c - ranks that are lost, leave or join while the others train
 *
 * All ranks run the same program: exchange, sums of losses, evaluation, change of ranks. Each of these
 * calls is collective, and when a rank is lost, some of the others may have completed a call in which the
 * rest has failed. So after every tw_group_shrink the ranks tell each other where they are:
 *
 *   exchange    repeated by those in which it has failed, with the gradients that they have; where others
 *               are past it, the library has completed it, or all of them refused it
 *   losses      lost; the log has null
 *   evaluation  repeated by all, if it has failed on one
 *   change      left out; the next one follows soon
 *   parameters  sent by rank 0 if a rank lacks them
 *
 * This is repeated until no rank is lost meanwhile. Then all go on at the same step.
 *
 * Data: in each step every rank takes the next block of examples of the epoch, in the order of ranks. When
 * ranks change, the first step that no rank has begun divides the blocks that follow anew. */
#include "worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Seconds from one look for newcomers to the next: it costs one round of short messages. */
#define LOOK_EVERY 0.5

/* The group is broken, and the ranks that are left can go on. */
static bool is_lost(int status) {
    return status == TW_ERR_TIMEOUT || status == TW_ERR_TRANSPORT || status == TW_ERR_STATE;
}

/* The loss of a rank is no error yet: its text is not kept. */
static int check(worker *w, const char *doing, int status) {
    return is_lost(status) ? status : worker_check(w, doing, status);
}

/* *all gets the records of all ranks, valid until the next call. Collective. */
static int share(worker *w, const void *own, size_t bytes, const void **all) {
    char *records = realloc(w->shared, (size_t)w->nranks * bytes);
    if (records == NULL) {
        (void)worker_fail(w, TW_ERR_MEMORY, "not enough memory for the records of %d ranks",
                          w->nranks);
        return TW_ERR_MEMORY;
    }
    w->shared = records;
    memcpy(records + (size_t)w->rank * bytes, own, bytes);
    *all = records;
    return check(w, "telling the other ranks", tw_group_allgather(w->group, records, bytes));
}

/* ---- data */

int64_t elastic_block(const worker *w, int64_t step, int64_t *epoch) {
    const data_plan *p = step >= w->next.step ? &w->next : &w->plan;
    int64_t nranks = p->nranks, steps = step > p->step ? step - p->step : 0;
    int64_t rest =
        (w->blocks - p->block) / nranks; /* steps of the epoch in which the plan begins */
    int64_t whole = w->blocks > nranks ? w->blocks / nranks : 1;
    int64_t first = p->block + steps * nranks;
    *epoch = p->epoch;
    if (steps >= rest) {
        *epoch += 1 + (steps - rest) / whole;
        first = (steps - rest) % whole * nranks;
    }
    return (first + p->rank) % w->blocks;
}

/* What rank 0 of a plan would take in a step. */
static int64_t first_block(const worker *w, int64_t step, int64_t *epoch) {
    const data_plan *p = step >= w->next.step ? &w->next : &w->plan;
    int64_t own = elastic_block(w, step, epoch);
    return (own - p->rank % w->blocks + w->blocks) % w->blocks;
}

/* ---- where the ranks are */

typedef struct rank_record {
    int64_t synced, step, exchanged, evaluating;
    int64_t taken, epoch, block; /* of data_plan, where this rank takes its next batch */
} rank_record;

static rank_record own_record(const worker *w) {
    rank_record r = {.synced = w->synced,
                     .step = w->step,
                     .exchanged = w->exchanged,
                     .evaluating = w->evaluating,
                     .taken = w->taken};
    if (w->taken >= 0)
        r.block = first_block(w, w->taken, &r.epoch);
    return r;
}

/* From the first step that no rank has begun on, the ranks of now take what follows. */
static void plan_data(worker *w, const rank_record *all) {
    const rank_record *last = &all[0];
    for (int r = 1; r < w->nranks; r++)
        last = all[r].taken > last->taken ? &all[r] : last;
    if (w->taken >= w->next.step)
        w->plan = w->next;
    w->next = (data_plan){last->taken, last->epoch, last->block, w->rank, w->nranks};
    if (w->taken < 0) { /* new */
        w->taken = w->step;
        w->plan = w->next;
    }
}

/* ---- the parameters of a rank that joins */

/* What must be the same on all ranks, and the library does not compare. */
typedef struct option_record {
    double steps, batch, length, seed, augment, evaluate, examples, tests, model, optimizer,
        momentum, weight_decay, schedule, rate, warmup, drop_every, drop_factor;
} option_record;

static const char *const option_names[] = {
    "--steps, or --epochs and --ranks",
    "--batch",
    "--length",
    "--seed",
    "--augment",
    "--evaluate",
    "--data or --limit",
    "--data or --test-limit",
    "--model",
    "--optimizer",
    "--momentum",
    "--weight-decay",
    "--schedule",
    "--lr",
    "--warmup",
    "--drop-every",
    "--drop-factor",
};
enum { OPTIONS = sizeof option_names / sizeof option_names[0] };
_Static_assert(sizeof(option_record) == OPTIONS * sizeof(double), "each option has its name");

static double number_of(const char *name) {
    char text[64] = "";
    snprintf(text, sizeof text, "%s", name);
    return (double)(hash_words(0, text, sizeof text) >> 32);
}

static option_record own_options(const worker *w) {
    const trainer_spec *s = w->spec;
    const dataset_info *info = dataset_get_info(w->data);
    return (option_record){.steps = (double)s->steps,
                           .batch = s->batch,
                           .length = s->length,
                           .seed = (double)s->seed,
                           .augment = s->augment,
                           .evaluate = (double)s->evaluate_every,
                           .examples = (double)info->count[DATASET_TRAIN],
                           .tests = (double)info->count[DATASET_TEST],
                           .model = number_of(s->model.name),
                           .optimizer = number_of(s->optimizer.name),
                           .momentum = s->optimizer.momentum,
                           .weight_decay = s->optimizer.weight_decay,
                           .schedule = number_of(s->schedule.name),
                           .rate = s->schedule.rate,
                           .warmup = (double)s->schedule.warmup,
                           .drop_every = (double)s->schedule.drop_every,
                           .drop_factor = s->schedule.drop_factor};
}

/* The first option in which a rank differs from rank 0; NULL: none. */
static const char *other_option(const option_record *all, int rank) {
    const double *theirs = (const double *)&all[rank], *job = (const double *)&all[0];
    for (int i = 0; i < OPTIONS; i++)
        if (theirs[i] != job[i])
            return option_names[i];
    return NULL;
}

static void take_members(worker *w, const tw_members *m) {
    w->rank = m->rank;
    w->nranks = m->nranks;
    w->test.worker = m->rank;
    w->test.workers = m->nranks;
    w->completed = m->completed != 0;
}

/* Compares a hash. Ranks that differ from rank 0 are no members any more and get TW_ERR_MISMATCH; *refused
 * on the others. */
static int verify(worker *w, uint64_t hash, bool *refused) {
    tw_members members = {.version = -1}; /* stays so on a rank that is refused */
    int status = tw_group_verify(w->group, &hash, sizeof hash, &members);
    *refused = status == TW_ERR_MISMATCH && members.version >= 0;
    if (!*refused)
        return status;
    take_members(w, &members);
    return TW_OK;
}

static int compare_options(worker *w, bool *refused) {
    option_record own = own_options(w);
    const option_record *all = NULL;
    TW_TRY(share(w, &own, sizeof own, (const void **)&all));
    const char *mine = other_option(all, w->rank), *other = NULL;
    for (int r = 0; r < w->nranks && other == NULL; r++)
        other = other_option(all, r);
    int status = verify(w, hash_words(0, &own, sizeof own), refused);
    if (status == TW_ERR_MISMATCH)
        return worker_fail(w, status,
                           "joining: this process and the job differ in %s; give it the "
                           "options of the job",
                           mine);
    if (*refused)
        worker_note(w, "a process that wanted to join differs in %s: refused", other);
    return check(w, "comparing options", status);
}

/* What rank 0 tells besides vectors. */
typedef struct counter_record {
    int64_t step, optimizer_steps, skipped, skipped_in_row, carries;
    double elapsed;
} counter_record;

static int send_bytes(worker *w, void *data, size_t bytes) {
    bool takes_part = w->rank == 0 || !w->synced;
    return bytes > 0 ? tw_group_broadcast(w->group, 0, takes_part ? data : NULL, bytes) : TW_OK;
}

static int send_vectors(worker *w, bool carries) {
    size_t bytes = sizeof(float) * (size_t)w->model->n;
    TW_TRY(send_bytes(w, w->model->values, bytes));
    for (int i = 0; i < w->optimizer.nslots; i++)
        TW_TRY(send_bytes(w, w->optimizer.slots[i], bytes));
    TW_TRY(send_bytes(w, w->model->state, sizeof(float) * (size_t)w->model->nstate));
    return send_bytes(w, w->carry, carries ? bytes : 0);
}

static uint64_t hash_of(const worker *w, const counter_record *c) {
    size_t bytes = sizeof(float) * (size_t)w->model->n;
    uint64_t hash = hash_words(0, &c->step, sizeof c->step);
    hash = hash_words(hash, w->model->values, bytes);
    for (int i = 0; i < w->optimizer.nslots; i++)
        hash = hash_words(hash, w->optimizer.slots[i], bytes);
    return hash_words(hash, w->carry, bytes);
}

static int send_parameters(worker *w, bool *refused) {
    counter_record c = {.step = w->step,
                        .optimizer_steps = w->optimizer.steps,
                        .skipped = w->skipped,
                        .skipped_in_row = w->skipped_in_row,
                        .carries = w->carries,
                        .elapsed = w->elapsed};
    counter_record job = c;
    TW_TRY(check(w, "getting the counters", tw_group_broadcast(w->group, 0, &job, sizeof job)));
    TW_TRY(check(w, "getting the parameters", send_vectors(w, job.carries != 0)));
    if (!w->synced) {
        w->step = job.step;
        w->optimizer.steps = job.optimizer_steps;
        w->skipped = job.skipped;
        w->skipped_in_row = job.skipped_in_row;
        w->carries = job.carries != 0;
        w->elapsed = job.elapsed;
        w->synced = true;
    }
    int status = verify(w, hash_of(w, &job), refused);
    if (*refused)
        worker_note(w, "a rank whose parameters differ was refused");
    return check(w, "comparing the parameters", status);
}

/* ---- all ranks at the same place */

static bool any_lacks_parameters(const worker *w, const rank_record *all) {
    bool lacks = false;
    for (int r = 0; r < w->nranks; r++)
        lacks = lacks || !all[r].synced;
    return lacks;
}

/* After every change of the ranks. Collective. */
static int sync_ranks(worker *w) {
    const rank_record *all = NULL;
    for (;;) {
        rank_record own = own_record(w);
        bool refused = false;
        TW_TRY(share(w, &own, sizeof own, (const void **)&all));
        if (!all[0].synced) /* those that join have the last numbers */
            return worker_fail(w, TW_ERR_QUORUM,
                               "all ranks that have the parameters are lost; start the job anew");
        if (!any_lacks_parameters(w, all))
            break;
        TW_TRY(compare_options(w, &refused));
        if (!refused)
            TW_TRY(send_parameters(w, &refused));
    }
    bool evaluating = false;
    w->others_past = false;
    for (int r = 0; r < w->nranks; r++) {
        evaluating = evaluating || all[r].evaluating;
        w->others_past =
            w->others_past || all[r].step > w->step || (all[r].step == w->step && all[r].exchanged);
    }
    plan_data(w, all);
    return evaluating ? evaluate_once(w) : TW_OK;
}

/* Of a rank that has joined and is lost before the others had compared its options, nothing is told. */
static void tell_members(worker *w, int nlost, const tw_lost_rank *lost, double seconds) {
    while (nlost > 0 && lost[nlost - 1].rank >= w->told)
        nlost--;
    int before = w->told, joined = w->nranks - (before - nlost);
    trainer_members told = {.step = w->step,
                            .rank = w->rank,
                            .nranks = w->nranks,
                            .nranks_before = before,
                            .joined = joined > 0 ? joined : 0,
                            .lost = lost,
                            .nlost = nlost,
                            .seconds = seconds,
                            .elapsed = w->elapsed};
    double now = tw__seconds();
    trainer_span span = {"change of ranks", false, w->step, now - seconds, now};
    w->told = w->nranks;
    if (told.nlost == 0 && told.nranks == told.nranks_before)
        return;
    if (w->watch->members != NULL)
        w->watch->members(w->watch->context, &told);
    if (w->watch->span != NULL)
        w->watch->span(w->watch->context, &span);
}

static int cannot_go_on(worker *w, int status) {
    const char *hint = status == TW_ERR_EXCLUDED ? " (thinwire train --join)" : "";
    return worker_fail(w, status, "going on without lost ranks: %s%s", tw_last_error(), hint);
}

int elastic_recover(worker *w, int status, double since) {
    if (!is_lost(status))
        return status;
    do {
        tw_members members;
        while ((status = tw_group_shrink(w->group, &members)) == TW_ERR_TIMEOUT ||
               status == TW_ERR_TRANSPORT)
            ;
        if (status != TW_OK)
            return cannot_go_on(w, status);
        take_members(w, &members);
        double now = tw__seconds();
        tell_members(w, members.nlost, members.lost, now - since);
        since = now;
        w->change_due = w->leaving = false;
        status = sync_ranks(w);
    } while (is_lost(status));
    return status;
}

/* ---- begin and end */

int elastic_create(worker *w) {
    batch_spec blocks = w->train;
    w->means = calloc((size_t)w->model->n, sizeof *w->means);
    w->progress = calloc((size_t)w->model->ntensors, sizeof *w->progress);
    if (w->means == NULL || w->progress == NULL)
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for mean gradients");
    w->told = w->nranks;
    w->synced = !w->spec->joins;
    w->taken = w->spec->joins ? -1 : 0;
    w->plan = w->next = (data_plan){.rank = w->rank, .nranks = w->nranks};
    return worker_check(w, "", dataset_steps(w->data, &blocks, &w->blocks));
}

int elastic_begin(worker *w, int status) {
    double begin = tw__seconds();
    if (status == TW_OK && w->spec->joins) {
        (void)tw_transport_info(w->transport, NULL, &w->rank, &w->nranks, NULL);
        w->test.worker = w->rank;
        w->test.workers = w->told = w->nranks;
        status = sync_ranks(w);
    }
    if (status != TW_OK)
        TW_TRY(elastic_recover(w, status, begin));
    if (w->spec->joins) {
        w->told = w->nranks - 1;
        tell_members(w, 0, NULL, tw__seconds() - begin);
    }
    return TW_OK;
}

/* A rank that has ended is lost for the others, unless they know that it has all it needs. */
int elastic_finish(worker *w) {
    for (;;) {
        char own = 0;
        const void *all = NULL;
        double begin = tw__seconds();
        int status = share(w, &own, sizeof own, &all);
        if (status == TW_OK)
            return TW_OK;
        status = elastic_recover(w, status, begin);
        if (status == TW_ERR_QUORUM || status == TW_ERR_EXCLUDED) {
            w->error->text[0] = '\0'; /* the others have ended */
            return TW_OK;
        }
        TW_TRY(status);
    }
}

/* ---- a step */

/* Starts what has no mean yet, in the order of buckets. */
static int start_rest(worker *w) {
    const model *m = w->model;
    int status = TW_OK;
    for (int t = m->ntensors - 1; t >= 0 && status == TW_OK; t--)
        if (w->progress[t] == TENSOR_IDLE) {
            status = tw_allreduce_start(w->group, worker_group_tensor(w, t), m->tensors[t].grad,
                                        w->means + m->tensors[t].offset);
            w->progress[t] = status == TW_OK ? TENSOR_STARTED : TENSOR_IDLE;
        }
    return status;
}

/* Waits for the tensors that were started. Returns the first error but for refusals. */
static int wait_started(worker *w, bool *refused) {
    const model *m = w->model;
    int first = TW_OK;
    *refused = false;
    for (int t = m->ntensors - 1; t >= 0; t--) {
        if (w->progress[t] != TENSOR_STARTED)
            continue;
        int status = tw_allreduce_wait(w->group, worker_group_tensor(w, t));
        w->progress[t] = status == TW_OK ? TENSOR_ARRIVED : TENSOR_IDLE;
        *refused = *refused || status == TW_ERR_NUMBER;
        if (status != TW_OK && status != TW_ERR_NUMBER && first == TW_OK)
            first = check(w, "allreduce", status);
    }
    return first;
}

/* Repeats what has failed until all tensors have their means, or are refused. */
static int exchange(worker *w, bool *refused) {
    for (;;) {
        int status = wait_started(w, refused);
        status = status == TW_OK ? w->failed : status;
        if (!is_lost(status))
            return check(w, "starting an allreduce", status);
        (void)tw_allreduce_wait(w->group, TW_ALL); /* nothing is under way: buckets begin anew */
        TW_TRY(elastic_recover(w, status, w->waiting));
        *refused = w->others_past && !w->completed;
        if (*refused) /* as on those that are past this step */
            return TW_OK;
        w->failed = start_rest(w);
    }
}

int elastic_collect(worker *w, bool *refused) {
    const model *m = w->model;
    bool any = false;
    w->waiting = tw__seconds();
    TW_TRY(exchange(w, refused));
    for (int t = 0; t < m->ntensors; t++) {
        const model_tensor *tensor = &m->tensors[t];
        size_t bytes = sizeof(float) * (size_t)tensor->n;
        bool arrived = w->progress[t] == TENSOR_ARRIVED;
        if (arrived)
            memcpy(tensor->grad, w->means + tensor->offset, bytes);
        else
            memset(tensor->grad, 0, bytes);
        any = any || arrived;
        w->progress[t] = TENSOR_IDLE;
    }
    worker_carry(w, m->grads, *refused && any);
    w->exchanged = true;
    return TW_OK;
}

typedef struct loss_record {
    double loss;
    double elapsed; /* all take that of rank 0: another one may have to go on with the log */
    int64_t bad, count, correct;
    uint64_t hash;
    int64_t leaves, looks;
} loss_record;

int elastic_share_loss(worker *w, double loss, int64_t count, int64_t correct, uint64_t hash,
                       double *total) {
    const loss_record *all = NULL;
    double now = tw__seconds();
    loss_record own = {.loss = isfinite(loss) ? loss : 0.0,
                       .elapsed = w->elapsed,
                       .bad = !isfinite(loss),
                       .count = count,
                       .correct = correct,
                       .hash = hash,
                       .leaves = w->spec->leaves != NULL && *w->spec->leaves,
                       .looks = w->rank == 0 && now - w->looked >= LOOK_EVERY};
    TW_TRY(share(w, &own, sizeof own, (const void **)&all));
    memset(w->sums, 0, sizeof w->sums);
    *total = 0.0;
    w->end->same = true;
    for (int r = 0; r < w->nranks; r++) {
        *total += all[r].bad ? NAN : all[r].loss;
        w->sums[SUM_COUNT] += (float)all[r].count;
        w->sums[SUM_CORRECT] += (float)all[r].correct;
        w->end->same = w->end->same && all[r].hash == hash;
        w->change_due = w->change_due || all[r].leaves || all[r].looks;
    }
    w->elapsed = all[0].elapsed;
    w->leaving = w->leaving || own.leaves;
    w->looked = own.looks ? now : w->looked;
    return TW_OK;
}

int elastic_average_state(worker *w) {
    model *m = w->model;
    size_t n = (size_t)m->nstate;
    const float *all = NULL;
    TW_TRY(share(w, m->state, n * sizeof(float), (const void **)&all));
    for (size_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int r = 0; r < w->nranks; r++)
            sum += (double)all[(size_t)r * n + i];
        m->state[i] = (float)(sum / w->nranks);
    }
    return TW_OK;
}

/* ---- ranks leave and join */

static int leave(worker *w) {
    int status = tw_group_leave(w->group, TW_ANY_RANK);
    w->end->left = status == TW_OK;
    return check(w, "leaving", status);
}

/* Those that stay. A newcomer that does not fit, or residuals that cannot be handed over, are no reason
 * to end. */
static int stay(worker *w, double begin) {
    tw_members m = {.rank = w->rank, .nranks = w->nranks};
    int before = w->nranks, status = tw_group_grow(w->group, &m);
    if (is_lost(status))
        return status;
    if (status != TW_OK)
        worker_note(w, "step %lld: ranks did not change as asked: %s", (long long)w->step,
                    tw_last_error());
    take_members(w, &m);
    if (w->nranks == before && m.nlost == 0)
        return TW_OK;
    tw_lost_rank *lost = calloc((size_t)m.nlost + 1, sizeof *lost); /* the group's may change */
    if (lost == NULL)
        return worker_fail(w, TW_ERR_MEMORY, "not enough memory for %d ranks", m.nlost);
    if (m.nlost > 0)
        memcpy(lost, m.lost, sizeof *lost * (size_t)m.nlost);
    status = sync_ranks(w);
    if (status == TW_OK)
        tell_members(w, m.nlost, lost, tw__seconds() - begin);
    free(lost);
    return status;
}

int elastic_change(worker *w) {
    double begin = tw__seconds();
    if (!w->change_due)
        return TW_OK;
    int status = w->leaving ? leave(w) : stay(w, begin);
    w->change_due = w->leaving = false;
    return elastic_recover(w, status, begin);
}
