/* membership.c - the ranks of a group change: some are lost, leave or join
 *
 * A step ends everywhere or nowhere. Why: no rank applies step t before it has heard from all ranks that
 * they have their results of t (tw__agree_complete). So if any member has applied t, every member either
 * has too, or waits in that round of t with its result: nobody can have begun t+1, which needs all. The
 * ranks that are left compare how many steps they have completed. Where one has t, those that lack it
 * apply the results that they have. Where none has, all undo t, and it begins anew. Nothing needs to be
 * sent again, and no rank needs another one's memory.
 *
 * Then the transport has the new ranks (transport/members.c), and the group becomes what a fresh group of
 * these would be, but for residuals, moments and step counters: what selectors and exchanges have learned
 * about earlier sums is forgotten, and all memory that depends on the number of ranks is taken anew. */
#include "group/membership.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Steps from one norm of the residuals to the next: the sum of squares reads all of them. */
#define NORM_PERIOD 64
#define NORM_PART 4096 /* elements at a time */

/* ---- norms */

static int add_squares(const tw__tensor *t, double *sum) {
    float part[NORM_PART];
    if (t->selector == NULL || t->params.feedback != TW_FEEDBACK_ON)
        return TW_OK;
    for (int64_t first = 0; first < t->n; first += NORM_PART) {
        int64_t count = t->n - first < NORM_PART ? t->n - first : NORM_PART;
        TW_TRY(t->backend->get(t->selector->state, TW__RESIDUAL, first, count, part));
        for (int64_t i = 0; i < count; i++)
            *sum += (double)part[i] * (double)part[i];
    }
    return TW_OK;
}

void tw__group_note_norm(tw_group *g) {
    tw__norm *own = &g->elastic.norms[g->rank];
    double sum = 0.0;
    if (g->elastic.step % NORM_PERIOD != 1)
        return;
    *own = (tw__norm){-1.0, g->elastic.step};
    for (int t = 0; t < g->ntensors; t++)
        if (add_squares(&g->tensors[t], &sum) != TW_OK)
            return;
    own->norm = sqrt(sum);
}

/* ---- what is reported */

/* The number that a rank has now; -1: it is no member. */
static int number_now(const tw__membership *m, int rank) {
    for (int i = 0; i < m->nranks; i++)
        if (m->ranks[i] == rank)
            return i;
    return -1;
}

/* Norms are renumbered, those of lost ranks kept for the caller.
 *   heirs  [nbefore] of those that have left; NULL: none has */
