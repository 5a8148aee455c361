/* allreduce_measure.c - the timed loop of one row, as each rank runs it
 *
 *     make the gradient,          tw_allreduce,         fetch what                tell the
 *     bring it there     | meet | timed        | meet | it left    | meet | check | others
 *
 * Meeting keeps making and checking out of the times: a rank that is late would be waited for, and
 * where ranks share cores or a GPU, those that check would slow down those that are still at it.
 * Where one rank fails, all leave when they meet. After each step every rank tells all others its
 * figures (side.h); so all know the slowest and the busiest, and rank 0 can print without asking.
 * The first ALLREDUCE_WARM_STEPS steps are not timed, but their bytes count.
 */
#include "allreduce_measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "errors.h"
#include "hash.h"
#include "median.h"
#include "names.h"
#include "progress.h"
#include "timer.h"

/* What a rank tells about a step. */
enum {
    FACT_CALL, /* nanoseconds */
    FACT_SELECT,
    FACT_AGREE,
    FACT_EXCHANGE,
    FACT_APPLY,
    FACT_TIMES, /* so many times */
    FACT_SENT = FACT_TIMES,
    FACT_RECEIVED,
    FACT_CONTROL,
    FACT_SELECTED,
    FACT_APPLIED,
    FACT_WRONG,
    FACT_HASH,
    FACTS,
};

_Static_assert(FACTS <= SIDE_VALUES, "a rank can tell all facts at once");

/* ---- A rank, for all rows ------------------------------------------------------------------- */

static size_t vector_bytes(const allreduce_rank *self) {
    return (size_t)self->bench->n * sizeof(float);
}

static int open_place(allreduce_rank *self) {
    const allreduce_bench *bench = self->bench;
    place where = {
        .kind = place_kind_at(bench->device),
        .threads = (int)bench->threads,
        .seat = self->seat,
    };
    int status = where.kind->open(&where);
    if (status == STATUS_OK)
        self->where = where;
    return status;
}

static void close_place(allreduce_rank *self) {
    place *where = &self->where;
    if (where->kind != NULL) {
        where->kind->release(where, self->grad_there);
        where->kind->release(where, self->out_there);
        where->kind->close(where);
    }
}

static int mirror_vectors(allreduce_rank *self) {
    place *where = &self->where;
    size_t bytes = vector_bytes(self);
    int status = where->kind->mirror(where, self->grad, bytes, &self->grad_there);
    return status == STATUS_OK ? where->kind->mirror(where, self->out, bytes, &self->out_there)
                               : status;
}

static int allocate(allreduce_rank *self) {
    const allreduce_bench *bench = self->bench;
    if (open_place(self) != STATUS_OK)
        return STATUS_FAILED;
    self->grad = buffer_vector(bench->n);
    self->out = buffer_vector(bench->n);
    self->samples = calloc((size_t)bench->steps, FACT_TIMES * sizeof *self->samples);
    if (self->grad == NULL || self->out == NULL || self->samples == NULL) {
        return rank_failure(self->seat,
                            "not enough memory for gradients of %" PRId64
                            " elements; try a smaller --n or fewer --ranks",
                            bench->n);
    }
    if (mirror_vectors(self) != STATUS_OK)
        return STATUS_FAILED;
    return bench->verify
               ? allreduce_check_create(&self->check, &self->beside, &self->where, bench->n)
               : STATUS_OK;
}

int allreduce_rank_create(allreduce_rank *self, const allreduce_bench *bench, rank_seat *seat) {
    *self = (allreduce_rank){.bench = bench, .seat = seat};
    int status = side_open(&self->beside, seat, bench->verify ? bench->n : 0, bench->timeout);
    return status == STATUS_OK ? side_agree(&self->beside, allocate(self)) : status;
}

void allreduce_rank_free(allreduce_rank *self) {
    allreduce_check_free(&self->check);
    close_place(self);
    side_close(&self->beside);
    free(self->grad);
    free(self->out);
    free(self->samples);
    *self = (allreduce_rank){0};
}

/* ---- The group of a row --------------------------------------------------------------------- */

static tw_group_params params_of(const allreduce_rank *self, const allreduce_row *row) {
    const allreduce_bench *bench = self->bench;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = row->what->scheme;
    if (!row->what->dense) {
        params.exchange = row->what->exchange;
        params.wire = wire_at(bench->wire);
        params.select.method = row->what->select;
        params.select.k = row->k;
    }
    params.select.threads = (int)bench->threads;
    params.select.seed = (uint64_t)bench->seed;
    params.select.device = bench->device;
    params.select.stream = self->where.stream;
    params.result = TW_SUM; /* no division that would round */
    params.global = bench->global;
    params.timeout = bench->timeout;
    return params;
}

