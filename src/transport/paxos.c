/* paxos.c - the ranks of a transport agree on who goes on
 *
 * Single-decree Paxos (Lamport, 1998) among the ranks of the last membership, for each change once. The
 * value is the set of ranks that stay, the step that all of them must have completed, and how many ranks
 * join them. There is no master: the lowest rank that answers proposes, and the next one if that falls
 * silent.
 *
 * Each rank tells all others its whole state whenever that changes, and every PERIOD: what it has
 * promised, accepted and proposed, whom it cannot reach. So no message needs an answer of its own, none
 * that is lost matters, and a decision is a fact about states: ranks of a quorum have accepted the same
 * ballot. Whoever sees that has decided, and says so to all before it goes on.
 *
 *   rank 0                     rank 1                  rank 2                 rank 3 is dead
 *   "here, step 8"        <->  "here, step 8"     <->  "here, step 8"         connection closed
 *   ballot 1: promise?     ->  promised 1              promised 1
 *   ballot 1: {0,1,2}, 8   ->  accepted 1              accepted 1
 *   sees three of four: decided. All have their results of step 8, and complete it.
 *
 * A quorum is more than half of the last membership, or half of it with its rank 0. Any two quorums
 * share a rank: two majorities do, two halves share rank 0, and a majority and a half are more than all.
 * So there is one decision at most, and of a job that falls apart one part at most goes on.
 *
 * A value is proposed only for ranks that have promised, and so were in this call with their messages
 * cancelled: nothing of an earlier step can be taken for one of a later. Between two of them there must be
 * a connection that both can use; if there is not, the lower rank stays.
 *
 * A rank that comes late, because a sender of the decision died, hears it from any other: states carry
 * the last decision too. A rank that others go on without finds their decision in its connections.
 *
 * A call may fail and be made again, in the same membership: promises and what was accepted stay. */
#include "transport/paxos.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD (TW__SECOND / 20) /* in which each rank repeats its state */
#define SILENCE TW__SECOND       /* after which a rank that had answered counts as gone, at least */
#define GRACE (TW__SECOND / 5)   /* for ranks that did not answer in the step already */
/* For ranks that first wait for a lost one as long as the timeout lets them, and then come. */
#define DELAY (TW__SECOND / 2)
#define TELLING (3 * TW__SECOND / 10) /* to tell the others of the decision */
#define NAMED 16                      /* ranks in a text */
/* Ranks by which a peer's membership may be larger than this rank's. */
#define MORE_RANKS 64

typedef struct peer {
    void *receive, *send;       /* requests, or NULL */
    tw__member_state *in, *out; /* their buffers */
    tw__member_state *state;    /* the last that came of this membership; valid if heard */
    int64_t heard;              /* when; 0: not yet */
    int lost;                   /* nothing can be received from it any more */
    int due;                    /* it has to be told of this rank's state */
    int knows;                  /* it has the decision, and has said so */
    int telling, told;          /* the decision is being sent to it; was sent */
} peer;

typedef struct agreement {
    tw_transport *t;
    int rank, nranks;
    size_t capacity; /* of a message */
    tw__member_state *self;
    uint64_t *scratch; /* a set */
    peer *peers;       /* [nranks] */
    int64_t entered, now, last_told;
    int64_t ballot_since; /* when `promised` became what it is */
    int64_t retry;        /* a ballot of this rank was overtaken: when it may begin another */
    int excluded;
    int decided;
} agreement;

/* ---- who is there */

static int is_quorum(const agreement *a, const uint64_t *set) {
    int count = 0;
    for (int r = 0; r < a->nranks; r++)
        count += tw__set_has(set, r);
    return 2 * count > a->nranks || (2 * count == a->nranks && tw__set_has(set, 0));
}

static int64_t silence(const agreement *a) {
    int64_t reply = tw__transport_reply_time(a->t);
    return reply > SILENCE ? reply : SILENCE;
}

static int is_present(const agreement *a, int rank) {
    const peer *p = &a->peers[rank];
    return rank == a->rank || (!p->lost && p->heard > 0 && a->now - p->heard < silence(a));
}

static int is_suspected(agreement *a, int rank) {
    int yes = tw__set_has(tw__member_set(a->self, TW__SUSPECTED), rank);
    for (int r = 0; r < a->nranks && !yes; r++)
        yes = a->peers[r].heard > 0 &&
              tw__set_has(tw__member_set(a->peers[r].state, TW__SUSPECTED), rank);
    return yes;
}

