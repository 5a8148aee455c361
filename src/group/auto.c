/* auto.c - see auto.h */
#include "group/auto.h"
#include "group/group.h"
#include "select/methods.h"
#include "wire/wire.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Steps of a trial. The first one touches memory that no step has touched before. */
#define TRIAL 3
/* Steps after which the time of the plan in use is measured again. */
#define RENEWAL 64
/* A plan is tried if its predicted time is at most this many times the best measured one: in
 * simulation butterfly's is up to 1.4 times too long (docs/auto.md). */
#define CHANCE 1.5
/* Workspace that a plan may take: this much, or this many bytes per element of all tensors. Of those
 * that gather k entries of each rank this leaves out what dense would beat. */
#define ROOM ((size_t)64 << 20)
#define ROOM_PER_ELEMENT 40 /* bytes: butterfly takes 36 at density 0.1 and P = 64 */

/* Seconds of computing on one core of a 2.x GHz server (thinwire bench wire, bench select): per entry
 * coded or decoded, per entry merged, per element read or written. They tell plans apart only on fast
 * networks, where trials decide anyway. */
#define PER_ENTRY 4e-9
#define PER_MERGED 6e-9
#define PER_ELEMENT 0.4e-9

/* ---- plans */

/* Dense sends gradient and residual: from where a selector on the CPU adds them. With momentum it
 * would clear all velocities; with AdamW it is not a gradient. */
int tw__auto_sends_whole(const tw_select_params *p, const tw__backend *backend) {
    return backend->fold != NULL && p->feedback == TW_FEEDBACK_ON && tw__moments_of(p) == 0;
}

static int may_be_dense(const tw_group *g) {
    for (int t = 0; t < g->ntensors; t++)
        if (!tw__auto_sends_whole(&g->tensors[t].params, g->tensors[t].backend))
            return 0;
    return 1;
}

/* An exchange that leaves all tensors to another one is that other one. */
static int serves_any(const tw_group *g, const tw__exchange *exchange) {
    for (int t = 0; t < g->ntensors; t++)
        if (tw__exchange_for(exchange, tw__k_max(&g->tensors[t].params, g->tensors[t].n),
                             g->nranks) == exchange)
            return 1;
    return 0;
}

static int fits(const tw_group *g, const tw__plan *plan) {
    int64_t elements = 0;
    for (int t = 0; t < g->ntensors; t++)
        elements += g->tensors[t].n;
    size_t room = ROOM_PER_ELEMENT * (size_t)elements;
    tw__workspace needs = tw__allreduce_memory(g, plan, 0, g->ntensors);
    return needs.host + needs.lists[0] + needs.lists[1] <= (room > ROOM ? room : ROOM);
}

static void add_plan(const tw_group *g, tw__plans *plans, const tw__exchange *exchange,
                     const tw__wire *wire) {
    tw__plan plan = {exchange, wire};
    if (g->exchange == NULL && !(serves_any(g, exchange) && fits(g, &plan)))
        return;
    if (plans->count < TW__PLANS)
        plans->at[plans->count++] = plan;
}

/* Both formats, or the one that was asked for. */
static void add_wires(const tw_group *g, tw__plans *plans, const tw__exchange *exchange) {
    if (g->any_wire) {
        add_plan(g, plans, exchange, NULL);
        add_plan(g, plans, exchange, tw__wire_find("bf16"));
        return;
    }
    add_plan(g, plans, exchange, g->wire);
}

void tw__auto_plans(const tw_group *g, tw__plans *plans) {
    const tw__exchange *exchange;
    *plans = (tw__plans){0};
    if (!g->automatic) {
        *plans = (tw__plans){1, {{g->exchange, g->wire}}};
        return;
    }
    for (int i = 0; (exchange = tw__exchange_at(i)) != NULL; i++) {
        if (g->exchange != NULL ? exchange != g->exchange : exchange->terms == NULL)
            continue;
        if (exchange != &tw__exchange_dense)
            add_wires(g, plans, exchange);
        else if (may_be_dense(g))
            add_plan(g, plans, exchange, NULL);
    }
    if (plans->count == 0) /* nothing fits: what needs the least */
        *plans = (tw__plans){1, {{tw__exchange_oktopk.fallback, g->wire}}};
}