/* Refuse what the kernel would promise and then kill us for. */
static int check_memory(allreduce_rank *self, tw_group *group) {
    const place_kind *kind = self->where.kind;
    tw_memory memory;
    int error = tw_group_memory(group, &memory);
    if (error != TW_OK)
        return rank_library_failure(self->seat, "asking for the group's size", error);
    /* Half of the undo space is more than a step touches. */
    size_t bytes = (memory.total - memory.undo / 2) * (size_t)self->seat->neighbours;
    if (kind->room != NULL && bytes > kind->room()) {
        return rank_failure(self->seat,
                            "%d ranks take %zu MB, more than is free; try a smaller --n or fewer "
                            "--ranks",
                            self->seat->neighbours, bytes / 1000000);
    }
    return STATUS_OK;
}

static int create_group(allreduce_rank *self, const allreduce_row *row, tw_group **group) {
    tw_group_params params = params_of(self, row);
    int error = tw_group_create(group, self->seat->transport, &params);
    if (error == TW_OK)
        error = tw_group_add(*group, self->bench->n, NULL, NULL);
    return error == TW_OK ? check_memory(self, *group)
                          : rank_library_failure(self->seat, "creating the group", error);
}

static int open_group(allreduce_rank *self, const allreduce_row *row, tw_group **group) {
    if (side_agree(&self->beside, create_group(self, row, group)) != STATUS_OK)
        return STATUS_FAILED;
    int error = tw_group_open(*group);
    return error == TW_OK ? STATUS_OK
                          : rank_library_failure(self->seat, "opening the group", error);
}

/* ---- One step ------------------------------------------------------------------------------- */

static int64_t nanoseconds(double seconds) {
    return (int64_t)(seconds * 1e9 + 0.5);
}

/* What the library says about the step. */
static int note_info(allreduce_rank *self, tw_group *group, allreduce_result *result,
                     int64_t facts[FACTS]) {
    tw_step_info info;
    int error = tw_group_info(group, 0, &info);
    if (error != TW_OK)
        return rank_library_failure(self->seat, "asking the group", error);
    const tw_traffic *bytes = &info.traffic;
    bool sent_more = bytes->control_sent > bytes->control_received;
    facts[FACT_SELECT] = nanoseconds(info.select_seconds);
    facts[FACT_AGREE] = nanoseconds(info.agree_seconds);
    facts[FACT_EXCHANGE] = nanoseconds(info.exchange_seconds);
    facts[FACT_APPLY] = nanoseconds(info.apply_seconds);
    facts[FACT_SENT] = bytes->payload_sent;
    facts[FACT_RECEIVED] = bytes->payload_received;
    facts[FACT_CONTROL] = sent_more ? bytes->control_sent : bytes->control_received;
    facts[FACT_SELECTED] = info.selected;
    facts[FACT_APPLIED] = info.applied;
    result->k = strcmp(info.exchange, "dense") == 0 ? self->bench->n : info.k;
    snprintf(result->exchange, sizeof result->exchange, "%s", info.exchange);
    snprintf(result->wire, sizeof result->wire, "%s", info.wire);
    return STATUS_OK;
}

static int make_gradient(allreduce_rank *self, const pattern_spec *made, int64_t step) {
    place *where = &self->where;
    pattern_fill(made, self->seat->rank, step, 0, self->bench->n, self->grad);
    return where->kind->put(where, self->grad_there, self->grad, vector_bytes(self));
}

/* What the step left, from where it is. */
static int fetch_step(allreduce_rank *self, tw_group *group, allreduce_result *result,
                      int64_t facts[FACTS]) {
    place *where = &self->where;
    int status = note_info(self, group, result, facts);
    if (status == STATUS_OK)
        status = where->kind->fetch(where, self->out, self->out_there, vector_bytes(self));
    if (status == STATUS_OK && self->bench->verify)
        status = allreduce_check_copy(&self->check, group);
    return status;
}

