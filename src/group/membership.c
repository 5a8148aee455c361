/* membership.c - the ranks of a group change: some are lost, leave or join
 *
 * A step ends everywhere or nowhere. Why: no rank applies step t before it has heard from all ranks that
 * they have their results of t (tw__agree_complete). So if any rank has applied t, every rank either
 * has too, or waits in that round of t with its result: nobody can have begun t+1, which needs all. If all
 * ranks that are left have their results of t, those that have not applied them do so now. Otherwise none
 * can have applied t, not even one that is lost: all undo it, and it begins anew. Nothing needs to be sent
 * again, and no rank needs another one's memory.
 *
 * Then the transport has the new ranks (transport/members.c), and the group becomes what a fresh group of
 * these would be, but for residuals, moments and step counters: what selectors and exchanges have learned
 * about earlier sums is forgotten, and all memory that depends on the number of ranks is taken anew. */
#include "group/membership.h"

#include "base/clock.h"
#include "group/state_file.h"

#include <assert.h>
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

/* Whether an heir has all that it was given. If a rank was lost, one that was to leave may be in
 * tw_group_shrink instead, and stay with what it has handed over. The heir then keeps none of it: it has
 * only the sum.
 *   heirs  [nbefore] to whom each rank hands over; -1: it stays */
static int inherits(const tw__membership *m, const int *heirs, int heir) {
    int all = number_now(m, heir) >= 0;
    for (int r = 0; r < m->nbefore; r++)
        all &= heirs[r] != heir || number_now(m, r) < 0;
    return all;
}

/* The number by which the caller knows a rank; -1: it has joined since. Several changes may pass before
 * the caller is told: in one call, or in calls that fail. */
static int number_known(const tw__elastic *e, int rank) {
    return e->untold ? e->before[rank] : rank;
}

static int by_rank(const void *a, const void *b) {
    return ((const tw_lost_rank *)a)->rank - ((const tw_lost_rank *)b)->rank;
}

/* Ranks that the caller knows and that are no members any more, ascending. Returns how many.
 *   heirs  [nbefore] of those that leave in this change; NULL: none does */
static int list_lost(const tw__elastic *e, const tw__membership *m, const int *heirs,
                     tw_lost_rank *lost) {
    int count = 0;
    for (int i = 0; i < e->nlost && e->untold; i++) {
        lost[count] = e->lost[i];
        lost[count++].heir = number_now(m, e->lost[i].heir);
    }
    for (int r = 0; r < m->nbefore; r++) {
        int inherited = heirs != NULL && heirs[r] >= 0 && inherits(m, heirs, heirs[r]);
        if (number_now(m, r) < 0 && number_known(e, r) >= 0)
            lost[count++] = (tw_lost_rank){.rank = number_known(e, r),
                                           .heir = inherited ? number_now(m, heirs[r]) : -1,
                                           .norm = e->norms[r].norm,
                                           .step = e->norms[r].step};
    }
    qsort(lost, (size_t)count, sizeof *lost, by_rank);
    return count;
}

/* Memory for what is reported. It is taken before the ranks agree: none may fail when they have. */
typedef struct room {
    tw_lost_rank *lost; /* [ranks that the caller knows] */
    tw__norm *norms;    /* [nranks before, and those that may join] */
} room;

static int take_room(const tw_group *g, room *r) {
    const tw__elastic *e = &g->elastic;
    size_t nranks = (size_t)g->nranks, known = e->untold ? (size_t)e->nranks_before : nranks;
    *r = (room){.lost = calloc(known, sizeof *r->lost),
                .norms = calloc(nranks + TW__MOST_NEW, sizeof *r->norms)};
    return r->lost != NULL && r->norms != NULL
               ? TW_OK
               : tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", g->nranks);
}

static void free_room(room *r) {
    free(r->lost);
    free(r->norms);
}

/* Adds a change to those that the caller has not been told of. Norms are renumbered. Takes what is in
 * the room. heirs as above. */
