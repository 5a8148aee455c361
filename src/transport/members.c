/* members.c - the ranks of a transport agree on who goes on
 *
 * Single-decree Paxos (Lamport, 1998) among the ranks of the last membership, for each change once. The
 * value is the set of ranks that stay, the step that all of them must have completed, and how many ranks
 * join them. There is no
 * master: the lowest rank that answers proposes, and the next one if that falls silent.
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
 * the last decision too. A rank that others go on without finds their decision in its connections. */
#include "base/memory.h"
#include "transport/transport_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD (TW__SECOND / 20) /* in which each rank repeats its state */
#define SILENCE TW__SECOND       /* after which a rank that had answered counts as gone, at least */
#define GRACE (TW__SECOND / 5)   /* for ranks that did not answer in the step already */
#define TELL (3 * TW__SECOND / 10) /* the others of the decision */
#define NAMED 16                   /* ranks in a text */
/* Ranks by which a peer's membership may be larger than this rank's. */
#define MORE_RANKS 64

/* ---- the state of a rank, as it is sent: a head, then sets of ranks, in words of 64 */

typedef struct head {
    uint64_t version, nranks; /* of the membership that ends */
    int64_t step;             /* that the rank has completed, or can complete */
    uint64_t leaving;         /* 1: it is to go */
    uint64_t inherits;        /* 1: it has what those that leave hand over */
    uint64_t joining;         /* ranks that it is connected to, and that may join */
    uint64_t promised;        /* ballot; 0: none */
    uint64_t accepted;        /* ballot; 0: none */
    int64_t accepted_step;
    uint64_t accepted_joining;
    uint64_t ballot;    /* that it proposes; 0: none */
    uint64_t accepting; /* 1: its value may be accepted; 0: it may be promised */
    int64_t proposed_step;
    uint64_t proposed_joining;
    uint64_t decided_version; /* 1 + the version that this decision has ended; 0: none is known */
    uint64_t decided_nranks;
    int64_t decided_step;
    uint64_t decided_joining;
} head;

/* Sets of the membership that ends; DECIDED is a set of its own membership, and comes last. */
enum { LOST, SUSPECTED, ACCEPTED, PROPOSED, DECIDED, SETS };

static size_t words_of(uint64_t nranks) {
    return (size_t)(nranks + 63) / 64;
}

static size_t bytes_of(const head *h) {
    return sizeof *h + 8 * (DECIDED * words_of(h->nranks) + words_of(h->decided_nranks));
}

static uint64_t *set_of(head *h, int which) {
    return (uint64_t *)(h + 1) + (size_t)which * words_of(h->nranks);
}

static int has(const uint64_t *set, int rank) {
    return (int)(set[rank / 64] >> (rank % 64) & 1);
}

static void add(uint64_t *set, int rank) {
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}

typedef struct peer {
    void *receive, *send; /* requests, or NULL */
    head *in, *out;       /* their buffers */
    head *state;          /* the last that came of this membership; valid if heard */
    int64_t heard;        /* when; 0: not yet */
    int lost;             /* nothing can be received from it any more */
    int due;              /* it has to be told of this rank's state */
    int knows;            /* it has the decision */
} peer;

/* What is kept between changes. */
struct tw__members {
    int begun;     /* messages of the present membership count no more */
    head *decided; /* the last decision: a head with the set DECIDED alone; NULL: none */
};

typedef struct agreement {
    tw_transport *t;
    int rank, nranks;
    size_t capacity; /* of a message */
    head *self;
    uint64_t *scratch; /* a set */
    peer *peers;       /* [nranks] */
    int64_t entered, now, last_told;
    int64_t wait_until;   /* for ranks that have not answered yet */
    int64_t ballot_since; /* when `promised` became what it is */
    int64_t retry;        /* a ballot of this rank was overtaken: when it may begin another */
    int excluded;
    int decided;
} agreement;

/* ---- who is there */

static int is_quorum(const agreement *a, const uint64_t *set) {
    int count = 0;
    for (int r = 0; r < a->nranks; r++)
        count += has(set, r);
    return 2 * count > a->nranks || (2 * count == a->nranks && has(set, 0));
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
    int yes = has(set_of(a->self, SUSPECTED), rank);
    for (int r = 0; r < a->nranks && !yes; r++)
        yes = a->peers[r].heard > 0 && has(set_of(a->peers[r].state, SUSPECTED), rank);
    return yes;
}

