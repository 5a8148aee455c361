/* allreduce_measure.c - the timed loop of one row, as each rank runs it
 *
 *     make and upload           tw_allreduce,            download                      gather
 *     the gradient    | barrier | timed        | barrier | results  | barrier | check | figures
 *
 * Barriers keep making and checking out of the times: a rank that is late would be waited for, and
 * where ranks share cores or a GPU, those that check would slow down those that still exchange.
 * Where one rank fails, all leave at the barrier. After each step all ranks get the figures of all
 * (gather.c): they know the slowest and the busiest, and rank 0 can print without asking.
 * The first ALLREDUCE_WARM_STEPS steps are not timed, but their bytes count.
 *
 * --verify checks conservation, element by element, without a tolerance. The law: what was applied
 * plus what the ranks keep is what they kept before plus their gradients.
 *
 *     result[i] + sum of residuals after[i]  =  sum of residuals before[i] + sum of gradients[i]
 *
 * All numbers are such that these sums are exact (patterns.h), so any difference is an error. But wire
 * formats q8, q4 and q2 leave remainders that are no whole units: then it may be what rounding explains.
 *
 * Each rank checks n/P elements for all ranks. What the sums of gradients should be shares nothing
 * with the library; the sum of residuals does use its dense exchange, and would show its mistakes
 * too, as each of these sums stands on both sides of one step and the next.
 */
#include "bench/bench_allreduce.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli.h"
#include "vector.h"

/* What ranks gather about a step. */
enum {
    FACT_CALL, /* nanoseconds */
    FACT_SELECT,
    FACT_AGREE,
    FACT_EXCHANGE,
    FACT_APPLY,
    FACT_TIMES, /* how many are times */
    FACT_SENT = FACT_TIMES,
    FACT_RECEIVED,
    FACT_CONTROL,
    FACT_SELECTED,
    FACT_APPLIED,
    FACT_WRONG,
    FACT_HASH,
    FACTS,
};

_Static_assert(FACTS <= GATHER_VALUES, "a rank can tell all facts at once");

static size_t vector_bytes(const allreduce_rank *self) {
    return (size_t)self->bench->n * sizeof(float);
}

static const char no_memory[] =
    "not enough memory for --verify; try a smaller --n or fewer --ranks";

static int allocate_check(allreduce_rank *self) {
    int64_t n = self->bench->n, rank = self->job->rank, nranks = self->job->nranks;
    self->begin = n * rank / nranks;
    self->end = n * (rank + 1) / nranks;
    int64_t share = self->end - self->begin;
    self->residual = vector_alloc(2 * n + 3 * share, sizeof(float));
    if (self->residual == NULL)
        return error_report("%s", no_memory);
    self->kept = self->residual + n;
    self->before = self->kept + n;
    self->given = self->before + share;
    self->gradient = self->given + share;
    return STATUS_OK;
}

static int allocate(allreduce_rank *self) {
    const allreduce_bench *bench = self->bench;
    bench_device opened = {.kind = bench_device_at(bench->device), .threads = (int)bench->threads};
    TW_TRY(opened.kind->open(&opened));
    self->device = opened;
    bench_device *device = &self->device;
    self->grad = vector_alloc(bench->n, sizeof(float));
    self->out = vector_alloc(bench->n, sizeof(float));
    self->samples = calloc((size_t)bench->steps, FACT_TIMES * sizeof *self->samples);
    if (self->grad == NULL || self->out == NULL || self->samples == NULL) {
        return error_report("not enough memory for gradients of %" PRId64
                            " elements; try a smaller --n or fewer --ranks",
                            bench->n);
    }
    TW_TRY(device->kind->map(device, self->grad, vector_bytes(self), &self->device_grad));
    TW_TRY(device->kind->map(device, self->out, vector_bytes(self), &self->device_out));
    return bench->verify ? allocate_check(self) : STATUS_OK;
}

int allreduce_rank_create(allreduce_rank *self, const allreduce_bench *bench, job_rank *job) {
    *self = (allreduce_rank){.bench = bench, .job = job};
    TW_TRY(gather_open(&self->gather, job, bench->verify ? bench->n : 0, bench->timeout));
    return gather_agree(&self->gather, allocate(self));
}

