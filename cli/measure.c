/* measure.c - the timed loop: selection and bare pass interleaved
 *
 *     step t even:  bare pass | run, commit
 *     step t odd:   run, commit | bare pass
 *
 * Untimed between them: making the gradient, creating the selector of a cold step, and copies for
 * the check. The first MEASURE_WARM_STEPS steps are run but not kept.
 *
 * The check follows the last two steps with a residual of its own. Two, because the library writes
 * what a commit asks for in the next run, and that is the path that is timed: reading the residual
 * in between would take another one.
 */
#include "measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "errors.h"
#include "median.h"
#include "progress.h"
#include "timer.h"
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
    int64_t last_step;
    int64_t followed_from; /* first step that the check follows */
    selection sent;        /* copy of the selection of the last step followed */
} bench_run;

int bench_plan_create(bench_plan *plan, gradients *source, int64_t steps) {
    int64_t n = source->spec.n;
    *plan = (bench_plan){.source = source, .steps = steps};
    plan->floor_sum = buffer_create(n, sizeof *plan->floor_sum);
    plan->acc = buffer_create(n, sizeof *plan->acc);
    plan->after = buffer_create(n, sizeof *plan->after);
    plan->samples = calloc((size_t)steps, 4 * sizeof *plan->samples);
    if (plan->floor_sum == NULL || plan->acc == NULL || plan->after == NULL ||
        plan->samples == NULL) {
        bench_plan_free(plan);
        return failure("not enough memory for %" PRId64 " elements; try a smaller --n", n);
    }
    return STATUS_OK;
}

void bench_plan_free(bench_plan *plan) {
    free(plan->floor_sum);
    free(plan->acc);
    free(plan->after);
    free(plan->samples);
    *plan = (bench_plan){0};
}

/* ---- One step ------------------------------------------------------------------------------- */

