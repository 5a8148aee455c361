/* test_exchange_hostile.c - forged messages are refused, and the error names the rank that sent them
 *
 * Lengths and counts; test_wire_hostile.c has the contents of packed messages. The fuzzers see
 * crashes alone: a check that is missing need not lead to one. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/lists.h"
#include "exchange/job.h"
#include "ranks.h"
#include "transport/transport_internal.h"

/* ---- A job of two segments, as rank 0 of 3 sees it ------------------------------------------- */

enum { FORGER = 1, RANKS = 3, K = 3, N = 10 };

typedef struct small_job {
    tw__job job;
    tw__segment segments[2];
    int64_t bases[3], positions[3];
    tw__list parts[3][2];
} small_job;

static void job_open(small_job *s, const tw__wire *wire) {
    const tw__kernels *kernels;
    *s = (small_job){.segments = {{.n = N, .k = K}, {.base = N, .n = N, .k = K}},
                     .bases = {0, N, 2 * N}};
    check_ok(tw__kernels_choose(&kernels));
    s->job = (tw__job){
        .kind = TW__PAYLOAD,
        .lists = {&tw__lists_cpu, tw__cpu_lists_create(kernels, RANKS)},
        .codec = &tw__wire_cpu,
        .shape = {.nranks = RANKS, .nsegments = 2, .span = 2 * N, .k = 2 * K, .wire = wire},
        .segments = s->segments,
        .bases = s->bases,
        .positions = s->positions,
        .parts = {s->parts[0], s->parts[1], s->parts[2]}};
}

static void job_close(small_job *s) {
    free(s->job.lists.context);
}

/* Entries at 0, 2, 4 ... */
static void fill_entries(tw__entry *entries, int count) {
    for (int i = 0; i < count; i++)
        entries[i] = (tw__entry){2 * i, 1.0f};
}

/* A message of plain entries, with a tag before it where there is a wire format. */
static int unpack(small_job *s, const tw__entry *entries, size_t bytes, int64_t most) {
    const size_t tag = s->job.shape.wire != NULL ? 8 : 0;
    char *message = check_alloc(200, 1);
    tw__entry room[20];
    tw__list list;
    memcpy(message, &(uint64_t){1}, tag);
    memcpy(message + tag, entries, bytes);
    const tw__buffer in = {.data = message, .bytes = tag + bytes};
    const int status = tw__unpack_list(&s->job, &in, 0, 2 * N, most, FORGER, room, &list);
    free(message);
    return status;
}

static void test_lists(void **state) {
    (void)state;
    tw__entry entries[10];
    fill_entries(entries, 10);
    for (int packed = 0; packed < 2; packed++) {
        small_job s;
        job_open(&s, packed ? tw__wire_at(2) : NULL);
        check_scene(packed ? "plain entries in a packed message" : "raw entries");
        check_ok(unpack(&s, entries, 4 * sizeof *entries, 4));
        check_error(unpack(&s, entries, 4 * sizeof *entries, 3), TW_ERR_PROTOCOL);
        check_contains(tw_last_error(), "rank 1: sent 4 entries where 3 are possible");
        check_error(unpack(&s, entries, 4 * sizeof *entries - 1, 4), TW_ERR_PROTOCOL);
        check_contains(tw_last_error(), "rank 1: sent 31 bytes, which are no whole entries");
        check_error(unpack(&s, entries, 4, 4), TW_ERR_PROTOCOL);
        job_close(&s);
    }
}

/* More than k of one segment, though not more than k of all. */
static void test_counts(void **state) {
    (void)state;
    small_job s;
    tw__entry entries[10];
    fill_entries(entries, 10);
    job_open(&s, NULL);
    check_ok(tw__job_check_list(&s.job, &(tw__list){entries, 3}, FORGER));
    check_ok(tw__job_check_list(&s.job, &(tw__list){entries + 2, 6}, FORGER));
    check_error(tw__job_check_list(&s.job, &(tw__list){entries, 4}, FORGER), TW_ERR_PROTOCOL);
    check_contains(tw_last_error(), "rank 1: sent 4 entries, more than k = 3");
    check_error(tw__job_check_list(&s.job, &(tw__list){entries + 6, 4}, FORGER), TW_ERR_PROTOCOL);
    job_close(&s);
}

/* ---- Groups in which one rank's messages are forged ------------------------------------- */

static struct {
    int (*send)(void *context, int peer, int tag, const void *data, size_t bytes, void **request);
    int target; /* the send that is cut */
    int cut;    /* by so many bytes */
    int sends;  /* of that rank so far */
    int count;  /* of sends that were forged */
} forger;

static int cut_one(void *context, int peer, int tag, const void *data, size_t bytes,
                   void **request) {
    const int now = tag != TW__TAG_LIVENESS && bytes > 0 && forger.sends++ == forger.target;
    forger.count += now;
    return forger.send(context, peer, tag, data, bytes - (size_t)(now * forger.cut), request);
}