void allreduce_rank_free(allreduce_rank *self) {
    bench_device *device = &self->device;
    if (device->kind != NULL) {
        device->kind->unmap(device, self->device_grad);
        device->kind->unmap(device, self->device_out);
        device->kind->close(device);
    }
    gather_close(&self->gather);
    selection_copy_free(&self->sparse);
    free(self->residual);
    free(self->grad);
    free(self->out);
    free(self->samples);
    *self = (allreduce_rank){0};
}

static tw_group_params params_of(const allreduce_rank *self, const allreduce_row *row) {
    const allreduce_bench *bench = self->bench;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = row->what->scheme;
    if (!row->what->dense) {
        params.exchange = row->what->exchange;
        params.wire = names_wire(bench->wire);
        params.select.method = row->what->select;
        params.select.k = row->k;
    }
    params.select.threads = (int)bench->threads;
    params.select.seed = (uint64_t)bench->seed;
    params.select.device = bench->device;
    params.select.stream = self->device.stream;
    params.result = TW_SUM; /* no division that would round */
    params.global = bench->global;
    params.timeout = bench->timeout;
    params.checksum = row->checksum;
    return params;
}

/* Refuse what the kernel would promise and then kill us for. */
static int check_memory(const allreduce_rank *self) {
    const bench_device_kind *kind = self->device.kind;
    tw_memory memory;
    TW_TRY(error_check("asking for the group's size", tw_group_memory(self->group, &memory)));
    /* Half of the undo space is more than a step touches. */
    size_t bytes = (memory.total - memory.undo / 2) * (size_t)self->job->local_ranks;
    if (kind->available != NULL && bytes > kind->available()) {
        return error_report("%d ranks take %zu MB, more than is free; try a smaller --n or fewer "
                            "--ranks",
                            self->job->local_ranks, bytes / 1000000);
    }
    return STATUS_OK;
}

static int create_group(allreduce_rank *self, const allreduce_row *row) {
    tw_group_params params = params_of(self, row);
    int error = tw_group_create(&self->group, self->job->transport, &params);
    if (error == TW_OK)
        error = tw_group_add(self->group, self->bench->n, NULL, NULL);
    TW_TRY(error_check("creating the group", error));
    return check_memory(self);
}

/* Copy what the group's last step left, sparse result and residual. */
static int copy_for_check(allreduce_rank *self) {
    tw_sparse sparse;
    if (self->dense)
        return STATUS_OK;
    int error = tw_group_result(self->group, 0, &sparse);
    if (error == TW_OK)
        error = tw_group_get_residual(self->group, 0, self->residual);
    TW_TRY(error_check("reading what the step left", error));
    return bench_device_copy(&self->device, &sparse, &self->sparse, no_memory);
}

/* What all ranks together put into the step, within this rank's share. */
static void sum_gradients(allreduce_rank *self, int64_t step) {
    int64_t share = self->end - self->begin;
    memset(self->given, 0, (size_t)share * sizeof *self->given);
    for (int r = 0; r < self->job->nranks; r++) {
        pattern_fill(&self->made, r, step, self->begin, self->end, self->gradient);
        for (int64_t i = 0; i < share; i++)
            self->given[i] += self->gradient[i];
    }
}

/* Whether the step's wire format leaves remainders that are not exact. */
static bool rounds_remainders(const char *wire) {
    return strcmp(wire, "q8") == 0 || strcmp(wire, "q4") == 0 || strcmp(wire, "q2") == 0;
}

/* The most by which rounding may have changed a sum. If no rank has more than `most` at an element, each
 * of P ranks rounds three times: gradient plus residual, the remainder, the residual with it. The
 * exchange, the sum of residuals and the comparison add up to 2P + 2 numbers, none above P * most, which
 * is also that of a sum's remainder. Collective. */
static int find_slack(allreduce_rank *self, float *slack) {
    const double unit = 1.0 / 1024;
    int nranks = self->job->nranks;
    float largest = 0.0f;
    *slack = 0.0f;
    if (self->dense || !rounds_remainders(self->result->wire))
        return STATUS_OK;
    for (int64_t i = 0; i < self->bench->n; i++)
        largest = fmaxf(largest, fabsf(self->residual[i]));
    int64_t units = (int64_t)ceil((double)largest / unit);
    TW_TRY(gather_values(&self->gather, &units, 1));
    units = gather_max(&self->gather, 0);
    double most = unit * (double)(larger(units, self->units_before) + PATTERN_LARGE_MAX);
    self->units_before = units;
    *slack = (float)(most * nranks * (2 * nranks + 8) * 0x1p-24);
    return STATUS_OK;
}

