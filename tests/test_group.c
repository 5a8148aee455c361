/* test_group.c - life of a group, what it says about its steps, options of tensors, memory
 *
 * What the exchanges compute is tested in test_exchange.c; here are the parts around them. Momentum,
 * warm-up and feedback off are held against the same oracle. The linker puts the functions below
 * between the library and the allocator (--wrap, see CMakeLists.txt): a step may not allocate, and
 * opening may run out of memory on any rank.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange_oracle.h"
#include "ranks.h"

enum { RANKS = 4, N = 2003, K = 64 };

/* ---- The counting allocator ------------------------------------------------------------------- */

static _Atomic int64_t calls, bytes;
static _Thread_local int64_t fails_in; /* this thread's call that fails, from 1; 0: none */

/* Count a call; 0 if it is the one to fail. */
static int admit(size_t size) {
    calls++;
    if (fails_in > 0 && --fails_in == 0)
        return 0;
    bytes += (int64_t)size;
    return 1;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);

void *__wrap_malloc(size_t size) {
    return admit(size) ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
    return admit(count * size) ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size) {
    return admit(size) ? __real_realloc(old, size) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return admit(size) ? __real_aligned_alloc(alignment, size) : NULL;
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    return admit(size) ? __real_posix_memalign(memory, alignment, size) : ENOMEM;
}

/* ---- Common ----------------------------------------------------------------------------------- */

static tw_group_params usual(const char *exchange) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.exchange = exchange;
    params.select.method = "exact";
    params.select.k = K;
    params.select.threads = 1;
    return params;
}

static void fill(float **grads, int nranks, int64_t n, int step) {
    for (int rank = 0; rank < nranks; rank++)
        oracle_fill(grads[rank], n, DATA_LAPLACE, (uint64_t)(1000 * step + rank));
}

/* One step of tensor 0 beside the oracle: results and residuals. */
static void step_beside(ranks *r, exchange_oracle *o, float **grads, float **outs) {
    exchange_oracle_step(o, grads);
    ranks_allreduce(r, 0, (void *const *)grads, outs);
    ranks_ok(r);
    for (int rank = 0; rank < r->nranks; rank++)
        check_bits("out", outs[rank], o->out, o->n);
    ranks_check_residuals(r, 0, o->residual, o->n);
}

/* Steps of a group with these params beside the oracle, which has been told of the same. */
static void run_beside(const tw_group_params *params, exchange_oracle *o, int steps) {
    ranks r;
    float **grads = rows_alloc(o->nranks, o->n), **outs = rows_alloc(o->nranks, o->n);
    ranks_open(&r, o->nranks, params, &o->n, 1);
    for (int step = 0; step < steps; step++) {
        check_scene("%s P=%d feedback=%d momentum=%g threads=%d step=%d", o->exchange, o->nranks,
                    o->feedback, (double)o->momentum, params->select.threads, step);
        fill(grads, o->nranks, o->n, step);
        step_beside(&r, o, grads, outs);
    }
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
}

static const char *const sparse_exchanges[] = {"allgather", "dsa", "gtopk", "oktopk"};

/* ---- Life ------------------------------------------------------------------------------------- */

static void test_life(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group, *second = (tw_group *)&group;
    int tensor = -1;
    const tw_group_params params = usual(NULL);
    check_scene("life");
    tw_group_free(NULL);
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    tw_group_free(group); /* without tensors */
    check_ok(tw_group_create(&group, transport, &params));
    check_error(tw_group_create(&second, transport, &params), TW_ERR_STATE);
    check_true(second == NULL);
    for (int i = 0; i < 5; i++) {
        check_ok(tw_group_add(group, 100 + i, NULL, i == 3 ? NULL : &tensor));
        if (i != 3)
            check_int("number of the tensor", tensor, i);
    }
    tw_group_free(group); /* not open */
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, 100, NULL, &tensor));
    check_int("number of the tensor", tensor, 0);
    check_ok(tw_group_open(group));
    check_error(tw_group_open(group), TW_ERR_STATE);
    check_error(tw_group_add(group, 100, NULL, NULL), TW_ERR_STATE);
    tw_group_free(group); /* without a step */
    tw_transport_free(transport);
}

