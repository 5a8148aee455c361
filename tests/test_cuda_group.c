/* test_cuda_group.c - groups whose tensors lie on a GPU do what those on the CPU do, bit for bit
 *
 * P ranks share the card, as threads. Every scheme goes through the same steps here and there:
 * results, dense and sparse, and residuals must be equal, and nothing may be lost.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

enum { STEPS = 6, MOST_RANKS = 8 };

/* How entries get from one rank's GPU memory to another's; see src/cuda/carrier.h. */
typedef enum { DIRECT, LENT, STAGED, WAYS } way;
static const char *const way_names[WAYS] = {"direct", "lent", "staged"};

static void gpu_ok(cudaError_t error) {
    if (error != cudaSuccess) {
        check_fail("CUDA: %s", cudaGetErrorString(error));
    }
}

/* ---- a way to lend: as NCCL between cards, on one */

typedef struct post {
    const tw_device_message *from[MOST_RANKS][MOST_RANKS]; /* by sender and receiver */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} post;

static post mail;
static int seats[MOST_RANKS]; /* each rank's context: its number */

/* What becomes of the first message from rank 1 to rank 0: `bytes` of it, from `at` on or, where
 * that is negative, from there before its end, become `value`. */
typedef struct forgery {
    const char *what;
    int64_t at;
    size_t bytes;
    int value;
} forgery;

static const forgery *forged; /* NULL: all are honest */

static void forge(const tw_device_message *m) {
    int64_t at = forged->at >= 0 ? forged->at : (int64_t)m->bytes + forged->at;
    (void)cudaMemset((char *)m->data + at, forged->value, forged->bytes);
    (void)cudaDeviceSynchronize();
    forged = NULL;
}

/* Waits until the sender's place is taken, or free. */
static const tw_device_message *post_wait(int sender, int receiver, int taken) {
    while ((mail.from[sender][receiver] != NULL) != taken) {
        pthread_cond_wait(&mail.changed, &mail.mutex);
    }
    return mail.from[sender][receiver];
}

static int post_copy(const tw_device_message *m, int rank, cudaStream_t stream) {
    const tw_device_message *sent = post_wait(m->peer, rank, 1);
    int error = sent->bytes != m->bytes ||
                cudaMemcpyAsync(m->data, sent->data, m->bytes, cudaMemcpyDeviceToDevice, stream) !=
                    cudaSuccess ||
                cudaStreamSynchronize(stream) != cudaSuccess;
    if (!error && forged != NULL && m->peer == 1 && rank == 0) {
        forge(m);
    }
    mail.from[m->peer][rank] = NULL;
    pthread_cond_broadcast(&mail.changed);
    return error ? tw_transport_explain("test: %zu bytes came, %zu were expected", sent->bytes,
                                        m->bytes)
                 : TW_OK;
}

static int post_exchange(void *context, const tw_device_message *messages, int count,
                         void *stream) {
    int rank = *(int *)context, error = TW_OK;
    pthread_mutex_lock(&mail.mutex);
    for (int i = 0; i < count; i++) {
        if (messages[i].sending) {
            mail.from[rank][messages[i].peer] = &messages[i];
        }
    }
    pthread_cond_broadcast(&mail.changed);
    for (int i = 0; i < count && error == TW_OK; i++) {
        if (!messages[i].sending) {
            error = post_copy(&messages[i], rank, stream);
        }
    }
    for (int i = 0; i < count && error == TW_OK; i++) {
        if (messages[i].sending) {
            post_wait(rank, messages[i].peer, 0);
        }
    }
    pthread_mutex_unlock(&mail.mutex);
    return error;
}

static void use_way(ranks *r, way how) {
    const tw_network network = {.latency = 1e-6, .bandwidth = 1e9};
    for (int i = 0; i < r->nranks; i++) {
        seats[i] = i;
        if (how == LENT) {
            check_ok(tw_transport_set_device(r->transports[i], post_exchange, &seats[i]));
        }
        if (how == STAGED) {
            tw_transport_free(r->transports[i]);
        }
    }
    if (how == STAGED) {
        check_ok(tw_transport_simulated(r->transports, r->nranks, &network));
    }
}

