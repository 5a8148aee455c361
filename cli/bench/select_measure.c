/* select_measure.c - the timed loop: selection and bare pass interleaved
 *
 * A timed step is tw_selector_run and tw_selector_commit together: what a training step pays. Right
 * before or after each one, in turns, the bare pass e += g is timed on the same gradient, so that
 * whatever else the machine does hits both alike.
 *
 *     step t even:  bare pass | run, commit
 *     step t odd:   run, commit | bare pass
 *
 * Untimed between them: making the gradient, uploading it, and creating the
 * selector of a cold step. The first SELECT_WARM_STEPS steps are timed but not kept.
 *
 * The check follows SELECT_CHECKED_STEPS further steps with a residual of its own. They are not
 * timed, as what they select must be copied before the commit, and that would wait for a GPU. Two,
 * because the library writes what a commit asks for in the next run, and that is the path that is
 * timed: reading the residual in between would take another one.
 */
#include "bench/bench_select.h"

#include <inttypes.h>
#include <stdlib.h>

#include "error.h"
#include "progress.h"
#include "vector.h"

/* The times of one step. */
typedef struct step_times {
    double run_us;
    double commit_us;
    double floor_us;
} step_times;

/* One method under way. */
typedef struct select_run {
    const select_plan *plan;
    const tw_select_params *params;
    tw_selector *selector;
    select_result *result;
    gradient grad;       /* of the step under way, on the device */
    selection_copy sent; /* of the selection of the last step followed */
} select_run;

int select_plan_create(select_plan *plan, gradients *source, bench_device *device, int64_t steps) {
    int64_t n = source->spec.n;
    *plan = (select_plan){.source = source, .device = device, .steps = steps};
    plan->acc = vector_alloc(n, sizeof *plan->acc);
    plan->after = vector_alloc(n, sizeof *plan->after);
    plan->samples = calloc((size_t)steps, 4 * sizeof *plan->samples);
    if (plan->acc == NULL || plan->after == NULL || plan->samples == NULL) {
        select_plan_free(plan);
        return error_report("not enough memory for %" PRId64 " elements; try a smaller --n", n);
    }
    return STATUS_OK;
}

void select_plan_free(select_plan *plan) {
    free(plan->acc);
    free(plan->after);
    free(plan->samples);
    *plan = (select_plan){0};
}

/* ---- One step ------------------------------------------------------------------------------- */

/* Refuse what the kernel would promise and then kill us for. */
static int check_memory(const select_run *run) {
    const bench_device_kind *kind = run->plan->device->kind;
    tw_memory memory;
    TW_TRY(error_check("asking for the selector's size",
                       tw_selector_memory(run->plan->source->spec.n, run->params, &memory)));
    size_t touched = memory.total - memory.undo; /* the undo space is hardly touched */
    if (kind->available != NULL && touched > kind->available()) {
        return error_report("a selector takes %zu MB, more than is free; try a smaller --n",
                            touched / 1000000);
    }
    return STATUS_OK;
}

static int renew_selector(select_run *run) {
    tw_selector_free(run->selector);
    return error_check("creating the selector",
                       tw_selector_create(&run->selector, run->plan->source->spec.n, run->params));
}

/* What is timed. */
static int work_bare_pass(void *context) {
    select_run *run = context;
    bench_device *device = run->plan->device;
    return device->kind->bare_pass(device, &run->grad);
}

static int work_run(void *context) {
    select_run *run = context;
    tw_sparse sparse;
    return error_check("selecting", tw_selector_run(run->selector, run->grad.typed, &sparse));
}

static int work_commit(void *context) {
    select_run *run = context;
    return error_check("committing", tw_selector_commit(run->selector, NULL, 0));
}

static int time_bare_pass(select_run *run, step_times *times) {
    bench_device *device = run->plan->device;
    const bench_device_work work[] = {work_bare_pass};
    return device->kind->time(device, work, 1, run, &times->floor_us);
}

static int time_selection(select_run *run, step_times *times) {
    bench_device *device = run->plan->device;
    const bench_device_work work[] = {work_run, work_commit};
    double us[2] = {0};
    int status = device->kind->time(device, work, 2, run, us);
    times->run_us = us[0];
    times->commit_us = us[1];
    return status;
}

static int upload_gradient(select_run *run, const gradient *made) {
    bench_device *device = run->plan->device;
    TW_TRY(run->plan->cold ? renew_selector(run) : STATUS_OK);
    return device->kind->upload_gradient(device, made, &run->grad);
}

/* Step t with its bare pass, in the order that t asks for. */
static int timed_step(select_run *run, int64_t t, step_times *times) {
    gradient made = gradients_at(run->plan->source, t);
    bool floor_first = t % 2 == 0;
    TW_TRY(upload_gradient(run, &made));
    if (floor_first)
        TW_TRY(time_bare_pass(run, times));
    TW_TRY(time_selection(run, times));
    if (!floor_first)
        TW_TRY(time_bare_pass(run, times));
    return STATUS_OK;
}

/* ---- The check ------------------------------------------------------------------------------ */

static int get_residual(select_run *run, float *residual) {
    return error_check("reading the residual", tw_selector_get_residual(run->selector, residual));
}