static void note_members(tw_group *g, tw__membership *m, const int *heirs, room *spare) {
    tw__elastic *e = &g->elastic;
    int nranks_before = e->untold ? e->nranks_before : m->nbefore;
    assert(m->nbefore == g->nranks && m->joined <= TW__MOST_NEW);
    int nlost = list_lost(e, m, heirs, spare->lost);
    assert(nlost <= nranks_before);
    for (int r = 0; r < m->nranks; r++) {
        int is_new = m->ranks[r] >= m->nbefore;
        spare->norms[r] = is_new ? (tw__norm){-1.0, 0} : e->norms[m->ranks[r]];
        m->ranks[r] = is_new ? -1 : number_known(e, m->ranks[r]);
    }
    free(e->norms);
    free(e->before);
    free(e->lost);
    e->norms = spare->norms;
    e->before = m->ranks;
    e->lost = spare->lost;
    e->nlost = nlost;
    e->nranks_before = nranks_before;
    e->rank_before = e->untold ? e->rank_before : m->before;
    e->untold = 1;
    *spare = (room){0};
    m->ranks = NULL;
}

static void tell_members(const tw_group *g, tw_members *members) {
    const tw__elastic *e = &g->elastic;
    if (members == NULL)
        return;
    *members = (tw_members){.version = tw__transport_version(g->transport),
                            .rank_before = e->rank_before,
                            .nranks_before = e->nranks_before,
                            .before = e->before,
                            .lost = e->lost,
                            .nlost = e->nlost,
                            .step = e->step};
    (void)tw_transport_info(g->transport, NULL, &members->rank, &members->nranks, NULL);
}

static void tell_unchanged(const tw_group *g, tw_members *members) {
    if (members != NULL)
        *members = (tw_members){.version = tw__transport_version(g->transport),
                                .rank = g->rank,
                                .nranks = g->nranks,
                                .rank_before = g->rank,
                                .nranks_before = g->nranks,
                                .step = g->elastic.step};
}

/* A call ends. The caller of a whole group knows its ranks. */
static void note_told(tw_group *g) {
    if (g->broken == TW_OK)
        g->elastic.untold = 0;
}

/* ---- shrink */

static int check_shrink(tw_group *g) {
    if (!g->opened)
        return tw__group_check_open(g);
    if (!tw__group_is_elastic(g))
        return tw__fail(TW_ERR_STATE, "the ranks of this group are fixed; create it with "
                                      "membership = TW_MEMBERSHIP_ELASTIC");
    if (tw__transport_is_new(g->transport))
        return tw__fail(TW_ERR_EXCLUDED, "this rank had not joined yet; free it and join anew: %s",
                        g->broken_text);
    if (g->broken == TW_OK)
        return tw__fail(TW_ERR_STATE, "the group is whole; call this after a step has failed");
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    if (g->elastic.damaged)
        return tw__fail(TW_ERR_STATE, "a step or the opening has failed half done: %s",
                        g->broken_text);
    return TW_OK;
}

/* The step in doubt is completed if all members can, and undone if one cannot. */
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

/* The transport has changed already: if the group cannot, it is broken. */
static int change_ranks(tw_group *g, tw__membership *m, const int *heirs, room *spare,
                        tw_members *members) {
    int error = settle_step(g, m->step);
    g->elastic.has_listener = 0; /* it may be gone, or have left the address to a meeting */
    if (error != TW_OK) {
        g->elastic.damaged = 1; /* its arrays are those of the ranks before */
    } else {
        note_members(g, m, heirs, spare);
        error = tw__group_reopen(g, m->joined);
    }
    if (error != TW_OK) {
        tw__group_break(g, error);
        return error;
    }
    tell_members(g, members);
    for (int t = 0; members != NULL && t < g->ntensors; t++)
        members->completed |=
            g->tensors[t].completed; /* now, or in a call that failed after that */
    return TW_OK;
}

static int shrink(tw_group *g, tw_members *members) {
    double begin = tw__seconds();
    tw__membership m = {0};
    room spare;
    const tw__intent intent = {.step = g->elastic.step + g->elastic.in_doubt};
    int error = take_room(g, &spare);
    if (error == TW_OK)
        error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error == TW_ERR_QUORUM || error == TW_ERR_EXCLUDED)
        error = end_here(g, error);
    else if (error == TW_OK)
        error = change_ranks(g, &m, NULL, &spare, members);
    free_room(&spare);
    free(m.ranks);
    if (error == TW_OK && members != NULL)
        members->seconds = tw__seconds() - begin;
    return error;
}

int tw_group_shrink(tw_group *g, tw_members *members) {
    TW_REQUIRE(g, "group");
    TW_TRY(check_shrink(g));
    int error = shrink(g, members);
    note_told(g);
    return error;
}

