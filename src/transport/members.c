/* members.c - a transport changes to the ranks that go on
 *
 * The ranks of the last membership agree on the next one (paxos.c). Then each of them closes its
 * connections to those that are not in it, and renumbers the others. If ranks join, all have met before
 * (join.c), and the connections of that meeting take the place of the old ones. A rank that joins waits
 * for the decision. */
#include "transport/paxos.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD (TW__SECOND / 20)
#define WELCOME (3 * TW__SECOND / 10) /* to tell those that join of the decision */

/* What is kept between changes. */
struct tw__members {
    int begun;                 /* messages of the present membership count no more */
    tw__member_state *self;    /* what this rank has promised and accepted since; NULL: nothing */
    size_t capacity;           /* of self */
    tw__member_state *decided; /* the last decision; NULL: none */
    void *paxos;               /* memory for the next agreement, and */
    int *ranks;                /* [nranks, and those that may join] for what it leads to; or NULL */
};

/* ---- the state of this rank */

static tw__member_state *create_self(const tw_transport *t, size_t *capacity) {
    tw__member_state *decided = t->members->decided;
    uint64_t most = (uint64_t)t->nranks;
    if (decided != NULL && decided->decided_nranks > most)
        most = decided->decided_nranks;
    *capacity = tw__member_state_capacity(most);
    tw__member_state *s = calloc(1, *capacity);
    if (s == NULL)
        return NULL;
    *s = (tw__member_state){.version = t->version, .nranks = (uint64_t)t->nranks};
    if (decided != NULL) {
        s->decided_version = decided->decided_version;
        s->decided_nranks = decided->decided_nranks;
        s->decided_step = decided->decided_step;
        s->decided_joining = decided->decided_joining;
        memcpy(tw__member_set(s, TW__DECIDED), tw__member_set(decided, TW__DECIDED),
               8 * tw__set_words(decided->decided_nranks));
    }
    return s;
}

int tw__transport_reserve_change(tw_transport *t) {
    assert(t->member_calls != NULL);
    if (t->members == NULL)
        t->members = calloc(1, sizeof *t->members);
    tw__members *m = t->members;
    if (m != NULL && m->self == NULL)
        m->self = create_self(t, &m->capacity);
    if (m != NULL && m->self != NULL && m->paxos == NULL)
        m->paxos = calloc(1, tw__paxos_memory(t->nranks, m->capacity));
    if (m != NULL && m->ranks == NULL)
        m->ranks = malloc((size_t)(t->nranks + TW__MOST_NEW) * sizeof *m->ranks);
    return m != NULL && m->paxos != NULL && m->ranks != NULL
               ? TW_OK
               : tw__fail(TW_ERR_MEMORY, "no memory for the members of %d ranks", t->nranks);
}

/* For the first call of a change, or for another after it has failed: what was promised and accepted
 * stays, or two parts of the job could decide on different things. */
static void prepare_self(tw_transport *t, const tw__intent *intent) {
    tw__member_state *s = t->members->self;
    s->step = intent->step;
    s->leaving = intent->leaving != 0;
    s->inherits = intent->inherits != 0;
    s->joining = (uint64_t)intent->joining;
    s->ballot = s->accepting = 0;
    memset(tw__member_set(s, TW__LOST), 0, 8 * tw__set_words(s->nranks));
    memset(tw__member_set(s, TW__SUSPECTED), 0, 8 * tw__set_words(s->nranks));
    for (int r = 0; r < t->nranks && t->liveness.started; r++)
        if (t->liveness.peers[r].missing)
            tw__set_add(tw__member_set(s, TW__SUSPECTED), r);
}

/* ---- the change */

/* Newcomers are only known to ranks that have met them in this call. */
static int list_members(const tw_transport *t, tw__member_state *s, tw__membership *m) {
    const uint64_t *set = tw__member_set(s, TW__DECIDED);
    uint64_t met = t->new_context != NULL ? (uint64_t)(t->new_count - t->nranks) : 0;
    if (!s->leaving &&
        (!tw__set_has(set, t->rank) || (s->decided_joining > 0 && s->decided_joining != met)))
        return tw__fail_excluded();
    m->step = s->decided_step;
    m->joined = s->leaving ? 0 : (int)s->decided_joining;
    m->nbefore = t->nranks;
    m->before = t->rank;
    m->ranks = t->members->ranks;
    t->members->ranks = NULL;
    for (int r = 0; r < t->nranks; r++)
        if (tw__set_has(set, r))
            m->ranks[m->nranks++] = r;
    return TW_OK;
}