/* ---- The same groups on the CPU and on the GPU. */
typedef struct pair {
    int nranks;
    int64_t n;
    ranks here, there;
    float **grads, **outs; /* [nranks][n] on the host */
    float **copies;        /* what came back */
    float **residuals[2];  /* here and there */
    void *gpu_grads[MOST_RANKS];
    float *gpu_outs[MOST_RANKS];
} pair;

static void pair_open_by(pair *p, int nranks, int64_t n, const tw_group_params *params, way how) {
    *p = (pair){.nranks = nranks, .n = n};
    ranks_open(&p->here, nranks, params, &n, 1);
    tw_group_params there = *params;
    there.select.device = TW_CUDA;
    ranks_init(&p->there, nranks);
    use_way(&p->there, how);
    ranks_try_open(&p->there, &there, &n, 1);
    ranks_ok(&p->there);
    p->grads = rows_alloc(nranks, n);
    p->outs = rows_alloc(nranks, n);
    p->copies = rows_alloc(nranks, n);
    p->residuals[0] = rows_alloc(nranks, n);
    p->residuals[1] = rows_alloc(nranks, n);
    for (int r = 0; r < nranks; r++) {
        gpu_ok(cudaMalloc(&p->gpu_grads[r], 4 * (size_t)n));
        gpu_ok(cudaMalloc((void **)&p->gpu_outs[r], 4 * (size_t)n));
    }
}

static void pair_open(pair *p, int nranks, int64_t n, const tw_group_params *params) {
    pair_open_by(p, nranks, n, params, DIRECT);
}

static void pair_close(pair *p) {
    ranks_close(&p->here);
    ranks_close(&p->there);
    rows_free(p->grads);
    rows_free(p->outs);
    rows_free(p->copies);
    rows_free(p->residuals[0]);
    rows_free(p->residuals[1]);
    for (int r = 0; r < p->nranks; r++) {
        gpu_ok(cudaFree(p->gpu_grads[r]));
        gpu_ok(cudaFree(p->gpu_outs[r]));
    }
}

static void pair_upload(pair *p) {
    for (int r = 0; r < p->nranks; r++) {
        gpu_ok(cudaMemcpy(p->gpu_grads[r], p->grads[r], 4 * (size_t)p->n, cudaMemcpyHostToDevice));
    }
}

static void compare_sparse(pair *p, int rank) {
    tw_sparse here, there;
    if (tw_group_result(p->here.groups[rank], 0, &here) != TW_OK) {
        return; /* dense */
    }
    check_ok(tw_group_result(p->there.groups[rank], 0, &there));
    int32_t *idx = check_alloc(there.count + 1, 4);
    float *val = check_alloc(there.count + 1, 4);
    gpu_ok(cudaMemcpy(idx, there.idx, 4 * (size_t)there.count, cudaMemcpyDeviceToHost));
    gpu_ok(cudaMemcpy(val, there.val, 4 * (size_t)there.count, cudaMemcpyDeviceToHost));
    tw_sparse copied = {there.count, idx, val};
    check_selection(&copied, here.count, here.idx, here.val);
    free(idx);
    free(val);
}

static void pair_step(pair *p, int with_out) {
    pair_upload(p);
    ranks_allreduce(&p->here, 0, (void *const *)p->grads, p->outs);
    ranks_ok(&p->here);
    ranks_allreduce(&p->there, 0, p->gpu_grads, with_out ? p->gpu_outs : NULL);
    ranks_ok(&p->there);
    for (int r = 0; r < p->nranks; r++) {
        if (with_out) {
            gpu_ok(
                cudaMemcpy(p->copies[r], p->gpu_outs[r], 4 * (size_t)p->n, cudaMemcpyDeviceToHost));
            check_bits("out", p->copies[r], p->outs[r], p->n);
        }
        compare_sparse(p, r);
    }
}

static void compare_residuals_of(pair *p, int tensor) {
    ranks_get_residuals(&p->here, tensor, p->residuals[0], p->n);
    ranks_get_residuals(&p->there, tensor, p->residuals[1], p->n);
    for (int r = 0; r < p->nranks; r++) {
        check_bits("residual", p->residuals[1][r], p->residuals[0][r], p->n);
    }
}

static void compare_residuals(pair *p) {
    compare_residuals_of(p, 0);
}

