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
 *
 * With AdamW before selection the second of them sends nothing, and acc is read from the library:
 * its moments are its own. What they must be is checked by the tests.
 *
 * The check shares nothing with the library, which guesses a threshold and picks among candidates;
 * here the k-th magnitude comes from two histograms over the whole vector. Slow and simple.
 *
 * The magnitude of a finite float32 orders like its low 31 bits read as an integer, the key. A
 * histogram over the upper 16 bits of all keys finds the bin of the k-th largest, a second one over
 * the lower 15 bits of that bin's keys finds the key itself, the cut. The top k are then all keys
 * above the cut and, in index order, as many equal to it as are missing.
 *
 *     example, k = 3:  keys 5 9 7 7 2 7   cut 7, 1 key above, 2 ties wanted: indices 1 2 3
 */
#include "bench/bench_select.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cli.h"
#include "vector.h"

#define LOW_BITS 15
#define HIGH_BINS (1 << 16)
#define LOW_BINS (1 << LOW_BITS)

enum { RUN, COMMIT, BOTH, FLOOR, TIMES }; /* rows of samples */

/* One method under way. */
typedef struct select_run {
    const select_plan *plan;
    const tw_select_params *params;
    tw_selector *selector;
    select_result *result;
    gradient grad;       /* of the step under way, on the device */
    selection_copy sent; /* of the selection of the last step followed */
    int64_t wrong_at;    /* where the check found it wrong */
} select_run;

int select_plan_create(select_plan *plan, gradients *source, bench_device *device, int64_t steps) {
    int64_t n = source->spec.n;
    *plan = (select_plan){.source = source, .device = device, .steps = steps};
    plan->acc = vector_alloc(n, sizeof *plan->acc);
    plan->after = vector_alloc(n, sizeof *plan->after);
    plan->samples = calloc((size_t)steps, TIMES * sizeof *plan->samples);
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

static int commit_all(select_run *run) {
    return error_check("committing", tw_selector_commit(run->selector, NULL, 0));
}

static int work_commit(void *context) {
    return commit_all(context);
}

static int upload_gradient(select_run *run, const gradient *made) {
    bench_device *device = run->plan->device;
    TW_TRY(run->plan->cold ? renew_selector(run) : STATUS_OK);
    return device->kind->upload_gradient(device, made, &run->grad);
}

/* Step t with its bare pass, in the order that t asks for. */
static int timed_step(select_run *run, int64_t t, double us[TIMES]) {
    static const bench_device_work bare_pass[] = {work_bare_pass};
    static const bench_device_work selection[] = {work_run, work_commit};
    bench_device *device = run->plan->device;
    gradient made = gradients_at(run->plan->source, t);
    TW_TRY(upload_gradient(run, &made));
    for (int64_t turn = t; turn < t + 2; turn++)
        if (turn % 2 == 0)
            TW_TRY(device->kind->time(device, bare_pass, 1, run, &us[FLOOR]));
        else
            TW_TRY(device->kind->time(device, selection, 2, run, &us[RUN]));
    us[BOTH] = us[RUN] + us[COMMIT];
    return STATUS_OK;
}

static int get_residual(select_run *run, float *residual) {
    return error_check("reading the residual", tw_selector_get_residual(run->selector, residual));
}

/* End a step without sending anything: the residual is then acc. */
static int commit_nothing(select_run *run) {
    static const int32_t none;
    return error_check("committing", tw_selector_commit(run->selector, &none, 0));
}

/* A step whose selection is copied. */
static int copied_step(select_run *run, int (*commit)(select_run *)) {
    tw_sparse sparse;
    TW_TRY(error_check("selecting", tw_selector_run(run->selector, run->grad.typed, &sparse)));
    TW_TRY(error_check("selecting", tw_selector_wait(run->selector, &sparse)));
    TW_TRY(bench_device_copy(run->plan->device, &sparse, &run->sent,
                             "not enough memory to check the selection"));
    return commit(run);
}

/* Do by hand what the last commit should have done to the residual in plan->acc. */
static void follow_commit(select_run *run) {
    for (int64_t j = 0; j < run->sent.count; j++) {
        int64_t i = run->sent.idx[j];
        if (i >= 0 && i < run->plan->source->spec.n) /* what is being checked is not trusted */
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
        TW_TRY(copied_step(run, commit_all));
        for (int64_t i = 0; i < run->plan->source->spec.n; i++)
            run->plan->acc[i] = made.values[i] + run->plan->acc[i];
    }
    return STATUS_OK;
}

/* With AdamW only the library knows its moments: acc is read from it. */
static int follow_updates(select_run *run, int64_t t) {
    for (int64_t last = t + SELECT_CHECKED_STEPS - 1; t <= last; t++) {
        gradient made = gradients_at(run->plan->source, t);
        TW_TRY(upload_gradient(run, &made));
        TW_TRY(copied_step(run, t == last ? commit_nothing : commit_all));
    }
    return get_residual(run, run->plan->acc);
}

static uint32_t key_of(float value) {
    return float_to_bits(value) & 0x7fffffffu;
}

/* Indices ascend and are in range, values are bitwise acc at idx. NULL, or what is wrong. */
static const char *check_entries(select_run *run) {
    int64_t previous = -1;
    for (int64_t j = 0; j < run->sent.count; j++) {
        int64_t i = run->sent.idx[j];
        run->wrong_at = i;
        if (i <= previous || i >= run->plan->source->spec.n)
            return "the indices are not ascending within 0 .. n-1";
        if (float_to_bits(run->sent.val[j]) != float_to_bits(run->plan->acc[i]))
            return "a selected value is not that of acc";
        previous = i;
    }
    return NULL;
}

/* The residual is bitwise acc with exactly the sent entries zero. NULL, or what is wrong. */
static const char *check_residual(select_run *run) {
    int64_t next = 0; /* entry of the selection that comes next */
    for (int64_t i = 0; i < run->plan->source->spec.n; i++) {
        bool sent = next < run->sent.count && run->sent.idx[next] == i;
        next += sent;
        run->wrong_at = i;
        if (sent && run->plan->after[i] != 0.0f)
            return "a sent entry is still in the residual";
        if (!sent && float_to_bits(run->plan->after[i]) != float_to_bits(run->plan->acc[i]))
            return "the residual lost or changed an entry that was not sent";
    }
    return NULL;
}

/* Walk the bins from the top until `wanted` keys are covered. *wanted becomes how many of them lie
 * in the bin returned. */
static uint32_t find_bin(const int64_t *bins, int nbins, int64_t *wanted) {
    int bin = nbins - 1;
    while (bin > 0 && bins[bin] < *wanted) {
        *wanted -= bins[bin];
        bin--;
    }
    return (uint32_t)bin;
}

/* The key of the k-th largest magnitude. *ties: how many keys equal to it belong to the top k. */
static uint32_t find_cut(const float *acc, int64_t n, int64_t *bins, int64_t k, int64_t *ties) {
    *ties = k;
    for (int64_t i = 0; i < n; i++)
        bins[key_of(acc[i]) >> LOW_BITS]++;
    uint32_t high = find_bin(bins, HIGH_BINS, ties);
    int64_t *low_bins = bins + HIGH_BINS;
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = key_of(acc[i]);
        if (key >> LOW_BITS == high)
            low_bins[key & (LOW_BINS - 1)]++;
    }
    return high << LOW_BITS | find_bin(low_bins, LOW_BINS, ties);
}

