/* fuzz_members.c - one honest rank agrees with hostile ones on who goes on
 *
 * The first bytes choose how many ranks there are, which of them is real, and what it brings to the
 * agreement; or that it is one that joins. Its peers answer with the state that it sent last, as peers
 * would that agree to everything. The input changes words of these states, for one message or for all
 * that follow; or a peer sends bytes of the input, late, never, or fails. Up to CHANGES agreements follow
 * each other.
 *
 * Nothing waits: time is that of a clock, which idling advances. Each call must end before its deadline
 * on that clock with TW_OK or a typed error, leave no request behind, and change the ranks to some that
 * can be. Sanitizers see to memory. */

#include "fuzz.h"
#include "transport/transport_internal.h"

enum { MOST_RANKS = 6, CHANGES = 3, PATCHES = 16, ROOM = 4096, TAGS = 4 };
/* A state begins with so many words, then come its sets of ranks. If this is wrong the seeds are bad. */
enum {
    HEAD = 18,
    SETS = 5,
    W_NRANKS = 1,
    W_STEP,
    W_BALLOT = 10,
    W_ACCEPTING,
    W_PROPOSED_STEP,
    W_DECIDED_VERSION = 14,
    W_DECIDED_NRANKS,
    W_DECIDED_JOINING = 17,
    W_PROPOSED = HEAD + 3,
    W_DECIDED
};
#define TIMEOUT (TW__SECOND / 10)

/* ---- peers */

typedef struct patch {
    int peer, word;
    uint64_t value;
} patch;

/* What a peer was sent last. */
typedef struct heard {
    uint64_t words[ROOM / 8];
    size_t bytes;
    int fresh; /* it has not answered yet */
    int never; /* it does not answer any more */
    int tests; /* that find no answer */
} heard;

typedef struct job {
    input *in;
    int requests, contexts;
    int npatches;
    patch patches[PATCHES];
    heard peers[2 * MOST_RANKS + TW__MOST_NEW];
} job;

static job *j;

typedef struct request {
    int sending, peer;
    char *data;
    size_t bytes;
} request;

enum { FAILS = -1, LATE = 0, ARRIVES = 1 };

static uint64_t word_of_input(void) {
    const uint32_t kind = take(j->in, 1);
    if (kind < 240)
        return kind;
    if (kind < 248)
        return (uint64_t)1 << (take(j->in, 1) % 64);
    return kind < 252 ? UINT64_MAX - take(j->in, 1) : (uint64_t)(kind - 251) << 16 | take(j->in, 1);
}

/* The answer of a peer that agrees, with its patches. */
static size_t echo(const request *r, uint64_t *words) {
    const heard *p = &j->peers[r->peer];
    memset(words, 0, ROOM);
    memcpy(words, p->words, p->bytes);
    for (int i = 0; i < j->npatches; i++)
        if (j->patches[i].peer == r->peer)
            words[j->patches[i].word] = j->patches[i].value;
    return 8 *
           (HEAD + SETS - (words[W_DECIDED_NRANKS] == 0)); /* the last set comes with a decision */
}

static void add_patch(int peer) {
    patch *p = &j->patches[j->npatches < PATCHES ? j->npatches++ : PATCHES - 1];
    p->peer = peer;
    p->word = (int)(take(j->in, 1) % (HEAD + SETS));
    p->value = word_of_input();
}

enum { CASES = 8, CASE_PATCH = 0, CASE_INPUT = 3, CASE_ECHO = 6 };

static int answer(request *r, uint32_t how, size_t *bytes) {
    uint64_t words[ROOM / 8];
    heard *p = &j->peers[r->peer];
    size_t size = echo(r, words);
    switch (how % CASES) {
    case CASE_PATCH:
        add_patch(r->peer);
        size = echo(r, words);
        break;
    case 1:
        words[take(j->in, 1) % (HEAD + SETS)] = word_of_input();
        break;
    case 2:
        size = take(j->in, 2) % (ROOM + 1);
        break;
    case CASE_INPUT: {
        const input part = take_part(j->in);
        size = part.left < ROOM ? part.left : ROOM;
        memcpy(words, part.data, size);
        break;
    }
    case 4:
        return tw_transport_explain("the fuzzer says no");
    case 5:
        p->tests = (int)take(j->in, 1);
        return LATE;
    case CASE_ECHO:
        break;
    default:
        p->never = 1;
        return LATE;
    }
    if (size > r->bytes)
        return tw_transport_explain("the message is longer than expected");
    memcpy(r->data, words, size);
    *bytes = size;
    return ARRIVES;
}