/* Of summable data, in units: gradients so far = applied so far + residuals of all ranks. */
static void check_conserved(const pair *p, const int64_t *given, const int64_t *applied) {
    for (int64_t i = 0; i < p->n; i++) {
        int64_t left = 0;
        for (int r = 0; r < p->nranks; r++) {
            left += check_units(p->residuals[1][r][i]);
        }
        check_int("conserved", applied[i] + left, given[i]);
    }
}

static tw_group_params params_of(const char *scheme, double density) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = density;
    params.result = TW_SUM;
    return params;
}

static void run_scheme(const char *scheme, way how, int nranks, int64_t n, double density) {
    tw_group_params params = params_of(scheme, density);
    int64_t *given = check_alloc(n, sizeof *given), *applied = check_alloc(n, sizeof *applied);
    memset(given, 0, sizeof *given * (size_t)n);
    memset(applied, 0, sizeof *applied * (size_t)n);
    pair p;
    check_scene("scheme=%s %s P=%d n=%lld open", scheme, way_names[how], nranks, (long long)n);
    pair_open_by(&p, nranks, n, &params, how);
    for (int step = 0; step < STEPS; step++) {
        check_scene("scheme=%s %s P=%d n=%lld density=%g step=%d", scheme, way_names[how], nranks,
                    (long long)n, density, step);
        rows_fill(p.grads, nranks, n, DATA_SUMMABLE, step);
        pair_step(&p, 1);
        for (int64_t i = 0; i < n; i++) {
            applied[i] += check_units(p.copies[0][i]);
            for (int r = 0; r < nranks; r++) {
                given[i] += check_units(p.grads[r][i]);
            }
        }
    }
    compare_residuals(&p);
    check_conserved(&p, given, applied);
    pair_close(&p);
    free(given);
    free(applied);
}

static void test_all_schemes(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        for (int c = 0; c < 4 && strcmp(scheme, "auto") != 0; c++) {
            for (way how = DIRECT; how < WAYS; how++) {
                run_scheme(scheme, how, counts[c], 5003, 0.1);
                run_scheme(scheme, how, counts[c], 70001, 0.01);
            }
        }
    }
}

/* Messages of several chunks; a range that dsa sends plain. */
static void test_long_lists(void **state) {
    (void)state;
    for (way how = DIRECT; how < WAYS; how++) {
        run_scheme("topka", how, 3, 1500000, 0.2);
        run_scheme("topkdsa", how, 2, 900000, 0.4);
        run_scheme("oktopk", how, 4, 3000000, 0.1);
    }
}

/* ---- wire formats: lists so short that the CPU codes them, unless a way is lent, and long ones */

static void compare_payload(const pair *p) {
    for (int r = 0; r < p->nranks; r++) {
        tw_step_info here, there;
        check_ok(tw_group_info(p->here.groups[r], 0, &here));
        check_ok(tw_group_info(p->there.groups[r], 0, &there));
        check_int("payload sent", there.traffic.payload_sent, here.traffic.payload_sent);
        check_int("payload received", there.traffic.payload_received,
                  here.traffic.payload_received);
    }
}

static void run_wire(const char *scheme, const char *wire, way how, int nranks, int64_t n,
                     double density, int steps) {
    tw_group_params params = params_of(scheme, density);
    params.wire = wire;
    pair p;
    check_scene("scheme=%s wire=%s %s P=%d n=%lld open", scheme, wire, way_names[how], nranks,
                (long long)n);
    pair_open_by(&p, nranks, n, &params, how);
    for (int step = 0; step < steps; step++) {
        check_scene("scheme=%s wire=%s %s P=%d n=%lld density=%g step=%d", scheme, wire,
                    way_names[how], nranks, (long long)n, density, step);
        rows_fill(p.grads, nranks, n, step == 1 ? DATA_POWER5 : DATA_GAUSS, step);
        pair_step(&p, 1);
        if (n < 100000) { /* longer lists may be cut, and go from rank to rank, on the CPU alone */
            compare_payload(&p);
        }
    }
    compare_residuals(&p);
    pair_close(&p);
}

static const char *wire_at(int position) {
    const char *name = NULL;
    return tw_wire(position, &name, NULL) == TW_OK ? name : NULL;
}

