/* state.c - save and load what a group would lose: residuals, moments, thresholds, counters
 *
 * A file (state_file.h) is read and checked as a whole before anything is changed, and all ranks
 * hear of an error of any. Residuals may be loaded by another number of ranks than saved them: what
 * counts is their sum, so a rank that takes several files adds them up, and one that takes none
 * starts from zero. Steps and the global threshold are everyone's; the rest of what a selector
 * learned goes on only where a rank takes exactly its one file, and is learned anew elsewhere. */
#include "group/state_file.h"

#include "backend/cpu/kernels.h"

#include <assert.h>
#include <stdlib.h>

static int check_quiet(tw_group *g) {
    TW_TRY(tw__group_check_open(g));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    return tw__group_check_settled(g);
}

int tw_group_save(tw_group *g, const char *path) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(path, "path");
    TW_TRY(check_quiet(g));
    return tw__state_write(g, path);
}

/* ---- load: what the files say */

static int read_states(tw_group *g, const char *const *paths, int npaths, tw__state *states) {
    for (int i = 0; i < npaths; i++) {
        if (paths[i] == NULL)
            return tw__fail(TW_ERR_NULL, "paths[%d]: is NULL", i);
        TW_TRY(tw__state_read(paths[i], &states[i]));
        TW_TRY(tw__state_check(g, &states[i]));
        if (states[i].nranks != states[0].nranks)
            return tw__fail(TW_ERR_MISMATCH,
                            "paths[%d]: '%.160s' was saved by %d ranks, paths[0] by %d", i,
                            paths[i], states[i].nranks, states[0].nranks);
    }
    return TW_OK;
}

/* ---- load: who takes what, and what is common */

/* What every rank tells of its files: how many ranks saved, and per tensor what all share. */
typedef struct common {
    int64_t moves;   /* it does not take its own file alone; the rest is what all share */
    int64_t some;    /* 1: states may be missing */
    int64_t saved;   /* nranks of the job that saved; 0: takes none */
    int64_t run;     /* of that job */
    int64_t pairs[]; /* [2 * ntensors]: steps and global threshold of each tensor */
} common;

static size_t common_bytes(const tw_group *g) {
    return sizeof(common) + 2 * sizeof(int64_t) * (size_t)g->ntensors;
}

static common *common_at(const tw_group *g, void *all, int rank) {
    return (common *)((char *)all + common_bytes(g) * (size_t)rank);
}

static int note_common(tw__tensor *t, const tw__state_head *head, const char *data, void *context) {
    int64_t **next = context;
    (void)t, (void)data;
    *(*next)++ = head->steps;
    *(*next)++ = head->global_threshold;
    return TW_OK;
}

static int differs(const tw_group *g, const common *a, const common *b) {
    return memcmp(&a->saved, &b->saved, common_bytes(g) - offsetof(common, saved)) != 0;
}

static int other_job(int rank) {
    return tw__fail(TW_ERR_MISMATCH,
                    "rank %d: its states are of another run or another step than those before "
                    "them; give all ranks files of one checkpoint",
                    rank);
}

/* What this rank's files have in common. */
static int fill_common(tw_group *g, const tw__state *states, int nstates, common *mine,
                       common *another) {
    for (int i = 0; i < nstates; i++) {
        common *to = i == 0 ? mine : another;
        int64_t *next = to->pairs;
        to->some = mine->some;
        to->saved = states[i].nranks;
        to->run = states[i].run;
        TW_TRY(tw__state_each(g, &states[i], note_common, &next));
        if (differs(g, to, mine))
            return other_job(g->rank);
    }
    mine->moves = nstates != 1 || states[0].rank != g->rank || states[0].nranks != g->nranks;
    return TW_OK;
}

/* Two states of a group: what is where in one is there in the other. */
typedef struct addition {
    const tw__kernels *kernels;
    const tw__state *to, *from;
    float share; /* of each state in a mean */
} addition;

static int add_tensor(tw__tensor *t, const tw__state_head *head, const char *data, void *context) {
    addition *a = context;
    void *sum = a->to->bytes + (data - a->from->bytes);
    int64_t many = (int64_t)(tw__state_data_bytes(head) / sizeof(float));
    (void)t;
    a->kernels->add(sum, data, many);
    if (a->kernels->count(sum, many, TW__INFINITY_BITS) > 0)
        return tw__fail(TW_ERR_NUMBER, "paths: sums of these states overflow; let other ranks take "
                                       "some of them");
    return TW_OK;
}

/* AdamW's moments are means over gradients: of several ranks' the mean is taken. */
static int average_moments(tw__tensor *t, const tw__state_head *head, const char *data,
                           void *context) {
    const addition *a = context;
    if (head->moments < 2)
        return TW_OK;
    size_t residual = tw__state_vector_bytes(t->n); /* AdamW has feedback, so it is there */
    float *moments = (float *)(a->to->bytes + (data - a->from->bytes) + residual);
    int64_t many = (int64_t)(2 * tw__state_vector_bytes(t->n) / sizeof(float));
    a->kernels->scale(moments, moments, a->share, many);
    return TW_OK;
}

