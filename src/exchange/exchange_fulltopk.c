/* exchange_fulltopk.c - the k largest that oktopk finds, summed over what all ranks hold of them
 *
 * Ok-Topk sums what ranks have selected. Where selections have little in common, because each
 * rank's noise decides, a sum is one rank's value. What the others hold of the same element stays in
 * their residuals. Here it is summed too:
 *
 *   choose   oktopk; only the indices of its result are used, which are the same on all ranks
 *   add      acc = gradient + residual at these indices, of every rank, as a vector of T <= k
 *            values without indices: dense sums them in the order of ranks
 *
 * The element then leaves the residual of all ranks, whether or not they had selected it. That
 * costs 2T(P-1)/P words more than oktopk: 8k in all at most. Without error feedback residuals are
 * empty, and this is oktopk.
 *
 * Worked example, P = 2, k = 1, acc of the ranks {1: 4, 7: 3} and {1: 2, 7: 5}: they select 4 at 1
 * and 5 at 7. oktopk applies 7: 5 and rank 0 keeps its 3 there; this applies 7: 8. */
#include "exchange/oktopk.h"
#include "select/selector.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct space {
    float *own, *sums; /* [k] */
    tw__entry *left;   /* [k] */
    tw__segment *whole;
} space;

static space layout(tw__arenas *arenas, const tw__shape *s) {
    return (space){
        .own = tw__arena_take(&arenas->lists, s->k, sizeof(float)),
        .sums = tw__arena_take(&arenas->lists, s->k, sizeof(float)),
        .left = tw__arena_take(&arenas->lists, s->k, sizeof(tw__entry)),
        .whole = tw__arena_take(&arenas->host, 1, sizeof(tw__segment)),
    };
}

/* Of the vector that is summed. */
static tw__shape shape_of_sum(const tw__shape *s, int64_t count) {
    return (tw__shape){
        .nranks = s->nranks, .nsegments = 1, .span = count, .dense_floats = s->dense_floats};
}

static void memory(const tw__shape *s, tw__arenas *arenas) {
    tw__shape sum = shape_of_sum(s, s->k);
    tw__exchange_oktopk.memory(s, arenas);
    layout(arenas, s);
    tw__exchange_dense.memory(&sum, arenas);
}

static tw_cost cost(double n, double k, double nranks) {
    tw_cost choice = tw__exchange_oktopk.cost(n, k, nranks);
    double words = 2.0 * k * (nranks - 1.0) / nranks;
    return (tw_cost){.least = choice.least + words,
                     .most = choice.most + words,
                     .latencies = 2.0 * nranks + 4.0 * log2(nranks)};
}

static int holds(const tw__segment *s) {
    return s->selector->params->feedback != TW_FEEDBACK_OFF;
}

static int any_holds(const tw__job *job) {
    int any = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        any |= holds(&job->segments[i]);
    return any;
}

/* This rank's acc at the indices of the result, whose parts are cut; zeros where nothing is held. */
static int gather_acc(tw__job *job, float *own) {
    memset(own, 0, sizeof *own * (size_t)job->result.count);
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw_selector *s = job->segments[i].selector;
        const tw__list *part = &job->parts[0][i];
        assert(s->open);
        if (holds(&job->segments[i]))
            TW_TRY(s->backend->gather(s->state, part, job->segments[i].base, own));
        own += part->count;
    }
    return TW_OK;
}

static int add(tw__job *job, space *w, int64_t count) {
    *w->whole = (tw__segment){.n = count, .grad = w->own, .type = TW_F32, .out = w->sums};
    tw__job sum = *job;
    sum.shape = shape_of_sum(&job->shape, count);
    sum.segments = w->whole;
    sum.divisor = 1.0f;
    TW_TRY(tw__exchange_dense.run(&sum));
    job->arenas = sum.arenas;
    return TW_OK;
}

/* Sums that cancel are no entries of a result: their parts stay in the residuals. */
static void replace_part(const tw__list *part, const float *sums, tw__list *result,
                         tw__list *left) {
    for (int64_t i = 0; i < part->count; i++) {
        tw__entry entry = {part->at[i].idx, sums[i]};
        result->at[result->count] = left->at[left->count] = entry;
        result->count += entry.val != 0.0f;
        left->count += entry.val != 0.0f;
    }
}

/* Where nothing is held oktopk's sums stay. */
static int replace(tw__job *job, const space *w) {
    const float *sums = w->sums;
    tw__list result = {job->result.at, 0}, left = {w->left, 0};
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__list *part = &job->parts[0][i];
        if (holds(&job->segments[i])) {
            replace_part(part, sums, &result, &left);
        } else {
            TW_TRY(tw__list_append(&job->lists, &result, part));
            TW_TRY(tw__list_append(&job->lists, &left, &job->parts[1][i]));
        }
        sums += part->count;
    }
    job->result = result;
    job->left = left;
    job->kept = (tw__list){0};
    return TW_OK;
}

static int run(tw__job *job) {
    job->arrived = NULL; /* oktopk's sums are not the result */
    TW_TRY(tw__exchange_oktopk.run(job));
    if (job->result.count == 0 || !any_holds(job))
        return TW_OK;
    assert(job->kind == TW__PAYLOAD && job->result.count <= job->shape.k);
    space w = layout(&job->arenas, &job->shape);
    TW_TRY(tw__job_cut(job, &job->result, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    TW_TRY(gather_acc(job, w.own));
    TW_TRY(add(job, &w, job->result.count));
    job->left_more = 1;
    return replace(job, &w);
}

const tw__exchange tw__exchange_fulltopk = {
    .name = "fulltopk",
    .description = "oktopk's indices, and what all ranks hold there",
    .best_k = 1,
    .least_k = TW__OKTOPK_LEAST_K,
    .fallback = &tw__exchange_butterfly,
    .cost = cost,
    .memory = memory,
    .run = run,
};