/* A step whose selection is copied. */
static int copied_step(select_run *run) {
    tw_sparse sparse;
    TW_TRY(error_check("selecting", tw_selector_run(run->selector, run->grad.typed, &sparse)));
    TW_TRY(error_check("selecting", tw_selector_wait(run->selector, &sparse)));
    TW_TRY(bench_device_copy(run->plan->device, &sparse, &run->sent,
                             "not enough memory to check the selection"));
    return work_commit(run);
}

/* Do by hand what a step should have done: plan->acc, the residual before it, becomes acc. */
static void follow_step(select_run *run, const float *values) {
    float *acc = run->plan->acc;
    for (int64_t i = 0; i < run->plan->source->spec.n; i++)
        acc[i] = values[i] + acc[i];
}

/* And then the residual after it. */
static void follow_commit(select_run *run) {
    int64_t n = run->plan->source->spec.n;
    for (int64_t j = 0; j < run->sent.count; j++) {
        int64_t i = run->sent.idx[j];
        if (i >= 0 && i < n) /* nothing is taken on trust from what is being checked */
            run->plan->acc[i] = 0.0f;
    }
}

/* Run the steps from t on and follow them: plan->acc is acc of the last one. */
static int follow_steps(select_run *run, int64_t t) {
    for (int64_t end = t + SELECT_CHECKED_STEPS, first = t; t < end; t++) {
        gradient made = gradients_at(run->plan->source, t);
        TW_TRY(upload_gradient(run, &made));
        if (run->plan->cold || t == first)
            TW_TRY(get_residual(run, run->plan->acc));
        else
            follow_commit(run);
        TW_TRY(copied_step(run));
        follow_step(run, made.values);
    }
    return STATUS_OK;
}

static int check_last_step(select_run *run) {
    const select_plan *plan = run->plan;
    TW_TRY(get_residual(run, plan->after));
    select_step step = {.n = plan->source->spec.n,
                        .k = run->result->k,
                        .acc = plan->acc,
                        .after = plan->after,
                        .sent = run->sent};
    int64_t index;
    const char *wrong = select_verify(&step, &index);
    if (wrong != NULL) {
        return error_report("method %s is wrong at index %" PRId64 ": %s", run->params->method,
                            index, wrong);
    }
    return select_verify_exact(&step, &run->result->exact);
}

/* ---- All steps ------------------------------------------------------------------------------ */

/* Where steps are only queued, this is how a refused one shows. */
static int ask_selector(const select_run *run, tw_select_info *info) {
    TW_TRY(error_check("asking the selector", tw_selector_info(run->selector, info)));
    if (info->bad_index >= 0) {
        return error_report("selecting: element %" PRId64
                            " is NaN or infinite, or overflows with the "
                            "residual; try --type f32, a --drift nearer to 1, or other data",
                            info->bad_index);
    }
    return STATUS_OK;
}

static void note_step(select_run *run, int64_t timed, const tw_select_info *info,
                      const step_times *times) {
    select_result *result = run->result;
    result->k = info->k;
    result->count = info->count;
    result->candidates = info->candidates;
    result->rescans += info->rescans;
    result->count_mean += (double)info->count; /* a sum until summarise divides it */
    if (timed == 0 || info->count < result->count_min)
        result->count_min = info->count;
    if (timed == 0 || info->count > result->count_max)
        result->count_max = info->count;
    double *samples = run->plan->samples;
    samples[timed] = times->run_us;
    samples[timed + run->plan->steps] = times->commit_us;
    samples[timed + 2 * run->plan->steps] = times->run_us + times->commit_us;
    samples[timed + 3 * run->plan->steps] = times->floor_us;
}

static void summarise(const select_plan *plan, select_result *result) {
    int64_t steps = plan->steps;
    result->count_mean /= (double)steps;
    result->run_us = vector_median(plan->samples, steps);
    result->commit_us = vector_median(plan->samples + steps, steps);
    result->time_us = vector_median(plan->samples + 2 * steps, steps);
    result->floor_us = vector_median(plan->samples + 3 * steps, steps);
}

static int run_steps(select_run *run, int64_t *progress) {
    int64_t end = SELECT_WARM_STEPS + run->plan->steps;
    for (int64_t t = 0; t < end; t++) {
        step_times times = {0};
        tw_select_info info;
        TW_TRY(timed_step(run, t, &times));
        TW_TRY(ask_selector(run, &info));
        if (t >= SELECT_WARM_STEPS)
            note_step(run, t - SELECT_WARM_STEPS, &info, &times);
        progress_to(++*progress);
    }
    TW_TRY(follow_steps(run, end));
    return check_last_step(run);
}

int select_measure(const select_plan *plan, const tw_select_params *params, select_result *result,
                   int64_t *progress) {
    select_run run = {.plan = plan, .params = params, .result = result};
    *result = (select_result){0};
    int status = check_memory(&run);
    if (status == STATUS_OK) {
        /* The sums of the bare pass start anew, so that they stay small whatever ran before. */
        status = plan->device->kind->bare_clear(plan->device);
    }
    if (status == STATUS_OK)
        status = renew_selector(&run);
    if (status == STATUS_OK)
        status = run_steps(&run, progress);
    if (status == STATUS_OK)
        summarise(plan, result);
    tw_selector_free(run.selector);
    selection_copy_free(&run.sent);
    return status;
}