static void test_wires(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        int coded = strcmp(scheme, "auto") != 0 && strcmp(scheme, "dense") != 0;
        for (int w = 1; wire_at(w) != NULL && coded; w++) {
            for (int c = 0; c < 4; c++) {
                run_wire(scheme, wire_at(w), LENT, counts[c], 5003, 0.1, 3);
            }
            run_wire(scheme, wire_at(w), DIRECT, 3, 20011, 0.02, 3);
        }
    }
}

/* Entries stay on the GPU all three ways. */
static void test_long_wires(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    for (way how = DIRECT; how < WAYS; how++) {
        for (int s = 0; s < 4; s++) {
            for (int w = 1; wire_at(w) != NULL; w++) {
                run_wire(schemes[s], wire_at(w), how, 3, 250007, 0.1, 2);
            }
        }
        /* From 32768 entries on, regions are cut into batches. */
        run_wire("oktopk", "bf16", how, 4, 1000003, 0.05, 3);
        run_wire("oktopk", "q4", how, 4, 1000003, 0.05, 3);
        run_wire("oktopk", "q2", how, 2, 1000003, 0.05, 3);
        run_wire("topkdsa", "q8", how, 2, 900000, 0.4, 2); /* bitmaps */
    }
}

static int zeros(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != 0.0f) {
            return 0;
        }
    }
    return 1;
}

/* A letter that no honest rank sends: an error that names the rank, and nothing is lost. */
static void test_forged_letters(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    static const forgery forgeries[] = {
        {"kind", 0, 1, 9},    {"version", 8, 1, 77}, {"format", 9, 1, 6},
        {"width", 10, 1, 31}, {"unused", 11, 1, 1},  {"count", 12, 4, 255},
        {"fewer", 12, 4, 0},  {"nan", -4, 4, 255},   {"indices", 16, 40, 255}};
    for (int s = 0; s < 4; s++) {
        for (int f = 0; f < 9; f++) {
            tw_group_params params = params_of(schemes[s], 0.1);
            params.wire = "f32";
            pair p;
            memset((void *)mail.from, 0, sizeof mail.from);
            pair_open_by(&p, 3, 5003, &params, LENT);
            check_scene("forged %s, scheme=%s", forgeries[f].what, schemes[s]);
            rows_fill(p.grads, 3, 5003, DATA_GAUSS, 1);
            pair_upload(&p);
            forged = &forgeries[f];
            ranks_allreduce(&p.there, 0, p.gpu_grads, p.gpu_outs);
            check_true(forged == NULL);
            check_int("status", p.there.status[0], TW_ERR_PROTOCOL);
            check_contains(p.there.text[0], "rank 1: sent");
            ranks_get_residuals(&p.there, 0, p.residuals[1], p.n);
            check_true(zeros(p.residuals[1][0], p.n));
            pair_close(&p);
        }
    }
}

/* Sums that no float holds: refused alike. With lent ways, entries are on the GPU. */
static void run_overflow(const char *scheme, const char *wire, way how) {
    tw_group_params params = params_of(scheme, 0.02);
    params.wire = wire;
    pair p;
    pair_open_by(&p, 3, 3001, &params, how);
    for (int step = 0; step < STEPS; step++) {
        check_scene("overflow, scheme=%s wire=%s %s step=%d", scheme, wire, way_names[how], step);
        rows_fill(p.grads, 3, 3001, DATA_GAUSS, step);
        for (int r = 0; r < 3 && step % 2; r++) {
            for (int64_t i = 0; i < 3001; i++) {
                p.grads[r][i] *= 1e37f;
            }
            p.grads[r][7] = step == STEPS - 1 ? 3e38f : p.grads[r][7];
        }
        pair_upload(&p);
        ranks_allreduce(&p.here, 0, (void *const *)p.grads, p.outs);
        ranks_allreduce(&p.there, 0, p.gpu_grads, p.gpu_outs);
        for (int r = 0; r < 3; r++) {
            check_int("status", p.there.status[r], p.here.status[r]);
        }
        compare_residuals(&p);
    }
    ranks_error(&p.there, TW_ERR_NUMBER); /* the last one */
    pair_close(&p);
}

static void test_overflow(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    static const char *const wires[] = {"raw", "bf16", "q2"};
    for (int s = 0; s < 4; s++) {
        for (int w = 0; w < 3; w++) {
            run_overflow(schemes[s], wires[w], DIRECT);
            run_overflow(schemes[s], wires[w], LENT);
        }
    }
}

