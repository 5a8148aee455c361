/* measure.c - the timed loop: selection and bare pass interleaved
 *
 *     step t even:  bare pass | run, commit
 *     step t odd:   run, commit | bare pass
 *
 * Untimed between them: making the gradient, bringing it to where it is used, and creating the
 * selector of a cold step. The first MEASURE_WARM_STEPS steps are timed but not kept.
 *
 * The check follows MEASURE_CHECKED_STEPS further steps with a residual of its own. They are not
 * timed, as what they select must be copied before the commit, and that would wait for a GPU. Two,
 * because the library writes what a commit asks for in the next run, and that is the path that is
 * timed: reading the residual in between would take another one.
 */
#include "measure.h"

#include <inttypes.h>
#include <stdlib.h>

#include "buffer.h"
#include "errors.h"
#include "median.h"
#include "progress.h"
#include "verify.h"

/* The times of one step. */
typedef struct step_times {
    double run_us;
    double commit_us;
    double floor_us;
} step_times;

/* One method under way. */
typedef struct bench_run {
    const bench_plan *plan;
    const tw_select_params *params;
    tw_selector *selector;
    measurement *result;
    gradient grad;  /* of the step under way, where it is used */
    selection sent; /* copy of the selection of the last step followed */
} bench_run;

int bench_plan_create(bench_plan *plan, gradients *source, place *where, int64_t steps) {
    int64_t n = source->spec.n;
    *plan = (bench_plan){.source = source, .where = where, .steps = steps};
    plan->acc = buffer_create(n, sizeof *plan->acc);
    plan->after = buffer_create(n, sizeof *plan->after);
    plan->samples = calloc((size_t)steps, 4 * sizeof *plan->samples);
    if (plan->acc == NULL || plan->after == NULL || plan->samples == NULL) {
        bench_plan_free(plan);
        return failure("not enough memory for %" PRId64 " elements; try a smaller --n", n);
    }
    return STATUS_OK;
}

void bench_plan_free(bench_plan *plan) {
    free(plan->acc);
    free(plan->after);
    free(plan->samples);
    *plan = (bench_plan){0};
}

/* ---- One step ------------------------------------------------------------------------------- */

/* Refuse what the kernel would promise and then kill us for. */
static int check_memory(const bench_run *run) {
    const place_kind *kind = run->plan->where->kind;
    tw_memory memory;
    int error = tw_selector_memory(run->plan->source->spec.n, run->params, &memory);
    if (error != TW_OK)
        return library_failure("asking for the selector's size", error);
    size_t touched = memory.total - memory.undo; /* the undo space is hardly touched */
    if (kind->room != NULL && touched > kind->room()) {
        return failure("a selector takes %zu MB, more than is free; try a smaller --n",
                       touched / 1000000);
    }
    return STATUS_OK;
}

static int renew_selector(bench_run *run) {
    tw_selector_free(run->selector);
    int error = tw_selector_create(&run->selector, run->plan->source->spec.n, run->params);
    return error == TW_OK ? STATUS_OK : library_failure("creating the selector", error);
}

static void free_selection(selection *copy) {
    free(copy->idx);
    free(copy->val);
    *copy = (selection){0};
}

static int copy_selection(place *where, const tw_sparse *sparse, selection *copy) {
    size_t count = (size_t)sparse->count;
    free_selection(copy);
    copy->count = sparse->count;
    copy->idx = malloc((count + 1) * sizeof *copy->idx);
    copy->val = malloc((count + 1) * sizeof *copy->val);
    if (copy->idx == NULL || copy->val == NULL)
        return failure("not enough memory to check the selection");
    int status = where->kind->fetch(where, copy->idx, sparse->idx, count * sizeof *copy->idx);
    return status == STATUS_OK
               ? where->kind->fetch(where, copy->val, sparse->val, count * sizeof *copy->val)
               : status;
}

/* What is timed. */
static int work_bare_pass(void *context) {
    bench_run *run = context;
    place *where = run->plan->where;
    return where->kind->bare_pass(where, &run->grad);
}

static int work_run(void *context) {
    bench_run *run = context;
    tw_sparse sparse;
    int error = tw_selector_run(run->selector, run->grad.typed, &sparse);
    return error == TW_OK ? STATUS_OK : library_failure("selecting", error);
}

static int work_commit(void *context) {
    bench_run *run = context;
    int error = tw_selector_commit(run->selector, NULL, 0);
    return error == TW_OK ? STATUS_OK : library_failure("committing", error);
}

static int time_bare_pass(bench_run *run, step_times *times) {
    place *where = run->plan->where;
    const place_work work[] = {work_bare_pass};
    return where->kind->time(where, work, 1, run, &times->floor_us);
}

static int time_selection(bench_run *run, step_times *times) {
    place *where = run->plan->where;
    const place_work work[] = {work_run, work_commit};
    double us[2] = {0};
    int status = where->kind->time(where, work, 2, run, us);
    times->run_us = us[0];
    times->commit_us = us[1];
    return status;
}

static int bring_gradient(bench_run *run, const gradient *made) {
    place *where = run->plan->where;
    int status = run->plan->cold ? renew_selector(run) : STATUS_OK;
    return status == STATUS_OK ? where->kind->bring(where, made, &run->grad) : status;
}