static int note_members(tw_group *g, tw__membership *m, const int *heirs) {
    tw__elastic *e = &g->elastic;
    int nlost = 0;
    tw_lost_rank *lost = calloc((size_t)m->nbefore, sizeof *lost);
    if (lost == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", m->nbefore);
    for (int r = 0; r < m->nbefore; r++)
        if (number_now(m, r) < 0)
            lost[nlost++] = (tw_lost_rank){
                .rank = r,
                .heir = heirs != NULL && heirs[r] >= 0 ? number_now(m, heirs[r]) : -1,
                .norm = e->norms[r].norm,
                .step = e->norms[r].step};
    for (int r = 0; r < m->nranks; r++)
        e->norms[r] = e->norms[m->ranks[r]];
    free(e->before);
    free(e->lost);
    e->before = m->ranks;
    e->lost = lost;
    m->ranks = NULL;
    return TW_OK;
}

static void tell_members(const tw_group *g, const tw__membership *m, tw_members *members) {
    if (members == NULL)
        return;
    *members = (tw_members){.version = tw__transport_version(g->transport),
                            .rank_before = m->before,
                            .nranks_before = m->nbefore,
                            .before = g->elastic.before,
                            .lost = g->elastic.lost,
                            .nlost = m->nbefore - m->nranks,
                            .step = g->elastic.step};
    (void)tw_transport_info(g->transport, NULL, &members->rank, &members->nranks, NULL);
}

/* ---- shrink */

static int check_shrink(tw_group *g) {
    TW_TRY(tw__group_check_open(g));
    if (!tw__group_is_elastic(g))
        return tw__fail(TW_ERR_STATE, "the ranks of this group are fixed; create it with "
                                      "membership = TW_MEMBERSHIP_ELASTIC");
    if (g->broken == TW_OK)
        return tw__fail(TW_ERR_STATE, "the group is whole; call this after a step has failed");
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    if (g->elastic.damaged)
        return tw__fail(TW_ERR_STATE, "a step has failed half applied; load a saved state: %s",
                        g->broken_text);
    return TW_OK;
}

/* The step in doubt is completed if another member has completed it, and undone if none has. */
static int settle_step(tw_group *g, int64_t agreed) {
    tw__elastic *e = &g->elastic;
    if (agreed == e->step) {
        tw__allreduce_undo(g);
        return TW_OK;
    }
    if (agreed == e->step + 1 && e->in_doubt)
        return tw__allreduce_complete(g);
    return tw__fail(TW_ERR_PROTOCOL, "other ranks have completed step %lld, this one %lld",
                    (long long)agreed, (long long)e->step);
}

/* Whatever became of the others, this rank does not go on. */
static int end_here(tw_group *g, int error) {
    tw__allreduce_undo(g);
    snprintf(g->broken_text, TW__TEXT, "%s", tw_last_error());
    g->broken = error;
    return error;
}

static int change_ranks(tw_group *g, tw__membership *m, const int *heirs, tw_members *members) {
    int64_t before = g->elastic.step;
    TW_TRY(settle_step(g, m->step));
    TW_TRY(note_members(g, m, heirs));
    TW_TRY(tw__group_reopen(g));
    tell_members(g, m, members);
    if (members != NULL)
        members->completed = g->elastic.step > before;
    return TW_OK;
}

int tw_group_shrink(tw_group *g, tw_members *members) {
    TW_REQUIRE(g, "group");
    TW_TRY(check_shrink(g));
    double begin = tw__seconds();
    tw__membership m;
    const tw__intent intent = {.step = g->elastic.step};
    int error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error == TW_ERR_QUORUM || error == TW_ERR_EXCLUDED)
        return end_here(g, error);
    TW_TRY(error);
    error = change_ranks(g, &m, NULL, members);
    free(m.ranks);
    if (error != TW_OK)
        tw__group_break(g, error);
    else if (members != NULL)
        members->seconds = tw__seconds() - begin;
    return error;
}

/* ---- leave and grow: between steps, at the same point on all ranks */

enum { STAYS = -2 }; /* in place of an heir */

/* What every rank says. */
typedef struct change_record {
    int64_t step; /* that it has completed */
    int64_t heir; /* TW_ANY_RANK: leaves, any heir; STAYS */
} change_record;

static int check_change(tw_group *g) {
    TW_TRY(tw__group_check(g, 0));
    if (!tw__group_is_elastic(g))
        return tw__fail(TW_ERR_STATE, "the ranks of this group are fixed; create it with "
                                      "membership = TW_MEMBERSHIP_ELASTIC");
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    return TW_OK;
}

/* heirs[nranks]: those that stay have none, -1. Any heirs are shared out among the ranks that stay. */
static int choose_heirs(const tw_group *g, const change_record *records, int *heirs) {
    int staying = 0, next = 0;
    for (int r = 0; r < g->nranks; r++)
        staying += records[r].heir == STAYS;
    if (staying == 0)
        return tw__fail(TW_ERR_PARAM, "heir: all ranks leave; one must stay, or all just end");
    for (int r = 0; r < g->nranks; r++) {
        int64_t heir = records[r].heir;
        if (heir != STAYS && heir != TW_ANY_RANK &&
            (heir < 0 || heir >= g->nranks || records[heir].heir != STAYS))
            return tw__fail(TW_ERR_PARAM,
                            "heir: rank %d names %lld; accepted is a rank that stays, and "
                            "TW_ANY_RANK",
                            r, (long long)heir);
        while (heir == TW_ANY_RANK && records[next].heir != STAYS)
            next = (next + 1) % g->nranks;
        heirs[r] = heir == STAYS ? -1 : heir == TW_ANY_RANK ? next : (int)heir;
        if (heir == TW_ANY_RANK)
            next = (next + 1) % g->nranks;
    }
    return TW_OK;
}