/* ---- leave and grow: between steps, at the same point on all ranks */

enum { STAYS = -2 }; /* in place of an heir */

/* What every rank says. */
typedef struct change_record {
    int64_t step;      /* that it has completed */
    int64_t heir;      /* TW_ANY_RANK: leaves, any heir; STAYS */
    int64_t newcomers; /* that have asked it to join */
    int64_t listens;   /* it listens for them */
    int64_t lacks;     /* the memory for a change */
} change_record;

/* What all ranks make of it. If some leave, nobody joins: a rank that is lost meanwhile may end the leave
 * on some ranks alone, and these would have to know whether the others still let newcomers in. */
typedef struct plan {
    int leaving; /* ranks that leave */
    int *heirs;  /* [nranks] to whom; -1: it stays */
    room spare;
    int host;    /* the rank that newcomers have asked */
    int joining; /* how many; 0: none. No more than ranks: if all of them fail, these are a quorum */
} plan;

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

static int share_change(tw_group *g, int64_t heir, int lacks, plan *p) {
    const change_record own = {.step = g->elastic.step,
                               .heir = heir,
                               .newcomers =
                                   tw__transport_newcomers(g->transport, !g->elastic.has_listener),
                               .listens = tw__transport_listens(g->transport),
                               .lacks = lacks};
    const change_record *records = NULL;
    TW_TRY(tw__agree_share(g, &own, sizeof own, (const void **)&records));
    int without = -1;
    g->elastic.has_listener = 0;
    for (int r = 0; r < g->nranks; r++) {
        if (records[r].step != own.step)
            return tw__transport_abort(
                g->transport,
                tw__fail(TW_ERR_MISMATCH,
                         "rank %d calls this after step %lld, rank %d after %lld; call it at the "
                         "same point on all ranks",
                         r, (long long)records[r].step, g->rank, (long long)own.step));
        p->leaving += records[r].heir != STAYS;
        g->elastic.has_listener |= records[r].listens != 0;
        without = without < 0 && records[r].lacks != 0 ? r : without;
        if (p->joining == 0 && records[r].newcomers > 0 && records[r].newcomers <= TW__MOST_NEW) {
            p->host = r;
            p->joining = (int)records[r].newcomers;
        }
    }
    if (without >= 0)
        return tw__fail(TW_ERR_MEMORY, "rank %d: no memory for %d ranks", without, g->nranks);
    if (p->joining > g->nranks)
        p->joining = g->nranks;
    if (p->leaving > 0)
        p->joining = 0; /* they wait for the next call */
    return p->leaving > 0 ? choose_heirs(g, records, p->heirs) : TW_OK;
}

/* This rank has left: nothing but freeing is possible. */
static int end_membership(tw_group *g, const tw__membership *m, const int *heirs) {
    int heir = heirs[g->rank];
    /* If a rank was lost the heir may be in tw_group_shrink instead. */
    if (!inherits(m, heirs, heir) || !m->inherited)
        return end_here(g,
                        tw__fail(TW_ERR_TRANSPORT,
                                 "a rank was lost meanwhile: rank %d, the heir, may not have this "
                                 "rank's residuals",
                                 heir));
    (void)tw__fail(TW_OK, "this rank has left the group");
    (void)end_here(g, TW_ERR_STATE);
    return TW_OK;
}

/* A rank that stays: what it was given becomes its own. */
static int stay(tw_group *g, tw__membership *m, plan *p, tw__handover *h, tw_members *members) {
    int error = inherits(m, p->heirs, g->rank) ? tw__handover_apply(g, h) : TW_OK;
    if (error != TW_OK) {
        g->elastic.damaged = 1;
        tw__group_break(g, error);
        return error;
    }
    return change_ranks(g, m, p->heirs, &p->spare, members);
}

static int leave_or_stay(tw_group *g, plan *p, tw__handover *h, tw_members *members) {
    const int *heirs = p->heirs;
    const tw__intent intent = {.step = g->elastic.step,
                               .leaving = heirs[g->rank] >= 0,
                               .heir = heirs[g->rank] >= 0 ? heirs[g->rank] : 0,
                               .inherits = 1};
    tw__membership m;
    TW_TRY(tw__handover_run(g, heirs, h));
    int error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error != TW_OK)
        return end_here(g, error);
    error = intent.leaving ? end_membership(g, &m, heirs) : stay(g, &m, p, h, members);
    free(m.ranks);
    return error;
}