/* Refuse what the kernel would promise and then kill us for. */
static int check_memory(const bench_run *run) {
    tw_memory memory;
    int error = tw_selector_memory(run->plan->source->spec.n, run->params, &memory);
    if (error != TW_OK) {
        return library_failure("asking for the selector's size", error);
    }
    size_t touched = memory.total - memory.undo; /* the undo space is hardly touched */
    if (touched > buffer_available()) {
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

static int time_floor(bench_run *run, const gradient *grad, step_times *times) {
    const bench_plan *plan = run->plan;
    int64_t begin = timer_ns();
    int error = tw_accumulate(plan->floor_sum, grad->values, plan->source->spec.n, plan->threads);
    times->floor_us = timer_us_since(begin);
    return error == TW_OK ? STATUS_OK : library_failure("timing the bare pass", error);
}

static void free_selection(selection *copy) {
    free(copy->idx);
    free(copy->val);
    *copy = (selection){0};
}

static int copy_selection(const tw_sparse *sparse, selection *copy) {
    size_t count = (size_t)sparse->count;
    free_selection(copy);
    copy->count = sparse->count;
    copy->idx = malloc((count + 1) * sizeof *copy->idx);
    copy->val = malloc((count + 1) * sizeof *copy->val);
    if (copy->idx == NULL || copy->val == NULL) {
        return failure("not enough memory to check the selection");
    }
    if (count > 0) {
        memcpy(copy->idx, sparse->idx, count * sizeof *copy->idx);
        memcpy(copy->val, sparse->val, count * sizeof *copy->val);
    }
    return STATUS_OK;
}

static int time_selection(bench_run *run, const gradient *grad, bool followed, step_times *times) {
    tw_sparse sparse;
    int64_t begin = timer_ns();
    int error = tw_selector_run(run->selector, grad->typed, &sparse);
    times->run_us = timer_us_since(begin);
    if (error != TW_OK) {
        return library_failure("selecting", error);
    }
    if (followed && copy_selection(&sparse, &run->sent) != STATUS_OK) {
        return STATUS_FAILED; /* the arrays end with the commit, so the copy is made here */
    }
    begin = timer_ns();
    error = tw_selector_commit(run->selector, NULL, 0);
    times->commit_us = timer_us_since(begin);
    return error == TW_OK ? STATUS_OK : library_failure("committing", error);
}

static int get_residual(bench_run *run, float *residual) {
    int error = tw_selector_get_residual(run->selector, residual);
    return error == TW_OK ? STATUS_OK : library_failure("reading the residual", error);
}

/* Do by hand what step t should have done: plan->acc, the residual before it, becomes acc, and the
 * residual after it unless it is the last. */
static void follow_step(bench_run *run, int64_t t, const gradient *grad) {
    float *acc = run->plan->acc;
    int64_t n = run->plan->source->spec.n;
    for (int64_t i = 0; i < n; i++) {
        acc[i] = grad->values[i] + acc[i];
    }
    for (int64_t j = 0; j < run->sent.count && t < run->last_step; j++) {
        int64_t i = run->sent.idx[j];
        if (i >= 0 && i < n) { /* nothing is taken on trust from what is being checked */
            acc[i] = 0.0f;
        }
    }
}

/* Step t with its bare pass, in the order that t asks for. */
static int one_step(bench_run *run, int64_t t, step_times *times) {
    gradient grad = gradients_at(run->plan->source, t);
    bool followed = t >= run->followed_from;
    bool floor_first = t % 2 == 0;
    int status = run->plan->cold ? renew_selector(run) : STATUS_OK;
    if (status == STATUS_OK && t == run->followed_from) {
        status = get_residual(run, run->plan->acc);
    }
    if (status == STATUS_OK && floor_first) {
        status = time_floor(run, &grad, times);
    }
    if (status == STATUS_OK) {
        status = time_selection(run, &grad, followed, times);
    }
    if (status == STATUS_OK && !floor_first) {
        status = time_floor(run, &grad, times);
    }
    if (status == STATUS_OK && followed) {
        follow_step(run, t, &grad);
    }
    return status;
}

/* ---- The check of the last step ------------------------------------------------------------- */

static int check_last_step(bench_run *run) {
    const bench_plan *plan = run->plan;
    int status = get_residual(run, plan->after);
    if (status != STATUS_OK) {
        return status;
    }
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

static int note_step(bench_run *run, int64_t timed, const step_times *times) {
    tw_select_info info;
    int error = tw_selector_info(run->selector, &info);
    if (error != TW_OK) {
        return library_failure("asking the selector", error);
    }
    measurement *result = run->result;
    result->k = info.k;
    result->count = info.count;
    result->candidates = info.candidates;
    result->rescans += info.rescans;
    result->count_mean += (double)info.count; /* a sum until summarise divides it */
    if (timed == 0 || info.count < result->count_min) {
        result->count_min = info.count;
    }
    if (timed == 0 || info.count > result->count_max) {
        result->count_max = info.count;
    }
    double *samples = run->plan->samples;
    samples[timed] = times->run_us;
    samples[timed + run->plan->steps] = times->commit_us;
    samples[timed + 2 * run->plan->steps] = times->run_us + times->commit_us;
    samples[timed + 3 * run->plan->steps] = times->floor_us;
    return STATUS_OK;
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
    for (int64_t t = 0; t <= run->last_step; t++) {
        step_times times = {0};
        int status = one_step(run, t, &times);
        if (status == STATUS_OK && t >= MEASURE_WARM_STEPS) {
            status = note_step(run, t - MEASURE_WARM_STEPS, &times);
        }
        if (status != STATUS_OK) {
            return status;
        }
        progress_to(++*progress);
    }
    return check_last_step(run);
}

int measure_method(const bench_plan *plan, const tw_select_params *params, measurement *result,
                   int64_t *progress) {
    int64_t last_step = MEASURE_WARM_STEPS + plan->steps - 1;
    bench_run run = {
        .plan = plan,
        .params = params,
        .result = result,
        .last_step = last_step,
        .followed_from = plan->cold ? last_step : last_step - 1,
    };
    *result = (measurement){0};
    /* The sums of the bare pass start anew, so that they stay small whatever ran before. */
    memset(plan->floor_sum, 0, (size_t)plan->source->spec.n * sizeof *plan->floor_sum);
    int status = check_memory(&run);
    if (status == STATUS_OK) {
        status = renew_selector(&run);
    }
    if (status == STATUS_OK) {
        status = run_steps(&run, progress);
    }
    if (status == STATUS_OK) {
        summarise(plan, result);
    }
    tw_selector_free(run.selector);
    free_selection(&run.sent);
    return status;
}