/* Nobody is waited for any more. */
static int is_settled(agreement *a) {
    for (int r = 0; r < a->nranks; r++) {
        if (r == a->rank || a->peers[r].lost || a->peers[r].heard > 0)
            continue;
        if (a->now < a->entered + (is_suspected(a, r) ? GRACE : a->t->timeout + DELAY))
            return 0;
    }
    return 1;
}

static void tell_all(agreement *a) {
    for (int r = 0; r < a->nranks; r++)
        a->peers[r].due = 1;
    a->last_told = a->now;
}

static void lose(agreement *a, int rank, int error) {
    a->peers[rank].lost = 1;
    a->excluded |= error == TW_ERR_EXCLUDED;
    tw__set_add(tw__member_set(a->self, TW__LOST), rank);
    tell_all(a);
}

/* ---- messages */

static void take_decision(agreement *a, int64_t step, uint64_t joining, const uint64_t *set) {
    if (a->decided)
        return;
    a->decided = 1;
    a->self->decided_version = a->t->version + 1;
    a->self->decided_nranks = (uint64_t)a->nranks;
    a->self->decided_step = step;
    a->self->decided_joining = joining;
    memcpy(tw__member_set(a->self, TW__DECIDED), set, 8 * tw__set_words(a->self->nranks));
    tell_all(a);
}

/* A peer's state has come. One of an earlier membership will hear of its decision from this rank. */
static void take_state(agreement *a, int from) {
    peer *p = &a->peers[from];
    tw__member_state *h = p->in;
    if (h->decided_version == a->t->version + 1 && h->decided_nranks == (uint64_t)a->nranks) {
        p->knows = 1;
        take_decision(a, h->decided_step, h->decided_joining, tw__member_set(h, TW__DECIDED));
    }
    if (h->version > a->t->version && !a->decided)
        a->excluded = 1; /* two changes ahead: the first had this rank, the second has not */
    if (h->version < a->t->version)
        p->due = 1;
    if (h->version != a->t->version || h->nranks != (uint64_t)a->nranks)
        return;
    p->heard = a->now;
    p->in = p->state;
    p->state = h;
}

static void start_receive(agreement *a, int from) {
    peer *p = &a->peers[from];
    int error =
        a->t->calls.recv(a->t->context, from, TW__TAG_MEMBERS, p->in, a->capacity, &p->receive);
    if (error < 0) {
        p->receive = NULL;
        lose(a, from, error);
    }
}

/* Whether something came. */
static int receive_state(agreement *a, int from) {
    peer *p = &a->peers[from];
    size_t bytes = 0;
    if (p->lost)
        return 0;
    if (p->receive == NULL)
        start_receive(a, from);
    int done = p->receive != NULL ? a->t->calls.test(a->t->context, p->receive, &bytes) : 0;
    if (done == 0)
        return 0;
    p->receive = NULL;
    if (done < 0 || !tw__member_state_is_whole(p->in, bytes, a->capacity))
        lose(a, from, done);
    else
        take_state(a, from);
    return 1;
}

static void send_state(agreement *a, int to) {
    peer *p = &a->peers[to];
    size_t bytes = 0;
    int sent = p->send != NULL ? a->t->calls.test(a->t->context, p->send, &bytes) : 0;
    if (sent != 0)
        p->send = NULL;
    p->told |= sent > 0 && p->telling;
    if (p->send != NULL || !p->due || p->lost)
        return;
    p->due = 0;
    p->telling = a->decided;
    bytes = tw__member_state_bytes(a->self);
    memcpy(p->out, a->self, bytes);
    if (a->t->calls.send(a->t->context, to, TW__TAG_MEMBERS, p->out, bytes, &p->send) < 0)
        p->send = NULL; /* what it sent before may still be there to be received */
}

/* If this rank was stopped, maybe with all others, it cannot tell how long they have been silent. */
static void note_time(agreement *a) {
    int64_t before = a->now;
    a->now = tw__clock();
    if (a->now - before < silence(a) / 2)
        return;
    a->entered += a->now - before;
    for (int r = 0; r < a->nranks; r++)
        if (a->peers[r].heard > 0)
            a->peers[r].heard = a->now;
}