/* A transport carries one group after the other; messages of the first do not reach the second. */
static void test_groups_in_turn(void **state) {
    (void)state;
    ranks r;
    ranks_init(&r, RANKS);
    float **grads = rows_alloc(RANKS, N), **outs = rows_alloc(RANKS, N);
    for (int turn = 0; turn < 4; turn++) {
        const int64_t n = N;
        const tw_group_params params = usual(sparse_exchanges[turn]);
        exchange_oracle o;
        exchange_oracle_open(&o, sparse_exchanges[turn], RANKS, N, K, TW_MEAN);
        check_scene("group %d on the same transports", turn);
        ranks_try_open(&r, &params, &n, 1);
        ranks_ok(&r);
        for (int step = 0; step < 3; step++) {
            fill(grads, RANKS, N, step);
            step_beside(&r, &o, grads, outs);
        }
        ranks_free_groups(&r);
        exchange_oracle_close(&o);
    }
    rows_free(grads);
    rows_free(outs);
    ranks_close(&r);
}

/* Two groups in one process, steps in turn on the same threads. */
static int step_both(ranks *r, int rank, void *context) {
    ranks *other = context;
    float grad[50], out[50];
    oracle_fill(grad, 50, DATA_SUMMABLE, (uint64_t)rank);
    int error = tw_allreduce(r->groups[rank], 0, grad, out);
    if (!error)
        error = tw_allreduce(other->groups[rank], 0, grad, grad);
    return error ? error : oracle_difference(out, grad, 50) < 0 ? TW_OK : TW_ERR_STATE;
}

static void test_two_groups(void **state) {
    (void)state;
    ranks one, two;
    const int64_t n = 50;
    tw_group_params params = usual("allgather");
    params.select.k = 50;
    ranks_open(&one, RANKS, &params, &n, 1);
    params.exchange = "oktopk";
    ranks_open(&two, RANKS, &params, &n, 1);
    check_scene("two groups in turn");
    for (int step = 0; step < 5; step++) {
        ranks_run(&one, step_both, &two);
        ranks_ok(&one);
    }
    ranks_close(&one);
    ranks_close(&two);
}

/* params and names are copied. */
static void test_params_are_copied(void **state) {
    (void)state;
    tw_transport *transport;
    tw_group *group;
    char scheme[] = "topka", exchange[] = "gtopk", method[] = "exact";
    tw_group_params params = usual(exchange);
    params.scheme = scheme;
    params.select.method = method;
    tw_select_params own = params.select;
    check_scene("copied parameters");
    check_ok(tw_transport_self(&transport));
    check_ok(tw_group_create(&group, transport, &params));
    check_ok(tw_group_add(group, N, NULL, NULL));
    check_ok(tw_group_add(group, N, &own, NULL));
    memset(scheme, 'x', 5);
    memset(exchange, 'x', 5);
    memset(method, 'x', 5);
    memset(&params, 0xff, sizeof params);
    memset(&own, 0xff, sizeof own);
    check_ok(tw_group_open(group));
    float grad[N];
    oracle_fill(grad, N, DATA_GAUSS, 1);
    tw_step_info info;
    for (int tensor = 0; tensor < 2; tensor++) {
        check_ok(tw_allreduce(group, tensor, grad, NULL));
        check_ok(tw_group_info(group, tensor, &info));
        assert_string_equal(info.exchange, "gtopk");
        check_int("applied", info.applied, K);
    }
    tw_group_free(group);
    tw_transport_free(transport);
}

/* ---- What is said about steps -------------------------------------------------------------------- */

