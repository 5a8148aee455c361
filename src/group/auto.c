/* auto.c - see auto.h */
#include "group/auto.h"
#include "group/group.h"
#include "select/methods.h"
#include "wire/wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Steps that a way is tried for. The first one touches memory that none has touched before. */
#define TRIAL 3
/* Steps after which the time of the way in use is taken anew. */
#define RENEWAL 64
/* A way is tried if the model gives it at most so many times the time of the best one measured: in
 * simulation it is off by a tenth at most (docs/auto.md). */
#define CHANCE 1.5
/* Workspace that a way may take: so much, or so many bytes per element of all tensors. Of those
 * that gather k entries of each rank this leaves out what dense would beat. */
#define ROOM ((size_t)64 << 20)
#define ROOM_PER_ELEMENT 40 /* bytes: butterfly takes 36 at density 0.1 and P = 64 */

/* Seconds of computing, on one core of a 2.x GHz server (thinwire bench wire, bench select): for an
 * entry coded or decoded, for one merged, for an element read or written. They tell ways apart only
 * on fast networks, and there trials have the last word. */
#define PER_ENTRY 4e-9
#define PER_MERGED 6e-9
#define PER_ELEMENT 0.4e-9

/* ---- ways */

/* Dense sends gradient and residual: from where a selector on the CPU adds them. With momentum it
 * would clear all velocities. */
int tw__auto_sends_whole(const tw_select_params *p) {
    return p->device == TW_CPU && p->feedback == TW_FEEDBACK_ON && p->momentum == 0.0f;
}

static int may_be_dense(const tw_group *g) {
    for (int t = 0; t < g->ntensors; t++) {
        const tw_select_params *p = &g->tensors[t].params;
        if (!tw__auto_sends_whole(p))
            return 0;
    }
    return 1;
}

static int may_be_coded(const tw_group *g) {
    for (int t = 0; t < g->ntensors; t++)
        if (tw__on_gpu(&g->tensors[t]) && g->tensors[t].params.momentum != 0.0f)
            return 0;
    return 1;
}

/* An exchange that leaves all tensors to another one is that other one. */
static int serves_any(const tw_group *g, const tw__exchange *exchange) {
    for (int t = 0; t < g->ntensors; t++)
        if (tw__exchange_suits(exchange, tw__k_max(&g->tensors[t].params, g->tensors[t].n),
                               g->nranks))
            return 1;
    return 0;
}

static int fits(const tw_group *g, const tw__plan *way) {
    int64_t elements = 0;
    for (int t = 0; t < g->ntensors; t++)
        elements += g->tensors[t].n;
    size_t room = ROOM_PER_ELEMENT * (size_t)elements;
    tw__workspace needs = tw__allreduce_memory(g, way, 0, g->ntensors);
    return needs.host + needs.here + needs.there <= (room > ROOM ? room : ROOM);
}

static void add_way(const tw_group *g, tw__plans *ways, const tw__exchange *exchange,
                    const tw__wire *wire) {
    tw__plan way = {exchange, wire};
    if (g->exchange == NULL && !(serves_any(g, exchange) && fits(g, &way)))
        return;
    if (ways->count < TW__PLANS)
        ways->at[ways->count++] = way;
}

/* Both formats, or the one that was asked for. */
static void add_wires(const tw_group *g, tw__plans *ways, const tw__exchange *exchange) {
    if (g->any_wire) {
        add_way(g, ways, exchange, NULL);
        if (may_be_coded(g))
            add_way(g, ways, exchange, tw__wire_find("bf16"));
        return;
    }
    add_way(g, ways, exchange, g->wire);
}

void tw__auto_plans(const tw_group *g, tw__plans *ways) {
    const tw__exchange *exchange;
    *ways = (tw__plans){0};
    if (!g->automatic) {
        *ways = (tw__plans){1, {{g->exchange, g->wire}}};
        return;
    }
    for (int i = 0; (exchange = tw__exchange_at(i)) != NULL; i++) {
        if (g->exchange != NULL ? exchange != g->exchange : exchange->effort == NULL)
            continue;
        if (exchange != &tw__exchange_dense)
            add_wires(g, ways, exchange);
        else if (may_be_dense(g))
            add_way(g, ways, exchange, NULL);
    }
    if (ways->count == 0) /* nothing fits: what needs the least */
        *ways = (tw__plans){1, {{&tw__exchange_butterfly, g->wire}}};
}

/* ---- the model */

static tw__cost_terms effort_of(const tw__exchange *exchange, const tw__shape *shape) {
    int known = exchange->effort != NULL && shape->nsegments > 0 && shape->nranks > 1;
    return known ? exchange->effort(shape) : (tw__cost_terms){0};
}

static double computing(const tw_group *g, const tw__cost_terms *effort) {
    return tw__transport_computing(g->transport) *
           (PER_ENTRY * effort->entries + PER_MERGED * effort->merged +
            PER_ELEMENT * effort->elements);
}

