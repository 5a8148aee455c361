/* share.c - what the caller's ranks tell each other besides gradients
 *
 * Records of all ranks to all, and the memory of one rank to those that lack it: losses, hashes, the
 * parameters of a newcomer. An elastic group has no other way that survives a change of its ranks. */
#include "group/group.h"

#include <assert.h>
#include <stdlib.h>

/* Bytes of a message. Between two of them every rank hears from the root: no wait is long. */
#define PART ((size_t)1 << 20)

static int check(tw_group *g) {
    TW_TRY(tw__group_check(g, 0));
    if (tw__background_busy(g, TW_ALL))
        return tw__fail(TW_ERR_STATE, "tensors are under way; end them with tw_allreduce_wait");
    return TW_OK;
}

/* Also where a message could not even begin. */
static int ended(tw_group *g, int error) {
    int lost = error == TW_ERR_TRANSPORT || error == TW_ERR_TIMEOUT;
    if (error != TW_OK && g->broken == TW_OK && (lost || tw__transport_has_failed(g->transport)))
        tw__group_break(g, error);
    return error;
}

int tw_group_allgather(tw_group *g, void *records, size_t bytes) {
    TW_REQUIRE(g, "group");
    TW_REQUIRE(records, "records");
    TW_TRY(check(g));
    if (bytes == 0)
        return tw__fail(TW_ERR_PARAM, "bytes: 0; accepted is 1 and more");
    return ended(g, tw__allgather(g->transport, records, bytes, g->agree));
}

/* What every rank says before the first part. */
typedef struct broadcast_record {
    int64_t root;
    uint64_t bytes;
    int64_t wants;
} broadcast_record;

/* Messages of one part. */
typedef struct table {
    tw__buffer *out, *in; /* [nranks] */
    void *recvs;
    unsigned char *wants; /* [nranks] */
} table;

static int compare(tw_group *g, const broadcast_record *records, int root, const table *t) {
    for (int r = 0; r < g->nranks; r++) {
        if (records[r].root != records[0].root || records[r].bytes != records[0].bytes)
            return tw__fail(TW_ERR_MISMATCH,
                            "broadcast: rank %d expects %llu bytes of rank %lld, rank 0 %llu of "
                            "rank %lld; give all ranks the same",
                            r, (unsigned long long)records[r].bytes, (long long)records[r].root,
                            (unsigned long long)records[0].bytes, (long long)records[0].root);
        t->wants[r] = r != root && records[r].wants != 0;
    }
    return TW_OK;
}

/* Ranks that want nothing get an empty message, so that they do not wait for the others for long. */
static int send_part(tw_group *g, int root, char *part, size_t bytes, const table *t) {
    char nothing = 0;
    assert(root >= 0 && root < g->nranks && bytes > 0 && bytes <= PART);
    for (int r = 0; r < g->nranks; r++) {
        t->out[r] = t->in[r] = (tw__buffer){0};
        if (g->rank == root)
            t->out[r] = (tw__buffer){.data = t->wants[r] ? part : &nothing,
                                     .bytes = t->wants[r] ? bytes : 0};
    }
    if (g->rank != root)
        t->in[root] = (tw__buffer){.data = t->wants[g->rank] ? part : &nothing,
                                   .capacity = t->wants[g->rank] ? bytes : 0};
    TW_TRY(tw__alltoall_run(g->transport, TW__PAYLOAD, t->out, t->in, t->recvs));
    if (g->rank != root && t->in[root].bytes != t->in[root].capacity)
        return tw__transport_abort(g->transport,
                                   tw__fail(TW_ERR_PROTOCOL,
                                            "rank %d sent %zu bytes of a broadcast, %zu "
                                            "were expected",
                                            root, t->in[root].bytes, t->in[root].capacity));
    return TW_OK;
}

static int broadcast(tw_group *g, int root, char *data, size_t bytes, const table *t) {
    const broadcast_record own = {root, bytes, data != NULL};
    const broadcast_record *records = NULL;
    TW_TRY(tw__agree_share(g, &own, sizeof own, (const void **)&records));
    TW_TRY(compare(g, records, root, t));
    for (size_t at = 0; at < bytes; at += PART)
        TW_TRY(send_part(g, root, data != NULL ? data + at : NULL,
                         bytes - at < PART ? bytes - at : PART, t));
    return TW_OK;
}

int tw_group_broadcast(tw_group *g, int root, void *data, size_t bytes) {
    TW_REQUIRE(g, "group");
    TW_TRY(check(g));
    if (root < 0 || root >= g->nranks)
        return tw__fail(TW_ERR_PARAM, "root: %d; accepted is 0 .. %d", root, g->nranks - 1);
    if (g->rank == root)
        TW_REQUIRE(data, "data");
    size_t nranks = (size_t)g->nranks;
    table t = {.out = calloc(nranks, sizeof *t.out),
               .in = calloc(nranks, sizeof *t.in),
               .recvs = calloc(1, tw__alltoall_memory(g->nranks)),
               .wants = calloc(nranks, 1)};
    int has_memory = t.out != NULL && t.in != NULL && t.recvs != NULL && t.wants != NULL;
    int error = has_memory
                    ? TW_OK
                    : tw__fail(TW_ERR_MEMORY, "no memory for the messages of %d ranks", g->nranks);
    error = tw__agree_error(g, error);
    if (error == TW_OK && has_memory)
        error = broadcast(g, root, data, bytes, &t);
    free(t.out);
    free(t.in);
    free(t.recvs);
    free(t.wants);
    return ended(g, error);
}
