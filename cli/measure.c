/* measure.c - the timed loop: selection and bare pass interleaved
 *
 *     step t even:  bare pass | run, commit          untimed before each: gradient (and selector)
 *     step t odd:   run, commit | bare pass          untimed in the last: copies for the check
 *
 * The first MEASURE_WARM_STEPS steps are run but not kept. Nothing is allocated between the clocks.
 */
#include "measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "errors.h"
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
    selection last; /* copy of the last step's selection */
    measurement *result;
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

/* ---- Medians -------------------------------------------------------------------------------- */

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts values[count]. */
static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    int64_t middle = count / 2;
    return count % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

/* ---- One step ------------------------------------------------------------------------------- */

static int renew_selector(bench_run *run) {
    tw_selector_free(run->selector);
    int error = tw_selector_create(&run->selector, run->plan->source->spec.n, run->params);
    return error == TW_OK ? STATUS_OK : library_failure("creating the selector", error);
}

static int time_floor(bench_run *run, const gradient *grad, step_times *times) {
    const bench_plan *plan = run->plan;
    double begin = timer_us();
    int error = tw_accumulate(plan->floor_sum, grad->values, plan->source->spec.n, plan->threads);
    times->floor_us = timer_us() - begin;
    return error == TW_OK ? STATUS_OK : library_failure("timing the bare pass", error);
}

static int copy_selection(const tw_sparse *sparse, selection *copy) {
    size_t count = (size_t)sparse->count;
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

static int time_selection(bench_run *run, const gradient *grad, bool is_last, step_times *times) {
    tw_sparse sparse;
    double begin = timer_us();
    int error = tw_selector_run(run->selector, grad->typed, &sparse);
    times->run_us = timer_us() - begin;
    if (error != TW_OK) {
        return library_failure("selecting", error);
    }
    if (is_last && copy_selection(&sparse, &run->last) != STATUS_OK) {
        return STATUS_FAILED;
    }
    begin = timer_us();
    error = tw_selector_commit(run->selector, NULL, 0);
    times->commit_us = timer_us() - begin;
    return error == TW_OK ? STATUS_OK : library_failure("committing", error);
}

static int get_residual(bench_run *run, float *residual) {
    int error = tw_selector_get_residual(run->selector, residual);
    return error == TW_OK ? STATUS_OK : library_failure("reading the residual", error);
}

/* Step t with its bare pass, in the order that t asks for. */
static int one_step(bench_run *run, int64_t t, bool is_last, gradient *grad, step_times *times) {
    *grad = gradients_at(run->plan->source, t);
    int status = run->plan->cold ? renew_selector(run) : STATUS_OK;
    if (status == STATUS_OK && is_last) {
        status = get_residual(run, run->plan->acc);
    }
    bool floor_first = t % 2 == 0;
    if (status == STATUS_OK && floor_first) {
        status = time_floor(run, grad, times);
    }
    if (status == STATUS_OK) {
        status = time_selection(run, grad, is_last, times);
    }
    if (status == STATUS_OK && !floor_first) {
        status = time_floor(run, grad, times);
    }
    return status;
}

/* ---- The check of the last step ------------------------------------------------------------- */

/* plan->acc holds the residual before the step: make it gradient + residual. */
static void add_gradient(const bench_plan *plan, const gradient *grad) {
    for (int64_t i = 0; i < plan->source->spec.n; i++) {
        plan->acc[i] = grad->values[i] + plan->acc[i];
    }
}

static int check_last_step(bench_run *run, const gradient *grad) {
    const bench_plan *plan = run->plan;
    int status = get_residual(run, plan->after);
    if (status != STATUS_OK) {
        return status;
    }
    add_gradient(plan, grad);
    step_record step = {
        .n = plan->source->spec.n,
        .k = run->result->k,
        .acc = plan->acc,
        .after = plan->after,
        .sent = run->last,
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
    result->count_mean += (double)info.count / (double)run->plan->steps;
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

static void take_medians(const bench_plan *plan, measurement *result) {
    int64_t steps = plan->steps;
    result->run_us = median(plan->samples, steps);
    result->commit_us = median(plan->samples + steps, steps);
    result->time_us = median(plan->samples + 2 * steps, steps);
    result->floor_us = median(plan->samples + 3 * steps, steps);
}

static int run_steps(bench_run *run, int64_t *progress) {
    int64_t total = MEASURE_WARM_STEPS + run->plan->steps;
    gradient grad = {0};
    for (int64_t t = 0; t < total; t++) {
        step_times times = {0};
        int status = one_step(run, t, t == total - 1, &grad, &times);
        if (status == STATUS_OK && t >= MEASURE_WARM_STEPS) {
            status = note_step(run, t - MEASURE_WARM_STEPS, &times);
        }
        if (status != STATUS_OK) {
            return status;
        }
        progress_to(++*progress);
    }
    return check_last_step(run, &grad);
}

int measure_method(const bench_plan *plan, const tw_select_params *params, measurement *result,
                   int64_t *progress) {
    bench_run run = {.plan = plan, .params = params, .result = result};
    *result = (measurement){0};
    /* The sums of the bare pass start anew, so that they stay small whatever ran before. */
    memset(plan->floor_sum, 0, (size_t)plan->source->spec.n * sizeof *plan->floor_sum);
    int status = renew_selector(&run);
    if (status == STATUS_OK) {
        status = run_steps(&run, progress);
    }
    if (status == STATUS_OK) {
        take_medians(plan, result);
    }
    tw_selector_free(run.selector);
    free(run.last.idx);
    free(run.last.val);
    return status;
}