/* NaN differs from everything, so it counts as wrong. */
static int64_t compare(allreduce_rank *self, float slack) {
    const float *applied = self->out + self->begin;
    const float *after = self->kept + self->begin;
    int64_t wrong = 0;
    for (int64_t i = 0; i < self->end - self->begin; i++) {
        wrong += !(fabsf(applied[i] + after[i] - (self->before[i] + self->given[i])) <= slack);
        self->before[i] = after[i];
    }
    return wrong;
}

/* The sparse result should be out's non-zero values, bit for bit and in order. */
static int64_t compare_sparse(const selection_copy *sparse, const float *out, int64_t n) {
    int64_t wrong = 0;
    int64_t nonzeros = 0;
    int64_t previous = -1;
    for (int64_t i = 0; i < n; i++)
        nonzeros += out[i] != 0.0f;
    for (int64_t j = 0; j < sparse->count; j++) {
        int64_t i = sparse->idx[j];
        bool right = i > previous && i < n && sparse->val[j] != 0.0f &&
                     float_to_bits(sparse->val[j]) == float_to_bits(out[i]);
        wrong += !right;
        previous = i;
    }
    return wrong + llabs(nonzeros - sparse->count);
}

/* Check the step that was copied. Adds to *wrong what is wrong in this rank's share of the vector,
 * and where the sparse result differs from out. Collective. */
static int check_step(allreduce_rank *self, int64_t step, int64_t *wrong) {
    if (self->dense) {
        memset(self->kept, 0, vector_bytes(self));
    } else {
        *wrong += compare_sparse(&self->sparse, self->out, self->bench->n);
        TW_TRY(gather_sum(&self->gather, self->residual, self->kept));
    }
    float slack;
    TW_TRY(find_slack(self, &slack));
    sum_gradients(self, step);
    *wrong += compare(self, slack);
    return STATUS_OK;
}

static int64_t nanoseconds(double seconds) {
    return (int64_t)(seconds * 1e9 + 0.5);
}

/* What the library says about the step. */
static int note_info(allreduce_rank *self, int64_t facts[FACTS]) {
    allreduce_result *result = self->result;
    tw_step_info info;
    TW_TRY(error_check("asking the group", tw_group_info(self->group, 0, &info)));
    const tw_traffic *bytes = &info.traffic;
    facts[FACT_SELECT] = nanoseconds(info.select_seconds);
    facts[FACT_AGREE] = nanoseconds(info.agree_seconds);
    facts[FACT_EXCHANGE] = nanoseconds(info.exchange_seconds);
    facts[FACT_APPLY] = nanoseconds(info.apply_seconds);
    facts[FACT_SENT] = bytes->payload_sent;
    facts[FACT_RECEIVED] = bytes->payload_received;
    facts[FACT_CONTROL] = larger(bytes->control_sent, bytes->control_received);
    facts[FACT_SELECTED] = info.selected;
    facts[FACT_APPLIED] = info.applied;
    self->dense = strcmp(info.exchange, "dense") == 0;
    result->k = self->dense ? self->bench->n : info.k;
    snprintf(result->exchange, sizeof result->exchange, "%s", info.exchange);
    snprintf(result->wire, sizeof result->wire, "%s", info.wire);
    return STATUS_OK;
}

static int download_results(allreduce_rank *self, int64_t facts[FACTS]) {
    bench_device *device = &self->device;
    TW_TRY(note_info(self, facts));
    TW_TRY(device->kind->download(device, self->out, self->device_out, vector_bytes(self)));
    return self->bench->verify ? copy_for_check(self) : STATUS_OK;
}

/* The facts are gathered. timed is negative for a step that is not. */
static void note_step(allreduce_rank *self, int64_t timed) {
    allreduce_result *result = self->result;
    const gather_group *all = &self->gather;
    for (int i = 0; i < FACT_TIMES && timed >= 0; i++)
        self->samples[i * self->bench->steps + timed] = (double)gather_max(all, i) * 1e-3;
    result->payload_sent = larger(result->payload_sent, gather_max(all, FACT_SENT));
    result->payload_received = larger(result->payload_received, gather_max(all, FACT_RECEIVED));
    result->control = larger(result->control, gather_max(all, FACT_CONTROL));
    result->selected = gather_max(all, FACT_SELECTED);
    result->applied = gather_max(all, FACT_APPLIED);
    result->hash = (uint64_t)gather_value(all, 0, FACT_HASH);
    if (self->bench->verify) {
        result->wrong += gather_total(all, FACT_WRONG);
        for (int r = 1; r < self->job->nranks; r++) /* all should have the same result */
            result->wrong += gather_value(all, r, FACT_HASH) != gather_value(all, 0, FACT_HASH);
    }
}