/* *leaving: how many are. */
static int share_change(tw_group *g, int64_t heir, int *heirs, int *leaving) {
    const change_record own = {g->elastic.step, heir}, *records = NULL;
    TW_TRY(tw__agree_share(g, &own, sizeof own, (const void **)&records));
    *leaving = 0;
    for (int r = 0; r < g->nranks; r++) {
        if (records[r].step != own.step)
            return tw__transport_abort(
                g->transport,
                tw__fail(TW_ERR_MISMATCH,
                         "rank %d calls this after step %lld, rank %d after %lld; call it at the "
                         "same point on all ranks",
                         r, (long long)records[r].step, g->rank, (long long)own.step));
        *leaving += records[r].heir != STAYS;
    }
    return *leaving > 0 ? choose_heirs(g, records, heirs) : TW_OK;
}

/* This rank has left: nothing but freeing is possible. */
static int end_membership(tw_group *g, const tw__membership *m, int heir) {
    if (number_now(m, heir) < 0)
        return end_here(g, tw__fail(TW_ERR_TRANSPORT,
                                    "rank %d, the heir, was lost meanwhile: this rank's residuals "
                                    "are not handed over",
                                    heir));
    (void)tw__fail(TW_OK, "this rank has left the group");
    (void)end_here(g, TW_ERR_STATE);
    return TW_OK;
}

static int leave_or_stay(tw_group *g, const int *heirs, tw__handover *h, tw_members *members) {
    const tw__intent intent = {.step = g->elastic.step, .leaving = heirs[g->rank] >= 0};
    tw__membership m;
    TW_TRY(tw__handover_run(g, heirs, h));
    int error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error != TW_OK)
        return end_here(g, error);
    if (intent.leaving)
        error = end_membership(g, &m, heirs[g->rank]);
    else if ((error = tw__handover_apply(g, h)) == TW_OK)
        error = change_ranks(g, &m, heirs, members);
    free(m.ranks);
    return error;
}

static int change(tw_group *g, int64_t heir, tw_members *members) {
    double begin = tw__seconds();
    tw__handover h = {0};
    int leaving = 0, *heirs = calloc((size_t)g->nranks, sizeof *heirs);
    if (heirs == NULL) /* the others wait for this rank */
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", g->nranks);
    int error = share_change(g, heir, heirs, &leaving);
    if (error == TW_OK && leaving > 0)
        error = leave_or_stay(g, heirs, &h, members);
    else if (error == TW_OK)
        tell_members(
            g, &(tw__membership){.before = g->rank, .nbefore = g->nranks, .nranks = g->nranks},
            members);
    tw__handover_free(&h);
    free(heirs);
    if (error != TW_OK && g->broken == TW_OK && tw__transport_has_failed(g->transport))
        tw__group_break(g, error);
    if (error == TW_OK && members != NULL)
        members->seconds = tw__seconds() - begin;
    return error;
}

int tw_group_leave(tw_group *g, int heir) {
    TW_REQUIRE(g, "group");
    TW_TRY(check_change(g));
    if (heir == STAYS)
        return tw__fail(TW_ERR_PARAM, "heir: %d; accepted is a rank, and TW_ANY_RANK", heir);
    return change(g, heir, NULL);
}

int tw_group_grow(tw_group *g, tw_members *members) {
    TW_REQUIRE(g, "group");
    TW_TRY(check_change(g));
    return change(g, STAYS, members);
}