/* Nobody is waited for any more. */
static int is_settled(agreement *a) {
    for (int r = 0; r < a->nranks; r++) {
        if (r == a->rank || a->peers[r].lost || a->peers[r].heard > 0)
            continue;
        if (a->now < (is_suspected(a, r) ? a->entered + GRACE : a->wait_until))
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
    add(set_of(a->self, LOST), rank);
    tell_all(a);
}

/* ---- messages */

static int is_whole(const agreement *a, const head *h, size_t bytes) {
    return bytes >= sizeof *h && h->nranks >= 1 && h->nranks <= TW__MAX_RANKS &&
           h->decided_nranks <= TW__MAX_RANKS && bytes == bytes_of(h) && bytes <= a->capacity;
}

static void take_decision(agreement *a, int64_t step, uint64_t joining, const uint64_t *set) {
    if (a->decided)
        return;
    a->decided = 1;
    a->self->decided_version = a->t->version + 1;
    a->self->decided_nranks = (uint64_t)a->nranks;
    a->self->decided_step = step;
    a->self->decided_joining = joining;
    memcpy(set_of(a->self, DECIDED), set, 8 * words_of(a->self->nranks));
    tell_all(a);
}

/* A peer's state has come. One of an earlier membership will hear of its decision from this rank. */
static void take_state(agreement *a, int from) {
    peer *p = &a->peers[from];
    head *h = p->in;
    if (h->decided_version == a->t->version + 1 && h->decided_nranks == (uint64_t)a->nranks) {
        p->knows = 1;
        take_decision(a, h->decided_step, h->decided_joining, set_of(h, DECIDED));
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
    if (done < 0 || !is_whole(a, p->in, bytes))
        lose(a, from, done);
    else
        take_state(a, from);
    return 1;
}

static void send_state(agreement *a, int to) {
    peer *p = &a->peers[to];
    size_t bytes = 0;
    if (p->send != NULL && a->t->calls.test(a->t->context, p->send, &bytes) != 0)
        p->send = NULL;
    if (p->send != NULL || !p->due || p->lost)
        return;
    p->due = 0;
    bytes = bytes_of(a->self);
    memcpy(p->out, a->self, bytes);
    if (a->t->calls.send(a->t->context, to, TW__TAG_MEMBERS, p->out, bytes, &p->send) < 0)
        p->send = NULL; /* what it sent before may still be there to be received */
}

static void move_messages(agreement *a) {
    int came = 0;
    a->now = tw__clock();
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

static void accept_value(agreement *a, const head *proposal, const uint64_t *set) {
    uint64_t ballot = proposal->ballot;
    if (a->self->promised != ballot)
        promise(a, ballot);
    a->self->accepted = ballot;
    a->self->accepted_step = proposal->proposed_step;
    a->self->accepted_joining = proposal->proposed_joining;
    memmove(set_of(a->self, ACCEPTED), set, 8 * words_of(a->self->nranks));
    tell_all(a);
}

static void answer_proposals(agreement *a) {
    for (int r = 0; r < a->nranks; r++) {
        head *h = a->peers[r].state;
        if (a->peers[r].heard == 0 || h->ballot < a->self->promised || h->ballot == 0)
            continue;
        if (h->accepting && a->self->accepted != h->ballot)
            accept_value(a, h, set_of(h, PROPOSED));
        else if (h->ballot > a->self->promised)
            promise(a, h->ballot);
    }
}

/* The state of any rank that has been heard, this one's included; or NULL. */
static head *state_of(const agreement *a, int rank) {
    return rank == a->rank ? a->self : a->peers[rank].heard > 0 ? a->peers[rank].state : NULL;
}

static void look_for_decision(agreement *a) {
    uint64_t *set = a->scratch;
    head *last = NULL;
    for (int r = 0; r < a->nranks; r++) {
        head *h = state_of(a, r);
        if (h != NULL && h->accepted > 0 && (last == NULL || h->accepted > last->accepted))
            last = h;
    }
    memset(set, 0, 8 * words_of(a->self->nranks));
    for (int r = 0; r < a->nranks && last != NULL; r++)
        if (state_of(a, r) != NULL && state_of(a, r)->accepted == last->accepted)
            add(set, r);
    if (last != NULL && is_quorum(a, set))
        take_decision(a, last->accepted_step, last->accepted_joining, set_of(last, ACCEPTED));
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
    return !has(set_of(state_of(a, one), LOST), other) &&
           !has(set_of(state_of(a, other), LOST), one);
}

/* From all who promised: what was accepted with the highest ballot, or else who is there. */
static void choose_value(agreement *a, const uint64_t *promised) {
    uint64_t *set = set_of(a->self, PROPOSED);
    head *last = NULL;
    memset(set, 0, 8 * words_of(a->self->nranks));
    a->self->proposed_step = INT64_MAX;
    for (int r = 0; r < a->nranks; r++) {
        head *h = has(promised, r) ? state_of(a, r) : NULL;
        if (h == NULL)
            continue;
        if (h->accepted > 0 && (last == NULL || h->accepted > last->accepted))
            last = h;
        int fits = !h->leaving;
        for (int before = 0; before < r; before++)
            fits &= !has(set, before) || are_connected(a, before, r);
        if (fits)
            add(set, r);
    }
    a->self->proposed_joining = UINT64_MAX;
    for (int r = 0; r < a->nranks; r++) {
        const head *h = has(set, r) ? state_of(a, r) : NULL;
        if (h != NULL && h->step < a->self->proposed_step)
            a->self->proposed_step = h->step;
        if (h != NULL && h->joining < a->self->proposed_joining)
            a->self->proposed_joining = h->joining;
    }
    if (last != NULL) {
        memcpy(set, set_of(last, ACCEPTED), 8 * words_of(a->self->nranks));
        a->self->proposed_step = last->accepted_step;
        a->self->proposed_joining = last->accepted_joining;
    }
}

/* A quorum stays, or would if nobody left by its own will. */
static int is_viable(agreement *a) {
    uint64_t *set = a->scratch;
    memcpy(set, set_of(a->self, PROPOSED), 8 * words_of(a->self->nranks));
    for (int r = 0; r < a->nranks; r++)
        if (state_of(a, r) != NULL && state_of(a, r)->leaving)
            add(set, r);
    return is_quorum(a, set);
}

/* Once all who are there have promised. */
static void go_on_with_ballot(agreement *a) {
    uint64_t *promised = a->scratch;
    int waiting = 0, overtaken = a->self->promised > a->self->ballot;
    memset(promised, 0, 8 * words_of(a->self->nranks));
    for (int r = 0; r < a->nranks; r++) {
        const head *h = state_of(a, r);
        if (h == NULL || !is_present(a, r))
            continue;
        overtaken |= h->promised > a->self->ballot;
        waiting += h->promised < a->self->ballot;
        if (h->promised == a->self->ballot)
            add(promised, r);
    }
    if (overtaken) {
        a->self->ballot = 0;
        a->retry = a->now + PERIOD * (1 + a->rank % 8);
    } else if (!a->self->accepting && !waiting && is_quorum(a, promised)) {
        choose_value(a, promised);
        if (!is_viable(a))
            return;
        a->self->accepting = 1;
        accept_value(a, a->self, set_of(a->self, PROPOSED));
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
    memset(set, 0, 8 * words_of(a->self->nranks));
    for (int r = 0; r < a->nranks; r++)
        if (is_present(a, r))
            add(set, r);
    return is_settled(a) && !is_quorum(a, set);
}

static int fail_excluded(void) {
    return tw__fail(TW_ERR_EXCLUDED,
                    "the other ranks go on without this one: it did not answer in time, or could "
                    "not reach all of them; join them anew, or end");
}

static int agree(agreement *a) {
    int64_t end = a->wait_until + a->t->timeout + 10 * silence(a);
    while (!a->decided) {
        move_messages(a);
        answer_proposals(a);
        look_for_decision(a);
        if (a->decided)
            break;
        if (a->excluded)
            return fail_excluded();
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

/* Whoever does not know the decision hears of it before this rank goes on. */
static void tell_decision(agreement *a) {
    int64_t end = tw__clock() + TELL;
    int left = 1;
    for (int r = 0; r < a->nranks; r++)
        a->peers[r].due = 1;
    while (left > 0 && tw__clock() < end) {
        left = 0;
        a->last_told = tw__clock();
        move_messages(a);
        for (int r = 0; r < a->nranks; r++) {
            const peer *p = &a->peers[r];
            left += r != a->rank && !p->lost && !p->knows && (p->due || p->send != NULL);
        }
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

static int set_up(agreement *a, tw_transport *t, const tw__intent *intent) {
    size_t ranks = (size_t)t->nranks, most = ranks + MORE_RANKS;
    const head *decided = t->members->decided;
    if (decided != NULL && decided->decided_nranks > most)
        most = decided->decided_nranks;
    *a = (agreement){.t = t, .rank = t->rank, .nranks = t->nranks, .entered = tw__clock()};
    a->now = a->entered;
    a->wait_until = a->entered + t->timeout + (int64_t)(intent->late * (double)TW__SECOND);
    a->capacity = sizeof(head) + 8 * SETS * words_of(most);
    a->peers = calloc(ranks, sizeof *a->peers);
    a->self = calloc(3 * ranks + 2, a->capacity);
    if (a->peers == NULL || a->self == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to agree on the members of %d ranks", t->nranks);
    a->scratch = (uint64_t *)(void *)((char *)a->self + (3 * ranks + 1) * a->capacity);
    for (size_t r = 0; r < ranks; r++) {
        char *buffers = (char *)a->self + (3 * r + 1) * a->capacity;
        a->peers[r].in = (head *)(void *)buffers;
        a->peers[r].out = (head *)(void *)(buffers + a->capacity);
        a->peers[r].state = (head *)(void *)(buffers + 2 * a->capacity);
    }
    *a->self = (head){.version = t->version,
                      .nranks = ranks,
                      .step = intent->step,
                      .leaving = intent->leaving != 0,
                      .inherits = intent->inherits != 0,
                      .joining = (uint64_t)intent->joining};
    if (decided != NULL) {
        a->self->decided_version = decided->decided_version;
        a->self->decided_nranks = decided->decided_nranks;
        a->self->decided_step = decided->decided_step;
        a->self->decided_joining = decided->decided_joining;
        memcpy(set_of(a->self, DECIDED), decided + 1, 8 * words_of(decided->decided_nranks));
    }
    for (int r = 0; r < t->nranks && t->liveness.started; r++)
        if (t->liveness.peers[r].missing)
            add(set_of(a->self, SUSPECTED), r);
    return TW_OK;
}

/* For the next change: late ranks are told of this one. */
static int keep_decision(agreement *a) {
    size_t bytes = 8 * words_of(a->self->nranks);
    head *decided = malloc(sizeof *decided + bytes);
    if (decided == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the decision of %d ranks", a->nranks);
    *decided = *a->self;
    memcpy(decided + 1, set_of(a->self, DECIDED), bytes);
    free(a->t->members->decided);
    a->t->members->decided = decided;
    return TW_OK;
}

/* Ranks that this one is connected to, and that may join. */
static int count_newcomers(const tw_transport *t) {
    return t->new_sockets != NULL ? t->new_count - t->nranks : 0;
}

static int list_members(agreement *a, tw__membership *m) {
    const uint64_t *set = set_of(a->self, DECIDED), joining = a->self->decided_joining;
    if (!has(set, a->rank) && !a->self->leaving)
        return fail_excluded();
    if (!a->self->leaving && joining > (uint64_t)count_newcomers(a->t))
        return tw__fail(TW_ERR_PROTOCOL,
                        "membership: %llu ranks were to join, this one has met %d of them",
                        (unsigned long long)joining, count_newcomers(a->t));
    *m = (tw__membership){.step = a->self->decided_step,
                          .joined = a->self->leaving ? 0 : (int)joining,
                          .nbefore = a->nranks,
                          .before = a->rank};
    m->ranks = malloc((size_t)(a->nranks + m->joined) * sizeof *m->ranks);
    if (m->ranks == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", a->nranks);
    for (int r = 0; r < a->nranks; r++)
        if (has(set, r))
            m->ranks[m->nranks++] = r;
    return TW_OK;
}

/* The connections of the meeting with newcomers take the place of the old ones. */
static int renew_connections(tw_transport *t, const tw__membership *m) {
    size_t bytes = (size_t)t->new_count * sizeof *t->liveness.peers;
    tw__liveness_peer *peers = tw__reserve(bytes);
    void *context = NULL;
    if (peers == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", bytes);
    int error = t->member_calls->renew(&context, t->new_sockets, t->rank, t->new_count);
    if (error != TW_OK) {
        free(peers);
        return error;
    }
    t->member_calls->keep(t->context, &m->before, 1); /* closes at once */
    t->calls.close(t->context);
    t->context = context;
    free(t->liveness.peers);
    t->liveness.peers = peers;
    free(t->new_sockets);
    t->new_sockets = NULL;
    return TW_OK;
}

/* Newcomers stand behind the ranks that stay: m->ranks gets them too, by their numbers in the meeting. */
static int install(tw_transport *t, tw__membership *m) {
    tw__liveness_stop(t);
    if (m->joined > 0) {
        TW_TRY(renew_connections(t, m));
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
    return TW_OK;
}

/* Newcomers wait for the decision. */
static void welcome(agreement *a, int joined) {
    tw_transport *t = a->t;
    void *requests[TW__MOST_NEW] = {NULL};
    int64_t end = tw__clock() + TELL;
    int left = joined;
    size_t bytes = bytes_of(a->self);
    for (int i = 0; i < joined; i++)
        if (t->calls.send(t->context, t->nranks - joined + i, TW__TAG_MEMBERS, a->self, bytes,
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

static int begin_change(tw_transport *t) {
    assert(t->member_calls != NULL && t->alltoalls == NULL);
    if (t->members == NULL && (t->members = calloc(1, sizeof *t->members)) == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for the membership");
    if (!t->members->begun)
        t->member_calls->begin(t->context);
    t->members->begun = 1;
    return TW_OK;
}

int tw__transport_agree_members(tw_transport *t, const tw__intent *intent, tw__membership *m) {
    agreement a = {0};
    *m = (tw__membership){0};
    TW_TRY(begin_change(t));
    int error = set_up(&a, t, intent);
    if (a.self == NULL || a.peers == NULL) {
        free(a.self);
        free(a.peers);
        return error;
    }
    tell_all(&a);
    error = agree(&a);
    if (error == TW_OK) {
        tell_decision(&a);
        error = list_members(&a, m);
        const head *heir = intent->leaving ? state_of(&a, intent->heir) : NULL;
        m->inherited = heir != NULL && heir->inherits;
    }
    if (error == TW_OK)
        error = keep_decision(&a);
    cancel(&a);
    if (error == TW_OK && !intent->leaving)
        error = install(t, m);
    if (error == TW_OK && !intent->leaving)
        welcome(&a, m->joined);
    tw__transport_drop_newcomers(t);
    if (error != TW_OK) {
        free(m->ranks);
        m->ranks = NULL;
    }
    free(a.self);
    free(a.peers);
    return error;
}

/* ---- a rank that joins */

typedef struct waiting {
    void **requests; /* [nranks] */
    char *buffers;   /* [nranks][capacity] */
    size_t capacity;
} waiting;

/* Whether a state tells of the decision with which this rank joins, behind those before it. */
static int welcomes(const tw_transport *t, const head *h, uint32_t version) {
    return h->decided_version == (uint64_t)version + 1 && h->decided_nranks >= 1 &&
           h->decided_nranks <= (uint64_t)t->rank &&
           h->decided_joining == (uint64_t)t->nranks - h->decided_nranks;
}

/* The decision of the ranks before this one; NULL: it has not come. *lost: ranks that are gone. */
static head *look_for_welcome(tw_transport *t, waiting *w, uint32_t version, int *lost) {
    *lost = 0;
    for (int r = 0; r < t->rank; r++) {
        head *h = (head *)(void *)(w->buffers + (size_t)r * w->capacity);
        agreement limits = {.capacity = w->capacity};
        size_t bytes = 0;
        if (w->requests[r] == NULL &&
            t->calls.recv(t->context, r, TW__TAG_MEMBERS, h, w->capacity, &w->requests[r]) < 0)
            w->requests[r] = NULL;
        int done = w->requests[r] == NULL ? -1 : t->calls.test(t->context, w->requests[r], &bytes);
        *lost += done < 0;
        if (done == 0)
            continue;
        w->requests[r] = NULL;
        if (done > 0 && is_whole(&limits, h, bytes) && welcomes(t, h, version))
            return h;
    }
    return NULL;
}

static int join_members(tw_transport *t, head *h, uint32_t version) {
    int nbefore = (int)h->decided_nranks, *ranks = malloc((size_t)t->nranks * sizeof *ranks);
    int count = 0, rank = 0;
    if (ranks == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for %d ranks", t->nranks);
    for (int r = 0; r < t->nranks; r++)
        if (r >= nbefore || has(set_of(h, DECIDED), r)) {
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
    int64_t end = tw__clock() + (int64_t)((seconds + 10) * (double)TW__SECOND);
    waiting w = {.capacity = sizeof(head) + 8 * SETS * words_of(ranks + MORE_RANKS)};
    int lost = 0, status = TW_OK;
    head *h = NULL;
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
    if (t->member_calls != NULL)
        return TW_OK;
    return tw__fail(
        TW_ERR_TRANSPORT,
        "membership: %s transport: its ranks cannot change. Those of threads, sockets "
        "and tcp can. MPI, also one with MPIX_Comm_shrink, cannot take back the messages "
        "of a step that has failed",
        t->name);
}

void tw__members_free(tw_transport *t) {
    if (t->members != NULL)
        free(t->members->decided);
    free(t->members);
}