/* One step on all ranks: gradient, allreduce, check, figures. `timed` is its number among those that
 * are, negative for others. */
static int one_step(allreduce_rank *self, int64_t step, int64_t timed) {
    bench_device *device = &self->device;
    int64_t facts[FACTS] = {0};
    pattern_fill(&self->made, self->job->rank, step, 0, self->bench->n, self->grad);
    int status = device->kind->upload(device, self->device_grad, self->grad, vector_bytes(self));
    TW_TRY(gather_agree(&self->gather, status));
    int64_t begin = tw__clock();
    int error = tw_allreduce(self->group, 0, self->device_grad, self->device_out);
    facts[FACT_CALL] = tw__clock() - begin;
    TW_TRY(error_check("allreduce", error));
    TW_TRY(gather_barrier(&self->gather));
    TW_TRY(gather_agree(&self->gather, download_results(self, facts)));
    facts[FACT_HASH] = (int64_t)vector_hash(self->out, self->bench->n, self->result->hash);
    if (self->bench->verify)
        TW_TRY(check_step(self, step, &facts[FACT_WRONG]));
    TW_TRY(gather_values(&self->gather, facts, FACTS));
    note_step(self, timed);
    return STATUS_OK;
}

/* Steps until auto has chosen: as many on all ranks, since all choose alike. What they sent is not
 * what it will send. */
static int settle(allreduce_rank *self, int64_t *steps) {
    allreduce_result *result = self->result;
    int64_t most = PATTERN_EXACT_STEPS / self->job->nranks - self->bench->steps;
    int error = tw_group_choice(self->group, 0, &result->choice);
    for (; error == TW_OK && !result->choice.settled && *steps < most; ++*steps) {
        TW_TRY(one_step(self, *steps, -1));
        error = tw_group_choice(self->group, 0, &result->choice);
    }
    result->payload_sent = result->payload_received = result->control = 0;
    return error_check("asking for the choice", error);
}

static int summarise(allreduce_rank *self) {
    allreduce_result *result = self->result;
    double *times[FACT_TIMES] = {&result->time_us, &result->select_us, &result->agree_us,
                                 &result->exchange_us, &result->apply_us};
    int64_t steps = self->bench->steps;
    for (int i = 0; i < FACT_TIMES; i++)
        *times[i] = vector_median(self->samples + i * steps, steps);
    tw_cost cost = {0};
    int error =
        tw_exchange_cost(result->exchange, self->bench->n, result->k, self->job->nranks, &cost);
    result->bound_words = cost.most;
    return error_check("asking for the cost", error);
}

static int run_row(allreduce_rank *self, const allreduce_row *row) {
    int64_t warm = ALLREDUCE_WARM_STEPS, done = 0;
    TW_TRY(gather_agree(&self->gather, create_group(self, row)));
    TW_TRY(error_check("opening the group", tw_group_open(self->group)));
    if (row->what->automatic) {
        TW_TRY(settle(self, &done));
        warm = done;
    }
    for (; done < warm + self->bench->steps; done++) {
        TW_TRY(one_step(self, done, done - warm));
        self->progress++;
        if (self->job->rank == 0)
            progress_to(self->progress);
    }
    return summarise(self);
}

int allreduce_measure(allreduce_rank *self, const allreduce_row *row, allreduce_result *result) {
    const allreduce_bench *bench = self->bench;
    *result = (allreduce_result){.wrong = bench->verify ? 0 : -1};
    self->result = result;
    self->made = (pattern_spec){row->pattern, bench->n, row->k, (uint64_t)bench->seed};
    self->units_before = 0; /* a new group begins, with residuals of zero */
    if (bench->verify)
        memset(self->before, 0, (size_t)(self->end - self->begin) * sizeof *self->before);
    int status = run_row(self, row);
    tw_group_free(self->group);
    self->group = NULL;
    return status;
}