/* ---- join */

/* Seconds that the meeting with newcomers may take: if one falls silent, all wait for so long. Half of the
 * timeout at most: a rank whose meeting fails at once waits for the others no longer than the timeout. */
#define MEETING 10.0

typedef struct invitation_record {
    int64_t error; /* of the host: nobody is invited */
    int64_t lacks; /* the memory for the agreement */
    unsigned char id[32];
} invitation_record;

/* Errors with which the opening fails on all ranks, though perhaps for the sake of newcomers alone. */
static int may_refuse(const tw_group *g, int error) {
    return !g->elastic.damaged &&
           (error == TW_ERR_MISMATCH || error == TW_ERR_MEMORY || error == TW_ERR_DEVICE);
}

/* Newcomers that differ, or cannot open, are not waited for: the others go on without them. */
static int refuse_newcomers(tw_group *g, int error, int joined, tw_members *members) {
    char text[TW__TEXT];
    snprintf(text, sizeof text, "%s", tw_last_error());
    for (int r = g->nranks - joined; r < g->nranks; r++)
        tw__transport_suspect(g->transport, r);
    TW_TRY(shrink(g, members));
    return tw__fail(error, "%s; the others go on without it", text);
}

static int admit(tw_group *g, plan *p, tw_members *members) {
    double timeout = g->params.timeout / 2 < MEETING ? g->params.timeout / 2 : MEETING;
    tw__intent intent = {.step = g->elastic.step};
    invitation_record own = {0};
    const invitation_record *all = NULL;
    tw__membership m;
    assert(p->host >= 0 && p->host < g->nranks && p->joining > 0 && p->joining <= g->nranks);
    own.lacks = tw__transport_reserve_change(g->transport) != TW_OK;
    if (g->rank == p->host)
        own.error = tw__transport_invite(g->transport, p->joining, timeout, own.id);
    TW_TRY(tw__agree_share(g, &own, sizeof own, (const void **)&all));
    for (int r = 0; r < g->nranks; r++)
        if (all[r].lacks != 0) {
            g->elastic.has_listener = 0; /* the host has left its address to the meeting */
            return tw__fail(TW_ERR_MEMORY, "rank %d: no memory for %d ranks", r, g->nranks);
        }
    if (all[p->host].error != TW_OK)
        return TW_OK; /* they may ask again */
    memcpy(own.id, all[p->host].id, sizeof own.id);
    if (tw__transport_meet_newcomers(g->transport, p->joining, timeout, own.id) == TW_OK)
        intent.joining = p->joining;
    int error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error != TW_OK)
        return end_here(g, error);
    int joined = m.joined;
    error = change_ranks(g, &m, NULL, &p->spare, members);
    free(m.ranks);
    return joined > 0 && may_refuse(g, error) ? refuse_newcomers(g, error, joined, members) : error;
}

static int64_t *steps_row(const tw_group *g, int64_t *rows, int rank) {
    return rows + (size_t)rank * ((size_t)g->ntensors + 2);
}

/* All of the row is checked before any counter is taken. */
static int take_steps(tw_group *g, const int64_t *row) {
    int possible = row[0] == 0; /* rank 0 is not new */
    for (int i = 1; i < g->ntensors + 2; i++)
        possible &= tw__steps_possible(row[i]);
    if (!possible)
        return tw__fail(TW_ERR_PROTOCOL, "rank 0 tells of a step that cannot be");
    g->elastic.step = row[1];
    for (int i = 0; i < g->ntensors; i++) {
        tw__tensor *t = &g->tensors[i];
        t->steps = t->info.step = row[2 + i];
        if (t->selector != NULL)
            TW_TRY(tw__selector_reset(t->selector, t->steps));
    }
    return TW_OK;
}

/* Rank 0 is none of those that are new: they come last. */
int tw__group_share_steps(tw_group *g, int is_new) {
    size_t width = (size_t)g->ntensors + 2;
    int64_t *rows = calloc((size_t)g->nranks * width, sizeof *rows);
    int error = rows != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory for step counters");
    error = tw__agree_error(g, error);
    if (error == TW_OK) {
        int64_t *own = steps_row(g, rows, g->rank);
        own[0] = is_new;
        own[1] = g->elastic.step;
        for (int t = 0; t < g->ntensors; t++)
            own[2 + t] = g->tensors[t].steps;
        error = tw__allgather(g->transport, rows, width * sizeof *rows, g->agree);
    }
    if (error == TW_OK)
        error = tw__agree_error(g, is_new ? take_steps(g, rows) : TW_OK);
    free(rows);
    return error;
}