/* Momentum, other data, no output, means. */
static void test_options(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "gtopk", "oktopk", "randomk"};
    for (int s = 0; s < 4; s++) {
        tw_group_params params = params_of(schemes[s], 0.02);
        params.result = TW_MEAN;
        params.select.momentum = 0.9f;
        params.select.clip_norm = 20.0f;
        params.select.warmup_steps = 3;
        pair p;
        pair_open(&p, 3, 20011, &params);
        for (int step = 0; step < STEPS; step++) {
            check_scene("scheme=%s step=%d", schemes[s], step);
            rows_fill(p.grads, 3, 20011, step == 4 ? DATA_POWER5 : DATA_GAUSS, step);
            pair_step(&p, step % 2);
        }
        compare_residuals(&p);
        pair_close(&p);
    }
}

/* A bad number or pointer on one rank: the same error on all, and nothing has changed. */
static void test_refusals(void **state) {
    (void)state;
    tw_group_params params = params_of("oktopk", 0.05);
    pair p;
    pair_open(&p, 3, 3001, &params);
    for (int step = 0; step < STEPS; step++) {
        check_scene("refusals, step=%d", step);
        rows_fill(p.grads, 3, 3001, DATA_GAUSS, step);
        pair_step(&p, 1);
        float before = p.grads[1][77];
        p.grads[1][77] = NAN;
        pair_upload(&p);
        ranks_allreduce(&p.there, 0, p.gpu_grads, p.gpu_outs);
        ranks_error(&p.there, TW_ERR_NUMBER);
        ranks_say(&p.there, "rank 1, tensor 0: element 77");
        p.grads[1][77] = before;
        pair_upload(&p);
        void *gpu = p.gpu_grads[2];
        p.gpu_grads[2] = p.grads[2];
        ranks_allreduce(&p.there, 0, p.gpu_grads, p.gpu_outs);
        ranks_error(&p.there, TW_ERR_DEVICE);
        p.gpu_grads[2] = gpu;
    }
    compare_residuals(&p);
    pair_close(&p);
}

/* ---- in the background, and from a saved state */

/* Tensors side by side in one vector, so that most of them are not aligned. */
typedef struct background {
    pair *p;
    const int64_t *sizes;
    int tensors;
} background;

