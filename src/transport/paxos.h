/* paxos.h - what the ranks of a membership tell each other when they agree on the next one
 *
 *   paxos.c    they agree
 *   members.c  the transport changes to what they have agreed on */
#ifndef TW_TRANSPORT_PAXOS_H
#define TW_TRANSPORT_PAXOS_H

#include "transport/transport_internal.h"

/* The state of a rank, as it is sent: this head, then sets of ranks, in words of 64. */
typedef struct tw__member_state {
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
} tw__member_state;

/* Sets of the membership that ends; TW__DECIDED is a set of its own membership, and comes last. */
enum { TW__LOST, TW__SUSPECTED, TW__ACCEPTED, TW__PROPOSED, TW__DECIDED, TW__SETS };

static inline size_t tw__set_words(uint64_t nranks) {
    return (size_t)(nranks + 63) / 64;
}

static inline size_t tw__member_state_bytes(const tw__member_state *s) {
    return sizeof *s +
           8 * (TW__DECIDED * tw__set_words(s->nranks) + tw__set_words(s->decided_nranks));
}

static inline uint64_t *tw__member_set(tw__member_state *s, int which) {
    return (uint64_t *)(s + 1) + (size_t)which * tw__set_words(s->nranks);
}

static inline int tw__set_has(const uint64_t *set, int rank) {
    return (int)(set[rank / 64] >> (rank % 64) & 1);
}

static inline void tw__set_add(uint64_t *set, int rank) {
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* Bytes that the state of a membership may have: a peer's may be one of more ranks. */
size_t tw__member_state_capacity(uint64_t nranks);
/* Whether a message of so many bytes is a state. */
int tw__member_state_is_whole(const tw__member_state *s, size_t bytes, size_t capacity);

/* Agree with the ranks that are left. On success the decision is in `self`, and whoever is to go on has
 * been told of it.
 *   self       of this rank, with room for tw__member_state_capacity. What it has promised and accepted
 *              must be kept until the membership has changed: also for another call, if this one fails
 *   memory     [tw__paxos_memory] of zeros, for this call
 *   heir       a rank; *inherited: it has what this rank hands over
 * Errors: TW_ERR_QUORUM; TW_ERR_EXCLUDED; TW_ERR_TIMEOUT. */
int tw__paxos_run(tw_transport *t, tw__member_state *self, size_t capacity, void *memory, int heir,
                  int *inherited);
size_t tw__paxos_memory(int nranks, size_t capacity);
/* TW_ERR_EXCLUDED, with its text. */
int tw__fail_excluded(void);

#endif