/* Lists of so many entries; the error names this rank. */
typedef struct cut_case {
    const char *exchange, *wire;
    int64_t n, k;
    const char *culprit;
} cut_case;

/* A step in which send number `target` of rank FORGER is too short. Returns whether it sent that many. */
static int step_with_cut(const cut_case *c, int target, int cut) {
    const int64_t n = c->n;
    tw_group_params params = ranks_params(c->exchange, c->k);
    ranks r;
    int refused = 0;
    params.wire = c->wire;
    params.timeout = 5.0;
    check_scene("%s, %s: message %d is %d bytes short", c->exchange, c->wire, target, cut);
    float **grads = rows_alloc(RANKS, n), **outs = rows_alloc(RANKS, n);
    for (int rank = 0; rank < RANKS; rank++) /* close together: ranks of oktopk list magnitudes */
        for (int64_t i = 0; i < n; i++)
            grads[rank][i] = 1.0f + (float)((7 * i + 13 * rank) % 97) * 0x1p-20f;
    ranks_open(&r, RANKS, &params, &n, 1);
    tw_transport_calls *calls = &r.transports[FORGER]->calls;
    forger.send = calls->send;
    forger.target = target;
    forger.cut = cut;
    forger.sends = forger.count = 0;
    calls->send = cut_one;
    ranks_allreduce(&r, 0, (void *const *)grads, outs);
    for (int rank = 0; rank < RANKS && forger.count; rank++)
        refused += r.status[rank] == TW_ERR_PROTOCOL && strstr(r.text[rank], c->culprit) != NULL;
    if (forger.count && refused == 0)
        check_fail("no rank refuses: rank 0 gave %d (%s), rank 2 gave %d (%s)", r.status[0],
                   r.text[0], r.status[2], r.text[2]);
    if (!forger.count)
        ranks_ok(&r);
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
    return forger.count;
}

/* Every other exchange packed, oktopk both ways. */
static void test_short_messages(void **state) {
    (void)state;
    for (int e = 0; e < check_exchanges(); e++) {
        const char *exchange = check_exchange(e);
        const int both = strcmp(exchange, "oktopk") == 0;
        for (int packed = 0; packed < 2; packed++) {
            int target = 0;
            if (!both && packed != e % 2)
                continue;
            const cut_case c = {exchange, packed ? "bf16" : "raw", 400, 40, "rank 1"};
            while (step_with_cut(&c, target, 1))
                target++;
            check_between("messages", target, 3, 100);
        }
    }
}

/* Lists of three pieces. A ring passes on those of rank 0 too, and the error names their owner. */
static void test_short_pieces(void **state) {
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        const cut_case c = {"allgather", packed ? "q2" : "raw", 500000, 300000, "rank "};
        int target = 0;
        while (step_with_cut(&c, target, 1))
            target++;
        check_between("messages", target, 3 * (RANKS - 1) + 2, 20);
    }
}

/* After a piece that was not full, none may have entries. Message 2 is the first piece. */
static void test_entries_behind_the_end(void **state) {
    (void)state;
    const cut_case c = {"allgather", "raw", 500000, 300000, "rank 1: sent"};
    check_true(step_with_cut(&c, 2, sizeof(tw__entry)));
}

/* A report of oktopk: sums above the threshold, equal to it, listed. One more than the rank has. */
static int claim_one_more(void *context, int peer, int tag, const void *data, size_t bytes,
                          void **request) {
    static uint32_t claims[RANKS][3];
    if (tag == TW__TAG_LIVENESS || bytes != sizeof claims[peer])
        return forger.send(context, peer, tag, data, bytes, request);
    memcpy(claims[peer], data, bytes);
    claims[peer][0]++;
    forger.count++;
    return forger.send(context, peer, tag, claims[peer], bytes, request);
}

/* Fewer than k sums in all, so that the claim is possible. */
static void test_claims(void **state) {
    (void)state;
    const int64_t n = 400;
    tw_group_params params = ranks_params("oktopk", 40);
    ranks r;
    params.wire = "bf16";
    params.timeout = 5.0;
    float **grads = rows_alloc(RANKS, n);
    check_scene("a rank claims to hold more sums than it sends");
    for (int rank = 0; rank < RANKS; rank++)
        for (int64_t i = rank; i < n; i += 40)
            grads[rank][i] = 1.0f;
    ranks_open(&r, RANKS, &params, &n, 1);
    tw_transport_calls *calls = &r.transports[FORGER]->calls;
    forger.send = calls->send;
    forger.count = 0;
    calls->send = claim_one_more;
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    check_int("claims", forger.count, RANKS - 1);
    for (int rank = 0; rank < RANKS; rank += 2) {
        check_int("status", r.status[rank], TW_ERR_PROTOCOL);
        check_contains(r.text[rank], "rank 1: sent");
        check_contains(r.text[rank], "sums, expected were");
    }
    ranks_close(&r);
    rows_free(grads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_short_messages),
        cmocka_unit_test(test_short_pieces),
        cmocka_unit_test(test_entries_behind_the_end),
        cmocka_unit_test(test_claims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