/* What this rank takes over, into the first of its states. */
static int add_up(tw_group *g, const tw__state *states, int nstates) {
    addition a = {.to = states, .from = states, .share = 1.0f / (float)nstates};
    TW_TRY(tw__kernels_choose(&a.kernels));
    for (int i = 1; i < nstates; i++) {
        a.from = &states[i];
        TW_TRY(tw__state_each(g, &states[i], add_tensor, &a));
    }
    a.from = states;
    return nstates > 1 ? tw__state_each(g, states, average_moments, &a) : TW_OK;
}

/* All ranks that bring files must bring files of the same job at the same step. */
static int compare_common(const tw_group *g, void *all, const common **chosen) {
    *chosen = NULL;
    for (int r = 0; r < g->nranks; r++) {
        const common *c = common_at(g, all, r);
        if ((c->some != 0) != (common_at(g, all, 0)->some != 0))
            return tw__fail(TW_ERR_MISMATCH,
                            "missing states: rank %d %s them, rank 0 %s; call tw_group_load or "
                            "tw_group_load_some on all ranks",
                            r, c->some ? "allows" : "refuses", c->some ? "refuses" : "allows");
        if (c->saved == 0)
            continue;
        if (*chosen == NULL)
            *chosen = c;
        if (differs(g, c, *chosen))
            return other_job(r);
    }
    return TW_OK;
}

/* Of a rank that takes none, this is another rank's word alone. */
static int check_common(const tw_group *g, const common *c) {
    int possible = c->saved >= 1 && c->saved <= TW__MAX_RANKS;
    for (int t = 0; t < g->ntensors; t++)
        possible &= tw__state_possible(c->pairs[2 * t], c->pairs[2 * t + 1]);
    if (possible)
        return TW_OK;
    return tw__transport_abort(g->transport,
                               tw__fail(TW_ERR_PROTOCOL, "a rank tells of a state that cannot be"));
}

static void note_missing(tw_missing *missing, int rank) {
    if (missing->count < TW_MISSING)
        missing->ranks[missing->count] = rank;
    missing->count++;
}

/* Each of the saved ranks must be taken once, or, where `missing` is not NULL, never. */
static int count_taken(tw_group *g, const tw__state *states, int nstates, uint32_t *taken,
                       int64_t saved, void *scratch, tw_missing *missing) {
    for (int i = 0; i < nstates; i++)
        taken[states[i].rank]++;
    TW_TRY(tw__sum_counts(g->transport, taken, saved, scratch));
    for (int64_t r = 0; r < saved; r++)
        if (taken[r] == 0 && missing != NULL)
            note_missing(missing, (int)r);
        else if (taken[r] != 1)
            return tw__fail(TW_ERR_MISMATCH,
                            "paths: the state of saved rank %lld is taken by %u ranks; each must "
                            "be taken by exactly one",
                            (long long)r, taken[r]);
    return TW_OK;
}

/* How many ranks saved is known only now: ranks have to agree again on whether all got memory. */
static int check_cover(tw_group *g, const tw__state *states, int nstates, int64_t saved,
                       tw_missing *missing) {
    uint32_t *taken = calloc((size_t)saved, sizeof *taken);
    void *scratch = tw__alloc(tw__sum_counts_memory(g->nranks, saved));
    int error = TW_OK;
    if (taken == NULL || scratch == NULL)
        error = tw__fail(TW_ERR_MEMORY, "no memory to compare states");
    error = tw__agree_error(g, error);
    if (error == TW_OK && taken != NULL) /* it is not: clang-tidy does not know */
        error = count_taken(g, states, nstates, taken, saved, scratch, missing);
    free(taken);
    free(scratch);
    return error;
}

/* ---- load: apply */

static int reset_tensor(tw_group *g, int tensor, int64_t steps, uint32_t threshold) {
    tw__tensor *t = &g->tensors[tensor];
    t->steps = steps;
    t->threshold = threshold;
    t->has_result = 0;
    t->completed = 0; /* a step before what is loaded is not repeated */
    if (g->automatic)
        g->tuners[tensor].count = 0; /* begin anew */
    t->info = (tw_step_info){.step = steps};
    return t->selector != NULL ? tw__selector_reset(t->selector, steps) : TW_OK;
}

/* *learned: what the selector has learned goes on. */
static int set_tensor(tw__tensor *t, const tw__state_head *head, const char *data, void *context) {
    const int *learned = context;
    tw_selector *s = t->selector;
    if (s == NULL)
        return TW_OK;
    if (head->has_residual)
        TW_TRY(s->backend->set(s->state, TW__RESIDUAL, (const void *)data));
    for (uint32_t i = 0; i < head->moments; i++)
        TW_TRY(s->backend->set(s->state, i == 0 ? TW__FIRST : TW__SECOND,
                               (const void *)(data + (i + 1) * tw__state_vector_bytes(t->n))));
    s->moment_steps = head->moment_steps;
    s->last_k = head->last_k;
    const tw__learned saved = {.guess = head->guess,
                               .rank = head->rank,
                               .growth = head->growth,
                               .margin = head->margin,
                               .threshold = head->threshold,
                               .age = head->age};
    return *learned ? s->backend->set_learned(s->state, &saved) : TW_OK;
}