static void move_messages(agreement *a) {
    int came = 0;
    note_time(a);
    if (a->now - a->last_told >= PERIOD)
        tell_all(a);
    for (int r = 0; r < a->nranks; r++)
        if (r != a->rank)
            while (receive_state(a, r))
                came = 1;
    for (int r = 0; r < a->nranks; r++)
        if (r != a->rank)
            send_state(a, r);
    if (!came)
        tw__transport_idle(a->t, PERIOD / 10);
}

/* ---- Paxos: acceptor and learner */

static void promise(agreement *a, uint64_t ballot) {
    a->self->promised = ballot;
    a->ballot_since = a->now;
    tell_all(a);
}

static void accept_value(agreement *a, const tw__member_state *proposal, const uint64_t *set) {
    uint64_t ballot = proposal->ballot;
    if (a->self->promised != ballot)
        promise(a, ballot);
    a->self->accepted = ballot;
    a->self->accepted_step = proposal->proposed_step;
    a->self->accepted_joining = proposal->proposed_joining;
    memmove(tw__member_set(a->self, TW__ACCEPTED), set, 8 * tw__set_words(a->self->nranks));
    tell_all(a);
}

static void answer_proposals(agreement *a) {
    for (int r = 0; r < a->nranks; r++) {
        tw__member_state *h = a->peers[r].state;
        if (a->peers[r].heard == 0 || h->ballot < a->self->promised || h->ballot == 0)
            continue;
        if (h->accepting && a->self->accepted != h->ballot)
            accept_value(a, h, tw__member_set(h, TW__PROPOSED));
        else if (h->ballot > a->self->promised)
            promise(a, h->ballot);
    }
}

/* The state of any rank that has been heard, this one's included; or NULL. */
static tw__member_state *state_of(const agreement *a, int rank) {
    assert(rank >= 0 && rank < a->nranks);
    return rank == a->rank ? a->self : a->peers[rank].heard > 0 ? a->peers[rank].state : NULL;
}

static void look_for_decision(agreement *a) {
    uint64_t *set = a->scratch;
    tw__member_state *last = NULL;
    for (int r = 0; r < a->nranks; r++) {
        tw__member_state *h = state_of(a, r);
        if (h != NULL && h->accepted > 0 && (last == NULL || h->accepted > last->accepted))
            last = h;
    }
    memset(set, 0, 8 * tw__set_words((uint64_t)a->nranks));
    for (int r = 0; r < a->nranks && last != NULL; r++)
        if (state_of(a, r) != NULL && state_of(a, r)->accepted == last->accepted)
            tw__set_add(set, r);
    if (last != NULL && is_quorum(a, set))
        take_decision(a, last->accepted_step, last->accepted_joining,
                      tw__member_set(last, TW__ACCEPTED));
}

/* ---- Paxos: proposer */

/* The lowest present rank proposes, unless another present rank does and gets on. */
static int is_my_turn(const agreement *a) {
    for (int r = 0; r < a->rank; r++)
        if (is_present(a, r))
            return 0;
    int proposer = (int)(a->self->promised & 0xffff);
    int free = a->self->promised == 0 || proposer == a->rank || proposer >= a->nranks ||
               !is_present(a, proposer) || a->now - a->ballot_since > silence(a);
    return free && a->now >= a->retry;
}

static void begin_ballot(agreement *a) {
    uint64_t round = a->self->promised >> 16;
    for (int r = 0; r < a->nranks; r++)
        if (a->peers[r].heard > 0 && a->peers[r].state->promised >> 16 > round)
            round = a->peers[r].state->promised >> 16;
    a->self->ballot = (round + 1) << 16 | (uint64_t)a->rank;
    a->self->accepting = 0;
    promise(a, a->self->ballot);
}

/* Ranks that both can reach each other, as far as both have said. */
static int are_connected(const agreement *a, int one, int other) {
    return !tw__set_has(tw__member_set(state_of(a, one), TW__LOST), other) &&
           !tw__set_has(tw__member_set(state_of(a, other), TW__LOST), one);
}

/* A quorum stays, or would if nobody left by its own will. */
static int is_viable(agreement *a) {
    uint64_t *set = a->scratch;
    memcpy(set, tw__member_set(a->self, TW__PROPOSED), 8 * tw__set_words(a->self->nranks));
    for (int r = 0; r < a->nranks; r++)
        if (state_of(a, r) != NULL && state_of(a, r)->leaving)
            tw__set_add(set, r);
    return is_quorum(a, set);
}

