/* exchange_fulltopk.c - the k largest that oktopk finds, summed over what all ranks hold of them
 *
 * Ok-Topk sums what ranks have selected. Where their selections have little in common, which is so
 * when each rank's own noise decides, a sum is one rank's value, and what the others hold of the
 * same element goes on waiting in their residuals. Here it does not:
 *
 *   choose   oktopk; of its result the indices count, which are the same on all ranks
 *   add      acc = gradient + residual at these indices, of every rank, as a vector of T <= k
 *            values without indices: summed in the order of ranks by dense
 *
 * The element then leaves the residual of all ranks, whether or not they had selected it. That
 * costs 2T(P-1)/P words beside oktopk's: 8k at most. Without error feedback nothing waits, and this
 * is oktopk.
 *
 * Worked example, P = 2, k = 1, acc of the ranks {1: 4, 7: 3} and {1: 2, 7: 5}: they select 4 at 1
 * and 5 at 7. oktopk applies 7: 5 and rank 0 keeps its 3 there; this applies 7: 8. */
#include "exchange/exchange.h"
#include "select/selector.h"

#include <string.h>

typedef struct space {
    float *own, *sums; /* [k] */
    tw__entry *left;   /* [k] */
    tw__segment *whole;
} space;

static space layout(tw__arenas *room, const tw__shape *s) {
    return (space){
        .own = tw__arena_take(&room->lists, s->k, sizeof(float)),
        .sums = tw__arena_take(&room->lists, s->k, sizeof(float)),
        .left = tw__arena_take(&room->lists, s->k, sizeof(tw__entry)),
        .whole = tw__arena_take(&room->host, 1, sizeof(tw__segment)),
    };
}

/* Of the vector that is summed. */
static tw__shape shape_of_sum(const tw__shape *s, int64_t count) {
    return (tw__shape){.nranks = s->nranks, .nsegments = 1, .span = count};
}

static void memory(const tw__shape *s, tw__arenas *room) {
    tw__shape sum = shape_of_sum(s, s->k);
    tw__exchange_oktopk.memory(s, room);
    layout(room, s);
    tw__exchange_dense.memory(&sum, room);
}

static int64_t applied(const tw__shape *s) {
    return tw__exchange_oktopk.applied(s);
}

static tw_cost cost(double n, double k, double nranks) {
    tw_cost choice = tw__exchange_oktopk.cost(n, k, nranks);
    double words = 2.0 * k * (nranks - 1.0) / nranks;
    return (tw_cost){choice.least + words, choice.most + words};
}

static int holds(const tw__segment *s) {
    return s->selector->params.feedback != TW_FEEDBACK_OFF;
}

static int any_holds(const tw__job *job) {
    int any = 0;
    for (int i = 0; i < job->shape.nsegments; i++)
        any |= holds(&job->segments[i]);
    return any;
}

/* This rank's acc where the result is, whose parts are known; zeros where nothing is held. */
static int peek(tw__job *job, float *own) {
    memset(own, 0, sizeof *own * (size_t)job->result.count);
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        const tw__list *part = &job->parts[0][i];
        if (holds(s))
            TW_TRY(tw__selector_peek(s->selector, part, s->base, own));
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
    job->room = sum.room;
    return TW_OK;
}

static void append(tw__list *to, const tw__list *from) {
    memmove(to->at + to->count, from->at, sizeof *from->at * (size_t)from->count);
    to->count += from->count;
}

/* Sums that cancel are no entries of a result: they stay where they are. */
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
static void replace(tw__job *job, const space *w) {
    const float *sums = w->sums;
    tw__list result = {job->result.at, 0}, left = {w->left, 0};
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__list *part = &job->parts[0][i];
        if (holds(&job->segments[i])) {
            replace_part(part, sums, &result, &left);
        } else {
            append(&result, part);
            append(&left, &job->parts[1][i]);
        }
        sums += part->count;
    }
    job->result = result;
    job->left = left;
    job->kept = (tw__list){0};
}

static int run(tw__job *job) {
    job->arrived = NULL; /* what oktopk would tell are other sums */
    TW_TRY(tw__exchange_oktopk.run(job));
    if (job->result.count == 0 || !any_holds(job))
        return TW_OK;
    space w = layout(&job->room, &job->shape);
    TW_TRY(tw__job_cut(job, &job->result, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    TW_TRY(peek(job, w.own));
    TW_TRY(add(job, &w, job->result.count));
    replace(job, &w);
    job->left_more = 1;
    return TW_OK;
}

const tw__exchange tw__exchange_fulltopk = {
    .name = "fulltopk",
    .description = "oktopk's indices, and what all ranks hold there",
    .cost = cost,
    .best_k = 1,
    .on_host = 1,
    .memory = memory,
    .applied = applied,
    .run = run,
};
