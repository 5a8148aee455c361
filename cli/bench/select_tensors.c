/* select_tensors.c - `thinwire bench select --tensors`: all tensors of a model in one step
 *
 * A group of one rank selects from all of them together, in one bucket: what is timed is the stage
 * `select` of its step. Beside it, a selector of its own for each tensor, one after the other, and
 * the bare pass over the memory of all. The three take turns within a step.
 *
 * After the timed steps, what both ways select is compared bit by bit.
 */
#include "bench/bench_select.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "vector.h"

enum { MOST_TENSORS = 256, ALIGNED = 64 }; /* elements: where a tensor may begin */
enum { TOGETHER, EACH, FLOOR, TIMES };     /* rows of samples */

struct select_tensors {
    int count;
    int64_t size[MOST_TENSORS];
    int64_t start[MOST_TENSORS]; /* in the vector that holds all of them */
    int64_t n;                   /* of that vector */
};

/* ---- models */

static void add(select_tensors *all, int64_t size) {
    assert(all->count < MOST_TENSORS);
    all->size[all->count] = size;
    all->start[all->count++] = all->n;
    all->n += (size + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static void add_linear(select_tensors *all, int64_t in, int64_t out) {
    add(all, in * out);
    add(all, out);
}

static void add_norm(select_tensors *all, int64_t width) {
    add(all, width);
    add(all, width);
}

/* For CIFAR-10: 54 tensors, 14,728,266 elements. */
static void add_vgg16(select_tensors *all) {
    static const int widths[] = {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512};
    int64_t in = 3;
    for (int i = 0; i < COUNT_OF(widths); i++) {
        add_linear(all, 9 * in, widths[i]);
        add_norm(all, widths[i]);
        in = widths[i];
    }
    add_linear(all, in, 10);
}

/* Base, with a decoder of its own: 207 tensors, 133,547,324 elements. */
static void add_bert(select_tensors *all) {
    enum { WORDS = 30522, POSITIONS = 512, SEGMENTS = 2, WIDTH = 768, INNER = 3072, LAYERS = 12 };
    add(all, WORDS * WIDTH);
    add(all, POSITIONS * WIDTH);
    add(all, SEGMENTS * WIDTH);
    add_norm(all, WIDTH);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int projection = 0; projection < 4; projection++)
            add_linear(all, WIDTH, WIDTH);
        add_norm(all, WIDTH);
        add_linear(all, WIDTH, INNER);
        add_linear(all, INNER, WIDTH);
        add_norm(all, WIDTH);
    }
    add_linear(all, WIDTH, WIDTH);
    add_linear(all, WIDTH, 2);
    add_linear(all, WIDTH, WIDTH);
    add_norm(all, WIDTH);
    add_linear(all, WIDTH, WORDS);
}

static const struct {
    const char *name;
    void (*add)(select_tensors *all);
} models[] = {{"vgg16", add_vgg16}, {"bert", add_bert}};

const char *select_tensors_name(int position) {
    return position < COUNT_OF(models) ? models[position].name : NULL;
}

int select_tensors_create(select_tensors **all, int position, int64_t *n) {
    *all = calloc(1, sizeof **all);
    if (*all == NULL)
        return error_report("not enough memory");
    models[position].add(*all);
    *n = (*all)->n;
    return STATUS_OK;
}

/* ---- one method */

typedef struct tensors_run {
    const select_plan *plan;
    const tw_select_params *params;
    const select_tensors *all;
    tw_transport *transport;
    tw_group *group;
    tw_selector *selectors[MOST_TENSORS];
    gradient grad; /* of the step under way, on the device */
} tensors_run;

static int create_selectors(tensors_run *run) {
    for (int t = 0; t < run->all->count; t++)
        TW_TRY(error_check("creating a selector",
                           tw_selector_create(&run->selectors[t], run->all->size[t], run->params)));
    return STATUS_OK;
}

static int create_group(tensors_run *run) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = "topka";
    params.select = *run->params;
    params.bucket = run->all->n;
    TW_TRY(error_check("creating a transport", tw_transport_self(&run->transport)));
    TW_TRY(error_check("creating a group", tw_group_create(&run->group, run->transport, &params)));
    for (int t = 0; t < run->all->count; t++)
        TW_TRY(error_check("adding a tensor",
                           tw_group_add(run->group, run->all->size[t], NULL, NULL)));
    return error_check("opening the group", tw_group_open(run->group));
}

static const void *gradient_of(const tensors_run *run, int tensor) {
    size_t element = run->params->type == TW_F32 ? sizeof(float) : sizeof(uint16_t);
    return (const char *)run->grad.typed + element * (size_t)run->all->start[tensor];
}

/* What is timed. */
static int work_bare_pass(void *context) {
    tensors_run *run = context;
    bench_device *device = run->plan->device;
    return device->kind->bare_pass(device, &run->grad);
}

static int work_each(void *context) {
    tensors_run *run = context;
    for (int t = 0; t < run->all->count; t++) {
        tw_sparse sparse;
        TW_TRY(error_check("selecting",
                           tw_selector_run(run->selectors[t], gradient_of(run, t), &sparse)));
        TW_TRY(error_check("committing", tw_selector_commit(run->selectors[t], NULL, 0)));
    }
    return STATUS_OK;
}