/* The connections of the meeting with newcomers take the place of the old ones. */
static void renew_connections(tw_transport *t, const tw__membership *m) {
    t->member_calls->keep(t->context, &m->before, 1); /* closes at once */
    t->calls.close(t->context);
    t->context = t->new_context;
    t->new_context = NULL;
    free(t->liveness.peers);
    t->liveness.peers = t->new_peers;
    t->new_peers = NULL;
}

/* Newcomers stand behind the ranks that stay: m->ranks gets them too, by their numbers in the meeting. */
static void install(tw_transport *t, tw__membership *m) {
    tw__liveness_stop(t);
    if (m->joined > 0) {
        renew_connections(t, m);
        for (int i = 0; i < m->joined; i++)
            m->ranks[m->nranks++] = m->nbefore + i;
    }
    t->member_calls->keep(t->context, m->ranks, m->nranks);
    for (int r = 0; r < m->nranks; r++)
        if (m->ranks[r] == m->before)
            t->rank = r;
    t->nranks = m->nranks;
    t->version++;
    t->failed = 0;
    t->members->begun = 0;
    free(t->members->decided); /* late ranks are told of this decision in the next change */
    t->members->decided = t->members->self;
    t->members->self = NULL;
}

/* Newcomers wait for the decision. */
static void welcome(tw_transport *t, int joined) {
    const tw__member_state *decided = t->members->decided;
    void *requests[TW__MOST_NEW] = {NULL};
    int64_t end = tw__clock() + WELCOME;
    int left = joined;
    size_t bytes = tw__member_state_bytes(decided);
    assert(joined >= 0 && joined <= TW__MOST_NEW);
    for (int i = 0; i < joined; i++)
        if (t->calls.send(t->context, t->nranks - joined + i, TW__TAG_MEMBERS, decided, bytes,
                          &requests[i]) < 0)
            requests[i] = NULL;
    while (left > 0 && tw__clock() < end) {
        left = 0;
        for (int i = 0; i < joined; i++) {
            if (requests[i] != NULL && t->calls.test(t->context, requests[i], &bytes) != 0)
                requests[i] = NULL;
            left += requests[i] != NULL;
        }
        if (left > 0)
            tw__transport_idle(t, PERIOD / 10);
    }
    for (int i = 0; i < joined; i++)
        if (requests[i] != NULL)
            t->calls.cancel(t->context, requests[i]);
    t->failed = 0;
}

static void begin_change(tw_transport *t) {
    assert(t->alltoalls == NULL);
    if (!t->members->begun) {
        tw__liveness_suspend(t);
        t->member_calls->begin(t->context);
    }
    t->members->begun = 1;
}

/* All memory is there: what the ranks decide, each of them can do. */
static int agree(tw_transport *t, const tw__intent *intent, tw__membership *m) {
    tw__members *members = t->members;
    begin_change(t);
    prepare_self(t, intent);
    TW_TRY(tw__paxos_run(t, members->self, members->capacity, members->paxos, intent->heir,
                         &m->inherited));
    TW_TRY(list_members(t, members->self, m));
    if (!intent->leaving) {
        install(t, m);
        welcome(t, m->joined);
    }
    return TW_OK;
}

static void free_reserve(tw__members *m) {
    free(m->paxos);
    free(m->ranks);
    m->paxos = NULL;
    m->ranks = NULL;
}

int tw__transport_agree_members(tw_transport *t, const tw__intent *intent, tw__membership *m) {
    *m = (tw__membership){0};
    assert(intent->heir >= 0 && intent->heir < t->nranks && intent->joining >= 0);
    int error = tw__transport_reserve_change(t);
    if (error == TW_OK)
        error = agree(t, intent, m);
    tw__transport_drop_newcomers(t);
    if (t->members != NULL)
        free_reserve(t->members); /* of another size if there are other ranks now */
    return error;
}

/* ---- a rank that joins */