/* ---- the model */

static tw__cost_terms terms_of(const tw__exchange *exchange, const tw__shape *shape) {
    int known = shape->nsegments > 0 && shape->nranks > 1 && exchange->terms != NULL;
    return known ? exchange->terms(shape) : (tw__cost_terms){0};
}

static double computing(const tw_group *g, const tw__cost_terms *terms) {
    return tw__transport_computing(g->transport) *
           (PER_ENTRY * terms->entries + PER_MERGED * terms->merged +
            PER_ELEMENT * terms->elements);
}

/* Adding up, selecting, and zeroing what was sent takes two passes with any plan. */
static double passes(const tw_group *g, const int *members, int count) {
    tw__cost_terms terms = {0};
    for (int i = 0; i < count; i++)
        terms.elements += 2.0 * (double)g->tensors[members[i]].n;
    return computing(g, &terms);
}

/* Seconds of a step of these tensors with this plan, after their selection, at their present k.
 * *fixed of these would stay if the tensors were small; may be NULL. */
static double predict(const tw_group *g, const tw__plan *plan, const int *members, int count,
                      double *fixed) {
    const tw__exchange *exchanges[2] = {plan->exchange, plan->exchange->fallback};
    tw__shape shapes[2];
    double seconds = 0.0, waiting = 0.0;
    tw__allreduce_shapes(g, plan, members, count, shapes);
    for (int j = 0; j < 2; j++) {
        tw__cost_terms terms = terms_of(exchanges[j], &shapes[j]);
        waiting += terms.rounds * g->probe.latency + terms.messages * g->probe.overhead;
        seconds += terms.bytes * g->probe.byte + computing(g, &terms);
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
    for (int w = 0; w < g->plans.count; w++) {
        double waiting, seconds = predict(g, &g->plans.at[w], all, g->ntensors, &waiting);
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
    tw__auto_plans(g, &g->plans);
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
static void predict_all(const tw_group *g, tw__tuner *tuner, const int *members, int count) {
    *tuner = (tw__tuner){.count = count, .last = -1};
    for (int w = 0; w < g->plans.count; w++) {
        tw__trial *trial = &tuner->trials[w];
        trial->predicted = predict(g, &g->plans.at[w], members, count, NULL);
        if (trial->predicted < tuner->trials[tuner->now].predicted)
            tuner->now = w;
    }
}

void tw__auto_predict(tw_group *g) {
    for (int b = 0; b < g->nbuckets && g->automatic; b++) {
        int first = g->buckets[b].first, count = g->buckets[b].count;
        for (int i = 0; i < count; i++) {
            g->members[i] = first + i;
            g->tensors[first + i].leader = first;
        }
        predict_all(g, &g->tuners[first], g->members, count);
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
    if (!g->automatic)
        return &g->plans.at[0];
    tw__tuner *tuner = &g->tuners[members[0]];
    if (tuner->count != count || warms_up(g, members, count))
        predict_all(g, tuner, members, count);
    for (int i = 0; i < count; i++)
        g->tensors[members[i]].leader = members[0];
    assert(tuner->now >= 0 && tuner->now < g->plans.count);
    return &g->plans.at[tuner->now];
}

double tw__auto_pending(const tw_group *g, const int *members) {
    const tw__tuner *tuner = g->automatic ? &g->tuners[members[0]] : NULL;
    return tuner != NULL && tuner->last >= 0 ? tuner->seconds : -1.0;
}

void tw__auto_note(tw_group *g, const int *members, const tw__plan *plan, double seconds) {
    tw__tuner *tuner = &g->tuners[members[0]];
    assert(plan >= g->plans.at && plan < g->plans.at + g->plans.count);
    tuner->last = (int)(plan - g->plans.at);
    tuner->seconds = seconds;
}

/* A model that predicts too much, as after a probe on a busy machine, does so for all. */
static int is_promising(const tw__trial *untried, const tw__trial *best) {
    double scale = fmin(1.0, best->measured / best->predicted);
    return untried->predicted * scale <= CHANCE * best->measured;
}

/* The fastest measured, or an untried plan that the model gives a chance beside it. */
static int next_plan(const tw_group *g, const tw__tuner *tuner) {
    int best = tuner->now, untried = -1;
    for (int w = 0; w < g->plans.count; w++) {
        const tw__trial *t = &tuner->trials[w];
        if (t->measured > 0.0 && t->measured < tuner->trials[best].measured)
            best = w;
        if (t->measured == 0.0 && (untried < 0 || t->predicted < tuner->trials[untried].predicted))
            untried = w;
    }
    int worth = untried >= 0 && is_promising(&tuner->trials[untried], &tuner->trials[best]);
    return worth ? untried : best;
}

/* A step that was under way when the plan changed does not count. */
void tw__auto_learn(tw_group *g, const int *members, double slowest) {
    if (!g->automatic || g->tuners[members[0]].last < 0)
        return;
    tw__tuner *tuner = &g->tuners[members[0]];
    int plan = tuner->last;
    tuner->last = -1;
    assert(plan < g->plans.count && slowest >= 0.0);
    tw__trial *trial = &tuner->trials[plan];
    trial->steps++;
    if (plan != tuner->now)
        return;
    if (tuner->window == 0 || slowest < tuner->least)
        tuner->least = slowest;
    if (++tuner->window < (trial->measured == 0.0 ? TRIAL : RENEWAL))
        return;
    trial->measured = fmax(tuner->least, 1e-12); /* 0 means: not tried */
    tuner->window = 0;
    tuner->now = next_plan(g, tuner);
}

/* ---- public */

static const char *wire_name(const tw__plan *plan) {
    return plan->wire != NULL ? plan->wire->name : "raw";
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
    const tw__tuner *tuner = &g->tuners[t->leader];
    const tw__trial *now = &tuner->trials[tuner->now];
    const tw__plan *plan = &g->plans.at[tuner->now];
    *c = (tw_choice){.select = t->method->name,
                     .exchange = plan->exchange->name,
                     .wire = wire_name(plan),
                     .predicted = now->predicted,
                     .measured = now->measured,
                     .settled = now->measured > 0.0,
                     .latency = g->probe.latency,
                     .overhead = g->probe.overhead,
                     .bandwidth = g->probe.byte > 0.0 ? 1.0 / g->probe.byte : 0.0,
                     .bucket = g->params.bucket,
                     .ncandidates = g->plans.count};
    for (int w = 0; w < g->plans.count; w++)
        c->candidates[w] = (tw_candidate){.exchange = g->plans.at[w].exchange->name,
                                          .wire = wire_name(&g->plans.at[w]),
                                          .predicted = tuner->trials[w].predicted,
                                          .measured = tuner->trials[w].measured,
                                          .steps = tuner->trials[w].steps};
    qsort(c->candidates, (size_t)c->ncandidates, sizeof c->candidates[0], by_prediction);
    compare_with_dense(c);
}

int tw_group_choice(tw_group *g, int tensor, tw_choice *choice) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(choice, "choice");
    TW_TRY(tw__group_check_idle(g, tensor));
    if (!g->automatic)
        return tw__fail(TW_ERR_STATE, "scheme: '%s'; only \"auto\" chooses", g->params.scheme);
    if (g->tuners == NULL)
        return tw__group_check(g, tensor); /* its ranks could not be changed */
    fill_choice(g, &g->tensors[tensor], choice);
    return TW_OK;
}