/* Gradient, allreduce, check: everything of a step but telling the others. */
static int one_step(allreduce_rank *self, tw_group *group, const pattern_spec *made, int64_t step,
                    allreduce_result *result, int64_t facts[FACTS]) {
    if (side_agree(&self->beside, make_gradient(self, made, step)) != STATUS_OK)
        return STATUS_FAILED;
    int64_t begin = timer_ns();
    int error = tw_allreduce(group, 0, self->grad_there, self->out_there);
    facts[FACT_CALL] = timer_ns() - begin;
    if (error != TW_OK)
        return rank_library_failure(self->seat, "allreduce", error);
    if (side_meet(&self->beside) != STATUS_OK)
        return STATUS_FAILED;
    if (side_agree(&self->beside, fetch_step(self, group, result, facts)) != STATUS_OK)
        return STATUS_FAILED;
    facts[FACT_HASH] = (int64_t)hash_floats(self->out, self->bench->n, result->hash);
    return self->bench->verify
               ? allreduce_check_step(&self->check, step, self->out, &facts[FACT_WRONG])
               : STATUS_OK;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* All ranks have told their facts. timed is negative for a step that is not. */
static void note_step(allreduce_rank *self, int64_t timed, allreduce_result *result) {
    const side *told = &self->beside;
    for (int i = 0; i < FACT_TIMES && timed >= 0; i++)
        self->samples[i * self->bench->steps + timed] = (double)side_largest(told, i) * 1e-3;
    result->payload_sent = larger(result->payload_sent, side_largest(told, FACT_SENT));
    result->payload_received = larger(result->payload_received, side_largest(told, FACT_RECEIVED));
    result->control = larger(result->control, side_largest(told, FACT_CONTROL));
    result->selected = side_largest(told, FACT_SELECTED);
    result->applied = side_largest(told, FACT_APPLIED);
    result->hash = (uint64_t)side_told(told, 0, FACT_HASH);
    if (self->bench->verify) {
        result->wrong += side_total(told, FACT_WRONG);
        for (int r = 1; r < self->seat->nranks; r++) /* all should have the same result */
            result->wrong += side_told(told, r, FACT_HASH) != side_told(told, 0, FACT_HASH);
    }
}

/* ---- All steps of a row --------------------------------------------------------------------- */

/* One step on all ranks; `timed` is its number among those that are, negative for others. */
static int step_together(allreduce_rank *self, tw_group *group, const pattern_spec *made,
                         int64_t step, int64_t timed, allreduce_result *result) {
    int64_t facts[FACTS] = {0};
    if (one_step(self, group, made, step, result, facts) != STATUS_OK ||
        side_tell(&self->beside, facts, FACTS) != STATUS_OK)
        return STATUS_FAILED;
    note_step(self, timed, result);
    return STATUS_OK;
}

/* Steps until auto has chosen: as many on all ranks, since all choose alike. What they sent is not
 * what it will send. */
static int settle(allreduce_rank *self, tw_group *group, const pattern_spec *made, int64_t *steps,
                  allreduce_result *result) {
    int64_t most = PATTERN_EXACT_STEPS / self->seat->nranks - self->bench->steps;
    int error = tw_group_choice(group, 0, &result->choice);
    for (; error == TW_OK && !result->choice.settled && *steps < most; ++*steps) {
        if (step_together(self, group, made, *steps, -1, result) != STATUS_OK)
            return STATUS_FAILED;
        error = tw_group_choice(group, 0, &result->choice);
    }
    result->payload_sent = result->payload_received = result->control = 0;
    return error == TW_OK ? STATUS_OK
                          : rank_library_failure(self->seat, "asking for the choice", error);
}

static int run_steps(allreduce_rank *self, tw_group *group, const allreduce_row *row,
                     const pattern_spec *made, allreduce_result *result) {
    int64_t warm = ALLREDUCE_WARM_STEPS, done = 0;
    int status = row->what->automatic ? settle(self, group, made, &done, result) : STATUS_OK;
    if (row->what->automatic)
        warm = done;
    for (; done < warm + self->bench->steps && status == STATUS_OK; done++) {
        status = step_together(self, group, made, done, done - warm, result);
        self->progress++;
        if (self->seat->rank == 0)
            progress_to(self->progress);
    }
    return status;
}

static int summarise(allreduce_rank *self, allreduce_result *result) {
    double *times[FACT_TIMES] = {&result->time_us, &result->select_us, &result->agree_us,
                                 &result->exchange_us, &result->apply_us};
    int64_t steps = self->bench->steps;
    for (int i = 0; i < FACT_TIMES; i++)
        *times[i] = median(self->samples + i * steps, steps);
    tw_cost cost;
    int error =
        tw_exchange_cost(result->exchange, self->bench->n, result->k, self->seat->nranks, &cost);
    if (error != TW_OK)
        return rank_library_failure(self->seat, "asking for the cost", error);
    result->bound_words = cost.most;
    return STATUS_OK;
}

int allreduce_measure(allreduce_rank *self, const allreduce_row *row, allreduce_result *result) {
    pattern_spec made = {
        .kind = row->pattern,
        .n = self->bench->n,
        .k = row->k,
        .seed = (uint64_t)self->bench->seed,
    };
    tw_group *group = NULL;
    *result = (allreduce_result){.wrong = self->bench->verify ? 0 : -1};
    if (self->bench->verify)
        allreduce_check_begin(&self->check, &made);
    int status = open_group(self, row, &group);
    if (status == STATUS_OK)
        status = run_steps(self, group, row, &made, result);
    if (status == STATUS_OK)
        status = summarise(self, result);
    tw_group_free(group);
    return status;
}