static int receive(request *r, size_t *bytes) {
    heard *p = &j->peers[r->peer];
    if (p->never || p->tests-- > 0)
        return LATE;
    p->tests = 0;
    const uint32_t how = j->in->left > 0 ? take(j->in, 1) : 0;
    if (how >= 128) {
        p->fresh = 0;
        return answer(r, how, bytes);
    }
    if (!p->fresh)
        return LATE;
    p->fresh = 0;
    return answer(r, CASE_ECHO, bytes);
}

/* ---- the transport of the real rank. Its context: how many ranks it is connected to, itself included */

static int start(const int *nranks, request what, void **handle) {
    request *r = malloc(sizeof *r);
    REQUIRE(r != NULL && what.peer >= 0 && what.peer < *nranks);
    *r = what;
    j->requests++;
    *handle = r;
    return 0;
}

static int end_send(void *context, int peer, int tag, const void *data, size_t bytes,
                    void **handle) {
    REQUIRE(tag >= 0 && tag < TAGS && peer >= 0 && peer < *(int *)context);
    heard *p = &j->peers[peer];
    if (tag == TW__TAG_MEMBERS) {
        REQUIRE(bytes <= ROOM);
        memcpy(p->words, data, bytes);
        p->bytes = bytes;
        p->fresh = 1;
    }
    return start(context, (request){.sending = 1, .peer = peer, .bytes = bytes}, handle);
}

static int end_recv(void *context, int peer, int tag, void *data, size_t capacity, void **handle) {
    REQUIRE(tag == TW__TAG_MEMBERS);
    return start(context, (request){.peer = peer, .data = data, .bytes = capacity}, handle);
}

static void forget(request *r) {
    free(r);
    j->requests--;
}

static int end_test(void *context, void *handle, size_t *bytes) {
    (void)context;
    request *r = handle;
    fuzz_now += TW__SECOND / 200; /* as if the system were slow: fewer looks until a deadline */
    *bytes = r->bytes;
    const int done = r->sending ? ARRIVES : receive(r, bytes);
    if (done != LATE)
        forget(r);
    return done;
}

static void end_cancel(void *context, void *handle) {
    (void)context;
    forget(handle);
}

static void end_idle(void *context, int64_t microseconds) {
    (void)context;
    REQUIRE(microseconds > 0);
    fuzz_now += 1000 * microseconds;
}

static void end_close(void *context) {
    free(context);
    j->contexts--;
}

static void *new_context(int nranks) {
    int *context = malloc(sizeof *context);
    REQUIRE(context != NULL);
    *context = nranks;
    j->contexts++;
    return context;
}

static void members_begin(void *context) {
    (void)context;
}

static void members_keep(void *context, const int *ranks, int nranks) {
    int *connected = context;
    REQUIRE(nranks >= 1 && ranks[0] >= 0 && ranks[nranks - 1] < *connected);
    for (int i = 1; i < nranks; i++)
        REQUIRE(ranks[i] > ranks[i - 1]);
    *connected = nranks;
}

static int members_renew(void **context, const int *sockets, int rank, int nranks) {
    REQUIRE(sockets != NULL && rank >= 0 && rank < nranks);
    for (int r = 0; r < nranks; r++)
        REQUIRE(sockets[r] == -1);
    *context = new_context(nranks);
    return TW_OK;
}

static int members_are_whole(void *context) {
    (void)context;
    return 1;
}

static const tw_transport_calls calls = {.name = "fuzz",
                                         .send = end_send,
                                         .recv = end_recv,
                                         .test = end_test,
                                         .cancel = end_cancel,
                                         .idle = end_idle,
                                         .close = end_close};
static const tw__member_calls member_calls = {members_begin, members_keep, members_renew,
                                              members_are_whole};

/* ---- the run */

static int in_time(int status, int64_t begin) {
    REQUIRE(status <= TW_OK && status >= TW_ERR_EXCLUDED);
    REQUIRE(status == TW_OK || tw_last_error()[0] != '\0');
    REQUIRE(fuzz_now - begin < 60 * TW__SECOND);
    REQUIRE(j->requests == 0);
    return status;
}

/* Ranks to which this one is connected, and that may join. */
static void meet_newcomers(tw_transport *t, int count) {
    int sockets[MOST_RANKS + CHANGES * TW__MOST_NEW];
    for (int r = 0; r < t->nranks + count; r++)
        sockets[r] = -1;
    REQUIRE(tw__transport_take_newcomers(t, sockets, t->nranks + count) == TW_OK);
}