/* From all who promised: what was accepted with the highest ballot, which may be decided already, or
 * else who is there. Returns 0 if these are too few. */
static int choose_value(agreement *a, const uint64_t *promised) {
    uint64_t *set = tw__member_set(a->self, TW__PROPOSED);
    tw__member_state *last = NULL;
    memset(set, 0, 8 * tw__set_words(a->self->nranks));
    a->self->proposed_step = INT64_MAX;
    for (int r = 0; r < a->nranks; r++) {
        tw__member_state *h = tw__set_has(promised, r) ? state_of(a, r) : NULL;
        if (h == NULL)
            continue;
        if (h->accepted > 0 && (last == NULL || h->accepted > last->accepted))
            last = h;
        int fits = !h->leaving;
        for (int before = 0; before < r; before++)
            fits &= !tw__set_has(set, before) || are_connected(a, before, r);
        if (fits)
            tw__set_add(set, r);
    }
    a->self->proposed_joining = UINT64_MAX;
    for (int r = 0; r < a->nranks; r++) {
        const tw__member_state *h = tw__set_has(set, r) ? state_of(a, r) : NULL;
        if (h != NULL && h->step < a->self->proposed_step)
            a->self->proposed_step = h->step;
        if (h != NULL && h->joining < a->self->proposed_joining)
            a->self->proposed_joining = h->joining;
    }
    if (last != NULL) {
        memcpy(set, tw__member_set(last, TW__ACCEPTED), 8 * tw__set_words(a->self->nranks));
        a->self->proposed_step = last->accepted_step;
        a->self->proposed_joining = last->accepted_joining;
    }
    return last != NULL || is_viable(a);
}

/* Once all who are there have promised. */
static void go_on_with_ballot(agreement *a) {
    uint64_t *promised = a->scratch;
    int waiting = 0, overtaken = a->self->promised > a->self->ballot;
    memset(promised, 0, 8 * tw__set_words(a->self->nranks));
    for (int r = 0; r < a->nranks; r++) {
        const tw__member_state *h = state_of(a, r);
        if (h == NULL || !is_present(a, r))
            continue;
        overtaken |= h->promised > a->self->ballot;
        waiting += h->promised < a->self->ballot;
        if (h->promised == a->self->ballot)
            tw__set_add(promised, r);
    }
    if (overtaken) {
        a->self->ballot = 0;
        a->retry = a->now + PERIOD * (1 + a->rank % 8);
    } else if (!a->self->accepting && !waiting && is_quorum(a, promised) &&
               choose_value(a, promised)) {
        a->self->accepting = 1;
        accept_value(a, a->self, tw__member_set(a->self, TW__PROPOSED));
    }
}

/* ---- the end */

/* "1, 3, 5 and 2 more" */
static void name_absent(const agreement *a, char *text, size_t size) {
    int named = 0, more = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0; r < a->nranks; r++) {
        if (is_present(a, r))
            continue;
        if (named == NAMED)
            more++;
        else
            used += (size_t)snprintf(text + used, size - used, named++ == 0 ? "%d" : ", %d", r);
    }
    if (more > 0)
        snprintf(text + used, size - used, " and %d more", more);
}

static int fail_quorum(const agreement *a) {
    char names[NAMED * 8 + 32];
    int here = 0;
    for (int r = 0; r < a->nranks; r++)
        here += is_present(a, r);
    name_absent(a, names, sizeof names);
    return tw__fail(TW_ERR_QUORUM,
                    "%d of %d ranks are here, missing is rank %s; more than half of the last "
                    "membership go on, or half of it with its rank 0",
                    here, a->nranks, names);
}

static int is_hopeless(agreement *a) {
    uint64_t *set = a->scratch;
    memset(set, 0, 8 * tw__set_words(a->self->nranks));
    for (int r = 0; r < a->nranks; r++)
        if (is_present(a, r))
            tw__set_add(set, r);
    return is_settled(a) && !is_quorum(a, set);
}

int tw__fail_excluded(void) {
    return tw__fail(TW_ERR_EXCLUDED,
                    "the other ranks go on without this one: it did not answer in time, or could "
                    "not reach all of them; join them anew, or end");
}