static void test_info(void **state) {
    (void)state;
    ranks r;
    const int64_t n = N;
    const tw_group_params params = usual("allgather");
    float **grads = rows_alloc(RANKS, N);
    tw_step_info info;
    tw_traffic before[RANKS], after;
    check_scene("info");
    ranks_open(&r, RANKS, &params, &n, 1);
    check_ok(tw_group_info(r.groups[0], 0, &info));
    check_int("step of a fresh group", info.step, 0);
    for (int step = 0; step < 4; step++) {
        for (int rank = 0; rank < RANKS; rank++)
            check_ok(tw_transport_info(r.transports[rank], NULL, NULL, NULL, &before[rank]));
        fill(grads, RANKS, N, step);
        ranks_allreduce(&r, 0, (void *const *)grads, NULL);
        ranks_ok(&r);
        for (int rank = 0; rank < RANKS; rank++) {
            check_ok(tw_group_info(r.groups[rank], 0, &info));
            check_ok(tw_transport_info(r.transports[rank], NULL, NULL, NULL, &after));
            check_int("step", info.step, step + 1);
            check_int("k", info.k, K);
            check_int("selected", info.selected, K);
            check_int("tensors", info.tensors, 1);
            check_between("applied", info.applied, K, K * RANKS);
            check_int("payload sent", info.traffic.payload_sent, 8 * K * (RANKS - 1));
            check_int("payload received", info.traffic.payload_received, 8 * K * (RANKS - 1));
            check_int("payload of the transport", after.payload_sent - before[rank].payload_sent,
                      info.traffic.payload_sent);
            check_int("control of the transport", after.control_sent - before[rank].control_sent,
                      info.traffic.control_sent);
            check_int("messages of the transport", after.messages_sent - before[rank].messages_sent,
                      info.traffic.messages_sent);
            check_true(info.traffic.messages_sent > 0 && info.traffic.control_sent > 0);
            check_true(info.select_seconds > 0 && info.agree_seconds >= 0);
            check_true(info.exchange_seconds > 0 && info.apply_seconds >= 0);
        }
    }
    ranks_close(&r);
    rows_free(grads);
}

/* The result stays until the next step, zeros are left out, and there is none before a step. */
static void test_result(void **state) {
    (void)state;
    ranks r;
    tw_sparse result, again;
    const int64_t sizes[2] = {N, N};
    const tw_group_params params = usual("allgather");
    float **grads = rows_alloc(RANKS, N);
    check_scene("result");
    ranks_open(&r, RANKS, &params, sizes, 2);
    check_error(tw_group_result(r.groups[0], 0, &result), TW_ERR_STATE);
    for (int rank = 0; rank < RANKS; rank++) { /* 1 - 1 + 1 - 1 at 5, 3 ranks' 2 at 7 */
        grads[rank][5] = rank % 2 ? 1.0f : -1.0f;
        grads[rank][7] = rank ? 2.0f : 0.0f;
    }
    ranks_allreduce(&r, 0, (void *const *)grads, NULL);
    ranks_ok(&r);
    check_error(tw_group_result(r.groups[0], 1, &result), TW_ERR_STATE);
    for (int rank = 0; rank < RANKS; rank++) {
        check_ok(tw_group_result(r.groups[rank], 0, &result));
        check_selection(&result, 1, (int32_t[]){7}, (float[]){1.5f});
    }
    ranks_allreduce(&r, 1, (void *const *)grads, NULL); /* another tensor's step */
    ranks_ok(&r);
    check_ok(tw_group_result(r.groups[RANKS - 1], 0, &again));
    check_true(again.idx == result.idx && again.val == result.val);
    check_selection(&again, 1, (int32_t[]){7}, (float[]){1.5f});
    ranks_close(&r);
    rows_free(grads);
}

