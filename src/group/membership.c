/* membership.c - a group goes on without ranks that are lost
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
#include "group/group.h"

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

static int stays(const tw__membership *m, int rank) {
    for (int i = 0; i < m->nranks; i++)
        if (m->ranks[i] == rank)
            return 1;
    return 0;
}

/* Norms are renumbered, those of lost ranks kept for the caller. */
static int note_members(tw_group *g, tw__membership *m) {
    tw__elastic *e = &g->elastic;
    int nlost = 0;
    tw_lost_rank *lost = calloc((size_t)m->nbefore, sizeof *lost);
    if (lost == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", m->nbefore);
    for (int r = 0; r < m->nbefore; r++)
        if (!stays(m, r))
            lost[nlost++] =
                (tw_lost_rank){.rank = r, .norm = e->norms[r].norm, .step = e->norms[r].step};
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

static int change_ranks(tw_group *g, tw__membership *m, tw_members *members) {
    int64_t before = g->elastic.step;
    TW_TRY(settle_step(g, m->step));
    TW_TRY(note_members(g, m));
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
    int error = tw__transport_agree_members(g->transport, g->elastic.step, &m);
    if (error == TW_ERR_QUORUM || error == TW_ERR_EXCLUDED)
        return end_here(g, error);
    TW_TRY(error);
    error = change_ranks(g, &m, members);
    free(m.ranks);
    if (error != TW_OK)
        tw__group_break(g, error);
    else if (members != NULL)
        members->seconds = tw__seconds() - begin;
    return error;
}