/* Returns whether another one can follow. */
static int agree(tw_transport *t) {
    const uint32_t bytes = take(j->in, 1);
    const int before = t->nranks, rank = t->rank;
    const uint32_t version = t->version;
    tw__intent intent = {
        .step = bytes >> 4, .leaving = (bytes & 7) == 1, .inherits = (bytes & 8) != 0};
    tw__membership m;
    if ((bytes & 7) == 2)
        meet_newcomers(t, intent.joining = 1 + (int)(bytes >> 6));
    const int64_t begin = fuzz_now;
    const int status = in_time(tw__transport_agree_members(t, &intent, &m), begin);
    REQUIRE(t->new_context == NULL && t->new_peers == NULL);
    if (status != TW_OK || intent.leaving) {
        REQUIRE(t->nranks == before && t->rank == rank && t->version == version);
        free(m.ranks);
        return 0;
    }
    REQUIRE(m.nranks == t->nranks && m.nranks <= before + intent.joining &&
            m.joined <= intent.joining);
    REQUIRE(m.before == rank && m.ranks[t->rank] == rank && t->version == version + 1);
    free(m.ranks);
    for (int r = 0; r < MOST_RANKS; r++)
        j->peers[r].fresh = 0;
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static job job_of_input;
    input in = fuzz_begin(data, size);
    tw_transport *t;
    j = &job_of_input;
    memset(j, 0, sizeof *j);
    j->in = &in;
    const int nranks = 2 + (int)(take(&in, 1) % (MOST_RANKS - 1));
    const uint32_t rank = take(&in, 1), joins = rank & 128;
    fuzz_now = TW__SECOND;
    REQUIRE(tw_transport_custom(&t, &calls, new_context(nranks), (int)(rank % 128) % nranks,
                                nranks) == TW_OK);
    t->member_calls = &member_calls;
    t->timeout = TIMEOUT;
    if (!joins)
        for (int i = 0; i < CHANGES && agree(t); i++)
            ;
    else if (in_time(tw__transport_await_members(t, take(&in, 1), 0.1), TW__SECOND) == TW_OK)
        REQUIRE(t->rank >= 0 && t->rank < t->nranks && t->nranks <= nranks);
    tw_transport_free(t);
    REQUIRE(j->contexts == 0 && j->requests == 0);
    fuzz_now = 0;
    return 0;
}

/* ---- seeds */

static void put_patch(output *out, uint32_t word, uint32_t value) {
    put(out, 128 + CASE_PATCH, 1);
    put(out, word, 1);
    put(out, value, 1);
}

/* The lowest rank proposes and all agree; another one proposes, and decides; newcomers hear of it. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    output out = {data, 0, room};
    const uint32_t nranks = 2 + (uint32_t)number % 5, variant = (uint32_t)number / 5 % 4;
    if (number >= 60)
        return 0;
    put(&out, nranks - 2, 1);
    switch (number / 20) {
    case 0: /* echoes alone, in three agreements */
        put(&out, 0, 1);
        put(&out, variant == 3 ? 8 : variant, 1);
        for (uint32_t i = 0; i < 200; i++)
            put(&out, i == 100 || i == 150 ? variant : 0, 1);
        break;
    case 1: /* rank 0 proposes that all stay, or has decided it */
        put(&out, 1, 1);
        put(&out, 0, 1);
        for (uint32_t peer = 1; peer < nranks; peer++)
            put(&out, 0, 1); /* none answers before it was asked */
        if (variant < 2) {
            put_patch(&out, W_BALLOT, 252);
            put(&out, 0, 1);
            put_patch(&out, W_PROPOSED, (1u << nranks) - 1);
            put_patch(&out, W_ACCEPTING, variant);
        } else {
            put_patch(&out, W_DECIDED_NRANKS, nranks);
            put_patch(&out, W_DECIDED, (1u << nranks) - variant + 1);
            put_patch(&out, W_DECIDED_JOINING, variant - 2); /* 1: somebody whom it has not met */
            put_patch(&out, W_DECIDED_VERSION, 1);
        }
        break;
    default: /* this rank joins `nranks - 1` others, or fewer */
        put(&out, 128 + nranks - 1, 1);
        put(&out, 7, 1);
        put_patch(&out, W_NRANKS, nranks - 1);
        put_patch(&out, W_DECIDED_NRANKS, nranks - 1);
        put_patch(&out, W_DECIDED, (1u << (nranks - 1)) - 1 - (variant & 1));
        if (variant == 3) /* none stays, and this rank is none that joins */
            put_patch(&out, W_DECIDED_NRANKS, nranks);
        put_patch(&out, W_DECIDED_VERSION, 8);
        put_patch(&out, W_DECIDED_JOINING, variant < 3);
    }
    return out.size;
}