/* Adding up, selecting, and zeroing what was sent takes two passes whichever way. */
static double passes(const tw_group *g, const int *members, int count) {
    tw__cost_terms effort = {0};
    for (int i = 0; i < count; i++)
        effort.elements += 2.0 * (double)g->tensors[members[i]].n;
    return computing(g, &effort);
}

/* Seconds of a step of these tensors this way, after their selection, at the k of their steps now.
 * *fixed of these would stay if the tensors were small; may be NULL. */
static double predict(const tw_group *g, const tw__plan *way, const int *members, int count,
                      double *fixed) {
    const tw__exchange *exchanges[2] = {way->exchange, &tw__exchange_butterfly};
    tw__shape shapes[2];
    double seconds = 0.0, waiting = 0.0;
    tw__allreduce_shapes(g, way, members, count, shapes);
    for (int j = 0; j < 2; j++) {
        tw__cost_terms effort = effort_of(exchanges[j], &shapes[j]);
        waiting += effort.rounds * g->probe.latency + effort.messages * g->probe.overhead;
        seconds += effort.bytes * g->probe.byte + computing(g, &effort);
    }
    if (fixed != NULL)
        *fixed = waiting;
    return seconds + waiting;
}

/* ---- open */

/* The last bucket's time cannot hide behind computation, and each bucket costs its latencies: m of
 * them expose variable/m + m * fixed, which is least for m = sqrt(variable / fixed). */
static int64_t bucket_for(const tw_group *g, const int *all) {
    double fixed = 0.0, best = 0.0, elements = 0.0, buckets = 1.0;
    for (int w = 0; w < g->ways.count; w++) {
        double waiting, seconds = predict(g, &g->ways.at[w], all, g->ntensors, &waiting);
        if (w == 0 || seconds < best) {
            best = seconds;
            fixed = waiting;
        }
    }
    for (int t = 0; t < g->ntensors; t++)
        elements += (double)g->tensors[t].n;
    best += passes(g, all, g->ntensors);
    if (fixed > 0.0 && best > fixed)
        buckets = fmax(1.0, floor(sqrt((best - fixed) / fixed)));
    double bucket = fmax(ceil(elements / buckets), TW__LEAST_BUCKET);
    return bucket < INT32_MAX ? (int64_t)bucket : INT32_MAX;
}

int tw__auto_open(tw_group *g) {
    tw__auto_plans(g, &g->ways);
    if (!g->automatic)
        return TW_OK;
    TW_TRY(tw__probe_measure(g->transport, &g->probe));
    int *all = calloc((size_t)g->ntensors, sizeof *all);
    int error = all != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory to plan buckets");
    for (int t = 0; all != NULL && t < g->ntensors; t++)
        all[t] = t;
    if (all != NULL && g->params.bucket == 0)
        g->params.bucket = bucket_for(g, all);
    free(all);
    return tw__agree_error(g, error);
}

/* ---- plans */

/* Forget what was tried, and begin with what the model prefers. */
static void predict_all(const tw_group *g, tw__auto_steps *plan, const int *members, int count) {
    *plan = (tw__auto_steps){.count = count, .last = -1};
    for (int w = 0; w < g->ways.count; w++) {
        tw__trial *trial = &plan->trials[w];
        trial->predicted = predict(g, &g->ways.at[w], members, count, NULL);
        if (trial->predicted < plan->trials[plan->now].predicted)
            plan->now = w;
    }
}

void tw__auto_plan(tw_group *g) {
    for (int b = 0; b < g->nbuckets && g->automatic; b++) {
        int first = g->buckets[b].first, count = g->buckets[b].count;
        for (int i = 0; i < count; i++) {
            g->members[i] = first + i;
            g->tensors[first + i].leader = first;
        }
        predict_all(g, &g->tensors[first].plan, g->members, count);
    }
}

/* While k falls, times say nothing about later ones. */
static int warms_up(const tw_group *g, const int *members, int count) {
    for (int i = 0; i < count; i++)
        if (g->tensors[members[i]].steps <= g->tensors[members[i]].params.warmup_steps &&
            g->tensors[members[i]].params.warmup_steps > 0)
            return 1;
    return 0;
}

const tw__plan *tw__auto_begin(tw_group *g, const int *members, int count) {
    tw__auto_steps *plan = &g->tensors[members[0]].plan;
    if (!g->automatic)
        return &g->ways.at[0];
    if (plan->count != count || warms_up(g, members, count))
        predict_all(g, plan, members, count);
    for (int i = 0; i < count; i++)
        g->tensors[members[i]].leader = members[0];
    return &g->ways.at[plan->now];
}

double tw__auto_pending(const tw_group *g, const int *members) {
    const tw__auto_steps *plan = &g->tensors[members[0]].plan;
    return g->automatic && plan->last >= 0 ? plan->seconds : -1.0;
}