static int start_and_wait(ranks *r, int rank, void *context) {
    background *b = context;
    int there = r == &b->p->there, error = TW_OK;
    char *grad = there ? b->p->gpu_grads[rank] : (char *)b->p->grads[rank];
    float *out = there ? b->p->gpu_outs[rank] : b->p->outs[rank];
    int64_t at = b->p->n;
    for (int t = b->tensors - 1; t >= 0 && error == TW_OK; t--) {
        at -= b->sizes[t];
        error = tw_allreduce_start(r->groups[rank], t, grad + 4 * at, out + at);
    }
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

/* One step here and there, which all ranks refuse in the same way where that is expected. */
static void background_step(background *b, int expected) {
    pair *p = b->p;
    pair_upload(p);
    ranks_run(&p->here, start_and_wait, b);
    ranks_error(&p->here, expected);
    ranks_run(&p->there, start_and_wait, b);
    ranks_error(&p->there, expected);
    for (int r = 0; r < p->nranks && expected == TW_OK; r++) {
        gpu_ok(cudaMemcpy(p->copies[r], p->gpu_outs[r], 4 * (size_t)p->n, cudaMemcpyDeviceToHost));
        check_bits("out", p->copies[r], p->outs[r], p->n);
    }
}

static void run_background(const char *scheme, const int64_t *sizes, int tensors) {
    tw_group_params params = params_of(scheme, 0.02);
    int64_t n = 0;
    for (int t = 0; t < tensors; t++) {
        n += sizes[t];
    }
    pair p;
    pair_open(&p, 4, n, &params);
    ranks_close(&p.here);
    ranks_close(&p.there);
    ranks_open(&p.here, 4, &params, sizes, tensors);
    params.select.device = TW_CUDA;
    ranks_open(&p.there, 4, &params, sizes, tensors);
    background b = {&p, sizes, tensors};
    for (int step = 0; step < STEPS; step++) {
        int bad = step == STEPS / 2;
        check_scene("background, scheme=%s, step=%d", scheme, step);
        rows_fill(p.grads, 4, n, DATA_GAUSS, step);
        if (bad) {
            p.grads[1][n / 2] = NAN;
        }
        background_step(&b, bad ? TW_ERR_NUMBER : TW_OK);
    }
    for (int t = 0; t < tensors; t++) {
        p.n = sizes[t];
        check_scene("background, scheme=%s, residual of tensor %d", scheme, t);
        compare_residuals_of(&p, t);
    }
    pair_close(&p);
}

static void test_background(void **state) {
    (void)state;
    static const int64_t two[] = {30000, 30000};
    run_background("oktopk", two, 2);
}

/* Small ones are selected side by side: more than fit a launch, of all sizes up to what counts as
 * small and beyond. */
static const int64_t many[] = {1,  2,    3,    31,   64,   512,   512,   512,   4095, 4096,
                               10, 4097, 1728, 8192, 5000, 36864, 65536, 65537, 70001};
enum { MANY = sizeof many / sizeof *many };

static void test_many(void **state) {
    (void)state;
    run_background("oktopk", many, MANY);
    run_background("topka", many, MANY);
    run_background("gaussiank", many, MANY);
}

static int save(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", (char *)context, rank);
    return tw_group_save(r->groups[rank], path);
}

static int load(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", (char *)context, rank);
    const char *const paths[] = {path};
    return tw_group_load(r->groups[rank], paths, 1);
}

/* The GPU's groups go on from what the CPU's saved, and the other way round. */
static void test_state(void **state) {
    (void)state;
    char name[] = "/tmp/thinwire-cuda-XXXXXX";
    int file = mkstemp(name);
    check_true(file >= 0);
    close(file);
    tw_group_params params = params_of("oktopk", 0.05);
    params.select.momentum = 0.5f;
    pair p;
    pair_open(&p, 3, 4001, &params);
    for (int step = 0; step < 3 * STEPS; step++) {
        check_scene("state, step=%d", step);
        rows_fill(p.grads, 3, 4001, DATA_GAUSS, step);
        pair_step(&p, 1);
        if (step % 4 == 3) {
            ranks *from = step % 8 == 3 ? &p.here : &p.there,
                  *to = step % 8 == 3 ? &p.there : &p.here;
            ranks_run(from, save, name);
            ranks_ok(from);
            ranks_run(to, load, name);
            ranks_ok(to);
        }
    }
    compare_residuals(&p);
    pair_close(&p);
    for (int r = 0; r < 3; r++) {
        char path[64];
        snprintf(path, sizeof path, "%s.%d", name, r);
        unlink(path);
    }
    unlink(name);
}

/* With `quick`, for tools that are many times slower: every scheme and wire format, once, with
 * entries on the GPU. */
static void test_quick(void **state) {
    (void)state;
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        if (strcmp(scheme, "auto") != 0) { /* goes by time, which is not the same here and there */
            run_scheme(scheme, LENT, 3, 5003, 0.1);
        }
    }
    static const char *const coded[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    for (int w = 1; wire_at(w) != NULL; w++) {
        run_wire(coded[w % 4], wire_at(w), LENT, 3, 5003, 0.1, 2);
    }
    run_background("oktopk", many, MANY);
}

int main(int argc, char **argv) {
    if (tw_cuda_device(0, NULL) != TW_OK) {
        printf("SKIP: %s\n", tw_last_error());
        return 0;
    }
    pthread_mutex_init(&mail.mutex, NULL);
    pthread_cond_init(&mail.changed, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schemes), cmocka_unit_test(test_options),
        cmocka_unit_test(test_long_lists),  cmocka_unit_test(test_wires),
        cmocka_unit_test(test_long_wires),  cmocka_unit_test(test_forged_letters),
        cmocka_unit_test(test_overflow),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_background),  cmocka_unit_test(test_many),
        cmocka_unit_test(test_state),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(test_quick)};
    if (argc > 1 && strcmp(argv[1], "quick") == 0) {
        return cmocka_run_group_tests(few, NULL, NULL);
    }
    if (argc > 1) { /* or a pattern: those of this name */
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