/* The group times itself. */
static int step_together(tensors_run *run, double *us) {
    bench_device *device = run->plan->device;
    tw_step_info info;
    if (device->kind->keep_busy != NULL)
        TW_TRY(device->kind->keep_busy(device));
    for (int t = 0; t < run->all->count; t++)
        TW_TRY(error_check("starting a tensor",
                           tw_allreduce_start(run->group, t, gradient_of(run, t), NULL)));
    TW_TRY(error_check("selecting", tw_allreduce_wait(run->group, TW_ALL)));
    TW_TRY(error_check("asking the group", tw_group_info(run->group, 0, &info)));
    assert(info.tensors == run->all->count);
    *us = 1e6 * info.select_seconds;
    return STATUS_OK;
}

static int upload_gradient(tensors_run *run, int64_t t) {
    bench_device *device = run->plan->device;
    gradient made = gradients_at(run->plan->source, t);
    return device->kind->upload_gradient(device, &made, &run->grad);
}

/* Step t: the three in the order that t asks for. */
static int timed_step(tensors_run *run, int64_t t, double us[TIMES]) {
    static const bench_device_work bare_pass[] = {work_bare_pass}, each[] = {work_each};
    bench_device *device = run->plan->device;
    TW_TRY(upload_gradient(run, t));
    for (int64_t turn = t; turn < t + TIMES; turn++)
        if (turn % TIMES == FLOOR)
            TW_TRY(device->kind->time(device, bare_pass, 1, run, &us[FLOOR]));
        else if (turn % TIMES == EACH)
            TW_TRY(device->kind->time(device, each, 1, run, &us[EACH]));
        else
            TW_TRY(step_together(run, &us[TOGETHER]));
    return STATUS_OK;
}

static int time_steps(tensors_run *run, select_tensors_result *result, int64_t *progress) {
    const select_plan *plan = run->plan;
    int64_t steps = plan->steps;
    for (int64_t t = 0; t < SELECT_WARM_STEPS + steps; t++) {
        double us[TIMES];
        TW_TRY(timed_step(run, t, us));
        for (int i = 0; i < TIMES && t >= SELECT_WARM_STEPS; i++)
            plan->samples[i * steps + t - SELECT_WARM_STEPS] = us[i];
        progress_to(++*progress);
    }
    result->together_us = vector_median(plan->samples + TOGETHER * steps, steps);
    result->each_us = vector_median(plan->samples + EACH * steps, steps);
    result->floor_us = vector_median(plan->samples + FLOOR * steps, steps);
    return STATUS_OK;
}

/* ---- the check */

/* What a group of one rank applies is its selection without zeros. */
static bool is_same(const selection_copy *selected, const selection_copy *applied) {
    int64_t at = 0;
    for (int64_t i = 0; i < selected->count; i++) {
        if (selected->val[i] == 0.0f)
            continue;
        if (at == applied->count || selected->idx[i] != applied->idx[at] ||
            float_to_bits(selected->val[i]) != float_to_bits(applied->val[at]))
            return false;
        at++;
    }
    return at == applied->count;
}

static int check_tensor(tensors_run *run, int t, select_tensors_result *result) {
    bench_device *device = run->plan->device;
    const char *memory_text = "not enough memory to check the selection";
    selection_copy selected = {0}, applied = {0};
    tw_sparse own, of_group;
    tw_select_info info;
    TW_TRY(error_check("selecting", tw_selector_run(run->selectors[t], gradient_of(run, t), &own)));
    TW_TRY(error_check("selecting", tw_selector_wait(run->selectors[t], &own)));
    TW_TRY(error_check("asking the group", tw_group_result(run->group, t, &of_group)));
    TW_TRY(error_check("asking the selector", tw_selector_info(run->selectors[t], &info)));
    int status = bench_device_copy(device, &own, &selected, memory_text);
    if (status == STATUS_OK)
        status = bench_device_copy(device, &of_group, &applied, memory_text);
    if (status == STATUS_OK && !is_same(&selected, &applied))
        status = error_report("tensor %d: selected together with others, %" PRId64
                              " entries differ from those that it selects alone: please report it",
                              t, applied.count);
    result->k += info.k;
    result->count += selected.count;
    selection_copy_free(&selected);
    selection_copy_free(&applied);
    return status;
}

static int check_step(tensors_run *run, int64_t t, select_tensors_result *result) {
    double us;
    TW_TRY(upload_gradient(run, t));
    TW_TRY(step_together(run, &us));
    for (int tensor = 0; tensor < run->all->count; tensor++)
        TW_TRY(check_tensor(run, tensor, result));
    return STATUS_OK;
}

static int measure(tensors_run *run, select_tensors_result *result, int64_t *progress) {
    bench_device *device = run->plan->device;
    TW_TRY(device->kind->bare_clear(device));
    TW_TRY(create_selectors(run));
    TW_TRY(create_group(run));
    TW_TRY(time_steps(run, result, progress));
    return check_step(run, SELECT_WARM_STEPS + run->plan->steps, result);
}

int select_tensors_measure(const select_plan *plan, const select_tensors *all,
                           const tw_select_params *params, select_tensors_result *result,
                           int64_t *progress) {
    tensors_run run = {.plan = plan, .params = params, .all = all};
    *result = (select_tensors_result){.tensors = all->count};
    int status = measure(&run, result, progress);
    tw_group_free(run.group);
    tw_transport_free(run.transport);
    for (int t = 0; t < all->count; t++)
        tw_selector_free(run.selectors[t]);
    return status;
}