static void test_names(void **state) {
    (void)state;
    static const char *const want[][3] = {{"dense", NULL, "dense"},
                                          {"topka", "exact", "allgather"},
                                          {"topkdsa", "exact", "dsa"},
                                          {"gtopk", "exact", "gtopk"},
                                          {"gaussiank", "gaussian", "allgather"},
                                          {"dgc", "dgc", "allgather"},
                                          {"randomk", "random", "allgather"},
                                          {"oktopk", "reuse", "oktopk"}};
    int found = 0, position = 0;
    const char *name, *select, *exchange, *text;
    for (; tw_scheme(position, &name, &select, &exchange, &text) == TW_OK; position++)
        for (int i = 0; i < 8; i++)
            if (strcmp(name, want[i][0]) == 0) {
                check_scene("scheme %s: %s + %s", name, select, exchange);
                check_true(!want[i][1] || strcmp(select, want[i][1]) == 0);
                check_true(strcmp(exchange, want[i][2]) == 0 && strlen(text) > 10);
                found++;
            }
    check_scene("names");
    check_int("schemes known", found, 8);
    check_error(tw_scheme(position, NULL, NULL, NULL, NULL), TW_ERR_NAME);
    check_error(tw_scheme(-1, NULL, NULL, NULL, NULL), TW_ERR_NAME);
    check_ok(tw_scheme(0, NULL, NULL, NULL, NULL));
    check_ok(tw_exchange(0, NULL, &text));
    check_true(strlen(text) > 10);
    check_error(tw_exchange(-1, NULL, NULL), TW_ERR_NAME);
}