/* The values were checked against acc before, so the indices decide. */
static bool is_top(const select_run *run, uint32_t cut, int64_t ties) {
    int64_t next = 0;
    for (int64_t i = 0; i < run->plan->source->spec.n; i++) {
        uint32_t key = key_of(run->plan->acc[i]);
        bool belongs = key > cut || (key == cut && ties > 0);
        if (!belongs)
            continue;
        ties -= key == cut;
        if (next == run->sent.count || run->sent.idx[next] != i)
            return false;
        next++;
    }
    return next == run->sent.count;
}

/* Whether the selection is the true top-k: min(k, non-zeros) entries of the largest magnitude, of
 * equal magnitudes the smaller index. */
static int check_exact(const select_run *run, bool *exact) {
    const float *acc = run->plan->acc;
    int64_t n = run->plan->source->spec.n, k = 0;
    assert(run->result->k >= 1 && run->result->k <= n);
    for (int64_t i = 0; i < n && k < run->result->k; i++)
        k += acc[i] != 0.0f;
    if (run->sent.count != k || k == 0) {
        *exact = run->sent.count == k;
        return STATUS_OK;
    }
    int64_t *bins = calloc(HIGH_BINS + LOW_BINS, sizeof *bins);
    if (bins == NULL)
        return error_report("not enough memory to check the selection");
    int64_t ties;
    uint32_t cut = find_cut(acc, n, bins, k, &ties);
    *exact = is_top(run, cut, ties);
    free(bins);
    return STATUS_OK;
}

static int check_last_step(select_run *run) {
    const char *wrong = check_entries(run);
    if (wrong == NULL && run->params->before == TW_BEFORE_NOTHING) {
        TW_TRY(get_residual(run, run->plan->after));
        wrong = check_residual(run);
    }
    if (wrong != NULL) {
        return error_report("method %s is wrong at index %" PRId64 ": %s", run->params->method,
                            run->wrong_at, wrong);
    }
    return check_exact(run, &run->result->exact);
}

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
                      const double us[TIMES]) {
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
    for (int i = 0; i < TIMES; i++)
        run->plan->samples[i * run->plan->steps + timed] = us[i];
}

static void summarise(const select_plan *plan, select_result *result) {
    int64_t steps = plan->steps;
    result->count_mean /= (double)steps;
    result->run_us = vector_median(plan->samples + RUN * steps, steps);
    result->commit_us = vector_median(plan->samples + COMMIT * steps, steps);
    result->time_us = vector_median(plan->samples + BOTH * steps, steps);
    result->floor_us = vector_median(plan->samples + FLOOR * steps, steps);
}

static int run_steps(select_run *run, int64_t *progress) {
    bench_device *device = run->plan->device;
    int64_t end = SELECT_WARM_STEPS + run->plan->steps;
    TW_TRY(check_memory(run));
    /* The sums of the bare pass start anew, so that they stay small whatever ran before. */
    TW_TRY(device->kind->bare_clear(device));
    TW_TRY(renew_selector(run));
    for (int64_t t = 0; t < end; t++) {
        double us[TIMES] = {0};
        tw_select_info info;
        TW_TRY(timed_step(run, t, us));
        TW_TRY(ask_selector(run, &info));
        if (t >= SELECT_WARM_STEPS)
            note_step(run, t - SELECT_WARM_STEPS, &info, us);
        progress_to(++*progress);
    }
    summarise(run->plan, run->result);
    bool adamw = run->params->before == TW_BEFORE_ADAMW;
    TW_TRY(adamw ? follow_updates(run, end) : follow_steps(run, end));
    return check_last_step(run);
}

int select_measure(const select_plan *plan, const tw_select_params *params, select_result *result,
                   int64_t *progress) {
    select_run run = {.plan = plan, .params = params, .result = result};
    *result = (select_result){0};
    int status = run_steps(&run, progress);
    tw_selector_free(run.selector);
    selection_copy_free(&run.sent);
    return status;
}