static int agree(agreement *a) {
    int64_t end = a->entered + 2 * a->t->timeout + 10 * silence(a);
    while (!a->decided) {
        move_messages(a);
        answer_proposals(a);
        look_for_decision(a);
        if (a->decided)
            break;
        if (a->excluded)
            return tw__fail_excluded();
        if (is_hopeless(a))
            return fail_quorum(a);
        if (a->now > end)
            return tw__fail(TW_ERR_TIMEOUT, "the ranks that are here do not agree on who goes on");
        if (a->self->ballot > 0)
            go_on_with_ballot(a);
        else if (is_my_turn(a) && is_settled(a))
            begin_ballot(a);
    }
    return TW_OK;
}

/* Whether a peer is still to be told. Members must have said that they know: if others join, all close
 * the old connections next, and what was not read may be lost with them. */
static int is_uninformed(agreement *a, int rank) {
    const peer *p = &a->peers[rank];
    if (rank == a->rank || p->lost)
        return 0;
    if (tw__set_has(tw__member_set(a->self, TW__DECIDED), rank))
        return !p->knows || !p->told;
    return !p->knows && (p->due || p->send != NULL);
}

/* Whoever does not know the decision hears of it before this rank goes on. */
static void tell_decision(agreement *a) {
    int64_t end = tw__clock() + TELLING;
    int left = 1;
    assert(a->decided);
    for (int r = 0; r < a->nranks; r++)
        a->peers[r].due = 1;
    while (left > 0 && tw__clock() < end) {
        left = 0;
        a->last_told = tw__clock();
        move_messages(a);
        for (int r = 0; r < a->nranks; r++)
            left += is_uninformed(a, r);
    }
}

static void cancel(agreement *a) {
    for (int r = 0; r < a->nranks; r++) {
        void *const requests[] = {a->peers[r].receive, a->peers[r].send};
        for (int i = 0; i < 2; i++)
            if (requests[i] != NULL)
                a->t->calls.cancel(a->t->context, requests[i]);
    }
}

/* ---- memory */

size_t tw__member_state_capacity(uint64_t nranks) {
    return sizeof(tw__member_state) + 8 * TW__SETS * tw__set_words(nranks + MORE_RANKS);
}

int tw__member_state_is_whole(const tw__member_state *s, size_t bytes, size_t capacity) {
    return bytes >= sizeof *s && s->nranks >= 1 && s->nranks <= TW__MAX_RANKS &&
           s->decided_nranks <= TW__MAX_RANKS && bytes == tw__member_state_bytes(s) &&
           bytes <= capacity;
}

/* Peers, a set, and three states of each peer. */
size_t tw__paxos_memory(int nranks, size_t capacity) {
    size_t ranks = (size_t)nranks;
    return ranks * sizeof(peer) + (3 * ranks + 1) * capacity;
}

static void set_up(agreement *a, void *memory) {
    size_t ranks = (size_t)a->nranks;
    a->peers = memory;
    char *buffers = (char *)(a->peers + ranks);
    a->scratch = (uint64_t *)(void *)buffers;
    assert(a->capacity % sizeof(uint64_t) == 0);
    for (size_t r = 0; r < ranks; r++) {
        peer *p = &a->peers[r];
        tw__member_state **const parts[] = {&p->in, &p->out, &p->state};
        for (int i = 0; i < 3; i++)
            *parts[i] = (tw__member_state *)(void *)(buffers += a->capacity);
    }
}

int tw__paxos_run(tw_transport *t, tw__member_state *self, size_t capacity, void *memory, int heir,
                  int *inherited) {
    agreement a = {.t = t,
                   .rank = t->rank,
                   .nranks = t->nranks,
                   .capacity = capacity,
                   .self = self,
                   .entered = tw__clock(),
                   .decided = self->decided_version == (uint64_t)t->version + 1};
    assert(self->version == t->version && self->nranks == (uint64_t)t->nranks);
    assert(self->promised >= self->accepted);
    set_up(&a, memory);
    a.now = a.ballot_since = a.entered;
    tell_all(&a);
    int error = agree(&a);
    if (error == TW_OK)
        tell_decision(&a);
    const tw__member_state *of_heir = error == TW_OK ? state_of(&a, heir) : NULL;
    *inherited = of_heir != NULL && of_heir->inherits;
    cancel(&a);
    return error;
}