/* What a scheme pairs is what runs; the default is oktopk. */
static void test_scheme_decides(void **state) {
    (void)state;
    const char *name = NULL, *exchange;
    for (int i = -1; i < 0 || tw_scheme(i, &name, NULL, &exchange, NULL) == TW_OK; i++) {
        tw_transport *transport;
        tw_group *group;
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.scheme = i < 0 ? NULL : name;
        params.select.k = K;
        check_scene("scheme %s", i < 0 ? "NULL" : name);
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        check_ok(tw_group_add(group, N, NULL, NULL));
        check_ok(tw_group_open(group));
        float grad[N];
        tw_step_info info;
        oracle_fill(grad, N, DATA_GAUSS, 1);
        check_ok(tw_allreduce(group, 0, grad, grad));
        check_ok(tw_group_info(group, 0, &info));
        assert_string_equal(info.exchange, i < 0 ? "oktopk" : exchange);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

/* ---- Options of the selection -------------------------------------------------------------------- */

static void test_feedback_off(void **state) {
    (void)state;
    for (int e = 0; e < 4; e++) {
        exchange_oracle o;
        tw_group_params params = usual(sparse_exchanges[e]);
        params.select.feedback = TW_FEEDBACK_OFF;
        exchange_oracle_open(&o, sparse_exchanges[e], RANKS, N, K, TW_MEAN);
        o.feedback = TW_FEEDBACK_OFF;
        run_beside(&params, &o, 4);
        exchange_oracle_close(&o);
    }
}

static void test_momentum(void **state) {
    (void)state;
    for (int e = 0; e < 4; e++)
        for (int nranks = 3; nranks <= 4; nranks++) {
            exchange_oracle o;
            tw_group_params params = usual(sparse_exchanges[e]);
            params.select.momentum = 0.75f;
            exchange_oracle_open(&o, sparse_exchanges[e], nranks, N, K, TW_MEAN);
            o.momentum = 0.75f;
            run_beside(&params, &o, 6);
            exchange_oracle_close(&o);
        }
}

/* Several threads per rank change nothing. */
static void test_threads(void **state) {
    (void)state;
    for (int e = 0; e < 4; e++) {
        exchange_oracle o;
        tw_group_params params = usual(sparse_exchanges[e]);
        params.select.threads = 3;
        exchange_oracle_open(&o, sparse_exchanges[e], RANKS, 200003, K, TW_MEAN);
        run_beside(&params, &o, 3);
        exchange_oracle_close(&o);
    }
}

/* k falls during the warm-up as it does for a selector alone; oktopk becomes gtopk on the way. */
static int64_t next_k(tw_selector *selector, const float *grad) {
    tw_sparse sparse;
    tw_select_info info;
    check_ok(tw_selector_run(selector, grad, &sparse));
    check_ok(tw_selector_commit(selector, NULL, 0));
    check_ok(tw_selector_info(selector, &info));
    return info.k;
}

static void warm_up(const char *exchange) {
    ranks r;
    exchange_oracle o;
    const int64_t n = N;
    tw_group_params params = usual(exchange);
    params.select.k = 0;
    params.select.density = 0.005;
    params.select.warmup_steps = 6;
    params.select.warmup_density = 0.5;
    tw_selector *alone = check_create(n, &params.select);
    float **grads = rows_alloc(RANKS, n), **outs = rows_alloc(RANKS, n);
    exchange_oracle_open(&o, exchange, RANKS, n, 1, TW_MEAN);
    ranks_open(&r, RANKS, &params, &n, 1);
    int64_t first = 0;
    for (int step = 0; step < 9; step++) {
        tw_step_info info;
        check_scene("warm-up with %s, step=%d", exchange, step);
        fill(grads, RANKS, n, step);
        o.k = next_k(alone, grads[0]);
        first = step == 0 ? o.k : first;
        step_beside(&r, &o, grads, outs);
        check_ok(tw_group_info(r.groups[1], 0, &info));
        check_int("k", info.k, o.k);
        assert_string_equal(info.exchange, o.used);
    }
    check_true(o.k == 10 && first > 1000);
    tw_selector_free(alone);
    exchange_oracle_close(&o);
    rows_free(grads);
    rows_free(outs);
    ranks_close(&r);
}

static void test_warmup(void **state) {
    (void)state;
    for (int e = 0; e < 4; e++)
        warm_up(sparse_exchanges[e]);
}

/* ---- Tensors of several kinds -------------------------------------------------------------------- */

typedef struct mixture {
    tw_group_params params;
    tw_select_params own[3];
    const void *const *grads[3]; /* [tensor][rank] */
    float **outs[3];
} mixture;

static const int64_t mixed_n[3] = {500, N, 333};

static int mixed_rank(ranks *r, int rank, void *context) {
    mixture *m = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &m->params);
    for (int i = 0; i < 3 && !error; i++)
        error = tw_group_add(r->groups[rank], mixed_n[i], i ? &m->own[i] : NULL, NULL);
    if (!error)
        error = tw_group_open(r->groups[rank]);
    for (int i = 2; i >= 0 && !error; i--)
        error = tw_allreduce(r->groups[rank], i, m->grads[i][rank], m->outs[i][rank]);
    return error;
}

/* The group's selection for tensor 0, own ones (k, type) for the others. */
static void test_mixed_tensors(void **state) {
    (void)state;
    ranks r;
    mixture m = {.params = usual("oktopk")};
    m.params.select.threads = 1;
    m.own[1] = m.own[2] = m.params.select;
    m.own[1].k = 100;
    m.own[1].type = TW_BF16;
    m.own[2].k = 5;
    m.own[2].type = TW_F16;
    float **grads[3], **raw[3];
    for (int i = 0; i < 3; i++) {
        grads[i] = rows_alloc(RANKS, mixed_n[i]);
        raw[i] = rows_alloc(RANKS, mixed_n[i]);
        m.outs[i] = rows_alloc(RANKS, mixed_n[i]);
        m.grads[i] = (const void *const *)raw[i];
        fill(grads[i], RANKS, mixed_n[i], i);
        for (int rank = 0; rank < RANKS; rank++) {
            const int type = i ? m.own[i].type : TW_F32;
            oracle_encode(raw[i][rank], grads[i][rank], mixed_n[i], type);
            oracle_decode(grads[i][rank], raw[i][rank], mixed_n[i], type);
        }
    }
    ranks_init(&r, RANKS);
    ranks_run(&r, mixed_rank, &m);
    ranks_ok(&r);
    for (int i = 0; i < 3; i++) {
        exchange_oracle o;
        check_scene("tensor %d of several kinds", i);
        exchange_oracle_open(&o, "oktopk", RANKS, mixed_n[i], i ? m.own[i].k : K, TW_MEAN);
        exchange_oracle_step(&o, grads[i]);
        for (int rank = 0; rank < RANKS; rank++)
            check_bits("out", m.outs[i][rank], o.out, mixed_n[i]);
        ranks_check_residuals(&r, i, o.residual, mixed_n[i]);
        exchange_oracle_close(&o);
        rows_free(grads[i]);
        rows_free(raw[i]);
        rows_free(m.outs[i]);
    }
    ranks_close(&r);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static tw_memory memory_of(const tw_group_params *params, int nranks, int64_t n) {
    ranks r;
    tw_group *group;
    tw_memory memory;
    ranks_init(&r, nranks);
    check_ok(tw_group_create(&group, r.transports[0], params));
    check_error(tw_group_memory(group, &memory), TW_ERR_STATE);
    check_ok(tw_group_add(group, n, NULL, NULL));
    check_ok(tw_group_memory(group, &memory));
    tw_group_free(group);
    ranks_close(&r);
    check_int("total", (int64_t)memory.total,
              (int64_t)(memory.residual + memory.velocity + memory.undo + memory.workspace));
    return memory;
}

static void test_memory(void **state) {
    (void)state;
    for (int e = 0; e < 4; e++) {
        tw_group_params params = usual(sparse_exchanges[e]);
        params.select.k = 10000;
        check_scene("memory of %s", sparse_exchanges[e]);
        const tw_memory small = memory_of(&params, 2, 1000000);
        const tw_memory large = memory_of(&params, 2, 8000000);
        const tw_memory many = memory_of(&params, 64, 1000000);
        check_between("residual", (int64_t)small.residual, 4000000, 4000000 + (2 << 20));
        check_int("velocity", (int64_t)small.velocity, 0);
        check_between("workspace of 8n", (int64_t)large.workspace, 1,
                      (int64_t)small.workspace + 7000000 / 100);
        if (e >= 2) /* gtopk and oktopk: O(k + P) */
            check_between("workspace of 32 P", (int64_t)many.workspace, 1,
                          2 * (int64_t)small.workspace);
        check_true(many.residual == small.residual && many.undo == small.undo);
        params.select.momentum = 0.5f;
        check_between("velocity", (int64_t)memory_of(&params, 2, 1000000).velocity, 8000000,
                      8000000 + (4 << 20));
    }
    tw_group_params params = usual("dense");
    params.scheme = "dense";
    check_scene("memory of dense");
    const tw_memory dense = memory_of(&params, 4, 50000000);
    check_int("residual, velocity and undo",
              (int64_t)(dense.residual + dense.velocity + dense.undo), 0);
    check_between("workspace", (int64_t)dense.workspace, 1, 8 << 20);
}

/* tw_group_memory says what tw_group_open takes, and says the same afterwards. */
static void test_memory_is_as_told(void **state) {
    (void)state;
    const char *const all[] = {"dense", "allgather", "dsa", "gtopk", "oktopk"};
    for (int e = 0; e < 5; e++) {
        tw_transport *transport;
        tw_group *group;
        tw_memory told, after;
        tw_group_params params = usual(all[e]);
        params.scheme = e ? "topka" : "dense";
        check_scene("memory of %s, as told", all[e]);
        check_ok(tw_transport_self(&transport));
        check_ok(tw_group_create(&group, transport, &params));
        for (int i = 0; i < 3; i++)
            check_ok(tw_group_add(group, 100000, NULL, NULL));
        check_ok(tw_group_memory(group, &told));
        bytes = 0;
        check_ok(tw_group_open(group));
        const int64_t taken = bytes;
        check_between("bytes taken", taken, (int64_t)told.total - 65536,
                      (int64_t)told.total + 65536);
        check_ok(tw_group_memory(group, &after));
        check_true(memcmp(&told, &after, sizeof told) == 0);
        tw_group_free(group);
        tw_transport_free(transport);
    }
}

/* ---- Allocation in steps, and opening without memory ------------------------------------------------ */

typedef struct quiet {
    pthread_barrier_t barrier;
    float **grads, **outs;
    int64_t allocations;
} quiet;

/* Nothing but library calls happens between the barriers. */
static int quiet_rank(ranks *r, int rank, void *context) {
    quiet *q = context;
    tw_group *group = r->groups[rank];
    int error = TW_OK;
    pthread_barrier_wait(&q->barrier);
    if (rank == 0)
        calls = 0;
    pthread_barrier_wait(&q->barrier);
    for (int step = 0; step < 6 && !error; step++) {
        error = tw_allreduce(group, 0, q->grads[rank], q->outs[rank]);
        for (int i = 0; i < 3 && !error; i++)
            error = tw_allreduce_start(group, i, q->grads[rank], q->outs[rank] + i * N);
        if (!error)
            error = tw_allreduce_wait(group, TW_ALL);
        if (!error && tw_allreduce(group, 0, rank ? q->grads[rank] : NULL, NULL) != TW_ERR_NULL)
            error = TW_ERR_STATE;
    }
    pthread_barrier_wait(&q->barrier);
    if (rank == 0)
        q->allocations = calls;
    return error;
}

static void test_steps_allocate_nothing(void **state) {
    (void)state;
    const int64_t sizes[3] = {N, N, N};
    const char *scheme;
    for (int i = 0; tw_scheme(i, &scheme, NULL, NULL, NULL) == TW_OK; i++) {
        ranks r;
        quiet q = {.grads = rows_alloc(RANKS, N), .outs = rows_alloc(RANKS, 3 * N)};
        tw_group_params params = TW_GROUP_PARAMS_INIT;
        params.scheme = scheme;
        params.select.k = K;
        params.select.threads = 2;
        check_scene("allocations of %s", scheme);
        pthread_barrier_init(&q.barrier, NULL, RANKS);
        fill(q.grads, RANKS, N, 1);
        ranks_open(&r, RANKS, &params, sizes, 3);
        ranks_run(&r, quiet_rank, &q);
        ranks_ok(&r);
        check_int("allocations in the step path", q.allocations, 0);
        pthread_barrier_destroy(&q.barrier);
        rows_free(q.grads);
        rows_free(q.outs);
        ranks_close(&r);
    }
}

/* Rank 1 runs out of memory at its call number *context while it opens. */
static int open_hungry(ranks *r, int rank, void *context) {
    tw_group_params params = usual("oktopk");
    params.timeout = 5;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &params);
    if (!error)
        error = tw_group_add(r->groups[rank], N, NULL, NULL);
    if (error)
        return error;
    fails_in = rank == 1 ? *(int64_t *)context : 0;
    error = tw_group_open(r->groups[rank]);
    if (rank == 1)
        *(int64_t *)context = fails_in; /* 0: it came to that call */
    fails_in = 0;
    return error;
}

static void test_open_out_of_memory(void **state) {
    (void)state;
    int64_t call = 1, left = 0;
    for (; left == 0; call++) {
        ranks r;
        left = call;
        check_scene("allocation %lld fails", (long long)call);
        ranks_init(&r, 3);
        ranks_run(&r, open_hungry, &left);
        if (left == 0) {
            ranks_error(&r, TW_ERR_MEMORY);
            ranks_say(&r, "rank 1");
        } else
            ranks_ok(&r);
        ranks_close(&r);
    }
    check_true(call > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_groups_in_turn),
        cmocka_unit_test(test_two_groups),
        cmocka_unit_test(test_params_are_copied),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_result),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_scheme_decides),
        cmocka_unit_test(test_feedback_off),
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_mixed_tensors),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_is_as_told),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_open_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