typedef struct waiting {
    void **requests; /* [nranks] */
    char *buffers;   /* [nranks][capacity] */
    size_t capacity;
} waiting;

/* The decision of the ranks before this one; NULL: it has not come. *lost: ranks that are gone. */
static tw__member_state *look_for_welcome(tw_transport *t, waiting *w, uint32_t version,
                                          int *lost) {
    *lost = 0;
    for (int r = 0; r < t->rank; r++) {
        tw__member_state *h = (tw__member_state *)(void *)(w->buffers + (size_t)r * w->capacity);
        size_t bytes = 0;
        if (w->requests[r] == NULL &&
            t->calls.recv(t->context, r, TW__TAG_MEMBERS, h, w->capacity, &w->requests[r]) < 0)
            w->requests[r] = NULL;
        int done = w->requests[r] == NULL ? -1 : t->calls.test(t->context, w->requests[r], &bytes);
        *lost += done < 0;
        if (done == 0)
            continue;
        w->requests[r] = NULL;
        if (done > 0 && tw__member_state_is_whole(h, bytes, w->capacity) &&
            h->decided_version == (uint64_t)version + 1 && h->decided_nranks <= (uint64_t)t->rank &&
            h->decided_nranks + h->decided_joining == (uint64_t)t->nranks)
            return h;
    }
    return NULL;
}

static int join_members(tw_transport *t, tw__member_state *h, uint32_t version) {
    int nbefore = (int)h->decided_nranks, *ranks = malloc((size_t)t->nranks * sizeof *ranks);
    int count = 0, rank = 0;
    if (ranks == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", t->nranks);
    for (int r = 0; r < t->nranks; r++)
        if (r >= nbefore || tw__set_has(tw__member_set(h, TW__DECIDED), r)) {
            rank = r == t->rank ? count : rank;
            ranks[count++] = r;
        }
    t->member_calls->keep(t->context, ranks, count);
    t->rank = rank;
    t->nranks = count;
    t->version = version + 1;
    t->joined = 1;
    free(ranks);
    return TW_OK;
}

int tw__transport_await_members(tw_transport *t, uint32_t version, double seconds) {
    size_t ranks = (size_t)t->nranks;
    int64_t end = tw__clock() + (int64_t)(seconds * (double)TW__SECOND);
    waiting w = {.capacity = tw__member_state_capacity(ranks)};
    int lost = 0, status = TW_OK;
    tw__member_state *h = NULL;
    w.requests = calloc(ranks, sizeof *w.requests);
    w.buffers = calloc(ranks, w.capacity);
    if (w.requests == NULL || w.buffers == NULL) {
        free(w.requests);
        free(w.buffers);
        return tw__fail(TW_ERR_MEMORY, "no memory to wait for %d ranks", t->nranks);
    }
    while (status == TW_OK && (h = look_for_welcome(t, &w, version, &lost)) == NULL)
        if (lost == t->rank || tw__clock() > end)
            status = tw__fail(TW_ERR_TIMEOUT, "join: the job's ranks go on without this one");
        else
            tw__transport_idle(t, PERIOD / 10);
    for (int r = 0; r < t->rank; r++)
        if (w.requests[r] != NULL)
            t->calls.cancel(t->context, w.requests[r]);
    if (h != NULL)
        status = join_members(t, h, version);
    free(w.requests);
    free(w.buffers);
    return status;
}

int tw__transport_check_elastic(const tw_transport *t) {
    if (t->member_calls != NULL && tw__transport_lent(t) == NULL)
        return TW_OK;
    if (t->member_calls != NULL)
        return tw__fail(
            TW_ERR_TRANSPORT,
            "membership: the functions of tw_transport_set_device, for instance "
            "NCCL's, know ranks by numbers, which change in an elastic group. Set none");
    return tw__fail(
        TW_ERR_TRANSPORT,
        "membership: %s transport: its ranks cannot change. Those of threads, sockets "
        "and tcp can. MPI, also one with MPIX_Comm_shrink, cannot take back the messages "
        "of a step that has failed",
        t->name);
}

void tw__members_free(tw_transport *t) {
    if (t->members != NULL) {
        free_reserve(t->members);
        free(t->members->self);
        free(t->members->decided);
    }
    free(t->members);
}