void tw__auto_note(tw_group *g, const int *members, const tw__plan *way, double seconds) {
    tw__auto_steps *plan = &g->tensors[members[0]].plan;
    plan->last = (int)(way - g->ways.at);
    plan->seconds = seconds;
}

/* A model that predicts too much, as after a probe on a busy machine, does so for all. */
static int has_chance(const tw__trial *hope, const tw__trial *best) {
    double scale = fmin(1.0, best->measured / best->predicted);
    return hope->predicted * scale <= CHANCE * best->measured;
}

/* The fastest measured, or an untried way that the model gives a chance beside it. */
static int next_way(const tw_group *g, const tw__auto_steps *plan) {
    int best = plan->now, hope = -1;
    for (int w = 0; w < g->ways.count; w++) {
        const tw__trial *t = &plan->trials[w];
        if (t->measured > 0.0 && t->measured < plan->trials[best].measured)
            best = w;
        if (t->measured == 0.0 && (hope < 0 || t->predicted < plan->trials[hope].predicted))
            hope = w;
    }
    int worth = hope >= 0 && has_chance(&plan->trials[hope], &plan->trials[best]);
    return worth ? hope : best;
}

/* A step that was under way when the way changed does not count. */
void tw__auto_learn(tw_group *g, const int *members, double slowest) {
    tw__auto_steps *plan = &g->tensors[members[0]].plan;
    int way = plan->last;
    plan->last = -1;
    if (!g->automatic || way < 0)
        return;
    tw__trial *trial = &plan->trials[way];
    trial->steps++;
    if (way != plan->now)
        return;
    if (plan->window == 0 || slowest < plan->least)
        plan->least = slowest;
    if (++plan->window < (trial->measured == 0.0 ? TRIAL : RENEWAL))
        return;
    trial->measured = fmax(plan->least, 1e-12); /* 0 means: not tried */
    plan->window = 0;
    plan->now = next_way(g, plan);
}

/* ---- public */

static const char *wire_name(const tw__plan *way) {
    return way->wire != NULL ? way->wire->name : "raw";
}

static int by_prediction(const void *left, const void *right) {
    const tw_candidate *a = left, *b = right;
    return (a->predicted > b->predicted) - (a->predicted < b->predicted);
}

static double known(const tw_candidate *c) {
    return c->measured > 0.0 ? c->measured : c->predicted;
}

/* Dense against the best of the others. */
static void compare_with_dense(tw_choice *c) {
    const tw_candidate *dense = NULL, *best = NULL;
    for (int i = 0; i < c->ncandidates; i++) {
        const tw_candidate *one = &c->candidates[i];
        if (strcmp(one->exchange, "dense") == 0)
            dense = one;
        else if (best == NULL || known(one) < known(best))
            best = one;
    }
    if (dense == NULL || best == NULL) {
        snprintf(c->words, sizeof c->words, "%s with %s values; dense was not compared",
                 c->exchange, c->wire);
        return;
    }
    c->dense_is_faster = known(dense) <= known(best);
    snprintf(c->words, sizeof c->words,
             c->dense_is_faster
                 ? "dense is faster here: %.3f ms a step against %.3f ms for %s with "
                   "%s entries, the best that sends less"
                 : "dense would take %.3f ms a step against %.3f ms for %s with %s "
                   "entries",
             1e3 * known(dense), 1e3 * known(best), best->exchange, best->wire);
}

static void fill_choice(const tw_group *g, const tw__tensor *t, tw_choice *c) {
    const tw__auto_steps *plan = &g->tensors[t->leader].plan;
    const tw__trial *now = &plan->trials[plan->now];
    const tw__plan *way = &g->ways.at[plan->now];
    *c = (tw_choice){.select = t->method->name,
                     .exchange = way->exchange->name,
                     .wire = wire_name(way),
                     .predicted = now->predicted,
                     .measured = now->measured,
                     .settled = now->measured > 0.0,
                     .latency = g->probe.latency,
                     .overhead = g->probe.overhead,
                     .bandwidth = g->probe.byte > 0.0 ? 1.0 / g->probe.byte : 0.0,
                     .bucket = g->params.bucket,
                     .ncandidates = g->ways.count};
    for (int w = 0; w < g->ways.count; w++)
        c->candidates[w] = (tw_candidate){g->ways.at[w].exchange->name, wire_name(&g->ways.at[w]),
                                          plan->trials[w].predicted, plan->trials[w].measured,
                                          plan->trials[w].steps};
    qsort(c->candidates, (size_t)c->ncandidates, sizeof c->candidates[0], by_prediction);
    compare_with_dense(c);
}

int tw_group_choice(tw_group *g, int tensor, tw_choice *choice) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(choice, "choice");
    TW_TRY(tw__group_check_idle(g, tensor));
    if (!g->automatic)
        return tw__fail(TW_ERR_STATE, "scheme: '%s'; only \"auto\" chooses", g->params.scheme);
    fill_choice(g, &g->tensors[tensor], choice);
    return TW_OK;
}