void tw__group_withdraw(tw_group *g) {
    const tw__intent intent = {.leaving = 1};
    tw__membership m;
    (void)tw__transport_agree_members(g->transport, &intent, &m);
    free(m.ranks);
}

/* ---- the calls */

static int change(tw_group *g, int64_t heir, tw_members *members) {
    double begin = tw__seconds();
    tw__handover h = {0};
    plan p = {.heirs = calloc((size_t)g->nranks, sizeof *p.heirs)};
    int lacks = take_room(g, &p.spare) != TW_OK || p.heirs == NULL;
    int error = share_change(g, heir, lacks, &p);
    if (error == TW_OK)
        tell_unchanged(g, members);
    if (error == TW_OK && p.leaving > 0)
        error = leave_or_stay(g, &p, &h, members);
    if (error == TW_OK && p.joining > 0)
        error = admit(g, &p, members);
    tw__handover_free(&h);
    free_room(&p.spare);
    free(p.heirs);
    int lost =
        error == TW_ERR_TRANSPORT || error == TW_ERR_TIMEOUT; /* also before a message began */
    if (error != TW_OK && g->broken == TW_OK && (lost || tw__transport_has_failed(g->transport)))
        tw__group_break(g, error);
    note_told(g);
    if (members != NULL)
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

/* ---- parameters of newcomers */

#define HASH 64

typedef struct hash_record {
    uint64_t bytes;
    unsigned char hash[HASH];
    int64_t lacks; /* the memory for a change */
} hash_record;

/* Whether a rank's differs from that of rank 0. */
static int differs(const hash_record *records, int rank) {
    return records[rank].bytes != records[0].bytes ||
           memcmp(records[rank].hash, records[0].hash, HASH) != 0;
}

static int part_with(tw_group *g, int first, int leaving, room *spare, tw_members *members) {
    const tw__intent intent = {.step = g->elastic.step, .leaving = leaving};
    tw__membership m;
    TW_TRY(tw__agree_error(g, tw__transport_reserve_change(g->transport)));
    int error = tw__transport_agree_members(g->transport, &intent, &m);
    if (error != TW_OK)
        return end_here(g, error);
    if (!leaving)
        error = change_ranks(g, &m, NULL, spare, members);
    free(m.ranks);
    if (error != TW_OK)
        return error;
    error = tw__fail(TW_ERR_MISMATCH,
                     "rank %d has other parameters than rank 0; the others go on "
                     "without it",
                     leaving ? g->rank : first);
    return leaving ? end_here(g, error) : error;
}

static int compare_hashes(tw_group *g, const hash_record *own, room *spare, tw_members *members) {
    const hash_record *records = NULL;
    int first = 0;
    TW_TRY(tw__agree_share(g, own, sizeof *own, (const void **)&records));
    for (int r = 0; r < g->nranks; r++)
        if (records[r].lacks != 0)
            return tw__fail(TW_ERR_MEMORY, "rank %d: no memory for %d ranks", r, g->nranks);
    while (first < g->nranks && !differs(records, first))
        first++;
    if (first == g->nranks)
        return TW_OK;
    return part_with(g, first, differs(records, g->rank), spare, members);
}

int tw_group_verify(tw_group *g, const void *hash, size_t bytes, tw_members *members) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(hash, "hash");
    TW_TRY(check_change(g));
    if (bytes == 0 || bytes > HASH)
        return tw__fail(TW_ERR_PARAM, "bytes: %zu; accepted is 1 .. %d", bytes, HASH);
    double begin = tw__seconds();
    room spare;
    hash_record own = {.bytes = bytes, .lacks = take_room(g, &spare) != TW_OK};
    memcpy(own.hash, hash, bytes);
    int error = compare_hashes(g, &own, &spare, members);
    free_room(&spare);
    if (error != TW_OK && g->broken == TW_OK && tw__transport_has_failed(g->transport))
        tw__group_break(g, error);
    if (error == TW_ERR_MISMATCH && g->broken == TW_OK && members != NULL) /* `members` tells */
        members->seconds = tw__seconds() - begin;
    note_told(g);
    return error;
}
