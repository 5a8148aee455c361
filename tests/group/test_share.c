/* test_share.c - records of all ranks to all, the memory of one rank to others, and their errors */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { MOST = 9, N = 100, LONG = 3 * (1 << 20) + 5 };

static void open_ranks(ranks *r, int nranks, int membership) {
    const int64_t sizes[] = {N};
    tw_group_params params = ranks_params(NULL, 10);
    params.membership = membership;
    ranks_open(r, nranks, &params, sizes, 1);
}

/* ---- records */

static int gather(ranks *r, int rank, void *context) {
    size_t bytes = *(size_t *)context;
    unsigned char *records = calloc((size_t)r->nranks, bytes);
    if (records == NULL)
        return TW_ERR_MEMORY;
    memset(records + (size_t)rank * bytes, rank + 1, bytes);
    int status = tw_group_allgather(r->groups[rank], records, bytes);
    for (int i = 0; i < r->nranks && status == TW_OK; i++)
        for (size_t at = 0; at < bytes; at++)
            if (records[(size_t)i * bytes + at] != i + 1)
                status = TW_ERR_DAMAGED;
    free(records);
    return status;
}

static void test_records(void **state) {
    (void)state;
    const size_t lengths[] = {1, 8, 4001, LONG / 8};
    for (int nranks = 1; nranks <= MOST; nranks++) {
        ranks r;
        open_ranks(&r, nranks, nranks % 2 ? TW_MEMBERSHIP_ELASTIC : TW_MEMBERSHIP_FIXED);
        for (int i = 0; i < 4; i++) {
            size_t bytes = lengths[i];
            ranks_run(&r, gather, &bytes);
            ranks_ok(&r);
        }
        ranks_close(&r);
    }
}

/* ---- the memory of one rank */

typedef struct sending {
    int root;
    size_t bytes;
    unsigned has; /* ranks that have it already */
} sending;

static unsigned char pattern(size_t at) {
    return (unsigned char)(at * 31 + at / 251);
}

static int send(ranks *r, int rank, void *context) {
    const sending *s = context;
    unsigned char *data = calloc(1, s->bytes + 1);
    int has = (int)(s->has >> rank & 1u), status = data != NULL ? TW_OK : TW_ERR_MEMORY;
    for (size_t at = 0; at < s->bytes && rank == s->root && status == TW_OK; at++)
        data[at] = pattern(at);
    if (status == TW_OK)
        status = tw_group_broadcast(r->groups[rank], s->root, has && rank != s->root ? NULL : data,
                                    s->bytes);
    for (size_t at = 0; at < s->bytes && !has && status == TW_OK; at++)
        if (data[at] != pattern(at))
            status = TW_ERR_DAMAGED;
    if (status == TW_OK && data[s->bytes] != 0)
        status = TW_ERR_DAMAGED; /* one byte too many */
    free(data);
    return status;
}

static void test_memory(void **state) {
    (void)state;
    const size_t lengths[] = {1, 1 << 20, LONG};
    for (int nranks = 1; nranks <= MOST; nranks += nranks < 4 ? 1 : 5)
        for (int root = 0; root<nranks; root += nranks> 1 ? nranks - 1 : 1)
            for (int i = 0; i < 3; i++) {
                ranks r;
                sending s = {root, lengths[i], (1u << root) | (i == 1 ? 2u : 0u)};
                open_ranks(&r, nranks, TW_MEMBERSHIP_ELASTIC);
                ranks_run(&r, send, &s);
                ranks_ok(&r);
                ranks_close(&r);
            }
}

/* ---- errors */

static int send_other_length(ranks *r, int rank, void *context) {
    char data[16] = {0};
    (void)context;
    return tw_group_broadcast(r->groups[rank], 0, data, rank == 2 ? 9 : 8);
}

static void test_mismatch(void **state) {
    (void)state;
    ranks r;
    size_t bytes = 8;
    open_ranks(&r, 3, TW_MEMBERSHIP_FIXED);
    ranks_run(&r, send_other_length, NULL);
    ranks_error(&r, TW_ERR_MISMATCH);
    ranks_say(&r, "rank 2 expects 9 bytes of rank 0, rank 0 8");
    ranks_run(&r, gather, &bytes); /* nothing has changed */
    ranks_ok(&r);
    ranks_close(&r);
}

/* The last rank goes away; the others go on without it, and then their call works. */
static int lose_one(ranks *r, int rank, void *context) {
    size_t bytes = 64;
    (void)context;
    if (rank == r->nranks - 1) {
        tw_group_free(r->groups[rank]);
        tw_transport_free(r->transports[rank]);
        r->groups[rank] = NULL;
        r->transports[rank] = NULL;
        return TW_OK;
    }
    unsigned char records[MOST * 64] = {0};
    int status = tw_group_allgather(r->groups[rank], records, bytes);
    if (status == TW_OK)
        return TW_ERR_DAMAGED; /* without it there is no result */
    tw_members members;
    if (tw_group_allgather(r->groups[rank], records, bytes) == TW_OK)
        return TW_ERR_DAMAGED; /* broken until the ranks have agreed */
    while ((status = tw_group_shrink(r->groups[rank], &members)) == TW_ERR_TIMEOUT ||
           status == TW_ERR_TRANSPORT)
        ;
    memset(records + (size_t)members.rank * bytes, members.rank + 1, bytes);
    if (status == TW_OK)
        status = tw_group_allgather(r->groups[rank], records, bytes);
    for (int i = 0; i < members.nranks && status == TW_OK; i++)
        if (records[(size_t)i * bytes] != i + 1)
            status = TW_ERR_DAMAGED;
    return status;
}

static void test_lost(void **state) {
    (void)state;
    ranks r;
    open_ranks(&r, 4, TW_MEMBERSHIP_ELASTIC);
    ranks_run(&r, lose_one, NULL);
    ranks_ok(&r);
    ranks_close(&r);
}

static void test_wrong_calls(void **state) {
    (void)state;
    ranks r;
    char data[8] = {0};
    float grad[N] = {0};
    open_ranks(&r, 1, TW_MEMBERSHIP_FIXED);
    tw_group *g = r.groups[0];
    check_int("NULL", tw_group_allgather(NULL, data, 8), TW_ERR_NULL);
    check_int("NULL", tw_group_allgather(g, NULL, 8), TW_ERR_NULL);
    check_int("no bytes", tw_group_allgather(g, data, 0), TW_ERR_PARAM);
    check_int("NULL", tw_group_broadcast(NULL, 0, data, 8), TW_ERR_NULL);
    check_int("NULL", tw_group_broadcast(g, 0, NULL, 8), TW_ERR_NULL);
    check_int("root", tw_group_broadcast(g, 1, data, 8), TW_ERR_PARAM);
    check_contains(tw_last_error(), "root: 1; accepted is 0 .. 0");
    check_int("start", tw_allreduce_start(g, 0, grad, grad), TW_OK);
    check_int("in progress", tw_group_allgather(g, data, 8), TW_ERR_STATE);
    check_int("in progress", tw_group_broadcast(g, 0, data, 8), TW_ERR_STATE);
    check_int("wait", tw_allreduce_wait(g, TW_ALL), TW_OK);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_mismatch),    cmocka_unit_test(test_lost),
        cmocka_unit_test(test_wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