/* Step t with its bare pass, in the order that t asks for. */
static int timed_step(bench_run *run, int64_t t, step_times *times) {
    gradient made = gradients_at(run->plan->source, t);
    bool floor_first = t % 2 == 0;
    int status = bring_gradient(run, &made);
    if (status == STATUS_OK && floor_first)
        status = time_bare_pass(run, times);
    if (status == STATUS_OK)
        status = time_selection(run, times);
    if (status == STATUS_OK && !floor_first)
        status = time_bare_pass(run, times);
    return status;
}

/* ---- The check ------------------------------------------------------------------------------ */

static int get_residual(bench_run *run, float *residual) {
    int error = tw_selector_get_residual(run->selector, residual);
    return error == TW_OK ? STATUS_OK : library_failure("reading the residual", error);
}

/* A step whose selection is copied. */
static int copied_step(bench_run *run) {
    tw_sparse sparse;
    int error = tw_selector_run(run->selector, run->grad.typed, &sparse);
    if (error == TW_OK)
        error = tw_selector_wait(run->selector, &sparse);
    if (error != TW_OK)
        return library_failure("selecting", error);
    int status = copy_selection(run->plan->where, &sparse, &run->sent);
    return status == STATUS_OK ? work_commit(run) : status;
}

/* Do by hand what a step should have done: plan->acc, the residual before it, becomes acc. */
static void follow_step(bench_run *run, const float *values) {
    float *acc = run->plan->acc;
    for (int64_t i = 0; i < run->plan->source->spec.n; i++)
        acc[i] = values[i] + acc[i];
}

/* And then the residual after it. */
static void follow_commit(bench_run *run) {
    int64_t n = run->plan->source->spec.n;
    for (int64_t j = 0; j < run->sent.count; j++) {
        int64_t i = run->sent.idx[j];
        if (i >= 0 && i < n) /* nothing is taken on trust from what is being checked */
            run->plan->acc[i] = 0.0f;
    }
}

/* Run the steps from t on and follow them: plan->acc is acc of the last one. */
static int follow_steps(bench_run *run, int64_t t) {
    for (int64_t end = t + MEASURE_CHECKED_STEPS, first = t; t < end; t++) {
        gradient made = gradients_at(run->plan->source, t);
        int status = bring_gradient(run, &made);
        if (status == STATUS_OK && (run->plan->cold || t == first))
            status = get_residual(run, run->plan->acc);
        else if (status == STATUS_OK)
            follow_commit(run);
        if (status == STATUS_OK)
            status = copied_step(run);
        if (status != STATUS_OK)
            return status;
        follow_step(run, made.values);
    }
    return STATUS_OK;
}

static int check_last_step(bench_run *run) {
    const bench_plan *plan = run->plan;
    int status = get_residual(run, plan->after);
    if (status != STATUS_OK)
        return status;
    step_record step = {
        .n = plan->source->spec.n,
        .k = run->result->k,
        .acc = plan->acc,
        .after = plan->after,
        .sent = run->sent,
    };
    int64_t index;
    const char *wrong = verify_step(&step, &index);
    if (wrong != NULL) {
        return failure("method %s is wrong at index %" PRId64 ": %s", run->params->method, index,
                       wrong);
    }
    return verify_exact(&step, &run->result->exact);
}

/* ---- All steps ------------------------------------------------------------------------------ */

/* Where steps are only queued, this is how a refused one shows. */
static int ask_selector(const bench_run *run, tw_select_info *info) {
    int error = tw_selector_info(run->selector, info);
    if (error != TW_OK)
        return library_failure("asking the selector", error);
    if (info->bad_index >= 0) {
        return failure("selecting: element %" PRId64 " is NaN or infinite, or overflows with the "
                       "residual; try --type f32, a --drift nearer to 1, or other data",
                       info->bad_index);
    }
    return STATUS_OK;
}

static void note_step(bench_run *run, int64_t timed, const tw_select_info *info,
                      const step_times *times) {
    measurement *result = run->result;
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

static void summarise(const bench_plan *plan, measurement *result) {
    int64_t steps = plan->steps;
    result->count_mean /= (double)steps;
    result->run_us = median(plan->samples, steps);
    result->commit_us = median(plan->samples + steps, steps);
    result->time_us = median(plan->samples + 2 * steps, steps);
    result->floor_us = median(plan->samples + 3 * steps, steps);
}

static int run_steps(bench_run *run, int64_t *progress) {
    int64_t end = MEASURE_WARM_STEPS + run->plan->steps;
    for (int64_t t = 0; t < end; t++) {
        step_times times = {0};
        tw_select_info info;
        int status = timed_step(run, t, &times);
        if (status == STATUS_OK)
            status = ask_selector(run, &info);
        if (status != STATUS_OK)
            return status;
        if (t >= MEASURE_WARM_STEPS)
            note_step(run, t - MEASURE_WARM_STEPS, &info, &times);
        progress_to(++*progress);
    }
    int status = follow_steps(run, end);
    return status == STATUS_OK ? check_last_step(run) : status;
}

int measure_method(const bench_plan *plan, const tw_select_params *params, measurement *result,
                   int64_t *progress) {
    bench_run run = {.plan = plan, .params = params, .result = result};
    *result = (measurement){0};
    int status = check_memory(&run);
    if (status == STATUS_OK) {
        /* The sums of the bare pass start anew, so that they stay small whatever ran before. */
        status = plan->where->kind->bare_clear(plan->where);
    }
    if (status == STATUS_OK)
        status = renew_selector(&run);
    if (status == STATUS_OK)
        status = run_steps(&run, progress);
    if (status == STATUS_OK)
        summarise(plan, result);
    tw_selector_free(run.selector);
    free_selection(&run.sent);
    return status;
}
