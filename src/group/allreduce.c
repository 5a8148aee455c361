/* allreduce.c - the map of one step over all ranks
 *
 *   gradients -> select -> agree -> exchange -> apply -> mean gradients
 *                acc=g+e   all or   sums over   residuals keep what did not arrive,
 *                k of n    none     ranks       the mean goes to the caller
 *
 * A step takes one tensor or a bucket of them. Until `apply` everything can be taken back: an error
 * on any rank before the exchange, and a sum that overflows, leave all residuals as they were.
 *
 * An elastic group (membership.c) has one more round before `apply`: every rank has its result. If that
 * round fails, the step is in doubt: another rank may have heard from all and applied, or not. It stays
 * as it is until the ranks that are left have compared. */
#include "group/step.h"

#include <assert.h>

static void begin(tw__step *s);
static int finish(tw__step *s);
static void publish(tw__step *s);
static int fail(tw__step *s, int error, int all_ranks_know);
static int doubt(const tw__step *s, int error);

static int run(tw_group *g, const int *members, int count) {
    tw__step s = {.g = g, .members = members, .count = count};
    begin(&s);
    int error = tw__step_select(&s);
    error = tw__agree_step(&s, error);
    if (error != TW_OK)
        return fail(&s, error, s.refused);

    tw__transport_set_overlap(g->transport, tw__step_overlap, &s);
    error = tw__step_exchange(&s);
    tw__transport_set_overlap(g->transport, NULL, NULL);
    if (error != TW_OK)
        return fail(&s, error, error == TW_ERR_NUMBER);

    error = tw__group_is_elastic(g) ? tw__agree_complete(g) : TW_OK;
    if (error != TW_OK)
        return doubt(&s, error);
    return finish(&s);
}

/* Nothing can be taken back any more. */
static int finish(tw__step *s) {
    s->g->is_ending = 1;
    int error = tw__step_apply(s);
    if (error != TW_OK) { /* some tensors may be applied already */
        s->g->elastic.damaged = 1;
        return fail(s, error, 0);
    }
    publish(s);
    s->g->elastic.step++;
    if (s->g->is_loaded)
        tw__group_renew_run(s->g); /* whoever made this step before may have got another result */
    if (tw__group_is_elastic(s->g))
        tw__group_note_norm(s->g);
    return TW_OK;
}

int tw__allreduce_run(tw_group *g, const int *members, int count) {
    if (!tw__group_is_elastic(g))
        return run(g, members, count);
    for (int i = 0; i < count; i++) /* a step in doubt outlives the call */
        g->elastic.members[i] = members[i];
    return run(g, g->elastic.members, count);
}

/* ---- a step in doubt */

static int doubt(const tw__step *s, int error) {
    tw__elastic *e = &s->g->elastic;
    assert(!e->in_doubt);
    *e->doubt = *s;
    e->in_doubt = 1;
    tw__group_break(s->g, error);
    return error;
}

int tw__allreduce_complete(tw_group *g) {
    tw__step *s = g->elastic.doubt;
    assert(g->elastic.in_doubt);
    g->elastic.in_doubt = 0;
    TW_TRY(finish(s));
    for (int i = 0; i < s->count; i++)
        tw__member(s, i)->completed = 1;
    return TW_OK;
}

void tw__allreduce_undo(tw_group *g) {
    if (g->elastic.in_doubt)
        tw__step_undo(g->elastic.doubt);
    g->elastic.in_doubt = 0;
}

/* ---- the parts of a step that are not stages */

static void begin(tw__step *s) {
    assert(s->count > 0 && s->count <= s->g->widest);
    s->plan = tw__auto_begin(s->g, s->members, s->count);
    s->before = tw__transport_traffic(s->g->transport);
    s->bad_index = s->bad_piece = -1;
    s->g->is_ending = 0;
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = tw__member(s, i);
        assert(!t->open);
        t->threshold_before = t->threshold;
        t->has_result = 0;
        t->cleared = t->placed = 0;
    }
}

/* The group goes on only if all ranks end the step with this error. */
static int fail(tw__step *s, int error, int all_ranks_know) {
    s->g->is_ending = 1;
    tw__step_undo(s);
    if (!all_ranks_know || tw__transport_has_failed(s->g->transport))
        tw__group_break(s->g, error);
    return error;
}

static tw_traffic traffic_since(const tw_group *g, const tw_traffic *before) {
    tw_traffic now = tw__transport_traffic(g->transport);
    return (tw_traffic){.payload_sent = now.payload_sent - before->payload_sent,
                        .payload_received = now.payload_received - before->payload_received,
                        .control_sent = now.control_sent - before->control_sent,
                        .control_received = now.control_received - before->control_received,
                        .messages_sent = now.messages_sent - before->messages_sent};
}

/* Tells what the step took: of the whole step, and of each tensor. */
static void publish(tw__step *s) {
    if (s->g->automatic)
        tw__auto_note(s->g, s->members, s->plan,
                      tw__transport_seconds(s->g->transport) - s->agreed);
    s->info.traffic = traffic_since(s->g, &s->before);
    for (int i = 0; i < s->count; i++) {
        tw__tensor *t = tw__member(s, i);
        tw_step_info info = s->info;
        info.step = t->steps;
        info.k = t->info.k;
        info.selected = t->selected;
        info.applied = t->info.applied;
        info.exchange = t->info.exchange;
        info.wire = s->plan->wire != NULL && !tw__is_dense(s->plan) ? s->plan->wire->name : "raw";
        info.tensors = s->count;
        info.decayed = t->selector != NULL ? t->selector->info.decayed : 0.0;
        t->info = info;
    }
}

int tw_allreduce(tw_group *g, int tensor, const void *grad, float *out) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, tensor));
    TW_TRY(tw__group_check_pieces(g, tensor, 1));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait "
                                      "before tw_allreduce");
    if (tw__tensor_take_completed(&g->tensors[tensor]))
        return TW_OK;
    tw__group_begin_tensor(g, tensor, &grad, out != NULL ? &out : NULL);
    return tw__allreduce_run(g, &tensor, 1);
}