/* The first of this rank's states is by now the sum of all. Errors: TW_ERR_DEVICE. */
static int apply(tw_group *g, const tw__state *states, int nstates, const common *chosen) {
    int learned = nstates == 1 && chosen->saved == g->nranks;
    g->run = (uint32_t)chosen->run;
    g->key = tw__mix(g->key, 1); /* or two that go on from the same state would be taken for one */
    g->is_loaded = 1;
    for (int t = 0; t < g->ntensors; t++)
        TW_TRY(reset_tensor(g, t, chosen->pairs[2 * t], (uint32_t)chosen->pairs[2 * t + 1]));
    return nstates > 0 ? tw__state_each(g, states, set_tensor, &learned) : TW_OK;
}

/* The files of this rank, and memory to compare them with those of others. */
typedef struct loading {
    tw__state *states; /* [npaths] */
    void *all;         /* a `common` of each rank, and one more */
    void *scratch;
} loading;

static int set_up(const tw_group *g, int npaths, loading *l) {
    l->states = calloc(npaths > 0 ? (size_t)npaths : 1, sizeof *l->states);
    l->all = calloc((size_t)g->nranks + 1, common_bytes(g));
    l->scratch = malloc(tw__allgather_memory(g->nranks));
    if (l->states == NULL || l->all == NULL || l->scratch == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to load a state");
    return TW_OK;
}

static void release(loading *l, int npaths) {
    for (int i = 0; i < npaths && l->states != NULL; i++)
        free(l->states[i].bytes);
    free(l->states);
    free(l->all);
    free(l->scratch);
}

/* All that this rank can do alone. */
static int prepare(tw_group *g, const char *const *paths, int npaths, int some, loading *l) {
    if (npaths < 0)
        return tw__fail(TW_ERR_PARAM, "npaths: %d; accepted is 0 or more", npaths);
    if (npaths > 0)
        TW_REQUIRE(paths, "paths");
    TW_TRY(set_up(g, npaths, l));
    common_at(g, l->all, g->rank)->some = some;
    TW_TRY(read_states(g, paths, npaths, l->states));
    TW_TRY(fill_common(g, l->states, npaths, common_at(g, l->all, g->rank),
                       common_at(g, l->all, g->nranks)));
    return add_up(g, l->states, npaths);
}

/* All checks that need the other ranks, then the change. */
static int settle(tw_group *g, int npaths, loading *l, tw_missing *missing) {
    const common *chosen = NULL;
    assert(l->states != NULL && l->all != NULL && npaths >= 0);
    TW_TRY(tw__allgather(g->transport, l->all, common_bytes(g), l->scratch));
    TW_TRY(compare_common(g, l->all, &chosen));
    if (chosen == NULL)
        return tw__fail(TW_ERR_MISMATCH, "npaths: no rank names a state");
    TW_TRY(check_common(g, chosen));
    TW_TRY(check_cover(g, l->states, npaths, chosen->saved, missing));
    if (missing != NULL)
        missing->saved = (int)chosen->saved;
    int error = tw__agree_error(g, apply(g, l->states, npaths, chosen));
    for (int r = 0; r < g->nranks; r++)
        if (g->is_loaded && common_at(g, l->all, r)->moves)
            tw__group_renew_run(g); /* saved now, these are other files than those */
    if (error != TW_OK)             /* it is neither the old state nor the new one */
        tw__group_break(g, error);
    return error;
}

static int load(tw_group *g, const char *const *paths, int npaths, tw_missing *missing) {
    TW_REQUIRE(g, "group");
    TW_TRY(tw__group_check(g, 0));
    TW_TRY(check_quiet(g));
    loading l = {0};
    int error = tw__agree_error(g, prepare(g, paths, npaths, missing != NULL, &l));
    if (error == TW_OK)
        error = settle(g, npaths, &l, missing);
    if (error != TW_OK && tw__transport_has_failed(g->transport))
        tw__group_break(g, error);
    release(&l, npaths);
    return error;
}

int tw_group_load(tw_group *g, const char *const *paths, int npaths) {
    return load(g, paths, npaths, NULL);
}

int tw_group_load_some(tw_group *g, const char *const *paths, int npaths, tw_missing *missing) {
    tw_missing found = {0};
    int error = load(g, paths, npaths, &found);
    if (missing != NULL && error == TW_OK)
        *missing = found;
    return error;
}

int tw_group_load_residuals(tw_group *g, const char *path) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(path, "path");
    TW_TRY(tw__group_check(g, 0));
    TW_TRY(check_quiet(g));
    tw__state state = {0};
    int learned = 0;
    int error = tw__state_read(path, &state);
    if (error == TW_OK)
        error = tw__state_check(g, &state);
    if (error == TW_OK)
        error = tw__state_each(g, &state, set_tensor, &learned);
    free(state.bytes);
    return error;
}
